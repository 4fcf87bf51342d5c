"""Parameters of the encoders beside a language model, from their own part of the configuration.

Exact for the families with a rule below; others are counted as a plain vision transformer, which is
within some percent. The language model's cache does not depend on any of this.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from kvplan.errors import printable
from kvplan.sources.hf.keys import Config
from kvplan.spec.model import Tower

_COLOURS = 3
_SIZE = re.compile(r"size$|layers$|depth$|dim$|width$|tiles$|embeddings$|^num_")


def read_towers(cfg: Config, outer: Config, width: int) -> tuple[Tower, ...]:
    """The vision (and audio) encoders, their projections into `width` included.

    Args:
        cfg: the text part.
        outer: the whole file.
        width: hidden size of the language model.
    """
    found = []
    vision = _vision_part(outer, "vision_config", "visual")
    if vision is not None:
        kind = str(vision.get("model_type") or outer.get("model_type") or "")
        count = _rule(kind, str(outer.get("model_type") or ""))(vision, width)
        if count:
            found.append(Tower(name="vision", parameters=count))
    audio = _vision_part(outer, "audio_config")
    if audio is not None and str(audio.get("model_type") or outer.get("model_type") or "").startswith("gemma4"):
        found.append(Tower(name="audio", parameters=_gemma4_audio(audio, width)))
    fixed = _FIXED.get(str(outer.get("model_type") or ""))
    if fixed:
        return (Tower(name=fixed[0], parameters=fixed[1]),)
    if outer.get("model_type") == "whisper":
        found.append(Tower(name="encoder", parameters=_whisper_encoder(outer)))
    return tuple(found)


def image_tokens(outer: Config) -> int | None:
    """Positions that one image of the largest size hands to cross-attention layers; None: no vision part.

    Source: transformers 5.24.0 ``models/mllama/modeling_mllama.py``: every tile gives its patches and a class token.
    """
    vision = _vision_part(outer, "vision_config")
    if vision is None:
        return None
    size, patch = _side(vision, "image_size"), _side(vision, "patch_size")
    if not size or not patch:
        return None
    return ((size // patch) ** 2 + 1) * (vision.maybe_int("max_num_tiles") or 1)


def _side(vision: Config, key: str) -> int | None:
    """A side of an image or a patch, which some files give twice: height and width."""
    value = vision.get(key)
    if isinstance(value, list) and value and all(v == value[0] for v in value):
        return vision.as_int(value[0], key)
    return vision.maybe_int(key)


def _vision_part(outer: Config, *keys: str) -> Config | None:
    """The encoder's part of a file.

    Raises:
        SpecError: one of its sizes is below 0 (indices, such as the layer that is read, may be).
    """
    part = outer.child(*keys)
    for key, value in part.data.items() if part is not None else ():
        if _SIZE.search(key) and isinstance(value, int | float) and value < 0:
            raise outer.error(f"{keys[0]}.{printable(key, 60)} must not be negative, not {printable(repr(value), 40)}")
    return part


def _rule(kind: str, outer_kind: str) -> Callable[[Config, int], int]:
    for name in (kind, outer_kind):
        for prefix, rule in _VISION:
            if name.startswith(prefix):
                return rule
    return _plain_vit


def _sizes(vision: Config) -> tuple[int, int, int, int]:
    """(width, layers, FFN width, patch side); zeros where the file does not say."""
    return (
        vision.maybe_int("hidden_size", "embed_dim", "width") or 0,
        vision.maybe_int("num_hidden_layers", "depth", "layers") or 0,
        vision.maybe_int("intermediate_size") or 0,
        _side(vision, "patch_size") or 14,
    )


def _plain_vit(vision: Config, width: int) -> int:
    d, depth, wide, patch = _sizes(vision)
    return depth * (4 * d * d + 2 * d * (wide or 4 * d)) + _COLOURS * d * patch * patch + d * width


def _siglip(vision: Config, width: int) -> int:
    """SigLIP with a normed projection (Gemma 3)."""
    d, depth, wide, patch = _sizes(vision)
    layer = 4 * (d * d + d) + 2 * d * wide + wide + d + 4 * d
    positions = ((_side(vision, "image_size") or 224) // patch) ** 2
    return depth * layer + _COLOURS * d * patch * patch + d + positions * d + 2 * d + d + d * width


def _pixtral(vision: Config, width: int) -> int:
    """Pixtral with Mistral 3's merging projector."""
    d, depth, wide, patch = _sizes(vision)
    layer = 4 * d * d + 3 * d * wide + 2 * d
    return depth * layer + _COLOURS * d * patch * patch + 2 * d + 4 * d * d + d * width + width * width


def _qwen3(vision: Config, width: int) -> int:
    """Qwen3-VL and 3.5: LayerNorms, plain FFN, one merger and those that feed lower layers."""
    d, depth, wide, patch = _sizes(vision)
    out = vision.maybe_int("out_hidden_size") or width
    layer = 4 * d + 4 * d * d + 4 * d + 2 * d * wide + wide + d
    merged = 4 * d
    merger = merged * merged + merged + merged * out + out
    listed = vision.maybe_list("deepstack_visual_indexes")
    deep = len(listed) if listed is not None else 3 if _feeds_lower_layers(vision) else 0
    grid = (vision.maybe_int("num_position_embeddings") or 2304) * d
    return depth * layer + _COLOURS * 2 * patch * patch * d + d + grid + merger + 2 * d + deep * (merger + 2 * merged)


def _feeds_lower_layers(vision: Config) -> bool:
    """Class default of ``deepstack_visual_indexes``: three places in Qwen3-VL, none in 3.5."""
    return str(vision.get("model_type") or "").startswith("qwen3_vl")


def _qwen2_5(vision: Config, width: int) -> int:
    """Qwen2.5-VL: RMS norms, gated FFN with biases, one merger."""
    d, depth, wide, patch = _sizes(vision)
    out = vision.maybe_int("out_hidden_size") or width
    layer = 2 * d + 4 * d * d + 4 * d + 3 * d * wide + 2 * wide + d
    merged = 4 * d
    return depth * layer + _COLOURS * 2 * patch * patch * d + d + merged * merged + merged + merged * out + out


def _mllama(vision: Config, width: int) -> int:
    """Llama 3.2 Vision: local and gated global layers, tile embeddings, and the projector."""
    d, depth, wide, patch = _sizes(vision)
    depth += vision.maybe_int("num_global_layers") or 0
    tiles, ratios = vision.maybe_int("max_num_tiles") or 4, len(vision.maybe_list("supported_aspect_ratios") or ()) or 8
    layer = 4 * d * d + 2 * d * wide + wide + d + 4 * d
    positions = ((_side(vision, "image_size") or 448) // patch) ** 2 + 1
    tables = positions * d + (ratios + 1) * tiles * positions * d + 2 * (ratios + 1) * tiles * d
    out = vision.maybe_int("vision_output_dim") or 6 * d
    return depth * layer + _COLOURS * d * patch * patch + d + tables + 4 * d + out * width + width


def _llama4(vision: Config, width: int) -> int:
    """Llama 4: biased attention, a two-layer adapter after the pixel shuffle, and the projector."""
    d, depth, wide, patch = _sizes(vision)
    layer = 4 * (d * d + d) + 2 * d * wide + wide + d + 4 * d
    positions = ((_side(vision, "image_size") or 336) // patch) ** 2 + 1
    out = vision.maybe_int("vision_output_dim") or 4096
    adapter = wide * out + out * out
    return depth * layer + _COLOURS * d * patch * patch + d + positions * d + 4 * d + adapter + out * width


def _gated(vision: Config, width: int) -> int:
    """A vision transformer with gated FFNs and no biases (GLM 5.3, Muse)."""
    d, depth, wide, patch = _sizes(vision)
    return depth * (4 * d * d + 3 * d * wide + 4 * d) + _COLOURS * d * patch * patch + d * width


def _gemma4(vision: Config, width: int) -> int:
    """Gemma 4: four norms a layer, norms over heads, and a table of positions for each axis.

    Source: transformers 5.24.0 ``models/gemma4/modeling_gemma4.py``.
    """
    d, depth, wide, patch = _sizes(vision)
    heads = vision.maybe_int("num_attention_heads") or 12
    size = vision.maybe_int("head_dim") or d // max(heads, 1)
    kv = (vision.maybe_int("num_key_value_heads") or heads) * size
    layer = 2 * d * heads * size + 2 * d * kv + 3 * d * wide + 4 * d + 2 * size
    table = 2 * (vision.maybe_int("position_embedding_size") or 10240) * d
    return depth * layer + table + _COLOURS * d * patch * patch + d * width


def _gemma4_audio(audio: Config, width: int) -> int:
    """The Conformer of the small Gemma 4: two FFNs, attention with relative positions and a convolution a layer.

    Source: transformers 5.24.0 ``models/gemma4/modeling_gemma4.py`` and its configuration's defaults.
    """
    h, depth = audio.maybe_int("hidden_size") or 1024, audio.maybe_int("num_hidden_layers") or 12
    heads, kernel = audio.maybe_int("num_attention_heads") or 8, audio.maybe_int("conv_kernel_size") or 5
    out = audio.maybe_int("output_proj_dims") or 1536
    listed = audio.maybe_list("subsampling_conv_channels") or [128, 32]
    if len(listed) != 2:
        raise audio.error(f"audio_config.subsampling_conv_channels has {len(listed)} entries, not 2")
    first, second = (audio.as_int(n, "subsampling_conv_channels") for n in listed)
    layer = 24 * h * h + (kernel + 9) * h + h // max(heads, 1)
    mel = 128 // 4  # bins of the spectrogram after two halvings
    start = 10 * first + 9 * first * second + second + mel * second * h
    return depth * layer + start + out * h + out + out * width


def _moonvit(vision: Config, width: int) -> int:
    """MoonViT as Kimi publishes it: some 400 million parameters (its file need not repeat the sizes)."""
    if vision.get("hidden_size", "embed_dim", "width"):
        return _plain_vit(vision, width)
    return 416_866_032


def _whisper_encoder(cfg: Config) -> int:
    d, wide = cfg.need_int("d_model"), cfg.need_int("encoder_ffn_dim")
    layer = 4 * d * d + 3 * d + 2 * d * wide + wide + d + 4 * d
    mel, frames = cfg.maybe_int("num_mel_bins") or 80, cfg.maybe_int("max_source_positions") or 1500
    return cfg.need_int("encoder_layers") * layer + 3 * mel * d + d + 3 * d * d + d + frames * d + 2 * d


_VISION: tuple[tuple[str, Callable[[Config, int], int]], ...] = (
    ("siglip", _siglip), ("gemma3", _siglip), ("pixtral", _pixtral), ("mistral3", _pixtral),
    ("qwen3_vl", _qwen3), ("qwen3_5", _qwen3), ("qwen2_5_vl", _qwen2_5), ("mllama", _mllama), ("llama4", _llama4),
    ("gemma4", _gemma4), ("glm5_next", _gated), ("muse_glimmer", _gated), ("deepseek_v41", _gated),
    ("kimi_k", _moonvit), ("moonvit", _moonvit),
)  # fmt: skip
"""How a part's ``model_type`` begins -> its rule."""

_FIXED = {"gemma3n": ("vision and audio", 983_281_504)}
"""Encoders whose layers no configuration spells out: Gemma 3n's, by which the published totals of both sizes exceed
their text part."""

"""Parameters of vision encoders and of what joins them to a language model.

Source of each rule: transformers 5.24.0 ``models/<family>/modeling_<family>.py``.
"""

from __future__ import annotations

from collections.abc import Callable

from kvplan.sources.hf.encoder_parts import grid, layer, linear, patches, q_former, sizes
from kvplan.sources.hf.keys import Config

Rule = Callable[[Config, Config, int], int]
"""(the encoder's part, the level that holds it, width of the language model) -> parameters."""


def plain_vit(vision: Config, _: Config, width: int) -> int:
    """A vision transformer of which nothing but the sizes is known; within some percent."""
    d, depth, wide, _patch = sizes(vision)
    return depth * (4 * d * d + 2 * d * (wide or 4 * d)) + patches(vision, d, bias=False) + d * width


# ---- encoders that several families share, without what joins them ----


def _siglip(vision: Config) -> int:
    """SigLIP and SigLIP 2; the head that pools its output only where the file asks for it."""
    d, depth, wide, _patch = sizes(vision)
    head = layer(d, wide) - d if vision.get("vision_use_head") is True else 0  # a probe and one norm in place of two
    places = vision.maybe_int("num_patches") or grid(vision, 224)
    return depth * layer(d, wide) + patches(vision, d) + places * d + 2 * d + head


def _clip(vision: Config) -> int:
    """CLIP: a class vector, a norm before and one after the layers."""
    d, depth, wide, _patch = sizes(vision)
    return depth * layer(d, wide) + patches(vision, d, bias=False) + d + (grid(vision, 224) + 1) * d + 4 * d


def _blip(vision: Config) -> int:
    """BLIP-2's ViT: a class vector, and one norm after the layers."""
    d, depth, wide, _patch = sizes(vision)
    return depth * layer(d, wide) + patches(vision, d) + d + (grid(vision, 224) + 1) * d + 2 * d


def _pixtral(vision: Config) -> int:
    d, depth, wide, _patch = sizes(vision)
    return depth * (4 * d * d + 3 * d * wide + 2 * d) + patches(vision, d, bias=False) + d


ENCODERS: tuple[tuple[str, Callable[[Config], int]], ...] = (
    ("siglip", _siglip), ("clip", _clip), ("pixtral", _pixtral), ("idefics2", _siglip), ("idefics3", _siglip),
    ("smolvlm", _siglip), ("blip_2", _blip),
)  # fmt: skip
"""How the part's ``model_type`` begins -> the encoder alone."""


# ---- what joins them, by the whole model's family ----


def _one_projection(vision: Config, _: Config, width: int) -> int:
    return linear(sizes(vision)[0], width)


def _normed(vision: Config, _: Config, width: int) -> int:
    d = sizes(vision)[0]
    return d + d * width


def _merged(vision: Config, outer: Config, width: int) -> int:
    """Mistral 3: a norm, four patches in one, two projections."""
    d, merge = sizes(vision)[0], outer.maybe_int("spatial_merge_size") or 2
    bias = outer.flag("multimodal_projector_bias")
    return d + merge * merge * d * d + linear(d, width, bias=bias) + linear(width, width, bias=bias)


def _llava(vision: Config, outer: Config, width: int) -> int:
    """Two projections, the first from as many layers of the encoder as the file lists."""
    chosen = outer.get("vision_feature_layer")
    d = sizes(vision)[0] * (len(chosen) if isinstance(chosen, list) else 1)
    bias = outer.flag("multimodal_projector_bias", default=True)
    return linear(d, width, bias=bias) + linear(width, width, bias=bias)


def _llava_lines(vision: Config, outer: Config, width: int) -> int:
    """The same and a vector that ends a line of an image."""
    return _llava(vision, outer, width) + width


def _shuffled(vision: Config, outer: Config, width: int) -> int:
    """Idefics 3: patches of a square side by side, one projection without a bias."""
    return sizes(vision)[0] * (outer.maybe_int("scale_factor") or 2) ** 2 * width


def _resampled(vision: Config, outer: Config, width: int) -> int:
    """Idefics 2: a gated projection as wide as the language model's FFN, and a resampler of a few latent vectors."""
    text, part = outer.child("text_config"), outer.child("perceiver_config") or Config({}, outer.where)
    wide = (text.maybe_int("intermediate_size") if text is not None else None) or 14336
    h, size = part.maybe_int("hidden_size") or width, part.maybe_int("resampler_head_dim") or 96
    heads, kv = part.maybe_int("resampler_n_heads") or 16, part.maybe_int("num_key_value_heads") or 4
    own = 3 * h + 2 * h * (heads + kv) * size + 12 * h * h
    latents = (part.maybe_int("resampler_n_latents") or 64) * h
    return (2 * sizes(vision)[0] + width) * wide + latents + (part.maybe_int("resampler_depth") or 3) * own + h


def _queried(vision: Config, outer: Config, width: int) -> int:
    """BLIP-2: a Q-Former between the two."""
    part = outer.child("qformer_config") or Config({}, outer.where)
    return q_former(part, width, outer.maybe_int("num_query_tokens") or 32)


CONNECTORS: dict[str, Rule] = {
    "gemma3": _normed, "shieldgemma2": _normed, "paligemma": _one_projection, "mistral3": _merged,
    "lighton_ocr": _merged, "llava": _llava, "llava_next": _llava_lines, "llava_next_video": _llava_lines,
    "llava_onevision": _llava_lines, "idefics2": _resampled, "idefics3": _shuffled, "smolvlm": _shuffled,
    "blip-2": _queried,
}  # fmt: skip
"""``model_type`` of the whole model -> projections between encoder and language model."""


# ---- encoders of one family, with what joins them ----


def _qwen3(vision: Config, outer: Config, width: int) -> int:
    """Qwen3-VL, Qwen3-Omni and 3.5: LayerNorms, plain FFN, one merger and those that feed lower layers."""
    d, depth, wide, _patch = sizes(vision)
    out = vision.maybe_int("out_hidden_size") or width
    merged = 4 * d
    merger = linear(merged, merged) + linear(merged, out)
    listed = vision.maybe_list("deepstack_visual_indexes")
    deep = len(listed) if listed is not None else 3 if _feeds_lower_layers(vision, outer) else 0
    places = (vision.maybe_int("num_position_embeddings") or 2304) * d
    start = patches(vision, d, frames=2) + places
    return depth * layer(d, wide) + start + merger + 2 * d + deep * (merger + 2 * merged)


def _feeds_lower_layers(vision: Config, outer: Config) -> bool:
    """Class default of ``deepstack_visual_indexes``: three places in Qwen3-VL and -Omni, none in 3.5."""
    return str(vision.get("model_type") or outer.get("model_type") or "").startswith(("qwen3_vl", "qwen3_omni"))


def _qwen2_5(vision: Config, _: Config, width: int) -> int:
    """Qwen2.5-VL, and EXAONE 4.5 with fewer KV heads: RMS norms, gated FFN with biases, one merger."""
    d, depth, wide, _patch = sizes(vision)
    out, heads = vision.maybe_int("out_hidden_size") or width, vision.maybe_int("num_heads") or 16
    kv = d * (vision.maybe_int("num_key_value_heads") or heads) // max(heads, 1)
    own = 2 * d + linear(d, d + 2 * kv) + linear(d, d) + 3 * d * wide + 2 * wide + d
    merged = 4 * d
    merger = d + linear(merged, merged) + linear(merged, out)
    return depth * own + patches(vision, d, frames=2, bias=False) + merger


def _qwen2(vision: Config, _: Config, width: int) -> int:
    """Qwen2-VL: LayerNorms, an FFN of ``mlp_ratio`` x ``embed_dim``, a merger into ``hidden_size``."""
    d, depth, wide, _patch = sizes(vision)
    out = (vision.maybe_int("hidden_size") if vision.maybe_int("embed_dim") else None) or width
    merged = 4 * d
    merger = 2 * d + linear(merged, merged) + linear(merged, out)
    return depth * layer(d, wide or 4 * d) + patches(vision, d, frames=2, bias=False) + merger


def _glm4v(vision: Config, _: Config, width: int) -> int:
    """GLM-4.1V and 4.6V: FFNs of ``out_hidden_size``; ``intermediate_size`` is the merger's."""
    d, depth, wide, _patch = sizes(vision)
    out = vision.maybe_int("out_hidden_size") or width
    biases = 3 * d * vision.flag("attention_bias")
    own = 2 * d + 4 * d * d + biases + 3 * d * out
    around = grid(vision, 336) * d + patches(vision, d, frames=2) + 2 * d
    return depth * own + around + _glm_merger(vision, d, out, wide)


def _glm_ocr(vision: Config, _: Config, width: int) -> int:
    """GLM-OCR and GLM-5.3-Flash: norms over heads, biases, and a merger of a width of its own."""
    d, depth, wide, _patch = sizes(vision)
    out, heads = vision.maybe_int("out_hidden_size") or width, vision.maybe_int("num_heads") or 16
    bias = vision.flag("attention_bias", default=True)
    own = 2 * d + 4 * linear(d, d, bias=bias) + 2 * (d // max(heads, 1)) + 3 * d * wide + (2 * wide + d) * bias
    kind = str(vision.get("model_type") or "")
    inner = vision.maybe_int("projection_intermediate_size") or (10240 if kind.startswith("glm5") else 3 * out)
    return depth * own + patches(vision, d, frames=2) + d + _glm_merger(vision, d, out, inner)


def _glm_merger(vision: Config, d: int, out: int, wide: int) -> int:
    """Four patches in one, a projection with a norm, and a gated FFN."""
    merge = vision.maybe_int("spatial_merge_size") or 2
    return linear(merge * merge * d, out) + out * out + 2 * out + 3 * out * wide


def _muse(vision: Config, outer: Config, width: int) -> int:
    """Muse Glimmer: two frames a patch, a table of positions, and an adapter of two projections before the last."""
    d, depth, wide, _patch = sizes(vision)
    merge = vision.maybe_int("merge_size") or 2
    merged = outer.maybe_int("out_hidden_size") or merge * merge * d
    inner = outer.maybe_int("projector_hidden_size") or 4096
    rows = (vision.maybe_int("pos_emb_height") or 32) * (vision.maybe_int("pos_emb_width") or 32)
    start = patches(vision, d, frames=vision.maybe_int("patch_temporal") or 2, bias=False) + rows * d + 4 * d
    return depth * layer(d, wide) + start + merged * inner + inner * inner + inner * width


def _mllama(vision: Config, _: Config, width: int) -> int:
    """Llama 3.2 Vision: local and gated global layers, tile embeddings, and the projector."""
    d, depth, wide, _patch = sizes(vision)
    depth += vision.maybe_int("num_global_layers") or 0
    tiles, ratios = vision.maybe_int("max_num_tiles") or 4, len(vision.maybe_list("supported_aspect_ratios") or ()) or 8
    own = 4 * d * d + 2 * d * wide + wide + d + 4 * d
    places = grid(vision, 448) + 1
    tables = places * d + (ratios + 1) * tiles * places * d + 2 * (ratios + 1) * tiles * d
    out = vision.maybe_int("vision_output_dim") or 6 * d
    return depth * own + patches(vision, d, bias=False) + d + tables + 4 * d + linear(out, width)


def _llama4(vision: Config, _: Config, width: int) -> int:
    """Llama 4: biased attention, a two-layer adapter after the pixel shuffle, and the projector."""
    d, depth, wide, _patch = sizes(vision)
    out, first = vision.maybe_int("vision_output_dim") or 7680, vision.maybe_int("projector_input_dim") or 4096
    adapter = wide * first + first * (vision.maybe_int("projector_output_dim") or 4096)
    start = patches(vision, d, bias=False) + d + (grid(vision, 336) + 1) * d + 4 * d
    return depth * layer(d, wide) + start + adapter + out * width


def _gemma4(vision: Config, _: Config, width: int) -> int:
    """Gemma 4: four norms a layer, norms over heads, and a table of positions for each axis."""
    d, depth, wide, _patch = sizes(vision)
    heads = vision.maybe_int("num_attention_heads") or 12
    size = vision.maybe_int("head_dim") or d // max(heads, 1)
    kv = (vision.maybe_int("num_key_value_heads") or heads) * size
    own = 2 * d * heads * size + 2 * d * kv + 3 * d * wide + 4 * d + 2 * size
    table = 2 * (vision.maybe_int("position_embedding_size") or 10240) * d
    return depth * own + table + patches(vision, d, bias=False) + d * width


def _kimi(vision: Config, _: Config, width: int) -> int:
    """MoonViT of Kimi K2.5, whose published files leave its sizes out: some 400 million parameters then."""
    d, depth, wide, _patch = sizes(vision)
    if not d:
        return 416_866_032
    high, broad = (vision.maybe_int(f"pos_emb_{s}", f"init_pos_emb_{s}") or 64 for s in ("height", "width"))
    rows = high * broad
    joined = 2 * d + linear(4 * d, 4 * d) + linear(4 * d, width)
    return depth * layer(d, wide) + patches(vision, d) + rows * d + 2 * d + joined


def _intern(vision: Config, _: Config, width: int) -> int:
    """InternViT: a class vector, two scales a layer, norms over heads where asked for; a normed pair of projections."""
    d, depth, wide, _patch = sizes(vision)
    rms = vision.get("norm_type") == "rms_norm"
    norms = (2 if rms else 4) * d + 2 * d * bool(vision.get("qk_normalization", "use_qk_norm"))
    bias = 3 * d * bool(vision.get("qkv_bias", "attention_bias"))
    own = norms + 4 * d * d + bias + d + 2 * d * wide + wide + d + 2 * d
    start = patches(vision, d) + d + (grid(vision, 448) + 1) * d
    return depth * own + start + 8 * d + linear(4 * d, width) + linear(width, width)


def _minimax(vision: Config, outer: Config, width: int) -> int:
    """MiniMax M3: two frames a patch, a norm before the layers, two projections of a patch and two of four of them."""
    d, depth, wide, _patch = sizes(vision)
    inner, merge = outer.maybe_int("projector_hidden_size") or width, vision.maybe_int("spatial_merge_size") or 2
    start = patches(vision, d, frames=vision.maybe_int("temporal_patch_size") or 2, bias=False) + 2 * d
    merged = linear(merge * merge * width, inner) + linear(inner, width)
    return depth * layer(d, wide) + start + linear(d, inner) + linear(inner, width) + merged


def _gated(vision: Config, _: Config, width: int) -> int:
    """A vision transformer with gated FFNs and no biases."""
    d, depth, wide, _patch = sizes(vision)
    return depth * (4 * d * d + 3 * d * wide + 4 * d) + patches(vision, d, bias=False) + d * width


WHOLE: tuple[tuple[str, Rule], ...] = (
    ("qwen3_vl", _qwen3), ("qwen3_5", _qwen3), ("qwen3_omni", _qwen3),
    ("qwen2_5_vl", _qwen2_5), ("qwen2_5_omni", _qwen2_5), ("exaone4_5", _qwen2_5), ("qwen2_vl", _qwen2),
    ("glm4v", _glm4v), ("glm46v", _glm4v), ("glmga", _glm4v), ("glm_ocr", _glm_ocr), ("glm5_next", _glm_ocr),
    ("muse_glimmer", _muse), ("mllama", _mllama), ("llama4", _llama4), ("gemma4", _gemma4),
    ("kimi_k", _kimi), ("moonvit", _kimi), ("intern_vit", _intern), ("internvl", _intern),
    ("minimax_m3", _minimax),
)  # fmt: skip
"""How the ``model_type`` of the part, or else of the whole model, begins -> its rule."""

UNDER_OTHER_NAMES: tuple[Rule, ...] = (_minimax,)
"""Rules of families whose published files call their encoder by the name of another (MiniMax M3: CLIP)."""

ROUGH: tuple[tuple[str, Rule], ...] = (("deepseek_v41", _gated),)
"""The same for encoders whose rule is a guess from their sizes."""

"""What encoders are made of: parameters of projections, norms and transformer layers, and sizes under their names."""

from __future__ import annotations

from kvplan.sources.hf.keys import Config

COLOURS = 3


def linear(inputs: int, outputs: int, *, bias: bool = True) -> int:
    """Parameters of a projection."""
    return inputs * outputs + outputs * bias


def layer(d: int, wide: int) -> int:
    """A transformer layer: attention of width `d`, two LayerNorms and an FFN of `wide`, biases on every projection."""
    return 4 * linear(d, d) + linear(d, wide) + linear(wide, d) + 4 * d


def side(part: Config, key: str) -> int | None:
    """A side of an image or a patch, which some files give twice: height and width."""
    value = part.get(key)
    if isinstance(value, list) and value and all(v == value[0] for v in value):
        return part.as_int(value[0], key)
    return part.maybe_int(key)


def sizes(part: Config) -> tuple[int, int, int, int]:
    """(width, layers, FFN width, patch side) of a vision encoder; zeros where the file does not say.

    Where a file has ``embed_dim``, that is the width and ``hidden_size`` the language model's (Qwen2-VL).
    """
    width = part.maybe_int("embed_dim", "hidden_size", "width", "vt_hidden_size") or 0
    wide = part.maybe_int("intermediate_size", "vt_intermediate_size")
    ratio = part.get("mlp_ratio")
    if wide is None and isinstance(ratio, int | float) and not isinstance(ratio, bool):
        wide = part.as_int(ratio * width // 1, "mlp_ratio")
    depth = part.maybe_int("num_hidden_layers", "depth", "layers", "vt_num_hidden_layers") or 0
    return width, depth, wide or 0, side(part, "patch_size") or 14


def grid(part: Config, otherwise: int) -> int:
    """Patches of an image: the side in patches, squared."""
    return ((side(part, "image_size") or otherwise) // max(side(part, "patch_size") or 14, 1)) ** 2


def patches(part: Config, d: int, *, frames: int = 1, bias: bool = True) -> int:
    """The projection of a patch's pixels (of so many frames) into the width of the encoder."""
    return linear(COLOURS * frames * (side(part, "patch_size") or 14) ** 2, d, bias=bias)


def hidden(part: Config) -> int:
    """Width of an audio encoder, under Whisper's name or the common one."""
    return part.need_int("d_model", "hidden_size")


def q_former(part: Config, width: int, queries: int) -> int:
    """A Q-Former of so many query vectors and the projection of what it hands on.

    Source: transformers 5.24.0 ``models/blip_2/modeling_blip_2.py``, ``Blip2QFormerModel``.
    """
    d, depth = part.maybe_int("hidden_size") or 768, part.maybe_int("num_hidden_layers") or 12
    wide, other = part.maybe_int("intermediate_size") or 3072, part.maybe_int("encoder_hidden_size") or 1408
    every = part.maybe_int("cross_attention_frequency") or 2
    crossing = -(-depth // max(every, 1))
    cross = 2 * linear(d, d) + 2 * linear(other, d) + 2 * d
    return depth * layer(d, wide) + crossing * cross + 2 * d + queries * d + linear(d, width)

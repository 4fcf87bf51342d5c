"""Which tensor type each tensor of a GGUF file gets, by file type (``Q4_K_M`` and its kin).

A file type names the type of most matrices; the quantizer then gives sensitive tensors more bits,
by name, depth, number of experts and grouping of the query heads. The rules below restate those of
llama.cpp (ggml-org/llama.cpp 007dbbf, ``src/llama-quant.cpp``: tensor categories, type selection,
fallback by row length, and which tensors stay unquantised), with the float types that its converter
gives the tensors it never quantises. Files written before the tensor categories of early 2026 stored
a fused ``attn_qkv`` of Q4_K_M as Q5_K; everything else is older than that.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from kvplan.errors import UnknownNameError
from kvplan.spec.format_table import FORMATS, GGUF_FILES
from kvplan.spec.formats import Format, get_format

if TYPE_CHECKING:
    from kvplan.spec.kind import Tensor
    from kvplan.spec.model import ModelSpec

_PUBLISHER_MIXES: dict[str, tuple[str, str, str]] = {
    "ud_iq1_s": ("iq1_s", "iq1_s", "q3_k"), "ud_iq1_m": ("iq1_m", "iq1_s", "q3_k"),
    "ud_iq2_xxs": ("iq2_xxs", "iq2_xxs", "q3_k"), "ud_iq2_m": ("iq2_m", "iq2_xxs", "iq4_xs"),
    "ud_iq3_xxs": ("iq3_xxs", "iq2_s", "iq4_xs"), "ud_q2_k_xl": ("q2_k", "iq2_xs", "iq4_xs"),
    "ud_q3_k_xl": ("q3_k_m", "iq3_xxs", "q5_0"), "ud_q4_k_xl": ("q4_k_m", "iq4_xs", "q5_k"),
    "ud_q5_k_xl": ("q5_k_m", "q5_k", "q6_k"), "ud_q6_k_xl": ("q6_k", "q6_k", "q8_0"),
    "ud_q8_k_xl": ("q8_0", "q8_0", "fp16"),
}  # fmt: skip
"""Recipes that a publisher draws up per model: (nearest stock file type, lower bound, upper bound)."""

_DEFAULTS = {
    **{name: base for name, base in GGUF_FILES.items() if name not in _PUBLISHER_MIXES},
    **{name: name for name, row in FORMATS.items() if row.get("mix") == name and name not in GGUF_FILES},
    "iq2_s": "iq2_xs",  # the file types and the tensor types of this family are off by one
    "iq2_m": "iq2_s",
}

_TWO_BITS = frozenset({"iq1_s", "iq1_m", "iq2_xxs", "iq2_xs", "iq2_s", "iq2_m"})
_NEEDS_IMATRIX = _TWO_BITS | {"iq3_xxs", "q2_k_s"}

_FALLBACK = {
    **dict.fromkeys(("iq1_s", "iq1_m", "iq2_xxs", "iq2_xs", "iq2_s", "iq3_xxs", "iq3_s", "iq4_xs"), "iq4_nl"),
    **dict.fromkeys(("q2_k", "q3_k", "tq1_0", "tq2_0"), "q4_0"),
    "q4_k": "q5_0", "q5_k": "q5_1", "q6_k": "q8_0",
}  # fmt: skip
"""Where a row is not a whole number of blocks of 256: the type with blocks of 32 in its place."""

_CATEGORIES = {
    "output": "output", "token_embd": "embedding", "per_layer_token_embd": "embedding", "attn_qkv": "v",
    "attn_kv_b": "v", "attn_v": "v", "attn_k": "k", "attn_q": "q", "attn_output": "attn_output",
}  # fmt: skip
_FLOAT32 = (
    "norm", "bias", "ffn_gate_inp", "ffn_gate_tid2eid", "position_embd", "token_types", "conv1d", "shortconv_conv",
    "time_mix_first", "time_mix_w", "time_mix_lora", "time_mix_vectors", "time_mix_decay_w", "time_mix_lerp_fused",
    "altup_correct_coef", "altup_predict_coef", "attn_rel_b", "sinks", "cross_gates", "vectors",
)  # fmt: skip
_FLOAT16 = ("altup", "laurel", "per_layer_model_proj", "indexer_k_proj", "indexer_q_proj")
_OWN_RULES = frozenset({"falcon", "FalconForCausalLM"})
"""Architectures (GGUF's name, the configuration's name) for which the quantizer itself has exceptions."""


class _Place(NamedTuple):
    """What the rules look at besides the category."""

    mix: str
    layer: int
    layers: int
    experts: int
    gqa: int
    imatrix: bool
    own_rules: bool

    @property
    def more_bits(self) -> bool:
        """The first and the last eighth of the layers, and every third between them."""
        eighth = self.layers // 8
        return self.layer < eighth or self.layer >= 7 * self.layers // 8 or (self.layer - eighth) % 3 == 2

    @property
    def first_eighth(self) -> bool:
        return self.layer < self.layers // 8


def mix_names() -> list[str]:
    """Every file type that `tensor_format` knows."""
    return [*_DEFAULTS, *_PUBLISHER_MIXES]


def mix_bounds(mix: str) -> tuple[str, str] | None:
    """Formats between which a publisher's own recipe lies on average; None: the mix follows a rule.

    The recipes are drawn up tensor by tensor for each model and are no function of its shape, so
    only a range can be given: every quantised weight in the first format, or in the second.
    """
    found = _PUBLISHER_MIXES.get(mix.lower().replace("-", "_"))
    return found and found[1:]


def tensor_bytes(fmt: Format, tensor: Tensor, model: ModelSpec, layer: int | None) -> int:
    """Bytes of one tensor of `model` in a file of type ``fmt.mix``.

    Args:
        fmt: a format with a mix.
        tensor: as this rank holds it; rows are its last dimension.
        model: the whole model.
        layer: 0-based layer of the model, None outside the layers; draft layers count on after the others.
    """
    mix = fmt.mix or fmt.name
    block = model.blocks[model.layers[layer]] if layer is not None and layer < model.num_layers else None
    experts = max((getattr(f, "experts", 0) for b in model.blocks.values() for f in b.ffns), default=0)
    first: Any = next((m for m in model.blocks[model.layers[0]].mixers if hasattr(m, "kv_heads")), None)
    latent: Any = next((m for m in (block.mixers if block else ()) if hasattr(m, "qk_nope_head_dim")), None)
    ratio = first.query_heads // first.kv_heads if first else 0

    def stored(name: str, elements: int, row: int) -> int:
        index, count = _attention_place(model, layer) if _category(name) == "v" else (None, None)
        chosen = tensor_format(
            mix, name, layer, model.num_layers, num_experts=experts, gqa_ratio=ratio,
            tied_head=model.tie_word_embeddings, row_elements=row, architecture=model.architecture,
            attention_index=index, attention_layers=count,
        )  # fmt: skip
        return get_format(chosen).tensor_bytes(elements, row)

    if tensor.name == "attn_kv_b" and latent is not None:  # stored as two tensors, K's part transposed
        nope, v = latent.qk_nope_head_dim, latent.v_head_dim
        k_part = tensor.elements * nope // (nope + v)
        return stored("attn_k_b", k_part, nope) + stored("attn_v_b", tensor.elements - k_part, tensor.shape[-1])
    return stored(tensor.name, tensor.elements, tensor.shape[-1])


def _attention_place(model: ModelSpec, layer: int | None) -> tuple[int | None, int | None]:
    """(place of a layer among those with a V projection, how many those are)."""
    if layer is None or layer >= model.num_layers:
        return None, None
    with_v = {n for n in model.layer_counts if any(_category(t.name) == "v" for t in model.block_tensors(n))}
    count = sum(times for name, times in model.layer_counts.items() if name in with_v)
    return sum(name in with_v for name in model.layers[:layer]), count


def tensor_format(
    mix: str,
    tensor_name: str,
    layer_index: int | None,
    num_layers: int,
    *,
    num_experts: int = 0,
    gqa_ratio: int = 1,
    tied_head: bool = False,
    row_elements: int,
    imatrix: bool | None = None,
    architecture: str = "",
    attention_index: int | None = None,
    attention_layers: int | None = None,
) -> str:
    """The format of one tensor of a model quantised to the file type `mix`.

    Args:
        mix: a name of `mix_names`, such as ``q4_k_m``.
        tensor_name: as in GGUF, with or without ``blk.N.`` and ``.weight`` (``attn_v``, ``ffn_down_exps``).
        layer_index: 0-based layer, None for tensors outside the layers.
        num_layers: layers of the model.
        num_experts: routed experts of an MoE layer, 0 in a dense model.
        gqa_ratio: query heads per KV head.
        tied_head: the output head uses the token embedding's weights.
        row_elements: elements of one row (the input width).
        imatrix: quantised with an importance matrix; None: only where the file type demands one.
        architecture: the GGUF ``general.architecture``; matters to those that the quantizer singles out.
        attention_index, attention_layers: place among the layers that have a V projection and how
            many those are, where not every layer has one.

    Returns:
        A canonical name of the format table. A row that no fallback fits stays in fp16 (where the
        quantizer stops with an error instead, kvplan still answers).

    Raises:
        UnknownNameError: no such file type.
    """
    key = mix.lower().replace("-", "_")
    key = _PUBLISHER_MIXES[key][0] if key in _PUBLISHER_MIXES else key
    if key not in _DEFAULTS:
        raise UnknownNameError("GGUF file type", mix, mix_names())
    name = tensor_name.removeprefix(f"blk.{layer_index}.").removesuffix(".weight").replace(".", "_")
    if any(part in name for part in _FLOAT32):
        return "fp32"
    if any(part in name for part in _FLOAT16):
        return "fp16"
    category = _category(name)
    layer, layers = layer_index or 0, num_layers
    if category == "v" and attention_index is not None:
        layer, layers = attention_index, attention_layers or num_layers
    place = _Place(
        key, layer, layers, num_experts, gqa_ratio, key in _NEEDS_IMATRIX if imatrix is None else imatrix,
        architecture in _OWN_RULES,
    )  # fmt: skip
    if category == "output" or (category == "embedding" and tied_head):
        chosen = _head(place, row_elements)
    elif key == "mxfp4_moe":
        chosen = "mxfp4" if name.endswith("_exps") else "q8_0"
    else:
        chosen = _by_category(place, category, num_layers) or _DEFAULTS[key]
    return _fit(chosen, row_elements)


def _category(name: str) -> str:
    if name in _CATEGORIES:
        return _CATEGORIES[name]
    return next((part for part in ("ffn_up", "ffn_gate", "ffn_down") if part in name), "other")


def _fit(chosen: str, row_elements: int) -> str:
    """The type itself, the one with smaller blocks, or fp16: whichever divides the row first."""
    for name in (chosen, _FALLBACK.get(chosen, chosen)):
        if row_elements % FORMATS[name]["block_elements"] == 0:
            return name
    return "fp16"


def _head(place: _Place, row_elements: int) -> str:
    """The output projection, and the token embedding that stands in for it."""
    default = _DEFAULTS[place.mix]
    if place.mix == "mxfp4_moe" or place.own_rules or row_elements % FORMATS[default]["block_elements"]:
        return "q8_0"
    if place.mix in _TWO_BITS or place.mix == "iq3_xxs":
        return "q5_k"
    return "q8_0" if default == "q8_0" else "q6_k"


def _by_category(place: _Place, category: str, num_layers: int) -> str | None:
    """The type that a category gets instead of the file type's own; None: no change."""
    mix = place.mix
    if category == "embedding":
        if mix in ("iq2_xxs", "iq2_xs", "iq1_s", "iq1_m"):
            return "q2_k"
        if mix in ("iq2_s", "iq2_m", "iq3_xxs"):
            return "iq3_s"
        return "q4_k" if mix in ("tq1_0", "tq2_0") else None
    if mix in _TWO_BITS:
        return _two_bits(place, category)
    if category == "v":
        return _value(place, num_layers)
    if category in ("k", "q"):
        if category == "k" and place.experts == 8:
            return "q8_0"
        return {"iq3_xs": "iq3_xxs", "iq3_xxs": "iq2_s"}.get(mix)
    if category == "attn_output":
        return _attention_output(place)
    if category == "ffn_down":
        return _down(place)
    if category in ("ffn_gate", "ffn_up") and mix == "iq3_xs":
        middle = place.layers // 8 <= place.layer < 7 * place.layers // 8
        return "iq3_xxs" if middle else None
    return None


def _two_bits(place: _Place, category: str) -> str | None:
    """The file types of one and two bits."""
    richer = place.mix in ("iq2_s", "iq2_m")
    if category == "v":
        return "q4_k" if place.gqa >= 4 or place.experts >= 4 else "iq3_s" if richer else "q2_k"
    if category == "k" and place.experts == 8:
        return "q4_k"
    if category == "ffn_down" and place.first_eighth:
        return "iq3_s" if richer else "q2_k"
    if category == "attn_output":
        if place.experts == 8:
            return "q5_k"
        return "iq3_s" if richer else "iq2_xxs" if place.mix in ("iq1_s", "iq1_m") else None
    return None


def _value(place: _Place, num_layers: int) -> str | None:
    """The value projection (and fused ones that contain it): small, so it can afford more bits."""
    mix, grouped = place.mix, place.gqa >= 4
    chosen: str | None = None
    if mix == "q2_k":
        chosen = "q4_k" if grouped else "q3_k"
    elif mix == "iq3_xxs":
        chosen = "q4_k" if grouped else None if place.imatrix else "iq3_s"
    elif (mix in ("q2_k_s", "iq3_xs", "iq3_s") and grouped) or mix == "iq3_m":
        chosen = "q4_k"
    elif mix == "q3_k_m":
        chosen = "q5_k" if place.layer < 2 else "q4_k"
    elif mix == "q3_k_l" or (mix in ("iq4_nl", "iq4_xs") and grouped) or (mix == "q4_k_s" and place.layer < 4):
        chosen = "q5_k"
    elif mix in ("q4_k_m", "q5_k_m") and place.more_bits:
        chosen = "q6_k"
    if num_layers == 80 and place.gqa > 1 and (chosen or _DEFAULTS[mix]) in ("q3_k", "q4_k"):
        chosen = "q5_k"  # what the quantizer calls the 70B size: 80 layers with grouped KV heads
    return "q8_0" if place.experts == 8 else chosen


def _attention_output(place: _Place) -> str | None:
    if place.own_rules:
        return "q4_k" if place.mix == "q3_k_l" else None
    if place.experts == 8:
        small = ("q2_k", "q3_k_s", "q3_k_m", "q4_k_s", "q4_k_m")
        return "q5_k" if place.mix in (*small, "iq3_xs", "iq3_xxs", "iq3_s", "iq3_m", "iq4_nl", "iq4_xs") else None
    return {"q2_k": "q3_k", "iq3_xxs": "iq3_s", "q3_k_m": "q4_k", "q3_k_l": "q5_k", "iq3_m": "q4_k"}.get(place.mix)


def _down(place: _Place) -> str | None:
    """The down projection of the FFN, dense or expert."""
    mix, first, own = place.mix, place.first_eighth, place.own_rules
    very_first = place.layer < place.layers // 16
    if mix == "q2_k":
        return "q3_k"
    if mix == "q2_k_s":
        return "q4_k" if first else None
    if mix == "iq3_xxs" and not place.imatrix:
        return "q4_k" if first else "q3_k"
    if mix == "q3_k_m":
        return "q5_k" if very_first else "q4_k" if not own or place.more_bits else "q3_k"
    if mix == "iq3_m":
        return "q4_k" if first or (place.experts == 8 and place.more_bits) else None
    if mix == "q3_k_l":
        return "q4_k" if own else "q5_k"
    if mix == "q4_k_m":
        if own:
            return "q6_k" if very_first else "q5_k" if place.more_bits else "q4_k"
        return "q6_k" if place.more_bits else None
    if mix in ("iq4_nl", "iq4_xs"):
        return "q5_k" if first and not place.imatrix else None
    if mix == "q5_k_m":
        return "q6_k" if place.more_bits else None
    if mix == "q4_k_s":
        return "q5_k" if first and not own else None
    if mix in ("q4_0", "q5_0") and place.imatrix and first:
        return "q4_1" if mix == "q4_0" else "q5_1"
    return None

"""Which types the cache takes, and when: what llama.cpp refuses before it allocates anything.

Source: libllama 0.5.0 ``src/llama-context.cpp`` (``llama_init_from_model``) and
``common/arg.cpp`` (``kv_cache_types``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kvplan.engines.llama_cpp import caches
from kvplan.engines.llama_cpp.architectures import Facts
from kvplan.errors import KvplanError, UnsupportedError
from kvplan.spec.formats import Format, get_format

if TYPE_CHECKING:
    from kvplan.spec.model import ModelSpec

TYPES = {
    "fp32": "f32", "fp16": "f16", "bf16": "bf16", "q8_0": "q8_0", "q4_0": "q4_0", "q4_1": "q4_1", "iq4_nl": "iq4_nl",
    "q5_0": "q5_0", "q5_1": "q5_1",
}  # fmt: skip
"""kvplan's name -> llama.cpp's, for the nine types of -ctk and -ctv."""


def split_types(text: str) -> tuple[Format, Format]:
    """The K and V formats of ``K`` or ``K,V``; ``auto`` is f16.

    Raises:
        UnsupportedError: a format that is none of the nine.
    """
    key, _, value = text.partition(",")
    return _cache_type(key, "--cache-type-k"), _cache_type(value or key, "--cache-type-v")


def _cache_type(name: str, flag: str) -> Format:
    if name == "auto":
        return get_format("fp16")
    try:
        fmt = get_format(name, use="cache", where=flag)
    except KvplanError as error:
        raise UnsupportedError(
            f"{error.message}; llama.cpp takes {', '.join(TYPES.values())}", where=flag, hint=error.hint
        ) from None
    if fmt.name not in TYPES:
        raise UnsupportedError(
            f"llama.cpp has no cache type {fmt.name}; it takes {', '.join(TYPES.values())}",
            where=flag,
            hint=f"type {_nearest(fmt)}",
        )
    return fmt


def _nearest(fmt: Format) -> str:
    """The type whose bits per element come closest."""
    bits = fmt.mean_bits()
    return TYPES[min(TYPES, key=lambda name: abs(get_format(name).mean_bits() - bits))]


def resolve_flash(mode: str, v: Format, facts: Facts) -> str:
    """``on`` or ``off``: ``auto`` counts as on, unless the architecture forces it off.

    Raises:
        UnsupportedError: a quantised V without flash attention.
    """
    forced = not facts.flash
    on = mode != "off" and not forced
    if v.block_elements > 1 and not on:
        why = f"{facts.name} runs without it" if forced else "-fa is off"
        hint = "type -ctv f16" if forced else "type -fa on, or -ctv f16"
        raise UnsupportedError(
            f"a quantised V cache ({v.name}) needs flash attention, and {why}", where="--cache-type-v", hint=hint
        )
    return "on" if on else "off"


def check_types(model: ModelSpec, facts: Facts, k: Format, v: Format, *, flash: bool) -> None:
    """Refuse what the model's shape does not take.

    Raises:
        UnsupportedError: K and V types that differ under latent attention; a head size that is no
            whole number of blocks (flash attention), or a row that is not (without it).
    """
    if caches.is_latent(model, facts) and k.name != v.name:
        raise UnsupportedError(
            f"{model.id} has latent attention: K and V take one type, not {TYPES[k.name]} and {TYPES[v.name]}",
            where="--cache-type-v", hint=f"type -ctk {TYPES[k.name]} -ctv {TYPES[k.name]}",
        )  # fmt: skip
    for fmt, name, flag in ((k, "K", "--cache-type-k"), (v, "V", "--cache-type-v")):
        if fmt.block_elements == 1:
            continue
        for size, what in _sizes(model, facts, name, flash):
            if size % fmt.block_elements:
                blocks = f"{TYPES[fmt.name]} for {name} stores blocks of {fmt.block_elements} elements"
                raise UnsupportedError(
                    f"{blocks}, which do not divide the {what} of {size}",
                    where=flag,
                    hint=f"type -ct{name.lower()} f16",
                )


def _sizes(model: ModelSpec, facts: Facts, name: str, flash: bool) -> list[tuple[int, str]]:
    """(elements, what they are) that blocks must divide: heads with flash attention, else whole rows."""
    if not flash:
        found = []
        for block in model.blocks.values():
            found += [r.k if name == "K" else r.v for r in caches.layer_rows(model, facts, block, flash=False)]
        return [(size, f"{name} row") for size in found if size]
    heads: list[int] = []
    for _, mixer in model.mixers():
        kind: Any = mixer
        if mixer.kind in ("full", "sliding", "chunked", "shared"):
            heads.append(kind.head_dim if name == "K" else kind.dim_v)
        elif mixer.kind == "mla" and facts.uncompressed_latent:
            heads.append(kind.qk_nope_head_dim + kind.qk_rope_head_dim if name == "K" else kind.v_head_dim)
        elif mixer.kind == "mla":
            heads.append(kind.row_dim if name == "K" else kind.kv_lora_rank)
        elif mixer.kind == "compressed":
            heads.append(kind.head_dim)
    return [(size, f"{name} head size") for size in heads]

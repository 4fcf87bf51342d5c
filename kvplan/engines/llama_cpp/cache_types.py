"""Which types the cache takes, and when: what llama.cpp refuses before it allocates anything.

Source: libllama 0.5.0 ``src/llama-context.cpp`` (``llama_init_from_model``) and
``common/arg.cpp`` (``kv_cache_types``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

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


class Words(NamedTuple):
    """What the engine calls the settings that a message is about; braces take a type."""

    k: str = "--cache-type-k"
    v: str = "--cache-type-v"
    flash: str = "-fa"
    set_k: str = "type -ctk {}"
    set_v: str = "type -ctv {}"
    set_both: str = "type -ctk {0} -ctv {0}"
    set_flash: str = "type -fa on, or -ctv f16"


LLAMA_SERVER = Words()


def split_types(text: str, words: Words = LLAMA_SERVER) -> tuple[Format, Format]:
    """The K and V formats of ``K`` or ``K,V``; ``auto`` is f16.

    Raises:
        UnsupportedError: a format that is none of the nine.
    """
    key, _, value = text.partition(",")
    return _cache_type(key, words.k, words.set_k), _cache_type(value or key, words.v, words.set_v)


def _cache_type(name: str, flag: str, how: str) -> Format:
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
            hint=how.format(_nearest(fmt)),
        )
    return fmt


def _nearest(fmt: Format) -> str:
    """The type whose bits per element come closest."""
    bits = fmt.mean_bits()
    return TYPES[min(TYPES, key=lambda name: abs(get_format(name).mean_bits() - bits))]


def resolve_flash(mode: str, v: Format, facts: Facts, words: Words = LLAMA_SERVER) -> str:
    """``on`` or ``off``: ``auto`` counts as on, unless the architecture forces it off.

    Raises:
        UnsupportedError: a quantised V without flash attention.
    """
    forced = not facts.flash
    on = mode != "off" and not forced
    if v.block_elements > 1 and not on:
        why = f"{facts.name} runs without it" if forced else f"{words.flash} is off"
        hint = words.set_v.format("f16") if forced else words.set_flash
        raise UnsupportedError(
            f"a quantised V cache ({v.name}) needs flash attention, and {why}", where=words.v, hint=hint
        )
    return "on" if on else "off"


def check_types(
    model: ModelSpec, facts: Facts, k: Format, v: Format, *, flash: bool, words: Words = LLAMA_SERVER
) -> None:
    """Refuse what the model's shape does not take.

    Raises:
        UnsupportedError: K and V types that differ under latent attention; a head size that is no
            whole number of blocks (flash attention), or a row that is not (without it).
    """
    if caches.is_latent(model, facts) and k.name != v.name:
        raise UnsupportedError(
            f"{model.id} has latent attention: K and V take one type, not {TYPES[k.name]} and {TYPES[v.name]}",
            where=words.v, hint=words.set_both.format(TYPES[k.name]),
        )  # fmt: skip
    for fmt, name, flag, how in ((k, "K", words.k, words.set_k), (v, "V", words.v, words.set_v)):
        if fmt.block_elements == 1:
            continue
        for size, what in _sizes(model, facts, name, flash):
            if size % fmt.block_elements:
                blocks = f"{TYPES[fmt.name]} for {name} stores blocks of {fmt.block_elements} elements"
                raise UnsupportedError(
                    f"{blocks}, which do not divide the {what} of {size}",
                    where=flag,
                    hint=how.format("f16"),
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

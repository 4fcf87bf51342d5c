"""What every layer of a model caches, in elements, for engines that hold plain tensors per layer.

Formats and rounding are the engine's business; this only reads streams and states of the spec.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from kvplan.errors import UnsupportedError

if TYPE_CHECKING:
    from kvplan.spec.kind import CacheKind
    from kvplan.spec.model import ModelSpec

SUFFIXES = ("forcausallm", "forconditionalgeneration", "lmheadmodel", "text", "model")


class Rows(NamedTuple):
    """One mixer's cache in one layer. Elements are those of one token of one sequence, all heads together."""

    kind: str
    """``full``, ``sliding``, ``chunked``, ``cross``, ``mla`` or the kind of a recurrent layer."""
    layers: int
    k: int
    v: int
    index_key: int
    """Elements of the key of a sparse-attention indexer."""
    head_dim: int
    """Elements of the narrowest K or V vector: what a group of a quantised cache must divide."""
    window: int | None
    fixed_entries: int | None
    """Entries held whatever the text length (cross attention)."""
    conv_channels: int
    conv_columns: int
    """Kernel - 1, as the spec has it; some engines keep one column more."""
    recurrent: int
    shift: int
    """Elements of previous-token vectors (RWKV)."""
    index_pool: int = 1
    """Tokens whose index keys one pooled key stands for."""

    @property
    def has_state(self) -> bool:
        return bool(self.conv_channels or self.recurrent or self.shift)


def architecture_key(model: ModelSpec) -> str:
    """``Gemma3ForConditionalGeneration``, ``gemma3_text`` -> ``gemma3``: one spelling per architecture."""
    key = model.architecture.lower().replace("_", "").replace("-", "")
    for suffix in SUFFIXES:
        key = key.removesuffix(suffix)
    return key


def cache_rows(model: ModelSpec, *, rebuilt: bool = False, apart: str = "") -> list[Rows]:
    """The rows of every layer that caches something, in order of first appearance.

    Args:
        rebuilt: latent attention caches K and V of every head, as they come out of the latent row.
        apart: a kind whose layers are left out, since the engine has rows of its own for it.

    Raises:
        UnsupportedError: a layer whose K and V do not hold the same entries, one a token.
    """
    found = []
    for layers, mixer in model.mixers():
        if mixer.kind == apart:
            continue
        kept = {(s.window, s.fixed_entries, s.chunked, s.ratio if s.role != "index" else 1) for s in mixer.streams()}
        if len(kept) > 1 or any(ratio != 1 for *_, ratio in kept):
            raise UnsupportedError(
                f"{model.id}: the parts of {mixer.kind} caches differ in what they keep, which is not modelled here",
                where="--engine", hint="type --engine generic",
            )  # fmt: skip
        if (row := _row(mixer, layers, rebuilt)) is not None:
            found.append(row)
    return found


def _row(mixer: CacheKind, layers: int, rebuilt: bool) -> Rows | None:
    k = v = index = recurrent = shift = channels = columns = 0
    dims: list[int] = []
    window = fixed = None
    pool = 1
    for stream in mixer.streams():
        window, fixed = stream.window, stream.fixed_entries  # the same in all (`cache_rows`)
        elements = stream.heads * stream.head_dim
        if stream.role == "index":
            index, pool = index + elements, stream.ratio
        elif stream.role == "v":
            v += elements
            dims.append(stream.head_dim)
        else:
            k += elements
            dims.append(stream.head_dim)
    if mixer.kind == "mla":
        k, v, dims = _latent(mixer, rebuilt)
    for state in mixer.states():
        if state.name == "conv":
            channels, columns = channels + state.channels, state.columns
        elif state.name == "shift":
            shift += state.elements
        else:
            recurrent += state.elements
    if not (k or v or index or channels or recurrent or shift):
        return None
    narrowest = min(dims, default=0)
    return Rows(mixer.kind, layers, k, v, index, narrowest, window, fixed, channels, columns, recurrent, shift, pool)


def _latent(mixer: CacheKind, rebuilt: bool) -> tuple[int, int, list[int]]:
    """(K, V, widths) of latent attention: the latent beside the rotary key, or both rebuilt per head."""
    rank: int = mixer.kv_lora_rank  # type: ignore[attr-defined]
    rope: int = mixer.qk_rope_head_dim  # type: ignore[attr-defined]
    if not rebuilt:
        return rank, rope, [rank, rope] if rope else [rank]
    heads: int = mixer.query_heads  # type: ignore[attr-defined]
    key: int = mixer.qk_nope_head_dim + rope  # type: ignore[attr-defined]
    value: int = mixer.v_head_dim  # type: ignore[attr-defined]
    return heads * key, heads * value, [key, value]

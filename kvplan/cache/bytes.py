"""From streams and states to bytes: the one formula that every figure of kvplan goes through.

``bytes = sum over layers of entries(tokens) x bytes of one entry, plus the state``

For plain GQA this is ``2 x layers x kv_heads x head_dim x tokens x bytes_per_element``. Functions
take an int or a NumPy integer array of tokens; there is no second copy for sweeps.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import lcm
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from kvplan.spec.arrays import Number, most, smaller
from kvplan.spec.kind import CacheKind, Stream, Tokens

if TYPE_CHECKING:
    from kvplan.spec.formats import Format
    from kvplan.spec.model import ModelSpec


class KvFormats(NamedTuple):
    """How each part of the cache is stored."""

    k: Format
    v: Format
    index_key: Format
    conv_bytes: int
    """Bytes per element of a convolution or token-shift state."""
    recurrent_bytes: int
    """Bytes per element of a recurrent state."""
    short_convolutions: frozenset[str] | None = None
    """Kinds of layer that keep kernel - 1 columns of a convolution where all others keep kernel; None: all keep less.
    """


def stream_rows(mixer: CacheKind, formats: KvFormats) -> list[tuple[Stream, int, Format]]:
    """(stream, bytes of one entry, its format) for every growing part of a mixer."""
    return rows_of(mixer.streams(), formats)


def rows_of(streams: Iterable[Stream], formats: KvFormats) -> list[tuple[Stream, int, Format]]:
    """(stream, bytes of one entry, its format) for streams of one layer, V after its K."""
    rows: list[tuple[Stream, int, Format]] = []
    key: Stream | None = None
    for stream in streams:
        fmt: Format = formats.index_key if stream.role == "index" else formats.v if stream.role == "v" else formats.k
        if stream.role == "v" and key is not None and formats.k == formats.v:
            size = fmt.pair_bytes(stream.heads, key.head_dim, stream.head_dim)[1]
        else:
            size = fmt.row_bytes(stream.heads, stream.head_dim, v=stream.role == "v")
        if stream.role == "k":
            key = stream
        rows.append((stream, size, fmt))
    return rows


def mixer_bytes(mixer: CacheKind, tokens: Tokens, formats: KvFormats, *, dcp: int = 1) -> Tokens:
    """Bytes one sequence of `tokens` holds in one layer's mixer, state not included.

    With `dcp` > 1 a rank keeps every dcp-th token of the streams that are not bounded by a window.
    """
    total: Any = tokens * 0
    for stream, size, fmt in stream_rows(mixer, formats):
        mine = -(-tokens // dcp) if dcp > 1 and stream.window is None else tokens
        entries: Any = stream.entries(mine)
        total = total + entries * size
        if fmt.residual_tokens:
            newest = smaller(entries, fmt.residual_tokens)
            total = total + newest * (stream.heads * stream.head_dim * 2 - size)
    return cast("Tokens", total)


def state_bytes(mixer: CacheKind, formats: KvFormats) -> int:
    """Bytes of the mixer's fixed state for one sequence."""
    kept = formats.short_convolutions
    wide = kept is not None and mixer.kind not in kept
    return sum(
        (state.elements + (state.channels if wide and state.name == "conv" else 0))
        * (formats.recurrent_bytes if state.name == "recurrent" else formats.conv_bytes)
        for state in mixer.states()
    )


def sequence_bytes(
    model: ModelSpec, tokens: Tokens, formats: KvFormats, *, dcp: int = 1, drafts: bool = False
) -> Tokens:
    """Bytes one sequence of `tokens` needs over all layers of `model`: growing parts and state."""
    total: Any = tokens * 0
    for layers, mixer in model.mixers(drafts=drafts):
        total = total + layers * (mixer_bytes(mixer, tokens, formats, dcp=dcp) + state_bytes(mixer, formats))
    edge, held = edge_surplus(model, formats), edge_surplus(model, formats, fixed=True)
    return cast("Tokens", total + -(-tokens // dcp) * edge + held if edge or held else total)


def edge_surplus(
    model: ModelSpec, formats: KvFormats, *, fixed: bool = False, ends: tuple[bool, bool] = (True, True)
) -> int:
    """Bytes that the first and last layers take above the format, where it leaves them in 16 bits.

    Models with states or windows are quantised throughout (`Format.edge_layers`). Source: vLLM 0.33.0
    ``vllm/model_executor/layers/quantization/turboquant/config.py``, ``get_boundary_skip_layers``.

    Args:
        fixed: of entries held whatever the text length (cross attention), in all; else of each token.
        ends: whether `model` has the model's first and its last layers; a pipeline stage may have neither.
    """
    edge = min(formats.k.edge_layers, len(model.layers) // 2) if all(ends) else formats.k.edge_layers
    if not edge:
        return 0
    names = [*(model.layers[:edge] if ends[0] else ()), *(model.layers[-edge:] if ends[1] else ())]
    mixers = [mixer for _, mixer in model.mixers()]
    if any(m.states() or any(s.window is not None for s in m.streams()) for m in mixers):
        return 0
    surplus = 0
    for name in names:
        for mixer in model.blocks[name].mixers:
            for stream, size, _ in stream_rows(mixer, formats):
                times = 1 if stream.fixed_entries is None else stream.fixed_entries
                if fixed == (stream.fixed_entries is not None):
                    surplus += times * (2 * stream.heads * stream.head_dim - size)
    return surplus


def fixed_bytes(model: ModelSpec, formats: KvFormats, *, drafts: bool = False) -> int:
    """Bytes one sequence holds before its first token: states, and cross attention's encoder rows."""
    total = 0
    for layers, mixer in model.mixers(drafts=drafts):
        rows = stream_rows(mixer, formats)
        cross = sum(size * s.fixed_entries for s, size, _ in rows if s.fixed_entries is not None)
        total += layers * (state_bytes(mixer, formats) + cross)
    return total + edge_surplus(model, formats, fixed=True)


def bytes_per_token(
    model: ModelSpec,
    formats: KvFormats,
    *,
    at: Number = None,
    dcp: int = 1,
    drafts: bool = False,
    ends: tuple[bool, bool] = (True, True),
) -> Number:
    """Bytes that one more token adds over all layers; compressed entries count at their mean.

    Args:
        at: tokens already cached (int or array); None: a short sequence, below every window.
        dcp: ranks that share the tokens.
        ends: as for `edge_surplus`.
    """
    scale = 1
    parts: list[tuple[Number, int]] = []
    for layers, mixer in model.mixers(drafts=drafts):
        for stream, size, _ in stream_rows(mixer, formats):
            grows = stream.fixed_entries is None and (at is None or stream.grows_at(at))
            if grows is False:
                continue
            shared = stream.ratio * (dcp if stream.window is None else 1)
            scale = lcm(scale, shared)
            parts.append((grows * (layers * size), shared))
    if edge := edge_surplus(model, formats, ends=ends):
        scale = lcm(scale, dcp)
        parts.append((edge, dcp))
    return -(-sum(size * (scale // shared) for size, shared in parts) // scale)


def prefix_bytes(model: ModelSpec, tokens: Tokens, formats: KvFormats, *, dcp: int = 1) -> Tokens:
    """Bytes of a prefix of `tokens` that other sequences can use: streams without a window only."""
    total: Any = tokens * 0
    for layers, mixer in model.mixers():
        for stream, size, _ in stream_rows(mixer, formats):
            if stream.window is None and stream.fixed_entries is None:
                entries: Any = stream.entries(-(-tokens // dcp))
                total = total + entries * (layers * size)
    edge = edge_surplus(model, formats)
    return cast("Tokens", total + -(-tokens // dcp) * edge if edge else total)


def longest_sequence(
    model: ModelSpec, num_bytes: Number, formats: KvFormats, *, dcp: int = 1, limit: int = 2**40
) -> Number:
    """The most tokens of one sequence that `num_bytes` hold; None: any number (nothing grows).

    Inverts `sequence_bytes`: it is the largest T with ``sequence_bytes(T) <= num_bytes``, 0 if none. Takes an
    array too (`kvplan.spec.arrays.most`).
    """
    return most(lambda tokens: sequence_bytes(model, tokens, formats, dcp=dcp), num_bytes, limit=limit)

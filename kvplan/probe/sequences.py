"""What one sequence holds and what one more token adds: the formulas that plans are made of, against real tensors.

Pages round, so `kvplan.probe.memory` tests sizes of entries alone. Here a sequence of some length is stored entry by
entry, with its states: below every window, at a window's edge and above it, where nothing is added any more.
"""

from __future__ import annotations

from math import lcm
from typing import TYPE_CHECKING

from kvplan.cache.bytes import bytes_per_token
from kvplan.probe.layout import StreamCache
from kvplan.probe.memory import Shape, allocated
from kvplan.probe.receipt import Row, row
from kvplan.units import human_bytes

if TYPE_CHECKING:
    from kvplan.probe.layout import RankLayout
    from kvplan.probe.session import Session

_PLAIN_TOKENS = 1000
"""Of a sequence without windows, or fewer where they do not fit: any number shows a wrong byte a token."""


def measure(session: Session) -> list[Row]:
    """Rows for the plan's own formats: whole sequences, and one more token of a short and of a long one."""
    layout = session.layout
    if not layout.layers:
        return []
    session.say("memory, one sequence")
    rows = []
    for tokens in _lengths(layout, session.limits.max_bytes):
        name = f"one sequence of {tokens:,} tokens"
        held, note = _held(session, name, tokens)
        if held is not None:
            predicted = layout.sequence_bytes(tokens)
            note = f"entries of {len(layout.layers)} layers, and their states{note}"
            rows.append(row("memory", name, predicted=predicted, measured=held, unit="bytes", tolerance=0.0, note=note))
    return rows + _one_more(session)


def _growing(layout: RankLayout) -> list[StreamCache]:
    return [s for layer in layout.layers for s in layer.streams if s.fixed_entries is None]


def _full_at(layout: RankLayout) -> list[int]:
    """Tokens after which each kind of window is full."""
    return sorted({s.window * s.ratio for s in _growing(layout) if s.window is not None})


def _lengths(layout: RankLayout, max_bytes: int) -> list[int]:
    """Below, at and above the shortest and the longest window; one length that fits where there are none."""
    full = _full_at(layout)
    if not full:
        tokens = _PLAIN_TOKENS
        while tokens > 1 and _largest_layer(layout, tokens) > max_bytes:
            tokens //= 2
        return [tokens]
    found = {n for edge in (full[0], full[-1]) for n in (edge - 1, edge, edge + edge // 2 + 1)}
    return sorted(n for n in found if n > 0)


def sequence_shapes(layout: RankLayout, tokens: int) -> list[Shape]:
    """Tensors of one sequence: the entries of every stream, the newest of some formats in 16 bits, and the states."""
    found = []
    for layer in layout.layers:
        for stream in layer.streams:
            entries = stream.entries(tokens)
            newest = min(entries, stream.format.residual_tokens)
            found += [Shape(p.dtype, (entries - newest, *p.shape)) for p in stream.parts if entries > newest]
            if newest:
                found.append(Shape("bfloat16", (newest, stream.heads, stream.head_dim)))
        found += [Shape(state.dtype, (1, *state.shape)) for state in layer.states]
    return found


def _alone(layout: RankLayout) -> list[tuple[RankLayout, int]]:
    """(the layout of a single layer, how many hold the same) for every kind and shape."""
    return [(layout._replace(layers=(layer,)), layout.alike(layer)) for layer in layout.kinds()]


def _largest_layer(layout: RankLayout, tokens: int) -> int:
    return max(sum(s.num_bytes for s in sequence_shapes(one, tokens)) for one, _ in _alone(layout))


def _held(session: Session, name: str, tokens: int) -> tuple[int | None, str]:
    """(bytes of the tensors' storages, how they were held); None where they do not fit.

    All layers at once, or where that is too much one of each kind and shape after the other.
    """
    layout, limit = session.layout, session.limits.max_bytes
    parts, note = [(layout, 1)], ""
    if sum(s.num_bytes for s in sequence_shapes(layout, tokens)) > limit:
        parts, note = _alone(layout), "; one of each kind at a time, as often as there are"
    total = 0
    for part, count in parts:
        shapes = sequence_shapes(part, tokens)
        size = sum(s.num_bytes for s in shapes)
        if size > limit:
            session.lack(f"memory, {name}: {human_bytes(size)} of one layer do not fit into --max-memory")
            return None, note
        with allocated(session.device, shapes) as held:
            if isinstance(held, str):
                session.lack(f"memory, {name}: {held}")
                return None, note
            total += count * held.storage_bytes
    return total, note


def _one_more(session: Session) -> list[Row]:
    """What a token adds while every window is open, and once all are full.

    Where entries stand for several tokens the mean over as many tokens counts, as it does in plans.
    """
    layout, full = session.layout, _full_at(session.layout)
    ratios = lcm(*(s.ratio for s in _growing(layout)), 1)
    residual = max((s.format.residual_tokens for s in _growing(layout)), default=0)
    first = -(-max(residual * ratios, ratios) // ratios) * ratios
    ends: list[tuple[str, int, int | None]] = []
    if not full or first + ratios <= full[0]:
        ends.append(("a short sequence", first, None))
    if full:
        last = max(first, -(-full[-1] // ratios) * ratios)
        ends.append((f"a sequence of {last:,}", last, last))
    rows = []
    for what, tokens, at in ends:
        name = f"one more token of {what}"
        (before, _), (after, how) = (_held(session, name, n) for n in (tokens, tokens + ratios))
        if before is None or after is None:
            continue
        predicted = bytes_per_token(layout.spec, layout.formats, at=at)
        note = f"tensors of {tokens + ratios:,} tokens less those of {tokens:,}" + (
            f", over {ratios}" if ratios > 1 else ""
        )
        note += how
        measured = -(-(after - before) // ratios)
        rows.append(row("memory", name, predicted=predicted, measured=measured, unit="bytes", tolerance=0.0, note=note))
    return rows

"""Rows of measured decode steps: each beside the plan's, and how far plans lie off before and after calibration."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from kvplan.planning.speed import decode
from kvplan.probe.receipt import Row, median, quantile, row
from kvplan.probe.shapes import left_out

if TYPE_CHECKING:
    from kvplan.planning.speed.figures import Setup
    from kvplan.probe.held import Held
    from kvplan.probe.session import Session

MEDIAN_MISS, WORST_MISS, STATED_MISS = 0.04, 0.10, 0.15
"""Of predicted steps: median and nine in ten after calibration, median before it."""
MOST_LEFT_OUT = 0.01
"""Of a step's products, or of its cache bytes, that the probe may leave out for steps to be held against the plan's."""
MEMORY_SHARE = 0.5
"""Of a step that reads its bytes at the read ceiling, from which on memory binds it and predictions are judged: a
shorter one is mostly the starts of its kernels, which differ from model to model."""


class Point(NamedTuple):
    """One batch and context."""

    batch: int
    context: int
    seconds: tuple[float, ...]
    """Of the whole model."""
    cache: str
    """Which attention ran."""


class Missed(NamedTuple):
    """How far predictions of steps lie off, as shares of what was measured."""

    now: list[float]
    """After calibration."""
    stated: list[float]
    """Before it."""


def predicted_seconds(setup: Setup | str, batch: int, context: int) -> float | None:
    """The planner's step; None where it says nothing."""
    if isinstance(setup, str):
        return None
    return float(decode.step(setup.works, setup.rates, setup.layout, batch, context).seconds)


def ranks_seconds(
    setup: Setup | str, link_bandwidth: float, link_seconds: float, batch: int, context: int
) -> float | None:
    """The planner's step of a rank's layers without the head, messages by a line; None where it says nothing."""
    if isinstance(setup, str):
        return None
    rates = setup.rates._replace(
        link_bandwidth=link_bandwidth, link_seconds=link_seconds, short_bandwidth=None, short_seconds=0.0
    )
    works = tuple(w._replace(head_bytes=0, head_parameters=0, vocab_rows=0) for w in setup.works)
    return float(decode.step(works, rates, setup.layout, batch, context).seconds)


def point_rows(session: Session, held: Held, points: list[Point]) -> list[Row]:
    """A row a point, measured beside predicted, and how far predictions lie off over all of them."""
    from kvplan.probe.held import formats_run
    from kvplan.probe.readers import left_unread

    run = formats_run(session, held.fmt)
    before, after = session.speed(formats=run), session.speed(session.calibration(), formats=run)
    told = [held.told(session.layout.spec), f"bf16 {held.instead}" if held.instead else ""]
    part = "".join(f"{one}; " for one in told if one)
    rows, judged, short = [], Missed([], []), Missed([], [])
    for point in sorted(points):
        now = predicted_seconds(after, point.batch, point.context)
        first = predicted_seconds(before, point.batch, point.context)
        middle = median(point.seconds)
        share = None
        if not isinstance(after, str) and (read := session.figures.read_bytes_per_second) is not None:
            share = memory_share(after, read.value, point.batch, point.context, middle)
        missed = judged if share is None or share >= MEMORY_SHARE else short
        notes = [f"{rate_text(point.batch / middle)} tokens/s"]
        if not isinstance(after, str):
            parts = decode.step(after.works, after.rates, after.layout, point.batch, point.context)
            notes.append(f"bound by {decode.bound(parts) or 'memory'}")
        if share is not None:
            notes.append(f"{share:.0%} of the read ceiling")
        if first is not None:
            missed.stated.append(abs(first / middle - 1))
            notes.append(f"before calibration {first * 1e3:.2f} ms ({first / middle - 1:+.1%})")
        if now is not None:
            missed.now.append(abs(now / middle - 1))
        rows.append(
            row(
                "decode", f"step, {held.fmt} cache, {point.batch} x {point.context}", predicted=now,
                measured=point.seconds, unit="s", note=f"{part}{'; '.join(notes)}; {point.cache}",
            )
        )  # fmt: skip
    unread = 0.0 if isinstance(after, str) else max((left_unread(after.works, p.context) for p in points), default=0.0)
    return rows + _summaries(session, held, judged, short, _beside(session, unread))


def rate_text(rate: float) -> str:
    """A rate of tokens for people: whole numbers, below ten two digits."""
    return f"{rate:,.0f}" if rate >= 10 else f"{rate:.2g}"


def wrong_rows(held: Held) -> list[Row]:
    """A failed row where some attention of the steps lay too far from float64, whether or not another served."""
    if not held.wrong:
        return []
    from kvplan.probe.kernels import choose

    name, error = max(held.wrong, key=lambda one: one[1])
    return [
        row(
            "decode", "steps: worst error of attention", predicted=choose.TOLERANCE, measured=error, unit="ratio",
            tolerance=0.0, sense="at_most", note=f"{name}, {held.fmt} cache, against float64; predicted is the bound",
        )
    ]  # fmt: skip


def memory_share(setup: Setup, read_bytes_per_second: float, batch: int, context: int, seconds: float) -> float:
    """What the bytes of a step take at a read ceiling, of the `seconds` that the step took."""
    from kvplan.planning.speed import work as of

    read = sum(of.weight_bytes(w, batch) + batch * of.kv_bytes(w, context) for w in setup.works)
    return float(read) / read_bytes_per_second / seconds


def _beside(session: Session, unread: float) -> str:
    """What of a plan's step is not in the probe's; empty where next to nothing is missing."""
    products = left_out(session.layout.spec)
    found = [f"{products:.0%} of the products are beside attention and FFN"] if products > MOST_LEFT_OUT else []
    if unread > MOST_LEFT_OUT:
        found.append(f"up to {unread:.0%} of the cache is index keys or compressed entries")
    return f"{' and '.join(found)}, and left out here" if found else ""


def _summaries(session: Session, held: Held, judged: Missed, short: Missed, beside: str) -> list[Row]:
    """Misses of the steps that memory binds, and of the others for information.

    Args:
        beside: what of a plan's step is not measured, so that it is not judged.
    """
    from kvplan.probe.attention import bound_by_memory

    on_gpu = session.device.is_cuda and not beside
    kernels = bound_by_memory(session, held.fmt)  # the constants of the package are those of kernels that are
    bounds = [("median miss of predicted steps", judged.now, 0.5, MEDIAN_MISS, on_gpu),
              ("miss of nine in ten predicted steps", judged.now, 0.9, WORST_MISS, on_gpu),
              ("median miss before calibration", judged.stated, 0.5, STATED_MISS, on_gpu and kernels),
              ("median miss of steps of short kernels", short.now, 0.5, None, False),
              ("median miss of these before calibration", short.stated, 0.5, None, False)]  # fmt: skip
    rows = []
    for name, found, share, bound, counts in bounds:
        if not found:
            continue
        many = f"over {len(found)} point{'s' * (len(found) > 1)}"
        note = f"{many}; predicted is the bound" if bound else f"{many}, whose bytes are less than half of their time"
        if beside:
            note += f"; not judged: {beside}"
        elif bound and not session.device.is_cuda:
            note += "; not judged on a CPU"
        elif bound == STATED_MISS and not kernels:
            note += "; not judged, as memory does not bind attention here"
        rows.append(
            row(
                "decode", name, predicted=bound, measured=quantile(found, share), unit="ratio",
                tolerance=0.0 if counts else None, sense="at_most", note=note,
            )
        )  # fmt: skip
    return rows

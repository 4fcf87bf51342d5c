"""Rows of measured decode steps: each beside the plan's, and how far plans lie off before and after calibration."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from kvplan.planning.speed import decode
from kvplan.probe.receipt import Row, median, quantile, row

if TYPE_CHECKING:
    from kvplan.planning.speed.figures import Setup
    from kvplan.probe.session import Session
    from kvplan.probe.step import Held

MEDIAN_MISS, WORST_MISS, STATED_MISS = 0.04, 0.10, 0.15
"""Of predicted steps: median and nine in ten after calibration, median before it."""
OTHER_MEDIAN_MISS, OTHER_WORST_MISS = 0.08, 0.18
"""The same of models with routed experts or latent rows, whose kernels here are plain products."""


class Point(NamedTuple):
    """One batch and context."""

    batch: int
    context: int
    seconds: tuple[float, ...]
    """Of the whole model."""
    cache: str
    """Which attention ran."""


def predicted_seconds(setup: Setup | str, batch: int, context: int) -> float | None:
    """The planner's step; None where it says nothing."""
    if isinstance(setup, str):
        return None
    return float(decode.step(setup.works, setup.rates, setup.layout, batch, context).seconds)


def point_rows(session: Session, held: Held, points: list[Point]) -> list[Row]:
    """A row a point, measured beside predicted, and how far predictions lie off over all of them."""
    before, after = session.speed(), session.speed(session.calibration())
    part = "" if len(held.layers) == session.layout.spec.num_layers else f"{len(held.layers)} layers, scaled; "
    part += f"bf16 {held.instead}; " if held.instead else ""
    rows, misses, stated = [], [], []
    for point in sorted(points):
        now = predicted_seconds(after, point.batch, point.context)
        first = predicted_seconds(before, point.batch, point.context)
        middle = median(point.seconds)
        notes = [f"{point.batch / middle:,.0f} tokens/s"]
        if not isinstance(after, str):
            parts = decode.step(after.works, after.rates, after.layout, point.batch, point.context)
            notes.append(f"bound by {decode.bound(parts) or 'memory'}")
            if session.figures.read_bytes_per_second is not None:
                read = _bytes_read(after, point.batch, point.context)
                notes.append(f"{read / middle / session.figures.read_bytes_per_second.value:.0%} of the read ceiling")
        if first is not None:
            stated.append(abs(first / middle - 1))
            notes.append(f"before calibration {first * 1e3:.2f} ms ({first / middle - 1:+.1%})")
        if now is not None:
            misses.append(abs(now / middle - 1))
        rows.append(
            row(
                "decode", f"step, {held.fmt} cache, {point.batch} x {point.context}", predicted=now,
                measured=point.seconds, unit="s", note=f"{part}{'; '.join(notes)}; {point.cache}",
            )
        )  # fmt: skip
    plain = not any(layer.experts or (layer.head and layer.head.latent) for layer in held.layers)
    return rows + _summaries(session, misses, stated, plain)


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


def _bytes_read(setup: Setup, batch: int, context: int) -> float:
    from kvplan.planning.speed import work as of

    return float(sum(of.weight_bytes(w, batch) + batch * of.kv_bytes(w, context) for w in setup.works))


def _summaries(session: Session, misses: list[float], stated: list[float], plain: bool) -> list[Row]:
    rows = []
    middle, worst = (MEDIAN_MISS, WORST_MISS) if plain else (OTHER_MEDIAN_MISS, OTHER_WORST_MISS)
    judged = 0.0 if session.device.is_cuda else None
    bounds = [("median miss of predicted steps", misses, 0.5, middle),
              ("miss of nine in ten predicted steps", misses, 0.9, worst),
              ("median miss before calibration", stated, 0.5, STATED_MISS)]  # fmt: skip
    for name, found, share, bound in bounds:
        if found:
            rows.append(
                row(
                    "decode", name, predicted=bound, measured=quantile(found, share), unit="ratio", tolerance=judged,
                    sense="at_most", note=f"over {len(found)} points; predicted is the bound",
                )
            )  # fmt: skip
    return rows

"""Lines through measured times: ``seconds = bytes / B + c``, with the smallest worst miss."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

from kvplan.probe.session import MeasuredFigure, MeasuredLine

Point = tuple[float, float]
"""(bytes, seconds)"""


def line(points: Sequence[Point]) -> tuple[float, float, float]:
    """(bytes a second, seconds of latency, worst relative miss) of the line that misses least at its worst point.

    The worst relative miss over n points is smallest where three of them are missed alike, in turn above and below
    (Chebyshev); with n of a dozen all triples are tried. A latency below zero is taken as zero.

    Raises:
        ValueError: fewer than two different numbers of bytes.
    """
    if len({x for x, _ in points}) < 2:
        raise ValueError("a line needs two different numbers of bytes")
    candidates = [_through(a, b) for a, b in combinations(points, 2) if a[0] != b[0]]
    candidates += [found for triple in combinations(sorted(points), 3) if (found := _balanced(*triple)) is not None]
    candidates += [(_origin(points), 0.0)]
    usable = [(slope, start) for slope, start in candidates if slope > 0 and start >= 0]
    slope, start = min(usable, key=lambda found: worst_miss(points, *found))
    return 1 / slope, start, worst_miss(points, slope, start)


def shown(rate: float, start: float) -> str:
    """A line for people: ``bytes / 4.56 TB/s + 7.0 us``; rates of a CPU in GB/s."""
    speed = f"{rate / 1e12:.4g} TB/s" if rate >= 1e11 else f"{rate / 1e9:.4g} GB/s"
    return f"bytes / {speed} + {start * 1e6:.1f} us"


def worst_miss(points: Sequence[Point], slope: float, start: float) -> float:
    """Largest ``|predicted / measured - 1|``."""
    return max(abs((slope * x + start) / y - 1) for x, y in points)


def _through(a: Point, b: Point) -> tuple[float, float]:
    slope = (b[1] - a[1]) / (b[0] - a[0])
    return slope, a[1] - slope * a[0]


def _balanced(a: Point, b: Point, c: Point) -> tuple[float, float] | None:
    """The line with relative misses +e, -e, +e at three points in order of bytes."""
    if a[0] == b[0] or b[0] == c[0]:
        return None
    # slope x + start = y (1 + e s), s = +1, -1, +1: linear in slope, start and e
    rows = [(x, 1.0, -y * sign, y) for (x, y), sign in zip((a, b, c), (1, -1, 1), strict=True)]
    det = _det([r[:3] for r in rows])
    if det == 0:
        return None
    slope = _det([(r[3], r[1], r[2]) for r in rows]) / det
    return slope, _det([(r[0], r[3], r[2]) for r in rows]) / det


def _det(m: Sequence[tuple[float, ...]]) -> float:
    return (
        m[0][0] * (m[1][1] * m[2][2] - m[1][2] * m[2][1])
        - m[0][1] * (m[1][0] * m[2][2] - m[1][2] * m[2][0])
        + m[0][2] * (m[1][0] * m[2][1] - m[1][1] * m[2][0])
    )


def _origin(points: Sequence[Point]) -> float:
    """The slope through the origin between the extremes of seconds a byte."""
    rates = [y / x for x, y in points]
    return 2 * min(rates) * max(rates) / (min(rates) + max(rates))


def measured_line(points: Sequence[Point]) -> MeasuredLine | None:
    """The line with what it becomes when any one point is left out; None where no line says something."""
    if len({x for x, _ in points}) < 3:
        return None
    rate, start, miss = line(points)
    others = [line([p for p in points if p is not left]) for left in points if len({x for x, _ in points}) > 3]
    rates, starts = [rate, *(o[0] for o in others)], [start, *(o[1] for o in others)]
    if start <= 0:
        start = min((s for s in starts if s > 0), default=1e-9)
    return MeasuredLine(
        MeasuredFigure(rate, min(rates), max(rates), len(points)),
        MeasuredFigure(start, min(start, *(s for s in starts if s > 0), start), max(start, *starts), len(points)),
        miss,
    )

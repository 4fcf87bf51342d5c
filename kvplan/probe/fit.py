"""Lines through measured times: ``seconds = bytes / B + c``, with the smallest worst miss."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

from kvplan.probe.session import MeasuredFigure, MeasuredLine

Point = tuple[float, float]
"""(bytes, seconds)"""


def line(points: Sequence[Point], *, ceiling: float | None = None) -> tuple[float, float, float]:
    """(bytes a second, seconds of latency, worst relative miss) of the line that misses least at its worst point.

    The worst relative miss over n points is smallest where three of them are missed alike, in turn above and below
    (Chebyshev); with n of a dozen all triples are tried. A latency below zero is taken as zero.

    Args:
        ceiling: bytes a second that the memory gives at most: no line is steeper. Where the best one would be, two
            points are missed alike at the ceiling.

    Raises:
        ValueError: fewer than two different numbers of bytes.
    """
    if len({x for x, _ in points}) < 2:
        raise ValueError("a line needs two different numbers of bytes")
    candidates = [_through(a, b) for a, b in combinations(points, 2) if a[0] != b[0]]
    candidates += [found for triple in combinations(sorted(points), 3) if (found := _balanced(*triple)) is not None]
    candidates += [(_origin(points), 0.0)]
    least = 1 / ceiling if ceiling else 0.0
    if ceiling:
        pairs = combinations(points, 2)
        candidates += [(least, 0.0), *((least, _halfway(a, b, least)) for a, b in pairs)]
    usable = [(slope, start) for slope, start in candidates if slope >= least and slope > 0 and start >= 0]
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


def _halfway(a: Point, b: Point, slope: float) -> float:
    """The latency with which a line of `slope` misses both points alike, one above and one below."""
    return (2 - slope * (a[0] / a[1] + b[0] / b[1])) / (1 / a[1] + 1 / b[1])


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


def shared_line(
    points: Sequence[Point], shares: Sequence[float], *, ceiling: float | None = None
) -> tuple[float, float, float]:
    """(bytes a second, seconds of latency, worst relative miss) of the line that misses the sum least.

    The sum of squared relative misses, each weighed by the share of the time that its shape takes in a step: small
    matrices, whose tiles do not divide them alike, cannot tilt the line away from what fills the step. The line is no
    steeper than `ceiling`, and its latency not below zero.

    Raises:
        ValueError: fewer than two different numbers of bytes.
    """
    if len({x for x, _ in points}) < 2:
        raise ValueError("a line needs two different numbers of bytes")
    terms = [(x / y, 1 / y, share) for (x, y), share in zip(points, shares, strict=True)]
    xx, xc = sum(w * u * u for u, _, w in terms), sum(w * u * v for u, v, w in terms)
    cc, x1, c1 = sum(w * v * v for _, v, w in terms), sum(w * u for u, _, w in terms), sum(w * v for _, v, w in terms)
    least = 1 / ceiling if ceiling else 0.0
    det = xx * cc - xc * xc
    slope, start = (x1 * cc - c1 * xc) / det, (c1 * xx - x1 * xc) / det
    if start < 0:
        slope, start = x1 / xx, 0.0
    if slope < least:
        slope, start = least, max(0.0, (c1 - least * xc) / cc)
    return 1 / slope, start, worst_miss(points, slope, start)


def measured_line(
    points: Sequence[Point], ceiling: MeasuredFigure | None = None, shares: Sequence[float] | None = None
) -> MeasuredLine | None:
    """The line with what it becomes when any one point is left out; None where no line says something.

    Args:
        ceiling: bytes a second that the memory was seen to give.
        shares: of a step's time that each shape takes: the line of the least sum. None: that of the least worst miss.
    """
    if len({x for x, _ in points}) < 3:
        return None
    most = ceiling.value if ceiling is not None else None

    def fitted(kept: Sequence[int]) -> tuple[float, float, float]:
        these = [points[i] for i in kept]
        if shares is None:
            return line(these, ceiling=most)
        return shared_line(these, [shares[i] for i in kept], ceiling=most)

    every = range(len(points))
    rate, start, miss = fitted(every)
    others = [
        fitted([i for i in every if points[i] is not left])
        for left in points if len({x for x, _ in points}) > 3
    ]  # fmt: skip
    rates, starts = [rate, *(o[0] for o in others)], [start, *(o[1] for o in others)]
    return MeasuredLine(
        MeasuredFigure(rate, min(rates), max(rates), len(points)),
        MeasuredFigure(start, min(starts), max(starts), len(points)),
        miss,
    )

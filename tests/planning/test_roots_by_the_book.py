"""Roots against a second writing of the method: the points that are tried, their number, and what is found."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from math import exp, log
from typing import Any

import numpy as np
import pytest

from kvplan.planning.speed.solve import root

Function = Callable[[Any], Any]


def by_the_book(f: Callable[[float], float], low: float, high: float, near: float, under: bool) -> tuple[float, int]:
    """(root, calls): Chandrupatla's method in log x, its interpolation as Lagrange's polynomial through three points.

    A point (u, f) is kept at either side of the root with the one that was replaced last; the first step is a secant.
    """
    left, right = (log(low), f(low)), (log(high), f(high))
    if right[1] <= 0:
        return high, 2
    if left[1] >= 0:
        return low, 2
    tried = [left, right]
    newest, across, share = left, right, left[1] / (left[1] - right[1])
    while len(tried) < 102:
        allowed = [p for p in tried if p[1] <= 0] if under else tried
        if min(abs(p[1]) for p in allowed) < near or abs(across[0] - newest[0]) < near:
            break
        margin = near / 4 / abs(across[0] - newest[0])
        at = newest[0] + min(max(share, margin), 1 - margin) * (across[0] - newest[0])
        point = (at, f(exp(at)))
        tried.append(point)
        if (point[1] > 0) == (newest[1] > 0):
            third = newest
        else:
            third, across = across, newest
        newest = point
        (a, fa), (b, fb), (c, fc) = newest, across, third
        share = 0.5
        if len({fa, fb, fc}) == 3 and len({a, b, c}) == 3:
            flat, along = (fa - fb) / (fc - fb), (a - b) / (c - b)
            if flat**2 < along and (1 - flat) ** 2 < 1 - along:
                crossing = (
                    a * fb * fc / ((fa - fb) * (fa - fc))
                    + b * fa * fc / ((fb - fa) * (fb - fc))
                    + c * fa * fb / ((fc - fa) * (fc - fb))
                )
                share = (crossing - a) / (b - a)
    allowed = [p for p in tried if p[1] <= 0] if under else tried
    return exp(min(allowed, key=lambda p: abs(p[1]))[0]), len(tried)


CASES: list[tuple[str, Callable[[float], float], float, float]] = [
    ("a ratio", lambda x: log(x / 3.7), 0.1, 100.0),
    ("a queue", lambda x: log(x / (1 - x) / 5), 1e-6, 1 - 1e-9),
    ("a square", lambda x: x * x - 2, 0.5, 9.0),
    ("a high power", lambda x: (x / 7) ** 9 - 1, 1e-3, 40.0),
    ("a jump", lambda x: log(x / 8) + (0.3 if x > 2 else -0.3), 0.01, 50.0),
    ("a jump over zero", lambda x: 1.0 if x > 5 else -0.5, 1.0, 20.0),
    ("steps", lambda x: log((1 + int(x * 10)) / 35.5), 0.1, 30.0),
    ("flat, then steep", lambda x: -1e-3 if x < 4 else x - 4.001, 1.0, 10.0),
    ("near the first end", lambda x: log(x / 1.0001), 1.0, 1e6),
    ("near the last end", lambda x: log(x / 0.9999e6), 1.0, 1e6),
    ("the first end itself", lambda x: x - 2.0, 2.0, 3.0),
    ("the last end itself", lambda x: x - 3.0, 2.0, 3.0),
    ("below everywhere", lambda x: -1 / x, 2.0, 3.0),
    ("above everywhere", lambda x: 1 / x, 2.0, 3.0),
    ("an end that is nearer", lambda x: -0.1 if x < 9.9 else 5.0, 1.0, 10.0),
    ("the other end that is nearer", lambda x: -5.0 if x < 1.1 else 0.1, 1.0, 10.0),
]


@pytest.mark.parametrize(("name", "function", "low", "high"), CASES, ids=[case[0] for case in CASES])
@pytest.mark.parametrize("under", [False, True])
def test_the_points_that_are_tried(
    name: str, function: Callable[[float], float], low: float, high: float, under: bool
) -> None:
    calls: list[float] = []

    def counted(x: float) -> float:
        calls.append(x)
        return function(x)

    found = root(counted, low, high, under=under)
    expected, count = by_the_book(function, low, high, 1e-12, under)
    assert found == pytest.approx(expected, rel=1e-11)
    assert len(calls) == pytest.approx(count, abs=1)  # the last step may round to either side
    if under and function(low) <= 0:
        assert function(found) <= 0


@pytest.mark.parametrize("under", [False, True])
@pytest.mark.parametrize("by_parts", [False, True])
def test_many_at_once_are_as_each_alone(under: bool, by_parts: bool) -> None:
    """Elements do not see each other, and those that are done are not asked again."""
    functions = [case[1] for case in CASES]
    asked: list[list[int]] = []

    def some(rows: Any) -> Function:
        asked.append(list(rows))
        return lambda x: np.array([functions[row](float(value)) for row, value in zip(rows, x, strict=True)])

    def whole(x: Any) -> Any:
        asked.append([])
        return np.array([function(float(value)) for function, value in zip(functions, x, strict=True)])

    low, high = (np.array([case[at] for case in CASES]) for at in (2, 3))
    found = root(whole, low, high, under=under, part=some if by_parts else None)
    counts = []
    for value, (name, function, first, last) in zip(found, CASES, strict=True):
        expected, count = by_the_book(function, first, last, 1e-6, under)
        assert value == pytest.approx(expected, rel=1e-9), name
        counts.append(count)
    assert len(asked) == pytest.approx(max(counts), abs=1)
    if by_parts:
        tried = [rows for rows in asked if rows]
        for row, count in enumerate(counts):
            assert sum(row in rows for rows in tried) == pytest.approx(count - 2, abs=1)
        assert all(len(after) <= len(before) for before, after in pairwise(tried))


def test_ends_may_be_numbers_beside_arrays_and_all_may_be_done_at_once() -> None:
    targets = np.array([0.5, 2.0, 9.0])
    found = root(lambda x: np.log(x / targets), 1.0, 5.0)
    assert found == pytest.approx([1.0, 2.0, 5.0], rel=1e-6)
    assert root(lambda x: np.log(x / np.array([0.5, 9.0])), 1.0, 5.0).tolist() == [1.0, 5.0]
    assert root(lambda x: np.log(x / np.array([1.0, 5.0])), 1.0, 5.0).tolist() == [1.0, 5.0]

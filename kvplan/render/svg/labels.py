"""Where the labels in a plot go: beside what they name, clear of each other and, where there is room, of the lines."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import NamedTuple, TypeAlias

from kvplan.render.svg.elements import FONT, NARROW_FONT, shortened, text, width

_HIGH, _LOW = 13.0, 4.0
"""How far a label reaches above and below its baseline."""
_STEP = 6.0
_ROUNDS = 3
Place: TypeAlias = tuple[float, float, str]
"""(x, baseline, ``start`` or ``end``) of a label."""


class Box(NamedTuple):
    """A place on the sheet."""

    left: float
    top: float
    right: float
    bottom: float

    def meets(self, other: Box) -> bool:
        return (
            self.left < other.right
            and other.left < self.right
            and self.top < other.bottom
            and other.top < self.bottom
        )  # fmt: skip

    def holds(self, point: tuple[float, float]) -> bool:
        return self.left < point[0] < self.right and self.top < point[1] < self.bottom


class Labels:
    """The labels of one plot, placed one after the other.

    Args:
        sheet: they stay within it.
        points: of the lines, which they avoid where another place is free.
    """

    def __init__(self, sheet: Box, points: Iterable[tuple[float, float]]) -> None:
        self.sheet = sheet
        self.points = list(points)
        self.placed: list[Box] = []

    def place(self, words: str, places: Sequence[Place], class_: str) -> str:
        """The label at the best of `places`."""
        return self.place_all([(words, places)], class_)[0]

    def place_all(self, wanted: Sequence[tuple[str, Sequence[Place]]], class_: str) -> list[str]:
        """Labels that are as clear of each other and of the rest as a few tries make them, in their order.

        One after the other each takes the best place that the ones before leave, from the first on and from the last
        on; then each looks again, now that all the others stand.
        """
        tries = [self._settled(wanted, order) for order in (range(len(wanted)), range(len(wanted))[::-1])]
        _, chosen = min(tries, key=lambda found: found[0])
        self.placed += [_box(words, place) for (words, _), place in zip(wanted, chosen, strict=True)]
        return [self._drawn(words, place, class_) for (words, _), place in zip(wanted, chosen, strict=True)]

    def _settled(
        self, wanted: Sequence[tuple[str, Sequence[Place]]], order: Sequence[int]
    ) -> tuple[float, list[Place]]:
        """(what is wrong with them in all, a place for each)."""
        chosen: dict[int, Place] = {}
        cost = 0.0
        for last in [False] * _ROUNDS + [True]:
            cost = 0.0
            for i in order:
                words, places = wanted[i]
                others = [_box(wanted[j][0], place) for j, place in chosen.items() if j != i]
                costs = [self._cost(words, place, others) for place in places]
                if not last:
                    chosen[i] = places[costs.index(min(costs))]
                cost += costs[places.index(chosen[i])]
        return cost, [chosen[i] for i in range(len(wanted))]

    def _drawn(self, words: str, place: Place, class_: str) -> str:
        x, y, anchor = place
        room = (x - self.sheet.left) if anchor == "end" else (self.sheet.right - x)
        return text(x, y, shortened(words, max(room, 40)), anchor=None if anchor == "start" else anchor, class_=class_)

    def _cost(self, words: str, place: Place, others: Sequence[Box]) -> float:
        box, wide = _box(words, place), _box(words, place, NARROW_FONT / FONT)
        cost = 100.0 * sum(box.meets(other) for other in (*self.placed, *others))
        cost += sum(box.holds(point) for point in self.points)
        outside = wide.left < self.sheet.left or wide.right > self.sheet.right
        return cost + 1000.0 * (outside or box.top < self.sheet.top or box.bottom > self.sheet.bottom)


def _box(words: str, place: Place, scale: float = 1.1) -> Box:
    x, y, anchor = place
    long = reach(words, scale)
    left = x - long if anchor == "end" else x
    return Box(left, y - _HIGH, left + long, y + _LOW)


def reach(words: str, scale: float = 1.1) -> float:
    """How long a label is on a wide sheet, with some room."""
    return width(words) * FONT / NARROW_FONT * scale


def along(places: Sequence[tuple[float, float]]) -> Iterable[tuple[float, float]]:
    """Points on the way from each of `places` to the next, about `_STEP` apart."""
    for (x0, y0), (x1, y1) in pairwise(places):
        count = max(1, int(max(abs(x1 - x0), abs(y1 - y0)) / _STEP))
        yield from ((x0 + (x1 - x0) * i / count, y0 + (y1 - y0) * i / count) for i in range(count + 1))

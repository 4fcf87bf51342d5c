"""A figure over two axes: numbers on a ground whose colour, or whose shade, says how large they are."""

from __future__ import annotations

from collections.abc import Sequence
from math import log
from typing import NamedTuple

from kvplan.render.grid import clean, width_of

RAMP = (17, 18, 24, 30, 36, 71, 107, 143, 179, 215, 209, 203)
"""Colours of the 256-colour palette from little to much; text on them is white up to the half, then black."""
SHADES, ASCII_SHADES = " ░▒▓█", " .:*#"
_WHITE, _BLACK = 231, 16
FAR = 20
"""Times the least value from which on the ground goes by the logarithm."""


class HeatMap(NamedTuple):
    """The figure and what it depends on."""

    title: str
    row_name: str
    column_name: str
    rows: Sequence[str]
    columns: Sequence[str]
    texts: Sequence[Sequence[str]]
    """Row by row: what stands in each cell."""
    values: Sequence[Sequence[float | None]]
    """Row by row: how large it is; None: there is no figure."""
    note: str = ""
    over: Sequence[Sequence[bool]] = ()
    """Row by row: which cells are of plans that do not fit, as their texts say too; empty: none."""


def draw(picture: HeatMap, *, width: int | None = None, color: bool = False, unicode: bool = True) -> str:
    """The map as lines. Where `width` is too little, some columns are left out evenly, and a line says so."""
    kept = _kept(picture, width)
    scale = _Scale([v for row in picture.values for v in row if v is not None])
    heads = [clean(picture.columns[i]) for i in kept]
    labels = [clean(text) for text in picture.rows]
    first = max(map(width_of, [*labels, clean(picture.row_name)]))
    cell = _cell_width(picture)
    lines = [_bold(clean(picture.title), color)]
    lines.append(f"{' ' * first}  {clean(picture.column_name)} ->")
    lines.append(f"{_padded(clean(picture.row_name), first)} " + "".join(f" {_right(h, cell)}" for h in heads))
    for label, texts, values in zip(labels, picture.texts, picture.values, strict=True):
        drawn = "".join(_cell(clean(texts[i]), cell, scale.level(values[i]), color, unicode) for i in kept)
        lines.append(f"{' ' * (first - width_of(label))}{label} {drawn}")
    left = len(picture.columns) - len(kept)
    if left:
        lines.append(f"{left} of {len(picture.columns)} columns left out: --format csv has all")
    if picture.note:
        lines.append(clean(picture.note))
    return "".join(f"{line.rstrip()}\n" for line in lines)


def evenly(count: int, room: int) -> list[int]:
    """Indices of at most `room` of `count` things, first and last among them."""
    if count <= room:
        return list(range(count))
    if room < 2:
        return [0][:room]
    return [i * (count - 1) // (room - 1) for i in range(room)]


def levels(picture: HeatMap) -> list[list[float | None]]:
    """Row by row: where each value lies between the least (0) and the most (1) of the map; None: no value."""
    scale = _Scale([v for row in picture.values for v in row if v is not None])
    return [[scale.level(v) for v in row] for row in picture.values]


def _cell_width(picture: HeatMap) -> int:
    """Of the widest text, with room for a shade."""
    texts = max((width_of(clean(t)) for row in picture.texts for t in row), default=1)
    return max(texts + 1, *(width_of(clean(h)) for h in picture.columns))


def _kept(picture: HeatMap, width: int | None) -> list[int]:
    if width is None:
        return list(range(len(picture.columns)))
    first = max(width_of(clean(t)) for t in (*picture.rows, picture.row_name))
    return evenly(len(picture.columns), max(1, (width - first - 1) // (_cell_width(picture) + 1)))


class _Scale:
    """Where a value lies between the least (0) and the most (1); by its logarithm where they are far apart."""

    def __init__(self, known: Sequence[float]) -> None:
        self.low, self.high = (min(known), max(known)) if known else (0.0, 0.0)
        self.by_log = self.low > 0 and self.high > FAR * self.low

    def level(self, value: float | None) -> float | None:
        if value is None:
            return None
        if self.high <= self.low:
            return 1.0
        if self.by_log:
            return log(value / self.low) / log(self.high / self.low)
        return (value - self.low) / (self.high - self.low)


def _cell(text: str, width: int, level: float | None, color: bool, unicode: bool) -> str:
    if level is None:
        return f" {_right(text, width)}"
    if color:
        at = min(int(level * len(RAMP)), len(RAMP) - 1)
        ink = _WHITE if at < len(RAMP) // 2 else _BLACK
        return f"\033[48;5;{RAMP[at]};38;5;{ink}m {_right(text, width)}\033[0m"
    shades = SHADES if unicode else ASCII_SHADES
    return f" {_right(shades[min(int(level * len(shades)), len(shades) - 1)] + text, width)}"


def _right(text: str, width: int) -> str:
    return " " * (width - width_of(text)) + text


def _padded(text: str, width: int) -> str:
    return text + " " * (width - width_of(text))


def _bold(text: str, color: bool) -> str:
    return f"\033[1m{text}\033[0m" if color else text

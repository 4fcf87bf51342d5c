"""A chart for the terminal: lines of dots in a frame, with a letter for everything that is marked.

The data is that of `kvplan.render.svg.parts`, and so are the scales; where the terminal has no Braille patterns, each
point is a character.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby, pairwise
from math import ceil

from kvplan.render.grid import COLORS, width_of
from kvplan.render.svg.parts import Chart, Series
from kvplan.render.svg.ticks import Scale, scale_of

Run = tuple[str, str]
"""Some characters and their style."""

HEIGHT, MOST_COLUMNS = 8, 72
_DOTS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))
"""Bits of a Braille pattern (U+2800), by row and column."""
_ASCII = "*+xo#%"
_DASHES = ((1, 1), (4, 6), (1, 2), (6, 8))
"""By colour: how many of how many dots along a line are drawn, so that lines differ where there are no colours."""
_KEYS = ("⠒⠒⠒", "⠒⠒ ⠒", "⠂⠂⠂", "⠒⠒⠒ ⠒")
_LETTERS = "abcdefghijklmnopqrstuvwxyz"


def plot(chart: Chart, width: int, *, unicode: bool = True) -> list[list[Run]]:
    """The chart, its title left to the caller, as lines of at most `width` columns."""
    x, y = _scales(chart)
    labels = [label for _, label in y.ticks]
    left = max(map(width_of, labels), default=0)
    columns = max(min(width - left - 2, MOST_COLUMNS), 8)
    canvas = _Canvas(columns, HEIGHT, x, y, unicode)
    for place, series in enumerate(chart.series):
        canvas.draw(series, place if series.color is None else series.color)
    notes = _mark(chart, canvas)
    lines: list[list[Run]] = [[(chart.y.label, "dim")]]
    ticks = {canvas.row(value): label for value, label in y.ticks}
    edge = "│" if unicode else "|"
    for row in range(HEIGHT):
        label = ticks.get(row, "")
        lines.append([(" " * (left - width_of(label)) + label, "dim"), (f" {edge}", "dim"), *canvas.line(row)])
    corner, level = ("└", "─") if unicode else ("+", "-")
    axis = "".join(canvas.letters.get(c, level) for c in range(columns))
    lines.append([(" " * left + f" {corner}", "dim"), (axis, "dim")])
    lines.append([(" " * (left + 2) + _under(x, canvas), "dim")])
    lines.append([(" " * (left + 2) + chart.x.label, "dim")])
    entries = [*_legend(chart, unicode), *([(note, "")] for note in notes)]
    return lines + list(_packed(entries, width))


def _scales(chart: Chart) -> tuple[Scale, Scale]:
    points = [point for s in chart.series for point in s.points]
    across = [p[0] for p in points] + [m.at for m in chart.marks if m.along == "x"] + [s.x for s in chart.spots]
    up = [v for _, v in points if v is not None] + [m.at for m in chart.marks if m.along == "y"]
    return scale_of(chart.x, across, 6), scale_of(chart.y, up + [s.y for s in chart.spots], 4)


class _Canvas:
    """Cells that dots and letters are set in."""

    def __init__(self, columns: int, height: int, x: Scale, y: Scale, unicode: bool) -> None:
        self.columns, self.height, self.x, self.y, self.unicode = columns, height, x, y, unicode
        self.fine = (2, 4) if unicode else (1, 1)
        self.bits: dict[tuple[int, int], tuple[int, int]] = {}
        """(row, column) -> (bits that are set, colour)."""
        self.letters: dict[int, str] = {}
        """Column -> the letter of a mark on the axis."""
        self.signs: dict[tuple[int, int], str] = {}

    def place(self, x: float, y: float) -> tuple[float, float]:
        """In dots from the top left."""
        wide, tall = self.columns * self.fine[0] - 1, self.height * self.fine[1] - 1
        across, up = (min(max(v, 0.0), 1.0) for v in (self.x.share(x), self.y.share(y)))
        return across * wide, (1 - up) * tall

    def column(self, x: float) -> int:
        return int(self.place(x, self.y.low)[0] / self.fine[0])

    def row(self, y: float) -> int:
        return int(self.place(self.x.low, y)[1] / self.fine[1])

    def draw(self, series: Series, color: int) -> None:
        known = [(x, y) for x, y in series.points if y is not None]
        places = [self.place(x, y) for x, y in known]
        if series.kind == "dots" or len(places) == 1:
            for at in places:
                self._dot(*at, color)
            return
        gone = 0
        for (x0, y0), (x1, y1) in pairwise(places):
            if series.kind == "step":
                gone = self._way(x0, y0, x1, y0, color, gone)
                x0 = x1
            gone = self._way(x0, y0, x1, y1, color, gone)

    def _way(self, x0: float, y0: float, x1: float, y1: float, color: int, gone: int) -> int:
        """A piece of a line, `gone` dots after its beginning; how many they are at its end."""
        count = max(1, ceil(max(abs(x1 - x0), abs(y1 - y0))))
        drawn, period = _DASHES[color % len(_DASHES)] if self.unicode else _DASHES[0]
        for i in range(count + 1):
            if (gone + i) % period < drawn:
                self._dot(x0 + (x1 - x0) * i / count, y0 + (y1 - y0) * i / count, color)
        return gone + count

    def _dot(self, x: float, y: float, color: int) -> None:
        column, row = round(x), round(y)
        cell = (row // self.fine[1], column // self.fine[0])
        bit = _DOTS[row % 4][column % 2] if self.unicode else 1
        self.bits[cell] = (self.bits.get(cell, (0, 0))[0] | bit, color)

    def line(self, row: int) -> Iterator[Run]:
        """One row of cells, in runs of one style."""
        cells = [self._cell(row, column) for column in range(self.columns)]
        for style, run in groupby(cells, key=lambda cell: cell[1]):
            yield "".join(sign for sign, _ in run), style

    def _cell(self, row: int, column: int) -> Run:
        sign = self.signs.get((row, column))
        if sign is not None:
            return sign, "bold"
        found = self.bits.get((row, column))
        if found is not None:
            bits, color = found
            sign = chr(0x2800 | bits) if self.unicode else _ASCII[color % len(_ASCII)]
            return sign, COLORS[color % len(COLORS)]
        if column in self.letters:
            return ("┊" if self.unicode else ":"), "dim"
        return " ", ""


def _mark(chart: Chart, canvas: _Canvas) -> list[str]:
    """Set a letter for every mark and spot; what each stands for."""
    notes = []
    names = iter(_LETTERS)
    for mark in chart.marks:
        if mark.along == "x":
            column = canvas.column(mark.at)
            letter = canvas.letters.get(column) or next(names, "?")
            canvas.letters[column] = letter
        else:
            letter, row = next(names, "?"), canvas.row(mark.at)
            for column in range(canvas.columns):
                if (row, column) not in canvas.bits and column not in canvas.letters:
                    canvas.signs.setdefault((row, column), "┈" if canvas.unicode else ".")
            canvas.signs[row, 0] = letter
        notes.append(f"{letter} {mark.label}")
    for spot in chart.spots:
        canvas.signs[canvas.row(spot.y), canvas.column(spot.x)] = "●" if canvas.unicode else "O"
        notes.append(f"{'●' if canvas.unicode else 'O'} {spot.label}")
    return notes


def _packed(entries: Sequence[list[Run]], width: int) -> Iterator[list[Run]]:
    """Entries one after the other, as many in a line as have room."""
    line: list[Run] = []
    for entry in entries:
        used, more = (sum(width_of(text) for text, _ in runs) for runs in (line, entry))
        if line and used + 3 + more > width:
            yield line
            line = []
        line = [*line, *([("   ", "")] if line else []), *entry]
    if line:
        yield line


def _under(x: Scale, canvas: _Canvas) -> str:
    """The ticks of the level axis, as many as have room."""
    line = ""
    for value, label in x.ticks:
        at = max(0, canvas.column(value) - width_of(label) // 2)
        at = min(at, canvas.columns - width_of(label))
        if at >= len(line) + (2 if line else 0):
            line += " " * (at - len(line)) + label
    return line


def _legend(chart: Chart, unicode: bool) -> list[list[Run]]:
    keys: Sequence[tuple[int, str]] = [(i if s.color is None else s.color, s.label) for i, s in enumerate(chart.series)]
    if sum(bool(label) for _, label in keys) < 2:
        return []
    return [
        [
            (f"{_KEYS[color % len(_KEYS)] if unicode else _ASCII[color % len(_ASCII)]} ", COLORS[color % len(COLORS)]),
            (label, ""),
        ]
        for color, label in keys
        if label
    ]

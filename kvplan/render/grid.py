"""The parts of a document, and what every way of drawing them needs.

A document is a list of parts. The parts know nothing of formats; strings in them may come from
anywhere, so each writer passes them through `clean` before they reach a terminal or a file.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from kvplan.errors import printable

if TYPE_CHECKING:
    from kvplan.render.svg.parts import Picture


class Title(NamedTuple):
    """The headline of a document or of a part of it."""

    text: str
    detail: str = ""
    """What stands beside it in a quieter voice."""


class KeyValues(NamedTuple):
    """Labelled figures, one a line: (label, value) or (label, value, remark)."""

    rows: Sequence[tuple[str, str] | tuple[str, str, str]]
    title: str = ""
    right: bool = False
    """Values are figures of one unit and read best right aligned."""


class Column(NamedTuple):
    """How one column of a grid is headed and set."""

    title: str
    right: bool = False
    """Numbers are right aligned."""
    wrap: bool = False
    """Prose, which may break over lines where the width is limited; other columns never break."""
    optional: bool = False
    """May be left out of a terminal that is too narrow for it; text and JSON always have it."""


class Grid(NamedTuple):
    """A table: every row has one string per column."""

    columns: Sequence[Column]
    rows: Sequence[Sequence[str]]
    title: str = ""
    note: str = ""
    """One line under the table (units, what was left out)."""


class Segment(NamedTuple):
    """One part of a bar."""

    label: str
    value: int
    """Its size, in the unit of the bar."""
    text: str
    """The size as it is printed."""
    spare: bool = False
    """Nothing is here: unused memory."""


class Bar(NamedTuple):
    """A stacked bar with its legend. Parts that exceed `total` run over a mark at `total`."""

    segments: Sequence[Segment]
    total: int
    total_text: str
    title: str = ""


class Notes(NamedTuple):
    """Sentences, one a line."""

    lines: Sequence[str]
    title: str = ""
    verbatim: bool = False
    """Lines to copy: never broken, nothing put in front."""


class Warnings(NamedTuple):
    """What the reader should know before trusting the figures, one sentence a line."""

    lines: Sequence[str]


Part: TypeAlias = "Title | KeyValues | Grid | Bar | Notes | Warnings | Picture"
"""A picture (`kvplan.render.svg`) is drawn by HTML, SVG and the terminal; text and Markdown give its numbers."""
Document: TypeAlias = Sequence[Part]

SOLID, SPARE, LIMIT = "█▓▒░▚▞", "·", "▲"
ASCII_SOLID, ASCII_SPARE, ASCII_LIMIT = "#=+-%o", ".", "^"
"""The fills of a bar, told apart without colour, and what stands for them where only ASCII does."""
COLORS = ("blue", "cyan", "magenta", "yellow", "green", "red")
"""Colours of a bar's segments, in order."""
GAP = 2
"""Blanks between the columns of a grid."""


def clean(text: str) -> str:
    """`text` on one line, with whatever could move a cursor or change a colour shown as an escape."""
    return text if text.isprintable() else printable(text, len(text))


def width_of(text: str) -> int:
    """Columns that `text` takes on a terminal: wide characters two, combining ones none."""
    if text.isascii():
        return len(text)
    from unicodedata import combining, east_asian_width

    return sum(0 if combining(c) else 2 if east_asian_width(c) in "WF" else 1 for c in text)


def shares(bar: Bar, cells: int) -> list[int]:
    """How many of `cells` each segment fills, by largest remainder.

    A segment above zero gets at least one cell where there are enough. The sum is what the segments
    take of the bar, rounded up: `cells` where they fill it.
    """
    values = [max(segment.value, 0) for segment in bar.segments]
    total = max(sum(values), bar.total)
    if total <= 0:
        return [0] * len(values)
    goal = min(max(-(-sum(values) * cells // total), sum(value > 0 for value in values)), cells)
    filled = [max(value * cells // total, int(value > 0)) for value in values]
    remainders = sorted(range(len(values)), key=lambda i: values[i] * cells % total, reverse=True)
    for i in remainders[: max(goal - sum(filled), 0)]:
        filled[i] += 1
    while sum(filled) > goal:
        filled[max(range(len(values)), key=filled.__getitem__)] -= 1
    return filled


class Fill(NamedTuple):
    """One segment as it is drawn."""

    segment: Segment
    cells: int
    mark: str
    """The character it is filled with, repeated in the legend."""
    percent: str
    style: str
    """Its colour, where there is any."""


def fills(bar: Bar, cells: int, *, unicode: bool = True) -> list[Fill]:
    """The segments of `bar` over `cells` characters, each with a fill that no neighbour has."""
    solid, spare = (SOLID, SPARE) if unicode else (ASCII_SOLID, ASCII_SPARE)
    found: list[Fill] = []
    used = 0
    for segment, count in zip(bar.segments, shares(bar, cells), strict=True):
        mark = spare if segment.spare else solid[used % len(solid)]
        style = "dim" if segment.spare else COLORS[used % len(COLORS)]
        used += not segment.spare
        percent = f"{segment.value / bar.total:.1%}" if bar.total > 0 else ""
        found.append(Fill(segment, count, mark, percent, style))
    return found


def limit_at(bar: Bar, cells: int) -> int | None:
    """The cell at which `bar.total` is reached, None where the segments do not exceed it."""
    used = sum(segment.value for segment in bar.segments)
    return None if used <= bar.total else min(bar.total * cells // used, cells - 1)


def limit_line(bar: Bar, cells: int, *, unicode: bool = True) -> str:
    """The line under an overfull bar that marks where the device ends; empty where `bar` is none."""
    at = limit_at(bar, cells)
    if at is None:
        return ""
    mark, text = LIMIT if unicode else ASCII_LIMIT, clean(bar.total_text)
    if at + 2 + width_of(text) > cells and width_of(text) < at:  # the label goes to the side that has room
        return f"{' ' * (at - 1 - width_of(text))}{text} {mark}"
    return f"{' ' * at}{mark} {text}"

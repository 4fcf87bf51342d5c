"""What stands around every picture: its title, its legend, and its place on the sheet."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from kvplan.render.svg.elements import FONT, NARROW_FONT, element, lines, text, width

WIDTH = 640
"""Units from left to right of every picture."""
EDGE = 12
LINE = 21
"""Units from one line of text to the next."""


class Drawn(NamedTuple):
    """Some markup and how far down it reaches."""

    markup: list[str]
    bottom: float


def heading(title: str) -> Drawn:
    """The title, broken over lines."""
    y, found = 0.0, []
    for line in lines(title, (WIDTH - 2 * EDGE) / 1.12):
        y += LINE + 1
        found.append(text(EDGE, y - 4, line, class_="head"))
    return Drawn(found, y + 4)


class Key(NamedTuple):
    """One entry of a legend."""

    label: str
    color: int | None
    """None: spare."""
    line: bool = False
    """A piece of line rather than a patch."""


def legend(keys: Sequence[Key], y: float) -> Drawn:
    """The entries in rows."""
    x, found = float(EDGE), []
    y += LINE
    for key in keys:
        room = 30 + width(key.label) + 14
        if x > EDGE and x + room > WIDTH - EDGE:
            x, y = float(EDGE), y + LINE
        if key.line:
            sample = element("line", x1=x, y1=y - 5, x2=x + 24, y2=y - 5, class_=f"line p{key.color}")
        else:
            shade = "spare" if key.color is None else f"f{key.color}"
            sample = element("rect", x=x + 6, y=y - 11, width=13, height=13, class_=shade)
        found += [sample, text(x + 30, y, key.label)]
        x += room
    return Drawn(found, y + 8)


def foot(note: str, y: float) -> Drawn:
    """A sentence under the picture."""
    found = []
    for line in lines(note, (WIDTH - 2 * EDGE) * NARROW_FONT / FONT) if note else ():
        y += LINE
        found.append(text(EDGE, y, line, class_="quiet foot"))
    return Drawn(found, y)

"""A figure over two axes as coloured cells with their numbers."""

from __future__ import annotations

from kvplan.render.heatmap import HeatMap, evenly, levels
from kvplan.render.svg.elements import FONT, NARROW_FONT, element, number, shortened, text, width
from kvplan.render.svg.frame import EDGE, LINE, WIDTH, Drawn, heading
from kvplan.render.svg.style import HEAT

MOST_ROWS, MOST_COLUMNS = 40, 48
"""Cells that are drawn at most; of more, some rows and columns are left out evenly, and the note says so."""
_THICK = 30
_LEAST = 6.0


def draw(picture: HeatMap, key: str) -> Drawn:
    """The cells from the top of the sheet; `key` is not needed, since nothing here has an id."""
    del key
    rows, columns = drawn_cells(picture)
    head = heading(picture.title)
    labels = [shortened(picture.rows[i], WIDTH / 3) for i in rows]
    left = EDGE + 8 + max((width(t) for t in labels), default=0)
    wide = max((WIDTH - EDGE - left) / max(1, len(columns)), _LEAST)
    tall = _THICK if len(rows) <= MOST_ROWS // 2 else _THICK / 2
    y = head.bottom + LINE
    parts = [*head.markup, text(EDGE, y, f"{picture.row_name} ↓   {picture.column_name} →", class_="quiet")]
    y += LINE
    shown = [picture.columns[i] for i in columns]
    stride = 1 + int(max((width(t) for t in shown), default=0) // wide)
    for place in range(0, len(columns), stride):
        room = max(wide, wide * stride)
        middle = left + (place + 0.5) * wide
        parts.append(text(middle, y, shortened(shown[place], room), anchor="middle", class_="quiet"))
    y += 8
    found = levels(picture)
    widest = max((width(picture.texts[i][j]) for i in rows for j in columns), default=0)
    written = widest * FONT / NARROW_FONT + 4 <= wide and tall >= NARROW_FONT
    small = " fit" if widest + 4 > wide else ""
    for i, label in zip(rows, labels, strict=True):
        if tall >= NARROW_FONT or i == rows[0] or i == rows[-1]:
            parts.append(text(left - 8, y + tall / 2 + 5, label, anchor="end", class_="quiet"))
        for place, j in enumerate(columns):
            level, x = found[i][j], left + place * wide
            at = None if level is None else min(int(level * len(HEAT)), len(HEAT) - 1)
            parts.append(
                element("rect", x=x, y=y, width=wide, height=tall, class_="none gap" if at is None else f"h{at} gap")
            )
            if picture.over and picture.over[i][j]:
                cut = min(wide, tall) / 3
                corner = f"M{number(x + wide - cut)} {number(y)}L{number(x + wide)} {number(y + cut)}"
                parts.append(element("path", d=corner, class_="end"))
            if written:
                words = picture.texts[i][j]
                parts.append(text(x + wide / 2, y + tall / 2 + 6, words, anchor="middle",
                                  class_=("quiet" if at is None else f"t{at}") + small))  # fmt: skip
        y += tall
    return Drawn(parts, y + 6)


def drawn_cells(picture: HeatMap) -> tuple[list[int], list[int]]:
    """Which rows and which columns are drawn."""
    return evenly(len(picture.rows), MOST_ROWS), evenly(len(picture.columns), MOST_COLUMNS)


def left_out(picture: HeatMap) -> str:
    """Which part of a large map is drawn; empty where all is."""
    rows, columns = len(picture.rows), len(picture.columns)
    if rows <= MOST_ROWS and columns <= MOST_COLUMNS:
        return ""
    return f"{min(rows, MOST_ROWS)} of {rows:,} rows and {min(columns, MOST_COLUMNS)} of {columns:,} columns are drawn"

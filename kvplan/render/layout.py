"""Columns, wrapping and styles: what the text and the table writer share.

Widths are in terminal columns. `width` None means that nothing is ever broken over lines.
"""

from __future__ import annotations

from collections.abc import Sequence

from kvplan.render.grid import Column, clean, width_of

GAP = 2
"""Blanks between columns."""
NARROWEST = 16
"""The narrowest that a column of prose is squeezed to."""

BOLD, DIM, END = "\033[1m", "\033[2m", "\033[0m"
RED, YELLOW = "\033[31m", "\033[33m"
FILLS = ("\033[34m", "\033[36m", "\033[35m", "\033[33m", "\033[32m", "\033[31m")
"""Colours of a bar's segments, in order."""


def styled(text: str, style: str, color: bool) -> str:
    """`text` in an ANSI style, where colour is wanted and there is something to see."""
    return f"{style}{text}{END}" if color and style and text.strip() else text


def wrap(text: str, width: int | None) -> list[str]:
    """`text` as lines of at most `width` columns, broken at blanks; longer words are cut to fit."""
    if width is None or width_of(text) <= width:
        return [text]
    lines: list[str] = []
    line = ""
    for word in text.split(" "):
        joined = f"{line} {word}" if line else word
        if width_of(joined) <= width:
            line = joined
            continue
        if line:
            lines.append(line)
        *full, line = _pieces(word, width)
        lines += full
    return [*lines, line] if line else lines


def _pieces(word: str, width: int) -> list[str]:
    """A word cut into pieces of at most `width` columns (one character at least)."""
    pieces = [""]
    for character in word:
        if pieces[-1] and width_of(pieces[-1] + character) > width:
            pieces.append("")
        pieces[-1] += character
    return pieces


def fit(
    columns: Sequence[Column], rows: Sequence[Sequence[str]], width: int | None
) -> tuple[list[int], list[list[str]]] | None:
    """(width of each column, lines of each head) that set `rows` within `width`; None: they cannot be.

    Heads are broken over lines before prose is, and only prose columns are squeezed.
    """
    heads = [[clean(column.title)] for column in columns]
    cells = [max((width_of(row[i]) for row in rows), default=0) for i in range(len(columns))]
    widths = [max(cell, width_of(head[0])) for cell, head in zip(cells, heads, strict=True)]
    if width is None:
        return widths, heads
    room = width - GAP * (len(columns) - 1)
    if sum(widths) > room:
        narrow = [min(cell, NARROWEST) if column.wrap else cell for column, cell in zip(columns, cells, strict=True)]
        heads = [_fold(head[0], need) for head, need in zip(heads, narrow, strict=True)]
        widths = [max(cell, *map(width_of, head)) for cell, head in zip(cells, heads, strict=True)]
    prose = [i for i, column in enumerate(columns) if column.wrap and widths[i] > NARROWEST]
    while prose and sum(widths) > room:
        widest = max(prose, key=widths.__getitem__)
        if widths[widest] == NARROWEST:
            break
        widths[widest] -= 1
    return (widths, heads) if sum(widths) <= room else None


def _fold(head: str, width: int) -> list[str]:
    """`head` broken at blanks into lines that fit `width` where they can; no word is cut."""
    return wrap(head, max(width, *map(width_of, head.split(" "))))


def set_row(
    cells: Sequence[Sequence[str]], widths: Sequence[int], rights: Sequence[bool], styles: Sequence[str], color: bool
) -> list[str]:
    """The lines of one row whose cells are lists of lines, aligned and styled by column."""
    height = max(map(len, cells), default=0)
    lines = []
    for level in range(height):
        texts = [cell[level] if level < len(cell) else "" for cell in cells]
        parts = []
        for text, width, right, style in zip(texts, widths, rights, styles, strict=True):
            blanks = " " * (width - width_of(text))
            parts.append(blanks * right + styled(text, style, color) + blanks * (not right))
        lines.append((" " * GAP).join(parts))
    return lines


def set_rows(
    rows: Sequence[Sequence[str]], columns: Sequence[Column], widths: Sequence[int], styles: Sequence[str], color: bool
) -> list[str]:
    """Rows of strings as lines; prose that exceeds its column is broken over several."""
    rights = [column.right for column in columns]
    lines: list[str] = []
    for row in rows:
        cells = [
            wrap(cell, width if column.wrap else None) for cell, width, column in zip(row, widths, columns, strict=True)
        ]
        lines += set_row(cells, widths, rights, styles, color)
    return lines

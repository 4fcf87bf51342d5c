"""Plain aligned text: one line per fact, never wrapped, fit for grep, a log and a pipe."""

from __future__ import annotations

from collections.abc import Sequence

from kvplan.render.grid import (
    GAP,
    Bar,
    Document,
    Grid,
    KeyValues,
    Notes,
    Part,
    Title,
    Warnings,
    clean,
    fills,
    limit_line,
    width_of,
)

BAR_CELLS = 64
_INDENT = 2
_CODES = {"bold": 1, "dim": 2, "red": 31, "green": 32, "yellow": 33, "blue": 34, "magenta": 35, "cyan": 36}
"""Style -> its ANSI code."""


def draw(document: Document, *, color: bool = False, unicode: bool = True) -> str:
    """`document` as lines, each ended by a newline; parts are set apart by an empty line.

    Args:
        color: headings bold, remarks dim (ANSI); the text is the same without.
        unicode: False leaves out everything that is not ASCII in what this module draws itself.
    """
    pen = _Pen(color, unicode)
    parts = [pen.part(part) for part in document]
    return "\n".join("".join(f"{line.rstrip()}\n" for line in lines) for lines in parts if lines)


class _Pen:
    """Draws the parts of a document as lines."""

    def __init__(self, color: bool, unicode: bool) -> None:
        self.color = color
        self.unicode = unicode

    def part(self, part: Part) -> list[str]:
        if isinstance(part, Title):
            detail = clean(part.detail)
            return [self.style(clean(part.text), "bold") + (" " * GAP + self.style(detail, "dim") if detail else "")]
        if isinstance(part, Warnings):
            return [f"{self.style('warning:', 'yellow')} {clean(line)}" for line in part.lines]
        if isinstance(part, KeyValues):
            lines = self.key_values(part)
        elif isinstance(part, Grid):
            lines = self.grid(part)
        elif isinstance(part, Bar):
            lines = self.bar(part)
        elif isinstance(part, Notes):
            lines = self.notes(part)
        else:
            from kvplan.render.svg import numbers

            return self.part(numbers(part))
        if not part.title or not lines:
            return lines
        return [self.style(clean(part.title), "bold"), *(f"{' ' * _INDENT}{line}" for line in lines)]

    def style(self, text: str, style: str) -> str:
        """`text` in a style, where colour is wanted and there is something to see."""
        return f"\033[{_CODES[style]}m{text}\033[0m" if self.color and style and text.strip() else text

    def row(self, cells: Sequence[str], widths: Sequence[int], rights: Sequence[bool], styles: Sequence[str]) -> str:
        """One line of cells that are aligned and styled by column."""
        parts = []
        for cell, width, right, style in zip(cells, widths, rights, styles, strict=True):
            blanks = " " * (width - width_of(cell))
            parts.append(blanks * right + self.style(cell, style) + blanks * (not right))
        return (" " * GAP).join(parts)

    def key_values(self, part: KeyValues) -> list[str]:
        """Label, value and remark; a long value without a remark does not push the other remarks away."""
        rows = [[clean(cell) for cell in (*row, "")[:3]] for row in part.rows]
        label = max((width_of(row[0]) for row in rows), default=0)
        value = max((width_of(row[1]) for row in rows if row[2] or part.right), default=0)
        rights, styles = (False, part.right, False), ("", "bold", "dim")
        return [self.row(row, (label, value, 0), rights, styles) for row in rows]

    def grid(self, part: Grid) -> list[str]:
        heads = [clean(column.title) for column in part.columns]
        rows = [[clean(cell) for cell in row] for row in part.rows]
        widths = [max(map(width_of, cells)) for cells in zip(heads, *rows, strict=True)]
        rights, plain = [column.right for column in part.columns], [""] * len(heads)
        lines = [self.row(heads, widths, rights, ["bold"] * len(heads))]
        lines += [self.row(row, widths, rights, plain) for row in rows]
        return lines + ([self.style(clean(part.note), "dim")] if part.note else [])

    def bar(self, part: Bar) -> list[str]:
        drawn = fills(part, BAR_CELLS, unicode=self.unicode)
        lines = ["".join(self.style(fill.mark * fill.cells, fill.style) for fill in drawn)]
        limit = limit_line(part, BAR_CELLS, unicode=self.unicode)
        if limit:
            lines.append(self.style(limit, "red"))
        rows = [(fill.mark, clean(fill.segment.label), clean(fill.segment.text), fill.percent) for fill in drawn]
        widths = [max(map(width_of, cells)) for cells in zip(*rows, strict=True)]
        for row, fill in zip(rows, drawn, strict=True):
            lines.append(self.row(row, widths, (False, False, True, True), (fill.style, "", "", "")))
        return lines

    def notes(self, part: Notes) -> list[str]:
        return [clean(line) for line in part.lines]

"""Plain aligned text: one line per fact, never wrapped, fit for grep, a log and a pipe.

`Pen` also draws for the terminal (`kvplan.render.table`), where lines end at a width.
"""

from __future__ import annotations

from collections.abc import Sequence

from kvplan.render.grid import (
    ASCII_LIMIT,
    LIMIT,
    Bar,
    Column,
    Document,
    Grid,
    KeyValues,
    Notes,
    Part,
    Title,
    Warnings,
    clean,
    fills,
    limit_at,
    width_of,
)
from kvplan.render.layout import BOLD, DIM, FILLS, GAP, RED, YELLOW, fit, set_row, set_rows, styled, wrap

BAR_CELLS = 64
_INDENT = 2


def draw(document: Document, *, color: bool = False, unicode: bool = True) -> str:
    """`document` as lines, each ended by a newline; parts are set apart by an empty line.

    Args:
        color: headings bold, remarks dim (ANSI); the text is the same without.
        unicode: False leaves out everything that is not ASCII in what this module draws itself.
    """
    return Pen(None, color=color, unicode=unicode).draw(document)


class Pen:
    """Draws the parts of a document as lines.

    Args:
        width: columns of the terminal; None: no line is ever broken.
        rules: a line under the heads of a grid.
        bar_cells: the longest a bar gets.
    """

    def __init__(
        self, width: int | None, *, color: bool, unicode: bool, rules: bool = False, bar_cells: int = BAR_CELLS
    ) -> None:
        self.width = width
        self.color = color
        self.unicode = unicode
        self.rules = rules
        self.bar_cells = bar_cells

    def draw(self, document: Document) -> str:
        parts = [self.part(part) for part in document]
        return "\n".join("".join(f"{line.rstrip()}\n" for line in lines) for lines in parts if lines)

    def part(self, part: Part) -> list[str]:
        if isinstance(part, Title):
            return self.title(part)
        if isinstance(part, Warnings):
            return self.listed(part.lines, "warning:", YELLOW, self.width)
        inner = self.width
        if part.title and inner is not None:
            inner = max(inner - _INDENT, 1)
        if isinstance(part, KeyValues):
            lines = self.key_values(part, inner)
        elif isinstance(part, Grid):
            lines = self.grid(part, inner)
        elif isinstance(part, Bar):
            lines = self.bar(part, inner)
        else:
            lines = self.notes(part, inner)
        if not part.title or not lines:
            return lines
        return [self.style(clean(part.title), BOLD), *(f"{' ' * _INDENT}{line}" for line in lines)]

    def style(self, text: str, style: str) -> str:
        return styled(text, style, self.color)

    def title(self, part: Title) -> list[str]:
        text, detail = clean(part.text), clean(part.detail)
        if self.width is None or width_of(text) + GAP + width_of(detail) <= self.width:
            return [self.style(text, BOLD) + (f"{' ' * GAP}{self.style(detail, DIM)}" if detail else "")]
        lines = [self.style(line, BOLD) for line in wrap(text, self.width)]
        return lines + [self.style(line, DIM) for line in wrap(detail, self.width)]

    def key_values(self, part: KeyValues, width: int | None) -> list[str]:
        remarks = any(len(row) > 2 and row[2] for row in part.rows)
        columns = [Column(""), Column("", right=part.right, wrap=not part.right), Column("", wrap=True)][: 2 + remarks]
        rows = [[clean(cell) for cell in (*row, "")[: len(columns)]] for row in part.rows]
        if remarks and not part.right and width is None:
            return self._loose(rows)
        found = fit(columns, rows, width)
        if found is None:
            return [line for row in rows for cell in row if cell for line in wrap(cell, width)]
        return set_rows(rows, columns, found[0], ("", BOLD, DIM)[: len(columns)], self.color)

    def _loose(self, rows: Sequence[Sequence[str]]) -> list[str]:
        """Key, value and remark where a long value without a remark should not push the others away."""
        label = max(width_of(row[0]) for row in rows)
        value = max(width_of(row[1]) for row in rows if row[2])
        rights, styles = (False, False, False), ("", BOLD, DIM)
        return [set_row([[cell] for cell in row], (label, value, 0), rights, styles, self.color)[0] for row in rows]

    def grid(self, part: Grid, width: int | None) -> list[str]:
        rows = [[clean(cell) for cell in row] for row in part.rows]
        columns, rows, left_out = self._squeezed(part.columns, rows, width)
        notes = [clean(part.note)] if part.note else []
        if left_out:
            notes.append(f"{self.width} columns have no room for: {', '.join(left_out)}; --format text has all")
        note = [self.style(line, DIM) for text in notes for line in wrap(text, width)]
        found = fit(columns, rows, width)
        if found is None:
            return [*self._records(columns, rows, width), *note]
        widths, heads = found
        plain, rights = [""] * len(widths), [column.right for column in columns]
        height = max(map(len, heads), default=0)
        low = [[""] * (height - len(head)) + list(head) for head in heads]
        lines = set_row(low, widths, rights, [BOLD] * len(widths), self.color)
        if self.rules:
            dash = "─" if self.unicode else "-"
            lines.append(self.style((" " * GAP).join(dash * w for w in widths), DIM))
        return [*lines, *set_rows(rows, columns, widths, plain, self.color), *note]

    def _squeezed(
        self, columns: Sequence[Column], rows: list[list[str]], width: int | None
    ) -> tuple[list[Column], list[list[str]], list[str]]:
        """The columns and rows that fit `width`, and the titles of the optional columns left out for it."""
        kept = list(range(len(columns)))
        left_out: list[str] = []
        while fit([columns[i] for i in kept], [[row[i] for i in kept] for row in rows], width) is None:
            optional = [i for i in kept if columns[i].optional]
            if not optional:
                break
            kept.remove(optional[-1])
            left_out.insert(0, columns[optional[-1]].title)
        return [columns[i] for i in kept], [[row[i] for i in kept] for row in rows], left_out

    def _records(self, columns: Sequence[Column], rows: Sequence[Sequence[str]], width: int | None) -> list[str]:
        """A grid too wide for the terminal: one block of labelled lines per row, nothing cut."""
        titles = [clean(column.title) for column in columns]
        pair = [Column(""), Column("", wrap=True)]
        label = max(map(width_of, titles), default=0)
        room = max((width or 0) - label - GAP, 1)
        lines: list[str] = []
        for row in rows:
            lines += [""] * bool(lines)
            lines += set_rows(list(zip(titles, row, strict=True)), pair, (label, room), (DIM, ""), self.color)
        return lines

    def bar(self, part: Bar, width: int | None) -> list[str]:
        cells = self.bar_cells if width is None else min(width, self.bar_cells)
        drawn = fills(part, cells, unicode=self.unicode)
        solid = iter(FILLS * len(drawn))
        styles = [DIM if fill.segment.spare else next(solid) for fill in drawn]
        lines = ["".join(self.style(f.mark * f.cells, s) for f, s in zip(drawn, styles, strict=True))]
        limit = limit_at(part, cells)
        if limit is not None:
            lines.append(self.style(self._limit(clean(part.total_text), limit, cells), RED))
        columns = [Column(""), Column(""), Column("", right=True), Column("", right=True)]
        rows = [[f.mark, clean(f.segment.label), clean(f.segment.text), f.percent] for f in drawn]
        widths = [max((width_of(row[i]) for row in rows), default=0) for i in range(4)]
        for row, style in zip(rows, styles, strict=True):
            lines += set_rows([row], columns, widths, (style, "", "", ""), self.color)
        return lines

    def _limit(self, text: str, at: int, cells: int) -> str:
        """The line that marks where the device ends, its label on the side that has room."""
        mark = LIMIT if self.unicode else ASCII_LIMIT
        if at + 2 + width_of(text) > cells and width_of(text) < at:
            return f"{' ' * (at - 1 - width_of(text))}{text} {mark}"
        return f"{' ' * at}{mark} {text}"

    def notes(self, part: Notes, width: int | None) -> list[str]:
        if width is None:
            return [clean(line) for line in part.lines]
        return self.listed(part.lines, "-", DIM, width)

    def listed(self, sentences: Sequence[str], head: str, style: str, width: int | None) -> list[str]:
        """Sentences behind `head`, set in where they are broken."""
        room = None if width is None else max(width - len(head) - 1, 1)
        lines: list[str] = []
        for sentence in sentences:
            first, *rest = wrap(clean(sentence), room)
            lines.append(f"{self.style(head, style)} {first}")
            lines += [f"{' ' * (len(head) + 1)}{line}" for line in rest]
        return lines

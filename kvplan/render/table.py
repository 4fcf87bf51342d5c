"""The terminal: light tables that use the width they have, a stacked bar, colour where it is wanted.

rich draws them. It is imported when something is drawn, and it sees `Text` objects alone, never markup.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from kvplan.render.grid import (
    GAP,
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
    limit_line,
)

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table
    from rich.text import Text

    from kvplan.render.svg.parts import Picture

MAX_BAR_CELLS = 100
NARROWEST = 16
"""The narrowest that a column of prose is squeezed to."""
_INDENT = 2
_END = "\033[0m"
_TAIL = re.compile(r"(?<! )(?: |\033\[[0-9;]*m)+$", re.MULTILINE)
"""Blanks at the end of a line, styled or not."""


def draw(document: Document, *, width: int, color: bool = False, unicode: bool = True) -> str:
    """`document` for a terminal `width` columns wide.

    Prose is broken over lines; a grid that cannot be squeezed into the width is drawn record by
    record, so that no figure is ever cut.

    Args:
        color: ANSI colours and bold; the text is the same without.
        unicode: False draws with ASCII alone.
    """
    from io import StringIO

    from rich.console import Console

    paper = StringIO()
    console = Console(
        file=paper,
        width=width,
        height=25,  # with a height, rich does not look for a terminal
        color_system="standard" if color else None,
        force_terminal=color,
        no_color=not color,
        force_jupyter=False,
        legacy_windows=False,
    )
    pen = _Pen(width, unicode)
    for part in document:
        drawn = list(pen.part(part))
        if drawn and paper.tell():
            console.print()
        for piece in drawn:
            console.print(piece, soft_wrap=isinstance(part, Notes) and part.verbatim)
    return _TAIL.sub(lambda tail: _END if tail[0].lstrip(" ").startswith(_END) else "", paper.getvalue())


class _Pen:
    """Turns the parts of a document into what rich prints."""

    def __init__(self, width: int, unicode: bool) -> None:
        self.width = width
        self.unicode = unicode

    def part(self, part: Part) -> Iterator[RenderableType]:
        from rich.padding import Padding

        if isinstance(part, Title):
            yield from self.title(part)
        elif isinstance(part, Warnings):
            yield from _listed("warning:", "yellow", part.lines)
        elif not isinstance(part, KeyValues | Grid | Bar | Notes):
            yield from self.picture(part)
        elif isinstance(part, Notes) and part.verbatim:
            yield _text(part.title, "bold")
            yield from (_text(" " * _INDENT + clean(line)) for line in part.lines)
        elif not part.title:
            yield from self.body(part, self.width)
        else:
            body = list(self.body(part, self.width - _INDENT))
            if body:
                yield _text(part.title, "bold")
            for piece in body:
                yield Padding(piece, (0, 0, 0, _INDENT))

    def picture(self, part: Picture) -> Iterator[RenderableType]:
        """A chart as a plot of characters, every other picture as its numbers."""
        from rich.padding import Padding

        from kvplan.render.svg import Chart, numbers

        if not isinstance(part, Chart):
            yield from self.part(numbers(part))
            return
        from kvplan.render.plot import plot

        yield _text(part.title, "bold")
        for line in plot(part, self.width - _INDENT, unicode=self.unicode):
            yield Padding(_joined([_text(run, style) for run, style in line]), (0, 0, 0, _INDENT))

    def title(self, part: Title) -> Iterator[Text]:
        text, detail = _text(part.text, "bold"), _text(part.detail, "dim")
        if detail and text.cell_len + GAP + detail.cell_len <= self.width:
            yield _joined([text, _text(" " * GAP), detail])
        else:
            yield from filter(None, (text, detail))

    def body(self, part: KeyValues | Grid | Bar | Notes, width: int) -> Iterator[RenderableType]:
        if isinstance(part, KeyValues):
            return self.key_values(part, width)
        if isinstance(part, Grid):
            return self.grid(part, width)
        if isinstance(part, Bar):
            return self.bar(part, width)
        return _listed("-", "dim", part.lines)

    def key_values(self, part: KeyValues, width: int) -> Iterator[RenderableType]:
        count = max(map(len, part.rows), default=0)
        columns = [Column(""), Column("", right=part.right, wrap=not part.right), Column("", wrap=True)][:count]
        styles = ("", "bold", "dim")[:count]
        rows = [
            [_text(cell, style) for cell, style in zip((*row, "")[:count], styles, strict=True)] for row in part.rows
        ]
        return _aligned(columns, rows, width)

    def grid(self, part: Grid, width: int) -> Iterator[RenderableType]:
        columns = list(part.columns)
        rows = [[_text(cell) for cell in row] for row in part.rows]
        left_out: list[str] = []
        while not (widths := _widths(columns, rows, width)):
            at = max((i for i, column in enumerate(columns) if column.optional), default=None)
            if at is None:  # records have room for every column
                columns, left_out = list(part.columns), []
                rows = [[_text(cell) for cell in row] for row in part.rows]
                break
            left_out.insert(0, columns.pop(at).title)
            for row in rows:
                del row[at]
        yield self.ruled(columns, rows, widths) if widths else _records(columns, rows)
        if part.note:
            yield _text(part.note, "dim")
        if left_out:
            yield _text(f"{self.width} columns have no room for: {', '.join(left_out)}; --format text has all", "dim")

    def ruled(self, columns: Sequence[Column], rows: Sequence[Sequence[Text]], widths: Sequence[int]) -> Table:
        """A table with heads and a line under them."""
        from rich.box import SIMPLE_HEAD, Box
        from rich.table import Table

        box = SIMPLE_HEAD if self.unicode else Box(str(SIMPLE_HEAD).replace("─", "-"), ascii=True)
        table = Table(
            box=box, show_edge=False, pad_edge=False, padding=(0, GAP - 1, 0, 0), header_style="", border_style="dim"
        )
        return _filled(table, columns, rows, widths)

    def bar(self, part: Bar, width: int) -> Iterator[RenderableType]:
        cells = min(width, MAX_BAR_CELLS)
        drawn = fills(part, cells, unicode=self.unicode)
        yield _joined([_text(fill.mark * fill.cells, fill.style) for fill in drawn])
        limit = limit_line(part, cells, unicode=self.unicode)
        if limit:
            yield _text(limit, "red")
        columns = [Column(""), Column("", wrap=True), Column("", right=True), Column("", right=True)]
        rows = [
            [_text(f.mark, f.style), _text(f.segment.label), _text(f.segment.text), _text(f.percent)] for f in drawn
        ]
        yield from _aligned(columns, rows, width)


def _text(string: str, style: str = "") -> Text:
    """Something to print that is taken literally."""
    from rich.text import Text

    return Text(clean(string), style)


def _joined(pieces: Sequence[Text]) -> Text:
    return _text("").join(pieces)


def _widths(columns: Sequence[Column], rows: Sequence[Sequence[Text]], width: int) -> list[int]:
    """What each column would take of `width`, prose unbroken; empty: they do not fit, however prose is squeezed.

    Heads are broken over lines before prose is, and only prose columns are squeezed.
    """
    heads = [clean(column.title) for column in columns]
    cells = [max((row[i].cell_len for row in rows), default=0) for i in range(len(columns))]
    room = width - GAP * (len(columns) - 1)
    widths = [max(cell, _text(head).cell_len, 1) for cell, head in zip(cells, heads, strict=True)]  # rich: at least 1
    if sum(widths) <= room:
        return widths
    words = [max(_text(word).cell_len for word in head.split(" ")) for head in heads]
    widths = [max(cell, word, 1) for cell, word in zip(cells, words, strict=True)]
    least = [min(size, NARROWEST) if column.wrap else size for size, column in zip(widths, columns, strict=True)]
    return widths if sum(least) <= room else []


def _filled(table: Table, columns: Sequence[Column], rows: Sequence[Sequence[Text]], widths: Sequence[int]) -> Table:
    """`table` with its columns and rows; rich squeezes the columns of prose where they exceed the room."""
    for column, size in zip(columns, widths, strict=True):
        table.add_column(
            _text(column.title, "bold"),
            justify="right" if column.right else "default",
            overflow="fold",
            width=None if column.wrap else size,  # the cells of a column of its own width are never broken
        )
    for row in rows:
        table.add_row(*row)
    return table


def _bare(gap: int = GAP) -> Table:
    """A table without heads and lines."""
    from rich.table import Table

    return Table.grid(padding=(0, gap, 0, 0))


def _aligned(columns: Sequence[Column], rows: Sequence[Sequence[Text]], width: int) -> Iterator[RenderableType]:
    """Rows without heads; where they do not fit, one cell a line."""
    widths = _widths(columns, rows, width)
    if not widths:
        yield from (cell for row in rows for cell in row if cell)
    elif rows:
        yield _filled(_bare(), columns, rows, widths)


def _records(columns: Sequence[Column], rows: Sequence[Sequence[Text]]) -> Table:
    """A grid too wide for the terminal: one block of labelled lines per row, nothing cut."""
    table = _bare()
    for _ in ("label", "value"):
        table.add_column(overflow="fold")
    for number, row in enumerate(rows):
        if number:
            table.add_row()
        for column, cell in zip(columns, row, strict=True):
            table.add_row(_text(column.title, "dim"), cell)
    return table


def _listed(head: str, style: str, sentences: Sequence[str]) -> Iterator[Table]:
    """Sentences behind `head`, set in where they are broken."""
    if sentences:
        table = _bare(gap=1)
        table.add_column(width=len(head))
        table.add_column(overflow="fold")
        for sentence in sentences:
            table.add_row(_text(head, style), _text(sentence))
        yield table

"""GitHub-flavoured Markdown, for a pull request, an issue or a page of documentation."""

from __future__ import annotations

from collections.abc import Sequence

from kvplan.render.grid import (
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
)

_ESCAPES = str.maketrans({c: f"\\{c}" for c in "\\`*[]|~#"} | {"<": "&lt;", ">": "&gt;", "&": "&amp;"})
_BAR_CELLS = 50


def draw(document: Document) -> str:
    """`document` as Markdown; the first title is the top heading, the others stand below it."""
    blocks: list[str] = []
    titled = False
    for part in document:
        blocks += _part(part, "###" if titled else "##")
        titled = titled or isinstance(part, Title)
    return "\n\n".join(blocks) + "\n" if blocks else ""


def _part(part: Part, heading: str) -> list[str]:
    if isinstance(part, Title):
        return [f"{heading} {escape(part.text)}", *([escape(part.detail)] if part.detail else [])]
    if isinstance(part, KeyValues):
        return _headed(part.title, [_key_values(part)] if part.rows else [])
    if isinstance(part, Grid):
        table = _table(part.columns, part.rows)
        return _headed(part.title, [table, *([escape(part.note)] if part.note else [])])
    if isinstance(part, Bar):
        return _headed(part.title, _bar(part))
    if isinstance(part, Notes) and part.verbatim:
        return _headed(part.title, ["\n".join(("```", *map(clean, part.lines), "```"))])
    if isinstance(part, Notes):
        return _headed(part.title, ["\n".join(f"- {escape(line)}" for line in part.lines)] if part.lines else [])
    if not isinstance(part, Warnings):
        from kvplan.render.svg import numbers

        return _part(numbers(part), heading)
    return ["\n>\n".join(f"> **Warning:** {escape(line)}" for line in part.lines)] if part.lines else []


def escape(text: str) -> str:
    """`text` as itself: no markup in it takes effect, no HTML, no table border.

    Underscores stay: inside a word (``fp8_e4m3``) they mean nothing in this dialect; at the edge of one
    they are escaped.
    """
    words = clean(text).translate(_ESCAPES).split(" ")
    return " ".join(f"\\{w}" if w.startswith("_") else w for w in words)


def _headed(title: str, blocks: list[str]) -> list[str]:
    return [f"### {escape(title)}", *blocks] if title and blocks else blocks


def _key_values(part: KeyValues) -> str:
    remarks = any(len(row) > 2 and row[2] for row in part.rows)
    columns = [Column(""), Column("", right=part.right), *([Column("")] if remarks else [])]
    return _table(columns, [(*row, "")[: len(columns)] for row in part.rows])


def _table(columns: Sequence[Column], rows: Sequence[Sequence[str]]) -> str:
    lines = [
        _row([escape(column.title) for column in columns]),
        _row(["--:" if column.right else "---" for column in columns]),
        *(_row([escape(cell) for cell in row]) for row in rows),
    ]
    return "\n".join(lines)


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _bar(bar: Bar) -> list[str]:
    drawn = fills(bar, _BAR_CELLS)
    picture = "".join(fill.mark * fill.cells for fill in drawn)
    limit = limit_at(bar, _BAR_CELLS)
    if limit is not None:
        picture += f"\n{' ' * limit}^ {clean(bar.total_text).replace('`', '')}"
    columns = [Column(""), Column("part"), Column("size", right=True), Column("share", right=True)]
    rows = [(fill.mark, fill.segment.label, fill.segment.text, fill.percent) for fill in drawn]
    return [f"```text\n{picture}\n```", _table(columns, rows)]

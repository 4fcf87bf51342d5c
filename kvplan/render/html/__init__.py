"""A document as one HTML page that stands alone: no network, no script, light and dark, and it prints.

What to call: ``draw(document, title)``. A document is a list of the parts of `kvplan.render.grid` (title, labelled
figures, tables, bars, notes, warnings) and of the pictures of `kvplan.render.svg`, in any order:

- the first `Title` is the page's heading, later ones begin a chapter;
- a part with a title is a section; a `Grid` is a table that scrolls on its own where the screen is narrow;
- a picture is a figure with its note; under it the same numbers as a table, folded on the screen, open in print.
  Pictures that follow each other stand side by side where there is room.

Whatever comes in as text is escaped; control characters are shown as escapes. The page is well-formed as XML too, so
that other programs can read the tables. The same document gives the same bytes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby

from kvplan.render.grid import Bar, Column, Document, Grid, KeyValues, Notes, Part, Title, Warnings
from kvplan.render.html.style import STYLE
from kvplan.render.svg import Bars, Chart, HeatMap, Picture, Piece, Stack, notes, numbers
from kvplan.render.svg import draw as draw_picture
from kvplan.render.svg.elements import element, escape
from kvplan.render.svg.style import rules, variables

__all__ = ["as_picture", "draw"]

_POLICY = "default-src 'none'; style-src 'unsafe-inline'"
"""What a browser may do with the page: apply its own styles, and nothing else."""


def draw(document: Document, title: str = "", *, foot: str = "") -> str:
    """`document` as a page.

    Args:
        title: of the window; empty: the first `Title`.
        foot: the line at the end, such as the program's version.
    """
    title = title or next((part.text for part in document if isinstance(part, Title)), "kvplan")
    head = element(
        "head",
        '<meta charset="utf-8"/>',
        element("meta", http_equiv="Content-Security-Policy", content=_POLICY),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("title", escape(title)),
        element("style", f"\n{variables(':root')}{rules()}{STYLE}"),
    )
    body = element("main", *_parts(document), *([element("footer", escape(foot))] if foot else []))
    page = element("html", head, "\n", element("body", body), lang="en", xmlns="http://www.w3.org/1999/xhtml")
    return f"<!DOCTYPE html>\n{page}\n"


def _parts(document: Document) -> Iterator[str]:
    """The parts one after the other; pictures in a row share a container."""
    figures, titled = 0, False
    for drawn, run in groupby(document, lambda part: as_picture(part) is not None):
        if drawn:
            found = []
            for part in run:
                figures += 1
                if (picture := as_picture(part)) is not None:
                    found.append(_figure(picture, f"figure-{figures}"))
            yield element("div", *found, class_="figures") + "\n"
            continue
        for part in run:
            if isinstance(part, Title):
                yield _title(part, "h2" if titled else "h1")
                titled = True
            else:
                yield _part(part)


def as_picture(part: Part) -> Picture | None:
    """A picture, or a bar of a terminal as one; None for everything else."""
    if isinstance(part, Chart | Bars | HeatMap):
        return part
    if not isinstance(part, Bar):
        return None
    pieces = [Piece(s.label, s.value, s.text, s.spare) for s in part.segments]
    return Bars(part.title, [Stack("", pieces, part.total_text)], "bytes", part.total, part.total_text)


def _title(part: Title, tag: str) -> str:
    detail = element("p", escape(part.detail), class_="detail") if part.detail else ""
    return element("header", element(tag, escape(part.text)), *([detail] if detail else [])) + "\n"


def _part(part: Part) -> str:
    if isinstance(part, KeyValues):
        body = [_key_values(part)] if part.rows else []
    elif isinstance(part, Grid):
        body = [
            _scrolling(_table(part), part.title),
            *([element("p", escape(part.note), class_="note")] * bool(part.note)),
        ]
    elif isinstance(part, Notes) and part.verbatim:
        body = [element("p", element("code", escape(line))) for line in part.lines]
    elif isinstance(part, Notes):
        body = [element("ul", *(element("li", escape(line)) for line in part.lines))] if part.lines else []
    elif isinstance(part, Warnings):
        return _warnings(part.lines)
    else:
        raise TypeError(f"no part of a page: {type(part).__name__}")
    if not body:
        return ""
    title = [element("h3", escape(part.title))] if part.title else []
    return element("section", *title, *body) + "\n"


def _warnings(lines: Sequence[str]) -> str:
    if not lines:
        return ""
    found = (element("p", element("strong", "warning: "), escape(line)) for line in lines)
    return element("aside", *found, role="note") + "\n"


def _key_values(part: KeyValues) -> str:
    rows = []
    for row in part.rows:
        label, value, remark = (*row, "")[:3]
        cells = [element("th", escape(label), scope="row"), element("td", escape(value), class_="value")]
        rows.append(element("tr", *cells, element("td", escape(remark), class_="remark")))
    return element("table", element("tbody", *rows), class_="facts")


def _table(grid: Grid) -> str:
    kinds = [_class(column) for column in grid.columns]
    heads = (
        element("th", escape(column.title) or " ", scope="col", class_=kind)
        for column, kind in zip(grid.columns, kinds, strict=True)
    )
    rows = (
        element(
            "tr",
            *(element("td", escape(c) or " ", class_=kind) for c, kind in zip(row, kinds, strict=True)),
        )
        for row in grid.rows
    )
    return element("table", element("thead", element("tr", *heads)), element("tbody", *rows, "\n"))


def _class(column: Column) -> str | None:
    return "figure" if column.right else "prose" if column.wrap else None


def _scrolling(table: str, label: str) -> str:
    """A table that scrolls by itself, with the keyboard too."""
    return element("div", table, class_="wide", role="region", tabindex=0, aria_label=label or "table")


def _figure(picture: Picture, key: str) -> str:
    said = notes(picture)
    caption = [element("figcaption", escape(said))] if said else []
    grid = numbers(picture)
    twin = element("details", element("summary", "The numbers"), _scrolling(_table(grid), grid.title))
    stacked = isinstance(picture, Bars) and any(len(stack.pieces) > 1 for stack in picture.stacks)
    return element("figure", draw_picture(picture, key), *caption, twin, class_="stacked" if stacked else None)

"""Pictures as SVG: plain data in, the same bytes out on every machine.

Three kinds of picture, all named tuples of `parts`:

- `Chart`: lines, steps, areas and dots (`Series`) over two `Axis`, with lines across (`Mark`: a limit, a ridge) and
  points that are singled out (`Spot`). An axis is linear, or of powers of 2 or 10; its `Unit` says how its ticks are
  written: bytes as GiB, tokens in binary K on scales of two, seconds as ms, everything else in SI prefixes.
- `Bars`: lying bars of one or several `Piece`, with a limit marked across them.
- `HeatMap` (`kvplan.render.heatmap`): one figure over two axes.

What to call:

- ``draw(picture, "figure-1")`` makes one ``<svg>`` element for a page; `kvplan.render.html` puts it into a figure.
- ``document([picture, ...], title)`` makes a file: one SVG, the pictures one below the other.
- ``numbers(picture)`` is the same picture as a table: every number that is drawn, in text.

For example::

    Chart(
        "Cache of one request", Axis("tokens", "tokens", "log2"), Axis("cache per GPU", "bytes"),
        [Series("bf16", [(1024, 2**27), (2048, 2**28)])], marks=[Mark("y", 2**29, "the pool", limit=True)],
    )

A picture follows the reader's light or dark setting, prints in light, carries ``<title>`` and ``<desc>`` for those
who listen, and its labels grow where it is shown small. Nothing in it runs or is fetched. Give a series at most a
few hundred points: each is drawn, and each stands in the table.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from kvplan.render.svg.parts import Axis, Bars, Chart, HeatMap, Mark, Picture, Piece, Series, Spot, Stack

if TYPE_CHECKING:
    from kvplan.render.grid import Grid
    from kvplan.render.svg.frame import Drawn

__all__ = [
    "Axis", "Bars", "Chart", "HeatMap", "Mark", "Picture", "Piece", "Series", "Spot", "Stack", "document", "draw",
    "notes", "numbers",
]  # fmt: skip

_NAMESPACE = "http://www.w3.org/2000/svg"


def _drawn(picture: Picture, key: str) -> Drawn:
    from kvplan.render.svg import bars, chart, heat  # the parts alone serve a terminal's plots: drawing waits

    if isinstance(picture, Chart):
        return chart.draw(picture, key)
    return bars.draw(picture, key) if isinstance(picture, Bars) else heat.draw(picture, key)


def numbers(picture: Picture) -> Grid:
    """The numbers of a picture: of a chart a row for each x, then its marks and spots."""
    from kvplan.render.svg import worded

    return worded.numbers(picture)


def notes(picture: Picture) -> str:
    """What is said under a picture."""
    from kvplan.render.svg import heat

    more = heat.left_out(picture) if isinstance(picture, HeatMap) else ""
    return "; ".join(filter(None, (picture.note, more)))


def draw(picture: Picture, key: str) -> str:
    """One ``<svg>`` element for a page that has the styles of `kvplan.render.html`; without its note.

    Args:
        key: begins the ids in it; another one for every picture of a page.
    """
    from kvplan.render.svg.elements import element, escape, number
    from kvplan.render.svg.frame import WIDTH
    from kvplan.render.svg.worded import described

    drawn = _drawn(picture, key)
    return element(
        "svg",
        element("title", escape(picture.title), id=f"{key}-title"),
        element("desc", escape(described(picture)), id=f"{key}-desc"),
        *drawn.markup,
        xmlns=_NAMESPACE,
        class_="picture",
        role="img",
        aria_labelledby=f"{key}-title {key}-desc",
        viewBox=f"0 0 {WIDTH} {number(drawn.bottom + 6)}",
    )


def document(pictures: Sequence[Picture], title: str) -> str:
    """A whole SVG file with the pictures one below the other, and their notes.

    Args:
        title: of the file, for those who listen.
    """
    from kvplan.render.svg.elements import element, escape, number
    from kvplan.render.svg.frame import WIDTH, foot
    from kvplan.render.svg.style import rules, variables
    from kvplan.render.svg.worded import described

    groups, y = [], 0.0
    for place, picture in enumerate(pictures, 1):
        drawn = _drawn(picture, f"figure-{place}")
        said = foot(notes(picture), drawn.bottom)
        head = element("title", escape(picture.title)) + element("desc", escape(described(picture)))
        groups.append(element("g", head, *drawn.markup, *said.markup, transform=f"translate(0 {number(y)})"))
        y += said.bottom + 28
    style = element("style", f"\n{variables('svg')}{rules()}")
    body = [
        element("title", escape(title), id="title"),
        style,
        element("rect", width=WIDTH, height=y, class_="ground"),
        *groups,
    ]
    attributes = {"aria_labelledby": "title", "viewBox": f"0 0 {WIDTH} {number(y)}", "width": WIDTH, "height": y}
    svg = element("svg", *body, xmlns=_NAMESPACE, class_="picture", role="img", **attributes)
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{svg}\n'

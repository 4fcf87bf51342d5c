"""A picture in words: every number that is drawn as a table, and a sentence for those who listen."""

from __future__ import annotations

from kvplan.render.grid import Column, Grid
from kvplan.render.heatmap import HeatMap
from kvplan.render.svg.heat import drawn_cells
from kvplan.render.svg.parts import Bars, Chart, Picture
from kvplan.render.svg.ticks import spoken


def numbers(picture: Picture) -> Grid:
    """The numbers of a picture: of a chart a row for each x, then its marks and spots."""
    if isinstance(picture, Chart):
        return _chart(picture)
    return _bars(picture) if isinstance(picture, Bars) else _heat(picture)


def _chart(chart: Chart) -> Grid:
    named = any(s.names for s in chart.series)
    columns = [*([Column("")] if named else []), Column(chart.x.label, right=True)]
    columns += [Column(s.label or chart.y.label, right=True) for s in chart.series]
    rows = _named(chart) if named else _joined(chart)
    singled = [(spoken(chart.x.unit, m.at), "", m.label) for m in chart.marks if m.along == "x"]
    singled += [("", spoken(chart.y.unit, m.at), m.label) for m in chart.marks if m.along == "y"]
    singled += [(spoken(chart.x.unit, s.x), spoken(chart.y.unit, s.y), s.label) for s in chart.spots]
    if singled:
        blank = [""] * (len(chart.series) - 1)
        rows = [[*row, ""] for row in rows]
        rows += [[*([""] if named else []), x, y, *blank, label] for x, y, label in singled]
        columns.append(Column("marked"))
    return Grid(columns, rows, title=chart.title, note=chart.y.label)


def _joined(chart: Chart) -> list[list[str]]:
    """A row for each x of any series."""
    found: dict[float, list[str]] = {}
    for place, series in enumerate(chart.series):
        for x, y in series.points:
            row = found.setdefault(x, [spoken(chart.x.unit, x)] + [""] * len(chart.series))
            row[place + 1] = spoken(chart.y.unit, y)
    return [found[x] for x in sorted(found)]


def _named(chart: Chart) -> list[list[str]]:
    """A row for each point, which has a name."""
    rows = []
    for place, series in enumerate(chart.series):
        for i, (x, y) in enumerate(series.points):
            row = [series.names[i] if i < len(series.names) else "", spoken(chart.x.unit, x)]
            row += [""] * len(chart.series)
            row[place + 2] = spoken(chart.y.unit, y)
            rows.append(row)
    return rows


def _bars(bars: Bars) -> Grid:
    single = all(len(s.pieces) == 1 for s in bars.stacks)
    rows: list[list[str]] = []
    for stack in bars.stacks:
        size = sum(p.value for p in stack.pieces)
        for piece in stack.pieces:
            share = piece.value / (bars.total or size) if (bars.total or size) else 0.0
            cells = [piece.text or spoken(bars.unit, piece.value), spoken("share", share)]
            rows.append([stack.label, cells[0]] if single else [stack.label, piece.label, *cells])
    if bars.total is not None:
        rows.append([bars.total_label, *([] if single else [""]), spoken(bars.unit, bars.total)])
        rows[-1] += [""] * (2 if single else 4 - len(rows[-1]))
        rows[-1] = rows[-1][: 2 if single else 4]
    columns = [Column(""), Column("size", right=True)]
    if not single:
        columns = [Column(""), Column("part"), Column("size", right=True), Column("share", right=True)]
    return Grid(columns, rows, title=bars.title)


def _heat(picture: HeatMap) -> Grid:
    rows_drawn, columns_drawn = drawn_cells(picture)
    heads = (Column(picture.columns[j], right=True) for j in columns_drawn)
    columns = [Column(f"{picture.row_name} / {picture.column_name}"), *heads]
    rows = [[picture.rows[i], *(picture.texts[i][j] for j in columns_drawn)] for i in rows_drawn]
    return Grid(columns, rows, title=picture.title, note=picture.note)


def described(picture: Picture) -> str:
    """What a picture shows, in a sentence: its axes, its lines and their ends."""
    if isinstance(picture, HeatMap):
        return (
            f"{picture.title}: {len(picture.rows)} {picture.row_name} by {len(picture.columns)} {picture.column_name}."
        )
    if isinstance(picture, Bars):
        said = []
        for stack in picture.stacks:
            parts = ", ".join(f"{p.label} {p.text or spoken(picture.unit, p.value)}" for p in stack.pieces)
            said.append(f"{stack.label}: {parts}" if stack.label else parts)
        limit = f" Limit: {picture.total_label}." if picture.total_label else ""
        return "; ".join(said) + "." + limit
    said = [f"{picture.y.label} against {picture.x.label}."]
    for series in picture.series:
        known = [(x, y) for x, y in series.points if y is not None]
        if known:
            (x0, y0), (x1, y1) = known[0], known[-1]
            ends = [f"{spoken(picture.y.unit, y)} at {spoken(picture.x.unit, x)}" for x, y in ((x0, y0), (x1, y1))]
            said.append(
                f"{series.label or picture.y.label}: {ends[0]}" + (f" to {ends[1]}." if len(known) > 1 else ".")
            )
    said += [f"Marked: {m.label} ({spoken(picture.x.unit if m.along == 'x' else picture.y.unit, m.at)})."
             for m in picture.marks]  # fmt: skip
    said += [
        f"Marked: {s.label} ({spoken(picture.x.unit, s.x)}, {spoken(picture.y.unit, s.y)})." for s in picture.spots
    ]
    return " ".join(said)

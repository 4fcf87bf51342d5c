"""Lines, steps, areas and dots over two axes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

from kvplan.render.svg.elements import element, number, shortened, text, width
from kvplan.render.svg.frame import EDGE, LINE, WIDTH, Drawn, Key, heading, legend
from kvplan.render.svg.labels import Box, Labels, Place, along, reach
from kvplan.render.svg.parts import Chart, Mark, Series, Spot
from kvplan.render.svg.style import LIGHT
from kvplan.render.svg.ticks import Scale, scale_of

_HEIGHT = 270
_RIGHT = 22
_TICKS_X, _TICKS_Y = 7, 6
_MOST_DOTS = 40
"""Points of a line up to which each is marked."""


class _Plot(NamedTuple):
    """Where the plot lies, and its scales."""

    left: float
    top: float
    x: Scale
    y: Scale

    @property
    def right(self) -> float:
        return WIDTH - _RIGHT

    @property
    def bottom(self) -> float:
        return self.top + _HEIGHT

    def at(self, x: float, y: float) -> tuple[float, float]:
        """Units of the drawing; far outside of the plot they stay near it."""
        across = min(max(self.x.share(x), -3.0), 4.0)
        up = min(max(self.y.share(y), -3.0), 4.0)
        return self.left + across * (self.right - self.left), self.bottom - up * _HEIGHT


def draw(chart: Chart, key: str) -> Drawn:
    """The chart from the top of the sheet.

    Args:
        key: begins the ids in it, so that several pictures can stand in one document.
    """
    head = heading(chart.title)
    keys = [Key(s.label, _color(chart, s), s.kind in ("line", "step")) for s in chart.series if s.label]
    marked = legend(keys, head.bottom) if keys else Drawn([], head.bottom)
    plot = _plot(chart, marked.bottom + LINE + 20)
    clip, labels = f"{key}-plot", _labels(chart, plot)
    parts = [
        *head.markup,
        *marked.markup,
        text(EDGE, plot.top - 18, shortened(chart.y.label, WIDTH - 2 * EDGE), class_="quiet"),
        element("clipPath", element("rect", x=plot.left, y=plot.top - 2, width=plot.right - plot.left,
                                    height=_HEIGHT + 4), id=clip),
        *_grid(plot),
        *_across(chart, plot),
        element("g", *(m for s in chart.series for m in _series(chart, s, plot)), clip_path=f"url(#{clip})"),
        *_marks(chart.marks, plot, labels),
        *_dots(chart, plot, labels),
        *_spots(chart.spots, plot, labels),
        text((plot.left + plot.right) / 2, plot.bottom + 2 * LINE + 2, chart.x.label, anchor="middle", class_="quiet"),
    ]  # fmt: skip
    return Drawn(parts, plot.bottom + 2 * LINE + 12)


def _color(chart: Chart, series: Series) -> int:
    place = next(i for i, s in enumerate(chart.series) if s is series)
    return (place if series.color is None else series.color) % len(LIGHT)


def _plot(chart: Chart, top: float) -> _Plot:
    points = [(x, y) for s in chart.series for x, y in s.points]
    across = [x for x, _ in points] + [s.x for s in chart.spots]
    up = [y for _, y in points if y is not None] + [s.y for s in chart.spots]
    for mark in chart.marks:
        if mark.along == "x":
            across.append(mark.at)
        else:
            up.append(mark.at)
    x, y = scale_of(chart.x, across, _TICKS_X), scale_of(chart.y, up, _TICKS_Y)
    left = EDGE + 10 + max((width(label) for _, label in y.ticks), default=0)
    return _Plot(left, top, x, y)


def _grid(plot: _Plot) -> Iterator[str]:
    for value, label in plot.y.ticks:
        _, y = plot.at(plot.x.low, value)
        yield element("line", x1=plot.left, y1=y, x2=plot.right, y2=y, class_="rule")
        yield text(plot.left - 8, y + 5, label, anchor="end", class_="quiet")
    yield element("line", x1=plot.left, y1=plot.bottom, x2=plot.right, y2=plot.bottom, class_="axis")


def _across(chart: Chart, plot: _Plot) -> Iterator[str]:
    """Ticks of the level axis; every second one where they would touch."""
    ticks = plot.x.ticks
    room = (plot.right - plot.left) / max(1, len(ticks) - 1)
    stride = 1 + int(max((width(label) for _, label in ticks), default=0) + 6 > room)
    for value, label in ticks[::stride]:
        x, _ = plot.at(value, plot.y.low)
        yield element("line", x1=x, y1=plot.bottom, x2=x, y2=plot.bottom + 5, class_="axis")
        at = min(x, WIDTH - 2 - width(label) / 2)
        yield text(at, plot.bottom + LINE, label, anchor="middle", class_="quiet")


def _series(chart: Chart, series: Series, plot: _Plot) -> Iterator[str]:
    """Its lines and areas, a piece for every run without a gap."""
    if series.kind == "dots":
        return
    color = _color(chart, series)
    for run in _runs(series):
        places = [plot.at(x, y) for x, y in run]
        if series.kind == "step":
            places = _stepped(places)
        path = "M" + "L".join(f"{number(x)} {number(y)}" for x, y in places)
        if series.kind == "area":
            closed = f"{path}L{number(places[-1][0])} {number(plot.bottom)}L{number(places[0][0])} "
            yield element("path", d=f"{closed}{number(plot.bottom)}Z", class_=f"area f{color}")
        yield element("path", d=path, class_=f"line p{color}")
        if len(run) == 1 or (series.kind == "line" and len(series.points) <= _MOST_DOTS):
            yield from (element("circle", cx=x, cy=y, r=2.8, class_=f"f{color}") for x, y in places)


def _runs(series: Series) -> Iterator[list[tuple[float, float]]]:
    run: list[tuple[float, float]] = []
    for x, y in series.points:
        if y is not None:
            run.append((x, y))
        elif run:
            yield run
            run = []
    if run:
        yield run


def _stepped(places: list[tuple[float, float]]) -> list[tuple[float, float]]:
    found = places[:1]
    for (_, before), (x, y) in pairwise(places):
        found += [(x, before), (x, y)]
    return found


def _labels(chart: Chart, plot: _Plot) -> Labels:
    points: list[tuple[float, float]] = []
    for series in chart.series:
        for run in _runs(series):
            places = [plot.at(x, y) for x, y in run]
            if series.kind == "step":
                places = _stepped(places)
            points += places if series.kind == "dots" else along(places)
    points += [plot.at(s.x, s.y) for s in chart.spots]
    for mark in chart.marks:
        points += along(_line_of(mark, plot))
    return Labels(Box(plot.left, plot.top - 14, WIDTH - 2, plot.bottom), points)


def _dots(chart: Chart, plot: _Plot, labels: Labels) -> Iterator[str]:
    named: list[tuple[str, list[Place]]] = []
    for series in chart.series:
        if series.kind != "dots" and not series.names:
            continue
        color = _color(chart, series)
        for i, (x, y) in enumerate(series.points):
            if y is not None:
                across, up = plot.at(x, y)
                yield element("circle", cx=across, cy=up, r=4.5, class_=f"f{color} gap")
                if i < len(series.names) and not series.quiet:
                    named.append((series.names[i], _beside(across, up, series.names[i])))
    yield from labels.place_all(named, "halo")


def _beside(x: float, y: float, words: str) -> list[Place]:
    """Places for the label of a point: beside it, else across above or below."""
    beside: list[Place] = [
        (x + side * 9, y + down, "start" if side > 0 else "end")
        for down in (-8, 19, 5, 36, -25)
        for side in (1, -1)
    ]  # fmt: skip
    long = reach(words)
    return beside + [(x - share * long, y + down, "start") for down in (-10, 21, -25, 36) for share in (0.5, 0.3, 0.7)]


def _spots(spots: Sequence[Spot], plot: _Plot, labels: Labels) -> Iterator[str]:
    for spot in spots:
        x, y = plot.at(spot.x, spot.y)
        yield element("circle", cx=x, cy=y, r=5, class_="spot")
        yield labels.place(spot.label, _beside(x, y, spot.label), "halo")


def _line_of(mark: Mark, plot: _Plot) -> list[tuple[float, float]]:
    """Both ends of a line across."""
    if mark.along == "y":
        _, y = plot.at(plot.x.low, mark.at)
        return [(plot.left, y), (plot.right, y)]
    x, _ = plot.at(mark.at, plot.y.low)
    return [(x, plot.top), (x, plot.bottom)]


def _marks(marks: Sequence[Mark], plot: _Plot, labels: Labels) -> Iterator[str]:
    """Lines across, each with its label."""
    for mark in marks:
        line, label = ("end", "ends halo") if mark.limit else ("mark", "quiet halo")
        (x0, y0), (x1, y1) = _line_of(mark, plot)
        yield element("line", x1=x0, y1=y0, x2=x1, y2=y1, class_=line)
        if mark.along == "y":
            ends = [(x0 + 6, "start"), (x1 - 4, "end")]
            ends += [(x0 + (x1 - x0) * share, "start") for share in (0.2, 0.4, 0.6)]
            places = [(x, y0 + down, end) for down in (-6, 17) for x, end in ends]
        else:
            rows = [plot.top + 14 + row * LINE for row in range(int(_HEIGHT / LINE))]
            places = [(x0 + side * 6, y, "start" if side > 0 else "end") for y in rows for side in (1, -1)]
        yield labels.place(mark.label, places, label)

"""The pictures as data. They know nothing of what they show: numbers, labels and units come in, each of one kind.

A picture's labels may come from anywhere; whoever draws escapes them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple, TypeAlias

from kvplan.render.heatmap import HeatMap

__all__ = [
    "Axis", "Bars", "Chart", "HeatMap", "Mark", "Picture", "Piece", "Series", "Spot", "Stack", "Unit",
]  # fmt: skip

Unit: TypeAlias = Literal["number", "count", "tokens", "bytes", "seconds", "rate", "flops", "share", "usd"]
"""How numbers of an axis are written (`kvplan.render.svg.ticks`): ``tokens`` as ``count``, with K for 1,024 where the
scale is of powers of two; ``bytes`` as KiB to TiB; ``seconds`` as us to s; ``rate`` and ``flops`` with SI prefixes;
``share`` of 1 in per cent; ``usd`` as dollars."""


class Axis(NamedTuple):
    """One axis of a chart."""

    label: str
    """What is along it, and per what: ``cache per GPU``."""
    unit: Unit = "number"
    scale: Literal["linear", "log2", "log10"] = "linear"
    low: float | None = None
    """Where it begins; None: at zero, or on a log scale at the least value."""
    high: float | None = None
    """Where it ends; None: at a round number that holds every value."""


class Series(NamedTuple):
    """Points that belong together, in the order in which they are joined."""

    label: str
    points: Sequence[tuple[float, float | None]]
    """(x, y); y None: there is no value, and the line has a gap."""
    kind: Literal["line", "step", "area", "dots"] = "line"
    """``step`` holds a value until the next x; ``area`` is filled down to the axis; ``dots`` are not joined."""
    color: int | None = None
    """Which colour of the palette; None: by its place in the chart."""
    names: Sequence[str] = ()
    """One for each point, which is then marked, with its name beside it; empty: none."""
    quiet: bool = False
    """Names are in the table alone."""


class Mark(NamedTuple):
    """A line across the chart: a limit, a ridge, a knee."""

    along: Literal["x", "y"]
    """``x``: an upright line at this x; ``y``: a level one."""
    at: float
    label: str
    limit: bool = False
    """Something ends here (drawn in the warning colour)."""


class Spot(NamedTuple):
    """One point that is singled out, with its label."""

    x: float
    y: float
    label: str


class Chart(NamedTuple):
    """Lines, steps, areas or dots over two axes."""

    title: str
    x: Axis
    y: Axis
    series: Sequence[Series]
    marks: Sequence[Mark] = ()
    spots: Sequence[Spot] = ()
    note: str = ""
    """What is said under the picture."""


class Piece(NamedTuple):
    """One part of a stacked bar."""

    label: str
    value: float
    text: str = ""
    """The value as it is printed; empty: by the unit of the bars."""
    spare: bool = False
    """Nothing is here: unused memory."""


class Stack(NamedTuple):
    """One bar, its pieces from left to right."""

    label: str
    pieces: Sequence[Piece]
    text: str = ""
    """What stands at its end; empty: the sum of the pieces."""


class Bars(NamedTuple):
    """Lying bars, one below the other; pieces of the same label have the same colour in all of them."""

    title: str
    stacks: Sequence[Stack]
    unit: Unit = "number"
    total: float | None = None
    """A limit that is marked across all bars: the memory of a device."""
    total_label: str = ""
    note: str = ""


Picture: TypeAlias = Chart | Bars | HeatMap

"""The pictures of a sweep and of a comparison: lines over one axis of numbers, heat maps over two, else bars."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from kvplan.render.heatmap import FAR
from kvplan.render.svg.parts import Axis, Bars, Chart, Picture, Piece, Series, Stack, Unit
from kvplan.render.sweep_table import heading, shown, size_of, sweep_map

Plain = Mapping[str, Any]

MOST_PICTURES = 6
MOST_BARS = 40
_SIGN = "! and a cut corner"
_CHOSEN = (
    "capacity.requests", "capacity.max_concurrency", "kv.bytes_per_sequence", "decode.tokens_per_second",
    "decode.seconds_per_step", "kv.bytes_per_request",
)  # fmt: skip
"""Figures of which pictures are made, where none was asked for."""


def unit_of(name: str) -> Unit:
    """What a setting or a figure is counted in, by its name."""
    last = name.rpartition(".")[2]
    if "bytes" in last or last == "gpu_memory":
        return "bytes"
    if last.startswith("seconds"):
        return "seconds"
    if "per_second" in last:
        return "rate"
    if last.endswith(("tokens", "_len", "size")):
        return "tokens"
    return "count" if last in ("concurrency", "requests", "num_blocks", "max_num_seqs") else "number"


def sweep_pictures(
    title: str,
    names: Sequence[str],
    values: Sequence[Sequence[Any]],
    figures: Sequence[str],
    cells: Sequence[Plain],
    *,
    asked: bool,
) -> list[Picture]:
    """A picture for each figure, the first few.

    Args:
        title: stands before the name of the figure.
        names: of the axes.
        values: of each axis.
        cells: of all combinations.
        asked: somebody chose the figures.
    """
    wanted = figures if asked else [name for name in _CHOSEN if name in figures]
    wanted = [f for f in wanted if any(size_of(cell[f]) is not None for cell in cells)]
    if not asked:
        wanted = [f for f in wanted if len({cell[f] for cell in cells}) > 1] or wanted
    wanted = wanted[:MOST_PICTURES]
    if len(names) == 2:
        return [sweep_map(f"{title}: {heading(f)}", values, names, f, cells, sign=_SIGN) for f in wanted]
    numeric = len(names) == 1 and all(size_of(v) is not None and not isinstance(v, bool) for v in values[0])
    if numeric and len(values[0]) > 2:
        return [_line(title, names[0], f, cells) for f in wanted]
    return [_bars(f"{title}: {heading(f)}", names, f, cells) for f in wanted]


def _line(title: str, axis: str, figure: str, cells: Sequence[Plain]) -> Chart:
    points = [(float(cell[axis]), size_of(cell[figure])) for cell in sorted(cells, key=lambda cell: cell[axis])]
    low, high = points[0][0], points[-1][0]
    wide = low > 0 and high > FAR * low
    x = Axis(f"{heading(axis)}{' (K = 1,024)' if wide else ''}", unit_of(axis), "log2" if wide else "linear")
    known = [v for _, v in points if v is not None]
    far = min(known) > 0 and max(known) > FAR * min(known)
    y = Axis(heading(figure), unit_of(figure), "log10" if far and unit_of(figure) != "bytes" else "log2" if far else
             "linear")  # fmt: skip
    return Chart(f"{title}: {heading(figure)}", x, y, [Series("", points)])


def _bars(title: str, names: Sequence[str], figure: str, cells: Sequence[Plain]) -> Bars:
    stacks = []
    for cell in cells[:MOST_BARS]:
        label = ", ".join(shown(name, cell[name]) for name in names)
        text = cell["refused"] or shown(figure, cell[figure])
        stacks.append(Stack(label, [Piece("", size_of(cell[figure]) or 0.0, text)], text))
    more = len(cells) - len(stacks)
    note = f"{more:,} more plans: --format csv has all" if more > 0 else ""
    return Bars(title, stacks, unit_of(figure), note=note)


def compare_pictures(payload: Mapping[str, Any]) -> list[Picture]:
    """Bars of each figure, a bar for each variant (the object that ``compare --json`` prints)."""
    names, rows = list(payload["axes"]), payload["rows"]
    found: list[Picture] = []
    for figure in payload["figures"]:
        if any(size_of(row[figure]) is not None and not isinstance(row[figure], bool) for row in rows):
            found.append(_bars(_COMPARED.get(figure) or heading(figure), names, figure, rows))
    return found


_COMPARED = {
    "kv.bytes_per_1k_tokens": "Cache of 1,000 tokens, unsharded",
    "kv.bytes_per_request": "Cache of one request, unsharded",
    "kv.bytes_per_request_per_gpu": "Reserved for one request on a GPU",
    "capacity.requests": "Requests of prompt + output at once, per replica",
    "capacity.max_concurrency": "Requests of full length at once, per replica",
    "decode.tokens_per_second_per_request": "Tokens per second of one request",
}

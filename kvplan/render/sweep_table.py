"""Cells of a sweep for people: a grid, or what a heat map needs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from kvplan.render.grid import Column, Document, Grid, Title
from kvplan.render.heatmap import HeatMap
from kvplan.render.serving import dollars
from kvplan.render.speed import duration
from kvplan.units import human_bytes

Plain = Mapping[str, Any]


def shown(name: str, value: Any) -> str:
    """One value as people read it: bytes in binary units, seconds in ms, ``-`` for none."""
    last = name.rpartition(".")[2]
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, str):
        return value
    if "bytes" in last or last in ("gpu_memory",):
        return human_bytes(value)
    if last.endswith("bandwidth"):
        return f"{human_bytes(value)}/s"
    if last.startswith("seconds") or last in ("ttft_seconds", "tpot_seconds", "ttft", "tpot"):
        return duration(value)
    if name.startswith("cost."):
        return dollars(value)
    if isinstance(value, float):
        if last.endswith(("utilization", "fraction")):
            return f"{value:g}"
        return f"{value:,.{2 if abs(value) < 1000 else 0}f}"
    return f"{value:,}"


def heading(name: str) -> str:
    """``capacity.max_concurrency`` -> ``max concurrency``; the group stays where the rest says too little."""
    group, _, last = name.rpartition(".")
    words = last.replace("_", " ")
    return f"{group} {words}" if group in ("decode", "prefill", "kv.shared_prefix", "cost") else words


ESSENTIAL = ("capacity.max_concurrency", "capacity.requests", "verdict.fits", "kv.bytes_per_sequence")
"""Figures that a narrow terminal shows too, where none was asked for."""


FITS = "verdict.fits"


def sweep_report(
    title: str, axes: Sequence[str], figures: Sequence[str], cells: Sequence[Plain], more: int, *, asked: bool = True
) -> Document:
    """A row a cell; a column of reasons where some are refused.

    Args:
        more: cells that are not among `cells`.
        asked: somebody chose the figures, so that none may be left out.
    """
    names = [*axes, *figures]
    spare = set() if asked else set(figures).difference(ESSENTIAL)
    columns = [Column(heading(n), right=not _is_text(cells, n), optional=n in spare) for n in names]
    rows = [[shown(n, cell[n]) for n in names] for cell in cells]
    if any(cell["refused"] for cell in cells):
        columns.append(Column("refused", wrap=True))
        for row, cell in zip(rows, cells, strict=True):
            row.append(cell["refused"] or "")
    lengths = "requests: of prompt and output tokens at once; bytes per sequence: of max_model_len"
    left = f"{more:,} more plans: --format csv -o FILE has all" if more else ""
    note = "; ".join(filter(None, (left, lengths if "capacity.requests" in figures else "")))
    return [Title(title), Grid(columns, rows, note=note)]


def sweep_map(
    title: str, axes: Sequence[Sequence[Any]], names: Sequence[str], figure: str, cells: Sequence[Plain],
    *, sign: str = "!",
) -> HeatMap:  # fmt: skip
    """One figure over two axes.

    Args:
        axes: the values of the rows and of the columns.
        names: of the two axes.
        figure: which figure.
        cells: of all combinations, in any order; those that say so (`FITS`) are marked where they do not fit.
        sign: how the note calls the mark.
    """
    found = {(cell[names[0]], cell[names[1]]): cell for cell in cells}
    grid = [[found[row, column] for column in axes[1]] for row in axes[0]]
    refused = sum(cell["refused"] is not None for cell in cells)
    over = [[figure != FITS and cell.get(FITS) is False for cell in row] for row in grid]
    count = sum(map(sum, over))
    notes = [
        f"{sign}: {count:,} of {len(cells):,} plans do not fit" if count else "",
        f"{refused:,} refused: --format csv says why" if refused else "",
    ]
    return HeatMap(
        title=title, row_name=heading(names[0]), column_name=heading(names[1]),
        rows=[shown(names[0], v) for v in axes[0]], columns=[shown(names[1], v) for v in axes[1]],
        texts=[
            [shown(figure, cell[figure]) + "!" * bad for cell, bad in zip(row, bads, strict=True)]
            for row, bads in zip(grid, over, strict=True)
        ],
        values=[[size_of(cell[figure]) for cell in row] for row in grid],
        note="; ".join(filter(None, notes)), over=over if count else (),
    )  # fmt: skip


def _is_text(cells: Sequence[Plain], name: str) -> bool:
    return any(isinstance(cell[name], str) for cell in cells)


def size_of(value: Any) -> float | None:
    """A figure as a number; None for text and where there is none."""
    return None if value is None or isinstance(value, str) else float(value)

"""The picture of ``kvplan fit``: what every way costs against how long a request takes, the front marked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from kvplan.render.fit import layout
from kvplan.render.grid import Document, Grid
from kvplan.render.svg.parts import Axis, Chart, Series, Unit

Plain = Mapping[str, Any]
FRONT = "the front: nothing is both cheaper and faster"

_FAR = 4
"""The largest of some numbers over the least, beyond which a linear axis crowds the small ones."""


def pictured_report(report: Document, plain: Plain) -> Document:
    """The answer with its picture before the first table, for a page."""
    chart = cost_chart(plain)
    at = next((i for i, part in enumerate(report) if isinstance(part, Grid)), len(report))
    return [*report[:at], *([chart] if chart is not None else []), *report[at:]]


def cost_chart(plain: Plain) -> Chart | None:
    """Cost against latency (the object that ``fit --json`` prints); GPUs where nothing has a price; None: no rows."""
    every = _distinct([*plain["front"], *plain["rows"]])
    if not every:
        return None
    priced = [row for row in every if row["usd_per_hour"] is not None]
    unit: Unit = "usd" if priced else "count"
    front = [row for row in plain["front"] if not priced or row["usd_per_hour"] is not None]
    others = [row for row in priced or every if row["flags"] not in {f["flags"] for f in front}]

    def cost(row: Plain) -> float:
        return float(row["usd_per_hour"] if priced else row["gpus"])

    def points(rows: Sequence[Plain]) -> list[tuple[float, float | None]]:
        return [(cost(row), row["request_seconds"]) for row in rows]

    costs, seconds = [cost(row) for row in priced or every], [row["request_seconds"] for row in priced or every]
    label = "dollars an hour, all copies" if priced else "GPUs, all copies (no price is known)"
    return Chart(
        "Cost against latency",
        Axis(label, unit, "log10" if max(costs) > _FAR * min(costs) else "linear"),
        Axis("seconds of a request, from its arrival to its last token", "seconds",
             "log10" if max(seconds) > _FAR * min(seconds) else "linear"),
        [
            Series("other rows", points(others), "dots", 0, [_name(row) for row in others], quiet=True),
            Series(FRONT, points(front), "step", 1, [_name(row) for row in front]),
        ],
        note=_without(every, priced),
    )  # fmt: skip


def _distinct(rows: Sequence[Plain]) -> list[Plain]:
    return list({(row["flags"], row["copies"]): row for row in rows}.values())


def _name(row: Plain) -> str:
    shape = f" {found}" if (found := layout(row)) != "-" else ""
    return f"{row['gpus']:,} x {row['gpu']}{shape}, {row['weights']}"


def _without(every: Sequence[Plain], priced: Sequence[Plain]) -> str:
    """Which rows have no place in the picture."""
    missing = list(dict.fromkeys(row["gpu"] for row in every if row["usd_per_hour"] is None))
    if not priced or not missing:
        return ""
    return f"not in the picture, for no price is known (--price ID=USD): {', '.join(missing)}"

"""What ``sweep --format json`` is: the grid, and a row for each of its plans."""

from __future__ import annotations

from typing import Any, NamedTuple

SCHEMA = "kvplan.sweep/1"


class SweepDocument(NamedTuple):
    """A grid of plans; the rows are written as they are computed."""

    schema: str
    plans: int
    """Rows of the whole grid."""
    axes: dict[str, list[Any]]
    """Setting -> its values, in the order of the columns."""
    figures: tuple[str, ...]
    """Names of the figures, in the order of the columns."""
    rows: tuple[dict[str, Any], ...]
    """Axis or figure -> value (None: no such figure); ``refused``: why there is no plan, else None."""

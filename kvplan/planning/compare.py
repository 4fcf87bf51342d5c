"""Variants side by side: models, formats, attention, engines or layouts, each a plan of its own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from kvplan.errors import InputError
from kvplan.planning.sweep import Lookup, Sweep
from kvplan.planning.sweep_axes import Axis

SCHEMA = "kvplan.compare/1"
MAX_VARIANTS = 64
THOUSAND, REQUEST = "kv.bytes_per_1k_tokens", "kv.bytes_per_request"
FIGURES = (
    THOUSAND, REQUEST, "kv.bytes_per_request_per_gpu", "capacity.requests", "capacity.max_concurrency",
    "decode.tokens_per_second_per_request", "verdict.fits",
)  # fmt: skip


class Comparison(NamedTuple):
    """The variants, in the order in which they were named."""

    schema: str
    axes: dict[str, list[Any]]
    """Setting -> its values, as they were named."""
    figures: tuple[str, ...]
    rows: tuple[dict[str, Any], ...]
    """Axis or figure -> value (None: no such figure); ``refused``: why there is no plan, else None; ``ratio``: bytes
    of a request, to the first row's."""

    def to_dict(self) -> dict[str, Any]:
        """Plain data, ready for ``json.dumps``."""
        return {**self._asdict(), "figures": list(self.figures), "rows": list(self.rows)}


def compare(lookup: Lookup, axes: Sequence[Axis], figures: Sequence[str] = FIGURES) -> Comparison:
    """Every combination of the values of `axes`, worked out.

    Raises:
        KvplanError: a name or a file that cannot be used, too many variants, or none that is legal.
    """
    grid = Sweep(lookup, axes, figures)
    if grid.size > MAX_VARIANTS:
        raise InputError(
            f"{grid.size:,} variants are too many to stand side by side", where="--vary",
            hint=f"at most {MAX_VARIANTS}, or use kvplan sweep",
        )  # fmt: skip
    rows = [cell for block in grid.blocks() for cell in block.cells()]
    if all(row["refused"] is not None for row in rows):
        raise InputError(f"every variant is refused; the first: {rows[0]['refused']}", hint="vary within what is legal")
    first = next((row[REQUEST] for row in rows if row.get(REQUEST)), None)
    for row in rows:
        size = row.get(REQUEST)
        row["ratio"] = size / first if first and size is not None else None
    named = {axis.setting: [axis.shown(v) for v in axis.values] for axis in axes}
    return Comparison(SCHEMA, named, tuple(figures), tuple(rows))

"""The caches that a local engine lays out, as it names them: cells, K, V and states."""

from __future__ import annotations

from typing import Any

from kvplan.render.grid import Column, Grid
from kvplan.units import human_bytes

Plain = dict[str, Any]


def allocation_part(plan: Plain) -> Grid:
    """A row for each cache and state, their sum, and what lies beside them."""
    laid, engine = plan["allocation"], f"{plan['inputs']['engine']} {plan['inputs']['engine_version']}"
    columns = [
        Column("cache"), Column("cells", right=True), Column("K", right=True), Column("V", right=True),
        Column("in all", right=True), Column("bytes", right=True),
    ]  # fmt: skip
    rows = [_row(pool["kind"], _cells(pool), pool) for pool in laid["pools"]]
    rows += [_row(f"{state['kind']} (states)", _slots(state), state) for state in laid["states"]]
    if len(rows) > 1:
        rows.append(["together", "", "", "", human_bytes(laid["bytes"]), f"{laid['bytes']:,}"])
    below = ["over all GPUs; a cell holds one token in every layer of its kind"]
    if laid["compute_buffer_bytes"] is not None:
        below.append(f"compute buffer {human_bytes(laid['compute_buffer_bytes'])} beside them, modelled")
    if laid["peak_bytes"] is not None:
        below.append(f"while they grow, up to {human_bytes(laid['peak_bytes'])} at once")
    return Grid(columns, rows, title=f"Caches as {engine} lays them out", note="; ".join(below))


def _row(kind: str, cells: str, pool: Plain) -> list[str]:
    split = [human_bytes(pool[name]) if pool[name] else "-" for name in ("k_bytes", "v_bytes")]
    return [kind, cells, *split, human_bytes(pool["bytes"]), f"{pool['bytes']:,}"]


def _cells(pool: Plain) -> str:
    cells, blocks = pool["cells"], pool["blocks"]
    if cells is None:
        return f"{blocks:,} blocks" if blocks is not None else "-"
    return f"{cells:,}" + (f" in {blocks:,} blocks" if blocks is not None else "")


def _slots(state: Plain) -> str:
    return "-" if state["cells"] is None else f"{state['cells']:,} slots"

"""Capacity against the length of the system prompt, as a table."""

from __future__ import annotations

from typing import Any

from kvplan.render.grid import Column, Grid

Plain = dict[str, Any]


def prefix_grid(plan: Plain, per: str) -> Grid:
    """A row for each length (``capacity.by_shared_prefix`` of ``plan --json``).

    Args:
        per: what the title says of replicas.
    """
    inputs = plan["inputs"]
    columns = [
        Column("system prompt", right=True),
        Column("held once", right=True),
        Column("requests at once", right=True),
        Column("each its own copy", right=True),
    ]
    rows = [
        tuple(f"{row[key]:,}" for key in ("prefix_tokens", "shared_tokens", "requests", "requests_unshared"))
        for row in plan["capacity"]["by_shared_prefix"]
    ]
    own = inputs["prompt_tokens"] - inputs["shared_prefix_tokens"]
    note = f"tokens; each request adds {own:,} prompt and {inputs['output_tokens']:,} output tokens of its own"
    return Grid(columns, rows, title=f"Requests by length of the system prompt{per}", note=note)

"""``kvplan trace describe FILE``: what is in a request trace."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from kvplan.cli import flags, output
from kvplan.cli.app import SETTINGS, Group
from kvplan.cli.trace_flags import TRACE, said

if TYPE_CHECKING:
    from kvplan.render.grid import Document

app = typer.Typer(cls=Group, **SETTINGS)


@app.callback()
def trace() -> None:
    """Request traces: what is in them, and what a prefix cache could save."""


class DescribeVerb(flags.PlanVerb):
    """The flags of a trace, none of planning."""

    flags = TRACE


@app.command("describe", cls=DescribeVerb)
def describe(
    ctx: typer.Context,
    file: Annotated[str | None, typer.Argument(metavar="FILE", help="a trace, gzip or not")] = None,
    cache_blocks: Annotated[
        str, typer.Option("--cache-blocks", metavar="N,...", help="hits of an LRU cache of so many blocks of the trace")
    ] = "10000,50000",
) -> int:
    """Counts, percentiles, arrivals, and the ceiling of prefix reuse.

    The ceiling is strict prefix reuse without bound: whole prompts in order of arrival, no timing, a prompt's last
    block counted even when it is partial. An engine shares full blocks only.
    """
    from kvplan.engines.options import parse_count
    from kvplan.planning.plan import to_plain
    from kvplan.simulate.describe import describe as described
    from kvplan.simulate.taking import take_trace

    sizes = [parse_count(text, "--cache-blocks") for text in cache_blocks.split(",") if text.strip()]
    found = take_trace(file, flags.read(ctx), argument="FILE")
    result = described(found, sizes)
    plain = to_plain(result)
    output.of(ctx).emit(lambda: _document(plain), plain, warnings=said(result.notes, result.broken))
    return 0


def _document(plain: dict[str, Any]) -> Document:
    from kvplan.render.simulation import trace_report

    return trace_report(plain)

"""``kvplan diff A B``: two results of ``kvplan check``, and what changed between them."""

from __future__ import annotations

from typing import Annotated

import typer

from kvplan.cli import output
from kvplan.cli.app import SETTINGS, Verb

app = typer.Typer(**SETTINGS)


@app.command(cls=Verb)
def diff(
    ctx: typer.Context,
    old: Annotated[str, typer.Argument(metavar="A", help="a result: kvplan check --write-baseline A")],
    new: Annotated[str, typer.Argument(metavar="B", help="a later one")],
    exit_zero: Annotated[bool, typer.Option("--exit-zero", help="exit with 0 where a rule broke too")] = False,
) -> int:
    """What changed from one result to another: exit 1 where a rule is broken in B that was not in A."""
    from kvplan.check.baseline import diff as compared
    from kvplan.check.baseline import read_result
    from kvplan.check.metrics import shown
    from kvplan.render.check_report import diff_report

    plain = compared(read_result(old, "A"), read_result(new, "B"))
    output.of(ctx).emit(lambda: diff_report(plain, (old, new), shown), plain)
    worse = any(entry["level"] != "warn" for d in plain["deployments"] for entry in d["broken"])
    return 1 if worse and not exit_zero else 0

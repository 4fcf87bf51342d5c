"""``kvplan plan MODEL``: does this deployment fit, how many tokens and requests."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from kvplan.cli import flags, output
from kvplan.cli.app import SETTINGS
from kvplan.errors import InputError

if TYPE_CHECKING:
    from kvplan.deployment import Deployment
    from kvplan.render.grid import Document

app = typer.Typer(**SETTINGS)


@app.command(cls=flags.PlanVerb)
def plan(
    ctx: typer.Context,
    model: Annotated[
        str | None,
        typer.Argument(metavar="MODEL", help="catalog id, hub name, folder, file, or an engine's command line"),
    ] = None,
) -> int:
    """Does this deployment fit, and how many tokens and requests does it hold: the capacity report."""
    from kvplan.deployment import find_deployment, of_log

    given = flags.read(ctx)
    several = given.pop("engine") if is_list(given.get("engine")) else None
    if "from_log" in given:
        deployment = of_log(model, given)
    elif model is None:
        raise InputError("MODEL is missing", hint="`kvplan plan --help` shows what it takes")
    else:
        deployment = find_deployment(model, given)
    if several is not None:
        return _several(ctx, deployment, several)
    result = deployment.plan()
    plain = result.to_dict()
    out = output.of(ctx)
    if deployment.report is not None:
        out.note(deployment.report.note())
    out.emit(lambda: _report(plain), plain, warnings=result.warnings)
    if result.verdict.fits is not False:
        return 0
    if out.format == "json" or out.file is not None:
        from kvplan.render.report import summary_line

        out.note(summary_line(plain))
    return 1


def _several(ctx: typer.Context, deployment: Deployment, engines: str) -> int:
    """The deployment under several engines, side by side."""
    from kvplan.planning.side_by_side import engine_names, side_by_side

    result = side_by_side(deployment.model, deployment.gpu, engine_names(engines), deployment.settings)
    plain, out = result.to_dict(), output.of(ctx)
    if deployment.report is not None:
        out.note(deployment.report.note())
    warnings = dict.fromkeys((*deployment.warnings, *(w for plan in result.plans for w in plan.warnings)))
    out.emit(lambda: _plans_report(plain), plain, warnings=tuple(warnings))
    return result.status


def _plans_report(plain: dict[str, Any]) -> Document:
    from kvplan.render.side_by_side import plans_report

    return plans_report(plain)


def is_list(engine: str | None) -> bool:
    """Whether an ``--engine`` asks for several: a comma list, or ``all``."""
    return engine is not None and ("," in engine or engine.strip().lower() == "all")


def _report(plain: dict[str, Any]) -> Document:
    from kvplan.render.report import plan_report

    return plan_report(plain)

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


class ServedVerb(flags.PlanVerb):
    """Planning flags, those about traffic, targets and prices, and formats with pictures."""

    formats = output.PICTURED

    flags = (*flags.PLAN, *flags.SERVICE)


@app.command(cls=ServedVerb)
def plan(
    ctx: typer.Context,
    model: Annotated[
        str | None,
        typer.Argument(metavar="MODEL", help="catalog id, hub name, folder, file, or an engine's command line"),
    ] = None,
) -> int:
    """Does this deployment fit, and how many tokens and requests does it hold: the capacity report.

    Exit status 0 where it fits, 1 where it does not; of several engines, 0 where it fits under one of them at least.
    """
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
    out.emit(lambda: _report(plain, deployment, out), plain, warnings=result.warnings)
    if result.holds:
        return 0
    if out.format == "json" or out.file is not None:
        from kvplan.render.report import summary_line

        out.note(summary_line(plain))
    return 1


def _several(ctx: typer.Context, deployment: Deployment, engines: str) -> int:
    """The deployment under several engines, side by side."""
    from kvplan.planning.side_by_side import engine_names, nothing_planned, side_by_side

    result = side_by_side(deployment.model, deployment.gpu, engine_names(engines), deployment.settings)
    plain, out = result.to_dict(), output.of(ctx)
    warnings = dict.fromkeys((*deployment.warnings, *(w for plan in result.plans for w in plan.warnings)))
    if not result.plans:
        raise nothing_planned(result)
    if deployment.report is not None:
        out.note(deployment.report.note())
    out.emit(lambda: _plans_report(plain, out), plain, warnings=tuple(warnings))
    return result.status


def _plans_report(plain: dict[str, Any], out: output.Output) -> Document:
    from kvplan.render.side_by_side import plans_pictures, plans_report

    report = plans_report(plain)
    return [*report[:1], *plans_pictures(plain), *report[1:]] if out.format in ("html", "svg") else report


def is_list(engine: str | None) -> bool:
    """Whether an ``--engine`` asks for several: a comma list, or ``all``."""
    return engine is not None and ("," in engine or engine.strip().lower() == "all")


def _report(plain: dict[str, Any], deployment: Deployment, out: output.Output) -> Document:
    """The report, with pictures where the format has them."""
    from kvplan.render.report import plan_report

    report = plan_report(plain)
    if not out.pictured:
        return report
    from kvplan.planning.curves import curves
    from kvplan.render.plan_pictures import pictured_report, terminal_report

    settings = {**deployment.settings, "concurrency": plain["inputs"]["concurrency"]}
    drawn = curves(deployment.model, deployment.gpu, deployment.engine, settings).to_dict()
    return (terminal_report if out.format == "table" else pictured_report)(report, plain, drawn)

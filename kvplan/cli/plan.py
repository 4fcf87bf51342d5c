"""``kvplan plan MODEL``: does this deployment fit, how many tokens and requests."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kvplan.cli import flags, output
from kvplan.cli.app import SETTINGS

if TYPE_CHECKING:
    from kvplan.render.grid import Document

app = typer.Typer(**SETTINGS)


@app.command(cls=flags.PlanVerb)
def plan(
    ctx: typer.Context,
    model: Annotated[str, typer.Argument(metavar="MODEL", help="catalog id (llama-3.1-70b), hub name, folder or file")],
) -> int:
    """Does this deployment fit, and how many tokens and requests does it hold: the capacity report."""
    from kvplan.api import plan as make_plan
    from kvplan.sources import find_gpu, find_model, override_gpu

    given = flags.read(ctx)
    engine = given.pop("engine", "vllm")
    if engine.partition("@")[0] == "vllm" and os.environ.get("VLLM_ALLOW_LONG_MAX_MODEL_LEN") == "1":
        given["allow_long_max_model_len"] = True
    name, memory, bandwidth = (given.pop(key, None) for key in ("gpu", "gpu_memory", "gpu_bandwidth"))
    gpu = override_gpu(find_gpu(name) if name is not None else None, memory, bandwidth)
    read = {key: given.pop(key) for key in ("assume", "hub") if key in given}
    result = make_plan(find_model(model, **read), gpu=gpu, engine=engine, **given)
    plain = result.to_dict()
    out = output.of(ctx)
    out.emit(lambda: _report(plain), plain, warnings=result.warnings)
    if result.verdict.fits is not False:
        return 0
    if out.format == "json" or out.file is not None:
        from kvplan.render.report import summary_line

        out.note(summary_line(plain))
    return 1


def _report(plain: dict[str, Any]) -> Document:
    from kvplan.render.report import plan_report

    return plan_report(plain)

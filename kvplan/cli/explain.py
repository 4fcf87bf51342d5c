"""``kvplan explain MODEL``: where each byte per token comes from."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from kvplan.cli import flags, output
from kvplan.cli.app import SETTINGS
from kvplan.engines.options import Option

if TYPE_CHECKING:
    from kvplan.render.grid import Document
    from kvplan.spec.model import ModelSpec

app = typer.Typer(**SETTINGS)


_SETTINGS = (
    "max_model_len",
    "kv_cache_dtype",
    "weights",
    "mamba_ssm_cache_dtype",
    "assume",
    "hub",
    "prompt_tokens",
    "output_tokens",
)
_NO_CACHE = Option(
    "no_cache", ("--no-cache",), "true", "", "the work that the cache saves, over --prompt-tokens and --output-tokens"
)


class ExplainVerb(flags.PlanVerb):
    """The flags that change a cache's own figures."""

    formats = output.PICTURED
    flags = (*(o for o in flags.PLAN if o.setting in _SETTINGS), _NO_CACHE)


@app.command(cls=ExplainVerb)
def explain(
    ctx: typer.Context,
    model: Annotated[
        str, typer.Argument(metavar="MODEL", help="catalog id, hub name, folder, file, or an engine's command line")
    ],
) -> int:
    """Where each byte per token comes from: the formula, symbol by symbol, with this model's numbers."""
    from kvplan.planning.explain import explain as take_apart
    from kvplan.sources import find_command, find_model

    given, out = flags.read(ctx), output.of(ctx)
    saved = bool(given.pop("no_cache", False))
    command, read = find_command(model), None
    if command is None:
        found = find_model(model, **{key: given.pop(key) for key in ("assume", "hub") if key in given})
    else:
        from kvplan.deployment import of_command

        deployment = of_command(command, given)
        found = deployment.model
        given = {name: value for name, value in deployment.settings.items() if name in _SETTINGS}
        read = deployment.report
    plain = take_apart(found, given, saved=saved).to_dict()
    if read is not None:
        out.note(read.note())
    out.emit(lambda: _report(plain, found, given, out), plain, warnings=found.file_warnings)
    return 0


def _report(plain: dict[str, Any], model: ModelSpec, given: dict[str, Any], out: output.Output) -> Document:
    """The formula, with pictures where the format has them."""
    from kvplan.render.explanation import explain_report

    report = list(explain_report(plain))
    if not out.pictured:
        return report
    from kvplan.planning.curves import curves
    from kvplan.render.explain_pictures import context_chart, explain_pictures

    drawn = curves(model, None, "generic", given).to_dict()
    if out.format == "table":
        sources = report.pop()
        return [*report, context_chart(plain, drawn), sources]
    return [*report[:2], *explain_pictures(plain, drawn), *report[2:]]

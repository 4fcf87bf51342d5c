"""``kvplan explain MODEL``: where each byte per token comes from."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from kvplan.cli import flags, output
from kvplan.cli.app import SETTINGS

if TYPE_CHECKING:
    from kvplan.render.grid import Document

app = typer.Typer(**SETTINGS)


class ExplainVerb(flags.PlanVerb):
    """The flags that change a cache's own figures."""

    flags = tuple(
        o for o in flags.PLAN if o.setting in ("max_model_len", "kv_cache_dtype", "weights", "mamba_ssm_cache_dtype")
    )


@app.command(cls=ExplainVerb)
def explain(
    ctx: typer.Context,
    model: Annotated[str, typer.Argument(metavar="MODEL", help="catalog id, hub name, or a YAML file")],
) -> int:
    """Where each byte per token comes from: the formula, symbol by symbol, with this model's numbers."""
    from kvplan.planning.explain import explain as take_apart
    from kvplan.sources import find_model

    plain = take_apart(find_model(model), flags.read(ctx)).to_dict()
    output.of(ctx).emit(lambda: _report(plain), plain)
    return 0


def _report(plain: dict[str, Any]) -> Document:
    from kvplan.render.explanation import explain_report

    return explain_report(plain)

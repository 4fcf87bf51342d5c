"""``kvplan explain MODEL``: where each byte per token comes from."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from kvplan.cli import flags, output
from kvplan.cli.app import SETTINGS
from kvplan.engines.options import Option

if TYPE_CHECKING:
    from kvplan.render.grid import Document

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

    flags = (*(o for o in flags.PLAN if o.setting in _SETTINGS), _NO_CACHE)


@app.command(cls=ExplainVerb)
def explain(
    ctx: typer.Context,
    model: Annotated[str, typer.Argument(metavar="MODEL", help="catalog id, hub name, folder or file")],
) -> int:
    """Where each byte per token comes from: the formula, symbol by symbol, with this model's numbers."""
    from kvplan.planning.explain import explain as take_apart
    from kvplan.sources import find_model

    given = flags.read(ctx)
    found = find_model(model, **{key: given.pop(key) for key in ("assume", "hub") if key in given})
    saved = bool(given.pop("no_cache", False))
    plain = take_apart(found, given, saved=saved).to_dict()
    output.of(ctx).emit(lambda: _report(plain), plain, warnings=found.file_warnings)
    return 0


def _report(plain: dict[str, Any]) -> Document:
    from kvplan.render.explanation import explain_report

    return explain_report(plain)

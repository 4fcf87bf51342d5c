"""``kvplan compare MODEL MODEL ...``, or one model and ``--vary``: variants side by side."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kvplan.cli import flags, output
from kvplan.cli.app import SETTINGS
from kvplan.errors import InputError, printable

if TYPE_CHECKING:
    from kvplan.render.grid import Document

app = typer.Typer(**SETTINGS)

_LENGTHS = ("prompt_tokens", "output_tokens")


class CompareVerb(flags.PlanVerb):
    """Planning flags but for those that read one plan's figures from elsewhere."""

    formats = output.PICTURED
    flags = tuple(option for option in (*flags.PLAN, *flags.SERVICE) if option.setting != "from_log")


@app.command(cls=CompareVerb)
def compare(
    ctx: typer.Context,
    models: Annotated[
        list[str], typer.Argument(metavar="MODEL...", help="catalog ids, hub names, folders, files or command lines")
    ],
    vary: Annotated[
        list[str] | None,
        typer.Option(
            "--vary", metavar="NAME=VALUES",
            help="any planning flag, or attention: kv-cache-dtype=bf16,fp8  attention=own,mha,mqa  tp=1,2; repeatable",
        ),
    ] = None,
) -> int:  # fmt: skip
    """Variants side by side: cache per 1k tokens and per request, and what a deployment holds."""
    from kvplan.cli.sweep import lookup_of, with_engines
    from kvplan.planning.compare import FIGURES
    from kvplan.planning.compare import compare as set_side_by_side
    from kvplan.planning.sweep_axes import MODEL, Axis, read_axes
    from kvplan.planning.sweep_figures import SERVED
    from kvplan.planning.sweep_traffic import is_served

    given = flags.read(ctx)
    axes = read_axes(with_engines(vary or (), given), ctx.command.flags, given)  # type: ignore[attr-defined]
    names = list(dict.fromkeys(models))
    for name in names:
        if "," in name and " " not in name and not os.path.exists(name):
            raise InputError(
                f"{printable(name, 60)} is read as one model",
                hint=f"part models by spaces: {printable(name.replace(',', ' '))}",
            )
    if len(names) > 1:
        if any(a.setting == MODEL for a in axes):
            raise InputError("models are named and varied", where="--vary model", hint="name them all, without --vary")
        axes.insert(0, Axis(MODEL, names))
    if not axes:
        raise InputError(
            "one model alone", hint=f"name another, or add --vary: kvplan compare {names[0]} --vary tp=1,2"
        )
    served = SERVED if is_served((*given, *(a.setting for a in axes))) else ()
    out = output.of(ctx)
    result = set_side_by_side(lookup_of(names[0], given, out.warn), axes, (*FIGURES, *served))
    plain = result.to_dict()
    title = "side by side" if len(names) > 1 else f"{names[0]}, side by side"
    out.emit(lambda: _report(plain, title, out, _request(given, {a.setting for a in axes})), plain)
    return 0


def _request(given: dict[str, Any], varied: set[str]) -> str:
    """How long one request is, in words."""
    from kvplan.engines.base import Settings

    told = [f"{given.get(name, getattr(Settings, name)):,} {name.removesuffix('_tokens')}" for name in _LENGTHS]
    return "prompt and output tokens" if varied & {*_LENGTHS} else f"{' + '.join(told)} tokens"


def _report(plain: dict[str, Any], title: str, out: output.Output, request: str) -> Document:
    from kvplan.render.compare_table import compare_report

    if out.format not in ("html", "svg"):
        return compare_report(plain, title, unicode=out.unicode, request=request)
    from kvplan.render.sweep_pictures import compare_pictures

    report = compare_report(plain, title, bars=False, request=request)
    return [*report[:1], *compare_pictures(plain), *report[1:]]

"""``kvplan engines``: the engines kvplan plans for, what was read of them, and what they do."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import typer

from kvplan.cli import output
from kvplan.cli.app import SETTINGS, Verb
from kvplan.errors import KvplanError

if TYPE_CHECKING:
    from kvplan.engines.base import Engine
    from kvplan.render.grid import Document

app = typer.Typer(**SETTINGS)


@app.command(cls=Verb)
def engines(
    ctx: typer.Context,
    name: str | None = typer.Argument(None, metavar="[NAME]", help="one engine: its versions and what changed when"),
) -> None:
    """The engines that --engine takes: versions whose source was read, and how each lays out its cache."""
    from kvplan.engines import distinct, get_engine

    found = [get_engine(known) for known in distinct()] if name is None else [_named(name)]
    payload = {"schema": "kvplan.engines/1", "engines": [plain(engine) for engine in found]}
    warnings = found[0].warnings if name is not None else ()
    output.of(ctx).emit(lambda: _document(payload, one=name is not None), payload, warnings=warnings)


def _named(name: str) -> Engine:
    from kvplan.engines import get_engine

    try:
        return get_engine(name)
    except KvplanError as error:
        error.where = None  # NAME was typed, and no flag
        raise


def plain(engine: Engine) -> dict[str, Any]:
    """What is known of an engine, ready for JSON."""
    from kvplan.engines import ENGINES

    aliases = [alias for alias, where in ENGINES.items() if where == ENGINES[engine.name] and alias != engine.name]
    return {
        "name": engine.name,
        "aliases": aliases,
        "version": engine.version,
        "versions": list(engine.versions) or [engine.version],
        "summary": engine.summary,
        "policies": [{"about": about, "rule": rule} for about, rule in engine.policies],
        "settings": sorted(engine.settings),
        "changes": [change._asdict() for change in engine.changes()],
    }


def _document(payload: dict[str, Any], *, one: bool) -> Document:
    from kvplan.render.engines import engine_sheet, engines_list

    return engine_sheet(payload["engines"][0]) if one else engines_list(payload["engines"])

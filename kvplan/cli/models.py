"""``kvplan models``: the catalog, one model of it, and the checking of files people write."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import typer

from kvplan.cli import output
from kvplan.cli.app import SETTINGS, Group, Verb
from kvplan.errors import InputError, UnknownNameError, printable
from kvplan.units import human_bytes, human_count

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kvplan.catalog.summary import ModelSummary
    from kvplan.render.grid import Document

SCHEMA = "kvplan.models/1"

app = typer.Typer(cls=Group, **SETTINGS)


@app.callback()
def models() -> None:
    """The models of the catalog, and model files of your own."""


@app.command("list", cls=Verb)
def list_models(
    ctx: typer.Context,
    text: str | None = typer.Argument(None, metavar="[TEXT]", help="only models with this in id, repository or family"),
    family: str | None = typer.Option(None, "--family", metavar="NAME", help="only this family (llama-3, qwen3, ...)"),
) -> None:
    """One line per model: size, layers, what a token costs in bf16, context, how sure the figures are."""
    from kvplan.catalog.summary import summaries

    found = sorted(summaries(), key=lambda row: (row.family, row.parameters))
    if family is not None:
        families = sorted({row.family for row in found})
        found = [row for row in found if row.family == family.lower()]
        if not found:
            known = f"known: {', '.join(families)}"
            raise UnknownNameError("family", family, families, where="--family", more=known)
    if text is not None:
        found = [row for row in found if _matches(row, text)] or _known_as(text, found)
    payload = {"schema": SCHEMA, "models": [row._asdict() for row in found]}
    output.of(ctx).emit(_list(found), payload)


@app.command("show", cls=Verb)
def show_model(
    ctx: typer.Context,
    name: str = typer.Argument(metavar="MODEL", help="an id, a repository name, or a YAML file"),
) -> None:
    """One model: its layers and what each caches, its parameters by role, its sources."""
    from kvplan.cli import model_sheet
    from kvplan.sources import find_model

    model = find_model(name)
    payload = {"schema": SCHEMA, "models": [model_sheet.payload(model)]}
    output.of(ctx).emit(model_sheet.document(model), payload)


@app.command("lint", cls=Verb)
def lint_models(
    ctx: typer.Context,
    paths: list[str] = typer.Argument(metavar="PATH...", help="model files, or folders of them"),
) -> int:
    """Check model files: exit 0 when all are right, 1 when one is not."""
    found = [(path, _problem(path)) for start in paths for path in _files(start)]
    wrong = sum(1 for _, problem in found if problem is not None)
    out = output.of(ctx)
    files = [{"file": path, "valid": problem is None, **(problem or {})} for path, problem in found]
    out.emit(_verdicts(found), {"schema": SCHEMA, "files": files, "wrong": wrong})
    out.note(f"{len(found)} file{'s' * (len(found) != 1)}, {wrong or 'none'} wrong")
    return 1 if wrong else 0


@app.command("schema", cls=Verb)
def schema(ctx: typer.Context) -> None:
    """The JSON Schema of a model file, for editors and other programs."""
    from kvplan.sources.schema import json_schema

    output.of(ctx).emit_json(json_schema("model"))


def _matches(row: ModelSummary, text: str) -> bool:
    key = text.lower()
    return key in row.id or key in row.family or key in (row.repo or "").lower()


def _known_as(text: str, rows: list[ModelSummary]) -> list[ModelSummary]:
    """The model that `text` is another name of.

    Raises:
        UnknownNameError: no model is called so.
    """
    from kvplan.catalog import resolve_model_name

    found = resolve_model_name(text)
    if found is None:
        names = [name for row in rows for name in (row.id, row.family)]
        raise UnknownNameError("model", text, names, more="`kvplan models list` shows all")
    return [row for row in rows if row.id == found[0]]


def _list(found: list[ModelSummary]) -> Document:
    from kvplan.render.grid import Column, Grid

    columns = (
        Column("id"),
        Column("params", right=True),
        Column("layers", right=True),
        Column("KV per token", right=True),
        Column("context", right=True),
        Column("confidence"),
        Column("state per sequence", right=True, optional=True),
        Column("active", right=True, optional=True),
        Column("family", optional=True),
        Column("repository", optional=True),
    )
    rows = [
        (
            row.id,
            human_count(row.parameters),
            str(row.num_layers),
            human_bytes(row.kv_bytes_per_token) if row.kv_bytes_per_token else "0",
            f"{row.max_position_embeddings:,}" if row.max_position_embeddings else "not stated",
            row.confidence,
            human_bytes(row.fixed_bytes_per_sequence) if row.fixed_bytes_per_sequence else "",
            human_count(row.active_parameters) if row.active_parameters != row.parameters else "",
            row.family,
            row.repo or "",
        )
        for row in found
    ]
    return [Grid(columns, rows, note="KV per token: bf16, whole model, before any window fills; context in tokens")]


def _files(start: str) -> Iterator[str]:
    """The YAML files at or below a path.

    Raises:
        InputError: nothing is there, or a folder without any.
    """
    import os

    if os.path.isdir(start):
        found = sorted(
            os.path.join(folder, name)
            for folder, _, names in os.walk(start)
            for name in names
            if name.lower().endswith((".yaml", ".yml"))
        )
        if not found:
            raise InputError(f"{printable(start)}: no YAML file below", hint="name a folder of model files")
        yield from found
    elif os.path.lexists(start):
        yield start
    else:
        raise InputError(f"{printable(start)}: no such file or folder", hint="name a model file or a folder of them")


def _problem(path: str) -> dict[str, Any] | None:
    """What is wrong with a model file, None where nothing is."""
    from kvplan.errors import SpecError
    from kvplan.sources.yaml_file import load_model_file

    try:
        load_model_file(path)
    except SpecError as error:
        return {"where": error.where, "message": error.message, "hint": error.hint}
    return None


def _verdicts(found: list[tuple[str, dict[str, Any] | None]]) -> Document:
    from kvplan.render.grid import Notes

    lines = []
    for path, problem in found:
        if problem is None:
            lines.append(f"{path}: right")
            continue
        hint = f" ({problem['hint']})" if problem["hint"] else ""
        lines.append(f"{problem['where'] or path}: {problem['message']}{hint}")
    return [Notes(lines)]

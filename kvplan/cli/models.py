"""``kvplan models``: the catalog, one model of it, and the checking of files people write."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from kvplan.cli import output
from kvplan.cli.app import SETTINGS, Group, Verb
from kvplan.errors import UnknownNameError
from kvplan.units import KIB, MIB, human_count

if TYPE_CHECKING:
    from kvplan.catalog.summary import ModelSummary
    from kvplan.render.grid import Document

SCHEMA = "kvplan.models/1"

_ASSUME = typer.Option(
    None, "--assume", metavar="llama-like", help="read an unknown family as plain attention in every layer"
)
_HUB = typer.Option(False, "--hub", help="read it from the Hugging Face hub: its files' headers alone")

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
    output.of(ctx).emit(lambda: _list(found), payload)


@app.command("show", cls=Verb)
def show_model(
    ctx: typer.Context,
    name: str = typer.Argument(metavar="MODEL", help="an id, a repository name, a folder or a file"),
    assume: str | None = _ASSUME,
    hub: bool = _HUB,
) -> None:
    """One model: its layers and what each caches, its parameters by role, its sources."""
    from kvplan.cli import model_sheet
    from kvplan.sources import find_model
    from kvplan.spec.stored import stored_warnings

    model = find_model(name, assume=assume, hub=hub)
    payload = {"schema": SCHEMA, "models": [model_sheet.payload(model)]}
    warnings = [*model.file_warnings, *stored_warnings(model)]
    output.of(ctx).emit(model_sheet.document(model), payload, warnings=warnings)


@app.command("import", cls=Verb)
def import_model(
    ctx: typer.Context,
    source: str = typer.Argument(metavar="SOURCE", help="a config.json, a folder with one, a .gguf file, or a name"),
    assume: str | None = _ASSUME,
    hub: bool = _HUB,
) -> None:
    """Write a YAML spec from a configuration or a checkpoint, for review: what was read, and what it comes to."""
    from kvplan.cli import model_sheet
    from kvplan.sources import read_model
    from kvplan.sources.importing import spec_file
    from kvplan.spec.stored import stored_warnings

    found = read_model(source, assume=assume, hub=hub)
    text, out = spec_file(found, source), output.of(ctx)
    if out.format == "json":
        out.emit_json(
            {"schema": SCHEMA, "models": [model_sheet.payload(found.model)], "fields": found.fields, "yaml": text}
        )
    else:
        out.write(text)
    for warning in (*found.model.file_warnings, *stored_warnings(found.model)):
        out.warn(warning)


@app.command("lint", cls=Verb)
def lint_models(
    ctx: typer.Context,
    paths: list[str] = typer.Argument(
        metavar="PATH...", help="model files (YAML, config.json, .gguf), model folders, or folders of any of them"
    ),
) -> int:
    """Check model files for all that is wrong or odd; exit status 1 when one of them has an error."""
    from kvplan.cli.lint import lint
    from kvplan.sources.model_lint import is_model, lint_model

    return lint(ctx, SCHEMA, paths, lint_model, is_model)


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
        Column("KV KiB per token", right=True),
        Column("context", right=True),
        Column("confidence"),
        Column("state MiB per sequence", right=True, optional=True),
        Column("active", right=True, optional=True),
        Column("family", optional=True),
        Column("repository", optional=True),
    )
    rows = [
        (
            row.id,
            human_count(row.parameters),
            str(row.num_layers),
            f"{row.kv_bytes_per_token / KIB:,.2f}",
            f"{row.max_position_embeddings:,}" if row.max_position_embeddings else "not stated",
            row.confidence,
            f"{row.fixed_bytes_per_sequence / MIB:,.2f}" if row.fixed_bytes_per_sequence else "",
            human_count(row.active_parameters) if row.active_parameters != row.parameters else "",
            row.family,
            row.repo or "",
        )
        for row in found
    ]
    return [Grid(columns, rows, note="KV: in bf16, of the whole model, before any window fills; context in tokens")]

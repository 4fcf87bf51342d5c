"""The engines as a list, and one of them as a sheet."""

from __future__ import annotations

from typing import Any

from kvplan.render.grid import Column, Document, Grid, KeyValues, Part, Title

Plain = dict[str, Any]


def engines_list(engines: list[Plain]) -> Document:
    """One row an engine: its versions and its policy."""
    columns = [Column("engine"), Column("version"), Column("read"), Column("policy", wrap=True)]
    rows = [(engine["name"], engine["version"], _span(engine["versions"]), engine["summary"]) for engine in engines]
    note = "`kvplan engines NAME` shows its rules and what changed when; --engine NAME@VERSION picks a version"
    return [Grid(columns, rows, note=note)]


def _span(versions: list[str]) -> str:
    if len(versions) == 1:
        return versions[0]
    return f"{len(versions)} releases, {versions[0]} to {versions[-1]}"


def engine_sheet(engine: Plain) -> Document:
    """Versions, policies and changes of one engine."""
    parts: list[Part] = [Title(f"{engine['name']} {engine['version']}", engine["summary"])]
    rows = [(policy["about"], policy["rule"]) for policy in engine["policies"]]
    parts.append(Grid([Column("about"), Column("rule", wrap=True)], rows, title="Policy"))
    parts.append(KeyValues([("read", ", ".join(engine["versions"]))], title="Versions"))
    if engine["changes"]:
        parts.append(changes_grid(engine["changes"], "What changed when"))
    return parts


def changes_grid(changes: list[Plain], title: str) -> Grid:
    """One row a change."""
    columns = [Column("since"), Column("what", wrap=True), Column("source", optional=True)]
    return Grid(columns, [(c["since"], c["what"], c["source"]) for c in changes], title=title)

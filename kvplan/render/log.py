"""A start-up log beside the plan, as a document."""

from __future__ import annotations

from typing import Any

from kvplan.render.grid import Column, Document, Grid, KeyValues, Notes, Part, Title
from kvplan.units import gib

Plain = dict[str, Any]


def log_report(plain: Plain) -> Document:
    """The document of one comparison (the object that ``log --json`` prints)."""
    parts: list[Part] = [_title(plain), _verdict(plain)]
    bytes_rows = [row for row in plain["rows"] if row["unit"] == "bytes" and row["kind"] != "token"]
    others = [row for row in plain["rows"] if row["unit"] != "bytes" or row["kind"] == "token"]
    if bytes_rows:
        parts.append(_grid(bytes_rows, "Memory per GPU, in GiB"))
    if others:
        parts.append(_grid(others, "What the printed bytes hold"))
    if plain["refused"]:
        parts.append(Notes(list(plain["refused"]), title="The engine refused to start"))
    settings = _settings(plain)
    if settings:
        parts.append(Notes(settings, title="Settings from the log"))
    return parts


def _title(plain: Plain) -> Title:
    model = plain["model"] or plain["model_in_log"] or "unknown model"
    where = f" on {plain['gpu']}" if plain["gpu"] else ""
    return Title(f"{model}{where}", f"{plain['engine']} {plain['engine_version']}, {plain['file']}")


def _verdict(plain: Plain) -> KeyValues:
    figure, explains = plain["figure"], plain["explains"]
    rows: list[tuple[str, str, str]] = []
    if figure is None:
        rows.append(("compared", "nothing", "the log or the plan lacks the figure"))
    else:
        inside = "inside the bounds" if figure["agrees"] else "outside the bounds"
        rows.append(
            (figure["name"], _percent(figure["relative"]), f"{_amount(figure, 'difference', sign=True)}, {inside}")
        )
    if explains is not None:
        part = f"{explains['share']:.0%} of the difference"
        rows.append(("explained by", explains["name"], f"{explains['bytes'] / 2**30:+.2f} GiB of cache, {part}"))
    if plain["refused"]:
        word = {None: "nothing", True: "fits", False: "does not fit"}[plain["fits"]]
        rows.append(("start", "refused", f"kvplan says: {word}"))
    if plain["fail_over"] is not None:
        word = "holds" if plain["fail_over"]["ok"] else "BROKEN"
        rows.append(("limit", word, f"{plain['fail_over']['limit']:.2%}"))
    return KeyValues(rows)


def _percent(relative: float | None) -> str:
    return "-" if relative is None else f"{relative:+.2%}"


def _amount(row: Plain, key: str, *, sign: bool = False) -> str:
    value = row[key]
    if value is None:
        return "-"
    if row["unit"] == "bytes" and row["kind"] != "token":
        return f"{value / 2**30:+,.2f} GiB" if sign else gib(value)[:-4]
    digits = 2 if row["unit"] == "number" else 0
    return f"{value:+,.{digits}f}" if sign else f"{value:,.{digits}f}"


def _grid(rows: list[Plain], title: str) -> Grid:
    columns = [
        Column("figure", wrap=True), Column("log", right=True), Column("kvplan", right=True), 
        Column("low", right=True, optional=True),
        Column("high", right=True, optional=True), Column("difference", right=True), Column("agrees"),
        Column("log line", right=True, optional=True),
    ]  # fmt: skip
    cells = []
    for row in rows:
        agrees = "" if row["agrees"] is None else "yes" if row["agrees"] else "NO"
        difference = _amount(row, "difference", sign=True).removesuffix(" GiB")
        line = str(row["line"]) if row["line"] else ""
        name = f"{row['name']} ({row['computed']})" if row["computed"] else row["name"]
        cells.append(
            (name, *(_amount(row, key) for key in ("said", "predicted", "low", "high")), difference, agrees, line)
        )
    return Grid(columns, cells, title=title, note="agrees: the log lies between low and high, its rounding included")


def _settings(plain: Plain) -> list[str]:
    """What was read from the log, and where."""
    defaults = plain["inputs"].get("defaults", {})
    marker = f"{plain['file']}"
    return [f"{name} {plain['inputs'].get(name)}: {source.removeprefix(marker).lstrip(', :')}"
            for name, source in defaults.items() if source.startswith(marker)]  # fmt: skip

"""The answer of ``kvplan fit``: from its plain data to a document, or to a row a line."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from kvplan.render.grid import Column, Document, Grid, KeyValues, Notes, Part, Title
from kvplan.render.serving import dollars
from kvplan.render.speed import duration

Plain = Mapping[str, Any]
_NAMED = 6
"""GPUs of a reason that are named; the rest are counted."""


def fit_report(plain: Plain, *, every: bool = False) -> Document:
    """Rows, front and failures (the object that ``fit --json`` prints)."""
    inputs, rows = plain["inputs"], plain["rows"]
    parts: list[Part] = [Title(f"hardware for {inputs['model']}", _workload(inputs)), _verdict(plain)]
    if rows:
        parts.append(_rows(plain, every))
        parts.append(_cost(rows))
    if len(plain["front"]) > 1:
        parts.append(_front(plain["front"]))
    if plain["failures"]:
        parts.append(_failures(plain["failures"]))
    if plain["not_tried"]:
        parts.append(Notes([_left_out(each) for each in plain["not_tried"]], title="Not tried"))
    if said := list(dict.fromkeys(text for row in (*rows, *plain["front"]) for text in row["warnings"])):
        parts.append(Notes(said, title="The engines say"))
    if rows:
        line = f"kvplan plan {shlex.quote(inputs['source'])} {rows[0]['flags']}"
        parts.append(Notes([line], title=_plan_title(rows[0]), verbatim=True))
    return parts


def _plan_title(row: Plain) -> str:
    return (
        "The plan of the first"
        if row["copies"] == 1
        else f"The plan of one of the {row['copies']:,} copies of the first"
    )


def _workload(inputs: Plain) -> str:
    def lengths(name: str, kind: str) -> str:
        spread = f" (cv {inputs[f'{kind}_cv']:.2g})" if inputs[f"{kind}_cv"] else ""
        return f"{inputs[name]:,}{spread}"

    said = [f"{lengths('prompt_tokens', 'prompt')} + {lengths('output_tokens', 'output')} tokens"]
    if inputs["request_rate"] is not None:
        said.append(f"{inputs['request_rate']:.4g} requests/s")
    if inputs["concurrency"] is not None or inputs["request_rate"] is None:
        said.append(f"{inputs['concurrency'] or 1:,} in flight")
    said += [f"{name.upper()} {duration(inputs[name])}" for name in ("ttft", "tpot") if inputs[name] is not None]
    return ", ".join(said)


def _verdict(plain: Plain) -> KeyValues:
    word = "carried" if plain["verdict"]["carries"] else "NOT CARRIED"
    gpus = f"{plain['gpus_feasible']:,} of {plain['gpus_tried']:,} GPUs"
    tried = f"{plain['feasible']:,} of {plain['candidates']:,} ways hold, on {gpus}"
    return KeyValues(
        [("verdict", word, plain["verdict"]["reason"]), ("tried", ", ".join(plain["inputs"]["engines"]), tried)]
    )


def layout(row: Plain) -> str:
    """``tp 4, pp 2``; ``1 GPU``."""
    names = (
        ("tensor_parallel_size", "tp"), ("pipeline_parallel_size", "pp"), ("data_parallel_size", "dp"),
        ("decode_context_parallel_size", "dcp"),
    )  # fmt: skip
    found = [f"{short} {row[name]}" for name, short in names if row[name] > 1]
    return " ".join([*found, *(["ep"] if row["enable_expert_parallel"] else [])]) or "-"


def _rows(plain: Plain, every: bool) -> Grid:
    rows = plain["rows"]
    engines = len({row["engine"] for row in rows}) > 1
    columns = [
        Column("", right=True), Column("GPU"), Column("GPUs", right=True), Column("layout"),
        *([Column("engine")] if engines else []), Column("weights"), Column("cache", optional=True),
        Column("$/h", right=True),
        Column("$/M out", right=True, optional=True), Column("TTFT", right=True), Column("TPOT", right=True),
        Column("margin", right=True, optional=True),
    ]  # fmt: skip
    lines = []
    for row in rows:
        shape = layout(row) if row["copies"] == 1 else f"{row['copies']:,} x ({layout(row)})".replace("(-)", "1")
        lines.append(
            [
                str(row["rank"]), row["gpu"], f"{row['gpus']:,}", shape, *([row["engine"]] if engines else []),
                row["weights"], row["kv_cache"], _money(row["usd_per_hour"]), _money(row["per_million_output_tokens"]),
                *_times(row), f"{round(row['margin'], 2) + 0.0:.0%}",
            ]
        )  # fmt: skip
    what = "ways" if every else "the best way of each GPU"
    left = (plain["feasible"] if every else plain["gpus_feasible"]) - len(rows)
    more = f"; {left:,} more: --top N" if left > 0 else ""
    note = "$ of all copies, -: no price known (--price ID=USD); margin: to the tightest of slots, rate and targets"
    return Grid(columns, lines, title=f"Cheapest first, {what}", note=note + _unreported(rows) + more)


def _cost(rows: Sequence[Plain]) -> Part:
    """Prices with their dates, and why tokens read and written differ."""
    lines = []
    for row in {row["price_source"]: row for row in rows if row["price_source"]}.values():
        gpus = ", ".join(dict.fromkeys(r["gpu"] for r in rows if r["price_source"] == row["price_source"]))
        date = f", {row['price_date']}" if row["price_date"] else ""
        lines.append(f"{gpus}: {row['price_source']}{date}")
    first = rows[0]
    if first["per_million_output_tokens"] is not None and first["per_million_input_tokens"]:
        read, written = first["per_million_input_tokens"], first["per_million_output_tokens"]
        lines.append(
            f"{first['gpu']}: {dollars(read)} a million input tokens, {dollars(written)} a million output tokens "
            f"({written / read:.3g} x): decode reads the weights for every token, prefill once a chunk"
        )
    return Notes(lines or ["no GPU of these has a price in the catalog: --price ID=USD_PER_HOUR"], title="Prices")


def _front(rows: Sequence[Plain]) -> Grid:
    columns = [
        Column("GPU"), Column("GPUs", right=True), Column("layout"), Column("weights"),
        Column("cache", optional=True), Column("$/h", right=True), Column("a request", right=True),
        Column("TTFT", right=True), Column("TPOT", right=True),
    ]  # fmt: skip
    lines = [
        [
            row["gpu"], f"{row['gpus']:,}", layout(row), row["weights"], row["kv_cache"], _money(row["usd_per_hour"]),
            duration(row["request_seconds"]), *_times(row),
        ]
        for row in rows
    ]  # fmt: skip
    note = "nothing is both cheaper and faster than one of these" + _unreported(rows)
    return Grid(columns, lines, title="Cost against latency", note=note)


def _failures(failures: Sequence[Plain]) -> Grid:
    columns = [
        Column("GPUs", right=True),
        Column("why not"),
        Column("nearest"),
        Column("by", wrap=True),
        Column("which", wrap=True, optional=True),
    ]
    lines = []
    for failure in failures:
        near = failure["nearest"]
        where = f"{near['gpu']}, {near['layout']}" if near else "-"
        lines.append(
            [
                f"{len(failure['gpus']):,}",
                failure["reason"],
                where,
                near["text"] if near else "-",
                _named(failure["gpus"]),
            ]
        )
    return Grid(columns, lines, title="GPUs that do not carry it")


def _left_out(each: Plain) -> str:
    name, flag = each["format"], {"weights": "--weights", "cache": "--kv-cache-dtype"}[each["use"]]
    return f"{name} {each['use']}: {each['reason']} on {_named(each['gpus'])}; {flag} {name} tries them"


def _named(gpus: Sequence[str]) -> str:
    more = f" and {len(gpus) - _NAMED:,} more" if len(gpus) > _NAMED else ""
    return ", ".join(gpus[:_NAMED]) + more


def _money(value: float | None) -> str:
    return "-" if value is None else dollars(value)


def _times(row: Plain) -> tuple[str, str]:
    """(TTFT, TPOT), marked where no report stands behind them."""
    mark, step = "" if row["speed_reported"] else "~", row["tpot_seconds"]
    return mark + duration(row["ttft_seconds"]), "-" if step is None else mark + duration(step)


def _unreported(rows: Sequence[Plain]) -> str:
    """What the mark of `_times` says, where there is one."""
    if all(row["speed_reported"] for row in rows):
        return ""
    return "; ~: no report of this engine on such devices stands behind its speed"


def plain_rows(plain: Plain) -> tuple[list[str], list[dict[str, Any]]]:
    """(names, rows of one value a name) for formats of rows."""
    names = _columns(plain["rows"])
    return names, [{name: _value(row, name) for name in names} for row in plain["rows"]]


def _columns(rows: Sequence[Plain]) -> list[str]:
    """Names of a row's figures; those within another in dots."""
    names: list[str] = []
    for name, value in rows[0].items() if rows else ():
        names += [f"{name}.{part}" for part in value] if isinstance(value, dict) else [name]
    return names


def _value(row: Plain, name: str) -> Any:
    outer, _, inner = name.partition(".")
    found = row[outer][inner] if inner else row[outer]
    return "; ".join(found) if isinstance(found, list) else found

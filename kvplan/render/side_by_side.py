"""Several engines side by side: one row each."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kvplan.render.engines import changes_grid
from kvplan.render.grid import Column, Document, Grid, Notes, Part, Title
from kvplan.units import gib

if TYPE_CHECKING:
    from kvplan.render.svg.parts import Picture

Plain = dict[str, Any]


def plans_report(plain: Plain) -> Document:
    """The document of several plans (the object that ``plan --engine A,B --json`` prints)."""
    parts: list[Part] = []
    plans = plain["plans"]
    if plans:
        first = plans[0]
        where = f" on {first['inputs']['gpus']} x {first['inputs']['gpu']}" if first["inputs"]["gpu"] else ""
        count = f"{len(plans)} engines" if len(plans) != 1 else "1 engine"
        parts = [Title(f"{first['model']['id']}{where}", count), _holds(plans), _costs(plans)]
    else:
        parts = [Title("no engine could answer")]
    refused = [f"{r['engine']}: {r['message']}" + (f" ({r['hint']})" if r["hint"] else "") for r in plain["refused"]]
    if refused:
        parts.append(Notes(refused, title="Not planned"))
    if plain["left_out"]:
        lines = [f"{name}: {', '.join(flags)}" for name, flags in plain["left_out"].items()]
        parts.append(Notes(lines, title="Flags that an engine does not have, left out for it"))
    for between in plain["changes"]:
        title = f"What changed between {between['engine']} {between['older']} and {between['newer']}"
        parts.append(changes_grid(between["changes"], title) if between["changes"] else Notes(["nothing"], title=title))
    return parts


def plans_pictures(plain: Plain) -> list[Picture]:
    """Bars of what each engine gives the cache, and of the requests that run in it."""
    from kvplan.render.svg.parts import Bars, Piece, Stack

    plans = plain["plans"]
    if not plans:
        return []
    length = plans[0]["inputs"]["prompt_tokens"] + plans[0]["inputs"]["output_tokens"]
    pools = [(plan, _pool_bytes(plan)) for plan in plans]
    counts = [(plan, _at(plan, length)) for plan in plans]
    held = [Stack(_name(p), [Piece("", size, gib(size))]) for p, size in pools if size is not None]
    run = [Stack(_name(p), [Piece("", n, f"{n:,}")]) for p, n in counts if n is not None]
    found: list[Picture] = []
    if held:
        found.append(Bars("Cache of one GPU", held, "bytes"))
    if run:
        found.append(Bars(f"Requests of {length:,} tokens at once, per replica", run, "count"))
    return found


def _name(plan: Plain) -> str:
    return f"{plan['inputs']['engine']} {plan['inputs']['engine_version']}"


def _number(value: float | None, digits: int = 0) -> str:
    return "-" if value is None else f"{value:,.{digits}f}"


def _at(plan: Plain, tokens: int) -> int | None:
    """Requests of so many tokens that one replica runs."""
    at = plan["capacity"]["at"] if plan["capacity"] else []
    return next((a["requests"] for a in at if a["tokens"] == tokens), None)


def _holds(plans: list[Plain]) -> Grid:
    """What each holds: pool, tokens, requests."""
    length = plans[0]["inputs"]["prompt_tokens"] + plans[0]["inputs"]["output_tokens"]
    columns = [
        Column("engine"), Column("fits"), Column("KV GiB", right=True), Column("tokens held", right=True),
        Column("tokens in log", right=True), Column("limit", right=True), Column("requests there", right=True),
        Column(f"at {length:,}", right=True),
    ]  # fmt: skip
    rows = []
    for plan in plans:
        fits, capacity = plan["verdict"]["fits"], plan["capacity"] or {}
        figures = (capacity.get(key) for key in ("kv_tokens", "engine_reported_tokens"))
        rows.append(
            (
                _name(plan),
                "-" if fits is None else "yes" if fits else "NO",
                _pool(plan),
                *map(_number, figures),
                f"{plan['inputs']['max_model_len']:,}",
                _number(capacity.get("max_concurrency"), 2),
                _number(_at(plan, length)),
            )
        )
    note = "KV GiB per GPU; tokens and requests per replica; limit: the longest request in tokens"
    return Grid(columns, rows, title="What it holds", note=note)


def _pool(plan: Plain) -> str:
    """The cache on a GPU in GiB."""
    size = _pool_bytes(plan)
    return "-" if size is None else gib(size)[:-4]


def _pool_bytes(plan: Plain) -> int | None:
    """The cache on a GPU: what the budget leaves, or what is laid out."""
    if plan["memory"]:
        return int(min(row["kv_bytes"] for row in plan["memory"]))
    return int(plan["allocation"]["bytes"]) if plan["allocation"] else None


def _costs(plans: list[Plain]) -> Grid:
    """What a request costs: reserved, fixed, per token."""
    columns = [
        Column("engine"), Column("reserved GiB per request", right=True), Column("fixed B per request", right=True),
        Column("B per token", right=True), Column("verdict", wrap=True),
    ]  # fmt: skip
    rows = [
        (
            _name(plan),
            gib(plan["kv"]["bytes_per_sequence_per_gpu"], 3)[:-4],
            f"{plan['kv']['fixed_bytes_per_sequence']:,}",
            f"{plan['kv']['bytes_per_token']:,}",
            plan["verdict"]["reason"],
        )
        for plan in plans
    ]
    note = "reserved per GPU for a request of the limit, pages included; fixed and per token over all layers, unsharded"
    return Grid(columns, rows, title="What a request costs", note=note)

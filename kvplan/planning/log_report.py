"""A start-up log held against the plan: term by term, and which term explains the difference.

Two questions are answered apart. What the engine left for the cache is compared with the modelled budget; what
these bytes hold is computed from the bytes that the log prints, so that an error of the budget does not hide one of
the conversion.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from kvplan.engines.log_table import LOCAL, Device, Figure, Share, table_of
from kvplan.errors import InputError, KvplanError
from kvplan.planning.plan import Plan, to_plain
from kvplan.planning.planner import plan_deployment
from kvplan.units import GIB, MIB

if TYPE_CHECKING:
    from kvplan.planning.log_case import Deployment
    from kvplan.sources.logs import Log

SCHEMA = "kvplan.log/1"


SLACK_BYTES = 5 * MIB
"""What the prediction of a sum may miss beyond its bounds: half of the last digit that is shown."""
ROOM_BYTES = 1 << 50
"""A device with room for whatever a local engine lays out, where none is named."""


class Row(NamedTuple):
    """One figure, as the engine printed it and as kvplan predicts it."""

    name: str
    unit: str
    """``bytes``, ``tokens`` or ``number``."""
    said: float | None
    predicted: float | None
    low: float | None
    high: float | None
    difference: float | None
    """Predicted less said."""
    relative: float | None
    """The difference over what was said."""
    agrees: bool | None
    """Whether what was said lies within the bounds, its own rounding included."""
    line: int | None
    computed: str
    """How `said` follows from printed figures, where it is not printed itself."""
    kind: str
    """``device``, ``term`` (part of the budget), ``cache``, ``token`` or ``result``."""


class Explanation(NamedTuple):
    """The term that moves the cache furthest in the direction in which the prediction is off."""

    name: str
    bytes: int
    """What it adds to the predicted cache."""
    share: float
    """Of the whole difference; above 1 where other terms pull the other way."""


class FailOver(NamedTuple):
    """A limit for the difference of the compared figure, and whether it holds."""

    limit: float
    """Share of the printed figure."""
    ok: bool


class LogReport(NamedTuple):
    """What a log says, what kvplan says, and whether they agree."""

    schema: str
    file: str
    engine: str
    engine_version: str
    version_in_log: bool
    model: str | None
    model_in_log: str
    gpu: str | None
    refused: tuple[str, ...]
    """What the engine said when it would not start; empty: it did."""
    fits: bool | None
    """The plan's verdict on the same start."""
    inputs: dict[str, Any]
    said: dict[str, Figure]
    rows: tuple[Row, ...]
    explains: Explanation | None
    figure: Row | None
    """The figure that the verdict is about: bytes for the cache per GPU, or tokens."""
    warnings: tuple[str, ...]
    fail_over: FailOver | None = None

    def to_dict(self) -> dict[str, Any]:
        """The JSON object of ``kvplan log --json``."""
        plain: dict[str, Any] = to_plain(self)
        return plain


def report(log: Log, found: Deployment, *, file: str, figure: str | None = None) -> LogReport:
    """Hold a log against the plan of its deployment.

    Args:
        figure: ``bytes`` or ``tokens``: what the verdict is about; None: bytes where both sides have them.

    Raises:
        KvplanError: the deployment cannot be planned.
    """
    rows: list[Row] = []
    warnings = [*log.warnings, *found.warnings]
    explains, inputs, fits = None, {}, None
    if found.model is not None:
        plan = plan_deployment(found.model, found.gpu, found.engine, found.settings)
        warnings += [w for w in plan.warnings if w not in warnings]
        fits = plan.verdict.fits
        inputs = {**plan.inputs, "defaults": {**plan.inputs["defaults"], **found.origins}}
        if log.engine in LOCAL:
            rows = _local_rows(log, plan, _on_a_device(found) if plan.memory is None else plan)
        else:
            rows, explains = _budget_rows(log, plan)
            if (token := log.figure("token")) is not None:
                rows.append(_row("bytes of a token, per GPU", token, plan.kv.bytes_per_token_per_gpu, kind="token"))
            rows += _conversion_rows(log, found, warnings)
    else:
        rows = [_row(name, fig, None) for name, fig in _said(log).items()]
    base, _, version = found.engine.partition("@")
    chosen = _named(rows, figure)
    return LogReport(
        SCHEMA, file, base, version, bool(log.version), found.model.id if found.model else None, log.model,
        found.gpu.id if found.gpu else None, _refusals(log), fits, inputs, _said(log), tuple(rows), explains,
        chosen, tuple(dict.fromkeys(warnings)),
    )  # fmt: skip


def _refusals(log: Log) -> tuple[str, ...]:
    """What the engine said when it would not start; no bytes for the cache are as good as a word."""
    kv = log.figure("kv")
    if log.run.refusals or kv is None or kv.value > 0 or log.engine in LOCAL:
        return tuple(log.run.refusals)
    return (f"{kv.value / GIB:.2f} GiB are left for the cache",)


def _said(log: Log) -> dict[str, Figure]:
    """Every figure of the log, of the rank that decides."""
    found = {name: log.figure(name) for name in log.run.figures}
    return {name: value for name, value in found.items() if value is not None}


def _row(
    name: str, said: Figure | None, predicted: float | None, low: float | None = None, high: float | None = None,
    *, kind: str = "result", computed: str = "", unit: str = "bytes",
) -> Row:  # fmt: skip
    """A row, its difference and whether it agrees."""
    if said is not None:
        unit = said.unit
        if unit != "number":
            said = said._replace(value=round(said.value))
    low, high = (predicted if bound is None else bound for bound in (low, high))
    if said is None or predicted is None or low is None or high is None:
        value = said.value if said else None
        return Row(
            name, unit, value, predicted, low, high, None, None, None, said.line if said else None, computed, kind
        )
    slack = said.half * 1.001 + (SLACK_BYTES if unit == "bytes" else 0)
    return Row(
        name, unit, said.value, predicted, low, high, predicted - said.value,
        (predicted - said.value) / said.value if said.value else None,
        low - slack <= said.value <= high + slack, said.line or None, computed, kind,
    )  # fmt: skip


def _budget_rows(log: Log, plan: Plan) -> tuple[list[Row], Explanation | None]:
    """Device, budget, every printed share of it, and the cache; per GPU, of the rank with the least cache."""
    kv = log.figure("kv")
    if plan.memory is None:
        return ([_row("KV cache per GPU", kv, None, kind="cache")] if kv else []), None
    rank = min(plan.memory, key=lambda r: r.budget_bytes - sum(t.bytes for t in r.terms))
    charged = any(t.part == "cuda_graph" and t.bytes for t in rank.terms)
    device = Device(rank.total_bytes, rank.budget_bytes, charged)
    table = table_of(log.engine)
    shares = table.shares(log.run, device) if table.shares is not None else []
    total, budget = log.figure("total"), log.figure("budget")
    rows = [_row("device", total, rank.total_bytes, kind="device")] if total else []
    rows.append(_row("budget", budget, rank.budget_bytes, kind="device"))
    terms, left = list(rank.terms), rank.budget_bytes - sum(t.bytes for t in rank.terms)
    for share in shares:
        mine = [t for t in terms if t.name in share.terms] or []
        mine += [t for t in terms if t.part in share.terms and t not in mine and not _elsewhere(t.name, share, shares)]
        terms = [t for t in terms if t not in mine]
        sizes = (sum(t.bytes for t in mine), sum(t.low_bytes for t in mine), sum(t.high_bytes for t in mine))
        rows.append(_row(share.name, share.said, *sizes, kind="term", computed=share.computed))
    for term in terms:
        rows.append(_row(term.name, None, term.bytes, term.low_bytes, term.high_bytes, kind="term"))
    low = rank.budget_bytes - sum(t.high_bytes for t in rank.terms)
    high = rank.budget_bytes - sum(t.low_bytes for t in rank.terms)
    rows.append(_row("KV cache per GPU", kv, left, low, high, kind="cache"))
    return rows, _explain(rows)


def _elsewhere(name: str, share: Share, shares: list[Share]) -> bool:
    """Whether another share lists a term by its own name."""
    return any(name in other.terms for other in shares if other is not share)


def _explain(rows: list[Row]) -> Explanation | None:
    """The row that moves the predicted cache furthest in the direction in which it is off."""
    whole = rows[-1].difference
    if not whole:
        return None
    moves = [(row.name, (1 if row.name == "budget" else -1) * row.difference) for row in rows[:-1]
             if row.difference and (row.kind == "term" or row.name == "budget")]  # fmt: skip
    same = [(name, size) for name, size in moves if size * whole > 0]
    if not same:
        return None
    name, size = max(same, key=lambda m: abs(m[1]))
    return Explanation(name, int(size), size / whole)


def _conversion_rows(log: Log, found: Deployment, warnings: list[str]) -> list[Row]:
    """Blocks, tokens and concurrency of the bytes that the log prints."""
    kv = log.figure("kv")
    needed = log.figure("needed")
    if needed is not None and found.model is not None:
        own = plan_deployment(found.model, found.gpu, found.engine, found.settings).kv.bytes_per_sequence_per_gpu
        return [_row("one request of the limit, per GPU", needed, own)]
    names = (("blocks", "num_blocks", "blocks"), ("kv_tokens", "engine_reported_tokens", "tokens in the log"),
             ("concurrency", "max_concurrency", "requests at the limit"))  # fmt: skip
    printed = {name: log.figure(name) for name, _, _ in names}
    if kv is None or kv.value <= 0 or found.model is None:
        return [_row(f"{title} of these bytes", printed[name], None) for name, _, title in names if printed[name]]
    sizes = [int(kv.value), int(kv.value - kv.half), int(kv.value + kv.half)]
    try:
        plans = [_with_bytes(found, max(1, size)) for size in sizes]
    except KvplanError as error:
        warnings.append(f"what these bytes hold cannot be said: {error}")
        return []
    rows = []
    for name, attribute, title in names:
        values = [getattr(p.capacity, attribute) if p.capacity else None for p in plans]
        unit = "number" if name == "concurrency" else "tokens"
        if values[0] is not None or printed[name] is not None:
            rows.append(_row(f"{title} of these bytes", printed[name], values[0], values[1], values[2], unit=unit))
    return rows


def _with_bytes(found: Deployment, size: int) -> Plan:
    assert found.model is not None  # the caller looked
    return plan_deployment(found.model, found.gpu, found.engine, {**found.settings, "kv_cache_memory_bytes": size})


def _on_a_device(found: Deployment) -> Plan:
    """The plan on a device with room for anything: what a local engine lays out does not go by the device."""
    from kvplan.sources import override_gpu

    assert found.model is not None  # the caller looked
    return plan_deployment(found.model, override_gpu(None, ROOM_BYTES, None), found.engine, found.settings)


def _local_rows(log: Log, plan: Plan, placed: Plan) -> list[Row]:
    """Each cache that the engine prints, the states, and its buffers.

    Args:
        placed: the plan with a device.
    """
    laid = plan.allocation
    if laid is None:
        return []
    caches = [c for c in log.run.caches if c.kind != "state"]
    pools = laid.pools
    rows = []
    if len(caches) == len(pools) and len(pools) > 1:
        for cache, pool in zip(caches, pools, strict=True):
            title = f"{pool.kind} cache, {cache.layers} layers of {cache.cells:,} cells"
            rows.append(_row(title, cache.bytes, pool.bytes, kind="term"))
    if log.figure("state") is not None or laid.state_bytes:
        rows.append(_row("recurrent states", log.figure("state"), laid.state_bytes, kind="term"))
    rows += _buffer_rows(log, placed)
    rows.append(_row("KV cache", log.figure("kv"), laid.bytes - laid.state_bytes, kind="cache"))
    return rows


def _buffer_rows(log: Log, plan: Plan) -> list[Row]:
    """Weights and compute buffers on the fullest GPU."""
    rows = []
    for name, figure, part, title in (
        ("weights", "weights", "weights", "weights on a GPU"),
        ("compute buffer", "compute", "activation", "compute buffer"),
    ):
        said = log.figure(figure)
        if plan.memory is None or said is None:
            if said is not None:
                rows.append(_row(title, said, None, kind="term"))
            continue
        ranks = [
            [t for t in rank.terms if t.part == part and (part == "weights" or name in t.name)] for rank in plan.memory
        ]
        terms = max(ranks, key=lambda group: sum(t.bytes for t in group))
        sizes = (sum(t.bytes for t in terms), sum(t.low_bytes for t in terms), sum(t.high_bytes for t in terms))
        rows.append(_row(title, said, *sizes, kind="term"))
    return rows


def _named(rows: list[Row], figure: str | None) -> Row | None:
    """The row that the verdict is about."""
    cache = next((r for r in rows if r.kind == "cache" and r.difference is not None), None)
    tokens = next(
        (r for r in rows if r.kind == "result" and r.name.startswith("tokens") and r.difference is not None), None
    )
    if figure is None:
        return cache or tokens
    return cache if figure == "bytes" else tokens


def exceeds(row: Row | None, limit: float) -> bool:
    """Whether a figure is further off than `limit` allows.

    Raises:
        InputError: there is no figure to compare.
    """
    if row is None or row.difference is None:
        raise InputError(
            "nothing to compare: the log or the plan lacks the figure", where="--fail-over",
            hint="name what the log does not say: --model, --gpu, --engine NAME@VERSION",
        )  # fmt: skip
    return abs(row.relative) > limit if row.relative is not None else bool(row.difference)

"""From a run to figures: what ``simulate`` prints, and a row a request."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from kvplan.simulate.describe import PERCENTS, ceiling
from kvplan.simulate.documents import (
    SCHEMA,
    CacheFigures,
    Latency,
    MemoryFigures,
    Moment,
    Percentiles,
    SchedulingFigures,
    Simulation,
    Throughput,
    TraceFigures,
    Waste,
)
from kvplan.simulate.recorder import FIELDS, Timeline, merged

if TYPE_CHECKING:
    from kvplan.simulate.documents import Ceiling
    from kvplan.simulate.run import Run
    from kvplan.simulate.trace import Floats

POINTS = 128
"""Of the timeline, at most."""
COLUMNS = (
    "request", "replica", "arrival_seconds", "prompt_tokens", "output_tokens", "hit_tokens", "queue_seconds",
    "ttft_seconds", "tpot_seconds", "e2e_seconds", "preemptions", "status",
)  # fmt: skip
"""Of the file of ``--requests``."""


def figures(run: Run, *, best: Ceiling | None = None) -> Simulation:
    """Everything about a run.

    Args:
        best: the prefix ceiling of the trace, where it is known already.
    """
    site, trace = run.site, run.trace
    done = np.isfinite(run.rows.finish)
    settings = site.settings
    inputs = {
        **site.inputs, **run.options._asdict(), "replicas": settings.data_parallel_size,
        "tensor_parallel_size": settings.tensor_parallel_size,
        "pipeline_parallel_size": settings.pipeline_parallel_size, "max_model_len": site.longest,
        "max_num_seqs": site.sequences, "max_num_batched_tokens": site.tokens_per_step,
        "block_size": site.block_size, "num_blocks": site.num_blocks, "block_bytes": site.block_bytes,
        "enable_prefix_caching": bool(site.shape.span), "step_times": site.setup.rates.source,
    }  # fmt: skip
    samples = run.options.samples or trace.samples
    said = TraceFigures(
        trace.name, trace.format, len(trace), int(trace.prompts.sum()), int((trace.outputs * samples).sum()),
        trace.broken.lines, float(trace.arrivals[-1]),
    )  # fmt: skip
    most = best or ceiling(trace, site.shape.span)
    return Simulation(
        SCHEMA, inputs, said, _cache(run, most), _memory(run), _scheduling(run, int(done.sum())), _latency(run, done),
        _throughput(run, done), timeline(run), None, run.interrupted,
    )  # fmt: skip


def _cache(run: Run, most: Ceiling) -> CacheFigures:
    hits = sum(r.counts.hit_tokens for r in run.replicas)
    looked = sum(r.counts.looked_up_tokens for r in run.replicas)
    size = run.site.block_size
    blocks = int((run.trace.prompts[run.rows.tried] // size).sum())
    return CacheFigures(
        hit_tokens=hits, hit_blocks=hits // size, looked_up_blocks=blocks,
        hit_block_rate=hits // size / blocks if blocks else 0.0,
        evictions=sum(r.memory.evicted_blocks for r in run.replicas), hit_rate=hits / looked if looked else 0.0,
        ceiling_tokens=most.hit_tokens, ceiling_rate=most.hit_tokens / most.tokens if most.tokens else 0.0,
        ceiling_blocks=most.hit_blocks, ceiling_block_tokens=most.block_tokens,
        ceiling_block_rate=most.hit_blocks / most.blocks if most.blocks else 0.0,
    )  # fmt: skip


def _memory(run: Run) -> MemoryFigures:
    total = np.array([line.total for line in _lines(run)]).sum(axis=0)
    busy, used, stored, reserved, idle, external = (float(total[FIELDS.index(name)]) for name in FIELDS[:6])
    memory = run.replicas[0].memory
    taken, time = used + external or 1.0, busy * memory.capacity or 1.0
    internal = max(0.0, used - stored - reserved)
    return MemoryFigures(
        pool_blocks=memory.capacity, unit="blocks" if memory.paged else "tokens", pool_bytes=run.site.pool_bytes,
        peak_blocks=int(max(line.peak_used for line in _lines(run))), mean_utilisation=used / time,
        mean_cached=idle / time, stored_share=stored / taken,
        waste=Waste(reserved / taken, internal / taken, external / taken),
    )  # fmt: skip


def _scheduling(run: Run, finished: int) -> SchedulingFigures:
    lines, rows = _lines(run), run.rows
    busy = sum(line.total[0] for line in lines)
    running = sum(line.total[FIELDS.index("running")] for line in lines)
    waits = (rows.admitted - run.trace.arrivals)[np.isfinite(rows.admitted)]
    reasons: dict[str, int] = {}
    for why in rows.rejected.values():
        kind = why.partition(" tokens ")[2].removeprefix("are ") or why
        reasons[kind] = reasons.get(kind, 0) + 1
    counts = [replica.counts for replica in run.replicas]
    return SchedulingFigures(
        finished=finished, rejected=len(rows.rejected), rejected_for=reasons,
        preemptions=sum(c.preemptions for c in counts), recomputed_tokens=sum(c.recomputed_tokens for c in counts),
        swapped_tokens=sum(c.swapped_tokens for c in counts), steps=sum(c.steps for c in counts),
        mean_batch=running / busy if busy else 0.0, peak_batch=max(line.peak_running for line in lines),
        queue_seconds=_percentiles(waits),
    )  # fmt: skip


def _latency(run: Run, done: Any) -> Latency:
    first, tpot, whole = times(run)
    return Latency(
        _percentiles(first[done]), _percentiles(tpot[done & np.isfinite(tpot)]), _percentiles(whole[done])
    )  # fmt: skip


def times(run: Run) -> tuple[Floats, Floats, Floats]:
    """(seconds to the first token, per output token after it, to the last token) of every request; NaN: none."""
    rows, trace = run.rows, run.trace
    first, whole = rows.first - trace.arrivals, rows.finish - trace.arrivals
    with np.errstate(divide="ignore", invalid="ignore"):
        tpot = np.where(trace.outputs > 1, (rows.finish - rows.first) / (trace.outputs - 1), np.nan)
    return first, tpot, whole


def _percentiles(values: Floats) -> Percentiles:
    if not len(values):
        return Percentiles(None, None, None, None)
    p50, p90, p99 = map(float, np.percentile(values, PERCENTS))
    return Percentiles(p50, p90, p99, float(values.mean()))


def _throughput(run: Run, done: Any) -> Throughput:
    if not done.any():
        return Throughput(0.0, 0.0, 0.0, 0.0)
    samples = run.options.samples or run.trace.samples
    seconds = float(np.nanmax(run.rows.finish))
    return Throughput(
        seconds=seconds, requests_per_second=int(done.sum()) / seconds,
        tokens_per_second=float((run.trace.outputs * samples)[done].sum()) / seconds,
        input_tokens_per_second=float(run.trace.prompts[done].sum()) / seconds,
    )  # fmt: skip


def _lines(run: Run) -> list[Timeline]:
    return [replica.line for replica in run.replicas]


def timeline(run: Run) -> tuple[Moment, ...]:
    """At most `POINTS` points: means over the bin that begins at ``seconds``, all replicas together."""
    width, table = merged(_lines(run))
    while len(table) > POINTS:
        if len(table) % 2:
            table = np.vstack([table, np.zeros(table.shape[1])])
        table, width = table[::2] + table[1::2], width * 2
    capacity = run.replicas[0].memory.capacity * len(run.replicas)
    end = max(line.end for line in _lines(run))
    spans = np.array([min(width, end - i * width) for i in range(len(table))])
    table, spans = table[spans > 1e-9], spans[spans > 1e-9]
    column = {name: table[:, i] / spans for i, name in enumerate(FIELDS)}
    return tuple(
        Moment(
            seconds=i * width, used=float(column["used"][i] / capacity), stored=float(column["stored"][i] / capacity),
            cached=float(column["idle"][i] / capacity), running=float(column["running"][i]),
            waiting=float(column["waiting"][i]), tokens_per_second=float(column["tokens"][i]),
        )
        for i in range(len(table))
    )  # fmt: skip


def early_turns(run: Run) -> int:
    """Turns of conversations that arrived before the answer that they repeat was done."""
    done: dict[int, float] = {}
    early = 0
    tails, arrivals, finish = run.trace.tails.tolist(), run.trace.arrivals.tolist(), run.rows.finish.tolist()
    for i in range(run.served):
        tail = tails[i]
        if tail >= 0:
            early += not done.get(tail, 0.0) <= arrivals[i]  # NaN: it never was
            done[tail] = finish[i]
    return early


def request_rows(run: Run) -> Iterator[tuple[Any, ...]]:
    """A row of `COLUMNS` for every request that was submitted; None where there is no figure."""
    first, tpot, whole = times(run)
    queue = run.rows.admitted - run.trace.arrivals
    rows, trace = run.rows, run.trace
    for i in range(run.served):
        status = "rejected" if i in rows.rejected else "done" if np.isfinite(rows.finish[i]) else "unfinished"
        yield (
            i, int(rows.replica[i]) if rows.replica[i] >= 0 else None, float(trace.arrivals[i]),
            int(trace.prompts[i]), int(trace.outputs[i]), int(rows.hits[i]), _plain(queue[i]), _plain(first[i]),
            _plain(tpot[i]), _plain(whole[i]), int(rows.preemptions[i]), status,
        )  # fmt: skip


def _plain(value: Any) -> float | None:
    return float(value) if np.isfinite(value) else None

"""Traces and simulations: from their plain data to documents."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from kvplan.render.grid import Column, Document, Grid, KeyValues, Notes, Part, Title
from kvplan.render.sweep_table import heading, shown
from kvplan.units import gib

Plain = Mapping[str, Any]


def trace_report(trace: Plain) -> Document:
    """The report of ``trace describe``."""
    when = trace["arrivals"]
    rows: list[tuple[str, str, str]] = [
        ("requests", f"{trace['requests']:,}", f"{trace['format']} format"),
        ("input tokens", f"{trace['input_tokens']:,}", "all prompts together"),
        ("output tokens", f"{trace['output_tokens']:,}", ""),
    ]
    if trace["samples"] > 1:
        rows.append(("samples", f"{trace['samples']:,}", "of a prompt, at most"))
    if when is None:
        rows.append(("arrivals", "all at once", "the trace has no times; --request-rate gives it some"))
    else:
        rate = when["requests_per_second"]
        rows.append(("duration", seconds(when["seconds"]), "from the first arrival to the last"))
        rows.append(("rate", f"{rate:,.3g} requests/s" if rate else "-", "on average"))
        if when["busiest_minute_requests"] is not None:
            rows.append(("busiest minute", f"{when['busiest_minute_requests']:,} requests", ""))
        if when["gap_variation"] is not None:
            rows.append(("burstiness", f"{when['gap_variation']:.2f}", "deviation over mean of the gaps; Poisson: 1"))
    found: list[Part] = [Title(trace["name"]), KeyValues(rows), _lengths(trace["percentiles"])]
    return [*found, *_reuse(trace)]


def _lengths(percentiles: Plain) -> Grid:
    columns = [Column("tokens"), *(Column(n, right=True) for n in ("mean", "min", "p50", "p90", "p99", "max"))]
    rows = [
        [name, *(f"{percentiles[name][c.title]:,.0f}" for c in columns[1:])] for name in ("input", "output")
    ]  # fmt: skip
    return Grid(columns, rows, title="Lengths")


def _reuse(trace: Plain) -> list[Part]:
    best = trace["prefix_ceiling"]
    if best["block_tokens"] is None:
        return [Notes(["the trace does not say which prompts share their beginnings"], title="Prefix reuse")]
    size = best["block_tokens"]
    rows = [["without bound", *_hits(best["hit_blocks"], best["blocks"], best["hit_tokens"], best["tokens"])]]
    for one in trace["lru"]:
        hits = _hits(one["hit_blocks"], best["blocks"], one["hit_tokens"], best["tokens"])
        rows.append([f"{one['cache_blocks']:,} blocks, LRU", *hits])
    columns = [
        Column("cache"), Column("hit blocks", right=True), Column("of blocks", right=True), Column("share", right=True),
        Column("hit tokens", right=True), Column("of tokens", right=True, optional=True), Column("share", right=True),
    ]  # fmt: skip
    note = f"blocks of {size} tokens, strict prefixes, in order of arrival; a prompt's last block counts though partial"
    return [Grid(columns, rows, title="Prefix reuse: the ceiling", note=note)]


def _hits(blocks: int, all_blocks: int, tokens: int, all_tokens: int) -> list[str]:
    return [
        f"{blocks:,}", f"{all_blocks:,}", share(blocks / all_blocks if all_blocks else 0), f"{tokens:,}",
        f"{all_tokens:,}", share(tokens / all_tokens if all_tokens else 0),
    ]  # fmt: skip


def simulation_report(result: Plain, *, pictures: bool = False) -> Document:
    """The report of ``simulate``.

    Args:
        pictures: with the timeline, for formats that draw.
    """
    inputs, trace = result["inputs"], result["trace"]
    static = inputs["scheduler"] == "static"
    memory = "max_model_len reserved for each request" if static else f"{inputs['allocator']} memory"
    detail = [inputs["engine"] + " " + inputs["engine_version"], memory, f"{inputs['scheduler']} batching"]
    if inputs["replicas"] > 1:
        detail.append(f"{inputs['replicas']} replicas, {inputs['routing']}")
    title = Title(f"{inputs['model']} on {inputs['gpu']}: {trace['requests']:,} requests", ", ".join(detail))
    parts: list[Part] = [title, _served(result), latency_grid(result), _memory(result)]
    if inputs["enable_prefix_caching"] and inputs["allocator"] == "paged" and not static:
        parts.append(_cache(result["cache"], inputs["block_size"]))
    if result.get("smallest_pool"):
        parts.append(_smallest(result["smallest_pool"]))
    if pictures and result["timeline"]:
        from kvplan.render.simulation_pictures import timeline_charts

        parts += timeline_charts(result)
    return parts


def _served(result: Plain) -> KeyValues:
    done, pace, limits = result["scheduling"], result["throughput"], result["inputs"]
    rows = [
        ("finished", f"{done['finished']:,}", f"of {result['trace']['requests']:,} requests"),
        ("rejected", f"{done['rejected']:,}", "; ".join(f"{n:,}: {why}" for why, n in done["rejected_for"].items())),
        (
            "throughput", f"{pace['requests_per_second']:,.3g} requests/s",
            f"over {seconds(pace['seconds'])}, deployment",
        ),
        ("", f"{pace['tokens_per_second']:,.0f} tokens/s", f"output; {pace['input_tokens_per_second']:,.0f} input"),
        (
            "running at once", f"{done['mean_batch']:,.1f} requests",
            f"mean of a replica; {done['peak_batch']:,} at most, max_num_seqs {limits['max_num_seqs']:,}",
        ),
        ("preemptions", f"{done['preemptions']:,}", f"{done['recomputed_tokens']:,} tokens computed again"),
    ]  # fmt: skip
    if not done["rejected"]:
        del rows[1]
    return KeyValues(rows, title="Service")


def latency_grid(result: Plain) -> Grid:
    """Percentiles of what requests wait for."""
    names = (("queue", result["scheduling"]["queue_seconds"]), *result["latency"].items())
    said = {
        "queue": "until admitted", "ttft": "to the first token", "tpot": "per token after it", "e2e": "to the last",
    }  # fmt: skip
    columns = [Column("seconds"), *(Column(p, right=True) for p in ("p50", "p90", "p99", "mean")), Column("")]
    rows = [[n, *(seconds(v[c.title]) for c in columns[1:5]), said[n]] for n, v in names]
    return Grid(columns, rows, title="Latency")


def _memory(result: Plain) -> KeyValues:
    memory, waste = result["memory"], result["memory"]["waste"]
    unit = memory["unit"]
    rows = [
        ("pool", f"{memory['pool_blocks']:,} {unit}", f"{gib(memory['pool_bytes'])} per GPU"),
        ("in use", share(memory["mean_utilisation"]), f"mean while working; {memory['peak_blocks']:,} {unit} at most"),
        ("idle in cache", share(memory["mean_cached"]), "prefixes that nobody reads just now"),
        ("token states", share(memory["stored_share"]), "of the memory that is taken"),
        ("reserved", share(waste["reserved"]), "taken for tokens that come later"),
        ("internal waste", share(waste["internal"]), "taken and never filled"),
        ("external waste", share(waste["external"]), "free, and of no use to who waits first"),
    ]
    return KeyValues(rows, title="KV memory")


def _cache(cache: Plain, block_size: int) -> KeyValues:
    rows = [
        ("hit rate", share(cache["hit_rate"]), f"{cache['hit_tokens']:,} tokens of prompts were there already"),
        (
            "by blocks", share(cache["hit_block_rate"]),
            f"{cache['hit_blocks']:,} of {cache['looked_up_blocks']:,} whole blocks of {block_size}",
        ),
        ("ceiling", share(cache["ceiling_rate"]), f"{cache['ceiling_tokens']:,} tokens, whatever the cache"),
    ]  # fmt: skip
    if cache["ceiling_block_tokens"] is not None:
        said = f"{cache['ceiling_blocks']:,} blocks of {cache['ceiling_block_tokens']}, a prompt's partial last one too"
        rows.append(("by blocks", share(cache["ceiling_block_rate"]), said))
    rows.append(("evictions", f"{cache['evictions']:,} blocks", "of prefixes that had to make room"))
    return KeyValues(rows, title="Prefix cache")


def _smallest(found: Plain) -> KeyValues:
    wanted = " and ".join(found["targets"])
    if found["interrupted"]:
        wanted = f"{wanted}; the search was interrupted"
    if not found["met"] and found["interrupted"]:
        said = f"meets {wanted} after {found['runs']} simulations"
        return KeyValues([("smallest pool", "none so far", said)], title="Target")
    if not found["met"]:
        return KeyValues([("smallest pool", "none", f"meets {wanted}, of {found['runs']} that were tried")])
    rows = [
        ("smallest pool", f"{found['blocks']:,} blocks", f"meets {wanted}; {found['runs']} simulations"),
        ("", gib(found["bytes"]), f"per GPU, {share(found['share_of_pool'])} of the pool there is"),
        ("to within", "a block" if found["finer_than"] == 1 else f"{found['finer_than']:,} blocks", ""),
    ]
    if found["tokens"] is not None:
        rows[2:2] = [("", f"{found['tokens']:,} tokens", "that it holds")]
    return KeyValues(rows, title="Target")


def study_report(
    title: str, axes: Sequence[str], figures: Sequence[str], rows: Sequence[Plain], *, pictures: bool = False
) -> Document:
    """A row a simulation."""
    main = ("latency.ttft.p99", "latency.tpot.p99", "throughput.requests_per_second", "scheduling.mean_batch")
    columns = [Column(heading(n)) for n in axes]
    columns += [Column(_short(n), right=True, optional=n not in main) for n in figures]
    drawn = [[*(shown(n, row[n]) for n in axes), *(_figure(n, row[n]) for n in figures)] for row in rows]
    if any(row["refused"] for row in rows):
        columns.append(Column("refused", wrap=True))
        for line, row in zip(drawn, rows, strict=True):
            line.append(row["refused"] or "")
    parts: list[Part] = [Title(title), Grid(columns, drawn, note="times in seconds, shares of taken memory")]
    if pictures and len(axes) == 1:
        from kvplan.render.simulation_pictures import study_charts

        parts += study_charts(axes[0], rows)
    return parts


def _short(name: str) -> str:
    """``latency.ttft.p99`` -> ``ttft p99``."""
    parts = name.split(".")
    return " ".join(parts[1:]).replace("_", " ").replace("per second", "/s")


def _figure(name: str, value: Any) -> str:
    if value is None:
        return "-"
    if name.startswith("latency."):
        return seconds(value)
    if "waste" in name or name.endswith(("utilisation", "hit_rate")):
        return share(value)
    return f"{value:,}" if isinstance(value, int) else f"{value:,.4g}"


def seconds(value: float | None) -> str:
    """``2.35 s``, ``47.1 ms``, ``58 min 56 s``."""
    if value is None:
        return "-"
    if value < 1:
        return f"{value * 1e3:.3g} ms"
    if value < 600:
        return f"{value:.3g} s" if value < 100 else f"{value:.0f} s"
    minutes, rest = divmod(round(value), 60)
    if minutes < 600:
        return f"{minutes} min {rest} s"
    return f"{minutes / 60:,.1f} h"


def share(value: float) -> str:
    """Of 1, in per cent."""
    return f"{value:.1%}"

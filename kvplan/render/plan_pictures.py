"""The pictures of a plan: from its plain data and that of its curves to charts and bars."""

from __future__ import annotations

from typing import Any

from kvplan.render.grid import Bar, Document
from kvplan.render.report import memory_parts
from kvplan.render.speed import TITLE as SPEED
from kvplan.render.speed import duration, rate
from kvplan.render.svg.parts import Axis, Bars, Chart, Mark, Picture, Piece, Series, Spot, Stack
from kvplan.units import gib

Plain = dict[str, Any]

BINARY = "(K = 1,024)"


def plan_pictures(plan: Plain, curves: Plain) -> list[Picture]:
    """All pictures that the figures of a plan make.

    Args:
        plan: the object that ``plan --json`` prints.
        curves: `kvplan.planning.curves.Curves` as plain data.
    """
    found: list[Picture] = []
    if plan["memory"]:
        found.append(memory_bars(plan))
    found.append(cache_chart(plan, curves))
    if curves["batches"]:
        found.append(batch_chart(plan, curves))
        found.append(token_time_chart(plan, curves))
    if curves["roof"]:
        found.append(roofline(curves))
    if plan["capacity"] and plan["capacity"]["by_shared_prefix"]:
        found.append(prefix_chart(plan))
    return found


def pictured_report(report: Document, plan: Plain, curves: Plain) -> Document:
    """The capacity report with all of its pictures after the verdict, for a page."""
    rest = [part for part in report if not isinstance(part, Bar)]
    return [*rest[:2], *plan_pictures(plan, curves), *rest[2:]]


def terminal_report(report: Document, plan: Plain, curves: Plain) -> Document:
    """The capacity report with the one plot that a terminal has room for, after the figures of speed."""
    if not curves["batches"]:
        return report
    at = next(i for i, part in enumerate(report) if getattr(part, "title", "") == SPEED) + 1
    return [*report[:at], batch_chart(plan, curves), *report[at:]]


def memory_bars(plan: Plain) -> Bars:
    """A bar for each pipeline stage: the ranks of one stage are alike."""
    stages: dict[int, Plain] = {}
    for row in plan["memory"]:
        stages.setdefault(row["pipeline_stage"], row)
    stacks = []
    for stage, row in stages.items():
        pieces = [Piece(name, size, gib(size)) for name, size in memory_parts(row)]
        if row["unused_bytes"] > 0:
            pieces.append(Piece("unused", row["unused_bytes"], gib(row["unused_bytes"]), spare=True))
        label = f"stage {stage}" if len(stages) > 1 else plan["inputs"]["gpu"]
        stacks.append(Stack(label, pieces, f"{gib(row['kv_bytes'])} of cache, {gib(row['weights_bytes'])} of weights"))
    total = max(row["total_bytes"] for row in stages.values())
    return Bars("Memory per GPU", stacks, "bytes", total, f"the device: {gib(total)}")


def cache_chart(plan: Plain, curves: Plain) -> Chart:
    """Cache against the length of a request, with the lengths at which windows fill, and what there is."""
    lengths, inputs = curves["lengths"], plan["inputs"]
    label = f"one request, reserved by {inputs['engine']}"
    series = [Series(label, [(at["tokens"], at["bytes_per_gpu"]) for at in lengths])]
    running, dp = inputs["concurrency"], inputs["data_parallel_size"]
    if running > dp:
        each = -(-running // dp)
        series.append(
            Series(f"{each:,} requests of that length", [(at["tokens"], at["bytes_per_gpu"] * each) for at in lengths])
        )
    if lengths and lengths[-1]["bytes"] != lengths[-1]["bytes_per_gpu"]:
        alone = "its tokens alone, without padding" if inputs["gpus"] == 1 else "one request over all GPUs"
        series.append(Series(alone, [(at["tokens"], at["bytes"]) for at in lengths]))
    marks = [Mark("x", k["tokens"], f"{k['layers']} layers' window full: {k['tokens']:,}") for k in curves["knees"]]
    marks.append(Mark("x", inputs["max_model_len"], f"max_model_len {inputs['max_model_len']:,}"))
    have = curves["cache_bytes_per_gpu"]
    if have:
        marks.insert(0, Mark("y", have, f"cache of a GPU: {gib(have)}", limit=True))
    x, y = (
        Axis(f"tokens of a request {BINARY}", "tokens", "log2", high=inputs["max_model_len"]),
        Axis("bytes of cache, of one GPU where nothing else is said", "bytes", "log2"),
    )
    return Chart("KV cache against context", x, y, series, marks)


def _ladder(curves: Plain, figure: str) -> list[Series]:
    """A figure of the batches, in one line for those that the cache holds and one for those it does not."""
    held = [(at["requests"], at[figure]) for at in curves["batches"] if at["holds"] is not False]
    over = [(at["requests"], at[figure]) for at in curves["batches"] if at["holds"] is False]
    if not over:
        return [Series("", held)]
    more = Series("would need more memory", held[-1:] + over, color=1)
    return [Series("holds in the cache", held, color=0), more] if held else [more]


def _batch_marks(plan: Plain, curves: Plain) -> list[Mark]:
    inputs = plan["inputs"]
    marks = []
    if curves["most_requests"]:
        tokens = inputs["prompt_tokens"] + inputs["output_tokens"]
        label = f"memory: {curves['most_requests']:,} of {tokens:,} tokens"
        marks.append(Mark("x", curves["most_requests"], label, limit=True))
    if curves["ridge_requests"]:
        marks.append(Mark("x", curves["ridge_requests"], f"ridge: {curves['ridge_requests']:,}"))
    last = curves["batches"][-1]["requests"]
    if curves["max_num_seqs"] and curves["max_num_seqs"] <= last:
        marks.append(Mark("x", curves["max_num_seqs"], f"the engine's limit: {curves['max_num_seqs']:,}"))
    return [m for m in marks if m.at <= last]


def _batches(curves: Plain) -> Axis:
    counts = [at["requests"] for at in curves["batches"]]
    return Axis(f"requests that decode together {BINARY}", "count", "log2", min(counts), max(counts))


def batch_chart(plan: Plain, curves: Plain) -> Chart:
    """Tokens a second of the deployment against the running requests, with the ridge and the memory's limit."""
    decode = plan["decode"]
    marks = _batch_marks(plan, curves)
    ceiling = curves["ceiling_tokens_per_second"]
    if ceiling:
        marks.append(Mark("y", ceiling, f"ceiling at this context: {rate(ceiling)}"))
    spots = [Spot(decode["batch"] * plan["inputs"]["data_parallel_size"], decode["tokens_per_second"],
                  f"this workload: {rate(decode['tokens_per_second'])}")] if decode else []  # fmt: skip
    return Chart(
        "Tokens per second against batch", _batches(curves),
        Axis("tokens per second of the deployment", "rate"), _ladder(curves, "tokens_per_second"), marks, spots,
        note=f"{curves['context']:,} tokens cached by each request; from the ridge on multiplying the weights takes "
        "longer than reading them",
    )  # fmt: skip


def token_time_chart(plan: Plain, curves: Plain) -> Chart:
    """Time per output token of each request against the running requests."""
    decode = plan["decode"]
    spots = [Spot(decode["batch"] * plan["inputs"]["data_parallel_size"], decode["seconds_per_step"],
                  f"this workload: {duration(decode['seconds_per_step'])}")] if decode else []  # fmt: skip
    return Chart(
        "Time per output token against batch", _batches(curves),
        Axis("time per output token of a request", "seconds", low=0), _ladder(curves, "seconds_per_step"),
        _batch_marks(plan, curves), spots,
    )  # fmt: skip


def roofline(curves: Plain) -> Chart:
    """What a GPU reaches against the FLOPs it does per byte it reads."""
    roof, works = curves["roof"], curves["works"]
    bandwidth, flops = roof["bytes_per_second"], roof["flops_per_second"]
    ridge = flops / bandwidth
    low = min([0.5, *(w["intensity"] / 2 for w in works)])
    high = max([ridge * 10, *(w["intensity"] * 20 for w in works)])
    points = [(low, low * bandwidth), (ridge, flops), (high, flops)]
    dots = [(w["intensity"], w["flops_per_second"]) for w in works]
    return Chart(
        "Roofline of one GPU", Axis("FLOPs per byte read", "number", "log10"), Axis("FLOP/s", "flops", "log10"),
        [Series("roof", points), Series("reached", dots, "dots", color=1, names=[w["name"] for w in works])],
        [Mark("x", ridge, f"ridge: {ridge:,.0f} FLOPs a byte")],
        note=f"roof: {bandwidth / 1e9:,.0f} GB/s of weights read, {flops / 1e12:,.0f} TFLOP/s of matrix products; what "
        "lies below it waits for kernels to start, for messages, or for the other resource",
    )  # fmt: skip


def prefix_chart(plan: Plain) -> Chart:
    """Capacity against the length of the system prompt."""
    rows, inputs = plan["capacity"]["by_shared_prefix"], plan["inputs"]
    own = inputs["prompt_tokens"] - inputs["shared_prefix_tokens"]
    series = [
        Series("prefix held once", [(r["prefix_tokens"], r["requests"]) for r in rows]),
        Series("every request its own copy", [(r["prefix_tokens"], r["requests_unshared"]) for r in rows]),
    ]
    per = " per replica" if inputs["data_parallel_size"] > 1 else ""
    return Chart(
        "Capacity against the system prompt", Axis("tokens of the system prompt", "tokens"),
        Axis(f"requests at once{per}", "count"), series,
        [Mark("x", inputs["shared_prefix_tokens"], f"this workload: {inputs['shared_prefix_tokens']:,}")],
        note=f"each request adds {own:,} prompt and {inputs['output_tokens']:,} output tokens of its own",
    )  # fmt: skip

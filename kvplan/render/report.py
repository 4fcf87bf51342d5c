"""The capacity report: from the plain data of a plan to a document.

Every figure says per GPU, per replica or total, and per token or per request.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kvplan.render.grid import Bar, Column, Document, Grid, KeyValues, Notes, Part, Segment, Title
from kvplan.render.speed import speed_part
from kvplan.units import gib, human_bytes, human_count

Plain = dict[str, Any]

PASTE = "to paste: "
"""How the note begins whose first line is a command."""


def plan_report(plan: Plain) -> Document:
    """The report of one plan (the object that ``plan --json`` prints)."""
    parts: list[Part] = [_title(plan), _verdict(plan), _cache(plan)]
    if len(plan["kv"]["groups"]) > 1:
        parts.append(_groups(plan))
    if plan["allocation"]:
        from kvplan.render.allocation import allocation_part

        parts.append(allocation_part(plan))
    if plan["memory"]:
        parts += _memory(plan)
    if plan["capacity"] and plan["capacity"]["max_concurrency"] is not None:
        parts += _capacity(plan)
    if plan["decode"] or plan["prefill"]:
        parts.append(speed_part(plan))
    if "serving" in plan:
        from kvplan.render.serving import serving_parts

        parts += serving_parts(plan)
    if plan["verdict"]["hints"]:
        parts.append(_hints(plan))
    parts += _notes(plan["verdict"]["notes"])
    assumed = _assumptions(plan)
    if assumed:
        parts.append(assumed)
    return parts


def summary_line(plan: Plain) -> str:
    """The verdict in one line, for standard error."""
    fits = plan["verdict"]["fits"]
    word = "no GPU given" if fits is None else "fits" if fits else "does not fit"
    if fits and _misses(plan):
        word = "misses its targets"
    return f"{plan['inputs']['model']}: {word}: {plan['verdict']['reason']}"


def _title(plan: Plain) -> Title:
    inputs, model = plan["inputs"], plan["model"]
    where = f" on {inputs['gpus']} x {inputs['gpu']}" if inputs["gpu"] else ""
    detail = [f"{inputs['engine']} {inputs['engine_version']}", *_layout(inputs)]
    weights = f"{inputs['weights_format']} weights"
    cache = f"{plan['kv']['format_k']} K, {plan['kv']['format_v']} V"
    if plan["kv"]["format_k"] == plan["kv"]["format_v"]:
        cache = f"{plan['kv']['format_k']} cache"
    return Title(f"{model['id']}{where}", ", ".join([*detail, weights, cache]))


def _layout(inputs: Plain) -> list[str]:
    names = (
        ("tensor_parallel_size", "tp"), ("pipeline_parallel_size", "pp"), ("data_parallel_size", "dp"),
        ("decode_context_parallel_size", "dcp"),
    )  # fmt: skip
    found = [f"{short} {inputs[name]}" for name, short in names if inputs[name] > 1]
    return found + (["experts dealt over ranks"] if inputs["enable_expert_parallel"] else [])


def _verdict(plan: Plain) -> KeyValues:
    verdict = plan["verdict"]
    if verdict["fits"] is None:
        return KeyValues([("verdict", "none", verdict["reason"])])
    if verdict["fits"] and _misses(plan):
        return KeyValues([("verdict", "MISSES ITS TARGETS", verdict["reason"])])
    return KeyValues([("verdict", "fits" if verdict["fits"] else "DOES NOT FIT", verdict["reason"])])


def _misses(plan: Plain) -> bool:
    return "serving" in plan and plan["serving"]["targets_hold"] is False


def _cache(plan: Plain) -> KeyValues:
    kv, inputs, model = plan["kv"], plan["inputs"], plan["model"]
    length = inputs["max_model_len"]
    rows: list[tuple[str, str, str]] = [
        (
            "per token",
            human_bytes(kv["bytes_per_token"]),
            f"{kv['bytes_per_token']:,} B over all layers; {kv['bytes_per_token_per_gpu']:,} B per GPU",
        ),
    ]
    if kv["marginal_bytes_per_token_at_max_len"] != kv["bytes_per_token"]:
        grown = kv["marginal_bytes_per_token_at_max_len"]
        rows.append((f"per token at {length:,}", human_bytes(grown), "where windows are full"))
    if kv["fixed_bytes_per_sequence"]:
        rows.append(
            ("fixed per request", human_bytes(kv["fixed_bytes_per_sequence"]), "state that does not grow with length")
        )
    rows.append(
        (
            f"per request of {length:,}",
            gib(kv["bytes_per_sequence"]),
            f"{gib(kv['bytes_per_sequence_per_gpu'])} reserved per GPU",
        )
    )
    if kv["exceeds_weights_at_tokens"]:
        rows.append(("outweighs the weights", f"{kv['exceeds_weights_at_tokens']:,} tokens", "cached, from there on"))
    shared = kv["shared_prefix"]
    if shared:
        rows.append(
            (
                "shared prefix",
                human_bytes(shared["bytes_saved"]),
                f"saved: {shared['tokens_shared']:,} tokens stored once",
            )
        )
    rows.append(("model", f"{human_count(model['parameters'])} parameters", _active(model)))
    return KeyValues(rows, title="KV cache")


def _active(model: Plain) -> str:
    layers = f"{model['num_layers']} layers"
    if model["active_parameters"] < model["parameters"] * 0.9:
        return f"{layers}; {human_count(model['active_parameters'])} active per token"
    return layers


def _groups(plan: Plain) -> Grid:
    columns = [
        Column("layers", right=True), Column("kind"), Column("KV heads", right=True),
        Column("head dim K/V", right=True), Column("window", right=True), Column("B per token", right=True),
        Column("fixed B", right=True),
    ]  # fmt: skip
    rows = []
    for g in plan["kv"]["groups"]:
        dims = f"{g['head_dim_k']}/{g['head_dim_v']}" if g["head_dim_k"] else "-"
        window = f"{g['window']:,}" if g["window"] else "-"
        if g["ratio"]:
            window += f", then 1 in {g['ratio']}"
        rows.append(
            (
                str(g["layers"]),
                g["kind"],
                str(g["kv_heads"] or "-"),
                dims,
                window,
                f"{g['bytes_per_token_per_layer']:,}",
                f"{g['fixed_bytes_per_layer']:,}",
            )
        )
    return Grid(columns, rows, title="Layers that cache", note="bytes of one layer, unsharded")


def tightest(plan: Plain) -> Plain:
    """The rank with the least memory left for the cache."""
    row: Plain = min(plan["memory"], key=lambda r: (r["kv_bytes"], r["unused_bytes"]))
    return row


def memory_parts(row: Plain) -> list[tuple[str, int]]:
    """(name, bytes) of what a rank's memory goes to, parts of no bytes left out.

    What no allocator of the engine holds goes by the name of its term: not every engine is built on torch.
    """
    beside = [term["name"] for term in row["terms"] if term["part"] == "runtime" and term["bytes"]]
    outside = " and ".join(beside[:2]) if len(beside) < 3 else f"{beside[0]} and {len(beside) - 1} more"
    cells = (
        ("weights", "weights_bytes"), ("activations", "activation_bytes"), ("CUDA graphs", "cuda_graph_bytes"),
        (outside, "runtime_bytes"), ("KV cache", "kv_bytes"),
    )  # fmt: skip
    return [(name, row[key]) for name, key in cells if row[key]]


def _memory(plan: Plain) -> list[Part]:
    row = tightest(plan)
    segments = [Segment(name, size, gib(size)) for name, size in memory_parts(row)]
    if row["unused_bytes"] > 0:
        segments.append(Segment("unused", row["unused_bytes"], gib(row["unused_bytes"]), spare=True))
    ranks = len(plan["memory"])
    which = "Memory of the GPU" if ranks == 1 else f"Memory per GPU (the tightest of {ranks})"
    bar = Bar(segments, row["total_bytes"], gib(row["total_bytes"]), title=which)
    columns = [
        Column("term"), Column("GiB", right=True), Column("low", right=True), Column("high", right=True),
        Column("basis"),
        Column("from", wrap=True),
    ]  # fmt: skip
    terms = [
        (t["name"], gib(t["bytes"])[:-4], gib(t["low_bytes"])[:-4], gib(t["high_bytes"])[:-4], t["basis"], t["source"])
        for t in row["terms"]
    ]
    given = plan["inputs"]["kv_cache_memory_bytes"] is not None
    terms.append(_given_row(row, plan["inputs"]) if given else _cache_row(row))
    note = f"budget {gib(row['budget_bytes'])} of {gib(row['total_bytes'])} per GPU"
    if row["replicated_bytes"]:
        note += f"; {human_bytes(row['replicated_bytes'])} of the weights is held whole on every rank"
    parts: list[Part] = [bar, Grid(columns, terms, title="Where it goes, per GPU", note=note)]
    if plan["inputs"]["pipeline_parallel_size"] > 1:
        parts.append(_stages(plan))
    return parts


def _cache_row(row: Plain) -> tuple[str, str, str, str, str, str]:
    """What the terms leave of the budget, and how far their bounds move it; or what the settings lay out."""
    size = gib(row["kv_bytes"])[:-4]
    if row["kv_bytes"] != max(0, row["budget_bytes"] - sum(t["bytes"] for t in row["terms"])):
        return ("KV cache", size, size, size, "exact", "laid out by the settings")
    low = row["budget_bytes"] - sum(t["high_bytes"] for t in row["terms"])
    high = row["budget_bytes"] - sum(t["low_bytes"] for t in row["terms"])
    cells = [gib(max(0, size))[:-4] for size in (row["kv_bytes"], low, high)]
    return ("KV cache", cells[0], cells[1], cells[2], "modelled", "what the budget leaves")


def _given_row(row: Plain, inputs: Plain) -> tuple[str, str, str, str, str, str]:
    """A cache whose bytes were given: by a flag, or as a log measured them."""
    size, source = gib(row["kv_bytes"])[:-4], inputs["defaults"].get("kv_cache_memory_bytes", "--kv-cache-memory-bytes")
    basis, _, where = source.partition(": ")
    if basis not in ("measured", "modelled"):
        basis, where = "exact", source
    low, high = (gib(max(0, b))[:-4] for b in inputs.get("kv_cache_memory_bounds") or (row["kv_bytes"],) * 2)
    return ("KV cache", size, low, high, basis, where)


def _stages(plan: Plain) -> Grid:
    columns = [
        Column("stage", right=True),
        Column("weights GiB", right=True),
        Column("KV cache GiB", right=True),
        Column("unused GiB", right=True),
    ]
    seen: dict[int, Plain] = {}
    for row in plan["memory"]:
        seen.setdefault(row["pipeline_stage"], row)
    rows = [
        (str(stage), gib(r["weights_bytes"])[:-4], gib(r["kv_bytes"])[:-4], gib(r["unused_bytes"])[:-4])
        for stage, r in seen.items()
    ]
    return Grid(columns, rows, title="Pipeline stages, per GPU")


def _capacity(plan: Plain) -> list[Part]:
    capacity, inputs = plan["capacity"], plan["inputs"]
    dp = inputs["data_parallel_size"]
    rows: list[tuple[str, str, str]] = []
    if capacity["num_blocks"] is not None:
        size = capacity["block_size"]
        rows.append(("blocks", f"{capacity['num_blocks']:,}", f"of {size} token{'' if size == 1 else 's'}"))
    if capacity["kv_tokens"] is not None:
        rows.append(("tokens held", f"{capacity['kv_tokens']:,}", f"by the pool{_ends(capacity, 'kv_tokens')}"))
    if capacity["engine_reported_tokens"] is not None:
        rows.append(
            (
                "tokens in the log",
                f"{capacity['engine_reported_tokens']:,}",
                f"as {inputs['engine']} {inputs['engine_version']} prints them",
            )
        )
    of = f"of {inputs['max_model_len']:,} tokens{_ends(capacity, 'max_concurrency')}"
    rows.append(("requests at the limit", f"{capacity['max_concurrency']:,.2f}", of))
    limit, asked = inputs.get("max_num_seqs"), inputs["prompt_tokens"] + inputs["output_tokens"]
    held = next((a["requests"] for a in capacity["at"] if a["tokens"] == asked), 0)
    shared = inputs["shared_prefix_tokens"]
    held = next((a["requests"] for a in capacity["by_shared_prefix"] if a["prefix_tokens"] == shared), held)
    if limit and limit < held:
        text = f"max_num_seqs; the cache would hold {held:,} of {asked:,} tokens"
        rows.append(("requests at once", f"{limit:,}", text))
    alone = f"tokens, alone in the pool{_ends(capacity, 'max_single_request_tokens')}"
    rows.append(("longest request", f"{capacity['max_single_request_tokens']:,}", alone))
    if capacity["min_gpu_memory_utilization"] is not None:
        rows.append(("smallest utilization", f"{capacity['min_gpu_memory_utilization']:g}", "with which it starts"))
    columns = [Column("tokens a request", right=True), Column("requests held", right=True)]
    if dp > 1:
        columns.append(Column(f"over {dp} replicas", right=True))
    at = [
        (f"{a['tokens']:,}", f"{a['requests']:,}", *([f"{a['requests'] * dp:,}"] if dp > 1 else []))
        for a in capacity["at"]
    ]
    per = " per replica" if dp > 1 else ""
    note = "by the cache alone; the verdict says what stands in the way" if plan["verdict"]["fits"] is False else ""
    parts: list[Part] = [
        KeyValues(rows, title=f"Capacity{per}, {_basis(plan)}"),
        Grid(columns, at, title=f"Requests by length{per}", note=note),
    ]
    if capacity["by_shared_prefix"]:
        from kvplan.render.prefix import prefix_grid

        parts.append(prefix_grid(plan, per))
    return parts


def _basis(plan: Plain) -> str:
    """Which of the three words stands beside what the cache holds: that of its bytes."""
    inputs, capacity = plan["inputs"], plan["capacity"]
    if inputs["kv_cache_memory_bytes"] is not None:
        source = inputs["defaults"].get("kv_cache_memory_bytes", "").partition(": ")[0]
        return source if source in ("measured", "modelled") else "exact"
    return "modelled" if capacity["low"] != capacity["high"] else "exact"


def _ends(capacity: Plain, name: str) -> str:
    """``(LOW to HIGH)`` where what is modelled moves a figure."""
    low, high = ((capacity[end] or {}).get(name) for end in ("low", "high"))
    if low is None or high is None or low == high:
        return ""
    return f" ({low:,.2f} to {high:,.2f})" if isinstance(low, float) else f" ({low:,} to {high:,})"


def _notes(notes: Sequence[str]) -> list[Notes]:
    """The command to paste in a block of its own, and the sentences."""
    said, pasted = [], []
    for note in notes:
        line, _, rest = note.removeprefix(PASTE).partition("\n")
        if note.startswith(PASTE):
            pasted.append(line)
            said += [f"the line to paste: {rest}"] if rest else []
        else:
            said.append(note)
    blocks = (Notes(pasted, "To paste", verbatim=True), Notes(said, "To know"))
    return [block for block in blocks if block.lines]


def _hints(plan: Plain) -> Grid:
    rows = [(h["flag"], h["value"], h["effect"]) for h in plan["verdict"]["hints"]]
    columns = [Column("flag"), Column("value", right=True), Column("effect", wrap=True)]
    return Grid(columns, rows, title="What would help, each alone")


def _assumptions(plan: Plain) -> Notes | None:
    """Engine defaults that change the answer, so that nobody has to guess them."""
    inputs = plan["inputs"]
    lines = []
    for name, source in inputs["defaults"].items():
        value = inputs.get(name)
        if value is None or source in ("kvplan's default", "tp x pp x dp") or isinstance(value, bool):
            continue
        shown = f"{value:,}" if isinstance(value, int) else f"{value}"
        lines.append(f"{name} {shown}: {source}")
    lines.append(
        f"workload: {inputs['concurrency']:,} x ({inputs['prompt_tokens']:,} prompt + "
        f"{inputs['output_tokens']:,} output tokens)"
    )
    return Notes(lines, title="Assumed")

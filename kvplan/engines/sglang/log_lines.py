"""What SGLang prints when it starts. Its "GB" are 2^30 bytes.

Source: wheels 0.5.17 and 0.5.23 (``sglang/srt/model_executor/model_runner.py``,
``sglang/srt/mem_cache/memory_pool.py``, ``sglang/srt/managers/scheduler.py``,
``sglang/srt/entrypoints/engine.py``), logs of 0.4 and 0.5.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from kvplan.engines.log_table import (
    Device,
    Figure,
    Line,
    LogTable,
    Run,
    Share,
    difference,
    number,
    pairs,
    read_arguments,
)
from kvplan.engines.sglang.command import GRAMMAR

_RANK = re.compile(r"\b(?:DP(\d+) )?(?:PP(\d+) )?TP(\d+)")
_NAMES = {"dp_size": "dp_size", "context_length": "context_length"}


def _arguments(run: Run, groups: Mapping[str, str], line: int) -> None:
    printed = pairs(groups["all"])
    if printed.get("kv_cache_dtype") == "auto":
        del printed["kv_cache_dtype"]
    read_arguments(run, GRAMMAR, printed, line, names=_NAMES)


def _cache(run: Run, groups: Mapping[str, str], line: int) -> None:
    """A pool of a rank. The model's own come first; windowed models have two, a draft model adds its own."""
    rank = _RANK.search(run.prefix)
    name = rank.group(0) if rank else ""
    if run.texts.setdefault("rank", name) != name:
        return  # every rank prints the same
    own = 2 if "swa_tokens" in run.figures else 1
    seen = len(run.figures.get("pool", ()))
    sizes = [number(groups[key], "gib", line) for key in ("k", "v", "kv") if groups.get(key)]
    if any(size is None for size in sizes):
        return
    whole = sum(size.value for size in sizes if size)
    half = sum(size.half for size in sizes if size)
    base = sizes[0]
    assert base is not None
    run.figures.setdefault("pool" if seen < own else "draft_pool", []).append(base._replace(value=whole, half=half))
    if groups.get("tokens") and seen < own:
        run.figure("pool_tokens", groups["tokens"], "int", line)


def _refused(run: Run, groups: Mapping[str, str], line: int) -> None:
    run.refusals.append(groups["text"])


LINES = (
    Line("server_args=ServerArgs(", r"server_args=(?P<all>ServerArgs\(.*)", _arguments, True),
    Line("server_args={", r"server_args=(?P<all>\{.*)", _arguments, True),
    Line("SGLang version: ", r"SGLang version: v?(?P<version>\d\S{1,40})"),
    Line("Load weight begin. avail mem=", r"Load weight begin\. avail mem=(?P<free_before__gib>[\d.]+) GB"),
    Line(
        "Load weight end. ",
        r"Load weight end\. (?:elapsed=[\d.]+ s, )?type=\w{1,100}, [^\n]{0,200}?avail "
        r"mem=(?P<free_after__gib>[\d.]+) GB"
        r"(?:, mem usage=(?P<weights__gib>[\d.]+) GB)?",
    ),
    Line(
        "Use sliding window memory pool. ",
        r"Use sliding window memory pool\. full_layer_tokens=(?P<full_tokens__int>\d+), "
        r"swa_layer_tokens=(?P<swa_tokens__int>\d+)",
    ),
    Line(
        "KV Cache is allocated. ",
        r"KV Cache is allocated\. (?:dtype: \S{1,40}, )?(?:#tokens: (?P<tokens>\d+), )?(?:K size: (?P<k>[\d.]+) GB, "
        r"V size: "
        r"(?P<v>[\d.]+) GB|KV size: (?P<kv>[\d.]+) GB)",
        _cache,
    ),
    Line(
        "Mamba Cache is allocated. ",
        r"Mamba Cache is allocated\. max_mamba_cache_size: (?P<state_slots__int>\d+), conv_state size: "
        r"(?P<conv__gib>[\d.]+) ?GB, "
        r"ssm_state size: (?P<ssm__gib>[\d.]+) ?GB",
    ),
    Line("Memory pool end. avail mem=", r"Memory pool end\. avail mem=(?P<free_pool__gib>[\d.]+) GB"),
    Line(
        "Capture cuda graph end. ",
        r"Capture cuda graph end\. Time elapsed: [\d.]+ s\.(?: avail mem=[\d.]+ GB\.)?(?: mem "
        r"usage=(?P<captured__gib>-?[\d.]+) GB)?",
    ),
    Line(
        "Capture target decode CUDA graph end. ",
        r"Capture target decode CUDA graph end\. elapsed=[\d.]+ s, mem usage=(?P<captured__gib>-?[\d.]+) GB",
    ),
    Line(
        "max_total_num_tokens=",
        r"max_total_num_tokens=(?P<kv_tokens__int>\d+), "
        r"chunked_prefill_size=(?P<set__chunked_prefill_size__tokens>\d+), "
        r"max_prefill_tokens=\d+, max_running_requests=(?P<running__int>\d+), "
        r"context_len=(?P<set__max_model_len__tokens>\d+)"
        r"(?:, available_gpu_mem=(?P<free_end__gib>[\d.]+) GB)?",
    ),
    Line(
        "Not enough memory. Please try to increase --mem-fraction-static",
        r"(?P<text>Not enough memory\. Please try to increase --mem-fraction-static)",
        _refused,
    ),
)


def settle(run: Run) -> None:
    """All pools of a rank together: what the static share left for the cache.

    With a draft model the state slots follow from rules that are not modelled, so the printed number is taken.
    """
    slots = run.last("state_slots")
    if slots is not None and "draft_pool" in run.figures and "max_mamba_cache_size" not in run.settings:
        run.set("max_mamba_cache_size", int(slots.value), slots.line)
    pools = [*run.figures.get("pool", ()), *(run.figures.get(n, [])[0] for n in ("conv", "ssm") if run.figures.get(n))]
    if pools and run.figures.get("pool"):
        whole = pools[0]._replace(value=sum(p.value for p in pools), half=sum(p.half for p in pools))
        run.figures["kv"] = [whole]


def shares(run: Run, device: Device) -> list[Share]:
    """What went off the static share: weights, and at that share what was gone before they were loaded."""
    before, after, weights = run.least("free_before"), run.least("free_after"), run.most("weights")
    found = []
    if before is not None:
        part = device.budget / device.total
        gone = Figure(part * (device.total - before.value), part * before.half, "bytes", before.line)
        found.append(
            Share(
                "gone before loading, at the static share",
                gone,
                ("runtime", "activation", "cuda_graph"),
                "total less free",
            )
        )
    if weights is None and before is not None and after is not None:
        weights = difference(before, after)
    if weights is not None:
        found.append(Share("weights", weights, ("weights",)))
    return found


TABLE = LogTable("sglang", LINES, ("kv", "kv_tokens", "pool"), settle, shares)

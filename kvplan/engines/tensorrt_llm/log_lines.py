"""What TensorRT-LLM prints when it starts, PyTorch backend.

Source: ``tensorrt_llm/_torch/pyexecutor/_util.py`` of 2025 and 2026 (three wordings of the profile's line), and
``cpp/tensorrt_llm/batch_manager/kvCacheManager.cpp``.
"""

from __future__ import annotations

from collections.abc import Mapping

from kvplan.engines.log_table import Device, Figure, Line, LogTable, Run, Share, difference, pairs, read_arguments
from kvplan.engines.tensorrt_llm.command import GRAMMAR

LEFT_FREE = "left free by free_gpu_memory_fraction"
"""The term of a plan that says so."""


def _arguments(run: Run, groups: Mapping[str, str], line: int) -> None:
    printed = pairs(groups["all"])
    run.text("model", printed.get("model") or printed.get("model_path", ""))
    read_arguments(run, GRAMMAR, printed, line)


LINES = (
    Line("TensorRT-LLM version: ", r"TensorRT-LLM version: (?P<version>\d\S{0,40})", None, True),
    Line("TensorRT-LLM engine args: ", r"TensorRT-LLM engine args: (?P<all>\{.*)", _arguments),
    Line(
        "Memory used after loading model weights (inside torch) in memory usage profiling: ",
        r"Memory used after loading model weights \(inside torch\) in memory usage profiling: "
        r"(?P<weights__gib>[\d.]+) GiB",
    ),
    Line(
        "Memory used after loading model weights (outside torch) in memory usage profiling: ",
        r"Memory used after loading model weights \(outside torch\) in memory usage profiling: "
        r"(?P<outside_loaded__gib>[\d.]+) GiB",
    ),
    Line(
        "Memory dynamically allocated during inference (inside torch) in memory usage profiling: ",
        r"Memory dynamically allocated during inference \(inside torch\) in memory usage profiling: "
        r"(?P<activation__gib>[\d.]+) GiB",
    ),
    Line(
        "Memory used outside torch (e.g., NCCL and CUDA graphs) in memory usage profiling: ",
        r"Memory used outside torch \(e\.g\., NCCL and CUDA graphs\) in memory usage profiling: "
        r"(?P<outside__gib>[\d.]+) GiB",
    ),
    Line(
        "Peak memory during memory usage profiling (torch + non-torch): ",
        r"Peak memory during memory usage profiling \(torch \+ non-torch\): (?P<peak__gib>[\d.]+) GiB, available KV "
        r"cache "
        r"memory when calculating max tokens: (?P<kv__gib>-?[\d.]+) GiB(?:, fraction is set "
        r"(?P<set__free_gpu_memory_fraction__share>[\d.]+), kv size(?: per token)? is (?P<token__bytes>\d+(?:\.0)?)"
        r"(?:[.,] device total memory (?P<total__gib>[\d.]+) GiB)?)?",
    ),
    Line(
        "Memory usage when calculating max tokens in paged kv cache: ",
        r"Memory usage when calculating max tokens in paged kv cache: total: (?P<total__gib>[\d.]+) GiB, available: "
        r"(?P<free__gib>[\d.]+) GiB",
    ),
    Line("Estimated max memory in KV cache : ", r"Estimated max memory in KV cache : (?P<estimated__gib>[\d.]+) GiB"),
    Line(
        "Allocated ",
        r"Allocated (?P<allocated__gib>[\d.]+) GiB for max tokens(?: in paged KV cache)? "
        r"\((?P<kv_tokens__int>\d+)\)",
    ),
    Line("Number of tokens per block: ", r"Number of tokens per block: (?P<set__tokens_per_block__count>\d{1,6})"),
    Line(
        "Number of blocks in KV cache primary pool: ",
        r"Number of blocks in KV cache primary pool: (?P<blocks__int>\d+)",
    ),
    Line(
        "max_seq_len=",
        r"max_seq_len=(?P<set__max_model_len__tokens>\d{1,12}), "
        r"max_num_requests=(?P<set__max_num_seqs__count>\d{1,8})"
        r"(?:, max_num_tokens=(?P<set__max_num_batched_tokens__tokens>\d{1,9}))?",
    ),
)


def settle(run: Run) -> None:
    """Older releases print the pool's size alone."""
    if "kv" not in run.figures and "allocated" in run.figures:
        run.figures["kv"] = run.figures["allocated"]


def shares(run: Run, device: Device) -> list[Share]:
    """What the trial run peaked at, and the share of the rest that stays free."""
    peak, kv, weights = run.most("peak"), run.least("kv"), run.most("weights")
    total = run.least("total") or Figure(device.total, 0, "bytes", 0)
    if peak is None or kv is None:
        return [Share("weights", weights, ("weights",))] if weights is not None else []
    left = Share("left free by the fraction", difference(total, peak, kv), (LEFT_FREE,), "total less peak and cache")
    if weights is None:
        return [
            Share(
                "peak: weights, activations, outside torch", peak, ("weights", "activation", "runtime", "cuda_graph")
            ),
            left,
        ]
    beside = difference(peak, weights)
    return [
        Share("weights", weights, ("weights",)),
        Share("activations, outside torch", beside, ("activation", "runtime", "cuda_graph"), "peak less weights"),
        left,
    ]


TABLE = LogTable("tensorrt-llm", LINES, ("kv", "kv_tokens", "peak"), settle, shares)

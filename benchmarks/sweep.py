"""How many plans a second a sweep computes, and how long a whole process takes to write a million of them.

    python benchmarks/sweep.py                          measures this checkout
    python benchmarks/sweep.py --python venv/bin/python   the process with the kvplan that is installed there

The first table counts computing alone, on one core, in CPU seconds: once over two axes, and once over a
million pool sizes, where no two plans share a figure of the pool. The second starts `kvplan sweep`, writes
CSV, and reads its time and the most memory it held. Where there is a limit, the exit status is 1 beyond it.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from kvplan import load_gpu, load_model  # noqa: E402
from kvplan.planning.sweep import Base, Sweep  # noqa: E402
from kvplan.planning.sweep_axes import Axis  # noqa: E402
from kvplan.planning.sweep_figures import SPEED, USUAL  # noqa: E402

TWO_AXES = (Axis("max_model_len", range(128, 128_001, 128)), Axis("concurrency", range(1, 1001)))
WORKLOADS = (Axis("prompt_tokens", range(100, 100_001, 100)), Axis("concurrency", range(1, 1001)))
PREFIXES = (Axis("shared_prefix_tokens", range(0, 100_000, 100)), Axis("concurrency", range(1, 1001)))
POOLS = (Axis("kv_cache_memory_bytes", range(10**9, 60 * 10**9, 59_000)),)
CASES: tuple[tuple[str, str, dict[str, Any], tuple[Axis, ...], tuple[str, ...], str, int], ...] = (
    ("llama-3.1-8b", "generic", {}, TWO_AXES, USUAL, "length x concurrency", 1_000_000),
    ("llama-3.1-8b", "vllm", {}, TWO_AXES, USUAL, "length x concurrency", 1_000_000),
    ("llama-3.1-8b", "generic", {}, POOLS, USUAL, "pool size", 1_000_000),
    ("llama-3.1-8b", "vllm", {}, POOLS, USUAL, "pool size", 1_000_000),
    ("gemma-3-27b", "generic", {}, POOLS, USUAL, "pool size", 200_000),
    ("gemma-3-27b", "vllm", {}, POOLS, USUAL, "pool size", 200_000),
    ("qwen3-next-80b-a3b", "vllm", {"tensor_parallel_size": 2}, POOLS, USUAL, "pool size", 200_000),
    ("qwen3-next-80b-a3b", "vllm", {"tensor_parallel_size": 2}, TWO_AXES, USUAL, "length x concurrency", 200_000),
    ("llama-3.1-8b", "vllm", {"prompt_tokens": 100_000}, PREFIXES, USUAL, "prefix x concurrency", 1_000_000),
    ("gemma-3-27b", "vllm", {"prompt_tokens": 100_000}, PREFIXES, USUAL, "prefix x concurrency", 200_000),
    ("llama-3.1-8b", "vllm", {}, WORKLOADS, (*USUAL, *SPEED), "prompt x concurrency, with speed", 0),
)
"""(model, engine, settings, axes, figures, what varies, plans a second at least)."""
PROCESS_SECONDS = 10.0
GROWTH = 1.25
"""Times the memory of a sweep of a hundredth that the whole one may hold."""


def rate(
    model: str, engine: str, settings: Mapping[str, Any], axes: tuple[Axis, ...], figures: tuple[str, ...]
) -> float:
    """Plans a second of CPU time: the median of three runs, the first of which is not counted."""
    base = Base(load_model(model), load_gpu("h200-sxm"), engine, dict(settings))
    found = []
    for _ in range(4):
        start = time.process_time()
        count = sum(block.size for block in Sweep(lambda _: base, axes, figures).blocks())
        found.append(count / (time.process_time() - start))
    return statistics.median(found[1:])


def process(python: str, lengths: int, folder: str) -> tuple[float, float, int]:
    """(seconds, most MiB held, bytes written) of one ``kvplan sweep`` over `lengths` x 1,000 plans to CSV."""
    path = os.path.join(folder, f"{lengths}.csv")
    words = [
        python, "-m", "kvplan", "sweep", "llama-3.1-8b", "--gpu", "h200-sxm", "--quiet", "-o", path,
        "--vary", f"max-model-len=128..{128 * lengths}:128", "--vary", "concurrency=1..1000",
    ]  # fmt: skip
    start = time.perf_counter()
    child = subprocess.Popen(words, cwd=ROOT if python == sys.executable else "/")
    _, status, usage = os.wait4(child.pid, 0)
    seconds = time.perf_counter() - start
    if status:
        raise SystemExit(f"{' '.join(words)} ended with {os.waitstatus_to_exitcode(status)}")
    return seconds, usage.ru_maxrss / 1024, os.path.getsize(path)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--python", default=sys.executable, help="a python that has kvplan installed")
    python = parser.parse_args().python
    missed = 0
    print(f"{'plans/s per core':>18}  {'at least':>10}  case")
    for model, engine, settings, axes, figures, what, least in CASES:
        found = rate(model, engine, settings, axes, figures)
        missed += found < least
        print(f"{found:>18,.0f}  {f'{least:,}' if least else '':>10}  {model}, {engine}: {what}")
    with tempfile.TemporaryDirectory() as folder:
        process(python, 1, folder)  # once, so that bytecode is there
        _, small, _ = process(python, 100, folder)
        seconds, most, size = process(python, 1000, folder)
    missed += seconds > PROCESS_SECONDS or most > GROWTH * small
    print(
        f"\n1,000 x 1,000 plans to CSV ({size / 2**20:.0f} MiB), the whole process: {seconds:.2f} s "
        f"(at most {PROCESS_SECONDS:g}), {most:.0f} MiB held ({small:.0f} for 100 x 1,000)"
    )
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())

"""How long simulations take, and what the PagedAttention paper's experiment gives here.

    python benchmarks/simulate.py TRACE        Mooncake's conversation trace, whole, and synthetic ones
    python benchmarks/simulate.py --paper      OPT-13B on one A100-40GB: waste, batches, throughput (docs/simulate.md)
    python benchmarks/simulate.py TRACE --million   a million synthetic requests too (minutes)

TRACE is ``FAST25-release/traces/conversation_trace.jsonl`` of kvcache-ai/Mooncake. Times are CPU seconds of one
process that reads, simulates and works out the figures; memory is the most it held. Where there is a limit, the exit
status is 1 beyond it.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent

CHILD = """
import json, resource, sys, time
from kvplan.deployment import find_deployment
from kvplan.simulate.site import prepare
from kvplan.simulate.results import figures
from kvplan.simulate.run import Options, simulate
from kvplan.simulate.taking import take_trace
case = json.loads(sys.argv[1])
start = time.process_time()
trace = take_trace(case["path"], {"synthetic": case["spec"]} if case["spec"] else {})
site = prepare(find_deployment(case["model"], case["settings"]))
result = figures(simulate(site, trace, Options(**case["options"])))
seconds = time.process_time() - start
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
print(json.dumps({"seconds": seconds, "kib": peak, "requests": len(trace), "hits": result.cache.hit_rate,
    "finished": result.scheduling.finished, "steps": result.scheduling.steps, "waste": result.memory.waste._asdict(),
    "stored": result.memory.stored_share, "batch": result.scheduling.mean_batch,
    "rate": result.throughput.requests_per_second, "ttft": result.latency.ttft.mean,
    "internal": result.memory.waste.internal}))
"""

SYNTHETIC = "requests={},lengths=sharegpt,rate=20,longest=4096"
MEGABYTES = 500
PAPER = {
    "gpu": "a100-sxm4-40gb", "kv_cache_memory_bytes": 12 << 30, "enable_prefix_caching": False,
    "max_num_batched_tokens": 2560, "max_num_seqs": 256,
}  # fmt: skip
"""12 GiB of cache (15.7K token slots of OPT-13B) are the paper's table 1; no sharing, as Orca has none."""
PUBLISHED: dict[str, tuple[str, ...]] = {
    "max": ("20.4", "13.3", "57.3", "8.9", "7.00"),
    "pow2": ("26.8", "17.9", "13.6", "41.6", "9.81"),
    "oracle": ("38.2", "25.2", "-", "36.6", "13.62"),
    "paged": ("96.3", "-", "-", "3.7", "30.42"),
}
"""Figure 2 (token states, reservation, internal, external and others, per cent) and figure 13a (batched requests)."""
PUBLISHED_ALPACA = {"max": "7.00", "pow2": "43.24", "oracle": "72.75", "paged": "132.44"}
"""Figure 13b (batched requests)."""
PUBLISHED_SAVING = {
    ("sharegpt", 1.0): ("16.2", "", "30.5"), ("sharegpt", 0.5): ("44.3", "", "66.3"),
    ("alpaca", 1.0): ("6.09", "8.53", "9.79"), ("alpaca", 0.5): ("37.56", "53.13", "55.16"),
}  # fmt: skip
"""Figure 15 and section 6.3: per cent of the blocks that 2, 4 and 6 samples (1.0) or beams (0.5) save by sharing."""


def measured(
    model: str, settings: dict[str, Any], *, path: str | None = None, spec: str | None = None, **options: Any
) -> dict[str, Any]:
    """The figures of one simulation in a process of its own."""
    case = {"model": model, "settings": settings, "path": path, "spec": spec, "options": options}
    done = subprocess.run(
        [sys.executable, "-c", CHILD, json.dumps(case)], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return dict(json.loads(done.stdout))


def speed(path: str, million: bool) -> int:
    """The table of times; 1 where a limit is passed."""
    h100 = {"gpu": "h100-sxm"}
    cases: list[tuple[str, dict[str, Any], dict[str, Any], float]] = [
        ("conversation trace, block 512", {**h100, "block_size": 512}, {"path": path}, 10),
        ("conversation trace, block 16", {**h100, "block_size": 16}, {"path": path}, 60),
    ]
    for count in (10_000, 40_000, *([1_000_000] if million else [])):
        cases.append((f"{count:,} synthetic requests", h100, {"spec": SYNTHETIC.format(count)}, 0))
    status = 0
    print(f"{'case':<32}{'requests':>10}{'CPU s':>9}{'us/request':>12}{'MB':>7}{'hit rate':>10}{'steps':>11}")
    for name, settings, trace, limit in cases:
        found = measured("llama-3.1-8b", settings, **trace)
        seconds, megabytes = found["seconds"], found["kib"] * 1024 / 1e6
        over = (limit and seconds > limit) or (limit and megabytes > MEGABYTES)
        status |= bool(over)
        each = seconds / found["requests"] * 1e6
        print(
            f"{name:<32}{found['requests']:>10,}{seconds:>9.2f}{each:>12.0f}{megabytes:>7.0f}{found['hits']:>10.1%}"
            f"{found['steps']:>11,}{'  over the limit' if over else ''}"
        )
    return status


def paper() -> int:
    """The tables of ``docs/simulate.md``."""
    print("| memory | token states | reserved | internal | external | batched requests | requests/s, overloaded |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for lengths, steady, over in (("sharegpt", 2.0, 4.0), ("alpaca", 30.0, 150.0)):
        for name in PUBLISHED:
            run = measured("opt-13b", PAPER, spec=_spec(lengths, steady, 1800), allocator=name)
            full = measured("opt-13b", PAPER, spec=_spec(lengths, over, 600), allocator=name)
            shares = [run["stored"], *(run["waste"][part] for part in ("reserved", "internal", "external"))]
            known = PUBLISHED[name] if lengths == "sharegpt" else ("",) * 4 + (PUBLISHED_ALPACA[name],)
            cells = [f"{100 * s:.1f}{f' ({k})' if k else ''}" for s, k in zip(shares, known, strict=False)]
            batch = f"{run['batch']:.2f}{f' ({known[4]})' if known[4] else ''}"
            print(f"| {lengths}, {name} | {' | '.join(cells)} | {batch} | {full['rate']:.2f} |")
    return 0


def sharing() -> None:
    """Blocks that samples and beams of one request share, block by block, at the means of the lengths."""
    from kvplan.simulate.allocators.blocks import beam_search

    print("\n| blocks saved, % | 2 | 4 | 6 |\n| --- | --- | --- | --- |")
    for (lengths, stays), known in PUBLISHED_SAVING.items():
        prompt, output = {"sharegpt": (161, 338), "alpaca": (19, 58)}[lengths]
        saved = [beam_search(prompt, output, width, 16, seed=1, stays=stays).saved for width in (2, 4, 6)]
        cells = [f"{100 * s:.1f}{f' ({k})' if k else ''}" for s, k in zip(saved, known, strict=True)]
        print(f"| {lengths}, {'samples' if stays == 1 else 'beams'} | {' | '.join(cells)} |")


def _spec(lengths: str, rate: float, seconds: int) -> str:
    return f"requests={int(rate * seconds)},lengths={lengths},rate={rate},longest=2048,seed=1"


def main() -> int:
    parser = argparse.ArgumentParser(description="times of simulations, and the PagedAttention paper's experiment")
    parser.add_argument("trace", nargs="?", help="Mooncake's conversation trace")
    parser.add_argument("--paper", action="store_true")
    parser.add_argument("--million", action="store_true")
    args = parser.parse_args()
    if args.paper:
        status = paper()
        sharing()
        return status
    if not args.trace:
        parser.error("TRACE is missing")
    return speed(str(Path(args.trace).resolve()), args.million)


if __name__ == "__main__":
    sys.exit(main())

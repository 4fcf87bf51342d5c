"""How long ``kvplan check`` takes: 1,000 deployments that all differ, on one core, and one deployment beside one plan.

    python benchmarks/check.py            print the figures
    python benchmarks/check.py --max 5    exit 1 where the 1,000 take more CPU seconds than that

Deployments differ in model, GPU, engine, layout and length; half are fields, half are command lines. One in fifty
breaks a rule, for which the smallest change that passes is looked for. The best of some runs counts; on a busy machine
the CPU seconds are the ones to read.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
MODELS = (
    ("llama-3.1-8b", "meta-llama/Llama-3.1-8B-Instruct", 1), ("llama-3.1-70b", "meta-llama/Llama-3.1-70B-Instruct", 4),
    ("qwen3-32b", "Qwen/Qwen3-32B", 2), ("gemma-3-27b", "google/gemma-3-27b-it", 2),
    ("mistral-small-24b-2501", "mistralai/Mistral-Small-24B-Instruct-2501", 2), ("qwen3-8b", "Qwen/Qwen3-8B", 1),
    ("gpt-oss-120b", "openai/gpt-oss-120b", 2), ("deepseek-v3", "deepseek-ai/DeepSeek-V3", 8),
)  # fmt: skip
GPUS = ("h100-sxm", "h200-sxm", "b200-sxm")
HEAD = """schema: kvplan.rules/1
workloads:
  chat: {prompt-tokens: 2K, output-tokens: 500, concurrency: 4}
rules:
  - verdict.fits == true
  - {rule: memory.unused_bytes >= 1 %, level: warn}
  - capacity.requests_at(4K) >= 4
deployments:
"""


def rule_file(count: int) -> str:
    """A rule file of `count` deployments, no two alike."""
    lines = [HEAD]
    for number in range(count):
        model, name, tp = MODELS[number // 2 % len(MODELS)]
        gpu = "h200-sxm" if model == "deepseek-v3" else GPUS[number // 16 % len(GPUS)]
        length = 8192 + 16 * number
        lines.append(f"  d{number}:\n    gpu: {gpu}\n    workloads: chat\n")
        if number % 2:
            lines.append(f"    command: vllm serve {name} -tp {tp} --max-model-len {length} --max-num-seqs 256\n")
        else:
            lines.append(f"    model: {model}\n    tp: {tp}\n    max-model-len: {length}\n")
        if number % 50 == 7:
            lines.append("    rules: [capacity.max_concurrency >= 100000]\n")
        elif number % 50 == 9:
            lines.append("    rules: [capacity.max_concurrency >= 60]\n")
    return "".join(lines)


def seconds(words: list[str], folder: str, runs: int = 3) -> tuple[float, float]:
    """(wall-clock seconds, CPU seconds) of ``kvplan`` on one core, the best of several runs each."""
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    wall, cpu = [], []
    for _ in range(runs):
        start, used = time.perf_counter(), _used()
        done = subprocess.run(
            [sys.executable, "-m", "kvplan", *words], cwd=folder, env=env, capture_output=True, text=True,
            preexec_fn=_one_core if hasattr(os, "sched_setaffinity") else None,
        )  # fmt: skip
        wall.append(time.perf_counter() - start)
        cpu.append(_used() - used)
        if done.returncode not in (0, 1):
            raise SystemExit(done.stderr)
    return min(wall), min(cpu)


def _used() -> float:
    """CPU seconds of all processes that this one has waited for."""
    times = os.times()
    return times.children_user + times.children_system


def _one_core() -> None:
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--max", type=float, help="CPU seconds that 1,000 deployments may take")
    parser.add_argument("--count", type=int, default=1000, help="deployments (default 1,000)")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "many.yaml").write_text(rule_file(args.count))
        Path(folder, "one.yaml").write_text(rule_file(1))
        many = seconds(["check", "many.yaml"], folder)
        as_json = seconds(["check", "many.yaml", "--json", "-o", "many.json"], folder)
        one = seconds(["check", "one.yaml"], folder, 5)
        plan = seconds(["plan", "llama-3.1-8b", "--gpu", "h100-sxm", "-tp", "1", "--max-model-len", "8192"], folder, 5)
    print("                          wall       CPU")
    for name, (wall, cpu) in (
        (f"{args.count:,} deployments", many), ("the same, --json", as_json), ("one deployment", one),
        ("one plan", plan),
    ):  # fmt: skip
        print(f"{name:22}{wall:7.3f} s {cpu:7.3f} s")
    return int(args.max is not None and many[1] > args.max)


if __name__ == "__main__":
    sys.exit(main())

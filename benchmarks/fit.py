"""How long ``kvplan fit`` takes over the whole catalog of GPUs, as a process of its own.

    python benchmarks/fit.py                           measures this checkout
    python benchmarks/fit.py --python venv/bin/python  the kvplan that is installed there

Prints wall-clock and CPU seconds of the fastest of some runs (others on the machine only make it slower), beside how
many candidates were worked out. The exit status is 1 beyond the limit.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SECONDS = 2.0
CASES: tuple[tuple[str, tuple[str, ...], bool], ...] = (
    ("llama-3.1-8b", ("--request-rate", "10", "--ttft", "0.5", "--tpot", "0.03"), True),
    ("llama-3.1-70b", ("--request-rate", "5", "--ttft", "1", "--tpot", "0.03"), True),
    ("llama-3.1-8b", ("--concurrency", "200", "--tpot", "0.05"), True),
    ("deepseek-v3", ("--concurrency", "200", "--tpot", "0.05"), False),
    ("qwen3-next-80b-a3b", ("--request-rate", "5", "--tpot", "0.03"), False),
)
"""(model, flags, whether the limit holds for it)."""


def once(command: list[str]) -> tuple[float, float, bytes]:
    """(wall-clock seconds, CPU seconds, what was printed) of one process."""
    before, start = os.times(), time.perf_counter()
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=False)
    after = os.times()
    if done.returncode not in (0, 1):
        raise SystemExit(f"{' '.join(command)} ended with {done.returncode}")
    spent = after.children_user + after.children_system - before.children_user - before.children_system
    return time.perf_counter() - start, spent, done.stdout


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--python", default=sys.executable, help="a python that has kvplan installed")
    parser.add_argument("--runs", type=int, default=5)
    given = parser.parse_args()
    late = 0
    print(f"{'wall s':>7}  {'CPU s':>6}  {'limit':>5}  {'candidates':>10}  case")
    for model, flags, limited in CASES:
        runs = [once([given.python, "-m", "kvplan", "fit", model, *flags, "--json"]) for _ in range(given.runs)]
        wall, spent = min(run[0] for run in runs), min(run[1] for run in runs)
        count = json.loads(runs[0][2])["candidates"]
        late += limited and wall > SECONDS
        limit = f"{SECONDS:g}" if limited else ""
        print(f"{wall:>7.2f}  {spent:>6.2f}  {limit:>5}  {count:>10,}  {model} {' '.join(flags)}")
    return 1 if late else 0


if __name__ == "__main__":
    sys.exit(main())

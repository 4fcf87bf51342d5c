"""How much CPU time a command costs, as a multiple of ``python -c pass``.

    python benchmarks/startup.py                              installs this checkout's wheel, runs the usual commands
    python benchmarks/startup.py --python venv/bin/python     uses the kvplan that is installed there
    python benchmarks/startup.py "plan qwen3-32b --json"      measures that command

A ratio is the median of interleaved pairs (one bare interpreter, one command), so a machine that
slows down half-way slows both. User and system time of the child are counted, not waiting. Every
command runs once before, so that bytecode is there. Where a command has a limit, the exit status is 1
when its ratio is above it.
"""

from __future__ import annotations

import argparse
import os
import resource
import shlex
import statistics
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
USUAL: dict[str, float | None] = {
    "plan llama-3.1-8b --gpu h100-sxm --json": 10.0,
    "plan llama-3.1-8b --gpu h100-sxm --format table": 14.0,
    "explain llama-3.1-8b --format table": None,
    "models list --format table": None,
    "gpus list --format table": None,
    "formats --format table": None,
    "gpus --help": None,
}
"""command -> the ratio it may not exceed."""


def install(folder: Path) -> Path:
    """A new virtual environment in `folder` with this checkout installed from a wheel; its python."""
    venv.create(folder, with_pip=True)
    python = folder / "bin" / "python"
    subprocess.run([python, "-m", "pip", "install", "--quiet", ROOT], check=True, env=environment())
    return python


def environment() -> dict[str, str]:
    """This process's environment without what changes how an interpreter starts or what it imports."""
    return {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}


def cpu_seconds(command: list[str]) -> float:
    """User and system seconds of one run.

    Raises:
        SystemExit: it ended with another status than 0 (fits) or 1 (does not fit).
    """
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, env=environment(), cwd="/"
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode not in (0, 1):
        raise SystemExit(
            f"{shlex.join(command)}: exit status {done.returncode}: {done.stderr.decode(errors='replace')}"
        )
    return after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime


def ratio(bare: list[str], command: list[str], pairs: int) -> tuple[float, float, float]:
    """(median, lowest, highest) ratio over interleaved pairs."""
    cpu_seconds(bare)
    cpu_seconds(command)
    found = []
    for _ in range(pairs):
        base = cpu_seconds(bare)
        found.append(cpu_seconds(command) / base)
    return statistics.median(found), min(found), max(found)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("commands", nargs="*", metavar="COMMAND", help="what follows the word kvplan, in quotes")
    parser.add_argument("--python", type=Path, help="an interpreter that has kvplan installed")
    parser.add_argument("--pairs", type=int, default=9)
    args = parser.parse_args()
    commands = dict.fromkeys(args.commands) if args.commands else USUAL
    with tempfile.TemporaryDirectory() as folder:
        python = (args.python or install(Path(folder) / "venv")).absolute()  # not resolved: that would leave the venv
        script = python.with_name("kvplan")
        late = 0
        print(f"{'ratio':>6}  {'lowest':>6}  {'highest':>7}  {'limit':>5}  command")
        for words, limit in commands.items():
            middle, low, high = ratio([str(python), "-c", "pass"], [str(script), *shlex.split(words)], args.pairs)
            late += limit is not None and middle > limit
            print(f"{middle:6.2f}  {low:6.2f}  {high:7.2f}  {limit or '':>5}  kvplan {words}", flush=True)
    return 1 if late else 0


if __name__ == "__main__":
    sys.exit(main())

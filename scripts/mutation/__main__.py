"""Whether the tests would notice: random small faults in the core, each run against the tests that reach it.

    pip install coverage pytest-cov                       # the only needs besides the development extra
    python scripts/mutation tests                         # once: which test reaches which line, and their times
    python scripts/mutation run --sample 200 --seed 9     # faults drawn per package; goes on where it stopped
    python scripts/mutation tests tests/cache/test_x.py   # the same for new tests alone
    python scripts/mutation again                         # the survivors once more, after tests were added
    python scripts/mutation report                        # killed and survived per package, and the survivors
    python scripts/mutation sound                         # whether the tests that noticed pass without a fault

A sample is drawn uniformly from a package's sites (``sites.py``), and one alternative of each. A fault lives in the
memory of a forked process alone (``fork.py``), so the tree is never touched. Of the tests that execute the line
(``reach.py``; for what runs at import, those that reach the code that uses it), those that noticed most faults of this
module and of others come first, then those that call the changed function by its name, then those that mirror the
module; different test functions before further cases of one, quick ones before slow ones. The first failure ends a
trial, and so does a test that takes five times as long.
"""

from __future__ import annotations

import argparse
import ast
import json
import math
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from contextlib import suppress
from itertools import zip_longest
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from fork import NAMED, Session
from reach import LEFT_OUT, PACKAGES, ROOT, Tests, learn
from sites import sites

FIRST = 12
"""Tests that are tried whatever their time."""
WALL_SECONDS = 300
"""After which a trial is given up: not counted as noticed, since the machine may have been busy."""


class Mutant(NamedTuple):
    """One fault: the module and which alternative of which of its sites."""

    path: str
    site: int
    alternative: int


class Trial(NamedTuple):
    """A mutant on trial: what is known of it, and the process that runs its tests."""

    row: dict[str, Any]
    tells: int
    began: float


def ordered(reaching: list[str], path: str, noticed: Counter[tuple[str, str]]) -> list[str]:
    """Tests that noticed faults before come first: three of this module's, then three of any."""
    overall: Counter[str] = Counter()
    for (_, test), times in noticed.items():
        overall[test] += times
    own = sorted((t for t in reaching if noticed[path, t]), key=lambda t: -noticed[path, t])[:3]
    others = sorted((t for t in reaching if overall[t] > 1), key=lambda t: -overall[t])[:3]
    return list(dict.fromkeys((*own, *others, *reaching)))


def begin(
    session: Session, mutant: Mutant, tests: Tests, longest: float, noticed: Counter[tuple[str, str]]
) -> tuple[int, Trial]:
    """(process, trial): set a fault and have the tests that reach it run."""
    tree = ast.parse((ROOT / mutant.path).read_text(encoding="utf-8"))
    site = sites(tree)[mutant.site]
    reaching = [test for test in tests.reaching(mutant.path, site, tree) if test in session.items]
    reaching = ordered(reaching, mutant.path, noticed)
    tried, spent = reaching[:FIRST], 0.0
    for test in reaching[FIRST:]:
        spent += tests.time(test)
        if spent > longest:
            break
        tried.append(test)
    row: dict[str, Any] = {**mutant._asdict(), "line": site.node.lineno, "before": ast.unparse(site.node)[:160]}
    other = site.alternatives[mutant.alternative]
    site.put(other)
    row |= {"after": ast.unparse(other)[:160], "reaching": len(reaching), "tried": len(tried)}
    process, tells = session.start(mutant.path, tree, site, {test: tests.time(test) for test in tried})
    return process, Trial(row, tells, time.monotonic())


def end(trial: Trial, status: int) -> dict[str, Any]:
    """What came of a trial whose process ended."""
    with os.fdopen(trial.tells, "rb") as told:
        by = told.read().decode(errors="replace").split("\n")[0]
    late = time.monotonic() - trial.began > WALL_SECONDS
    outcome = "given up" if late else NAMED.get(status, "killed" if by else "error")
    return trial.row | {
        "outcome": outcome,
        "by": by or f"(exit {status})",
        "seconds": round(time.monotonic() - trial.began, 1),
    }


class Run:
    """The pytest plugin that tries mutants instead of running the tests it has collected."""

    def __init__(self, rows: list[Mutant], store: Path, jobs: int, longest: float, name: str) -> None:
        self.rows, self.store, self.jobs, self.longest, self.name = rows, store, jobs, longest, name

    def pytest_runtestloop(self, session: Any) -> bool:
        """Judge mutants and append what came of each to a file."""
        parent, tests, trials = Session(session), Tests(self.store), dict[int, Trial]()
        waiting, noticed = self.rows[::-1], Counter[tuple[str, str]]()
        with (self.store / self.name).open("a", encoding="utf-8") as out:
            while waiting or trials:
                while waiting and len(trials) < self.jobs:
                    process, trial = begin(parent, waiting.pop(), tests, self.longest, noticed)
                    trials[process] = trial
                process, raw = os.waitpid(-1, os.WNOHANG)
                for late in [p for p, t in trials.items() if time.monotonic() - t.began > WALL_SECONDS]:
                    with suppress(ProcessLookupError):
                        os.killpg(late, signal.SIGKILL)
                if process not in trials:
                    time.sleep(0.02)
                    continue
                done = end(trials.pop(process), os.waitstatus_to_exitcode(raw))
                noticed[done["path"], done["by"]] += done["outcome"] == "killed"
                os.write(out.fileno(), (json.dumps(done) + "\n").encode())
                text = f"{done['outcome']:9} {done['path']}:{done['line']}  {done['before']} -> {done['after']}\n"
                os.write(2, text.encode())
        return True


def run(plugin: Run) -> int:
    """Try mutants in forks of one pytest session."""
    sys.path.insert(0, str(ROOT))
    os.chdir(ROOT)
    os.environ["CI"] = "1"
    options = ["-q", "-p", "no:cacheprovider", "--capture=no", *(f"--ignore={path}" for path in LEFT_OUT)]
    return int(pytest.main(options, plugins=[plugin]))


def draw(package: str, size: int, seed: int) -> list[Mutant]:
    """A uniform sample of a package's sites, one alternative of each."""
    found = []
    for file in sorted((ROOT / "kvplan" / package).rglob("*.py")):
        for n, site in enumerate(sites(ast.parse(file.read_text(encoding="utf-8")))):
            found.append((str(file.relative_to(ROOT)), n, len(site.alternatives)))
    rng = random.Random(f"{seed} {package}")
    print(f"{package}: {len(found)} sites", file=sys.stderr)
    return [Mutant(p, n, rng.randrange(k)) for p, n, k in rng.sample(found, min(size, len(found)))]


def read(store: Path) -> dict[Mutant, dict[str, Any]]:
    """The last judgement of each mutant."""
    rows = [
        json.loads(line)
        for file in ("run.jsonl", "again.jsonl")
        if (store / file).exists()
        for line in (store / file).read_text(encoding="utf-8").splitlines()
    ]
    return {Mutant(row["path"], row["site"], row["alternative"]): row for row in rows}


def interval(killed: int, of: int, z: float = 1.96) -> tuple[float, float]:
    """The Wilson interval of a share, 95 %."""
    p, d = killed / of, 1 + z * z / of
    half = z * math.sqrt(p * (1 - p) / of + z * z / (4 * of * of))
    return (p + z * z / (2 * of) - half) / d, (p + z * z / (2 * of) + half) / d


def report(store: Path) -> None:
    """A row per package, then the survivors."""
    rows = list(read(store).values())
    counts = {p: Counter(row["outcome"] for row in rows if row["path"].startswith(f"kvplan/{p}/")) for p in PACKAGES}
    print("| package | mutants | killed | survived | share | 95 % interval |\n| --- | --: | --: | --: | --: | --- |")
    for package, count in counts.items():
        total, killed = sum(count.values()), count["killed"] + count["timeout"]
        if total:
            low, high = interval(killed, total)
            print(
                f"| `{package}/` | {total} | {killed} | {total - killed} |"
                f" {killed / total:.1%} | {low:.1%} to {high:.1%} |"
            )
    for row in sorted(rows, key=lambda r: (r["path"], r["line"])):
        if row["outcome"] not in ("killed", "timeout"):
            print(f"{row['path']}:{row['line']}: {row['before']} -> {row['after']}   [{row['tried']} tests]")


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("step", choices=("tests", "run", "again", "report", "sound"))
    parser.add_argument("files", nargs="*", help="with tests: files of new tests, added to what is known")
    parser.add_argument(
        "--store", type=Path, default=ROOT / "build" / "mutation", help="where lines, times and results are kept"
    )
    parser.add_argument("--sample", type=int, default=200, help="mutants per package")
    parser.add_argument("--seed", type=int, default=9)
    parser.add_argument(
        "--longest", type=float, default=10.0, help="seconds of tests tried on a mutant, by usual times"
    )
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--package", choices=PACKAGES, action="append", help="only this; may be repeated")
    asked = parser.parse_intermixed_args()
    asked.store.mkdir(parents=True, exist_ok=True)
    if asked.step == "tests":
        return learn(asked.store, asked.files)
    if asked.step == "report":
        report(asked.store)
        return 0
    known = read(asked.store)
    if asked.step == "sound":
        noticed = sorted({row["by"] for row in known.values() if "::" in row["by"]})
        return subprocess.call(
            [sys.executable, "-m", "pytest", "-q", *noticed], cwd=ROOT, env={**os.environ, "CI": "1"}
        )
    if asked.step == "again":
        rows = [m for m, row in known.items() if row["outcome"] not in ("killed", "timeout")]
    else:
        turns = zip_longest(*(draw(p, asked.sample, asked.seed) for p in asked.package or PACKAGES))
        rows = [mutant for turn in turns for mutant in turn if mutant and mutant not in known]
    return run(Run(rows, asked.store, asked.jobs, asked.longest, f"{asked.step}.jsonl"))


if __name__ == "__main__":
    sys.exit(main())

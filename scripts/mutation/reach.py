"""Which tests can notice a change of a line, from one recorded run: for the mutation runs."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
import xml.etree.ElementTree as ET
from collections import defaultdict
from functools import cache
from pathlib import Path

from sites import Site

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("cache", "engines", "planning")
LEFT_OUT = ("tests/probe", "tests/fuzz", "tests/docs", "tests/hardening", "tests/cli/test_startup.py")
"""Tests of other processes, of the probe and of texts, and those that ask only that nothing is raised."""


def learn(store: Path, only: list[str]) -> int:
    """Run the tests once with coverage contexts; some files: add these to what is known."""
    source = ",".join(f"kvplan/{p}" for p in PACKAGES)
    (store / "coveragerc").write_text(f"[run]\nsource = {source}\ndata_file = {store / 'lines.db'}\n")
    times = store / f"times-{len(list(store.glob('times-*.xml'))) if only else 0}.xml"
    command = [sys.executable, "-m", "pytest", "-q", *(only or [f"--ignore={path}" for path in LEFT_OUT])]
    command += ["--cov", f"--cov-config={store / 'coveragerc'}", "--cov-context=test", "--cov-report="]
    command += [f"--junitxml={times}", *(["--cov-append"] if only else [])]
    return subprocess.call(command, cwd=ROOT, env={**os.environ, "CI": "1"})


class Tests:
    """Which tests reach which lines, and how long each takes."""

    def __init__(self, store: Path) -> None:
        from coverage import CoverageData

        self.data = CoverageData(str(store / "lines.db"))
        self.data.read()
        self.files = {os.path.relpath(f, _root_of(f)): f for f in self.data.measured_files()}
        self.seconds: dict[str, float] = {}
        self.silent: set[str] = set()
        for file in store.glob("times-*.xml"):
            for case in ET.parse(file).getroot().iter("testcase"):
                name = f"{case.get('classname')}::{case.get('name')}"
                self.seconds[name] = float(case.get("time") or 0)
                if len(case):  # failed or skipped: it would tell nothing
                    self.silent.add(name)

    def time(self, test: str) -> float:
        """Seconds that a test took when the lines were recorded."""
        return self.seconds.get(_junit(test), 0.05)

    @cache  # noqa: B019
    def lines(self, path: str) -> dict[int, set[str]]:
        """Line to tests, of one file of the packages."""
        found = self.data.contexts_by_lineno(self.files[path]) if path in self.files else {}
        return {line: {c.split("|")[0] for c in contexts if c} for line, contexts in found.items()}

    def at(self, path: str, first: int, last: int) -> set[str]:
        """Tests that execute any of these lines."""
        lines = self.lines(path)
        return set().union(*(lines.get(line, set()) for line in range(first, last + 1)))

    @cache  # noqa: B019
    def importing(self, path: str) -> frozenset[str]:
        """Tests of the files that name a module: they may look at what it defines without running a line of it."""
        name = path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
        stated = {known: known.partition("::")[0].replace(".", "/") + ".py" for known in self.seconds}
        files = {
            file for file in stated.values() if (ROOT / file).exists() and name in (ROOT / file).read_text("utf-8")
        }
        return frozenset(file + "::" + known.partition("::")[2] for known, file in stated.items() if file in files)

    def _asking(self, path: str, cached: ast.FunctionDef | ast.AsyncFunctionDef) -> set[str]:
        """Tests of a cached function: only the first that asks ran its lines, but a fork begins with empty caches."""
        name = re.compile(rf"\b{cached.name}\(")
        uses = ((p, n) for p, lines in _texts().items() for n, text in enumerate(lines, 1) if name.search(text))
        return set().union(self.importing(path), *(self.at(p, n, n) for p, n in uses))

    def reaching(self, path: str, site: Site, tree: ast.Module) -> list[str]:
        """Tests that can notice a change of a site, in the order they are tried."""
        if site.inside is not None:
            node, statement = site.node, site.statement
            found = self.at(path, node.lineno, node.end_lineno or node.lineno) or self.at(
                path, statement.lineno, statement.lineno
            )
            if any("cache" in ast.unparse(how) for how in site.inside.decorator_list):
                found = found | self._asking(path, site.inside)
        else:
            found = set().union(*(self.at(p, line, line) for p, line in _uses(path, site, tree)))
            for kind in (node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)):
                if kind.lineno <= site.node.lineno <= (kind.end_lineno or 0):
                    found |= self.at(path, kind.lineno, kind.end_lineno or 0)
            found |= self.importing(path)
            if not found:  # nothing names it: whatever runs in this module
                found = set().union(*(self.at(path, f.lineno + 1, f.end_lineno or 0) for f in _functions(tree)), set())
        words = set(Path(path).with_suffix("").parts[2:]) - {"engine", "__init__"}
        called = site.inside.name if site.inside is not None else ""
        by_function: dict[str, list[str]] = defaultdict(list)
        told = [test for test in found if _junit(test) not in self.silent]
        for test in sorted(told, key=lambda t: (self.time(t), t)):
            by_function[test.split("[")[0]].append(test)
        turns = [
            (_far(function, called, words), turn, self.time(test), test)
            for function, tests in by_function.items()
            for turn, test in enumerate(tests)
        ]
        return [test for *_, test in sorted(turns)]


def _far(function: str, called: str, words: set[str]) -> int:
    """How far a test function is from the code: it calls the changed function by name, mirrors its module, neither."""
    file, _, name = function.partition("::")
    if called and re.search(rf"\b{called}\(", _bodies(file).get(name, "")):
        return 0
    return 1 if any(word in file for word in words) else 2


@cache
def _bodies(file: str) -> dict[str, str]:
    """Test function -> its text, of one file."""
    text = (ROOT / file).read_text(encoding="utf-8")
    return {f.name: ast.get_source_segment(text, f) or "" for f in _functions(ast.parse(text))}


def _junit(test: str) -> str:
    file, _, name = test.partition("::")
    return file.removesuffix(".py").replace("/", ".") + "::" + name.replace("::", ".")


def _root_of(file: str) -> str:
    return file[: file.index("/kvplan/")]


def _functions(tree: ast.AST) -> list[ast.FunctionDef]:
    return [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]


@cache
def _texts() -> dict[str, list[str]]:
    files = [f for p in PACKAGES for f in sorted((ROOT / "kvplan" / p).rglob("*.py"))]
    return {str(f.relative_to(ROOT)): f.read_text(encoding="utf-8").splitlines() for f in files}


def _uses(path: str, site: Site, tree: ast.Module) -> list[tuple[str, int]]:
    """Lines that name what a statement of the module's or a class's body defines."""
    statement = site.statement
    targets = getattr(statement, "targets", None) or [getattr(statement, "target", None)]
    names = {n.id for t in targets if t is not None for n in ast.walk(t) if isinstance(n, ast.Name)}
    names |= {statement.name} if isinstance(statement, ast.FunctionDef | ast.ClassDef) else set()
    if not names:
        return []
    pattern = re.compile(r"\b(" + "|".join(map(re.escape, sorted(names))) + r")\b")
    own = range(statement.lineno, (statement.end_lineno or statement.lineno) + 1)
    body = own if isinstance(statement, ast.FunctionDef) else ()
    return [
        (p, number)
        for p, lines in _texts().items()
        for number, text in enumerate(lines, 1)
        if (pattern.search(text) and not (p == path and number in own))
        or (p == path and number in body and number > own[0])
    ]

"""The house: the import graph is the one that is written down, files and functions are short, every test asserts."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import grimp
import pytest

ROOT = Path(__file__).parents[2]
CODE = ("kvplan", "scripts", "benchmarks", "tests", ".ci")
MOST_LINES = 400
"""Of a file that nobody generates."""
MOST_LINES_OF_A_FUNCTION = 70
GENERATED = "ritten by scripts/"
LOOKED_UP = {("sources", "probe")}
"""Rooms where an import is no part of the flow: ``--gpu auto`` is a name that is looked up on this machine."""
RINGS = (
    ("probe.memory", "probe.sequences"),  # sequences are allocated as layouts are, and are rows of the same section
)
"""Modules that import each other, one way inside a function. There may be fewer."""


@cache
def graph() -> grimp.ImportGraph:
    """Who imports whom at run time; read anew, as grimp's cache mixes up graphs with and without such imports."""
    return grimp.build_graph("kvplan", exclude_type_checking_imports=True, cache_dir=None)


def rings(arrows: dict[str, set[str]]) -> list[tuple[str, ...]]:
    """The strongly connected parts of a graph that have more than one member (Tarjan)."""
    order: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[tuple[str, ...]] = []

    def visit(node: str) -> None:
        order[node] = low[node] = len(order)
        stack.append(node)
        for other in sorted(arrows.get(node, ())):
            if other not in order:
                visit(other)
            if other in stack:
                low[node] = min(low[node], low[other])
        if low[node] == order[node]:
            at = stack.index(node)
            if len(stack) - at > 1:
                found.append(tuple(sorted(stack[at:])))
            del stack[at:]

    for node in sorted(arrows):
        if node not in order:
            visit(node)
    return found


def arrows(depth: int | None = None) -> dict[str, set[str]]:
    """Module (its first `depth` names below kvplan) -> those it imports."""
    found: dict[str, set[str]] = defaultdict(set)
    for module in graph().modules:
        for other in graph().find_modules_directly_imported_by(module):
            here, there = (".".join(name.split(".")[1:][:depth]) for name in (module, other))
            if here != there:
                found[here].add(there)
    return found


def test_the_architecture_page_shows_the_imports_there_are() -> None:
    script = ROOT / "scripts" / "make_import_graph.py"
    done = subprocess.run([sys.executable, str(script), "--check"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{done.stdout}{done.stderr}; `python scripts/make_import_graph.py` writes it anew"


def test_no_room_imports_itself_through_another() -> None:
    between = arrows(1)
    for here, there in LOOKED_UP:
        between[here].remove(there)
    assert rings(between) == []


def test_modules_that_import_each_other_are_the_known_ones() -> None:
    known = [set(ring) for ring in RINGS]
    assert [ring for ring in rings(arrows()) if not any(set(ring) <= each for each in known)] == []


def test_rings_are_found() -> None:
    assert rings({"a": {"b"}, "b": {"c"}, "c": {"a", "d"}, "d": {"e"}}) == [("a", "b", "c")]
    assert rings({"a": {"b", "c"}, "b": {"c"}}) == []


def files(*folders: str) -> Iterator[Path]:
    """The Python files of the project."""
    for folder in folders:
        yield from sorted(path for path in (ROOT / folder).rglob("*.py") if "__pycache__" not in path.parts)


def test_no_file_is_long() -> None:
    found = []
    for path in files(*CODE):
        lines = path.read_text(encoding="utf-8").splitlines()
        if len(lines) > MOST_LINES and GENERATED not in "\n".join(lines[:5]):
            found.append(f"{path.relative_to(ROOT)}: {len(lines)} lines")
    assert found == []


@cache
def functions(path: Path) -> list[ast.FunctionDef | ast.AsyncFunctionDef]:
    """The functions and methods of a file."""
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    return [node for node in ast.walk(ast.parse(path.read_bytes())) if isinstance(node, kinds)]


def test_no_function_is_long() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{each.lineno}: {each.name} has {each.end_lineno - each.lineno + 1} lines"
        for path in files(*CODE)
        for each in functions(path)
        if each.end_lineno is not None and each.end_lineno - each.lineno >= MOST_LINES_OF_A_FUNCTION
    ]
    assert found == []


def called(node: ast.AST) -> str:
    """The last name of what a call calls; empty for anything else."""
    if not isinstance(node, ast.Call):
        return ""
    if isinstance(node.func, ast.Attribute):
        return node.func.attr
    return node.func.id if isinstance(node.func, ast.Name) else ""


ASSERTING = {"raises", "warns", "fail", "assert_called_once", "assert_close", "assert_not_called"}


def asserting(paths: list[Path]) -> set[str]:
    """Names of functions that assert something, themselves or through another one."""
    bodies = [each for path in paths for each in functions(path)]
    found = set(ASSERTING)
    while True:
        more = {
            each.name
            for each in bodies
            if each.name not in found
            and any(isinstance(node, ast.Assert) or called(node) in found for node in ast.walk(each))
        }
        if not more:
            return found
        found |= more


def test_every_test_asserts_something() -> None:
    paths = list(files("tests"))
    known = asserting(paths)
    found = [
        f"{path.relative_to(ROOT)}:{each.lineno}: {each.name}"
        for path in paths
        for each in functions(path)
        if each.name.startswith("test_")
        and not any(isinstance(node, ast.Assert) or called(node) in known for node in ast.walk(each))
    ]
    assert found == []


def test_a_test_that_asserts_nothing_is_found(tmp_path: Path) -> None:
    path = tmp_path / "test_it.py"
    path.write_text("def helper():\n    assert 1\ndef test_a():\n    helper()\ndef test_b():\n    print(1)\n", "utf-8")
    assert {"helper", "test_a"} <= asserting([path])
    assert "test_b" not in asserting([path])


@pytest.mark.parametrize("path", [ROOT / "docs" / "architecture.md"])
def test_every_room_stands_on_the_architecture_page(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    rooms = {name for name in arrows(1) if name and not name.startswith("_")} | {"errors"}
    spellings = {room: (f"`kvplan/{room}/`", f"`kvplan/{room}.py`", f"`{room}.py`") for room in rooms}
    assert [room for room, spelled in spellings.items() if not any(each in text for each in spelled)] == []


def test_files_that_the_architecture_page_names_are_there() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`([\w/.]*\w\.py)`", text)) | set(re.findall(r"python ([\w/.]+\.py)", text))
    assert len(named) > 20
    there = {str(path.relative_to(ROOT)) for path in files(*CODE)}
    assert [name for name in sorted(named) if not any(f"/{path}".endswith(f"/{name}") for path in there)] == []

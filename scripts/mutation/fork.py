"""Faults tried in forks of one pytest session, which has collected every test before.

A fault inside a function is set by giving the live function another code object, so a fork starts with everything
imported. What runs at import cannot be changed that way: there the fork forgets the project's modules and has pytest
collect the tests anew, with an importer that takes one module from the changed tree.
"""

from __future__ import annotations

import ast
import gc
import os
import resource
import sys
from collections.abc import Iterator
from functools import _lru_cache_wrapper
from importlib import import_module
from importlib.abc import MetaPathFinder
from importlib.machinery import SourceFileLoader
from importlib.util import spec_from_file_location
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

import pytest
from reach import PACKAGES, ROOT
from sites import Site

MEMORY_BYTES = 8 << 30
CPU_SECONDS = 10
"""A test may take as much processor time, and five times what it took before, until it counts as hanging."""
NAMED = {0: "survived", 1: "killed", 2: "killed", 5: "no test", -24: "timeout", -9: "timeout"}
"""Exit statuses; 2 is a module that can no longer be imported, 24 the signal of spent CPU time."""


class Changed(MetaPathFinder):
    """Imports one module from a changed syntax tree."""

    def __init__(self, path: str, tree: ast.Module) -> None:
        self.name = module_name(path)
        self.file = str(ROOT / path)
        self.code = compile(tree, self.file, "exec", dont_inherit=True)

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> Any:
        """The module's specification, for this one name."""
        if fullname != self.name:
            return None
        loader = SourceFileLoader(fullname, self.file)
        loader.get_code = lambda _: self.code  # type: ignore[method-assign]
        return spec_from_file_location(fullname, self.file, loader=loader)


class Telling:
    """A pytest plugin: keeps chosen tests in their order, and says which one fails first."""

    def __init__(self, tests: dict[str, float], say: int) -> None:
        self.order = {test: n for n, test in enumerate(tests)}
        self.seconds, self.say = tests, say

    def pytest_collection_modifyitems(self, items: list[Any]) -> None:
        """Keep and sort."""
        items[:] = sorted((i for i in items if i.nodeid in self.order), key=lambda i: self.order[i.nodeid])

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        """Set when a test has hung: the first one may read files that all need."""
        spent = sum(resource.getrusage(resource.RUSAGE_SELF)[:2])
        seconds = int(spent + CPU_SECONDS + 5 * self.seconds.get(nodeid, 0.0)) + 1
        resource.setrlimit(resource.RLIMIT_CPU, (seconds, resource.RLIM_INFINITY))

    def pytest_runtest_logreport(self, report: Any) -> None:
        """The name of a failure goes to the parent."""
        if report.failed:
            os.write(self.say, report.nodeid.encode()[:2000] + b"\n")


class Session:
    """The parent of the forks."""

    def __init__(self, session: pytest.Session) -> None:
        self.pytest = session
        self.items = {item.nodeid: item for item in session.items}
        session.config._tmp_path_factory.getbasetemp()  # type: ignore[attr-defined]  # one for all forks
        for package in PACKAGES:
            for file in sorted((ROOT / "kvplan" / package).rglob("*.py")):
                import_module(module_name(str(file.relative_to(ROOT))))
        self.live: dict[tuple[str, str, int], list[FunctionType]] = {}
        for found in gc.get_objects():
            if isinstance(found, FunctionType) and "/kvplan/" in found.__code__.co_filename:
                self.live.setdefault(_place(found.__code__), []).append(found)
        self.caches = [f for f in gc.get_objects() if isinstance(f, _lru_cache_wrapper) and _ours(f.__module__)]
        gc.freeze()

    def start(self, path: str, tree: ast.Module, site: Site, tests: dict[str, float]) -> tuple[int, int]:
        """(process, where it tells): a fork that tries tests on a changed tree, whose site holds the fault.

        Args:
            tests: in the order in which they are tried, and the seconds that each took before.
        """
        change = Changed(path, tree)
        read, write = os.pipe()
        child = os.fork()
        if child:
            os.close(write)
            return child, read
        status = 70
        try:
            os.close(read)
            os.setpgid(0, 0)  # what a test starts ends with it
            resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
            quiet = os.open(os.devnull, os.O_RDWR)
            for descriptor in (0, 1, 2):
                os.dup2(quiet, descriptor)
            status = (
                self._swapped(change, tests, write)
                if site.inside and self._swap(change)
                else _anew(change, tests, write)
            )
        finally:
            os._exit(int(status))

    def _swap(self, change: Changed) -> bool:
        """Give live functions the changed code; False: it refers to other variables of its surroundings."""
        changed = [(f, code) for code in _codes(change.code) for f in self.live.get(_place(code), ())]
        try:
            for function, code in changed:
                if function.__code__ != code:
                    function.__code__ = code
        except ValueError:
            return False
        for function in self.caches:  # what collecting has filled them with knows no fault
            function.cache_clear()
        return True

    def _swapped(self, change: Changed, tests: dict[str, float], write: int) -> int:
        manager = self.pytest.config.pluginmanager
        manager.register(Telling(tests, write))
        items = [self.items[test] for test in tests if test in self.items]
        if not items:
            return 5
        for item, after in zip(items, [*items[1:], None], strict=True):
            failed = self.pytest.testsfailed
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=after)
            if self.pytest.testsfailed > failed:
                return 1
        return 0


def _anew(change: Changed, tests: dict[str, float], write: int) -> int:
    for name in [name for name in sys.modules if _ours(name)]:
        del sys.modules[name]
    sys.meta_path.insert(0, change)
    files = list(dict.fromkeys(t.split("::")[0] for t in tests))
    options = ["-x", "-q", "-p", "no:cacheprovider", "-W", "ignore::pytest.PytestAssertRewriteWarning"]
    return int(pytest.main([*files, *options], plugins=[Telling(tests, write)]))


def _ours(name: str) -> bool:
    return name.split(".")[0] in ("kvplan", "tests")


def _place(code: CodeType) -> tuple[str, str, int]:
    return code.co_filename, code.co_qualname, code.co_firstlineno


def _codes(code: CodeType) -> Iterator[CodeType]:
    for const in code.co_consts:
        if isinstance(const, CodeType):
            yield const
            yield from _codes(const)


def module_name(path: str) -> str:
    """The dotted name of a file of the package."""
    return str(Path(path).with_suffix("")).removesuffix("/__init__").replace("/", ".")

"""Output formats: one table of them, and none that turns silently into another."""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType
from typing import Any

import pytest

from kvplan.cli import app, output, sweep
from kvplan.errors import InputError, UnknownNameError
from kvplan.render.grid import Title


def commands() -> list[Any]:
    """The classes of all verbs."""
    found = []
    for module, _ in app.VERBS.values():
        for value in vars(import_module(module)).values():
            if isinstance(value, type) and issubclass(value, app.Verb):
                found.append(value)
    return found


def test_every_format_of_a_verb_has_a_writer() -> None:
    assert len(commands()) > 5
    for verb in commands():
        assert set(verb.formats) <= output.WRITERS.keys(), verb


def test_every_writer_writes() -> None:
    for name in output.WRITERS:
        found = import_module(f"kvplan.render.{output.WRITERS[name][0]}")
        assert any(hasattr(found, what) for what in ("draw", "lines", "stream")), name
    for name in output.PICTURED:
        assert name == "json" or output.writer(name).draw
    assert all(output.writer(name, "lines").lines for name in output.ROWS)
    assert all(output.writer(name, "stream").stream for name in sweep.STREAMED)


def test_suffixes_name_one_format() -> None:
    every = [suffix for _, suffixes, _ in output.WRITERS.values() for suffix in suffixes]
    assert len(every) == len(set(every))
    assert output.Output(file="a.MD").format == "markdown"


def test_a_name_without_a_writer_is_refused() -> None:
    out = output.Output(format="rst", formats=("text", "rst"))
    with pytest.raises(UnknownNameError, match="'rst'"):
        out.drawn([Title("a")])


def test_a_format_of_rows_is_no_format_of_reports() -> None:
    out = output.Output(format="csv", formats=("text", "csv"))
    with pytest.raises(InputError, match="not written as csv"):
        out.drawn([Title("a")])


def test_a_format_is_added_by_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("kvplan.render.shout")
    module.draw = lambda document: document[0].text.upper()  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "kvplan.render.shout", module)
    monkeypatch.setitem(output.WRITERS, "shout", ("shout", (".loud",), ()))
    out = output.Output(file="x.loud", formats=("text", "shout"))
    assert out.drawn([Title("a plan")]) == "A PLAN"

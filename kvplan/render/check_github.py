"""Workflow commands of GitHub Actions: an annotation on the line of each broken rule.

GitHub shows ten errors and ten warnings of a step; the log has all.
Source: https://docs.github.com/actions/reference/workflow-commands-for-github-actions
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from kvplan.render.check_common import broken, headline, within
from kvplan.render.grid import clean

_DATA = {"%": "%25", "\r": "%0D", "\n": "%0A"}
_PROPERTY = {**_DATA, ":": "%3A", ",": "%2C"}
_COMMAND = {"error": "error", "warn": "warning"}


def draw(result: Mapping[str, Any], base: str = "") -> str:
    """One command a line; a notice sums up where nothing is broken.

    Args:
        base: the present folder within the repository.
    """
    lines = [_command(_COMMAND[b.level], b.rule, b.message, b.file, b.line, b.column) for b in broken(result, base)]
    if not lines:
        lines = [f"::notice title=kvplan check::{_escaped(headline(result), _DATA)}"]
    return "".join(f"{line}\n" for line in lines)


def mistakes(found: Sequence[tuple[str, int, int, str]], base: str = "") -> str:
    """One command for each mistake of a rule file that cannot be used: (file, line, column, sentence)."""
    lines = [
        _command("error", "kvplan check", clean(text), within(base, file), line, column)
        for file, line, column, text in found
    ]
    return "".join(f"{line}\n" for line in lines)


def _command(level: str, title: str, message: str, file: str, line: int, column: int) -> str:
    where = f"file={_escaped(file, _PROPERTY)},line={line},col={column},title={_escaped(title, _PROPERTY)}"
    return f"::{level} {where}::{_escaped(message, _DATA)}"


def _escaped(text: str, table: Mapping[str, str]) -> str:
    return "".join(table.get(char, char) for char in text)

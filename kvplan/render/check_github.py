"""Workflow commands of GitHub Actions: an annotation on the line of each broken rule.

GitHub shows ten errors and ten warnings of a step; the log has all.
Source: https://docs.github.com/actions/reference/workflow-commands-for-github-actions
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kvplan.render.check_common import broken, headline

_DATA = {"%": "%25", "\r": "%0D", "\n": "%0A"}
_PROPERTY = {**_DATA, ":": "%3A", ",": "%2C"}
_COMMAND = {"error": "error", "warn": "warning"}


def draw(result: Mapping[str, Any], base: str = "") -> str:
    """One command a line; a notice sums up where nothing is broken.

    Args:
        base: the present folder within the repository.
    """
    lines = [
        f"::{_COMMAND[b.level]} file={_escaped(b.file, _PROPERTY)},line={b.line},col={b.column},"
        f"title={_escaped(b.rule, _PROPERTY)}::{_escaped(b.message, _DATA)}"
        for b in broken(result, base)
    ]
    if not lines:
        lines = [f"::notice title=kvplan check::{_escaped(headline(result), _DATA)}"]
    return "".join(f"{line}\n" for line in lines)


def _escaped(text: str, table: Mapping[str, str]) -> str:
    return "".join(table.get(char, char) for char in text)

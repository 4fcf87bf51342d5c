"""JUnit XML: a suite for each deployment, a case for each rule; warnings pass, with what they say beside them.

Elements and attributes are those of Jenkins' xUnit plugin (``junit-10.xsd``), which others read too.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any
from xml.sax.saxutils import escape, quoteattr

from kvplan.render.check_common import FLAGS, LOCK, sentence, title, unknown_flags
from kvplan.render.grid import clean

_SKIPPED = ("skipped", "inapplicable")
_NO_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def draw(result: Mapping[str, Any], base: str = "") -> str:
    """All suites; one case that passes where there is no rule at all.

    Args:
        base: not used: JUnit has no place for paths.
    """
    strict = result["strict"]
    suites = [_suite(item, strict) for item in result["deployments"] if _has_cases(item)]
    if result["lock"]:
        suites.append(_lock(result["lock"]))
    if not suites:
        suites = [_Suite("kvplan check", [_case("kvplan check", "nothing is promised", "")], 0, 0)]
    tests, failures = sum(len(s.cases) for s in suites), sum(s.failures for s in suites)
    lines = ['<?xml version="1.0" encoding="UTF-8"?>']
    lines.append(f'<testsuites name="kvplan check" tests="{tests}" failures="{failures}" errors="0">')
    for suite in suites:
        lines += suite.lines()
    return "\n".join([*lines, "</testsuites>", ""])


def _has_cases(item: Mapping[str, Any]) -> bool:
    return bool(item["findings"] or item.get("unknown_flags"))


class _Suite:
    """The cases of one deployment."""

    def __init__(self, name: str, cases: list[str], failures: int, skipped: int, said: str = "") -> None:
        self.said = said
        self.name, self.cases, self.failures, self.skipped = name, cases, failures, skipped

    def lines(self) -> list[str]:
        counts = f'tests="{len(self.cases)}" failures="{self.failures}" errors="0" skipped="{self.skipped}"'
        said = [f"    <system-out>{_text(self.said)}</system-out>"] if self.said else []
        return [f"  <testsuite name={_attribute(self.name)} {counts}>", *self.cases, *said, "  </testsuite>"]


def _suite(item: Mapping[str, Any], strict: bool) -> _Suite:
    cases, failures = [], 0
    for found in item["findings"]:
        fails = not found["pass"] and (strict or found["level"] == "error")
        failures += fails
        cases.append(_case(title(item, found), _named(found), _outcome(item, found, fails)))
    where = f"{item['file']}:{item['line']}"
    for text in unknown_flags(item):
        failure = f'<failure type="{FLAGS}" message={_attribute(text)}>{_text(where)}</failure>'
        said = f"<system-out>{_text(f'{where}: {text}')}</system-out>"
        cases.append(_case(clean(item["name"]), f"{FLAGS}: {text}", failure if strict else said))
        failures += strict
    skipped = sum(found["status"] in _SKIPPED for found in item["findings"])
    said = "\n".join(f"warning: {clean(text)}" for text in item["warnings"])
    return _Suite(item["name"], cases, failures, skipped, said)


def _named(found: Mapping[str, Any]) -> str:
    return str(found["rule"]) if found["level"] == "error" else f"{found['rule']} (warning)"


def _outcome(item: Mapping[str, Any], found: Mapping[str, Any], fails: bool) -> str:
    """What stands in a case."""
    where = f"{found['file']}:{found['line']}:{found['column']}"
    text = sentence(item, found)
    if fails:
        return f"<failure type={_attribute(found['metric'])} message={_attribute(text)}>{_text(where)}</failure>"
    if found["status"] in _SKIPPED:
        return f"<skipped message={_attribute(found['message'])}/>"
    return f"<system-out>{_text(f'{where}: {text}')}</system-out>"


def _lock(items: list[Mapping[str, Any]]) -> _Suite:
    cases = [_locked(item) for item in items]
    return _Suite(LOCK, cases, len(cases), 0)


def _locked(item: Mapping[str, Any]) -> str:
    """What differs from the lock file: its sentence tells it from others of the same deployment."""
    where, said = f"{item['file']}:{item['line']}:{item['column']}", item["message"]
    failure = f'<failure type="{LOCK}" message={_attribute(said)}>{_text(where)}</failure>'
    return _case(f"{LOCK}/{item['name']}", said.partition("; ")[0], failure)


def _case(classname: str, name: str, inside: str) -> str:
    head = f"    <testcase classname={_attribute(classname)} name={_attribute(name)}"
    return f"{head}>{inside}</testcase>" if inside else f"{head}/>"


def _attribute(text: str) -> str:
    return quoteattr(_NO_XML.sub("?", text))


def _text(text: str) -> str:
    return escape(_NO_XML.sub("?", text))

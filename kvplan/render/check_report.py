"""A check and a comparison of two as documents: for the terminal, a pipe, a file, a pull request."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from kvplan.render.check_common import broken, headline, merged, plural, quoted, title
from kvplan.render.grid import Column, Document, Grid, Notes, Part, Title, clean

MAX_ROWS = 60
"""Rules up to which those that hold are listed too."""
_STATUS = {
    "held": "holds", "skipped": "no baseline", "inapplicable": "does not apply", "new": "new",
    "absent": "not in the baseline",
}  # fmt: skip
Shown = Callable[..., str]
"""(kind, value) -> a value for people; see `kvplan.check.metrics.shown`."""


def check_report(result: Mapping[str, Any], shown: Shown) -> Document:
    """What is broken, line by line as editors and people read it, then the rules with their values."""
    parts: list[Part] = [Title(f"kvplan check: {headline(result)}", result["file"])]
    lines = [f"{b.file}:{b.line}:{b.column}: {_level(b.level)}: {b.message}" for b in broken(result)]
    lines += [
        f"{d['file']}:{d['line']}: note: {clean(d['name'])}: every rule holds with {quoted(clean(d['fix']))}"
        for d in result["deployments"]
        if d["fix"]
    ]
    if lines:
        parts.append(Notes(lines))
    parts += _rules(result, shown)
    parts += _changes(result, shown)
    if result["removed"]:
        parts.append(Notes([clean(name) for name in result["removed"]], "No longer there"))
    return parts


def _level(level: str) -> str:
    return "warning" if level == "warn" else level


def _rules(result: Mapping[str, Any], shown: Shown) -> list[Part]:
    """A row for each rule and workload; where they are many, for those that do not simply hold."""
    every = [(d, f) for d in result["deployments"] for f in merged(d)]
    some = every if len(every) <= MAX_ROWS else [(d, f) for d, f in every if f["status"] != "held"]
    if not some:
        return []
    rows = [
        (
            _status(f), title(d, f), f["rule"], _value(shown, f["kind"], f["value"]) + _bound(f),
            _value(shown, f["kind"], f["limit"]),
        )
        for d, f in some[: MAX_ROWS * 4]
    ]  # fmt: skip
    columns = [
        Column(""), Column("deployment"), Column("rule", wrap=True), Column("value (worst)", right=True),
        Column("limit", right=True, optional=True),
    ]  # fmt: skip
    left = len(every) - len(rows)
    note = f"{plural(left, 'rule')} more: --format json has all" if left else ""
    return [Grid(columns, rows, "Rules", note)]


def _bound(found: Mapping[str, Any]) -> str:
    """Which end of its range a value is, where it is not the worst."""
    return "" if found["bound"] == "pessimistic" or found["value"] is None else f" ({found['bound']})"


def _status(found: Mapping[str, Any]) -> str:
    if not found["pass"]:
        return "BROKEN" if found["level"] == "error" else "warning"
    return _STATUS[found["status"]]


def _value(shown: Shown, kind: str, value: Any) -> str:
    return "" if value is None else shown(kind, value)


def _changes(result: Mapping[str, Any], shown: Shown) -> list[Part]:
    """The rules that compare with a baseline: old, new, difference."""
    found = [(d, f) for d in result["deployments"] for f in merged(d) if f["baseline"] is not None]
    if not found:
        return []
    rows = [
        (
            title(d, f), f["metric"], shown(f["kind"], f["baseline"]), _value(shown, f["kind"], f["value"]),
            difference(shown, f["kind"], f["baseline"], f["value"]),
        )
        for d, f in found[: MAX_ROWS * 4]
    ]  # fmt: skip
    heads = ("deployment", "metric", "baseline", "now", "difference")
    columns = [Column(h, right=i > 1, wrap=i == 1) for i, h in enumerate(heads)]
    return [Grid(columns, rows, "Against the baseline")]


def difference(shown: Shown, kind: str, old: Any, new: Any) -> str:
    """``+1.2 GiB (+3.4%)``; empty where there is none to speak of."""
    if any(isinstance(v, str | bool) or v is None for v in (old, new)):
        return ""
    gap = new - old
    if not gap:
        return "same"
    sign = "+" if gap > 0 else "-"
    share = f" ({gap / old:+.1%})" if old else ""
    return f"{sign}{shown(kind, abs(gap))}{share}"


def diff_report(diff: Mapping[str, Any], names: tuple[str, str], shown: Shown) -> Document:
    """What changed from one result to another."""
    s = diff["summary"]
    counts = [f"{s[k]:,} {k}" for k in ("changed", "new", "removed") if s[k]] or ["nothing changed"]
    rules = [f"{plural(s[k], 'rule')} {k}" for k in ("broken", "mended") if s[k]]
    parts: list[Part] = [Title(f"kvplan diff: {', '.join([*counts, *rules])}", f"{names[0]} -> {names[1]}")]
    for key, head in (("broken", "Broken"), ("mended", "Mended")):
        lines = [_told(d, entry, key) for d in diff["deployments"] for entry in d[key]]
        if lines:
            parts.append(Notes(lines, head))
    moved = [
        f"{d['name']}: {change['setting'].replace('_', '-')} {change['old']} -> {change['new']}"
        for d in diff["deployments"]
        for change in d["settings"]
    ]
    if moved:
        parts.append(Notes([clean(line) for line in moved[: MAX_ROWS * 4]], "Settings"))
    rows = [
        (
            title(d, f), d["status"] if d["status"] != "changed" else f["status"], f["metric"],
            _value(shown, f["kind"], f["old"]), _value(shown, f["kind"], f["new"]),
            difference(shown, f["kind"], f["old"], f["new"]),
        )
        for d in diff["deployments"]
        for f in d["figures"]
    ]  # fmt: skip
    if rows:
        heads = ("deployment", "", "metric", "old", "new", "difference")
        columns = [Column(h, right=i > 2) for i, h in enumerate(heads)]  # a metric's name is one word
        left = len(rows) - MAX_ROWS * 4
        note = f"{plural(left, 'figure')} more: --format json has all" if left > 0 else ""
        parts.append(Grid(columns, rows[: MAX_ROWS * 4], "Figures", note))
    return parts


def _told(item: Mapping[str, Any], entry: Mapping[str, Any], key: str) -> str:
    name = title(item, entry)
    return f"{name}: {clean(entry['message'])}" if key == "broken" else f"{name}: {clean(entry['rule'])}"

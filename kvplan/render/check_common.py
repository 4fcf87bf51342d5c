"""What every output of a check shares: the promises that are broken, each with its place and its sentence."""

from __future__ import annotations

import posixpath
from collections.abc import Iterator, Mapping
from typing import Any, Literal, NamedTuple

from kvplan.render.grid import clean

LOCK, FLAGS = "lock", "engine flags"
"""What the lock file promises, and what the engine's command line does: no flag that the engine does not have."""


COUNTED = (
    ("skipped", "without a baseline"), ("inapplicable", "not applicable"), ("new", "new"),
    ("absent", "not in the baseline"),
)  # fmt: skip
"""Statuses besides held and broken, as a headline counts them."""


class Broken(NamedTuple):
    """One thing that fails or warns."""

    level: Literal["error", "warn"]
    name: str
    """Deployment, and its workload where it has several."""
    rule: str
    metric: str
    message: str
    file: str
    line: int
    column: int

    @property
    def fingerprint(self) -> str:
        """The same for the same promise, whatever the figures and wherever it stands."""
        from hashlib import sha256  # costs a start that writes no report too much

        return sha256(f"{self.name}\n{self.rule}".encode()).hexdigest()


def broken(result: Mapping[str, Any], base: str = "") -> Iterator[Broken]:
    """Everything that is not as promised, in the order of the file.

    Args:
        base: the present folder within the repository, put in front of paths.
    """
    for item in result["deployments"]:
        for flag, text in zip(item.get("unknown_flags", ()), unknown_flags(item), strict=True):
            rule, file = clean(f"{FLAGS}: {flag.partition(' ')[0]}"), within(base, item["file"])
            yield Broken("warn", clean(item["name"]), rule, FLAGS, text, file, item["line"], 1)
        for found in merged(item):
            if not found["pass"]:
                yield Broken(
                    found["level"], title(item, found), found["rule"], found["metric"], sentence(item, found),
                    within(base, found["file"]), found["line"], found["column"],
                )  # fmt: skip
    for item in result["lock"]:
        text = clean(item["message"])
        yield Broken("error", item["name"], LOCK, LOCK, text, within(base, item["file"]), item["line"], item["column"])


def unknown_flags(item: Mapping[str, Any]) -> list[str]:
    """A sentence for each flag of a deployment's command that its engine does not have as far as is known."""
    engine = item["settings"]["engine"]
    return [
        clean(f"{item['name']}: {flag} is unknown to {engine} as far as kvplan knows; it is not planned")
        for flag in item.get("unknown_flags", ())
    ]


def merged(item: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The findings of a deployment; a rule that comes to the same under all of its workloads stands once."""
    groups: dict[tuple[Any, ...], list[Mapping[str, Any]]] = {}
    for found in item["findings"]:
        groups.setdefault(tuple(found[key] for key in ("rule", "file", "line", "column")), []).append(found)
    kept: list[Mapping[str, Any]] = []
    for same in groups.values():
        alike = len({tuple(f[key] for key in ("status", "value", "limit", "message", "fix")) for f in same}) == 1
        everywhere = len(same) > 1 and len(same) == len(item["workloads"])
        kept += [{**same[0], "workload": None}] if alike and everywhere else same
    return kept


def title(item: Mapping[str, Any], found: Mapping[str, Any]) -> str:
    """``deployment/workload``."""
    return clean(f"{item['name']}/{found['workload']}" if found["workload"] else item["name"])


def sentence(item: Mapping[str, Any], found: Mapping[str, Any]) -> str:
    """A finding in words, with what would pass."""
    fix = f"; {quoted(found['fix'])} passes" if found["fix"] else ""
    return clean(f"{title(item, found)}: {found['message']}{fix}")


def quoted(fix: str) -> str:
    """A change as it stands in a sentence: what is typed in backticks, what goes with it behind them."""
    typed, more, rest = fix.partition(" with ")
    return f"`{typed}`{more}{rest}"


def within(base: str, file: str) -> str:
    """A path from the root of the repository."""
    return posixpath.normpath(posixpath.join(base, file)) if base else file


def plural(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def headline(result: Mapping[str, Any]) -> str:
    """A result in one line; a rule that comes to the same under all workloads of a deployment counts once."""
    found = [f for item in result["deployments"] for f in merged(item)]
    errors = sum(not f["pass"] and f["level"] == "error" for f in found) + len(result["lock"])
    warnings = sum(not f["pass"] and f["level"] == "warn" for f in found)
    warnings += sum(len(unknown_flags(item)) for item in result["deployments"])
    parts = [plural(len(result["deployments"]), "deployment"), plural(len(found), "rule")]
    parts.append(f"{errors:,} broken" if errors else "none broken")
    parts += [plural(warnings, "warning")] * bool(warnings)
    for status, text in COUNTED:
        count = sum(f["status"] == status for f in found)
        parts += [f"{count:,} {text}"] * bool(count)
    every = [f for item in result["deployments"] for f in item["findings"]]
    failing = sum(not f["pass"] and f["level"] == "error" for f in every) + len(result["lock"])
    if failing and len(every) != len(found):  # as JSON and JUnit count them
        parts.append(f"under each workload {plural(len(every), 'rule')} and {failing:,} broken")
    return ", ".join(parts)

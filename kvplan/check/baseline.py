"""Earlier results: read back, compared with, and set side by side."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from kvplan.check.judge import Baseline
from kvplan.check.result import SCHEMA
from kvplan.errors import InputError, printable

MAX_BYTES = 256 << 20
DIFF = "kvplan.diff/1"
Key = tuple[str, str, str]
"""Deployment, workload and metric."""


def read_result(path: str, where: str) -> dict[str, Any]:
    """A result that ``kvplan check`` wrote as JSON.

    Args:
        where: the flag or argument that names it.

    Raises:
        InputError: it cannot be read, or is no such result.
    """
    import json

    from kvplan.errors import SpecError
    from kvplan.sources.bounded import decode, read_bytes

    name = printable(path)
    try:
        raw = read_bytes(path, name, limit=MAX_BYTES, what="result of kvplan check")
        data = json.loads(decode(raw, name, hint="such a result is JSON text in UTF-8"))
    except SpecError as error:
        raise InputError(str(error), where=where, hint="`kvplan check --write-baseline FILE` writes one") from None
    except (ValueError, RecursionError) as error:
        reason = f": line {error.lineno}" if isinstance(error, json.JSONDecodeError) else ""
        raise InputError(f"{name} is no JSON{reason}", where=where, hint="write it again") from None
    if not isinstance(data, dict) or data.get("schema") != SCHEMA or not _shaped(data):
        raise InputError(
            f"{name} is no result of kvplan check", where=where, hint="`kvplan check --write-baseline FILE` writes one"
        )
    return data


def _shaped(data: Mapping[str, Any]) -> bool:
    """Whether everything that is looked at is there."""
    try:
        for item in data["deployments"]:
            if not isinstance(item["name"], str):
                return False
            for figure in item["figures"]:
                if not isinstance(figure["metric"], str) or not {"low", "value", "high", "kind"} <= set(figure):
                    return False
            if not all({"rule", "pass", "status", "message", "workload"} <= set(found) for found in item["findings"]):
                return False
        return {"kvplan", "catalog", "summary"} <= set(data)
    except (KeyError, TypeError):
        return False


def figures_of(result: Mapping[str, Any]) -> Baseline:
    """(deployment, workload, metric) -> (low, middle, high)."""
    return {key: (f["low"], f["value"], f["high"]) for key, f in _figures(result)}


def _figures(result: Mapping[str, Any]) -> Iterator[tuple[Key, Mapping[str, Any]]]:
    for item in result["deployments"]:
        for figure in item["figures"]:
            yield (item["name"], figure.get("workload") or "", figure["metric"]), figure


def diff(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
    """Two results side by side: deployments that came, went or changed, and rules that broke or were mended."""
    names = {d["name"]: d for d in old["deployments"]}, {d["name"]: d for d in new["deployments"]}
    before, after = dict(_figures(old)), dict(_figures(new))
    deployments = []
    for name in dict.fromkeys((*names[0], *names[1])):
        keys = [key for key in dict.fromkeys((*before, *after)) if key[0] == name]
        changes = [
            change for key in keys if (change := _change(key, before.get(key), after.get(key)))["status"] != "same"
        ]
        status = (
            "new" if name not in names[0] else "removed" if name not in names[1] else "changed" if changes else "same"
        )
        broken, mended = _rules(names[0].get(name), names[1].get(name))
        deployments.append(
            {"name": name, "status": status, "figures": changes, "broken": broken, "mended": mended,
             "unchanged": len(keys) - len(changes),
             "settings": _settings(names[0].get(name), names[1].get(name))}
        )  # fmt: skip
    return {
        "schema": DIFF,
        "old": {key: old[key] for key in ("kvplan", "catalog")},
        "new": {key: new[key] for key in ("kvplan", "catalog")},
        "deployments": deployments,
        "summary": {
            **{
                state: sum(d["status"] == state for d in deployments) for state in ("new", "removed", "changed", "same")
            },
            "broken": sum(len(d["broken"]) for d in deployments),
            "mended": sum(len(d["mended"]) for d in deployments),
        },
    }


def _settings(old: Mapping[str, Any] | None, new: Mapping[str, Any] | None) -> list[dict[str, Any]]:
    """The settings of a deployment in both results that are not the same."""
    if old is None or new is None:
        return []
    before, after = old.get("settings") or {}, new.get("settings") or {}
    return [
        {"setting": name, "old": before.get(name), "new": after.get(name)}
        for name in dict.fromkeys((*before, *after))
        if before.get(name) != after.get(name)
    ]


def _change(key: Key, old: Mapping[str, Any] | None, new: Mapping[str, Any] | None) -> dict[str, Any]:
    """One figure in both results."""
    first: Any = old["value"] if old is not None else None
    second: Any = new["value"] if new is not None else None
    kind = (new or old or {})["kind"]
    numbers = all(isinstance(v, int | float) and not isinstance(v, bool) for v in (first, second))
    difference = second - first if numbers else None
    return {
        "workload": key[1] or None,
        "metric": key[2],
        "kind": kind,
        "status": "new" if old is None else "removed" if new is None else "changed" if first != second else "same",
        "old": first,
        "new": second,
        "difference": difference,
        "ratio": difference / first if difference is not None and first else None,
    }


def _rules(old: Mapping[str, Any] | None, new: Mapping[str, Any] | None) -> tuple[list[Any], list[Any]]:
    """(rules that held or were not there and are broken, rules that were broken and hold)."""
    was = {(f["workload"], f["rule"]): f["pass"] for f in (old["findings"] if old else ())}
    found: tuple[list[Any], list[Any]] = [], []
    for f in new["findings"] if new else ():
        before = was.get((f["workload"], f["rule"]))
        if f["pass"] != (before is not False):
            entry = {"workload": f["workload"], "rule": f["rule"], "level": f.get("level"), "message": f["message"]}
            found[bool(f["pass"])].append(entry)
    return found

"""SARIF 2.1.0, for code scanning: a run with a rule for each metric and a result for each broken promise.

Source: https://docs.oasis-open.org/sarif/sarif/v2.1.0/
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

from kvplan.render.check_common import FLAGS, LOCK, broken, unknown_flags
from kvplan.render.grid import clean

SCHEMA = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
_LEVEL = {"error": "error", "warn": "warning"}


def draw(result: Mapping[str, Any], base: str = "") -> str:
    """A log of one run; rules are sorted, so that the same promises give the same text.

    Args:
        base: the present folder within the repository.
    """
    metrics = {f["metric"] for d in result["deployments"] for f in d["findings"]}
    more = {LOCK} if result["lock"] else set()
    more |= {FLAGS} if any(unknown_flags(d) for d in result["deployments"]) else set()
    ids = sorted(metrics | more)
    index = {name: number for number, name in enumerate(ids)}
    rules = [{"id": name, "shortDescription": {"text": _described(name)}} for name in ids]
    results = [
        {
            "ruleId": b.metric,
            "ruleIndex": index[b.metric],
            "level": _LEVEL[b.level],
            "message": {"text": b.message},
            "locations": [
                {
                    "physicalLocation": {
                        "artifactLocation": {"uri": quote(b.file), "uriBaseId": "%SRCROOT%"},
                        "region": {"startLine": b.line, "startColumn": b.column},
                    }
                }
            ],
            "partialFingerprints": {"kvplan/v1": b.fingerprint},
        }
        for b in broken(result, base)
    ]
    driver = {"name": "kvplan", "version": result["kvplan"], "rules": rules}
    said = [
        {"level": "warning", "message": {"text": clean(f"{d['name']}: {text}")}}
        for d in result["deployments"]
        for text in d["warnings"]
    ]
    run: dict[str, Any] = {"tool": {"driver": driver}, "columnKind": "unicodeCodePoints", "results": results}
    if said:  # what the plans warn of is about kvplan's own work, and no result
        run["invocations"] = [{"executionSuccessful": True, "toolExecutionNotifications": said}]
    return json.dumps({"$schema": SCHEMA, "version": "2.1.0", "runs": [run]}, indent=2, allow_nan=False) + "\n"


def _described(name: str) -> str:
    if name == LOCK:
        return "models and GPUs are as the lock file has them"
    if name == FLAGS:
        return "the command has no flag that its engine does not have"
    return f"a limit on {name} of `kvplan plan --json`"

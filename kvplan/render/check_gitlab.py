"""GitLab's code quality report: a list of what is broken.

Source: https://docs.gitlab.com/ci/testing/code_quality/#code-quality-report-format
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from kvplan.render.check_common import broken

_SEVERITY = {"error": "major", "warn": "minor"}


def draw(result: Mapping[str, Any], base: str = "") -> str:
    """A JSON array; empty where everything holds.

    Args:
        base: the present folder within the repository.
    """
    found = [
        {
            "description": b.message,
            "check_name": f"kvplan/{b.metric}",
            "fingerprint": b.fingerprint,
            "severity": _SEVERITY[b.level],
            "location": {"path": b.file, "lines": {"begin": b.line}},
        }
        for b in broken(result, base)
    ]
    return json.dumps(found, indent=2, allow_nan=False) + "\n"

"""What each release of vLLM gives for some deployments, as recorded: shows which releases a change moves.

Held against engines' own numbers elsewhere (``test_cases.py``, ``test_field.py``); here every release is asked, so
that a rule which begins one release early or late shows. Where a figure is meant to move, record it anew and read the
difference::

    python tests/engines/vllm/test_recorded_releases.py
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from kvplan import plan
from kvplan.engines.vllm.versions import RELEASES
from kvplan.errors import KvplanError

FILE = Path(__file__).parents[2] / "data" / "recorded_releases.jsonl"
CASES = [json.loads(line) for line in FILE.read_text(encoding="utf-8").splitlines()]
SETTINGS = ("block_size", "max_num_seqs", "max_num_batched_tokens", "enable_prefix_caching", "attention_backend")


def figures(model: str, gpu: str, given: dict[str, Any], release: str) -> dict[str, Any]:
    """Bytes of a rank, the pool, and settings that the engine chose; or what it refuses."""
    try:
        found = plan(model, gpu=gpu, engine=f"vllm@{release}", **given).to_dict()
    except KvplanError as refused:
        return {"refused": str(refused).replace(release, "this release")}
    terms = {term["name"]: term["bytes"] for term in found["memory"][0]["terms"]}
    chosen = {name: found["inputs"].get(name) for name in SETTINGS}
    return {**terms, "kv_bytes": found["memory"][0]["kv_bytes"], **found["capacity"], **chosen}


def by_release(model: str, gpu: str, given: dict[str, Any]) -> list[list[Any]]:
    """[release, what differs from the release before] of each release that differs."""
    found: list[list[Any]] = []
    before: dict[str, Any] = {}
    for release in RELEASES:
        now = figures(model, gpu, given, release)
        moved = {k: now.get(k) for k in (*now, *(k for k in before if k not in now)) if now.get(k) != before.get(k)}
        if moved:
            found.append([release, moved])
        before = now
    return found


@pytest.mark.parametrize("case", CASES, ids=[f"{n}-{case['model']}" for n, case in enumerate(CASES)])
def test_no_release_has_moved(case: dict[str, Any]) -> None:
    found = by_release(case["model"], case["gpu"], case["given"])
    assert json.loads(json.dumps(found)) == case["releases"]


def write(cases: list[tuple[str, str, dict[str, Any]]]) -> None:
    """Record deployments, a line each."""
    rows = [{"model": m, "gpu": g, "given": given, "releases": by_release(m, g, given)} for m, g, given in cases]
    FILE.write_text("".join(json.dumps(row, separators=(",", ":")) + "\n" for row in rows), encoding="utf-8")


if __name__ == "__main__":
    write([(case["model"], case["gpu"], case["given"]) for case in CASES])
    sys.exit(0)

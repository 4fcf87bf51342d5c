"""Receipts are what their schema says, and no more; the published ones too."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from kvplan.probe import schema

ROOT = Path(__file__).parents[2]
RECEIPTS = sorted((ROOT / "docs" / "validation").glob("**/*.json"))


def closed(part: Any) -> Any:
    """The schema with no key besides those it names."""
    if isinstance(part, dict):
        found = {key: closed(value) for key, value in part.items()}
        return {**found, "additionalProperties": False} if "properties" in found else found
    return [closed(item) for item in part] if isinstance(part, list) else part


def errors(document: Any) -> list[str]:
    return [
        f"{list(e.absolute_path)}: {e.message}"
        for e in Draft202012Validator(closed(schema.schema())).iter_errors(document)
    ]


def test_the_published_schema_is_up_to_date() -> None:
    file = ROOT / "docs" / "schemas" / "kvplan.validation-1.json"
    assert file.read_text(encoding="utf-8") == schema.published(), f"python -m kvplan.probe.schema > {file}"


@pytest.mark.parametrize("path", RECEIPTS, ids=lambda path: path.stem)
def test_published_receipts_hold_to_it(path: Path) -> None:
    document = json.loads(path.read_text(encoding="utf-8"))
    assert errors(document) == []
    text = json.dumps(document)
    assert "uuid" not in text  # whose card it was is nobody's business
    ends = ("do not fit into --max-memory", "the time was up")
    short = [warning for warning in document["warnings"] if any(end in warning for end in ends)]
    assert document["verdict"]["complete"] != bool(short)


def test_a_run_on_this_machine_holds_to_it() -> None:
    pytest.importorskip("torch", reason="the probe's extra is not installed")
    from kvplan.catalog import load_model
    from kvplan.probe import run
    from kvplan.probe.device import detect

    request = run.Request(
        load_model("llama-3.2-1b"), "vllm", {}, detect("cpu"), 128 << 20, quick=True,
        sections=("device", "memory", "blocks", "bandwidth"),
    )  # fmt: skip
    document = json.loads(json.dumps(run.validate(request).to_dict()))
    assert errors(document) == []
    document["rows"][0]["samples"] = ["1"]
    document["verdict"]["maybe"] = True
    assert len(errors(document)) == 2

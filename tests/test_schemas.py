"""The published JSON Schemas describe what is printed."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from kvplan.cli.main import main

ROOT = Path(__file__).parent.parent
SCHEMAS = ROOT / "docs" / "schemas"
LOG = ROOT / "tests" / "data" / "logs"

COMMANDS = [
    ["plan", "llama-3.1-70b", "--gpu", "h100-sxm", "-tp", "4", "--shared-prefix-tokens", "500", "--concurrency", "8"],
    ["plan", "llama-3.1-70b", "--gpu", "h100-sxm", "-tp", "1"],
    ["plan", "deepseek-v3"],
    ["plan", "jamba-1.5-mini", "--gpu", "h200-sxm", "-tp", "2"],
    ["plan", "gemma-3-27b", "--gpu", "rtx-4090", "--engine", "llama.cpp", "-c", "8192"],
    ["plan", "qwen3-8b", "--gpu", "m3-max-128gb", "--engine", "mlx"],
    ["plan", "qwen3-8b", "--gpu", "h100-sxm", "--engine", "all"],
    ["plan", "qwen3-32b", "--gpu", "h200-sxm", "--prompt-tokens", "4K", "--shared-prefix-tokens", "1K"],
    ["sweep", "llama-3.1-8b", "--gpu", "h100-sxm", "--vary", "tp=1,3", "--vary", "concurrency=1..4", "--figure", "all"],
    ["compare", "llama-3.1-8b", "deepseek-v3", "--gpu", "h200-sxm"],
    ["explain", "gpt-oss-120b"],
    ["explain", "falcon-mamba-7b", "--no-cache", "--max-model-len", "8K"],
]


def schema_of(document: dict[str, Any]) -> dict[str, Any]:
    tag = document["schema"].replace("/", "-")
    found: dict[str, Any] = json.loads((SCHEMAS / f"{tag}.json").read_text(encoding="utf-8"))
    return found


def closed(schema: Any) -> Any:
    """The schema with no key besides those it names: what is printed must all be published."""
    if isinstance(schema, dict):
        found = {key: closed(value) for key, value in schema.items()}
        return {**found, "additionalProperties": False} if "properties" in found else found
    return [closed(item) for item in schema] if isinstance(schema, list) else schema


def printed(argv: list[str], capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    assert main([*argv, "--json"]) in (0, 1)
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


@pytest.mark.parametrize("argv", COMMANDS, ids=" ".join)
def test_what_is_printed_is_what_is_published(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    document = printed(argv, capsys)
    errors = list(Draft202012Validator(closed(schema_of(document))).iter_errors(document))
    assert not errors, [(list(e.absolute_path), e.message) for e in errors[:5]]


def test_a_log_is_what_is_published(capsys: pytest.CaptureFixture[str]) -> None:
    logs = sorted(LOG.glob("*.log"))
    document = printed(["log", str(logs[0])], capsys)
    assert not list(Draft202012Validator(closed(schema_of(document))).iter_errors(document))


def test_a_wrong_document_is_noticed(capsys: pytest.CaptureFixture[str]) -> None:
    document = printed(COMMANDS[0], capsys)
    document["kv"]["bytes_per_token"] = "327680"
    document["capacity"]["block"] = 1
    messages = [e.message for e in Draft202012Validator(closed(schema_of(document))).iter_errors(document)]
    assert any("'327680' is not of type 'integer'" in m for m in messages)
    assert any("'block'" in m for m in messages)


@pytest.mark.parametrize("script", ["make_schemas", "make_formula_page", "make_cli_reference"])
def test_generated_pages_are_up_to_date(script: str) -> None:
    done = subprocess.run(
        [sys.executable, f"scripts/{script}.py", "--check"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr

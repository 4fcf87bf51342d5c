"""What the catalog's verbs print is what is published for them, and nothing else."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import catalog_schemas
import pytest
from jsonschema import Draft202012Validator

from kvplan.cli.main import main

ROOT = Path(__file__).parents[2]
COMMANDS = [
    "models list",
    "models show gpt-oss-120b",
    "models show deepseek-v3",
    "models show qwen3-next-80b-a3b",
    "models show gemma-3-27b",
    "models lint tests/data/sample-model.yaml",
    "models import config.json",
    "gpus list",
    "gpus show h200-sxm",
    "gpus lint tests/data/sample-gpu.yaml",
    "engines",
    "engines llama.cpp",
    "formats",
]


def closed(schema: Any) -> Any:
    """The schema with no key besides those it names."""
    if isinstance(schema, dict):
        found = {key: closed(value) for key, value in schema.items()}
        return {**found, "additionalProperties": False} if "properties" in found else found
    return [closed(item) for item in schema] if isinstance(schema, list) else schema


@pytest.mark.parametrize("command", COMMANDS)
def test_documents(command: str, desk: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*command.split(), "--json"]) in (0, 1)
    document = json.loads(capsys.readouterr().out)
    path = ROOT / "docs" / "schemas" / f"{document['schema'].replace('/', '-')}.json"
    schema = json.loads(path.read_text(encoding="utf-8"))
    errors = list(Draft202012Validator(closed(schema)).iter_errors(document))
    assert not errors, [(list(e.absolute_path), e.message) for e in errors[:5]]


def test_what_show_prints_is_all_that_is_published(capsys: pytest.CaptureFixture[str]) -> None:
    """No key is published that no verb prints."""
    for command, fields in (
        ("models show gpt-oss-120b", {**catalog_schemas.MODEL, **catalog_schemas.MODEL_SHEET}),
        ("gpus show h200-sxm", catalog_schemas.GPU),
        ("engines vllm", catalog_schemas.ENGINE),
        ("formats q8_0", catalog_schemas.FORMAT),
    ):
        assert main([*command.split(), "--json"]) == 0
        document = json.loads(capsys.readouterr().out)
        (rows,) = [value for key, value in document.items() if key != "schema"]
        assert set(rows[0]) == set(fields), command

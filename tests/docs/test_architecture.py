"""The map points at what is there: paths of docs/architecture.md exist, and names beside them are defined in them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
PATH = re.compile(r"`((?:kvplan/)?[a-z_0-9./-]+\.(?:py|yaml))`")
PLACE = re.compile(r"`([a-z_0-9./-]+\.(?:py|yaml))`, `([A-Za-z_.0-9]+)(?<!\.py)`")
FOLDERS = ("cache", "spec", "render", "engines")
ROOTS = (ROOT, ROOT / "kvplan", *(ROOT / "kvplan" / folder for folder in FOLDERS))
"""The page leaves out the folder where the sentence has said it."""


def found(path: str) -> Path | None:
    return next((root / path for root in ROOTS if (root / path).is_file()), None)


@pytest.mark.parametrize("path", sorted(set(PATH.findall(TEXT)) - {"command.py"}))
def test_paths(path: str) -> None:
    assert found(path) is not None


@pytest.mark.parametrize(("path", "name"), sorted(set(PLACE.findall(TEXT))))
def test_names(path: str, name: str) -> None:
    file = found(path)
    assert file is not None
    text = file.read_text(encoding="utf-8")
    for part in name.split("."):
        defined = rf"^\s*(?:def|class) {part}\b|^\s*{part}\b ?[:=]|^ *\"{part}\": "
        assert re.search(defined, text, re.MULTILINE), f"{part} is not defined in {path}"


def test_the_table_answers_twelve_questions() -> None:
    table = TEXT.partition("## Where is what")[2].partition("\n## ")[0]
    rows = [line for line in table.splitlines() if line.startswith("| ") and "`" in line]
    assert len(rows) >= 12
    assert all(PATH.search(row) for row in rows)

"""The page on llama.cpp shows what the code computes."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from kvplan import plan
from kvplan.engines.llama_cpp.flags import OPTIONS

PAGE = (Path(__file__).parents[3] / "docs" / "engines" / "llama.cpp.md").read_text()
FLAGS = {flag: option for option in OPTIONS for flag in option.flags}


def settings_of(command: str) -> dict[str, Any]:
    words, found = iter(shlex.split(command)), dict[str, Any]()
    for word in words:
        option = FLAGS[word]
        found[option.setting] = option.kind == "true" if option.is_switch else option.read(next(words))
    return found


def examples() -> list[Any]:
    found = []
    for line in PAGE.split("## Examples")[1].split("## Ollama")[0].splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        figures = [int(f.replace(",", "")) for f in re.findall(r"\d{1,3}(?:,\d{3}){2,}", line)]
        if line.startswith("|") and figures:
            found.append(pytest.param(cells[0], settings_of(cells[1].strip("`")), figures, id=f"{cells[0]} {cells[1]}"))
    return found


@pytest.mark.parametrize(("model", "given", "figures"), examples())
def test_figures(model: str, given: dict[str, Any], figures: list[int]) -> None:
    made = plan(model, engine="llama.cpp", **given).allocation
    assert made is not None
    assert [pool.bytes for pool in (*made.pools, *made.states)] == figures


def test_there_are_rows() -> None:
    assert len(examples()) >= 10

"""The tables of worked examples in the pages of the engines with caches of their own: every figure is computed."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from kvplan import plan
from kvplan.engines.flags import OPTIONS
from kvplan.engines.options import parse_tokens_or_zero

FLAGS = {flag: option for option in OPTIONS for flag in option.flags}


def settings_of(command: str) -> dict[str, Any]:
    words, found = iter(shlex.split(command)), dict[str, Any]()
    for flag in words:
        if flag == "--engine":
            found["engine"] = next(words)
        elif flag in FLAGS:
            found[FLAGS[flag].setting] = FLAGS[flag].read(next(words))
        else:
            found[flag.lstrip("-").replace("-", "_")] = parse_tokens_or_zero(next(words), flag)
    return found


def examples() -> list[Any]:
    """(page, model, settings, figures) of every row that names a model of the catalog and shows bytes."""
    found: list[Any] = []
    for page in ("transformers", "mlx", "exllamav3"):
        text = Path(f"docs/engines/{page}.md").read_text().split("## Examples")[1]
        (base,) = re.findall(r"`kvplan plan MODEL (--engine .*?)`", text)
        above: dict[str, Any] = {}
        for line in text.splitlines():
            cells = [c.strip() for c in line.strip("|").split("|")]
            figures = re.findall(r"\d{1,3}(?:,\d{3}){2,}", " ".join(cells[2:]))
            if not line.startswith("|") or not figures:
                continue
            flags = " ".join(f for f in re.findall(r"`(.*?)`", cells[1]) if f.startswith("--"))
            given = settings_of(f"{base} {flags}") | ({**above} if "the same" in cells[1] else {})
            given.update(settings_of(flags))
            above = settings_of(flags)
            numbers = [int(f.replace(",", "")) for f in figures]
            found.append(pytest.param(cells[0], given, numbers, id=f"{page}-{cells[0]}-{len(found)}"))
    return found


@pytest.mark.parametrize(("model", "given", "figures"), examples())
def test_figures(model: str, given: dict[str, Any], figures: list[int]) -> None:
    made = plan(model, **given).allocation
    assert made is not None
    known = {made.bytes, made.peak_bytes, made.state_bytes, *(p.bytes for p in made.pools)}
    assert set(figures) <= known


def test_there_are_rows() -> None:
    assert len(examples()) >= 18

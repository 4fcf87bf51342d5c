"""Every figure that some dozens of command lines gave when they were recorded.

The lines were picked out of random ones so that together they run nearly all of the core: engines and releases,
layouts, formats, traffic. What they gave is no measurement and proves nothing right; it shows what a change moves.
Where a figure is meant to move, record it anew and read the difference::

    python tests/planning/test_recorded_figures.py
"""

from __future__ import annotations

import io
import json
import re
import sys
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import pytest

from kvplan.cli.main import main

DATA = Path(__file__).parents[1] / "data"
FILE = DATA / "recorded_figures.jsonl"
CASES = [json.loads(line) for line in FILE.read_text(encoding="utf-8").splitlines()]
NO_FIGURES = frozenset({"defaults", "model", "schema", "rank"})
"""Parts of a result that say where things are from; ranks that are alike are recorded once."""
NUMBER = re.compile(r"\d[\d,]*(?:\.\d+)?")


def figures(value: Any) -> Any:
    """A result without its wording: numbers, names, and of a text the numbers that are in it."""
    if isinstance(value, dict):
        return {key: figures(each) for key, each in value.items() if key not in NO_FIGURES and each is not None}
    if isinstance(value, list):
        found = [figures(each) for each in value]
        return [each for n, each in enumerate(found) if not n or not isinstance(each, dict) or each != found[n - 1]]
    if isinstance(value, float):
        return float(f"{value:.6g}")
    if isinstance(value, str) and str(DATA) in value:
        return None
    if isinstance(value, str) and " " in value:
        return NUMBER.findall(value)
    return value


def answer(words: list[str]) -> dict[str, Any]:
    """The status and the figures of a command line; of a refusal, the numbers of its line and its hint."""
    out, err = (io.TextIOWrapper(io.BytesIO(), "utf-8", write_through=True) for _ in range(2))
    with redirect_stdout(out), redirect_stderr(err):
        status = main((*(word.format(data=DATA) if word.startswith("{data}") else word for word in words), "--json"))
    said = err.buffer.getvalue().decode().replace(str(DATA), "")  # type: ignore[attr-defined]
    told = {"status": status, "said": NUMBER.findall(said)}
    text = out.buffer.getvalue().decode()  # type: ignore[attr-defined]
    return {**told, "figures": figures(json.loads(text)) if text and status != 2 else None}


def differences(was: Any, now: Any, at: str = "") -> list[str]:
    """What moved: the place, the recorded figure and the new one."""
    if isinstance(was, dict) and isinstance(now, dict):
        names = [*was, *(name for name in now if name not in was)]
        return [d for name in names for d in differences(was.get(name), now.get(name), f"{at}.{name}")]
    if isinstance(was, list) and isinstance(now, list) and len(was) == len(now):
        return [d for i, pair in enumerate(zip(was, now, strict=True)) for d in differences(*pair, f"{at}[{i}]")]
    if isinstance(was, float) and isinstance(now, float) and was == pytest.approx(now, rel=2e-6):
        return []
    return [] if was == now else [f"{at}: {was} -> {now}"]


def name_of(number: int, words: list[str]) -> str:
    return f"{number}-{words[0]}-{words[1].rpartition('/')[2]}"


@pytest.mark.parametrize("case", CASES, ids=[name_of(n, case["words"]) for n, case in enumerate(CASES)])
def test_no_figure_has_moved(case: dict[str, Any]) -> None:
    assert differences(case["answer"], answer(case["words"])) == []


def write(lines: list[list[str]]) -> None:
    """Record what command lines give."""
    rows = [{"words": words, "answer": answer(words)} for words in lines]
    text = "".join(json.dumps(row, separators=(",", ":")) + "\n" for row in rows)
    FILE.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    write([case["words"] for case in CASES])
    sys.exit(0)

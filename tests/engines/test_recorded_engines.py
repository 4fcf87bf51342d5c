"""What every engine answers to some hundreds of command lines, as recorded: shows what a change moves.

Bytes, pools, settings that an engine chose, refusals by their numbers, and the command to paste. Held against engines'
own numbers elsewhere (``test_cases.py``, ``test_more_cases.py`` and ``test_planner_wide.py`` beside this file); these
lines are random and prove nothing right. Where a figure is meant to move, record it anew and read the difference::

    python tests/engines/test_recorded_engines.py
"""

from __future__ import annotations

import io
import json
import lzma
import re
import sys
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import pytest

from kvplan.cli.main import main

FILE = Path(__file__).parents[1] / "data" / "recorded_engines.jsonl.xz"
NUMBER = re.compile(r"\d[\d,]*(?:\.\d+)?")
AT_A_TIME = 8
"""Lines of a test."""
PASTE = "to paste: "


def read() -> list[dict[str, Any]]:
    return [json.loads(line) for line in lzma.decompress(FILE.read_bytes()).decode().splitlines()]


def bare(value: Any) -> Any:
    """A value without what is empty; of a sentence, its numbers."""
    if isinstance(value, dict):
        return {key: bare(each) for key, each in value.items() if each not in (None, [], {}, "") and key != "source"}
    if isinstance(value, list):
        return [bare(each) for each in value]
    if isinstance(value, float):
        return float(f"{value:.9g}")
    if isinstance(value, str) and " " in value:
        return " ".join(NUMBER.findall(value))
    return value


def answer(words: list[str]) -> dict[str, Any]:
    """What a plan says of the engine's part; of a refusal, where and the numbers of its line and its hint."""
    out, err = (io.TextIOWrapper(io.BytesIO(), "utf-8", write_through=True) for _ in range(2))
    with redirect_stdout(out), redirect_stderr(err):
        status = main((*words, "--json"))
    said = err.buffer.getvalue().decode()  # type: ignore[attr-defined]
    if status == 2:
        error, _, hint = said.partition("\n")
        return {"refused": [error.split(":")[1].strip()[:60], *NUMBER.findall(error), "|", *NUMBER.findall(hint)]}
    made = json.loads(out.buffer.getvalue())  # type: ignore[attr-defined]
    made["inputs"].pop("defaults", None)
    ranks = made["memory"] or []
    notes = made["verdict"]["notes"]
    terms = [[[t["name"], t["bytes"], t["low_bytes"], t["high_bytes"]] for t in rank.pop("terms")] for rank in ranks]
    return {
        "status": status,
        "inputs": bare(made["inputs"]),
        "kv": bare(made["kv"]),
        "ranks": [bare(rank) for n, rank in enumerate(ranks) if not n or rank["kv_bytes"] != ranks[n - 1]["kv_bytes"]],
        "terms": terms[:1] if len(terms) < 2 or terms[0] == terms[-1] else [terms[0], terms[-1]],
        "capacity": bare(made["capacity"]),
        "allocation": bare(made["allocation"]),
        "binding": made["verdict"]["binding"],
        "paste": [note.partition("\n")[0] for note in notes if note.startswith(PASTE)],
        "said": bare([*notes, *made["verdict"]["hints"], *made["warnings"]]),
    }


def differences(was: Any, now: Any, at: str = "") -> list[str]:
    """What moved: the place, the recorded figure and the new one."""
    if isinstance(was, dict) and isinstance(now, dict):
        names = [*was, *(name for name in now if name not in was)]
        return [d for name in names for d in differences(was.get(name), now.get(name), f"{at}.{name}")]
    if isinstance(was, list) and isinstance(now, list) and len(was) == len(now):
        return [d for i, pair in enumerate(zip(was, now, strict=True)) for d in differences(*pair, f"{at}[{i}]")]
    if isinstance(was, float) and isinstance(now, float) and was == pytest.approx(now, rel=1e-8):
        return []
    return [] if was == now else [f"{at}: {was} -> {now}"]


CASES = read()
CHUNKS = [CASES[n : n + AT_A_TIME] for n in range(0, len(CASES), AT_A_TIME)]


@pytest.mark.parametrize("chunk", CHUNKS, ids=[f"{n}-{chunk[0]['words'][3]}" for n, chunk in enumerate(CHUNKS)])
def test_no_figure_has_moved(chunk: list[dict[str, Any]]) -> None:
    for case in chunk:
        now = json.loads(json.dumps(answer(case["words"])))
        assert differences(case["answer"], now) == [], " ".join(case["words"])


def write(lines: list[list[str]]) -> None:
    """Record what command lines give."""
    rows = [{"words": words, "answer": answer(words)} for words in lines]
    text = "".join(json.dumps(row, separators=(",", ":")) + "\n" for row in rows)
    FILE.write_bytes(lzma.compress(text.encode(), preset=9 | lzma.PRESET_EXTREME))


if __name__ == "__main__":
    write([case["words"] for case in CASES])
    sys.exit(0)

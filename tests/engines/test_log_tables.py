"""What the readers of start-up logs take from each line: everything that a log says, and what goes with a line.

``tests/data/read_logs.json`` holds what was read of every log in ``tests/data/logs``, each figure with its line, and
for every line of it what is gone or changed when that line is missing. The figures that matter are stated by hand in
``tests/sources/test_logs.py``; where a reading is meant to change, record it anew and read the difference::

    python tests/engines/test_log_tables.py
"""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from kvplan.errors import InputError
from kvplan.sources.logs import Log, read_lines

DATA = Path(__file__).parents[1] / "data"
FILE = DATA / "read_logs.json"
NAMES = sorted(path.stem for path in (DATA / "logs").glob("*.log"))


def said(log: Log) -> dict[str, Any]:
    """All that was taken from a log, by a path of names."""
    run = log.run
    found: dict[str, Any] = {
        "engine": log.engine, "version": log.version, "model": log.model, "gpu": log.gpu, "starts": log.starts,
        "warnings": list(log.warnings), "run warnings": run.warnings, "refusals": run.refusals, "gpus": run.gpus,
        "lines": run.lines, "closed": run.closed,
    }  # fmt: skip
    found |= {f"text {name}": text for name, text in run.texts.items()}
    found |= {f"figure {name}": [list(f) for f in figures] for name, figures in run.figures.items()}
    found |= {f"setting {name}": list(setting) for name, setting in run.settings.items()}
    found |= {f"cache {n}": [c.kind, list(c.bytes), *c[2:]] for n, c in enumerate(run.caches)}
    for what, sizes in run.buffers.items():
        found |= {f"buffer {what} {device}": list(size) for device, size in sizes.items()}
    return dict(json.loads(json.dumps(found)))


def read(lines: list[str]) -> dict[str, Any]:
    try:
        return said(read_lines(io.BytesIO("\n".join(lines).encode())))
    except InputError as refused:
        return {"refused": str(refused)}


def without(lines: list[str], number: int) -> dict[str, Any]:
    """What differs when a line is empty: the new value, None where there is none."""
    whole, less = read(lines), read([*lines[:number], "", *lines[number + 1 :]])
    names = dict.fromkeys((*whole, *less))
    return {name: less.get(name) for name in names if whole.get(name) != less.get(name)}


def recorded(name: str) -> dict[str, Any]:
    """The whole reading of a log, and the lines that matter with what each carries."""
    lines = (DATA / "logs" / f"{name}.log").read_text(encoding="utf-8").splitlines()
    gone = {str(n + 1): without(lines, n) for n in range(len(lines))}
    return {"whole": read(lines), "without line": {n: what for n, what in gone.items() if what}}


@pytest.mark.parametrize("name", NAMES)
def test_every_line_carries_what_it_did(name: str) -> None:
    assert recorded(name) == json.loads(FILE.read_text(encoding="utf-8"))[name]


@pytest.mark.parametrize("name", NAMES)
def test_no_figure_stays_without_its_line(name: str) -> None:
    """A figure that only one line prints is gone with it."""
    case = json.loads(FILE.read_text(encoding="utf-8"))[name]
    for path, figures in case["whole"].items():
        if path.startswith("figure ") and len(figures) == 1 and str(figures[0][3]) in case["without line"]:
            less = case["without line"][str(figures[0][3])]
            assert "refused" in less or path in less or figures[0][3] == 0, path


if __name__ == "__main__":
    text = json.dumps({name: recorded(name) for name in NAMES}, indent=1, ensure_ascii=False)
    FILE.write_text(text + "\n", encoding="utf-8")
    sys.exit(0)

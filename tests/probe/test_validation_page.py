"""The published table comes from the receipts beside it."""

from __future__ import annotations

import json
import re
import statistics
import subprocess
import sys
from pathlib import Path

import pytest

from kvplan.planning.calibration import from_data

ROOT = Path(__file__).parents[2]
RECEIPTS = sorted((ROOT / "docs" / "validation").glob("h200-2026-11-30-*.json"))


def test_the_table_is_up_to_date() -> None:
    script = ROOT / "scripts" / "make_validation.py"
    done = subprocess.run([sys.executable, str(script), "--check"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("path", RECEIPTS, ids=lambda path: path.stem)
def test_a_receipt_holds_its_samples_and_a_calibration_that_loads(path: Path) -> None:
    receipt = json.loads(path.read_text(encoding="utf-8"))
    assert receipt["schema"] == "kvplan.validation/1"
    timed = [row for row in receipt["rows"] if row["unit"] in ("s", "bytes/s") and row["measured"] is not None]
    assert len(timed) > 50
    assert all(row["samples"] for row in timed)
    made = from_data(receipt["calibration"])
    assert made.gpu == "h200-sxm"
    assert set(made.attention) == {"16", "8", "4"}


def test_figures_of_the_decode_page_are_medians_of_its_receipts() -> None:
    """Worked out anew from the receipts: what is measured, predicted and noted, each the median of the three runs."""
    page = (ROOT / "docs" / "validation" / "h200-decode.md").read_text(encoding="utf-8")
    cells = {tuple(c.strip() for c in line.strip("|").split("|")) for line in page.splitlines() if line.startswith("|")}
    runs = [{r["name"]: r for r in json.loads(path.read_text(encoding="utf-8"))["rows"]} for path in RECEIPTS]
    seen = 0
    for name, first in runs[0].items():
        if first["section"] == "attention" and first["unit"] == "bytes/s" and ": " not in name:
            fmt, _, shape = name.partition(", ")
            us = statistics.median(float(re.findall(r"([\d.]+) us a layer", run[name]["note"])[0]) for run in runs)
            rate = statistics.median(run[name]["measured"] for run in runs) / 1e12
            assert any(cell[:4] == (fmt, shape, f"{us:.1f}", f"{rate:.3f}") for cell in cells), name
            seen += 1
        if name.startswith("step, "):
            measured, predicted = (
                statistics.median(run[name][key] for run in runs) for key in ("measured", "predicted")
            )
            miss = f"{100 * (predicted / measured - 1):+.1f}"
            assert (name, f"{1e3 * measured:.3f} ms", f"{1e3 * predicted:.3f} ms", miss) in cells
            seen += 1
        if first["section"] == "attention" and name.endswith(": worst miss of the line"):
            chosen = sorted(runs, key=lambda run: run[name]["measured"])[1][name]
            row = next(c for c in cells if c[0] == name.partition(":")[0] and c[1].startswith("bytes / "))
            assert row[1:3] == (chosen["note"].partition(", ")[0], f"{100 * chosen['measured']:.1f}")
            seen += 1
    assert seen == 28 + 8 + 4
    summary = (ROOT / "docs" / "validate.md").read_text(encoding="utf-8")
    middle, most, before = (
        100 * statistics.median(run[name]["measured"] for run in runs)
        for name in ("median miss of predicted steps", "miss of nine in ten predicted steps",
                     "median miss before calibration")
    )  # fmt: skip
    flat = " ".join(summary.split())
    after = f"within {middle:.1f} % after calibration (median; nine in ten within {most:.1f} %)"
    assert f"{after} and {before:.1f} % before" in flat

"""The published table comes from the receipts beside it."""

from __future__ import annotations

import json
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

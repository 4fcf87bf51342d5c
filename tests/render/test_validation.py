"""The receipt as a document: figures with their units, verdicts, block tables."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from kvplan.probe.receipt import row
from kvplan.render import markdown, table, text
from kvplan.render.validation import amount, inventory_report, validation_report

RECEIPTS = sorted((Path(__file__).parents[2] / "docs" / "validation").glob("**/*.json"))


def receipt(*rows: Any, **exhibits: Any) -> dict[str, Any]:
    """A receipt with these rows."""
    failed = sum(r.passed is False for r in rows)
    return {
        "date": "2026-11-30", "seconds": 12.345, "exhibits": exhibits, "rows": [r.to_dict() for r in rows],
        "device": {
            "name": "NVIDIA H200", "gpu": "h200-sxm", "total_bytes": 150_109_880_320, "free_bytes": 149_557_477_376,
            "theoretical_bandwidth": 4.814304e12, "bandwidth_source": "2 x 6016 bit x 3201 MHz (NVML)", "nvml": None,
        },
        "software": {"torch": "2.13.0", "triton": "3.7.0", "driver": "580.159"},
        "inputs": {"engine": "vllm 0.33.0", "model": "llama-3.1-8b", "quick": True, "max_memory_bytes": 1 << 31},
        "verdict": {
            "agrees": not failed, "reason": f"{len(rows) - failed} of {len(rows)} predictions hold", "informative": 0,
        },
    }  # fmt: skip


ROWS = (
    row("memory", "bf16: tensors", predicted=1 << 30, measured=1 << 30, unit="bytes", tolerance=0.0, note="32 tensors"),
    row("memory", "fp8: tensors", predicted=1 << 30, measured=(1 << 30) + 1, unit="bytes", tolerance=0.0),
    row("bandwidth", "read ceiling", predicted=4.814e12, measured=[4.6e12, 4.7e12, 4.8e12], unit="bytes/s",
        tolerance=0.05, sense="at_least"),
    row("decode", "step", predicted=4.5e-3, measured=[1e-3, 4.6e-3, 9e-3], unit="s", tolerance=0.1),
    row("correctness", "cache", predicted=2e-5, measured=4e-7, unit="ratio", tolerance=0.0, sense="at_most"),
)  # fmt: skip


@pytest.mark.parametrize(
    ("value", "unit", "shown"),
    [
        (None, "bytes", "-"), (1 << 30, "bytes", "1,073,741,824 B"), (4.6e12, "bytes/s", "4.600 TB/s"),
        (11.2e9, "bytes/s", "11.20 GB/s"), (7.7e14, "flop/s", "770 TFLOP/s"), (7.1e-6, "s", "7.1 us"),
        (4.56e-3, "s", "4.56 ms"), (2.5, "s", "2.500 s"), (71313, "count", "71,313"), (0.0123456, "ratio", "0.01235"),
    ],
)  # fmt: skip
def test_figures_carry_their_units(value: float | None, unit: str, shown: str) -> None:
    assert amount(value, unit) == shown


def test_one_byte_too_many_is_seen() -> None:
    drawn = text.draw(validation_report(receipt(*ROWS)), color=False, unicode=True)
    lines = {line.split("  ")[1].strip(): line for line in drawn.splitlines() if line.startswith("  ")}
    assert "ok" in lines["bf16: tensors"]
    assert "exact" in lines["bf16: tensors"]
    assert "1,073,741,825 B" in lines["fp8: tensors"]
    assert "OFF" in lines["fp8: tensors"]
    assert re.search(r"^verdict +OFF +4 of 5 predictions hold", drawn, re.M)
    off = drawn[drawn.index("\nOff\n") :]
    assert "memory, fp8: tensors: 1,073,741,825 B measured, 1,073,741,824 B predicted" in off
    assert "bf16" not in off


def test_wide_spreads_and_one_sided_bounds_say_so() -> None:
    drawn = text.draw(validation_report(receipt(*ROWS)), color=False, unicode=True)
    step = next(line for line in drawn.splitlines() if line.strip().startswith("step "))
    assert "wide" in step
    assert next(line for line in drawn.splitlines() if line.strip().startswith("cache ")).split()[3] == "below"
    narrow = table.draw(validation_report(receipt(*ROWS)), width=80)
    assert "room for: spread" in narrow
    assert "step (wide)" in narrow
    assert "read ceiling (wide)" not in narrow
    assert "-0.05" in next(line for line in drawn.splitlines() if line.strip().startswith("read ceiling"))


def test_block_tables_stand_below_the_blocks() -> None:
    shown = {
        "block_size": 16, "lengths": [40, 33], "prefix": 24, "separate": [[5, 1, 9], [2, 7, 3]],
        "shared": [[5, 1], [5, 1]], "diverged": [[5, 8, 9], [5, 1, 2]],
    }  # fmt: skip
    copied = row("blocks", "copied", predicted=1, measured=1, unit="count", tolerance=0.0)
    drawn = text.draw(validation_report(receipt(copied, blocks=shown)), color=False, unicode=True)
    tables = drawn[drawn.index("Block tables") :]
    assert tables.splitlines()[2].split("  ")[-1] == "5 8 9"
    assert "the first 24 tokens are the same in all" in tables


@pytest.mark.parametrize("width", [80, 200])
def test_a_terminal_gets_what_fits(width: int) -> None:
    drawn = table.draw(validation_report(receipt(*ROWS)), width=width, color=False, unicode=True)
    assert max(map(len, drawn.splitlines())) <= width
    assert "read ceiling" in drawn
    assert ("32 tensors" in drawn) == (width == 200)
    assert "| bf16: tensors | 1,073,741,824 B |" in markdown.draw(validation_report(receipt(*ROWS)))


@pytest.mark.parametrize("path", RECEIPTS, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_published_receipts_are_drawn(path: Path) -> None:
    """They count other processes, and name none."""
    plain = json.loads(path.read_text(encoding="utf-8"))
    document = validation_report(plain)
    drawn = text.draw(document, color=False, unicode=True)
    assert plain["device"]["nvml"] is not None
    assert "0 processes" in drawn
    assert all(row["name"] in drawn for row in plain["rows"][:5])
    assert max(map(len, table.draw(document, width=80, color=False, unicode=True).splitlines())) <= 80
    assert markdown.draw(document).count("\n| ") > len(plain["rows"])


def test_nothing_judged_is_neither_agreement_nor_off() -> None:
    plain = receipt(row("device", "memory free", predicted=None, measured=1 << 30, unit="bytes"))
    plain["verdict"].update(agrees=None, reason="no prediction was judged")
    drawn = text.draw(validation_report(plain), color=False, unicode=True)
    assert re.search(r"^verdict +nothing judged +no prediction was judged", drawn, re.M)


def test_three_views_of_a_card_side_by_side() -> None:
    device = {
        "name": "NVIDIA H200", "gpu": "h200-sxm", "torch": None, "differences": ["something differs"],
        "catalog": {"torch_total_bytes": 150_109_880_320, "bandwidth_bytes_per_second": 4_800_000_000_000},
        "nvml": {
            "driver": "580.159", "total_bytes": 150_754_820_096, "reserved_bytes": 644_939_776, "used_bytes": 0,
            "free_bytes": 150_109_880_320, "processes": [], "ecc": True, "mig": False, "bus_width_bits": 6016,
            "max_memory_clock_mhz": 3201, "max_sm_clock_mhz": 1980, "theoretical_bandwidth": 4.814304e12,
        },
    }  # fmt: skip
    drawn = text.draw(inventory_report({"devices": [device]}), color=False, unicode=True)
    less = next(line for line in drawn.splitlines() if line.strip().startswith("less reserved"))
    assert less.count("150,109,880,320 B") == 2  # NVML's and the catalog's; torch is not there
    assert "4,814 GB/s" in drawn
    assert "something differs" in drawn
    assert "ECC on" in drawn

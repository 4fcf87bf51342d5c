"""Rows and their verdicts."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvplan.probe import step_rows
from kvplan.probe.receipt import counts, median, quantile, row, spread


def test_bytes_that_are_equal_pass_and_one_byte_more_does_not() -> None:
    same = row("memory", "a", predicted=1 << 40, measured=1 << 40, unit="bytes", tolerance=0.0)
    more = row("memory", "b", predicted=1 << 40, measured=(1 << 40) + 1, unit="bytes", tolerance=0.0)
    assert same.passed is True
    assert more.passed is False
    assert counts([same, more])[:2] == (1, 1)


@pytest.mark.parametrize(
    ("sense", "measured", "passed"),
    [
        ("equal", 90, False), ("equal", 96, True), ("equal", 104, True), ("equal", 106, False),
        ("at_least", 94, False), ("at_least", 96, True), ("at_least", 200, True),
        ("at_most", 104, True), ("at_most", 106, False), ("at_most", 1, True),
    ],
)  # fmt: skip
def test_tolerance_counts_on_the_side_that_the_sense_says(sense: str, measured: int, passed: bool) -> None:
    found = row("memory", "x", predicted=100, measured=measured, unit="ratio", tolerance=0.05, sense=sense)  # type: ignore[arg-type]
    assert found.passed is passed


def test_nothing_predicted_is_not_judged_and_nothing_measured_fails() -> None:
    assert row("memory", "x", predicted=None, measured=3, unit="s", tolerance=0.1).passed is None
    assert row("memory", "x", predicted=3, measured=3, unit="s").passed is None
    missing = row("memory", "x", predicted=3, measured=None, unit="s", tolerance=0.1)
    assert missing.passed is False
    assert missing.measured is None


def test_zero_predicted_wants_zero() -> None:
    assert row("blocks", "x", predicted=0, measured=0, unit="count", tolerance=0.0).passed is True
    assert row("blocks", "x", predicted=0, measured=1, unit="count", tolerance=0.0).passed is False


def test_the_median_counts_and_all_samples_stay() -> None:
    found = row("decode", "x", predicted=2.0, measured=[1.0, 2.0, 30.0], unit="s", tolerance=0.0)
    assert found.measured == 2.0
    assert found.passed is True
    assert found.wide
    plain = found.to_dict()
    assert plain["samples"] == [1.0, 2.0, 30.0]
    assert plain["pass"] is True
    assert list(plain)[:10] == [
        "section", "name", "predicted", "measured", "unit", "error", "tolerance", "pass", "spread", "samples",
    ]  # fmt: skip


@pytest.mark.parametrize("tolerance", [None, 0.5])
@pytest.mark.parametrize("measured", [math.nan, [1.0, math.inf, 3.0], [math.nan]])
def test_what_is_no_number_is_a_failed_row_that_json_can_hold(measured: Any, tolerance: float | None) -> None:
    found = row("decode", "x", predicted=2.0, measured=measured, unit="s", tolerance=tolerance, note="by clock")
    assert (found.measured, found.passed, found.error, found.spread) == (None, False, None, None)
    assert found.note.startswith("not a number: 1 of ")
    assert found.note.endswith("; by clock")
    json.dumps(found.to_dict(), allow_nan=False)
    wrong = row("decode", "x", predicted=math.nan, measured=2.0, unit="s", tolerance=tolerance)
    assert (wrong.predicted, wrong.passed) == (None, False)
    assert "the prediction" in wrong.note


def test_a_section_that_does_not_exist_is_refused() -> None:
    with pytest.raises(ValueError, match="nonsense"):
        row("nonsense", "x", predicted=1, measured=1, unit="s")


@given(st.lists(st.floats(1e-6, 1e6), min_size=3, max_size=40))
def test_median_and_quartiles_lie_in_order(samples: list[float]) -> None:
    low, middle, high = quantile(samples, 0.25), median(samples), quantile(samples, 0.75)
    assert min(samples) <= low <= middle * (1 + 1e-9)
    assert middle <= high * (1 + 1e-9)
    assert high <= max(samples)
    assert spread(samples) == pytest.approx((high - low) / middle)


def test_slow_rates_are_not_shown_as_none() -> None:
    assert [step_rows.rate_text(rate) for rate in (0.126, 3.04, 17.5, 17421.3)] == ["0.13", "3", "18", "17,421"]

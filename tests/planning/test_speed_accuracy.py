"""Predicted speeds against measured ones: the aims, and the page that shows them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from statistics import quantiles

import pytest

ROOT = Path(__file__).parent.parent.parent
sys.path.insert(0, str(ROOT / "scripts"))

import make_speed_accuracy as accuracy  # noqa: E402
from speed_cases import ASIDE, FIELD, lines, reports  # noqa: E402

from kvplan.planning.speed import constants, decode  # noqa: E402


@pytest.fixture(scope="module")
def points() -> list[accuracy.Point]:
    return accuracy.points()


def middle_and_tenth(errors: list[float]) -> tuple[float, float]:
    cuts = quantiles([abs(e) for e in errors], n=10)
    return cuts[4], cuts[8]


def test_unseen_nvidia_gpus_are_met(points: list[accuracy.Point]) -> None:
    alone = [p for p in points if p.multiprocessors and p.gpus == 1]
    assert len({p.gpu for p in alone}) == 16
    middle, tenth = middle_and_tenth(accuracy.left_out(alone, apple=False))
    assert (middle < 0.07, tenth < 0.30) == (True, True)
    middle, tenth = middle_and_tenth(accuracy.measured_points(alone, 2))
    assert (middle < 0.04, tenth < 0.10) == (True, True)


def test_unseen_apple_chips_are_met(points: list[accuracy.Point]) -> None:
    middle, tenth = middle_and_tenth(accuracy.left_out([p for p in points if not p.multiprocessors], apple=True))
    assert (middle < 0.135, tenth < 0.66) == (True, True)


def test_the_constants_are_those_that_fit(points: list[accuracy.Point]) -> None:
    limit, cache, scale = accuracy.fit_nvidia([p for p in points if p.multiprocessors and p.gpus == 1])
    own = constants.engine_rates("llama.cpp", "nvidia", accuracy.BUILD)
    assert own.naive_bytes is not None
    assert (limit, 1 / cache, scale) == pytest.approx((own.sm_bytes, own.naive_bytes, own.latency_scale), rel=0.03)


def test_every_report_lies_within_its_bounds() -> None:
    seen, _ = reports()
    assert len(seen) >= 20
    for case in seen:
        made = case.setup
        seconds = float(decode.step(made.works, made.rates, made.layout, case.batch, case.context).seconds)
        assert made.rates.low <= seconds / case.seconds <= made.rates.high, case.name


def test_no_speed_case_is_dropped_silently() -> None:
    cases = {c["id"] for c in lines(ROOT / "tests" / "data" / "cases" / "field.jsonl") if "speed" in c["kinds"]}
    assert cases == set(FIELD) | set(ASIDE)


def test_the_page_is_up_to_date() -> None:
    done = subprocess.run(
        [sys.executable, "scripts/make_speed_accuracy.py", "--check"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr

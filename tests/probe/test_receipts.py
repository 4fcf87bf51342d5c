"""Published receipts against the package as it is: their samples still predict their steps."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from kvplan.catalog import load_model
from kvplan.probe.shapes import left_out
from kvplan.probe.step_rows import MEDIAN_MISS, MOST_LEFT_OUT, STATED_MISS, WORST_MISS

sys.path.insert(0, str(Path(__file__).parents[2] / "scripts"))

import replay_receipts as replays

RECEIPTS = replays.receipts()


@pytest.mark.parametrize("name", list(RECEIPTS))
def test_steps_are_predicted_from_the_samples(name: str) -> None:
    found = replays.replay(RECEIPTS[name])
    assert len(found.now) + len(found.short) >= 2
    if left_out(load_model(found.model)) > MOST_LEFT_OUT:
        assert found.middle <= STATED_MISS  # for information: the probe leaves products out
        return
    assert found.middle <= MEDIAN_MISS
    assert found.most <= WORST_MISS


def test_a_receipt_with_other_samples_is_predicted_otherwise() -> None:
    """The replay reads the samples: products twice as long make every step longer."""
    name = next(iter(RECEIPTS))
    changed = {**RECEIPTS[name], "rows": [dict(row) for row in RECEIPTS[name]["rows"]]}
    for row in changed["rows"]:
        if row["name"].startswith("linear layer, "):
            row["samples"] = [rate / 2 for rate in row["samples"]]
    before, after = replays.replay(RECEIPTS[name]), replays.replay(changed)
    assert after.middle > before.middle + 0.2

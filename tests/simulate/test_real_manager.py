"""Hits, preemptions and ends of requests beside those of vLLM's own block manager, recorded with equal step times."""

from __future__ import annotations

import json
from math import ceil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kvplan.simulate import run as running
from kvplan.simulate.allocators.shape import Shape, Window
from kvplan.simulate.run import simulate
from kvplan.simulate.synthetic import synthetic

RECORDED = json.loads((Path(__file__).parents[1] / "data" / "manager_vllm_0.33.0.json").read_text())


class EvenTimer:
    """Steps of 8 ms and 20 us a prompt token, whoever decodes."""

    ahead = None

    def __init__(self, *_: Any) -> None:
        pass

    def decode(self, batch: int, context: float) -> float:
        return 0.008

    def decodes(self, batch: int, tokens: int, steps: int) -> float:
        return 0.008 * steps

    def steps_until(self, batch: int, tokens: int, seconds: float, most: int) -> int:
        return most if seconds >= 0.008 * most else max(1, min(most, ceil(seconds / 0.008)))

    def mixed(self, batch: int, context: float, chunks: list[tuple[int, int]], *_: Any) -> float:
        return 0.008 + 2e-5 * sum(end - start for start, end in chunks)


@pytest.mark.parametrize("case", RECORDED["cases"], ids=lambda case: case["what"])
def test_requests_fare_as_under_vllms_own_manager(
    site: Any, monkeypatch: pytest.MonkeyPatch, case: dict[str, Any]
) -> None:
    monkeypatch.setattr(running, "StepTimer", EvenTimer)
    windows = tuple(Window(case["block"], *window) for window in case["windows"])
    made = site()._replace(
        shape=Shape((case["block"],), windows, 0, case["block"], marked=bool(windows)), num_blocks=case["blocks"],
        tokens_per_step=case["tokens_per_step"], sequences=case["sequences"], longest=case["longest"],
    )  # fmt: skip
    run = simulate(made, synthetic(case["synthetic"]))
    hits, off = run.rows.hits, case["hit_tokens_off"]
    assert abs(int(hits.sum()) - sum(case["hits"])) <= off * sum(case["hits"])
    assert off or hits.tolist() == case["hits"]
    assert run.rows.preemptions.tolist() == case["preemptions"]
    assert np.allclose(run.rows.finish, case["finish"], rtol=1e-3 if off else 2e-5)

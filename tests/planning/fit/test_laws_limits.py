"""What a search says of limits: how far the nearest miss is, and the flags that make a plan of a row."""

from __future__ import annotations

from typing import Any

import pytest

from kvplan import load_gpu, load_model
from kvplan.planning.fit.ask import Ask
from kvplan.planning.fit.result import Fit
from kvplan.planning.fit.search import fit
from kvplan.planning.speed.profile import Lengths
from kvplan.planning.workload_lengths import Distribution


def searched(model: str = "llama-3.1-8b", prompt: int = 1000, output: int = 100, **given: Any) -> Fit:
    both = (Distribution(n, 0, n, str(n)) for n in (prompt, output))
    given = {"gpus": ("l40s",), "weights": ("bf16",), "kv_formats": ("auto",), "top": 100, "every": True, **given}
    return fit(load_model(model), Ask(Lengths(prompt, output), *both, prompt + output, **given))


def test_over_the_limit_by_as_many_gpus_as_the_least_takes() -> None:
    least = min(row.gpus for row in searched(concurrency=700).rows)
    assert least > 2
    found = searched(concurrency=700, max_gpus=2)
    assert not found.rows
    (failure,) = found.failures
    assert failure.reason == "more GPUs than --max-gpus"
    assert failure.nearest is not None
    assert failure.nearest.factor == pytest.approx(least / 2)
    assert failure.nearest.text.startswith(f"{least} GPUs")
    assert searched(concurrency=700, max_gpus=least).rows


def test_weights_that_do_not_load_say_by_how_much() -> None:
    found = searched("llama-3.1-70b", concurrency=1, max_gpus=1)
    (failure,) = found.failures
    assert failure.reason == "the weights do not load"
    assert failure.nearest is not None
    assert failure.nearest.factor == pytest.approx(2 * 70_553_706_496 / load_gpu("l40s").device_bytes)
    assert failure.nearest.text.startswith(f"{failure.nearest.factor:.3g} x the memory of a GPU")


def test_a_single_request_that_is_too_slow_says_its_time() -> None:
    for name, target in (("ttft", 1e-3), ("tpot", 1e-4)):
        found = searched(concurrency=1, max_gpus=1, **{name: target})
        (failure,) = found.failures
        assert failure.nearest is not None
        assert (
            failure.reason == f"{'time to first token' if name == 'ttft' else 'time per output token'} over the target"
        )
        alone = searched(concurrency=1, max_gpus=1).rows[0]
        seconds = failure.nearest.factor * target
        assert failure.nearest.text.startswith(f"{seconds * 1e3:.3g} ms for a request that is alone")
        assert seconds == pytest.approx(getattr(alone, f"{name}_seconds"), rel=0.02)


def test_switches_are_typed_as_they_are_off_or_on() -> None:
    off, on = (
        searched(concurrency=1, max_gpus=1, settings={"enable_prefix_caching": s}).rows[0] for s in (False, True)
    )
    assert "--no-enable-prefix-caching" in off.flags.split()
    assert "--enable-prefix-caching" in on.flags.split()
    eager = searched(concurrency=1, max_gpus=1, settings={"enforce_eager": True, "gpu_memory_utilization": 0.85}).rows[
        0
    ]
    assert "--enforce-eager" in eager.flags.split()
    assert "--gpu-memory-utilization 0.85" in eager.flags
    assert "False" not in off.flags
    assert "True" not in eager.flags

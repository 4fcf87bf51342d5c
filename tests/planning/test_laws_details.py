"""Details of planning: limits that are met exactly, loads that are no whole number, targets beside each other."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from kvplan import load_gpu, load_model, plan
from kvplan.engines import get_engine
from kvplan.errors import InputError
from kvplan.planning import prefix
from kvplan.planning.drafts import served_model
from kvplan.planning.evaluate import evaluate
from kvplan.planning.log_report import exceeds
from kvplan.planning.settings import resolve
from kvplan.planning.speed import load
from kvplan.planning.speed.figures import Setup, setup
from kvplan.planning.speed.profile import Lengths, profile
from kvplan.planning.workload_lengths import read_lengths


def test_a_figure_as_far_off_as_is_allowed_is_allowed() -> None:
    row = SimpleNamespace(difference=5.0, relative=-0.05)
    assert not exceeds(row, 0.05)  # type: ignore[arg-type]
    assert exceeds(row, 0.0499)  # type: ignore[arg-type]
    assert exceeds(SimpleNamespace(difference=1.0, relative=None), 9.0)  # type: ignore[arg-type]


def test_lengths_of_a_system_prompt() -> None:
    assert prefix.LENGTHS == (0, 256, 1024, 4096, 16_384, 65_536, 262_144, 1_048_576)


def test_more_gpus_than_there_are_anywhere() -> None:
    with pytest.raises(InputError, match=r"tp x pp x dp makes [\d,]+ GPUs") as refused:
        plan("llama-3.1-8b", tensor_parallel_size=8, pipeline_parallel_size=32, data_parallel_size=65_536)
    assert refused.value.where == "--data-parallel-size"


@pytest.mark.parametrize("requests", [1.0, 2.5, 7.25])
def test_a_loop_keeps_as_many_under_way_as_it_is_told(requests: float) -> None:
    spec, device, chosen = load_model("llama-3.1-8b"), load_gpu("h200-sxm"), get_engine("generic")
    settings, _ = resolve(spec, device, chosen, {"max_model_len": 8192})
    spec = served_model(spec, chosen, settings)
    found = setup(spec, device, chosen, evaluate(spec, device, chosen, settings))
    assert isinstance(found, Setup)
    assert load.in_loop(profile(found, Lengths(1000, 200)), requests, 10).in_flight == pytest.approx(requests)


@pytest.mark.parametrize("text", ["px=3,p50=1", "p=3", "q50=1", "p50"])
def test_percentiles_are_numbers(text: str) -> None:
    with pytest.raises(InputError, match="cannot read"):
        read_lengths(f"percentiles:{text}", "--prompt-tokens")


def test_a_rate_and_requests_under_way_are_two_targets() -> None:
    for concurrency, holds in ((50, True), (2, False)):
        made = plan("llama-3.1-8b", gpu="h100-sxm", max_model_len=8192, request_rate=4.0, concurrency=concurrency)
        assert made.serving is not None
        held = {target.name: target.holds for target in made.serving.targets}
        assert held == {"request_rate": holds, "concurrency": holds}


def test_a_length_with_which_it_starts_though_not_all_requests_hold() -> None:
    made = plan("llama-3.1-8b", gpu="l4", concurrency=500)
    assert made.verdict.fits is False
    effects = {hint.flag: hint.effect for hint in made.verdict.hints}
    assert effects["--max-model-len"].startswith("it starts; ")
    assert effects["--max-model-len"].endswith(" of the 500 requests of 1,280 tokens hold at once")

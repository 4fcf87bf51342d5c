"""Details of planning: limits that are met exactly, loads that are no whole number, targets beside each other."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from kvplan import load_gpu, load_model, plan
from kvplan.engines import get_engine
from kvplan.errors import InputError
from kvplan.planning.drafts import served_model
from kvplan.planning.evaluate import evaluate
from kvplan.planning.log_base import measured_base
from kvplan.planning.log_report import exceeds
from kvplan.planning.prefix import LENGTHS
from kvplan.planning.settings import resolve
from kvplan.planning.speed import load
from kvplan.planning.speed.constants import EngineRates, engine_rates
from kvplan.planning.speed.figures import Setup, setup
from kvplan.planning.speed.profile import Lengths, profile
from kvplan.planning.workload_lengths import read_lengths
from kvplan.sources.logs import read_log
from kvplan.units import gib


def test_a_figure_as_far_off_as_is_allowed_is_allowed() -> None:
    row = SimpleNamespace(difference=5.0, relative=-0.05)
    assert not exceeds(row, 0.05)  # type: ignore[arg-type]
    assert exceeds(row, 0.0499)  # type: ignore[arg-type]
    assert exceeds(SimpleNamespace(difference=1.0, relative=None), 9.0)  # type: ignore[arg-type]


def test_lengths_of_a_system_prompt() -> None:
    assert LENGTHS == (0, 256, 1024, 4096, 16_384, 65_536, 262_144, 1_048_576)


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


def test_smaller_weights_are_those_of_the_heaviest_stage() -> None:
    given = {"gpu": "a100-sxm4-40gb", "pipeline_parallel_size": 3, "max_model_len": 4096}
    made = plan("llama-3.1-70b", **given)
    (hint,) = (hint for hint in made.verdict.hints if hint.flag == "--weights")
    then = plan("llama-3.1-70b", **given, weights=hint.value)
    loaded = [
        [sum(term.bytes for term in rank.terms if term.name == "weights") for rank in found.memory or ()]
        for found in (made, then)
    ]
    assert [len(set(each)) for each in loaded] != [1, 1]  # 80 layers over three stages
    totals = [max(each) for each in loaded]
    assert hint.effect == f"a checkpoint in {hint.value} takes {gib(totals[1])} per GPU instead of {gib(totals[0])}"


def test_cards_accumulate_in_half_under_engines_that_ask_for_it() -> None:
    assert EngineRates().half_accumulate is False
    assert engine_rates("vllm", "nvidia").half_accumulate is False


def test_a_log_with_no_bytes_left_is_no_base(tmp_path: Path) -> None:
    lines = (
        "INFO 10-20 09:12:01 [api_server.py:1896] vLLM API server version 0.11.0\n"
        "INFO 10-20 09:12:01 [utils.py:233] non-default args: {'model': 'Qwen/Qwen3-8B', 'max_model_len': 32768, "
        "'gpu_memory_utilization': 0.9}\n"
        "INFO 10-20 09:12:50 [gpu_model_runner.py:2653] Model loading took 15.2683 GiB and 8.1 seconds\n"
    )
    gpu, log = load_gpu("h100-sxm"), tmp_path / "v1.log"
    log.write_text(lines + "INFO 10-20 09:13:20 [gpu_worker.py:298] Available KV cache memory: 0.00 GiB\n")
    with pytest.raises(InputError, match="does not say how many bytes were left"):
        measured_base(read_log(str(log)), name="v1", model=None, gpu=gpu, engine=None, given={})
    log.write_text(lines + "INFO 10-20 09:13:20 [gpu_worker.py:298] Available KV cache memory: 54.50 GiB\n")
    found = measured_base(read_log(str(log)), name="v1", model=None, gpu=gpu, engine=None, given={"max_num_seqs": 64})
    assert found.bounds is not None
    assert found.bounds[0] <= found.found.settings["kv_cache_memory_bytes"] <= found.bounds[1]

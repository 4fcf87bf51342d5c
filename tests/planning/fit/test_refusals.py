"""What a search refuses, and in whose words; what it leaves out, and what it marks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kvplan import load_gpu, load_model, plan
from kvplan.errors import InputError, KvplanError, UnsupportedError
from kvplan.planning.fit.misses import _apart
from kvplan.planning.fit.search import fit
from kvplan.planning.speed.constants import REPORTED, engine_rates

from ..test_calibration import calibration, figure
from .test_fit import ask


def searched(model: str = "llama-3.1-8b", **given: Any) -> Any:
    return fit(load_model(model), ask(**{"concurrency": 5, **given}))


def planned(**given: Any) -> Any:
    return plan("llama-3.1-8b", gpu="h100-sxm", **given)


@pytest.mark.parametrize(
    ("of_fit", "of_plan"),
    [
        ({"weights": ("bogus",)}, {"weights": "bogus"}),
        ({"kv_formats": ("bogus",)}, {"kv_cache_dtype": "bogus"}),
        ({"settings": {"acceptance_rate": 1.7}}, {"acceptance_rate": 1.7}),
        ({"settings": {"tensor_parallel_size": 3}}, {"tensor_parallel_size": 3}),
        ({"settings": {"block_size": 7}, "gpus": ("h100-sxm",)}, {"block_size": 7}),
    ],
)
def test_what_no_candidate_takes_is_refused_as_a_plan_refuses_it(
    of_fit: dict[str, Any], of_plan: dict[str, Any]
) -> None:
    with pytest.raises(KvplanError) as said:
        searched(**of_fit)
    with pytest.raises(KvplanError) as meant:
        planned(**of_plan)
    assert (str(said.value), said.value.hint) == (str(meant.value), meant.value.hint)
    assert said.value.hint


def test_a_device_without_a_backend_is_a_matter_of_the_engine() -> None:
    with pytest.raises(UnsupportedError, match="--engine: mlx has no backend for nvidia") as caught:
        searched(engines=("mlx",), gpus=("h100-sxm",))
    assert "engines" in (caught.value.hint or "")


def test_several_computers_of_their_own_are_tried_where_they_are_named() -> None:
    pinned = {"tensor_parallel_size": 2}
    with pytest.raises(UnsupportedError, match="--gpu: a computer of its own") as caught:
        searched(engines=("mlx",), settings=pinned, gpus=())
    assert caught.value.hint == "add --gpu apple-m1"
    assert searched(engines=("mlx",), settings=pinned, gpus=("apple-m1",)).verdict.carries
    others = searched(settings=pinned, gpus=())
    (failure,) = [failure for failure in others.failures if "computer of its own" in failure.reason]
    assert "apple-m4-max" in failure.gpus


def written(folder: Path, **changed: Any) -> str:
    path = folder / "measured.json"
    path.write_text(json.dumps(calibration(**changed)), encoding="utf-8")
    return str(path)


def test_a_calibration_of_a_gpu_that_is_not_tried_is_refused(tmp_path: Path) -> None:
    path = written(tmp_path)
    with pytest.raises(InputError, match="was measured on h200-sxm, which is not among the GPUs") as caught:
        searched(settings={"calibration": path}, gpus=("h100-sxm", "l40s"))
    assert "--gpu" in (caught.value.hint or "")
    assert caught.value.where == "--calibration"


def test_a_calibration_of_a_cpu_is_no_gpu_to_add(tmp_path: Path) -> None:
    path = written(tmp_path, device={"name": "Some processor", "kind": "cpu"})
    with pytest.raises(InputError, match="was measured on Some processor") as caught:
        searched(settings={"calibration": path}, gpus=("h100-sxm", "l40s"))
    assert "a CPU is none of them" in (caught.value.hint or "")


def test_a_calibration_judges_its_own_gpu_alone(tmp_path: Path) -> None:
    """In a search of several engines too, whose devices are screened apart."""
    gpus = ("h200-sxm", "h100-sxm", "apple-m4-max")
    path = written(tmp_path, attention={}, linear={}, read_bytes_per_second=figure(1e12))
    before, after = (
        {row.gpu: row for row in searched(gpus=gpus, settings=settings).rows}
        for settings in ({}, {"calibration": path})
    )
    assert after["h200-sxm"].tpot_seconds > 2 * before["h200-sxm"].tpot_seconds
    assert "--calibration" in after["h200-sxm"].flags
    for other in ("h100-sxm", "apple-m4-max"):
        assert after[other] == before[other]


def test_a_file_that_names_no_gpu_is_of_no_single_one(tmp_path: Path) -> None:
    path = written(tmp_path, device={"name": "Some Accelerator"})
    with pytest.raises(InputError, match="does not say which GPU"):
        searched(settings={"calibration": path}, gpus=("h100-sxm", "apple-m4-max"))


def test_formats_left_out_are_listed_with_the_reason_and_tried_where_they_are_asked_for() -> None:
    found = searched(gpus=("mi250x", "h100-sxm", "a100-sxm4-80gb"), every=True, top=1000)
    left = {(each.format, each.use): each for each in found.not_tried}
    assert left["fp8", "weights"].gpus == left["fp8", "cache"].gpus == ("mi250x",)
    assert "no fp8 units" in left["fp8", "weights"].reason
    tried = {(row.gpu, row.weights, row.kv_cache) for row in found.rows}
    assert ("a100-sxm4-80gb", "fp8_e4m3", "fp8_e4m3") in tried
    assert ("h100-sxm", "fp8_e4m3", "fp8_e4m3") in tried
    asked = searched(gpus=("mi250x",), weights=("fp8",))
    assert not [each for each in asked.not_tried if each.use == "weights"]
    assert {row.weights for row in asked.rows} == {"fp8_e4m3"}


def test_an_engine_without_reports_is_no_faster_than_with_them() -> None:
    """Bounds are wider, and hold what the kernels alone would reach."""
    vllm = REPORTED["vllm", "nvidia"]
    for engine, vendor in (("vllm", "amd"), ("vllm", "google"), ("sglang", "nvidia"), ("tensorrt-llm", "nvidia")):
        own = engine_rates(engine, vendor)
        assert (own.read_share, own.step_seconds) == (vllm.read_share, vllm.step_seconds)
        assert own.low < vllm.low
        assert own.high > vllm.high
        assert own.high * own.read_share >= 1.25
        assert not own.reported
    assert vllm.reported


def test_rows_say_whether_reports_stand_behind_their_speed(tmp_path: Path) -> None:
    found = {row.gpu: row for row in searched(gpus=("h100-sxm", "mi300x", "apple-m4-max")).rows}
    assert {name: row.speed_reported for name, row in found.items()} == {
        "h100-sxm": True, "mi300x": False, "apple-m4-max": False,
    }  # fmt: skip
    path = written(tmp_path, device={"name": "AMD Instinct MI300X", "gpu": "mi300x"})
    (measured,) = searched(gpus=("mi300x",), settings={"calibration": path}).rows
    assert measured.speed_reported


def test_equal_devices_of_two_vendors_are_equally_fast() -> None:
    """The vendor alone makes nothing faster: as ranks of cost would show."""
    from dataclasses import replace

    from kvplan.planning.speed.rates import rates
    from kvplan.spec.formats import get_format

    bf16, device = get_format("bf16"), load_gpu("h100-sxm")
    here, there = (rates(replace(device, vendor=vendor), "vllm", bf16, bf16) for vendor in ("nvidia", "amd"))
    assert here is not None
    assert there is not None
    assert there.weight_bandwidth == here.weight_bandwidth
    assert there.step_seconds == here.step_seconds


def test_a_row_carries_what_its_engine_says() -> None:
    (row,) = searched(gpus=("t4",), model="llama-3.2-1b").rows
    assert [text for text in row.warnings if "no bfloat16" in text and "float16, as many bytes" in text]
    (row,) = searched(gpus=("h100-sxm",), model="llama-3.2-1b").rows
    assert row.warnings == ()


def test_a_time_and_its_limit_never_read_alike_unless_they_are() -> None:
    assert _apart(0.365, 1.0) == ("365 ms", "1 s")
    assert _apart(1.003, 1.0) == ("1.003 s", "1 s")
    assert _apart(0.0400049, 0.04) == ("40.005 ms", "40 ms")
    assert _apart(1.0, 1.0) == ("1 s", "1 s")

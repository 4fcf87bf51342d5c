"""A curve's points are plans: what it says at a length or a batch is what a plan of that length or batch says."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from kvplan import load_gpu, load_model, plan
from kvplan.planning.curves import Curves, curves


def of(model: str, gpu: str | None, engine: str = "vllm", **settings: Any) -> Curves:
    return curves(load_model(model), load_gpu(gpu) if gpu else None, engine, settings)


@pytest.mark.parametrize("engine", ["vllm", "generic", "sglang"])
def test_points_are_plans(engine: str) -> None:
    found = of("llama-3.1-8b", "h100-sxm", engine, prompt_tokens=4096, concurrency=5)
    assert [b.requests for b in found.batches] == sorted({b.requests for b in found.batches})
    compared = 0
    for point in found.batches:
        limit = {"max_num_seqs": 4096} if engine == "vllm" else {}
        decode = plan(
            "llama-3.1-8b", gpu="h100-sxm", engine=engine, prompt_tokens=4096, concurrency=point.requests, **limit
        ).decode  # fmt: skip
        assert decode is not None
        if decode.batch < point.requests:
            continue  # the engine runs no more
        compared += 1
        assert point.tokens_per_second == pytest.approx(decode.tokens_per_second, rel=1e-9)
        assert point.seconds_per_step == pytest.approx(decode.seconds_per_step, rel=1e-9)
    assert compared >= 8
    assert 5 in [b.requests for b in found.batches]
    assert found.ridge_requests in [b.requests for b in found.batches]


def test_lengths_are_what_requests_of_them_take() -> None:
    found = of("gemma-3-27b", "h100-sxm", tensor_parallel_size=2, max_model_len=32768)
    assert [k._asdict() for k in found.knees] == [{"tokens": 1024, "layers": 52}]
    assert 1024 in [at.tokens for at in found.lengths]
    assert found.lengths[-1].tokens == 32768
    for at in found.lengths:
        kv = plan("gemma-3-27b", engine="generic", max_model_len=at.tokens).kv
        assert at.bytes == kv.bytes_per_sequence
    reserved = plan("gemma-3-27b", gpu="h100-sxm", tensor_parallel_size=2, max_model_len=32768)
    assert found.lengths[-1].bytes_per_gpu == reserved.kv.bytes_per_sequence_per_gpu
    assert reserved.memory is not None
    assert found.cache_bytes_per_gpu == min(row.kv_bytes for row in reserved.memory)


def test_batches_hold_as_far_as_the_memory_does() -> None:
    found = of("llama-3.1-8b", "h100-sxm", prompt_tokens=8192, data_parallel_size=2, shared_prefix_tokens=4096)
    assert found.most_requests is not None
    for count, fits in ((found.most_requests, True), (found.most_requests + 2, False)):
        verdict = plan("llama-3.1-8b", gpu="h100-sxm", prompt_tokens=8192, data_parallel_size=2,
                       shared_prefix_tokens=4096, concurrency=count).verdict  # fmt: skip
        assert verdict.fits is fits
    assert all(b.holds == (b.requests <= found.most_requests) for b in found.batches)


def test_work_lies_under_the_roof() -> None:
    found = of("llama-3.1-8b", "h100-sxm", concurrency=64)
    assert found.roof is not None
    assert [w.name for w in found.works][-1] == "prefill of 1,024"
    for work in found.works:
        roof = min(work.intensity * found.roof.bytes_per_second, found.roof.flops_per_second)
        assert 0.1 * roof < work.flops_per_second <= roof * 1.001


def test_without_a_gpu_there_is_the_cache_alone() -> None:
    found = of("deepseek-v3", None, "generic", max_model_len=8192)
    assert found.lengths
    assert (found.batches, found.roof, found.cache_bytes_per_gpu, found.most_requests) == ((), None, None, None)


def test_without_a_bandwidth_there_is_the_cache_alone() -> None:
    gpu = replace(load_gpu("h100-sxm"), bandwidth_bytes_per_second=None)
    found = curves(load_model("llama-3.1-8b"), gpu, "vllm", {"max_model_len": 4096})
    assert found.lengths == of("llama-3.1-8b", "h100-sxm", max_model_len=4096).lengths
    assert not found.batches


def test_without_flops_there_is_no_roof() -> None:
    gpu = load_gpu("h100-sxm")
    bare = replace(gpu, **{name: None for name in vars(gpu) if name.endswith("_flops")})
    found = curves(load_model("llama-3.1-8b"), bare, "generic", {"max_model_len": 4096})
    assert found.roof is None
    assert found.batches
    assert curves(load_model("llama-3.1-8b"), gpu, "generic", {"max_model_len": 4096}).roof is not None


def test_a_model_that_does_not_fit_still_has_its_curves() -> None:
    found = of("llama-3.1-70b", "h100-sxm")
    assert found.cache_bytes_per_gpu is None
    assert found.most_requests == 0
    assert found.batches
    assert not any(b.holds for b in found.batches)


def test_points_count_all_replicas() -> None:
    settings: dict[str, Any] = {"prompt_tokens": 4096, "data_parallel_size": 2}
    found = curves(load_model("llama-3.1-8b"), load_gpu("h100-sxm"), "generic", {**settings, "concurrency": 8})
    (point,) = [b for b in found.batches if b.requests == 8]
    decode = plan("llama-3.1-8b", gpu="h100-sxm", engine="generic", **settings, concurrency=8).decode
    assert decode is not None
    assert point.tokens_per_second == pytest.approx(decode.tokens_per_second, rel=1e-9)
    assert point.tokens_per_second_per_request == pytest.approx(decode.tokens_per_second_per_request, rel=1e-9)

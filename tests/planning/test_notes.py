"""What a plan says of layouts and settings, and the advice for hybrids: all of it computed."""

from __future__ import annotations

import re
from typing import Any

import pytest

from kvplan import plan
from kvplan.planning.plan import Plan


def note(result: Plan, words: str) -> str:
    return next((text for text in result.verdict.notes if words in text), "")


def test_a_plain_model_has_no_other_notes() -> None:
    for given in ({"model": "llama-3.1-8b"}, {"model": "llama-3.1-70b", "tensor_parallel_size": 8}):
        notes = plan(gpu="h100-sxm", **given).verdict.notes
        assert [text.partition(":")[0] for text in notes] == ["to paste", "breaks first as requests are added"]


@pytest.mark.parametrize("engine", ["vllm", "sglang", "tensorrt-llm"])
def test_copies_of_a_latent_cache(engine: str) -> None:
    found = note(
        plan("deepseek-v3", gpu="h200-sxm", tensor_parallel_size=8, engine=engine), "8 ranks hold the same cache"
    )
    assert found
    times = [float(text) for text in re.findall(r"\(([\d.]+) x\)", found)]
    assert times
    assert all(3 < value < 8.2 for value in times)


def test_the_figures_are_those_of_the_layouts() -> None:
    found = note(plan("deepseek-v3", gpu="h200-sxm", tensor_parallel_size=8), "ranks hold")
    dcp = plan("deepseek-v3", gpu="h200-sxm", tensor_parallel_size=8, decode_context_parallel_size=8)
    assert dcp.capacity is not None
    assert f"--decode-context-parallel-size 8 holds {dcp.capacity.total_kv_tokens:,}" in found
    assert note(dcp, "ranks hold") == ""


def test_copies_of_few_heads() -> None:
    found = plan("llama-3.1-70b", gpu="h100-sxm", tensor_parallel_size=16)
    assert note(found, "2 ranks hold the same cache")


def test_a_pool_shorter_than_the_limit() -> None:
    result = plan("llama-3.1-8b", gpu="rtx-4090", engine="sglang")
    assert result.verdict.fits is True
    assert result.capacity is not None
    single = f"{result.capacity.max_single_request_tokens:,}"
    assert [t for t in result.warnings if "less than the limit" in t and f"{single} tokens" in t]
    assert f"requests above {single} tokens do not run" in result.verdict.reason
    roomy = plan("llama-3.1-8b", gpu="h100-sxm", engine="sglang")
    assert not [t for t in roomy.warnings if "less than the limit" in t]
    assert "the longest request holds" in roomy.verdict.reason


def test_a_format_without_effect_on_short_requests() -> None:
    def reserved(dtype: str, **more: Any) -> int:
        return plan(
            "qwen3-next-80b-a3b", engine="vllm", kv_cache_dtype=dtype, max_model_len=512, **more
        ).kv.bytes_per_sequence_per_gpu

    assert 0.9 * reserved("auto") < reserved("fp8") <= reserved("auto")
    short = {"max_model_len": 512, "prompt_tokens": 256, "output_tokens": 256}
    for dtype in ("auto", "fp8"):
        assert note(plan("qwen3-next-80b-a3b", kv_cache_dtype=dtype, **short), "fp8 saves only 6% for requests of 512")
    assert note(plan("qwen3-next-80b-a3b", max_model_len=131072, prompt_tokens=130000), "fp8 saves") == ""
    assert note(plan("qwen3-32b", kv_cache_dtype="fp8"), "fp8 saves") == ""


def test_the_most_sequences_of_a_hybrid() -> None:
    result = plan("qwen3-next-80b-a3b", gpu="h200-sxm", tensor_parallel_size=2, max_num_seqs=8000)
    assert result.verdict.fits is False
    (hint,) = [hint for hint in result.verdict.hints if hint.flag == "--max-num-seqs"]

    def fits(sequences: int) -> bool | None:
        return plan("qwen3-next-80b-a3b", gpu="h200-sxm", tensor_parallel_size=2, max_num_seqs=sequences).verdict.fits

    assert fits(int(hint.value)) is True
    assert fits(int(hint.value) + 1) is False


@pytest.mark.parametrize("engine", ["vllm", "sglang", "tensorrt-llm"])
def test_what_breaks_first_counts_the_common_prefix_once(engine: str) -> None:
    given = {"model": "llama-3.1-8b", "gpu": "h100-sxm", "engine": engine, "prompt_tokens": 8000, "output_tokens": 500}
    apart = plan(**given)
    together = plan(shared_prefix_tokens=2000, **given)
    assert together.capacity is not None
    (at,) = [row for row in together.capacity.by_shared_prefix if row.prefix_tokens == 2000]
    assert at.requests > at.requests_unshared
    assert f"full with {at.requests_unshared:,} requests of 8,500 tokens" in note(apart, "breaks first")
    found = note(together, "breaks first")
    assert f"full with {at.requests:,} requests of 8,500 tokens, {at.shared_tokens:,} of them held once" in found


def test_a_limit_below_what_the_cache_holds_of_a_common_prefix() -> None:
    given = {"model": "llama-3.1-8b", "gpu": "h100-sxm", "prompt_tokens": 8000, "output_tokens": 500}
    alone, held = (
        next(row.requests for row in found.capacity.by_shared_prefix if row.prefix_tokens == 2000)
        for found in (
            plan(shared_prefix_tokens=2000, **given),
            plan(shared_prefix_tokens=2000, max_num_seqs=56, **given),
        )
        if found.capacity is not None
    )
    assert alone == pytest.approx(held, abs=2)  # fewer sequences leave the cache a little more
    found = note(plan(shared_prefix_tokens=2000, max_num_seqs=56, **given), "breaks first")
    assert f"max_num_seqs 56; the cache would hold {held:,} requests" in found


@pytest.mark.parametrize(
    ("engine", "limit", "flag"),
    [
        ("vllm", "max_num_seqs", "max_num_seqs"),
        ("tensorrt-llm", "max_num_seqs", "max_num_seqs"),
        ("sglang", "max_running_requests", "max_running_requests"),
    ],
)
@pytest.mark.parametrize("shared", [0, 512])
def test_a_low_limit_breaks_first_whoever_counts_it(engine: str, limit: str, flag: str, shared: int) -> None:
    given = {"model": "llama-3.1-8b", "gpu": "h100-sxm", "engine": engine, "max_model_len": 8192}
    found = plan(**given, **{limit: 4}, shared_prefix_tokens=shared)
    assert found.capacity is not None
    held = re.search(rf"first as requests are added: {flag} 4; the cache would hold ([\d,]+) requests", str(found))
    assert held, note(found, "breaks first")
    by_tokens = found.capacity.kv_tokens // (1280 - shared)
    assert 0.9 * by_tokens < int(held[1].replace(",", "")) <= by_tokens


def test_a_limit_that_the_engine_sets_itself() -> None:
    given = {"gpu": "h100-sxm", "engine": "sglang", "max_model_len": 8192, "prompt_tokens": 10, "output_tokens": 10}
    assert "max_running_requests 4,096 by default; the cache would hold 20," in note(
        plan("llama-3.1-8b", **given), "breaks first"
    )


def test_a_limit_of_each_attention_group() -> None:
    """TensorRT-LLM batches max_num_seqs requests on every rank of DP attention."""
    given = {"gpu": "h200-sxm", "engine": "tensorrt-llm", "tensor_parallel_size": 8, "max_model_len": 8192}
    found = plan("deepseek-v3", **given, attn_dp_size=8, max_num_seqs=4)
    assert "max_num_seqs 32; the cache would hold" in note(found, "breaks first")

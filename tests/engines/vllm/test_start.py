"""The smallest share of the device that starts, and the most sequences of a hybrid: tried at the edge."""

from __future__ import annotations

import pytest

from kvplan import plan
from kvplan.errors import UnsupportedError

MODELS = [
    ("qwen3-next-80b-a3b", "h200-sxm", 4), ("nemotron-h-8b", "h100-sxm", 1), ("llama-3.1-8b", "h100-sxm", 1),
    ("gemma-3-27b", "h100-sxm", 1), ("deepseek-v4-flash", "h200-sxm", 4), ("kimi-linear-48b-a3b", "h200-sxm", 2),
]  # fmt: skip


@pytest.mark.parametrize(("model", "gpu", "tp"), MODELS)
def test_the_smallest_utilization_starts_and_a_thousandth_less_does_not(model: str, gpu: str, tp: int) -> None:
    found = plan(model, gpu=gpu, tensor_parallel_size=tp).capacity
    assert found is not None
    smallest = found.min_gpu_memory_utilization
    assert smallest is not None
    for share, fits in ((smallest, True), (round(smallest - 0.001, 3), False)):
        tried = plan(model, gpu=gpu, tensor_parallel_size=tp, gpu_memory_utilization=share)
        assert tried.verdict.fits is fits, tried.verdict.reason


@pytest.mark.parametrize("model", ["nemotron-h-8b", "qwen3.5-27b"])
def test_the_most_sequences_of_a_hybrid(model: str) -> None:
    """The blocks that there are with so many sequences hold a state each, and the advice says the figure."""
    given = {"gpu": "h200-sxm", "max_model_len": 8192, "kv_cache_memory_bytes": 4 * 10**9}
    made = plan(model, max_num_seqs=8, **given)
    assert made.capacity is not None
    most = made.capacity.max_num_seqs_allowed
    assert most == made.capacity.num_blocks
    assert [text for text in made.verdict.notes if text.startswith(f"--max-num-seqs is {most:,} at most")]
    assert plan(model, max_num_seqs=most, **given).verdict.fits is True
    over = plan(model, max_num_seqs=most + 1, **given)
    assert over.verdict.fits is False
    assert "max_num_seqs" in over.verdict.reason


def test_a_pool_of_given_blocks_says_how_many_a_request_needs() -> None:
    made = plan("llama-3.1-8b", gpu="h100-sxm", num_gpu_blocks_override=10)
    assert made.verdict.fits is False
    assert (
        made.verdict.reason == "one request of 131,072 tokens needs 8,193 blocks, and num_gpu_blocks_override leaves 10"
    )


def test_turboquant_beside_windows_is_refused_as_vllm_refuses_it() -> None:
    """Since 0.26.0 backends say whether they read windows, and TurboQuant's does not."""
    given = {"gpu": "h100-sxm", "kv_cache_dtype": "turboquant_k8v4", "max_model_len": 8192}
    for version in ("0.26.0", "0.33.0"):
        with pytest.raises(UnsupportedError, match="sliding window not supported") as caught:
            plan("gemma-3-27b", engine=f"vllm@{version}", **given)
        assert caught.value.where == "--kv-cache-dtype"
    assert plan("llama-3.1-8b", engine="vllm@0.33.0", **given).verdict.fits is True
    with pytest.raises(UnsupportedError, match="outermost layers of llama-4-scout are chunked"):
        plan("llama-4-scout", engine="vllm@0.33.0", tensor_parallel_size=4, **given)


@pytest.mark.parametrize("version", ["0.20.0", "0.24.0", "0.25.0"])
def test_full_layers_of_turboquant_cannot_be_padded_to_windowed_pages(version: str) -> None:
    with pytest.raises(UnsupportedError, match="cannot bring this model's cache pages to one size"):
        plan("gemma-3-27b", gpu="h100-sxm", engine=f"vllm@{version}", kv_cache_dtype="turboquant_k8v4")


@pytest.mark.parametrize(("version", "block"), [("0.24.0", 28 * 16 + 4 * 32), ("0.25.0", 4 * 32)])
def test_windowed_layers_of_turboquant_were_not_packed(version: str, block: int) -> None:
    """Mistral 7B v0.1, all windowed: 28 layers of a byte an element, the outer four keep 16 bits.

    0.24: one group of all layers' pages of 16 tokens; 0.25: 32 tokens of the ones are a page of 16 of the others, in
    eight groups of four.
    """
    made = plan(
        "mistral-7b-v0.1", gpu="h100-sxm", engine=f"vllm@{version}", kv_cache_dtype="turboquant_k8v4",
        max_model_len=8192, kv_cache_memory_bytes=10**10,
    )  # fmt: skip
    assert made.capacity is not None
    assert made.capacity.num_blocks == 10**10 // (block * 8 * (128 + 128))


@pytest.mark.parametrize(
    ("version", "whole"), [("0.11.0", False), ("0.14.0", True), ("0.16.0", True), ("0.17.0", False)]
)
def test_stages_counted_pages_of_all_layers_where_they_differ(version: str, whole: bool) -> None:
    """DeepSeek-V3.2 over two stages: 31 or 30 of its 61 layers, each with rows and index keys in pages of their own."""
    have, block = 60_000_000_000, {"0.11.0": 64, "0.14.0": 64, "0.16.0": 64, "0.17.0": 64}[version]
    asked = {"gpu": "h100-sxm", "tensor_parallel_size": 8, "max_model_len": 8192, "kv_cache_memory_bytes": have}
    one = plan("deepseek-v3.2", engine=f"vllm@{version}", **asked)
    two = plan("deepseek-v3.2", engine=f"vllm@{version}", pipeline_parallel_size=2, **asked)
    assert one.capacity is not None
    assert two.capacity is not None
    assert two.capacity.block_size == block
    layer = have // one.capacity.num_blocks // 61
    assert two.capacity.num_blocks == pytest.approx(have // layer // (61 if whole else 31), rel=1e-3)


@pytest.mark.parametrize(("version", "starts"), [("0.14.0", False), ("0.16.0", False), ("0.17.0", True)])
def test_the_check_at_start_counted_the_layers_of_all_stages(version: str, starts: bool) -> None:
    """Qwen3-8B over two stages of 18 layers: bytes for one request of a stage's layers, not of all."""
    need = 36 * 2 * 8 * 128 * 2 * 32_768
    made = plan(
        "qwen3-8b", gpu="h100-sxm", engine=f"vllm@{version}", pipeline_parallel_size=2, max_model_len=32_768,
        kv_cache_memory_bytes=need * 3 // 4,
    )  # fmt: skip
    assert made.verdict.fits is starts


@pytest.mark.parametrize(
    ("version", "starts"), [("0.13.0", False), ("0.14.0", True), ("0.18.0", True), ("0.19.0", False)]
)
def test_some_releases_check_the_first_group_of_layers_alone(version: str, starts: bool) -> None:
    """gpt-oss-20b, 131,072 tokens in 3.3 GB: the blocks of the full layers alone would hold, windows besides do not."""
    made = plan("gpt-oss-20b", engine=f"vllm@{version}", kv_cache_memory_bytes=3_300_000_000, gpu="h100-sxm")
    assert made.capacity is not None
    assert made.capacity.num_blocks is not None
    assert made.capacity.num_blocks >= 8192
    assert made.capacity.max_single_request_tokens < 131_072
    assert made.verdict.fits is starts
    assert any("vllm starts, and longer requests do not run" in text for text in made.warnings) is starts


def test_deepseek_v4_is_charged_whole_tuples_at_start_until_028() -> None:
    """0.28 with bytes for the blocks of a request and not for its tuples; from 0.29 on the blocks suffice."""
    asked = {"tensor_parallel_size": 2, "max_model_len": 262_144, "max_num_batched_tokens": 8192, "gpu": "h200-nvl"}
    need = plan("deepseek-v4-flash", engine="vllm@0.29.0", kv_cache_memory_bytes=10**11, **asked).kv
    have = need.bytes_per_sequence_per_gpu + 10_000_000
    assert plan("deepseek-v4-flash", engine="vllm@0.29.0", kv_cache_memory_bytes=have, **asked).verdict.fits
    old = plan("deepseek-v4-flash", engine="vllm@0.28.0", kv_cache_memory_bytes=have, **asked)
    assert old.verdict.fits is False
    assert old.verdict.binding == "kv"

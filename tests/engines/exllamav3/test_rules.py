"""ExLlamaV3's pool, its rings and states per slot, and what it refuses."""

from __future__ import annotations

from typing import Any

import pytest

from kvplan import load_gpu, plan
from kvplan.engines.base import CachePool
from kvplan.errors import KvplanError
from kvplan.units import MIB


def pools(model: str, **given: Any) -> dict[str, CachePool]:
    allocation = plan(model, engine="exllamav3", **given).allocation
    assert allocation is not None
    assert allocation.bytes == sum(p.bytes for p in (*allocation.pools, *allocation.states))
    return {p.kind: p for p in (*allocation.pools, *allocation.states)}


def test_rings_of_gpt_oss() -> None:
    found = pools("gpt-oss-20b", max_model_len=8192)
    assert found["sliding"].bytes == 12 * 25_165_824
    assert found["full"].bytes == 12 * 8192 * 8 * 64 * 2 * 2
    assert pools("gpt-oss-20b", max_model_len=8192, max_num_seqs=4)["sliding"].bytes == 12 * 25_165_824 // 4


def test_other_windows_are_paged_at_full_length() -> None:
    made = plan("gemma-3-27b", engine="exllamav3", max_model_len=8192)
    assert made.allocation is not None
    assert made.allocation.bytes == 8192 * 507_904
    assert any("full length" in w for w in made.warnings)


def test_states_for_every_slot() -> None:
    found = pools("qwen3-next-80b-a3b", max_model_len=8192, cache_bits="4")
    assert found["recurrent"].v_bytes == 1152 * MIB
    assert found["recurrent"].k_bytes == 36 * 16 * 8192 * 4 * 2


@pytest.mark.parametrize(
    ("bits", "size"), [("8", 2176), ("6", 1664), ("5,4", 1280), ("4", 1152), ("3", 896), ("2,2", 640), ("16", 4096)]
)
def test_bytes_by_bits(bits: str, size: int) -> None:
    assert pools("llama-3.1-8b", max_model_len=8192, cache_bits=bits)["full"].bytes == 32 * 8192 * size


def test_the_rotary_key_of_latent_attention_stays_in_16_bits() -> None:
    assert pools("deepseek-v3", max_model_len=8192, cache_bits="8")["full"].bytes == 61 * 8192 * 672
    assert (
        pools("deepseek-v3", max_model_len=8192, cache_bits="4", tensor_parallel_size=8)["full"].bytes
        == 61 * 8192 * 416
    )


@pytest.mark.parametrize(
    "given",
    [
        {"cache_tokens": 1000}, {"cache_tokens": 0}, {"cache_tokens": "8K"}, {"cache_bits": "9"}, {"cache_bits": "4,1"},
        {"cache_bits": "four"}, {"cache_bits": "4,4,4"}, {"kv_cache_dtype": "fp8"},
        {"cache_tokens": 8192, "max_model_len": 8193},
    ],
)  # fmt: skip
def test_refusals(given: dict[str, Any]) -> None:
    with pytest.raises(KvplanError) as caught:
        plan("llama-3.1-8b", engine="exllamav3", **given)
    assert caught.value.hint


@pytest.mark.parametrize("model", ["deepseek-v3.2", "deepseek-v4-flash", "whisper-large-v3"])
def test_what_is_not_modelled(model: str) -> None:
    with pytest.raises(KvplanError):
        plan(model, engine="exllamav3", max_model_len=448)


def test_capacity_is_a_total_over_jobs() -> None:
    made = plan("llama-3.1-8b", gpu=load_gpu("h100-sxm"), engine="exllamav3", cache_tokens=65536, max_model_len=16384)
    assert made.capacity is not None
    assert made.capacity.kv_tokens == 65536
    assert made.capacity.max_concurrency == 4.0
    assert {a.tokens: a.requests for a in made.capacity.at}[1024] == 16  # slots
    many = plan(
        "llama-3.1-8b", gpu=load_gpu("h100-sxm"), engine="exllamav3", cache_tokens=65536, max_model_len=16384,
        concurrency=5, prompt_tokens=16000,
    )  # fmt: skip
    assert many.verdict.fits is False


def test_a_pool_that_the_memory_does_not_hold() -> None:
    made = plan("llama-3.1-8b", gpu=load_gpu("l4"), engine="exllamav3")
    assert made.verdict.fits is False
    assert made.verdict.binding == "kv"


def test_a_given_memory_is_filled_with_pages() -> None:
    made = plan("llama-3.1-8b", engine="exllamav3", kv_cache_memory_bytes=131072 * 700, max_model_len=512)
    assert made.capacity is not None
    assert made.capacity.kv_tokens == 512
    assert made.capacity.num_blocks == 2


def test_requests_beyond_the_slots_wait() -> None:
    """Two GiB hold 31 requests that share a page; 16 slots run 16, whichever way one asks."""
    asked: dict[str, Any] = {"cache_tokens": 1 << 19, "max_model_len": 4096}
    for running, fits in ((16, True), (17, False)):
        made = plan("llama-3.1-8b", gpu="h200-sxm", engine="exllamav3", concurrency=running, **asked)
        assert made.verdict.fits is fits
        assert made.capacity is not None
        assert max(row.requests for row in made.capacity.at) == 16

"""SGLang's fraction by version, its pools, DP attention, refusals."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given as drawn
from hypothesis import strategies as st

from kvplan import load_gpu, plan
from kvplan.engines.sglang import fraction
from kvplan.engines.sglang.pools import Cell, held_bytes, pools_of
from kvplan.errors import KvplanError
from kvplan.units import GIB


@pytest.mark.parametrize(
    ("version", "mib", "tp", "latent", "expected"),
    [
        ("0.5.23", 81559, 1, False, 0.83), ("0.5.23", 81559, 8, False, 0.812), ("0.5.23", 143771, 1, False, 0.903),
        ("0.5.23", 183359, 1, False, 0.854), ("0.5.23", 46068, 1, False, 0.843), ("0.5.23", 81559, 8, True, 0.799),
        ("0.5.12", 81559, 1, False, 0.83), ("0.5.6", 81559, 1, False, 0.835), ("0.5.2", 81559, 1, False, 0.874),
        ("0.4.9", 81559, 8, False, 0.831), ("0.4.9", 143771, 1, False, 0.911), ("0.4.9", 183359, 8, False, 0.821),
    ],
)  # fmt: skip
def test_static_fraction(version: str, mib: int, tp: int, latent: bool, expected: float) -> None:
    chunk = fraction.chunk_default(mib, version)
    reserved = fraction.reserved_mib(
        mib, version=version, tp=tp, pp=1, chunk=chunk, running=None, attn_dp=1, latent=latent
    )
    assert fraction.static_fraction(mib, reserved) == expected


def test_prefill_graphs() -> None:
    assert fraction.prefill_graph_count(8192) == 58
    assert fraction.prefill_graph_count(16384) == 74


def test_dp_attention_needs_more_for_graphs() -> None:
    plain = fraction.reserved_mib(
        143771, version="0.5.23", tp=8, pp=1, chunk=8192, running=None, attn_dp=1, latent=True
    )
    shared = fraction.reserved_mib(
        143771, version="0.5.23", tp=8, pp=1, chunk=8192, running=None, attn_dp=8, latent=True
    )
    assert shared - plain == 4.5 * 512 * 8


def test_tokens_of_an_h100() -> None:
    """78.9 GiB free before loading and 63.6 after it: 63.6 - 78.9 x 0.17 = 50.187 GiB of 131,072 B a token."""
    made = plan("llama-3.1-8b", engine="sglang", kv_cache_memory_bytes=int(50.187 * GIB))
    assert made.capacity is not None
    assert made.capacity.kv_tokens == 411_131
    assert made.allocation is not None
    assert round(made.allocation.pools[0].k_bytes / GIB, 2) == 25.09


def test_windowed_pool_of_gpt_oss() -> None:
    have = 40 * GIB
    made = plan("gpt-oss-20b", engine="sglang", kv_cache_memory_bytes=have)
    assert made.capacity is not None
    tokens = int(have // 44236.8)
    assert made.capacity.kv_tokens == tokens
    assert made.allocation is not None
    assert [p.cells for p in made.allocation.pools] == [tokens + 1, int(tokens * 0.8) + 1]
    half = plan("gpt-oss-20b", engine="sglang", kv_cache_memory_bytes=have, swa_full_tokens_ratio=0.4).capacity
    assert half is not None
    assert half.kv_tokens == int(have // (12 * 2048 * 1.4))


def test_gemma_3_has_no_windowed_pool() -> None:
    made = plan("gemma-3-27b", engine="sglang", kv_cache_memory_bytes=30 * GIB)
    assert made.capacity is not None
    assert made.capacity.kv_tokens == 30 * GIB // 507_904
    assert any("full length" in w for w in made.warnings)


def test_old_versions_have_no_windowed_pool() -> None:
    made = plan("gpt-oss-20b", engine="sglang@0.5.2", kv_cache_memory_bytes=30 * GIB)
    assert made.capacity is not None
    assert made.capacity.kv_tokens == 30 * GIB // 49_152


def test_states_take_their_share_first() -> None:
    have = 40 * GIB
    made = plan("qwen3-next-80b-a3b", engine="sglang", kv_cache_memory_bytes=have)
    state = 36 * (8192 * 3 * 2 + 32 * 128 * 128 * 4)
    slots = int(have * 0.9 / 1.9) // state - 1
    assert made.capacity is not None
    assert made.capacity.kv_tokens == (have - (slots + 1) * state) // 24_576
    assert made.capacity.max_num_seqs_allowed == slots // 5
    old = plan("qwen3-next-80b-a3b", engine="sglang@0.5.12", kv_cache_memory_bytes=have).capacity
    assert old is not None
    assert old.kv_tokens == (have - (slots + 1) * state) // 24_576  # one slot more handed out, none for padding
    assert old.max_num_seqs_allowed == (slots + 1) // 3


def test_dp_attention_multiplies_latent_caches() -> None:
    given: dict[str, Any] = {"kv_cache_memory_bytes": 20 * GIB, "tensor_parallel_size": 8}
    plain = plan("deepseek-v3", engine="sglang", **given).capacity
    shared = plan("deepseek-v3", engine="sglang", attn_dp_size=8, **given).capacity
    assert plain is not None
    assert shared is not None
    assert shared.kv_tokens == plain.kv_tokens == 20 * GIB // 70_272
    assert shared.max_concurrency == 8 * (plain.max_concurrency or 0)
    heads = plan("llama-3.1-70b", engine="sglang", attn_dp_size=8, **given).capacity
    assert heads is not None
    assert heads.kv_tokens == 20 * GIB // 327_680  # every rank holds all heads of its requests


def test_sparse_rows() -> None:
    made = plan("deepseek-v3.2", engine="sglang", max_total_tokens=6400, page_size=64, kv_cache_dtype="fp8").allocation
    assert made is not None
    assert made.bytes == (6400 + 64) * 61 * (656 + 132)


def test_pipeline_takes_the_fewest_tokens() -> None:
    made = plan("llama-3.1-70b", engine="sglang", kv_cache_memory_bytes=10 * GIB, pipeline_parallel_size=3)
    assert made.capacity is not None
    assert made.capacity.kv_tokens == 10 * GIB // (27 * 4096)


def test_pages_round_down() -> None:
    made = plan("llama-3.1-8b", engine="sglang", kv_cache_memory_bytes=131072 * 1000, page_size=64).capacity
    assert made is not None
    assert made.kv_tokens == 960
    assert made.num_blocks == 15


def test_a_windowed_pool_below_one_request_is_refused() -> None:
    made = plan("gpt-oss-20b", engine="sglang", kv_cache_memory_bytes=44_237 * 160)
    assert made.verdict.fits is False
    assert "128" in made.verdict.reason or "129" in made.verdict.reason


def test_weights_above_the_share_do_not_start() -> None:
    made = plan(
        "llama-3.1-70b", gpu=load_gpu("h100-sxm"), engine="sglang", tensor_parallel_size=2, mem_fraction_static=0.5
    )
    assert made.verdict.fits is False
    assert made.verdict.binding == "weights"


def test_the_share_covers_weights_and_cache() -> None:
    made = plan("llama-3.1-8b", gpu=load_gpu("h100-sxm"), engine="sglang", mem_fraction_static=0.8)
    assert made.memory is not None
    row = made.memory[0]
    assert row.weights_bytes + row.runtime_bytes + row.kv_bytes == row.budget_bytes == int(row.total_bytes * 0.8)


@pytest.mark.parametrize(
    "given",
    [
        {"swa_full_tokens_ratio": 1.5}, {"mem_fraction_static": 0}, {"page_size": 0},
        {"mamba_full_memory_ratio": "much"}, {"chunked_prefill_size": "8K"},
        {"attn_dp_size": 3, "tensor_parallel_size": 8}, {"chunked_prefill_size": 1000, "page_size": 64},
        {"max_running_requests": -1},
    ],
)  # fmt: skip
def test_refusals(given: dict[str, Any]) -> None:
    with pytest.raises(KvplanError) as caught:
        plan("llama-3.1-8b", gpu=load_gpu("h100-sxm"), engine="sglang", **given)
    assert caught.value.hint


@drawn(
    have=st.integers(0, 10**12), full=st.integers(0, 10**6), windowed=st.integers(0, 10**6),
    state=st.integers(0, 10**8), page=st.sampled_from([1, 32, 64]), ratio=st.floats(0.05, 1.0),
)  # fmt: skip
def test_pools_fit_into_what_they_got(have: int, full: int, windowed: int, state: int, page: int, ratio: float) -> None:
    """All but the page that takes dummy writes, which SGLang does not charge either."""
    one = Cell(full, 0, windowed, 0, 128 if windowed else 0, 0, state)
    found = pools_of(have, one, version="0.5.23", page=page, ratio=ratio, state_ratio=0.9, slots=None, limit=None)
    dummy = page * (full + windowed) + (state if state else 0)
    assert held_bytes(found, one, page) <= have + dummy

"""Figures that are arithmetic and must be exact, each with where it comes from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kvplan import load_gpu, load_model, plan
from kvplan.check.figures import Subject, Worked

GIB = 2**30
DATA = Path(__file__).parent.parent / "data"


@pytest.mark.parametrize(
    ("model", "length", "per_token", "per_sequence"),
    [
        ("llama-3.1-8b", 32768, 131_072, 4 * GIB),
        ("llama-3.1-70b", 32768, 327_680, 10 * GIB),
        ("llama-3.1-70b", 4096, 327_680, 5 * GIB // 4),
        ("qwen3-32b", 32768, 262_144, 8 * GIB),
        ("llama-2-70b", 4096, 327_680, 5 * GIB // 4),
        ("deepseek-v3", 32768, 70_272, 2_302_672_896),
        ("falcon-7b", 32768, 8_192, GIB // 4),
        # windows: full layers x length + windowed layers x window, 2 bytes an element
        ("gemma-3-27b", 32768, 507_904, 81_920 * 32768 + 425_984 * 1024),
        ("gpt-oss-120b", 32768, 73_728, 36_864 * 32768 + 36_864 * 128),
        ("gemma-3n-e4b", 32768, 40_960, 8_192 * 32768 + 32_768 * 512),
    ],
)
def test_bytes_of_a_request(model: str, length: int, per_token: int, per_sequence: int) -> None:
    kv = plan(model, engine="generic", max_model_len=length).kv
    assert kv.bytes_per_token == per_token
    assert kv.bytes_per_sequence == per_sequence


@pytest.mark.parametrize(
    ("model", "gib"), [("gemma-3-27b", "2.906"), ("gpt-oss-120b", "1.129"), ("gemma-3n-e4b", "0.266")]
)
def test_windowed_models_as_printed(model: str, gib: str) -> None:
    kv = plan(model, engine="generic", max_model_len=32768).kv
    assert f"{kv.bytes_per_sequence / GIB:.3f}" == gib


@pytest.mark.parametrize(
    ("model", "slope"),
    [("gemma-3-27b", 81_920), ("gpt-oss-120b", 36_864), ("gemma-3n-e4b", 8_192), ("qwen3-32b", 262_144)],
)
def test_slope_beyond_the_windows(model: str, slope: int) -> None:
    assert plan(model, engine="generic", max_model_len=32768).kv.marginal_bytes_per_token_at_max_len == slope


def test_hybrid_has_a_slope_and_a_fixed_state() -> None:
    kv = plan("qwen3-next-80b-a3b", engine="generic", max_model_len=32768).kv
    assert kv.bytes_per_token == 24_576
    # 36 layers: a 128 x 128 matrix for each of 32 value heads, and 3 columns of 8,192 convolution channels, bf16
    assert kv.fixed_bytes_per_sequence == 36 * (32 * 128 * 128 + 3 * 8192) * 2
    assert kv.bytes_per_sequence == 24_576 * 32768 + kv.fixed_bytes_per_sequence


@pytest.mark.parametrize("tp", [1, 2, 4, 8])
def test_latent_rows_are_whole_on_every_rank(tp: int) -> None:
    kv = plan("deepseek-v3", engine="generic", max_model_len=32768, tensor_parallel_size=tp).kv
    assert kv.bytes_per_token_per_gpu == kv.bytes_per_token == 70_272


def test_kv_heads_are_divided_then_replicated() -> None:
    per_gpu = {
        tp: plan(
            "llama-3.1-70b", engine="generic", max_model_len=4096, tensor_parallel_size=tp
        ).kv.bytes_per_token_per_gpu
        for tp in (1, 2, 4, 8, 16, 32)
    }
    assert per_gpu == {1: 327_680, 2: 163_840, 4: 81_920, 8: 40_960, 16: 40_960, 32: 40_960}


def test_grouping_heads_saves_a_factor_of_eight() -> None:
    from kvplan.planning.explain import explain

    found = explain(load_model("llama-2-70b"), {"max_model_len": 4096})
    mha = next(c for c in found.comparisons if c.name.startswith("MHA"))
    assert (mha.bytes_per_token, mha.bytes_per_sequence, mha.ratio) == (2_621_440, 10 * GIB, 8.0)


@pytest.mark.parametrize(
    ("model", "per_token", "cache_gib", "slots"),
    [
        ("opt-13b", 819_200, 12, 15_728),
        # the paper prints 9.7K from an unrounded cache; 21 GiB hold 9.6K
        ("opt-66b", 2_359_296, 21, 9_557),
        (str(DATA / "opt-175b.yaml"), 4_718_592, 264, 60_074),
    ],
)
def test_paged_attention_paper_table_1(model: str, per_token: int, cache_gib: int, slots: int) -> None:
    """arXiv 2309.06180, table 1: maximum number of KV cache slots."""
    found = plan(model, engine="generic", max_model_len=2048, kv_cache_memory_bytes=cache_gib * GIB)
    assert found.kv.bytes_per_token == per_token
    assert found.capacity is not None
    assert found.capacity.kv_tokens == slots


def test_falcon_beyond_its_maximum_is_a_warning() -> None:
    found = plan("falcon-7b", engine="generic", max_model_len=32768)
    assert any("2,048" in w for w in found.warnings)


def test_sparse_attention_over_grouped_heads_reads_its_top_k_and_every_index_key() -> None:
    """MiniMax-M3 (its configuration): 16 blocks of 128 entries on 57 of 60 layers, one index key of 128 a token."""
    short, long = (
        plan("minimax-m3", gpu="h200-sxm", tensor_parallel_size=4, max_model_len=131_072, prompt_tokens=n)
        for n in (1024, 100_000)
    )
    row, key = 2 * 128 * 2, 128 * 2
    for found, tokens in ((short, 1152), (long, 100_128)):
        assert found.decode is not None
        read = 3 * tokens * row + 57 * (min(tokens, 2048) * row + tokens * key)
        assert found.decode.kv_bytes == read
    assert long.kv.bytes_per_token == 60 * 4 * row + 57 * key


@pytest.mark.parametrize(
    ("model", "gpu", "given"),
    [
        ("llama-3.1-70b", "h100-sxm", {"tensor_parallel_size": 4, "max_model_len": 32_768}),
        ("qwen3-32b", "h100-sxm", {"engine": "sglang", "tensor_parallel_size": 2}),
        ("qwen3-8b", "rtx-4090", {"engine": "llama.cpp", "ctx_size": 16_384, "parallel": 2}),
    ],
)
def test_the_ends_of_what_is_held_are_those_that_rules_look_at(model: str, gpu: str, given: dict[str, Any]) -> None:
    made = plan(model, gpu=gpu, **given)
    asked = dict(given)
    worked = Worked(Subject(load_model(model), load_gpu(gpu), asked.pop("engine", "vllm"), asked))
    assert made.capacity is not None
    for which, end in enumerate((made.capacity.low, made.capacity.high)):
        pool = worked.end(which).pool
        assert end is not None
        assert pool is not None
        assert end == (pool.kv_tokens, pool.max_concurrency, pool.max_single_request_tokens)


def test_given_bytes_hold_what_they_hold() -> None:
    made = plan("llama-3.1-8b", gpu="h100-sxm", kv_cache_memory_bytes=10 << 30).capacity
    assert made is not None
    assert made.low is made.high is None

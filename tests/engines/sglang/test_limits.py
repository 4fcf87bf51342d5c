"""What SGLang refuses, by release and to the last value that it takes; its stages and its vocabulary."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from at_random import plain, worked

from kvplan import load_model, plan
from kvplan.errors import KvplanError

# ---- refusals and what is said, by their limits ----


@pytest.mark.parametrize(
    ("given", "says", "hint"),
    [
        ({"tensor_parallel_size": 8, "attn_dp_size": 3}, "DP attention of 3 does not divide tensor parallel size 8",
         "type --attn-dp-size 2 or 4"),
        ({"tensor_parallel_size": 2, "attn_dp_size": 4}, "does not divide", "type --attn-dp-size 2"),
        ({"page_size": 48, "chunked_prefill_size": 4096}, "4,096 is not a multiple of page_size 48", "--page-size 64"),
        ({"tensor_parallel_size": 2, "decode_context_parallel_size": 2}, "context parallelism", "parallel-size 1"),
        ({"kv_cache_dtype": "int8"}, "no cache in int8", "type --kv-cache-dtype"),
        ({"kv_cache_dtype": "fp8_e4m3,bf16"}, "K and V in one format", "type --kv-cache-dtype fp8_e4m3"),
        ({"max_model_len": 131_073}, "refuses 131,073 tokens: the model's maximum is 131,072", "type --max-model-len "),
        ({"mamba_radix_cache_strategy": "extra_buffer"}, "does not track the states of llama", "no_buffer"),
        ({"mamba_radix_cache_strategy": "extra"}, "none of auto, no_buffer", "type --mamba-radix-cache-strategy "),
        ({"page_size": 0}, "at least 1", ""), ({"max_running_requests": 0}, "at least 1", ""),
        ({"max_total_tokens": 0}, "at least 1", ""), ({"mem_fraction_static": 1.01}, "1.01", "0.9"),
    ],
)  # fmt: skip
def test_refusals(given: dict[str, Any], says: str, hint: str) -> None:
    gpu = "h100-sxm" if "mem_fraction_static" in given else None
    with pytest.raises(KvplanError) as caught:
        plan("llama-3.1-8b", gpu=gpu, engine="sglang", **given)
    assert says in str(caught.value)
    assert hint in caught.value.hint or says == "1.01"


@pytest.mark.parametrize(
    ("version", "strategy", "says"),
    [
        ("0.5.6", "no_buffer", "0.5.6 has no no_buffer"), ("0.5.12", "extra_buffer_lazy", "has no extra_buffer_lazy"),
        ("0.5.12", "extra_buffer", None), ("0.5.14", "extra_buffer_lazy", None), ("0.5.12", "no_buffer", None),
    ],
)  # fmt: skip
def test_strategies_by_release(version: str, strategy: str, says: str | None) -> None:
    given = {"mamba_radix_cache_strategy": strategy, "kv_cache_memory_bytes": 1 << 34}
    model = load_model("qwen3-next-80b-a3b")
    if says is None:
        assert worked(model, f"sglang@{version}", **given)[1].pool
        return
    with pytest.raises(KvplanError, match=says):
        worked(model, f"sglang@{version}", **given)


def test_lazy_slots_need_the_overlapped_schedule() -> None:
    model = load_model("qwen3-next-80b-a3b")
    given: dict[str, Any] = {"mamba_radix_cache_strategy": "extra_buffer_lazy", "kv_cache_memory_bytes": 1 << 34}
    pool = worked(model, "sglang", **given)[1].pool
    assert pool is not None
    assert pool.max_num_seqs_allowed == pool.state_slots // 4
    with pytest.raises(KvplanError, match="needs the overlapped schedule") as caught:
        worked(model, "sglang", disable_overlap_schedule=True, **given)
    assert caught.value.hint == "type --mamba-radix-cache-strategy extra_buffer"


@pytest.mark.parametrize(
    ("version", "name", "taken"),
    [
        ("0.5.2", "bf16", True), ("0.4.9", "fp8_e5m2", True), ("0.5.2", "nvfp4", False), ("0.5.6", "nvfp4", True),
        ("0.5.17", "nvfp4", True), ("0.5.14", "mxfp8", False), ("0.5.17", "mxfp8", True), ("0.5.23", "fp32", False),
        ("0.5.23", "int8", False),
    ],
)  # fmt: skip
def test_cache_types_by_release(version: str, name: str, taken: bool) -> None:
    given = {"kv_cache_dtype": name, "kv_cache_memory_bytes": 1 << 34}
    if taken:
        assert worked(load_model("llama-3.1-8b"), f"sglang@{version}", **given)[1].pool
        return
    with pytest.raises(KvplanError, match=f"SGLang {version} has no cache in {name}"):
        worked(load_model("llama-3.1-8b"), f"sglang@{version}", **given)


@pytest.mark.parametrize(("version", "refuses"), [("0.4.9", False), ("0.5.2", True), ("0.5.23", True)])
def test_contexts_above_the_models(version: str, refuses: bool) -> None:
    model, given = load_model("llama-3-8b"), {"kv_cache_memory_bytes": 1 << 34}
    assert worked(model, f"sglang@{version}", max_model_len=8192, **given)[1].pool
    if not refuses:
        assert worked(model, f"sglang@{version}", max_model_len=8193, **given)[1].pool
        return
    with pytest.raises(KvplanError, match="maximum is 8,192"):
        worked(model, f"sglang@{version}", max_model_len=8193, **given)
    made = plan(
        "llama-3-8b", engine=f"sglang@{version}", max_model_len=8193, allow_long_max_model_len=True, **given
    )  # fmt: skip
    assert [w for w in made.warnings if "above the model's 8,192" in w]


def test_the_vocabulary_is_padded_to_64() -> None:
    engine, _ = worked(load_model("llama-3.1-8b"), "sglang", kv_cache_memory_bytes=1 << 34)
    assert [engine.vocab_rows(n, tp) for n, tp in ((64, 1), (65, 1), (128_256, 8), (128_257, 8), (1, 2))] == [
        64, 128, 16_032, 16_040, 32,
    ]  # fmt: skip


@pytest.mark.parametrize(("layers", "pp", "want"), [(7, 3, [2, 3, 2]), (8, 3, [3, 3, 2]), (5, 4, [1, 1, 2, 1])])
def test_layers_of_stages(layers: int, pp: int, want: list[int]) -> None:
    """``get_pp_indices``: the remainder to the stages before the last, counted backwards."""
    shape = plain(Random(4), num_hidden_layers=layers)
    _, found = worked(shape.model, "sglang", pipeline_parallel_size=pp, kv_cache_memory_bytes=1 << 30)
    assert [stage.spec.num_layers for stage in found.stages] == want
    each = 4 * shape.kv_heads * shape.head_dim
    assert found.pool is not None
    assert found.pool.kv_tokens == (1 << 30) // (max(want) * each)

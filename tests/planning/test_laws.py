"""Laws that hold for every model and every setting."""

from __future__ import annotations

from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvplan import load_model, plan
from kvplan.cache.bytes import bytes_per_token, fixed_bytes, longest_sequence, sequence_bytes
from kvplan.cache.sharding import legal_sizes, shard_model
from kvplan.catalog import model_ids
from kvplan.engines import get_engine
from kvplan.engines.base import Settings
from kvplan.spec.formats import format_names
from kvplan.spec.model import ModelSpec

MODELS = (
    "llama-3.1-8b", "deepseek-v3", "deepseek-v3.2", "deepseek-v4-flash", "gemma-3-27b", "gemma-3n-e4b", "gpt-oss-20b",
    "llama-4-scout", "qwen3-next-80b-a3b", "falcon-h1-7b", "mimo-v2-flash", "whisper-large-v3", "rwkv-7-g1-7.2b",
)  # fmt: skip
models = st.sampled_from(MODELS)
tokens = st.integers(0, 2**21)
cache_formats = st.sampled_from(list(format_names("cache")))


@cache
def model(name: str) -> ModelSpec:
    return load_model(name)


def formats(name: str, kv_cache_dtype: str = "auto"):
    given_settings = Settings(engine="generic", engine_version="1", kv_cache_dtype=kv_cache_dtype)
    return get_engine("generic").kv_formats(model(name), given_settings)


@given(models, tokens, tokens, cache_formats)
def test_more_tokens_never_take_fewer_bytes(name: str, a: int, b: int, fmt: str) -> None:
    low, high = sorted((a, b))
    stored = formats(name, fmt)
    assert sequence_bytes(model(name), low, stored) <= sequence_bytes(model(name), high, stored)


@given(models, st.integers(0, 2**40))
def test_capacity_inverts_budget(name: str, budget: int) -> None:
    stored = formats(name)
    held = longest_sequence(model(name), budget, stored)
    if held is None:
        return
    if held:
        assert sequence_bytes(model(name), held, stored) <= budget
    assert sequence_bytes(model(name), held + 1, stored) > budget


@given(models, st.integers(1, 2**21))
def test_a_request_costs_at_most_its_fixed_part_and_its_short_slope(name: str, n: int) -> None:
    stored = formats(name)
    spent = sequence_bytes(model(name), n, stored)
    fixed = fixed_bytes(model(name), stored)
    assert fixed <= spent <= fixed + n * bytes_per_token(model(name), stored)


@given(models, st.integers(1, 2**21))
def test_the_slope_never_rises(name: str, n: int) -> None:
    stored = formats(name)
    assert bytes_per_token(model(name), stored, at=n) <= bytes_per_token(model(name), stored)


@pytest.mark.parametrize("name", MODELS)
def test_arrays_and_integers_agree(name: str) -> None:
    numpy = pytest.importorskip("numpy")
    lengths = numpy.array([0, 1, 3, 127, 128, 129, 1024, 4097, 131_072, 2**20], dtype=numpy.int64)
    stored = formats(name)
    together = sequence_bytes(model(name), lengths, stored)
    assert together.tolist() == [sequence_bytes(model(name), int(n), stored) for n in lengths]


@pytest.mark.parametrize("name", MODELS)
def test_ranks_hold_at_least_the_whole(name: str) -> None:
    """Sharding replicates, it never loses: tp ranks together hold at least what one device would."""
    whole, stored = model(name), formats(name)
    for tp in legal_sizes(whole, 16):
        rank = shard_model(whole, tp=tp)
        assert sequence_bytes(rank, 5000, stored) * tp >= sequence_bytes(whole, 5000, stored)
        assert sequence_bytes(rank, 5000, stored) <= sequence_bytes(whole, 5000, stored)


@settings(deadline=None, max_examples=60)
@given(
    name=st.sampled_from(["llama-3.1-8b", "qwen3-32b", "deepseek-v3", "mistral-7b-v0.1", "mixtral-8x7b", "falcon-7b"]),
    gpu=st.sampled_from(["h100-sxm", "h200-sxm", "l4", "a100-sxm4-80gb", "mi300x"]),
    tp=st.sampled_from([1, 2, 4, 8]),
    pp=st.sampled_from([1, 2, 3]),
    dp=st.sampled_from([1, 2]),
    engine=st.sampled_from(["vllm", "generic"]),
    length=st.integers(16, 2048),
    concurrency=st.integers(1, 64),
)
def test_the_parts_sum_to_the_whole(
    name: str, gpu: str, tp: int, pp: int, dp: int, engine: str, length: int, concurrency: int
) -> None:
    if tp not in legal_sizes(model(name)):
        return
    found = plan(
        model(name), gpu=gpu, engine=engine, tensor_parallel_size=tp, pipeline_parallel_size=pp, data_parallel_size=dp,
        max_model_len=length, concurrency=concurrency, prompt_tokens=8, output_tokens=8,
    )  # fmt: skip
    assert found.memory is not None
    assert len(found.memory) == tp * pp * dp
    assert [row.rank for row in found.memory] == list(range(tp * pp * dp))
    for row in found.memory:
        parts = row.weights_bytes + row.activation_bytes + row.cuda_graph_bytes + row.runtime_bytes
        assert parts + row.kv_bytes + row.unused_bytes == row.total_bytes
        assert parts == sum(term.bytes for term in row.terms)
        assert all(term.low_bytes <= term.bytes <= term.high_bytes for term in row.terms)
    if found.verdict.fits:
        assert found.capacity is not None
        assert all(row.unused_bytes >= 0 for row in found.memory)
        assert dict(found.capacity.at)[length] >= 1


@pytest.mark.parametrize("engine", ["vllm", "generic"])
@pytest.mark.parametrize("memory_gib", [1, 2, 7, 30])
def test_more_memory_never_holds_less(engine: str, memory_gib: int) -> None:
    small = plan("llama-3.1-8b", engine=engine, max_model_len=1024, kv_cache_memory_bytes=memory_gib * 2**30)
    large = plan("llama-3.1-8b", engine=engine, max_model_len=1024, kv_cache_memory_bytes=memory_gib * 2**30 + 2**28)
    assert small.capacity is not None
    assert large.capacity is not None
    assert small.capacity.kv_tokens < large.capacity.kv_tokens
    assert small.capacity.max_single_request_tokens < large.capacity.max_single_request_tokens


@pytest.mark.parametrize("name", model_ids())
def test_every_model_of_the_catalog_plans(name: str) -> None:
    found = plan(name, gpu="h200-sxm", engine="generic", max_model_len=1024, prompt_tokens=512, output_tokens=128)
    assert found.kv.bytes_per_sequence > 0 or found.kv.groups == ()
    groups = sum(g.layers * (g.bytes_per_token_per_layer) for g in found.kv.groups)
    assert abs(groups - found.kv.bytes_per_token) <= len(found.kv.groups)
    assert found.model.parameters > 0

"""Rows, allocations, devices and workloads, by hand."""

from __future__ import annotations

from random import Random

import pytest
from at_random import latent, plain, windowed

from kvplan import load_gpu, load_model
from kvplan.engines import rows
from kvplan.engines.base import Allocation, CachePool, Engine, Settings
from kvplan.errors import KvplanError

# ---- rows ----


@pytest.mark.parametrize("seed", range(10))
def test_rows(seed: int) -> None:
    rng = Random(f"rows {seed}")
    for make in (plain, windowed, latent):
        shape = make(rng)
        found = rows.cache_rows(shape.model)
        wide = (shape.rank, shape.rope) if shape.rank else (shape.kv_heads * shape.head_dim,) * 2
        assert {(r.k, r.v) for r in found} == {wide}
        assert {r.window for r in found} == set(shape.windows)
        assert sum(r.layers for r in found) == shape.layers
        assert not any(r.has_state or r.index_key or r.fixed_entries for r in found)
        assert {r.head_dim for r in found} == {shape.rope if shape.rank else shape.head_dim}
        if shape.rank:
            (rebuilt,) = {(r.k, r.v, r.head_dim) for r in rows.cache_rows(shape.model, rebuilt=True)}
            assert rebuilt == (shape.query_heads * (128 + shape.rope), shape.query_heads * 128, 128)
            assert rows.cache_rows(shape.model, apart="mla") == []


def test_rows_of_states() -> None:
    (net,) = [r for r in rows.cache_rows(load_model("qwen3-next-80b-a3b")) if r.has_state]
    assert (net.conv_channels, net.conv_columns, net.recurrent, net.shift) == (8192, 3, 32 * 128 * 128, 0)
    assert (net.layers, net.k, net.v, net.head_dim) == (36, 0, 0, 0)


# ---- allocations, devices ----


def test_states_are_told_apart() -> None:
    kinds = ("full", "recurrent", "sliding", "compressor", "recurrent outside the cache", "index")
    made = Allocation.of([CachePool(kind, 1, None, 10**n, 0, 0) for n, kind in enumerate(kinds)], 7, 8)
    assert [p.kind for p in made.pools] == ["full", "sliding", "index"]
    assert [p.kind for p in made.states] == ["recurrent", "compressor", "recurrent outside the cache"]
    assert (made.bytes, made.state_bytes, made.compute_buffer_bytes, made.peak_bytes) == (111_111, 11_010, 7, 8)


@pytest.mark.parametrize(
    ("engine", "gpu", "takes"),
    [
        ("tensorrt-llm", "a100-80gb-sxm", True), ("tensorrt-llm", "t4", False), ("tensorrt-llm", "mi300x", False),
        ("exllamav3", "t4", False), ("exllamav3", "l4", True), ("sglang", "t4", True),
        ("sglang", "v100-32gb-sxm", False),
        ("sglang", "mi300x", True), ("llama.cpp", "v100-32gb-sxm", True), ("generic", "mi300x", True),
    ],
)  # fmt: skip
def test_devices(engine: str, gpu: str, takes: bool) -> None:
    """Compute capability 8.0 of Ampere, 7.5 of Turing: support matrices of the engines."""
    from kvplan.engines import get_engine

    try:
        card = load_gpu(gpu)
    except KvplanError:
        card = load_gpu("v100-32gb")
    assert get_engine(engine).takes(card) is takes
    assert Engine.capability_of(load_gpu("mi300x")) == 99.0
    assert Engine.capability_of(load_gpu("t4")) == 7.5


def test_workloads() -> None:
    settings = Settings(
        engine="x", engine_version="1", tensor_parallel_size=2, pipeline_parallel_size=3, data_parallel_size=4,
        concurrency=9, prompt_tokens=5, output_tokens=7,
    )  # fmt: skip
    assert (settings.request_tokens, settings.world_size, settings.concurrency_per_replica) == (12, 24, 3)

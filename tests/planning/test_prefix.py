"""A common prefix is held once: by hand, by law, and by every engine's own rule."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvplan import load_model, plan
from kvplan.planning.plan import Plan
from kvplan.planning.prefix import AtPrefix
from kvplan.planning.sweep import Base, Sweep
from kvplan.planning.sweep_axes import Axis

GIB = 2**30


def rows(**given_: Any) -> tuple[AtPrefix, ...]:
    found: Plan = plan("llama-3.1-8b", **given_)
    assert found.capacity is not None
    return found.capacity.by_shared_prefix


def at(length: int, **given_: Any) -> AtPrefix:
    return next(row for row in rows(**given_) if row.prefix_tokens == length)


def test_vllm_by_hand() -> None:
    """10,000 blocks of 16 tokens (one is vLLM's own); 4,096 + 1,024 prompt + 256 output tokens."""
    row = at(4096, prompt_tokens=5120, output_tokens=256, shared_prefix_tokens=4096,
             kv_cache_memory_bytes=10_000 * 16 * 131_072)  # fmt: skip
    assert row == AtPrefix(4096, 4096, (9_999 - 256) // 80, 9_999 // 336)


@pytest.mark.parametrize(
    ("output", "requests"),
    # 600 of 700 + 60 tokens in 37 blocks of 16; a request has 48, and one that a window keeps besides
    [(60, 1 + (9_999 - 49) // (49 - 37)), (4096 - 700, 1 + (9_999 - 257) // (257 - 37)), (4097 - 700, 9_999 // 258)],
)
def test_a_window_shares_while_requests_end_within_it(output: int, requests: int) -> None:
    """mistral-7b-v0.1: 32 layers with a window of 4,096; beyond it the beginning of a request is let go."""
    found = plan("mistral-7b-v0.1", prompt_tokens=700, output_tokens=output, shared_prefix_tokens=600,
                 kv_cache_memory_bytes=10_000 * 16 * 131_072)  # fmt: skip
    assert found.capacity is not None
    row = next(row for row in found.capacity.by_shared_prefix if row.prefix_tokens == 600)
    assert row == AtPrefix(600, 592, requests, 9_999 // (-(-(700 + output) // 16) + 1))


def test_the_generic_engine_by_hand() -> None:
    """64 GiB are 524,288 tokens of 128 KiB."""
    row = at(4096, engine="generic", prompt_tokens=5120, output_tokens=256, shared_prefix_tokens=4096,
             kv_cache_memory_bytes=64 * GIB)  # fmt: skip
    assert row == AtPrefix(4096, 4096, (524_288 - 4096) // 1280, 524_288 // 5376)


def test_what_a_request_adds_of_its_own_stays_the_same() -> None:
    common = dict(engine="generic", output_tokens=256, kv_cache_memory_bytes=64 * GIB, max_model_len=32768)
    one = rows(prompt_tokens=1024 + 2048, shared_prefix_tokens=2048, **common)
    other = rows(prompt_tokens=1024 + 1024, shared_prefix_tokens=1024, **common)
    assert {r.prefix_tokens: r for r in one}[1024] == {r.prefix_tokens: r for r in other}[1024]
    assert [r.prefix_tokens for r in one] == [0, 256, 1024, 2048, 4096]
    assert one[0].requests == one[0].requests_unshared == 524_288 // 1280


def test_without_sharing_nothing_is_held_once() -> None:
    common = dict(prompt_tokens=5120, shared_prefix_tokens=4096, kv_cache_memory_bytes=16 * GIB)
    for more in ({"enable_prefix_caching": False}, {"engine": "transformers"}):
        for row in rows(**common, **more):
            assert (row.shared_tokens, row.requests) == (0, row.requests_unshared), more


def test_nothing_is_said_where_nothing_is_shared() -> None:
    assert rows(kv_cache_memory_bytes=16 * GIB) == ()


@settings(max_examples=40)
@given(
    st.sampled_from(["vllm", "generic", "sglang", "tensorrt-llm", "exllamav3"]),
    st.integers(1, 20_000),
    st.integers(1, 20_000),
    st.integers(1, 60),
)
def test_sharing_never_costs_and_longer_prefixes_never_help(engine: str, shared: int, own: int, gib: int) -> None:
    found = rows(
        engine=engine, gpu="h200-sxm", prompt_tokens=shared + own, shared_prefix_tokens=shared,
        kv_cache_memory_bytes=gib * GIB, max_model_len=65536,
    )  # fmt: skip
    assert shared in [row.prefix_tokens for row in found]
    assert all(row.requests >= row.requests_unshared and row.shared_tokens <= row.prefix_tokens for row in found)
    counts = [row.requests for row in found if row.prefix_tokens % 256 == 0]  # whole pages of every engine
    assert counts == sorted(counts, reverse=True)


@pytest.mark.parametrize("dp", [1, 2])
def test_figures_are_of_one_replica(dp: int) -> None:
    row = at(1024, engine="generic", prompt_tokens=2048, shared_prefix_tokens=1024, kv_cache_memory_bytes=16 * GIB,
             data_parallel_size=dp)  # fmt: skip
    assert row.requests == (131_072 - 1024) // 1280


@pytest.mark.parametrize("model", ["llama-3.1-8b", "gemma-3-27b", "qwen3-next-80b-a3b"])
@pytest.mark.parametrize("engine", ["vllm", "generic"])
def test_a_sweep_says_what_plans_say(model: str, engine: str) -> None:
    common = {"prompt_tokens": 8192, "kv_cache_memory_bytes": 40 * GIB, "max_model_len": 16384}
    base = Base(load_model(model), None, engine, common)
    lengths = [0, 100, 1024, 4096, 8192]
    grid = Sweep(lambda _: base, [Axis("shared_prefix_tokens", lengths)], ["capacity.requests"])
    found = {c["shared_prefix_tokens"]: c["capacity.requests"] for block in grid.blocks() for c in block.cells()}
    for length in lengths[1:]:
        capacity = plan(model, engine=engine, shared_prefix_tokens=length, **common).capacity
        assert capacity is not None
        row = next(r for r in capacity.by_shared_prefix if r.prefix_tokens == length)
        assert found[length] == row.requests
    assert found[0] == row.requests_unshared


@pytest.mark.parametrize(
    ("shared", "length", "expected"),
    [
        (1024, 32_768, [0, 256, 1024, 4096]), (4095, 32_768, [0, 256, 1024, 4095, 4096]),
        (4096, 32_768, [0, 256, 1024, 4096, 16_384]), (4096, 16_384 + 180, [0, 256, 1024, 4096, 16_384]),
        (4096, 16_384 + 179, [0, 256, 1024, 4096]),
    ],
)  # fmt: skip
def test_lengths_of_a_prefix_that_are_told(shared: int, length: int, expected: list[int]) -> None:
    """Up to 4K or four times what was given, and as far as 80 own tokens and 100 of output fit behind it."""
    made_ = plan(
        "llama-3.1-8b", engine="generic", kv_cache_memory_bytes=64 * GIB, max_model_len=length,
        shared_prefix_tokens=shared, prompt_tokens=shared + 80, output_tokens=100,
    ).capacity  # fmt: skip
    assert made_ is not None
    assert [row.prefix_tokens for row in made_.by_shared_prefix] == expected

"""The pool and the limits of a simulation are the plan's."""

from __future__ import annotations

from typing import Any

import pytest

from kvplan import plan
from kvplan.deployment import find_deployment
from kvplan.errors import InputError, UnsupportedError
from kvplan.simulate.results import figures
from kvplan.simulate.run import simulate
from kvplan.simulate.site import plain, prepare, with_blocks
from kvplan.simulate.synthetic import synthetic

MODELS = [
    ("llama-3.1-8b", {}),
    ("gemma-3-27b", {"tensor_parallel_size": 2}),
    ("gpt-oss-20b", {}),
    ("qwen3-next-80b-a3b", {"tensor_parallel_size": 4}),
    ("deepseek-v2-lite", {}),
]


@pytest.mark.parametrize(("model", "settings"), MODELS)
def test_vllms_pool_is_that_of_the_plan(site: Any, model: str, settings: dict[str, int]) -> None:
    made = site(model, **settings)
    capacity = plan(model, gpu="h100-sxm", **settings).capacity
    assert capacity is not None
    assert capacity.num_blocks == made.num_blocks + 1, "vLLM keeps one block for itself"
    assert made.longest == plan(model, gpu="h100-sxm", **settings).inputs["max_model_len"]


@pytest.mark.parametrize(("model", "settings"), MODELS)
@pytest.mark.parametrize("engine", ["vllm", "generic"])
def test_as_many_requests_run_at_once_as_the_plan_says(
    site: Any, model: str, settings: dict[str, int], engine: str
) -> None:
    """Requests of one length, all at once, in a pool of some twenty; vLLM sets aside more for windows of a prompt."""
    prompt, output = 3700, 397
    caching = {"enable_prefix_caching": False} if engine == "vllm" else {}
    made = site(model, engine=engine, **caching, **settings)
    blocks = made.shape.blocks(prompt + output - 1) * 20
    run = simulate(with_blocks(made, blocks), synthetic(f"requests=64,prompt={prompt},output={output}"))
    result = figures(run)
    assert result.scheduling.finished == 64
    assert blocks // made.shape.wanted(prompt + output) - 1 <= result.scheduling.peak_batch
    assert result.scheduling.peak_batch <= blocks // made.shape.blocks(prompt)


@pytest.mark.parametrize("model", ["gemma-3-27b", "qwen3-next-80b-a3b", "gpt-oss-20b"])
def test_bytes_of_a_hybrid_are_those_of_the_generic_plan(site: Any, model: str) -> None:
    made = site(model, engine="generic", tensor_parallel_size=4)
    for tokens in (1, 500, 1024, 5000, 60_000):
        right = plan(model, gpu="h100-sxm", engine="generic", tensor_parallel_size=4, max_model_len=tokens)
        need = right.kv.bytes_per_sequence_per_gpu
        assert made.shape.blocks(tokens) * made.block_bytes == pytest.approx(need, rel=0.02, abs=2 * made.block_bytes)


def test_other_block_sizes_hold_the_same_bytes(site: Any) -> None:
    made = site()
    for size in (1, 8, 32):
        other = plain(made, block_size=size)
        assert other.pool_bytes == pytest.approx(made.pool_bytes, rel=1e-3)
        assert other.shape.whole == (size,)
    with pytest.raises(UnsupportedError, match="one group"):
        plain(site("gemma-3-27b", tensor_parallel_size=2))


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({}, "how fast a step is"),
        ({"gpu": "h100-sxm", "kv_cache_memory_bytes": 1000}, "no block"),
    ],
)
def test_what_cannot_be_simulated_says_why(settings: dict[str, Any], why: str) -> None:
    with pytest.raises(InputError, match=why) as caught:
        prepare(find_deployment("llama-3.1-8b", settings))
    assert caught.value.hint


def test_an_engine_that_would_not_start_is_told() -> None:
    made = prepare(find_deployment("llama-3.1-8b", {"gpu": "h100-sxm", "kv_cache_memory_bytes": 10**9}))
    assert any("would not start" in text for text in made.warnings)
    other = prepare(find_deployment("llama-3.1-8b", {"gpu": "h100-sxm", "engine": "sglang"}))
    assert any("the scheduler is vLLM's" in text for text in other.warnings)

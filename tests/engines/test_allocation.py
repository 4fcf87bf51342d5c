"""What is laid out at start is the sum of its parts, whatever the engine."""

from __future__ import annotations

import pytest

from kvplan import load_model
from kvplan.engines.base import STATE_KINDS
from kvplan.errors import UnsupportedError
from kvplan.planning.planner import plan_deployment

MODELS = (
    "llama-3.1-8b", "gemma-3-27b", "deepseek-v3", "deepseek-v3.2", "qwen3-next-80b-a3b", "nemotron-h-8b",
    "jamba-1.5-mini", "falcon-h1-7b", "lfm2-8b-a1b", "deepseek-v4-flash", "kimi-linear-48b-a3b", "mamba2-2.7b",
)  # fmt: skip
ENGINES = ("llama.cpp", "ollama", "transformers", "mlx", "exllamav3", "sglang", "tensorrt-llm")


@pytest.mark.parametrize("engine", ENGINES)
def test_parts_sum_to_the_whole(engine: str) -> None:
    """bytes = pools + states, states in no pool, K and V in every pool; at least three models a engine."""
    seen = states = 0
    for name in MODELS:
        try:
            made = plan_deployment(load_model(name), None, engine, {"max_model_len": 8192}).allocation
        except UnsupportedError:
            continue
        if made is None:
            continue
        seen += 1
        assert made.bytes == sum(pool.bytes for pool in made.pools) + made.state_bytes
        assert made.state_bytes == sum(pool.bytes for pool in made.states)
        assert not {pool.kind for pool in made.pools} & STATE_KINDS
        assert {pool.kind for pool in made.states} <= STATE_KINDS
        for pool in (*made.pools, *made.states):
            assert pool.k_bytes + pool.v_bytes == pool.bytes, (name, pool)
        states += made.state_bytes > 0
    if engine not in ("sglang", "tensorrt-llm"):  # these lay out what a budget leaves, and none is given
        assert seen >= 3
        assert states >= 2

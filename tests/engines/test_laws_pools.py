"""What a pool says of itself agrees: blocks and tokens, bytes and memory, requests of the longest length, the longest.

Figures that an engine computes in two places are held against each other, so that neither can be off alone.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from math import floor

import pytest

from kvplan import load_gpu, load_model
from kvplan.engines import distinct, get_engine
from kvplan.engines.base import Engine, Pool, Settings, Stage
from kvplan.planning.evaluate import evaluate, settled
from kvplan.units import GIB

GPU = {"mlx": "apple-m4-max"}
MODELS = ("llama-3.1-8b", "gemma-3-27b", "gpt-oss-20b", "deepseek-v2-lite", "qwen3-next-80b-a3b")
REFUSED = {("tensorrt-llm", "qwen3-next-80b-a3b")}
"""No caches of recurrent layers."""
CASES = [(engine, name) for engine in distinct() for name in MODELS if (engine, name) not in REFUSED]
SHARED_OUT = {
    ("tensorrt-llm", "gemma-3-27b"), ("tensorrt-llm", "gpt-oss-20b"), ("sglang", "gpt-oss-20b"),
    ("sglang", "qwen3-next-80b-a3b"),
}  # fmt: skip
"""Pools of fixed shares for windows and states: the fuller one ends a request while the others have room."""
SIZES = (1, 3, 7, 21, 60)
LENGTH = 4096


@cache
def deployment(engine: str, name: str) -> tuple[Engine, Settings, tuple[Stage, ...]]:
    device, chosen = load_gpu(GPU.get(engine, "h200-sxm")), get_engine(engine)
    model, settings, _ = settled(load_model(name), device, chosen, {"max_model_len": LENGTH})
    return chosen, settings, evaluate(model, device, chosen, settings).stages


def spare(engine: Engine, stage: Stage, settings: Settings) -> int:
    """Bytes that an engine lays out beyond what it was given: SGLang's pools have a page more, of one token here."""
    if engine.name != "sglang":
        return 0
    return engine.request_bytes(stage, settings, 2) - engine.request_bytes(stage, settings, 1)


def faults(pool: Pool, engine: str, name: str, kv: int) -> list[str]:
    """Each law that a pool of `kv` bytes breaks."""
    chosen, settings, (stage,) = deployment(engine, name)
    found = []
    if not pool.starts and pool.kv_tokens == 0:  # laid out at start, and it does not start: nothing is held
        return ["a request runs where nothing is held"] if pool.max_concurrency else []
    counted = pool.num_blocks is not None and pool.kv_tokens is not None
    if counted and pool.num_blocks * pool.block_size != pool.kv_tokens:
        found.append("blocks are not the tokens")
    if pool.kv_tokens is not None and pool.max_single_request_tokens > pool.kv_tokens:
        found.append("one request is longer than all tokens")
    if not pool.starts:
        return found
    if pool.used_bytes[0] > kv + spare(chosen, stage, settings):
        found.append("more bytes than were given")
    # vLLM keeps a block that no request gets, and does not take it off where it prints the concurrency
    free = (pool.num_blocks - 1) / pool.num_blocks if engine == "vllm" and pool.num_blocks else 1
    if floor(pool.max_concurrency * free) != chosen.requests_at((stage,), settings, (kv,), LENGTH):
        found.append("concurrency is not the requests that run")
    longest = pool.max_single_request_tokens
    if chosen.request_bytes(stage, settings, longest) > kv:
        found.append("the longest request does not hold")
    if chosen.fills_budget and (engine, name) not in SHARED_OUT:
        longer = longest * 5 // 4 + 1024  # with what exists besides while it runs
        while_it_runs = chosen.start_bytes(stage, replace(settings, max_model_len=longer))
        if max(chosen.request_bytes(stage, settings, longer), while_it_runs) <= kv:
            found.append("a longer request holds")
    return found


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(("engine", "name"), CASES)
def test_a_pool_agrees_with_itself(engine: str, name: str, size: int) -> None:
    chosen, settings, stages = deployment(engine, name)
    kv = size * GIB
    assert faults(chosen.pool(stages, settings, (kv,)), engine, name, kv) == []


@pytest.mark.parametrize("engine", distinct())
@pytest.mark.parametrize("times", [1000, 2])
def test_figures_that_are_too_large_are_seen(engine: str, times: int) -> None:
    chosen, settings, stages = deployment(engine, "llama-3.1-8b")
    kv = 7 * GIB
    pool = chosen.pool(stages, settings, (kv,))
    longest, many = pool.max_single_request_tokens * times, pool.max_concurrency * times
    wrong = faults(pool._replace(max_single_request_tokens=longest), engine, "llama-3.1-8b", kv)
    assert {"one request is longer than all tokens", "the longest request does not hold"} & set(wrong)
    wrong = faults(pool._replace(max_concurrency=many), engine, "llama-3.1-8b", kv)
    assert wrong == ["concurrency is not the requests that run"]
    wrong = faults(pool._replace(used_bytes=(kv * times,)), engine, "llama-3.1-8b", kv)
    assert wrong == ["more bytes than were given"]
    if pool.num_blocks is not None:
        wrong = faults(pool._replace(num_blocks=pool.num_blocks * times), engine, "llama-3.1-8b", kv)
        assert "blocks are not the tokens" in wrong

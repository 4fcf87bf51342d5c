"""Every figure of a check is that of the plan, and its bounds enclose it."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvplan import load_gpu, load_model
from kvplan.check.figures import Subject, Worked
from kvplan.check.metrics import find_metric, known
from kvplan.planning.planner import plan_deployment

CASES: list[tuple[str, str | None, str, dict[str, Any]]] = [
    ("llama-3.1-8b", "h100-sxm", "vllm", {"concurrency": 16}),
    ("llama-3.1-70b", "h100-sxm", "vllm", {"tensor_parallel_size": 4, "data_parallel_size": 2, "max_model_len": 8192}),
    ("deepseek-v3", "h200-sxm", "vllm", {"tensor_parallel_size": 8, "shared_prefix_tokens": 512}),
    ("gemma-3-27b", "h100-sxm", "vllm", {"pipeline_parallel_size": 2, "max_model_len": 4096}),
    ("qwen3-next-80b-a3b", "h200-sxm", "vllm", {"tensor_parallel_size": 2, "max_model_len": 16384}),
    ("qwen3-32b", "h100-sxm", "sglang", {"tensor_parallel_size": 2}),
    ("qwen3-32b", "h100-sxm", "tensorrt-llm", {"tensor_parallel_size": 2, "max_model_len": 32768}),
    ("qwen3-8b", "rtx-4090", "llama.cpp", {"ctx_size": 16384, "parallel": 2, "weights": "q4_k_m"}),
    ("qwen3-8b", "h100-sxm", "transformers", {"max_model_len": 8192}),
    ("llama-3.1-8b", None, "vllm", {}),
    ("llama-3.1-8b", "h100-sxm", "vllm", {"request_rate": 2.0, "ttft": 0.5, "tpot": 0.05}),
    ("llama-3.1-8b", "h100-sxm", "vllm", {"kv_cache_memory_bytes": 20 << 30}),
]  # fmt: skip


def subject(model: str, gpu: str | None, engine: str, given_: dict[str, Any]) -> Subject:
    return Subject(load_model(model), load_gpu(gpu) if gpu else None, engine, given_)


def planned(plan: Any, name: str) -> list[Any]:
    """The values of a dotted key of a plan, entry by entry where a list is in between."""
    steps = name.split(".")
    if steps[0] == "inputs":
        return [plan.inputs[steps[1]]]
    here: list[Any] = [plan]
    for step in steps:
        here = [getattr(item, step) for item in here if item is not None]
        here = [e for item in here for e in (item if type(item) is tuple else (item,))]
    return here or [None]


@pytest.mark.parametrize(("model", "gpu", "engine", "given_"), CASES, ids=lambda value: str(value)[:40])
def test_every_metric_is_the_key_of_the_plan(
    model: str, gpu: str | None, engine: str, given_: dict[str, Any]
) -> None:  # fmt: skip
    asked = subject(model, gpu, engine, given_)
    worked, plan = Worked(asked), plan_deployment(*asked[:3], {"price": (), **given_} if gpu else given_)
    none_for_no_pool = plan.capacity is not None and plan.capacity.num_blocks is None and worked.outcome.pool is None
    for name in known():
        values = list(worked.figure(find_metric(name)).mid)
        if none_for_no_pool and name.startswith("capacity."):
            continue
        assert values == planned(plan, name), name


@pytest.mark.parametrize(("model", "gpu", "engine", "given_"), CASES[:9], ids=lambda value: str(value)[:40])
def test_requests_at_a_length_are_those_of_the_plan(
    model: str, gpu: str | None, engine: str, given_: dict[str, Any]
) -> None:  # fmt: skip
    asked = subject(model, gpu, engine, given_)
    plan = plan_deployment(*asked)
    assert plan.capacity is not None
    worked = Worked(asked)
    assert plan.capacity.at
    for tokens, requests in plan.capacity.at:
        assert worked.figure(find_metric(f"capacity.requests_at({tokens})")).mid == (requests,)
    longer = worked.settings.max_model_len + 1
    assert worked.figure(find_metric(f"capacity.requests_at({longer})")).mid == (0,)


@pytest.mark.parametrize(("model", "gpu", "engine", "given_"), CASES[:9], ids=lambda value: str(value)[:40])
def test_bounds_enclose_the_middle_and_follow_the_memory(
    model: str, gpu: str | None, engine: str, given_: dict[str, Any]
) -> None:  # fmt: skip
    worked = Worked(subject(model, gpu, engine, given_))
    for name, kind in known().items():
        figure = worked.figure(find_metric(name))
        if kind in ("switch", "text") or None in figure.mid:
            continue
        least, most = figure.end(0), figure.end(1)
        if figure.rises and least and None not in (*least, *most):
            assert max(least) <= max(figure.mid) <= max(most), name
        low, middle, high = figure.range()
        if None not in (low, high):
            assert low <= middle <= high, name
    assert worked.end(0).fits <= worked.outcome.fits <= worked.end(1).fits  # type: ignore[operator]


def test_the_least_memory_is_the_budget_less_every_term_at_its_high_end() -> None:
    worked = Worked(subject("llama-3.1-8b", "h100-sxm", "vllm", {"max_model_len": 8192}))
    assert worked.falls is not None
    (fall,) = worked.falls
    spent = sum(term.high_bytes for term in fall.terms)
    assert spent > sum(term.bytes for term in fall.terms)
    assert worked.end(0).kv_bytes == (fall.budget_bytes - spent,)
    pool = worked.engine.pool(worked.stages, worked.settings, (fall.budget_bytes - spent,))
    figure = worked.figure(find_metric("capacity.kv_tokens"))
    assert figure.pick("pessimistic", ">=", bool) == pool.kv_tokens
    assert figure.pick("mid", ">=", bool) == worked.outcome.pool.kv_tokens  # type: ignore[union-attr]
    assert figure.pick("pessimistic", "<=", bool) == figure.end(1)[0] > pool.kv_tokens  # type: ignore[operator]
    assert figure.pick("low", "<=", bool) == pool.kv_tokens
    assert figure.pick("high", ">=", bool) == figure.end(1)[0]


def test_speed_has_the_bounds_of_the_plan() -> None:
    asked = subject("llama-3.1-8b", "h100-sxm", "vllm", {"concurrency": 4})
    plan, worked = plan_deployment(*asked), Worked(asked)
    assert plan.decode is not None
    assert plan.prefill is not None
    rate = worked.figure(find_metric("decode.tokens_per_second"))
    assert rate.range() == pytest.approx((plan.decode.low, plan.decode.tokens_per_second, plan.decode.high))
    step = worked.figure(find_metric("decode.seconds_per_step"))
    each = worked.figure(find_metric("decode.tokens_per_second_per_request"))
    assert step.range()[2] == pytest.approx(1 / each.range()[0])
    first = worked.figure(find_metric("prefill.seconds")).range()
    assert first == (plan.prefill.low_seconds, plan.prefill.seconds, plan.prefill.high_seconds)


def test_cost_has_the_bounds_of_price_and_speed() -> None:
    worked = Worked(subject("llama-3.1-8b", "h100-sxm", "vllm", {"concurrency": 4}))
    cost = worked.plan.cost
    assert cost is not None
    low, middle, high = worked.figure(find_metric("cost.per_million_output_tokens")).range()
    assert middle == cost.per_million_output_tokens
    assert (low, high) == (cost.low_per_million_output_tokens, cost.high_per_million_output_tokens)
    low, middle, high = worked.figure(find_metric("cost.usd_per_hour")).range()
    assert low / middle == pytest.approx(cost.low_usd_per_gpu_hour / cost.usd_per_gpu_hour)  # type: ignore[operator]
    assert high / middle == pytest.approx(cost.high_usd_per_gpu_hour / cost.usd_per_gpu_hour)  # type: ignore[operator]


def test_of_several_ranks_the_worst_counts() -> None:
    worked = Worked(
        subject("gemma-3-27b", "h100-sxm", "vllm", {"pipeline_parallel_size": 2, "max_model_len": 4096})
    )  # fmt: skip
    figure = worked.figure(find_metric("memory.weights_bytes"))
    assert len(set(figure.mid)) == 2
    assert figure.pick("mid", "<=", bool) == max(figure.mid)
    assert figure.pick("mid", ">=", bool) == min(figure.mid)
    assert figure.pick("mid", "==", lambda value: value == max(figure.mid)) == min(figure.mid)


@settings(max_examples=25)
@given(
    length=st.integers(2048, 60000), sequences=st.integers(1, 512), share=st.integers(500, 950),
    concurrency=st.integers(1, 64),
)  # fmt: skip
def test_a_neighbour_is_what_it_would_be_alone(length: int, sequences: int, share: int, concurrency: int) -> None:
    base = Worked(subject("llama-3.1-8b", "h100-sxm", "vllm", {"max_model_len": 4096}))
    changed = base.subject._replace(
        given={
            "max_model_len": length, "max_num_seqs": sequences, "gpu_memory_utilization": share / 1000,
            "concurrency": concurrency,
        }
    )  # fmt: skip
    near, alone = Worked(changed, base), Worked(changed)
    for name in ("capacity.max_concurrency", "verdict.fits", "memory.unused_bytes", "kv.bytes_per_sequence"):
        metric = find_metric(name)
        assert near.figure(metric).mid == alone.figure(metric).mid
        assert near.figure(metric).end(0) == alone.figure(metric).end(0)


@pytest.mark.parametrize(("model", "gpu", "engine", "given_"), CASES[:9], ids=lambda value: str(value)[:40])
def test_memory_without_its_pool_is_the_same(
    model: str, gpu: str | None, engine: str, given_: dict[str, Any]
) -> None:  # fmt: skip
    names = ("memory.unused_bytes", "memory.kv_bytes", "memory.activation_bytes")
    bare, whole = (Worked(subject(model, gpu, engine, given_)) for _ in range(2))
    assert [whole.end(which).reason for which in (0, 1)]
    for name in names:
        metric = find_metric(name)
        for which in (0, 1):
            assert bare.figure(metric).end(which) == whole.figure(metric).end(which), name

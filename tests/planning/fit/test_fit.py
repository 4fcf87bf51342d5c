"""The search: rows are plans, laws of ranking, and why things fail."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import settings as limits
from hypothesis import strategies as st

from kvplan import load_gpu, load_model, plan
from kvplan.engines import get_engine
from kvplan.errors import InputError, KvplanError, UnknownNameError, UnsupportedError
from kvplan.planning.fit.ask import Ask
from kvplan.planning.fit.candidates import Layout, cache_formats, engines_for, lacks, layouts, weight_formats
from kvplan.planning.fit.cases import Case
from kvplan.planning.fit.result import Fit, Row
from kvplan.planning.fit.search import fit
from kvplan.planning.planner import plan_deployment
from kvplan.planning.speed.profile import Lengths
from kvplan.planning.workload_lengths import Distribution

SOME = ("h100-sxm", "l4", "l40s", "a100-sxm4-80gb", "rtx-4090", "b200", "mi300x", "apple-m4-max", "t4", "mi308x")


def ask(prompt: int = 1024, output: int = 256, **given: Any) -> Ask:
    lengths = Lengths(prompt, output, 0, given.pop("prompt_cv", 0.0), given.pop("output_cv", 0.0))
    both = (Distribution(n, 0, n, str(n)) for n in (prompt, output))
    return Ask(lengths, *both, given.pop("longest", prompt + output), **{"gpus": SOME, **given})


@cache
def found(model: str = "llama-3.1-8b", **given: Any) -> Fit:
    return fit(load_model(model), ask(**given))


def as_plan(model: str, row: Row, asked: Ask) -> Any:
    """`kvplan.plan` of one copy, from nothing but the row and the question."""
    given: dict[str, Any] = {
        "max_model_len": row.max_model_len, "prompt_tokens": asked.lengths.prompt,
        "output_tokens": asked.lengths.output, "tensor_parallel_size": row.tensor_parallel_size,
        "pipeline_parallel_size": row.pipeline_parallel_size, "data_parallel_size": row.data_parallel_size,
        "decode_context_parallel_size": row.decode_context_parallel_size,
        "enable_expert_parallel": row.enable_expert_parallel, "ttft": asked.ttft, "tpot": asked.tpot, "price": (),
        "prompt_cv": asked.lengths.prompt_cv or None, "output_cv": asked.lengths.output_cv or None,
    }  # fmt: skip
    words = row.flags.split()
    for flag, name in (("--weights", "weights"), ("--kv-cache-dtype", "kv_cache_dtype")):
        given[name] = words[words.index(flag) + 1] if flag in words else None
    if asked.request_rate is not None:
        given["request_rate"] = asked.request_rate / row.copies
    if asked.concurrency is not None:
        given["concurrency"] = -(-asked.concurrency // row.copies)
    return plan(model, gpu=row.gpu, engine=row.engine, **given)


@pytest.mark.parametrize(
    ("model", "given"),
    [
        ("llama-3.1-8b", {"request_rate": 10.0, "ttft": 0.5, "tpot": 0.03}),
        ("llama-3.1-8b", {"concurrency": 300, "tpot": 0.04, "prompt_cv": 1.0, "output_cv": 0.5, "longest": 8000}),
        ("llama-3.1-8b", {"concurrency": 40, "request_rate": 4.0}),
        ("llama-3.1-70b", {"request_rate": 3.0, "ttft": 1.0, "engines": ("vllm", "sglang", "tensorrt-llm")}),
        ("gpt-oss-20b", {"concurrency": 100, "tpot": 0.02}),
        ("qwen3-next-80b-a3b", {"request_rate": 5.0, "tpot": 0.05}),
        ("deepseek-v3", {"concurrency": 64, "tpot": 0.06, "gpus": ("h200-sxm", "mi300x")}),
    ],
)  # fmt: skip
def test_rows_are_what_plan_says_with_the_same_flags(model: str, given: dict[str, Any]) -> None:
    asked = ask(**given, every=True, top=12)
    answer = fit(load_model(model), asked)
    assert answer.rows
    for row in (*answer.rows, *answer.front):
        seen = as_plan(model, row, asked)
        serving, cost = seen.serving, seen.cost
        assert seen.holds
        assert (row.ttft_seconds, row.tpot_seconds, row.slots) == (
            serving.ttft_seconds, serving.tpot_seconds, serving.slots,
        )  # fmt: skip
        assert row.per_million_output_tokens == cost.per_million_output_tokens
        assert row.usd_per_hour == (None if cost.usd_per_hour is None else cost.usd_per_hour * row.copies)
        assert row.requests_per_second == serving.requests_per_second * row.copies
        assert row.kv_bytes == min(rank.kv_bytes for rank in seen.memory)
        assert row.gpus == len(seen.memory) * row.copies
        assert row.margin == min(m for m in row.margins if m is not None) >= -1e-6
        assert row.weights == seen.inputs["weights_format"]


def test_the_fewest_copies_are_taken() -> None:
    asked = ask(request_rate=40.0, ttft=0.5, tpot=0.03)
    several = [row for row in fit(load_model("llama-3.1-8b"), asked).rows if row.copies > 1]
    assert several
    for row in several:
        fewer = row._replace(copies=row.copies - 1)
        assert not as_plan("llama-3.1-8b", fewer, asked).holds


def test_rows_are_ranked_by_cost_and_the_unpriced_follow() -> None:
    rows = found(request_rate=10.0).rows
    assert [row.rank for row in rows] == list(range(1, len(rows) + 1))
    prices = [row.usd_per_hour for row in rows]
    known = [p for p in prices if p is not None]
    assert prices == [*sorted(known), *[None] * (len(prices) - len(known))]
    assert known
    rest = [(row.gpus, row.device_bytes) for row in rows if row.usd_per_hour is None]
    assert rest == sorted(rest)
    assert len({row.gpu for row in rows}) == len(rows)


def test_every_way_is_listed_where_it_is_asked_for() -> None:
    few, all_of_them = found(request_rate=10.0), found(request_rate=10.0, every=True, top=60)
    assert few.feasible == all_of_them.feasible
    assert len(all_of_them.rows) == 60
    costs = [row.usd_per_hour for row in all_of_them.rows if row.usd_per_hour is not None]
    assert costs == sorted(costs)
    assert all_of_them.rows[0].flags == few.rows[0].flags


def test_the_front_is_not_dominated() -> None:
    answer = found(request_rate=10.0)
    cost = [row.usd_per_hour for row in answer.front]
    seconds = [row.request_seconds for row in answer.front]
    assert len(cost) > 1
    assert cost == sorted(cost)
    assert seconds == sorted(seconds, reverse=True)
    for row in answer.rows:
        if row.usd_per_hour is not None:
            beaten = any(
                f.usd_per_hour <= row.usd_per_hour and f.request_seconds <= row.request_seconds * 1.025
                for f in answer.front
            )
            assert beaten


def test_a_format_of_weights_that_is_none_is_refused_before_anything_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvplan.planning.fit.search.Screen", lambda *_: pytest.fail("tried"))
    with pytest.raises(UnknownNameError, match="unknown weights format '10000'"):
        fit(load_model("qwen3-8b"), ask(weights=("auto", "10000")))


@limits(max_examples=6, deadline=None)
@given(
    st.sampled_from(["ttft", "tpot"]), st.floats(0.02, 1.0), st.floats(1.05, 4.0), st.integers(1, 200),
    st.integers(100, 4000),
)  # fmt: skip
@example(
    "ttft", 0.5559648759899647, 1.06, 92, 3061
)  # two requests a copy just miss the easy one: as few as one is next
def test_a_harder_target_adds_nothing(name: str, target: float, times: float, running: int, prompt: int) -> None:
    model, gpus = load_model("llama-3.1-8b"), ("h100-sxm", "l4", "rtx-4090")
    asked = ask(prompt, 128, concurrency=running, gpus=gpus, every=True, top=1)
    easy = fit(model, asked._replace(**{name: target * times}))
    hard = fit(model, asked._replace(**{name: target}))
    assert hard.feasible <= easy.feasible
    if hard.rows:
        assert hard.rows[0].usd_per_hour is None or hard.rows[0].usd_per_hour >= (easy.rows[0].usd_per_hour or 0.0)


@limits(max_examples=5, deadline=None)
@given(st.floats(0.01, 100), st.floats(0.5, 30))
def test_scaling_all_prices_keeps_the_order(factor: float, rate: float) -> None:
    model, prices = load_model("llama-3.1-8b"), {"h100-sxm": 2.0, "l4": 0.5, "rtx-4090": 0.4}
    asked = ask(request_rate=rate, gpus=tuple(prices), every=True, top=10)
    one = fit(model, asked._replace(prices=prices))
    other = fit(model, asked._replace(prices={name: usd * factor for name, usd in prices.items()}))
    assert [(r.gpu, r.gpus, r.weights, r.kv_cache) for r in one.rows] == [
        (r.gpu, r.gpus, r.weights, r.kv_cache) for r in other.rows
    ]
    for a, b in zip(one.rows, other.rows, strict=True):
        assert a.usd_per_hour is not None
        assert b.usd_per_hour == pytest.approx(a.usd_per_hour * factor)


@limits(max_examples=5, deadline=None)
@given(st.floats(0.5, 60), st.floats(1.01, 5), st.sampled_from(["request_rate", "concurrency"]))
def test_more_requests_never_take_fewer_gpus(load: float, times: float, name: str) -> None:
    model, gpus = load_model("llama-3.1-8b"), ("h100-sxm", "l4", "rtx-4090")
    counts = []
    for amount in (load, load * times):
        value: Any = amount if name == "request_rate" else max(1, round(amount * 10))
        asked = ask(
            tpot=0.04, gpus=gpus, settings={"tensor_parallel_size": 1, "pipeline_parallel_size": 1}, **{name: value}
        )
        asked = asked._replace(weights=("auto",), kv_formats=("auto",))
        counts.append({row.gpu: row.gpus for row in fit(model, asked).rows})
    assert counts[0].keys() >= counts[1].keys()
    for gpu, count in counts[1].items():
        assert count >= counts[0][gpu]


def test_reasons_name_the_nearest_miss() -> None:
    answer = found("llama-3.1-70b", concurrency=1, tpot=0.02, max_gpus=1)
    reasons = {failure.reason: failure for failure in answer.failures}
    missing = reasons["the weights do not load"]
    assert missing.nearest is not None
    assert missing.nearest.factor > 1
    assert {"l4", "t4"} <= set(missing.gpus)
    named = [gpu for failure in answer.failures for gpu in failure.gpus]
    carrying = {row.gpu for row in answer.rows}
    assert sorted([*named, *carrying]) == sorted({load_gpu(name).id for name in SOME})
    blind = [f for f in found(concurrency=1).failures if "mi308x" in f.gpus]
    assert "no figure" in blind[0].reason


def test_too_few_gpus_is_a_reason_of_its_own() -> None:
    answer = found(request_rate=200.0, tpot=0.03, max_gpus=4, gpus=("l4",))
    assert not answer.verdict.carries
    assert answer.failures[0].reason == "more GPUs than --max-gpus"
    assert "GPUs" in answer.verdict.reason


@pytest.mark.parametrize(("name", "word"), [("tpot", "--tpot"), ("ttft", "--ttft")])
def test_a_target_below_every_floor_names_the_best(name: str, word: str) -> None:
    answer = found(concurrency=1, **{name: 1e-5})
    assert not answer.verdict.carries
    assert answer.verdict.reason.startswith(word)
    assert any(gpu in answer.verdict.reason for gpu in SOME)


def test_targets_that_exclude_each_other_are_told_as_a_pair() -> None:
    single = found(concurrency=1, every=True, top=200).rows
    first, each = min(r.ttft_seconds for r in single), min(r.tpot_seconds or 1.0 for r in single)
    both = [r for r in single if r.ttft_seconds <= first * 1.01 and (r.tpot_seconds or 1) <= each * 1.01]
    assert not both
    answer = found(concurrency=1, ttft=first * 1.005, tpot=each * 1.005)
    assert not answer.verdict.carries
    assert "--ttft and --tpot contradict" in answer.verdict.reason
    assert "Little's law" in found(concurrency=1, request_rate=1000.0).verdict.reason


@pytest.mark.parametrize(
    ("given", "where"),
    [
        ({"concurrency": 500, "request_rate": 1.0, "ttft": 0.5, "tpot": 0.02}, "--concurrency"),
        ({"prices": 2.0}, "--price"), ({"prompt": 200_000}, "--prompt-tokens"), ({"prompt": 0}, "--prompt-tokens"),
    ],
)  # fmt: skip
def test_questions_without_an_answer_are_refused(given: dict[str, Any], where: str) -> None:
    with pytest.raises(InputError) as caught:
        found(**given)
    assert caught.value.where == where
    assert caught.value.hint


def test_what_no_memory_makes_legal_is_refused() -> None:
    with pytest.raises(UnsupportedError):
        fit(load_model("llama-3.1-8b"), ask(settings={"tensor_parallel_size": 3}))
    with pytest.raises(UnsupportedError, match="no backend"):
        fit(load_model("llama-3.1-8b"), ask(engines=("mlx",), gpus=("h100-sxm",)))


def test_layouts_divide_the_model_and_share_only_what_can_be_shared() -> None:
    from kvplan.engines import get_engine

    vllm, dense, experts = get_engine("vllm"), load_model("llama-3.1-70b"), load_model("deepseek-v3")
    plain = layouts(dense, vllm, {})
    assert all(layout.dp == 1 and not layout.expert_parallel and layout.dcp == 1 for layout in plain)
    assert {layout.tp for layout in plain} == {1, 2, 4, 8}
    shared = layouts(experts, vllm, {})
    assert any(layout.expert_parallel and layout.dp > 1 for layout in shared)
    assert any(layout.dcp > 1 for layout in shared)
    assert {layout.tp for layout in layouts(dense, vllm, {"tensor_parallel_size": 4})} == {4}
    assert {layout.world for layout in layouts(dense, get_engine("llama.cpp"), {"pipeline_parallel_size": 1})} == {1}


def test_formats_are_tried_where_a_device_has_units_or_an_engine_unpacks_them() -> None:
    def tried(gpu: str, name: str, engine: str = "vllm", **given: bool) -> bool:
        return not lacks(engine, load_gpu(gpu), name, **given)

    assert tried("h100-sxm", "fp8")
    assert tried("h100-sxm", "fp8", cache=True)
    assert tried("a100-sxm4-80gb", "fp8")
    assert tried("a100-sxm4-80gb", "fp8", cache=True)
    assert not tried("a100-sxm4-80gb", "fp8", cache=True, latent=True)  # Triton's kernels need 8.9
    assert tried("l4", "fp8", cache=True, latent=True)
    assert tried("t4", "fp8")
    assert not tried("t4", "fp8", cache=True)
    assert not tried("v100-sxm2-32gb", "fp8")
    assert not tried("mi250x", "fp8")
    assert not tried("a100-sxm4-80gb", "fp8", "tensorrt-llm")
    assert tried("a100-sxm4-80gb", "awq")
    assert not tried("v100-sxm2-32gb", "awq")
    assert tried("v100-sxm2-32gb", "auto")
    assert engines_for(load_gpu("apple-m4-max"), ()) == ["mlx"]
    assert engines_for(load_gpu("mi300x"), ("tensorrt-llm", "vllm")) == ["vllm"]


def test_a_gpu_without_flops_is_a_gap_and_no_zero() -> None:
    assert all(row.gpu != "mi308x" for row in found(concurrency=1).rows)
    gpu = replace(load_gpu("h100-sxm"), price=None)
    assert gpu.price is None


def test_a_load_beyond_reason_names_the_limit_of_copies_and_queues_keep_a_reserve() -> None:
    from kvplan import load_model
    from kvplan.planning.fit.ask import Ask
    from kvplan.planning.fit.search import fit
    from kvplan.planning.speed.profile import Lengths
    from kvplan.planning.workload_lengths import read_lengths

    sizes = [read_lengths(text, "--prompt-tokens") for text in ("1024", "256")]

    def found(rate: float):  # type: ignore[no-untyped-def]
        return fit(load_model("llama-3.1-8b"), Ask(Lengths(1024, 256), *sizes, 1280, request_rate=rate, gpus=("l4",)))

    assert "1,048,576 copies" in found(1e9).verdict.reason
    for rate in (2.0, 50.0, 333.0):
        for row in found(rate).rows:
            assert rate <= 0.951 * row.max_request_rate


@pytest.mark.parametrize(
    ("name", "given"),
    [
        ("llama-3.1-8b", {"request_rate": 6.0, "ttft": 0.4, "tpot": 0.03}),
        ("llama-3.1-8b", {"concurrency": 90, "tpot": 0.04, "longest": 60_000}),
        ("granite-4.0-h-tiny", {"request_rate": 6.0, "ttft": 1.0}),
    ],
)
def test_the_screen_finds_what_trying_every_way_finds(name: str, given: dict[str, Any]) -> None:
    names = ("l4", "h100-sxm", "tpu-v6e")
    asked = ask(**given, gpus=names, every=True, top=10_000, max_gpus=2)
    model, engine = load_model(name), get_engine("vllm")
    kept = {"max_model_len": asked.longest, "prompt_tokens": 1024, "output_tokens": 256}
    kept |= {n: getattr(asked, n) for n in ("ttft", "tpot") if getattr(asked, n) is not None}
    tried: dict[tuple[Any, ...], int] = {}
    for gpu in map(load_gpu, names):
        for weights in weight_formats(model, engine, ()):
            for stored in cache_formats(engine, ()):
                if lacks("vllm", gpu, weights) or lacks("vllm", gpu, stored, cache=True):
                    continue
                for layout in layouts(model, engine, {}):
                    case = Case("vllm", weights, stored, layout)
                    for copies in range(1, 2 // layout.world + 1):
                        load = {"request_rate": asked.request_rate and asked.request_rate / copies}
                        if asked.request_rate is None:
                            load = {"concurrency": -(-(asked.concurrency or 1) // copies)}
                        try:
                            seen = plan_deployment(model, gpu, "vllm", {**kept, **case.settings(), **load})
                        except KvplanError:
                            break
                        if seen.holds:
                            tried[(gpu.id, weights, stored, layout)] = copies
                            break
    found = fit(model, asked)
    assert found.feasible == len(found.rows)
    ways = {
        (row.gpu, flag(row, "--weights"), flag(row, "--kv-cache-dtype"), Layout(
            row.tensor_parallel_size, row.pipeline_parallel_size, row.data_parallel_size,
            row.decode_context_parallel_size, row.enable_expert_parallel,
        )): row.copies
        for row in found.rows
    }  # fmt: skip
    assert tried
    assert ways == tried


def flag(row: Row, name: str) -> str:
    """What a row's flags say of a format."""
    words = row.flags.split()
    return words[words.index(name) + 1] if name in words else "auto"

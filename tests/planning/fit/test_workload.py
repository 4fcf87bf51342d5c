"""What a plan says of traffic, targets and cost."""

from __future__ import annotations

import json
from typing import Any

import pytest

from kvplan import load_gpu, load_model, plan
from kvplan.errors import InputError, UnknownNameError
from kvplan.planning.fit.ask import Ask
from kvplan.planning.fit.search import fit
from kvplan.planning.plan import Plan
from kvplan.planning.speed.profile import Lengths
from kvplan.planning.workload_lengths import Distribution

MODEL, GPU = "llama-3.1-8b", "h100-sxm"


def planned(gpu: str | None = GPU, **given: Any) -> Plan:
    return plan(MODEL, gpu=gpu, max_model_len=4096, **given)


def test_nothing_asked_adds_no_key() -> None:
    plain = planned().to_dict()
    assert "cost" not in plain
    assert "serving" not in plain
    assert {"cost", "serving"} < set(planned(tpot=0.1).to_dict())


def test_one_request_alone_is_what_the_speed_section_says() -> None:
    found = planned(price=2.0)
    assert found.serving is not None
    assert found.decode is not None
    assert found.prefill is not None
    assert found.serving.tpot_seconds == pytest.approx(found.decode.seconds_per_step, rel=1e-9)
    assert found.serving.ttft_seconds == pytest.approx(found.prefill.seconds, rel=1e-6)
    assert found.serving.request_rate is None


def test_cost_is_the_prices_seconds_over_the_tokens() -> None:
    found = planned(price=3.6, prompt_tokens=1000, output_tokens=101)
    assert found.cost is not None
    assert found.prefill is not None
    assert found.decode is not None
    second = 3.6 / 3600
    assert found.cost.usd_per_hour == 3.6
    read = second * found.prefill.seconds / 1000 * 1e6
    written = second * found.decode.seconds_per_step * 100 / 101 * 1e6
    assert found.cost.per_million_input_tokens == pytest.approx(read, rel=1e-5)
    assert found.cost.per_million_output_tokens == pytest.approx(written, rel=1e-5)


def test_an_output_of_one_token_has_no_price_of_its_own() -> None:
    """It comes out of the prompt, which pays for the whole request."""
    found = planned(price=3.6, prompt_tokens=1000, output_tokens=1)
    cost = found.cost
    assert cost is not None
    assert cost.per_million_output_tokens is None
    assert cost.low_per_million_output_tokens is cost.high_per_million_output_tokens is None
    assert cost.per_request is not None
    assert cost.per_million_input_tokens == pytest.approx(cost.per_request / 1000 * 1e6)
    two = planned(price=3.6, prompt_tokens=1000, output_tokens=2).cost
    assert two is not None
    assert two.per_million_output_tokens


@pytest.mark.parametrize("output", [1, 2, 256])
def test_no_load_runs_more_requests_than_there_are_slots(output: int) -> None:
    found = planned(output_tokens=output, request_rate=1e4).serving
    assert found is not None
    assert found.slots is not None
    assert found.in_flight == found.slots
    assert found.ttft_seconds is None
    half = planned(output_tokens=output, request_rate=5.0).serving
    assert half is not None
    assert half.in_flight is not None
    assert half.request_seconds is not None
    assert half.in_flight == pytest.approx(5.0 * half.request_seconds, rel=1e-6)


@pytest.mark.parametrize("output", [1, 2, 64])
def test_a_loop_goes_no_faster_than_full_steps_of_prompts(output: int) -> None:
    before = 0.0
    for running in (1, 4, 16, 64, 256):
        found = planned(output_tokens=output, concurrency=running, ttft=1e3).serving
        assert found is not None
        assert found.requests_per_second is not None
        assert found.prefill_utilization is not None
        assert found.prefill_utilization <= 1
        assert found.requests_per_second >= before * (1 - 1e-3)
        before = found.requests_per_second


@pytest.mark.parametrize("given", [{"concurrency": 64}, {"request_rate": 5.0}, {"request_rate": 1e5}])
def test_tokens_pay_for_the_whole_deployment(given: dict[str, Any]) -> None:
    found = planned(price=2.5, tensor_parallel_size=2, gpus=3, **given)
    cost, serving = found.cost, found.serving
    assert cost is not None
    assert serving is not None
    assert cost.usd_per_hour == 7.5  # those that idle are paid for too
    assert cost.per_million_input_tokens is not None
    assert cost.per_million_output_tokens is not None
    assert serving.requests_per_second is not None
    paid = cost.per_million_input_tokens * 1024 + cost.per_million_output_tokens * 256
    assert paid / 1e6 * serving.requests_per_second * 3600 == pytest.approx(7.5)


def test_what_a_token_costs_has_the_bounds_of_the_price_and_where_speed_makes_the_load_of_the_speed() -> None:
    given = planned(price=(), request_rate=1.0)
    assert given.holds
    cost = given.cost
    assert cost.low_per_million_output_tokens / cost.per_million_output_tokens == pytest.approx(
        cost.low_usd_per_gpu_hour / cost.usd_per_gpu_hour
    )
    looped = planned(price=2.0, concurrency=8)
    cost, decode, prefill = looped.cost, looped.decode, looped.prefill
    slow = decode.low / decode.tokens_per_second, prefill.seconds / prefill.high_seconds
    assert min(slow) < 1
    low, high = cost.low_per_million_output_tokens, cost.high_per_million_output_tokens
    assert low < cost.per_million_output_tokens < high
    assert cost.per_million_output_tokens / max(slow) < high < cost.per_million_output_tokens / min(slow)
    assert high / cost.per_million_output_tokens == pytest.approx(cost.high_per_request / cost.per_request)


def test_prices_come_from_the_catalog_with_their_date_or_by_hand() -> None:
    known = load_gpu(GPU).price
    assert known is not None
    cost = planned(price=()).cost
    assert cost is not None
    assert cost.price_date == known.date
    assert cost.usd_per_gpu_hour == (known.low_usd_per_hour + known.high_usd_per_hour) / 2
    by_hand = planned(price={"H100": 1.0, "l40s": 9.0}).cost
    assert by_hand is not None
    assert (by_hand.usd_per_hour, by_hand.price_source, by_hand.price_date) == (1.0, "--price", None)


def test_a_missing_price_is_a_gap() -> None:
    cost = planned("rtx-4090", request_rate=1.0).cost
    assert cost is not None
    assert cost.usd_per_hour is None
    assert cost.per_million_output_tokens is None
    assert cost.requests_per_second == 1.0


def test_a_rate_makes_its_own_concurrency() -> None:
    found = planned(request_rate=10.0)
    assert found.serving is not None
    assert found.inputs["concurrency"] == -(-found.serving.in_flight // 1)  # type: ignore[operator]
    assert found.inputs["defaults"]["concurrency"].startswith("Little's law")
    assert found.decode is not None
    assert found.decode.batch == found.inputs["concurrency"]
    assert planned(request_rate=10.0, concurrency=200).inputs["concurrency"] == 200


def test_targets_that_hold_and_targets_that_do_not() -> None:
    held = planned(request_rate=5.0, ttft=1.0, tpot=0.05)
    assert held.serving is not None
    assert held.serving.targets_hold is True
    assert held.holds
    assert "hold" in held.verdict.reason
    missed = planned(concurrency=128, tpot=0.010)
    assert missed.serving is not None
    assert missed.serving.targets_hold is False
    assert missed.verdict.fits is True
    assert not missed.holds
    assert "--tpot" in missed.verdict.reason


@pytest.mark.parametrize(
    "given",
    [
        {"concurrency": 128, "tpot": 0.010}, {"request_rate": 60.0, "ttft": 0.3, "tpot": 0.02},
        {"request_rate": 30.0, "ttft": 0.05}, {"request_rate": 5.0, "concurrency": 4, "prompt_tokens": 512},
    ],
)  # fmt: skip
def test_each_hint_holds_when_it_is_followed(given: dict[str, Any]) -> None:
    found = planned(**given)
    assert found.serving is not None
    assert found.serving.targets_hold is False
    assert found.verdict.hints
    for hint in found.verdict.hints:
        name = hint.flag.removeprefix("--").replace("-", "_")
        value: Any = hint.value
        if name == "request_rate":
            value = float(value)
        elif value.isdigit():
            value = int(value)
        assert planned(**given | {name: value}).holds, hint


def test_more_than_is_carried_waits_without_end() -> None:
    found = planned(request_rate=1000.0)
    serving = found.serving
    assert serving is not None
    assert serving.ttft_seconds is None
    assert serving.requests_per_second == serving.saturation_request_rate
    assert serving.replicas_needed == -(-1000 // serving.max_request_rate)  # type: ignore[operator]
    assert not found.holds
    enough = planned(request_rate=1000.0, data_parallel_size=serving.replicas_needed)
    assert enough.serving is not None
    assert enough.serving.targets_hold is True


def test_what_does_not_start_serves_nothing() -> None:
    found = plan(MODEL, gpu="rtx-4090", ttft=1.0)
    assert found.verdict.fits is False
    assert found.serving is not None
    assert found.serving.ttft_seconds is None
    assert found.serving.targets_hold is False
    json.dumps(found.to_dict(), allow_nan=False)


@pytest.mark.parametrize(
    ("given", "where"),
    [
        ({"gpu": None, "ttft": 1.0}, "--ttft"), ({"gpu": None, "price": 2.0}, "--price"),
        ({"gpu": "p40", "engine": "llama.cpp", "tpot": 0.1}, "--tpot"), ({"ttft": -1.0}, "--ttft"),
        ({"tpot": True}, "--tpot"),
        ({"request_rate": float("nan")}, "--request-rate"), ({"prompt_cv": -0.1}, "--prompt-cv"),
        ({"price": -2.0}, "--price"), ({"price": "x"}, "--price"), ({"price": {"h100": 1, "h100-sxm": 2}}, "--price"),
        ({"concurrency": 500, "request_rate": 1.0, "ttft": 0.5, "tpot": 0.02}, "--concurrency"),
    ],
)  # fmt: skip
def test_what_cannot_be_answered_names_its_flag(given: dict[str, Any], where: str) -> None:
    with pytest.raises(InputError) as caught:
        planned(**{"gpu": GPU, **given})
    assert caught.value.where == where
    assert caught.value.hint


def test_a_price_of_nothing_known_is_refused() -> None:
    with pytest.raises(UnknownNameError):
        planned(price={"no-such-gpu": 1.0})


@pytest.mark.parametrize("rate", [0.5, 1.0, 1.9, 50.0])
def test_the_most_a_limit_of_requests_under_way_allows_does_not_depend_on_the_rate(rate: float) -> None:
    given: dict[str, Any] = {"tensor_parallel_size": 4, "max_model_len": 32768, "concurrency": 8}
    serving = plan("llama-3.1-70b", gpu=GPU, **given, request_rate=rate).serving
    assert serving is not None
    most = serving.max_request_rate
    assert most is not None
    assert serving.replicas_needed == -(-rate // most)
    there = plan("llama-3.1-70b", gpu=GPU, **given, request_rate=most).serving
    assert there is not None
    assert there.requests_per_second is not None
    assert there.request_seconds is not None
    assert there.requests_per_second * there.request_seconds == pytest.approx(8, rel=1e-4)


def test_too_many_under_way_is_told_with_what_helps() -> None:
    given: dict[str, Any] = {"tensor_parallel_size": 4, "max_model_len": 32768, "request_rate": 1.9}
    found = plan("llama-3.1-70b", gpu=GPU, **given, concurrency=8)
    assert "not even a single request" not in found.verdict.reason
    hints = {hint.flag: hint.value for hint in found.verdict.hints}
    assert plan("llama-3.1-70b", gpu=GPU, **given, concurrency=int(hints["--concurrency"])).holds
    assert plan(
        "llama-3.1-70b", gpu=GPU, **given | {"request_rate": float(hints["--request-rate"])}, concurrency=8
    ).holds
    wide = plan(MODEL, gpu=GPU, weights="fp8", max_model_len=1280, concurrency=100, request_rate=40.0)
    assert "--data-parallel-size" in {hint.flag for hint in wide.verdict.hints}


MTP = '{"method": "mtp", "num_speculative_tokens": 2}'


def drafted(**given: Any) -> Plan:
    return plan(
        "deepseek-v3", gpu="h200-sxm", tensor_parallel_size=8, max_model_len=8192, speculative_config=MTP, price=2.0,
        **given,
    )  # fmt: skip


@pytest.mark.parametrize("acceptance", [0.2, 0.7])
def test_kept_drafts_bring_more_tokens_a_step_and_cost_the_time_of_a_step_with_drafts(acceptance: float) -> None:
    without, found = drafted(), drafted(acceptance_rate=acceptance)
    tokens = 1 + acceptance + acceptance**2
    assert without.serving is not None
    assert found.serving is not None
    assert (without.serving.tokens_per_step, found.serving.tokens_per_step) == (1.0, pytest.approx(tokens))
    words = next(w for w in found.warnings if "drafts a step takes" in w)
    times = float(words.split("a step takes ")[1].split()[0])
    ratio = found.serving.tpot_seconds / without.serving.tpot_seconds  # type: ignore[operator]
    assert ratio == pytest.approx(times / tokens, rel=0.01)
    assert (ratio < 1) == (tokens > times)
    cost, before = (p.cost.per_million_output_tokens for p in (found, without))  # type: ignore[union-attr]
    assert cost / before == pytest.approx(ratio, rel=0.03)  # type: ignore[operator]
    assert found.decode == without.decode


def test_drafts_that_are_kept_are_counted_by_a_search_too() -> None:
    each = (Distribution(n, 0, n, str(n)) for n in (1024, 256))
    ask = Ask(
        Lengths(1024, 256), *each, 8192, concurrency=16, tpot=0.02, gpus=("h200-sxm",),
        settings={"speculative_config": MTP, "acceptance_rate": 0.7, "tensor_parallel_size": 8},
        weights=("auto",), kv_formats=("auto",),
    )  # fmt: skip
    row = fit(load_model("deepseek-v3"), ask).rows[0]
    alone = drafted(acceptance_rate=0.7, concurrency=16, tpot=0.02)
    assert alone.serving is not None
    if row.data_parallel_size == row.pipeline_parallel_size == row.decode_context_parallel_size == row.copies == 1:
        assert row.tpot_seconds == alone.serving.tpot_seconds
    assert "--acceptance-rate 0.7" in row.flags
    with_apple = fit(load_model("llama-3.1-8b"), ask._replace(
        gpus=("h200-sxm", "apple-m4-max"), longest=4096, tpot=None, concurrency=1,
        settings={"speculative_config": '{"method": "ngram", "num_speculative_tokens": 3}', "acceptance_rate": 0.7},
    ))  # fmt: skip
    assert {r.gpu: "--acceptance-rate" in r.flags for r in with_apple.rows} == {"h200-sxm": True, "apple-m4-max": False}
    with pytest.raises(InputError, match="there is none"):
        fit(load_model("llama-3.1-8b"), ask._replace(settings={"acceptance_rate": 0.7}, longest=4096))


def test_an_acceptance_without_drafts_is_refused() -> None:
    with pytest.raises(InputError, match="there is none") as raised:
        planned(acceptance_rate=0.5)
    assert raised.value.where == "--acceptance-rate"
    with pytest.raises(InputError, match="out of range"):
        drafted(acceptance_rate=1.0)

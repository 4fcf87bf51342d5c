"""Serving and cost put together by hand from the steady states of one replica, over many kinds of traffic."""

from __future__ import annotations

from math import ceil
from typing import Any

import pytest

from kvplan import load_gpu, load_model
from kvplan.engines import get_engine
from kvplan.errors import KvplanError
from kvplan.planning import planner
from kvplan.planning.evaluate import evaluate, settled
from kvplan.planning.plan import Plan
from kvplan.planning.planner import plan_deployment
from kvplan.planning.speed import load
from kvplan.planning.speed.batching import prefill_share
from kvplan.planning.speed.figures import Setup, setup
from kvplan.planning.speed.load import Limits
from kvplan.planning.speed.profile import Lengths, profile

SIZES = {"max_model_len": 4096, "prompt_tokens": 1000, "output_tokens": 200}
NGRAM = '{"method": "ngram", "num_speculative_tokens": 3}'
TRAFFIC: list[tuple[str, str, str, dict[str, Any]]] = [
    ("llama-3.1-8b", "h100-sxm", "vllm", {"request_rate": 5.0}),
    ("llama-3.1-8b", "h100-sxm", "vllm", {"request_rate": 5.0, "ttft": 0.05, "tpot": 0.012}),
    ("llama-3.1-8b", "h100-sxm", "vllm", {"request_rate": 5.0, "ttft": 0.02, "tpot": 0.005}),
    ("llama-3.1-8b", "h100-sxm", "vllm", {"request_rate": 500.0, "ttft": 1.0}),
    ("llama-3.1-8b", "h100-sxm", "vllm", {"request_rate": 5.0, "concurrency": 20}),
    ("llama-3.1-8b", "h100-sxm", "vllm", {"request_rate": 5.0, "concurrency": 5, "tpot": 0.02}),
    ("llama-3.1-8b", "h100-sxm", "vllm", {"request_rate": 9.0, "data_parallel_size": 2, "price": 3.0}),
    ("llama-3.1-8b", "h100-sxm", "vllm", {"concurrency": 9, "data_parallel_size": 2, "price": {"h100-sxm": 2.5}}),
    ("llama-3.1-8b", "h100-sxm", "vllm", {"concurrency": 9, "data_parallel_size": 4, "tpot": 0.01, "ttft": 0.1}),
    ("llama-3.1-8b", "h100-sxm", "vllm", {"concurrency": 40, "max_num_seqs": 16, "ttft": 0.5}),
    ("llama-3.1-8b", "h100-sxm", "vllm", {"request_rate": 4.0, "max_num_seqs": 4, "prompt_cv": 1.0}),
    ("llama-3.1-8b", "h100-sxm", "vllm", {"request_rate": 4.0, "prompt_cv": 0.7, "output_cv": 1.3, "tpot": 0.02}),
    ("llama-3.1-8b", "h100-sxm", "vllm", {"request_rate": 4.0, "output_tokens": 1, "tpot": 0.001, "ttft": 1.0}),
    ("llama-3.1-8b", "h100-sxm", "vllm", {"concurrency": 4, "output_tokens": 1, "tpot": 0.001, "price": 1.0}),
    ("llama-3.1-8b", "h100-sxm", "vllm", {"request_rate": 2.0, "shared_prefix_tokens": 800}),
    ("llama-3.1-8b", "h100-sxm", "vllm", {"concurrency": 30, "shared_prefix_tokens": 800, "price": 2.0}),
    ("llama-3.1-8b", "h100-sxm", "vllm", {"request_rate": 2.0, "speculative_config": NGRAM, "acceptance_rate": 0.6}),
    ("llama-3.1-8b", "h100-sxm", "vllm", {"concurrency": 8, "speculative_config": NGRAM, "acceptance_rate": 0.3,
                                          "tpot": 0.02}),
    ("llama-3.1-8b", "mi300x", "sglang", {"request_rate": 6.0, "tensor_parallel_size": 2, "ttft": 0.3}),
    ("llama-3.1-70b", "l40s", "vllm", {"request_rate": 1.0, "tensor_parallel_size": 4, "pipeline_parallel_size": 2}),
    ("llama-3.1-70b", "l40s", "vllm", {"concurrency": 10, "tensor_parallel_size": 4, "pipeline_parallel_size": 2,
                                       "ttft": 4.0}),
    ("gpt-oss-20b", "b200", "vllm", {"request_rate": 10.0, "data_parallel_size": 2, "enable_expert_parallel": True}),
    ("qwen3-8b", "rtx-4090", "llama.cpp", {"ctx_size": 16384, "parallel": 4, "concurrency": 4, "ttft": 3.0}),
    ("granite-4.0-h-tiny", "l4", "vllm", {"request_rate": 1.0, "tpot": 0.05}),
    ("llama-3.1-8b", "l4", "vllm", {"request_rate": 1.0, "ttft": 0.3, "gpu_memory_utilization": 0.5}),
    ("llama-3.1-70b", "h100-sxm", "vllm", {"request_rate": 1.0, "ttft": 0.3, "concurrency": 3, "tpot": 9.0}),
]  # fmt: skip
NAMES = [f"{n}-{model}-{gpu}" for n, (model, gpu, *_) in enumerate(TRAFFIC)]


@pytest.fixture(autouse=True)
def _without_advice(monkeypatch: pytest.MonkeyPatch) -> None:
    """Advice changes no figure and takes most of the time."""
    monkeypatch.setattr(planner, "hints", lambda *_: ())
    monkeypatch.setattr("kvplan.planning.workload_advice.target_hints", lambda *_: ())


class ByHand:
    """The steady state of a deployment's replica, and what it is asked for."""

    def __init__(self, name: str, gpu: str, engine: str, given: dict[str, Any]) -> None:
        given = {**SIZES, **given}
        if engine == "llama.cpp":
            del given["max_model_len"]
        own, device = get_engine(engine), load_gpu(gpu)
        self.given, self.rate, self.limit = given, given.get("request_rate"), given.get("concurrency")
        beside = ("request_rate", "ttft", "tpot", "price")
        plain = {k: v for k, v in given.items() if k not in beside}
        model, settings, _ = settled(load_model(name), device, own, plain)
        outcome = evaluate(model, device, own, settings)
        self.dp, self.gpus, self.settings = settings.data_parallel_size, settings.gpus, settings
        self.price = device.price
        self.starts = outcome.pool is not None and outcome.binding not in ("weights", "activations")
        if not self.starts:
            return
        prefix = own.shared_prefix_tokens(model, settings) if given.get("shared_prefix_tokens") else 0
        drafts, accepted = (3, given["acceptance_rate"]) if "acceptance_rate" in given else (0, 0.0)
        self.lengths = Lengths(
            given["prompt_tokens"], given["output_tokens"], prefix, given.get("prompt_cv", 0.0),
            given.get("output_cv", 0.0), drafts, sum(accepted**n for n in range(drafts + 1)),
        )  # fmt: skip
        found = setup(model, device, own, outcome)
        assert isinstance(found, Setup)
        self.rates, self.made = found.rates, profile(found, self.lengths)
        assert outcome.kv_bytes is not None
        self.slots = self._slots(own, outcome)
        if self.rate is not None:
            self.state = load.at_rate(self.made, self.rate / self.dp, self.slots)
        else:
            self.state = load.in_loop(self.made, ceil(settings.concurrency / self.dp), self.slots)
        targets = Limits(given.get("ttft"), given.get("tpot"), flying=self._flying() / self.dp or None)
        self.free = load.carried(self.made, self.slots).requests_per_second * self.dp
        self.most = load.carried(self.made, self.slots, targets).requests_per_second * self.dp

    def _flying(self) -> float:
        return self.limit if self.rate is not None and self.limit is not None else 0.0

    def _slots(self, own: Any, outcome: Any) -> int:
        """One request more than these does not hold, or is more than the engine runs."""
        from dataclasses import replace

        count = 0
        limit = outcome.settings.max_num_seqs or outcome.settings.extra.get("parallel") or 1 << 20
        low, high = 0, limit + 1
        while high - low > 1:
            middle = (low + high) // 2
            asked = replace(outcome.settings, concurrency=middle * self.dp)
            low, high = (middle, high) if own.holds(outcome.stages, asked, outcome.kv_bytes) else (low, middle)
        count = low
        return count

    @property
    def carried(self) -> bool:
        state = self.state
        if self.rate is None:
            return True
        enough = state.requests_per_second * self.dp >= self.rate * (1 - 1e-9)
        return bool(state.prefill_utilization < 1 and state.in_flight < self.slots and enough)


@pytest.mark.parametrize(("name", "gpu", "engine", "given"), TRAFFIC, ids=NAMES)
def test_every_figure_of_serving(name: str, gpu: str, engine: str, given: dict[str, Any]) -> None:
    hand = ByHand(name, gpu, engine, given)
    typed = {k: v for k, v in hand.given.items() if k != "price"} | {"price": _price(given.get("price"))}
    made = plan_deployment(load_model(name), load_gpu(gpu), engine, typed)
    serving = made.serving
    assert serving is not None
    assert serving.request_rate == hand.rate
    if not hand.starts:
        known = ("request_rate", "targets", "targets_hold", "queueing")
        assert all(value is None for field, value in serving._asdict().items() if field not in known)
        assert serving.targets_hold is (False if serving.targets else None)
        assert not any(target.holds or target.predicted for target in serving.targets)
        assert made.cost is not None
        assert made.cost.per_request is None
        return
    state, lengths = hand.state, hand.lengths
    rate = hand.rate
    if rate is None:
        running = ceil(hand.settings.concurrency / hand.dp)
        rate = state.requests_per_second * hand.settings.concurrency / running
    elif not hand.carried:
        rate = None
    served = hand.free if rate is None else rate
    assert serving.slots == hand.slots
    assert serving.requests_per_second == pytest.approx(served)
    assert serving.output_tokens_per_second == pytest.approx(served * lengths.output)
    assert serving.saturation_request_rate == pytest.approx(hand.free)
    assert serving.max_request_rate == pytest.approx(hand.most)
    assert serving.decode_batch == pytest.approx(state.decoding)
    assert serving.tokens_per_step == pytest.approx(lengths.tokens_per_step)
    assert serving.prefill_utilization == pytest.approx(state.prefill_utilization)
    assert serving.prefill_seconds == pytest.approx(state.prefill_seconds)
    flying = state.in_flight / state.requests_per_second * served
    assert serving.in_flight == pytest.approx(min(flying, hand.slots * hand.dp))
    ttft = state.queue_seconds + state.prefill_seconds + state.slot_seconds
    tpot = state.seconds_per_step / lengths.tokens_per_step if lengths.output > 1 else None
    seconds = ttft + (lengths.output - 1) * (tpot or 0.0)
    for field, value in (
        ("ttft_seconds", ttft), ("tpot_seconds", tpot), ("request_seconds", seconds),
        ("slot_seconds", state.slot_seconds), ("queue_seconds", state.queue_seconds),
    ):  # fmt: skip
        expected = None if rate is None or value is None else pytest.approx(float(value), abs=1e-12)
        assert getattr(serving, field) == expected, field
    needed = None if hand.rate is None or not hand.most else max(1, ceil(hand.rate / hand.most - 1e-9))
    assert serving.replicas_needed == needed
    check_targets(hand, made, ttft, tpot, None if rate is None else rate * seconds)
    check_cost(hand, made, float(served), given)


def _price(given: Any) -> Any:
    return () if given is None else given


def check_targets(hand: ByHand, made: Plan, ttft: float, tpot: float | None, flying: float | None) -> None:
    expected: dict[str, tuple[float, float | None, bool]] = {}
    waits = hand.carried
    if hand.rate is not None:
        expected["request_rate"] = (hand.rate, hand.most, hand.rate <= hand.most * (1 + 1e-9))
        if hand.limit is not None and flying is not None:
            expected["concurrency"] = (hand.limit, flying, flying <= hand.limit * (1 + 1e-9))
    for field, value in (("ttft", ttft), ("tpot", tpot)):
        if field in hand.given:
            reached = value if waits else None
            nothing_to_wait_for = waits and value is None
            target = hand.given[field]
            holds = nothing_to_wait_for or (reached is not None and reached <= target * (1 + 1e-9))
            expected[field] = (target, reached, holds)
    assert made.serving is not None
    found = {target.name: target for target in made.serving.targets}
    assert list(found) == list(expected)
    for field, (target, predicted, holds) in expected.items():
        assert found[field].target == target
        assert found[field].predicted == (None if predicted is None else pytest.approx(predicted))
        assert found[field].holds is bool(holds)
        assert found[field].flag == "--" + field.replace("_", "-")
    every = all(holds for *_, holds in expected.values())
    assert made.serving.targets_hold is (bool(every) if expected else None)
    assert made.holds is (made.verdict.fits and bool(every))
    if made.verdict.fits and expected:
        assert ("the memory fits; " in made.verdict.reason) is not every
        assert made.verdict.reason.endswith(" holds" if len(expected) == 1 else " hold") is every


def check_cost(hand: ByHand, made: Plan, served: float, given: dict[str, Any]) -> None:
    """A request pays for the seconds in between two, its prompt for its share of them."""
    cost, price = made.cost, given.get("price")
    assert cost is not None
    if isinstance(price, dict):
        (price,) = price.values()
    low, high = price, price
    if price is None and hand.price is not None:
        low, high = hand.price.low_usd_per_hour, hand.price.high_usd_per_hour
        price = (low + high) / 2
    if price is None:
        assert cost.usd_per_hour is None
        assert cost.per_million_output_tokens is None
        return
    assert low is not None
    assert high is not None
    share, prompt, output = float(prefill_share(hand.made, hand.state)), hand.lengths.prompt, hand.lengths.output
    request = price * hand.gpus / 3600 / served
    assert (cost.usd_per_gpu_hour, cost.usd_per_hour) == pytest.approx((price, price * hand.gpus))
    assert (cost.requests_per_second, cost.per_request) == pytest.approx((served, request))
    assert cost.per_million_input_tokens == pytest.approx(1e6 * request * share / prompt)
    slow = fast = 1.0
    if hand.rate is None or not hand.carried:
        of = hand.rates
        slow = 1 / (share / of.prefill_low + (1 - share) / of.low)
        fast = 1 / (share / of.prefill_high + (1 - share) / of.high)
    assert cost.low_per_request == pytest.approx(request * low / price / fast)
    assert cost.high_per_request == pytest.approx(request * high / price / slow)
    if output < 2:
        assert cost.per_million_output_tokens is None
        return
    written = 1e6 * request * (1 - share) / output
    assert cost.per_million_output_tokens == pytest.approx(written)
    assert cost.low_per_million_output_tokens == pytest.approx(written * low / price / fast)
    assert cost.high_per_million_output_tokens == pytest.approx(written * high / price / slow)


@pytest.mark.parametrize("factor", [0.999, 1.001])
def test_targets_that_no_hardware_meets_together_are_refused(factor: float) -> None:
    """By Little's law: 4 a second that take 0.5 s and 199 tokens of 20 ms are 4 x 4.48 under way."""
    under_way = 17.92 * factor
    rate = under_way / 4.48
    given = {**SIZES, "request_rate": rate, "concurrency": 18, "ttft": 0.5, "tpot": 0.02}
    if rate * 4.48 < 18:
        with pytest.raises(KvplanError, match="requests in flight at") as refused:
            plan_deployment(load_model("llama-3.1-8b"), load_gpu("h100-sxm"), "vllm", given)
        assert refused.value.hint == f"leave it out, or at most --concurrency {int(rate * 4.48)}"
    given = {**given, "request_rate": 18 / 4.48}
    assert plan_deployment(load_model("llama-3.1-8b"), load_gpu("h100-sxm"), "vllm", given).serving is not None


def test_what_only_a_gpu_can_answer_names_its_flag() -> None:
    for name, flag in (("ttft", "--ttft"), ("request_rate", "--request-rate"), ("price", "--price")):
        with pytest.raises(KvplanError, match="is about a GPU") as refused:
            plan_deployment(load_model("llama-3.1-8b"), None, "vllm", {**SIZES, name: 1.0})
        assert refused.value.where == flag


def test_a_rate_makes_as_many_requests_as_it_keeps_under_way_on_every_replica() -> None:
    for dp in (1, 2):
        given = {"request_rate": 9.0, "data_parallel_size": dp}
        hand = ByHand("llama-3.1-8b", "h100-sxm", "vllm", given)
        made = plan_deployment(load_model("llama-3.1-8b"), load_gpu("h100-sxm"), "vllm", {**SIZES, **given})
        assert made.inputs["concurrency"] == ceil(hand.state.in_flight) * dp
        assert made.inputs["defaults"]["concurrency"].startswith("Little's law: 9 requests/s, ")
        each = hand.state.in_flight / hand.state.requests_per_second
        assert f"{each:.3g} s each" in made.inputs["defaults"]["concurrency"]
    many = plan_deployment(
        load_model("llama-3.1-8b"), load_gpu("h100-sxm"), "vllm", {**SIZES, "request_rate": 5000.0}
    )  # fmt: skip
    assert many.serving is not None
    assert many.inputs["concurrency"] == many.serving.slots
    assert many.inputs["defaults"]["concurrency"].startswith("as many as run at once")

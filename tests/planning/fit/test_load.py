"""Steady loads: exact where there is nothing to wait for, and near a simulation of every step where there is."""

from __future__ import annotations

import random
from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import settings as limits
from hypothesis import strategies as st

from kvplan import load_gpu, load_model
from kvplan.engines import get_engine
from kvplan.planning.drafts import served_model
from kvplan.planning.evaluate import evaluate
from kvplan.planning.settings import resolve
from kvplan.planning.speed import decode, load, prefill
from kvplan.planning.speed.batching import at, prefill_share
from kvplan.planning.speed.figures import Setup, setup
from kvplan.planning.speed.profile import Lengths, Profile, passed, profile
from kvplan.planning.speed.solve import root

DEPLOYMENTS = {
    "plain": ("llama-3.1-8b", "h100-sxm", {}),
    "small device": ("llama-3.1-8b", "l4", {}),
    "tensor parallel": ("llama-3.1-70b", "h100-sxm", {"tensor_parallel_size": 4}),
    "pipeline": ("llama-3.1-70b", "h100-sxm", {"pipeline_parallel_size": 4}),
    "experts": ("deepseek-v3", "h200-sxm", {"tensor_parallel_size": 8}),
    "experts over replicas": (
        "deepseek-v3", "h200-sxm",
        {"tensor_parallel_size": 4, "data_parallel_size": 4, "enable_expert_parallel": True},
    ),
    "hybrid": ("qwen3-next-80b-a3b", "h200-sxm", {"tensor_parallel_size": 2}),
}  # fmt: skip


@cache
def deployed(name: str) -> Setup:
    model_name, gpu_name, given = DEPLOYMENTS[name]
    model, gpu, engine = load_model(model_name), load_gpu(gpu_name), get_engine("vllm")
    settings, _ = resolve(model, gpu, engine, {"max_model_len": 8192, **given})
    model = served_model(model, engine, settings)
    found = setup(model, gpu, engine, evaluate(model, gpu, engine, settings))
    assert isinstance(found, Setup)
    return found


@pytest.mark.parametrize("name", DEPLOYMENTS)
@pytest.mark.parametrize("prompt", [100, 3000, 20_000])
def test_a_request_that_is_alone_takes_what_prefill_and_decode_say(name: str, prompt: int) -> None:
    made = deployed(name)
    lengths = Lengths(prompt, 200)
    state = load.in_loop(profile(made, lengths), 1, 100)
    first = prefill.prompt(made.works, made.rates, made.layout, prompt, min(made.chunk, prompt))
    assert first is not None
    step = decode.step(made.works, made.rates, made.layout, 1, prompt + 100).seconds
    assert state.seconds_per_step == pytest.approx(step, rel=1e-9)
    # whole tokens of a chunk; a pipeline drains behind its last chunk, which is dearer than the mean one
    close = 0.03 if made.layout.pp > 1 and prompt > made.chunk else 2e-4
    assert state.seconds_to_first_token == pytest.approx(first.seconds, rel=close)
    assert state.in_flight == pytest.approx(1)
    assert load.alone(profile(made, lengths)).request_seconds(lengths) == pytest.approx(
        first.seconds + 199 * step, rel=max(1e-4, close / 4)
    )


@pytest.mark.parametrize("name", DEPLOYMENTS)
def test_littles_law_holds_for_decode_and_for_all(name: str) -> None:
    lengths = Lengths(700, 300)
    made = profile(deployed(name), lengths)
    top = load.carried(made, 200).requests_per_second
    state = load.at_rate(made, top / 2, 200)
    assert state.requests_per_second == pytest.approx(top / 2, rel=1e-9)
    assert state.decoding == pytest.approx(state.requests_per_second * 299 * state.seconds_per_step)
    served = state.seconds_to_first_token - state.slot_seconds + 299 * state.seconds_per_step
    assert state.in_flight == pytest.approx(state.requests_per_second * served)
    loop = load.in_loop(made, 40, 200)
    assert loop.in_flight == pytest.approx(40)
    assert loop.requests_per_second * loop.request_seconds(lengths) == pytest.approx(40)


def simulated(made: Profile, rate: float, slots: int, requests: int) -> tuple[float, float]:
    """(mean time to first token, mean time per token) of requests at random, step by step, first come first served."""
    draw, lengths = random.Random(7), made.lengths
    arrivals, clock = [], 0.0
    for _ in range(requests):
        clock += draw.expovariate(rate)
        arrivals.append(clock)
    now, coming, waiting = 0.0, 0, [0.0] * 0
    prompts: list[list[float]] = []  # arrival, tokens left
    running: list[list[float]] = []  # steps left, time of the first token
    first, each = [], []
    while coming < requests or waiting or prompts or running:
        if not (waiting or prompts or running):
            now = max(now, arrivals[coming])
        while coming < requests and arrivals[coming] <= now:
            waiting.append(arrivals[coming])
            coming += 1
        while waiting and len(prompts) + len(running) < slots:
            prompts.append([waiting.pop(0), lengths.fresh])
        room = made.chunk - len(running)
        taken, done = 0.0, []
        for each_prompt in prompts:
            part = min(each_prompt[1], room - taken)
            if part <= 0:
                break
            each_prompt[1] -= part
            taken += part
            if each_prompt[1] == 0:
                done.append(each_prompt)
        seconds, _ = passed(made, float(len(running)), float(taken), -(-lengths.fresh // room))
        now += seconds + made.step_seconds
        for request in running:
            request[0] -= 1
            if request[0] == 0:
                each.append((now - request[1]) / lengths.steps)
        running = [r for r in running if r[0] > 0]
        for prompt in done:
            prompts.remove(prompt)
            first.append(now - prompt[0])
            running.append([lengths.steps, now])
    skipped = requests // 10
    return sum(first[skipped:]) / len(first[skipped:]), sum(each[skipped:]) / len(each[skipped:])


@pytest.mark.parametrize(("share", "first", "each"), [(0.1, 0.03, 0.03), (0.5, 0.2, 0.06), (0.8, 0.25, 0.12)])
@pytest.mark.parametrize(
    ("name", "prompt", "output"),
    [
        ("plain", 1024, 128), ("plain", 4096, 64), ("small device", 512, 64), ("tensor parallel", 2048, 32),
        ("experts", 1024, 256),
    ],
)  # fmt: skip
def test_waits_are_those_of_a_simulation(
    name: str, prompt: int, output: int, share: float, first: float, each: float
) -> None:
    """Mean times within the tolerances of what every step of a simulated scheduler gives, up to 80 % of the top."""
    made = profile(deployed(name), Lengths(prompt, output))
    rate = share * load.carried(made, 256).requests_per_second
    state = load.at_rate(made, rate, 256)
    seen = simulated(made, rate, 256, 2000)
    assert state.seconds_to_first_token == pytest.approx(seen[0], rel=first)
    assert state.seconds_per_step == pytest.approx(seen[1], rel=each)


@limits(max_examples=40, deadline=None)
@given(
    st.sampled_from(sorted(DEPLOYMENTS)), st.integers(1, 6000), st.integers(1, 800), st.floats(0.05, 0.9),
    st.floats(1.01, 1.1),
)  # fmt: skip
def test_more_traffic_is_never_served_faster(name: str, prompt: int, output: int, share: float, more: float) -> None:
    made = profile(deployed(name), Lengths(prompt, output))
    top = load.carried(made, 64).requests_per_second
    assert top > 0
    one, two = (load.at_rate(made, top * part, 64) for part in (share, share * more))
    for field in ("seconds_to_first_token", "seconds_per_step", "in_flight"):
        assert getattr(two, field) >= getattr(one, field) * (1 - 5e-3)


@limits(max_examples=40, deadline=None)
@given(
    st.sampled_from(sorted(DEPLOYMENTS)),
    st.integers(1, 6000),
    st.integers(2, 800),
    st.floats(1.05, 20),
    st.floats(1.05, 20),
)
@example("hybrid", 3976, 2, 10.0, 12.0)
def test_what_is_carried_is_within_the_limits_and_no_more_would_be(
    name: str, prompt: int, output: int, ttft: float, tpot: float
) -> None:
    made = profile(deployed(name), Lengths(prompt, output))
    floor = load.alone(made)
    asked = load.Limits(floor.seconds_to_first_token * ttft, floor.seconds_per_step * tpot)
    found = load.carried(made, 64, asked)
    assert 0 < found.requests_per_second <= load.carried(made, 64).requests_per_second * (1 + 1e-6)
    assert asked.factor(found, made.lengths) <= 1 + 1e-6
    beyond = load.at_rate(made, found.requests_per_second * 1.01, 64)
    over = beyond.requests_per_second < found.requests_per_second * 1.009  # more cannot even come
    assert (
        over
        or asked.factor(beyond, made.lengths) > 1
        or beyond.in_flight >= 64 * 0.999
        or beyond.prefill_utilization >= 0.999
    )


def test_limits_that_nobody_meets_carry_nothing() -> None:
    made = profile(deployed("plain"), Lengths(1000, 100))
    floor = load.alone(made)
    assert load.carried(made, 64, load.Limits(floor.seconds_to_first_token / 2)).requests_per_second == 0
    assert load.loops_carried(made, 64, load.Limits(tpot=floor.seconds_per_step / 2)) == 0


@pytest.mark.parametrize("factor", [1.2, 2.0, 5.0])
def test_the_most_requests_in_a_loop_are_the_most(factor: float) -> None:
    made = profile(deployed("plain"), Lengths(1000, 100))
    asked = load.Limits(tpot=load.alone(made).seconds_per_step * factor)
    most = int(load.loops_carried(made, 256, asked))
    assert asked.met(load.in_loop(made, most, 256), made.lengths)
    assert most == 256 or not asked.met(load.in_loop(made, most + 1, 256), made.lengths)


def test_requests_beyond_the_slots_wait_for_one() -> None:
    made = profile(deployed("plain"), Lengths(1000, 100))
    full, over = load.in_loop(made, 16, 16), load.in_loop(made, 24, 16)
    assert full.slot_seconds == 0
    assert over.requests_per_second == pytest.approx(full.requests_per_second)
    assert over.slot_seconds == pytest.approx(8 / full.requests_per_second)


def test_spread_lengths_wait_longer_and_read_more() -> None:
    made = deployed("plain")
    plain, spread = (profile(made, Lengths(2000, 200, 0, cv, cv)) for cv in (0.0, 1.0))
    assert plain.lengths.context == 2100
    assert spread.lengths.context == 2200  # long outputs are met more often
    rate = load.carried(spread, 64).requests_per_second * 0.7
    assert load.at_rate(spread, rate, 64).seconds_to_first_token > load.at_rate(plain, rate, 64).seconds_to_first_token


def test_a_common_prefix_is_not_computed_again() -> None:
    made = deployed("plain")
    whole, shared = profile(made, Lengths(4000, 100)), profile(made, Lengths(4000, 100, 3900))
    assert load.alone(shared).seconds_to_first_token < load.alone(whole).seconds_to_first_token / 5
    assert load.carried(shared, 64).requests_per_second > load.carried(whole, 64).requests_per_second


def test_prompts_pay_for_their_share_of_the_seconds() -> None:
    made = profile(deployed("plain"), Lengths(1024, 257))
    state = load.in_loop(made, 1, 8)
    first, rest = state.seconds_to_first_token, 256 * state.seconds_per_step
    assert prefill_share(made, state) == pytest.approx(first / (first + rest), rel=1e-3)
    assert prefill_share(profile(deployed("plain"), Lengths(1024, 1)), state) == 1


def test_arrays_give_what_numbers_give() -> None:
    made = profile(deployed("experts"), Lengths(1000, 100))
    x, slots = np.array([1e-6, 0.01, 0.1, 0.5]), np.array([8.0, 64, 100, 256])
    many = at(made, x, slots)
    for i in range(len(x)):
        one = at(made, float(x[i]), float(slots[i]))
        assert [float(v[i]) for v in many] == pytest.approx(list(one), rel=1e-4)


@given(st.floats(0.01, 50), st.floats(1.5, 1e6))
def test_a_root_is_found_to_rounding(where: float, width: float) -> None:
    import math

    found: Any = root(
        lambda x: math.log(x / where) if x < 3 * where else math.log(3.0) * 5, where / width, where * width
    )
    assert found == pytest.approx(where, rel=1e-9)
    array = root(
        lambda x: np.log(x / where), np.array([where / width, where / 2]), np.array([where * width, where * 7])
    )
    assert array == pytest.approx([where, where], rel=1e-5)


def test_a_root_beyond_the_ends_is_the_nearer_end() -> None:
    assert root(lambda x: x - 5.0, 1.0, 3.0) == 3.0
    assert root(lambda x: x - 0.5, 1.0, 3.0) == 1.0

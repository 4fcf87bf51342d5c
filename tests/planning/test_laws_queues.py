"""Steps under load by queueing theory: Pollaczek and Khinchine, Sakasegawa, Little, a branching process."""

from __future__ import annotations

from functools import cache
from math import e, exp, sqrt

import pytest

from kvplan import load_gpu, load_model
from kvplan.engines import get_engine
from kvplan.planning.drafts import served_model
from kvplan.planning.evaluate import evaluate
from kvplan.planning.settings import resolve
from kvplan.planning.speed import batching, load
from kvplan.planning.speed.batching import _pace, _Steps, _together, at, prefill_share, seconds_per_token
from kvplan.planning.speed.figures import Setup, setup
from kvplan.planning.speed.load import Limits
from kvplan.planning.speed.profile import Lengths, Profile, profile

PLAIN = _Steps(plain=0.02, plain_stage=0.02, one=0.03, more=0.01, full=0.03)


@cache
def made(prompt: int = 1000, output: int = 200, prompt_cv: float = 0.0, output_cv: float = 0.0, pp: int = 1) -> Profile:
    spec, device, chosen = load_model("llama-3.1-8b"), load_gpu("h200-sxm"), get_engine("generic")
    settings, _ = resolve(spec, device, chosen, {"max_model_len": 8192, "pipeline_parallel_size": pp})
    spec = served_model(spec, chosen, settings)
    found = setup(spec, device, chosen, evaluate(spec, device, chosen, settings))
    assert isinstance(found, Setup)
    return profile(found, Lengths(prompt, output, 0, prompt_cv, output_cv))


@pytest.mark.parametrize("rate", [0.1, 1.0, 5.0, 15.0])
@pytest.mark.parametrize("cv", [0.0, 1.0])
def test_prompts_that_fill_their_step_wait_as_in_a_single_server_queue(rate: float, cv: float) -> None:
    """A step with one is 50 ms: served one at a time, ``rho s (1 + cv^2) / 2 (1 - rho)`` before it (M/G/1)."""
    found = _pace(PLAIN, rate, 1.0, 1000, Lengths(1000, 1, 0, cv, 0.0))
    busy = rate * 0.05
    assert found.together == 1
    assert found.busy == pytest.approx(busy)
    assert found.wait == pytest.approx(busy * 0.05 * (1 + cv * cv) / 2 / (1 - busy))
    # a step's mean length counts itself: 20 ms, and 30 for each prompt that came in a mean step; 50 at the most
    assert found.per_token == pytest.approx(min(0.02 / (1 - rate * 0.03), 0.05))


def test_a_prompt_in_pieces_is_served_in_as_many_steps() -> None:
    one, four = (_pace(PLAIN, 1.0, chunks, 250, Lengths(1000, 1)) for chunks in (1.0, 4.0))
    assert four.busy == pytest.approx(4 * one.busy) == pytest.approx(0.2)
    assert four.per_token == pytest.approx(0.02 / (1 - 4 * 0.03))


@pytest.mark.parametrize(("steps", "rate"), [(10, 1.0), (199, 1.0), (199, 8.0), (5000, 8.0)])
def test_tokens_of_a_new_request_come_among_the_prompts_behind_it(steps: int, rate: float) -> None:
    """It meets the busy period that it began: l prompts and those that come meanwhile; mean steps after that."""
    lengths = Lengths(1000, steps + 1)
    assert lengths.steps == steps
    found, mean = _pace(PLAIN, rate, 1.0, 1000, lengths), 0.02 / (1 - rate * 0.03)
    busy = rate * 0.05
    behind = (busy + rate * found.wait) / (1 - busy) / busy
    met = busy * behind * (1 - exp(-steps / behind))
    assert found.per_token == pytest.approx(mean + min(met / steps, 1) * (0.05 - mean))


def test_chunks_share_a_step_as_a_branching_process_has_members() -> None:
    assert _together(1e-12, 0.0, 8) == pytest.approx(1)
    # carried alone: a Poisson number, given that there is one
    assert _together(2.0, 0.0, 8) == pytest.approx(2 / (1 - e**-2))
    assert _together(2.0, 0.0, 1.5) == 1.5
    r = 0.5
    long = 0.6931471805599453
    assert _together(0.1, r, 100) == pytest.approx(1 / ((1 - r) * (1 + long + 0.13 * long**2)))
    assert _together(0.1, 0.9999, 10_000) == pytest.approx(1000 / (1 + 6.907755 + 0.13 * 6.907755**2), rel=1e-6)


@pytest.mark.parametrize("pp", [1, 2])
@pytest.mark.parametrize(("x", "slots"), [(0.001, 10), (0.02, 10), (0.1, 40), (0.3, 300)])
def test_a_state_at_a_rate_adds_up(x: float, slots: int, pp: int) -> None:
    """Little's law for what decodes and what runs; Sakasegawa's wait for a slot; the token times at that rate."""
    of = made(prompt_cv=0.5, output_cv=1.5, pp=pp)
    found = at(of, x, slots)
    assert found.decoding == pytest.approx(x * 199)
    assert found.requests_per_second == pytest.approx(x / found.seconds_per_step)
    assert found.seconds_per_step == pytest.approx(
        seconds_per_token(of, found.requests_per_second, found.decoding), rel=1e-4
    )
    residence = found.queue_seconds + found.prefill_seconds + 199 * found.seconds_per_step
    assert found.in_flight == pytest.approx(found.requests_per_second * residence)
    taken = found.in_flight / slots
    wait = residence / slots * taken ** (sqrt(2 * (slots + 1)) - 1) / (1 - taken) * (1 + 1.5**2) / 2
    assert found.slot_seconds == pytest.approx(wait if taken < 1 else found.slot_seconds)
    assert found.seconds_to_first_token == pytest.approx(
        found.queue_seconds + found.prefill_seconds + found.slot_seconds
    )
    assert found.request_seconds(of.lengths) == pytest.approx(residence + found.slot_seconds)


@pytest.mark.parametrize("x", [0.001, 0.003])
def test_a_lone_request_waits_for_half_of_the_step_under_way(x: float) -> None:
    """As often as one is: while x (O - 1) sequences decode, fewer than one."""
    of = made()
    found, closed = at(of, x, 10), at(of, x, 10, closed=True)
    assert closed.slot_seconds == 0
    under_way = found.queue_seconds - closed.queue_seconds
    assert under_way == pytest.approx(closed.seconds_per_step / 2 * x * 199, rel=0.1)
    assert at(of, x, 10, others=0.0, closed=True).queue_seconds == 0


@pytest.mark.parametrize("name", ["ttft", "tpot", "request", "flying"])
def test_a_limit_is_met_up_to_itself(name: str) -> None:
    of = made()
    found = at(of, 0.1, 40)
    seconds = found.request_seconds(of.lengths)
    figure = {
        "ttft": found.seconds_to_first_token, "tpot": found.seconds_per_step, "request": seconds,
        "flying": found.requests_per_second * seconds,
    }[name]  # fmt: skip
    assert Limits(**{name: figure / 3}).factor(found, of.lengths) == pytest.approx(3)
    assert not Limits(**{name: figure / 1.01}).met(found, of.lengths)
    assert Limits(**{name: figure}).met(found, of.lengths)
    assert Limits().factor(found, of.lengths) == 0
    both = Limits(**{"ttft": found.seconds_to_first_token / 2, "tpot": found.seconds_per_step / 2, name: figure / 7})
    assert both.factor(found, of.lengths) == pytest.approx(7)


def test_an_output_of_one_token_has_no_time_per_token_to_limit() -> None:
    of = made(output=1)
    assert Limits(tpot=1e-9).factor(at(of, 0.1, 40), of.lengths) == 0


def test_drafts_that_are_kept_come_at_once() -> None:
    """A limit on the time of a token is one on a step over the tokens that it brings."""
    of = made()
    drafted = of._replace(lengths=of.lengths._replace(drafts=3, tokens_per_step=2.0))
    found = at(drafted, 0.1, 40)
    assert Limits(tpot=found.seconds_per_step).factor(found, drafted.lengths) == pytest.approx(0.5)


@pytest.mark.parametrize(("slots", "pp", "x"), [(10, 1, 10 / 199), (10_000, 1, 8192 / 1199), (10_000, 2, 16384 / 1199)])
def test_the_most_requests_between_two_tokens(slots: int, pp: int, x: float) -> None:
    """No more decode than there are slots, and a step of 8,192 tokens carries their tokens and their prompts."""
    assert load.most(made(pp=pp)._replace(chunk=8192), slots) == pytest.approx(x)
    assert load.most(made(output=1), 5) == 5


def test_prompts_and_tokens_share_the_seconds() -> None:
    of = made()
    alone = at(of, 1e-9, 10)
    step = seconds_per_token(of, 0.0, 0.0)
    prompt = alone.prefill_seconds
    assert prefill_share(of, alone) == pytest.approx(prompt / (prompt + 199 * step), rel=1e-3)
    assert prefill_share(of, at(of, 0.5, 400)) > prefill_share(of, alone)
    assert batching._FULL < batching._NEAR

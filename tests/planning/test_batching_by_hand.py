"""Steps that carry prompts and tokens, from the seconds of a micro-batch: utilization, waits and shares of time."""

from __future__ import annotations

from math import ceil

import numpy
import pytest

from kvplan.planning.speed import batching, load
from kvplan.planning.speed.batching import _pace, _prompt, _steps, at, prefill_share
from kvplan.planning.speed.profile import Lengths, Profile, passed, profile
from kvplan.planning.speed.solve import ROUNDS, root

from .round_rates import ROUND, made


def deployed(pp: int = 1, chunk: int = 2048, prompt: int = 3000, output: int = 200) -> Profile:
    base = made(pipeline_parallel_size=pp)._replace(rates=ROUND._replace(step_seconds=0.01))
    return profile(base, Lengths(prompt, output))._replace(chunk=chunk)


@pytest.mark.parametrize("pp", [1, 2])
@pytest.mark.parametrize("decoding", [1, 2, 65, 400])
def test_seconds_of_every_kind_of_step(decoding: int, pp: int) -> None:
    """A token passes all stages with its micro-batch, or waits for the slowest stage to serve every one."""
    of = deployed(pp)
    found = _steps(of, decoding, 1000.0, 1500.0)
    micro = max(decoding / pp, 1)
    total, slow = passed(of, micro, 0.0, 1)
    one, full = passed(of, micro, 1000.0, 3)[1], passed(of, micro, 1500.0, 3)[1]
    assert found.plain == pytest.approx(0.01 + max(total, decoding / micro * slow))
    assert found.plain_stage == pytest.approx(0.01 + slow)
    assert (found.one, found.full) == pytest.approx((one - slow, full - slow))
    assert found.more == pytest.approx((full - one) / 500 * 1000)
    # no second chunk fits: another one costs what the first does
    for room, several in ((1009.0, False), (1011.0, True)):
        alone = _steps(of, decoding, 1000.0, room)
        assert (alone.more == pytest.approx(alone.one, rel=1e-9)) is not several


@pytest.mark.parametrize("chunk", [500, 2048, 8192])
@pytest.mark.parametrize("pp", [1, 2])
def test_a_prompt_is_so_many_full_steps_and_a_rest(chunk: int, pp: int) -> None:
    of = deployed(pp, chunk)
    room = chunk - 10
    chunks = ceil(3000 / room)
    full, slow = passed(of, 10, room, chunks)
    last, rest = passed(of, 10, 3000 - (chunks - 1) * room, chunks)
    expected = last if chunks == 1 else full + (chunks - 2) * slow + rest
    assert _prompt(of, 10, chunks, room) == pytest.approx(expected + chunks * 0.01)


@pytest.mark.parametrize("pp", [1, 2])
@pytest.mark.parametrize("x", [0.001, 0.05, 0.3])
@pytest.mark.parametrize("closed", [True, False])
def test_prompts_take_their_share_of_what_full_steps_carry(x: float, pp: int, closed: bool) -> None:
    of = deployed(pp)
    found = at(of, x, 100, closed=closed)
    decoding = x * 199
    room = 2048 - decoding / pp
    chunks = ceil(3000 / room)
    steps = _steps(of, 1 + decoding, 3000 / chunks, room)
    carried = room / (3000 * (steps.plain_stage + steps.full))  # prompts a second, if they filled every step
    assert found.prefill_utilization == pytest.approx(found.requests_per_second / carried)
    pace = _pace(steps, found.requests_per_second, chunks, room, of.lengths)
    first = _prompt(of, decoding / pp, chunks, room) + chunks * (pace.together - 1) * steps.more
    assert found.prefill_seconds == pytest.approx(first, rel=1e-3)
    under_way = 0.0 if closed else max(1 - pace.busy, 0) * steps.plain / 2 * min(decoding, 1)
    assert found.queue_seconds == pytest.approx(pace.wait + under_way, rel=1e-2)
    if closed:
        assert found.slot_seconds == 0
        assert found.prefill_utilization <= 1


def test_a_loop_goes_no_faster_than_full_steps() -> None:
    of = deployed(output=2)
    top = load.most(of, 5000)
    found, free = at(of, top, 5000, closed=True), at(of, top, 5000)
    assert found.prefill_utilization == pytest.approx(1)
    assert free.prefill_utilization >= found.prefill_utilization


def test_chunks_that_share_a_step_are_no_more_than_fit() -> None:
    """Four prompts of 250 fill a step of 1,000: each is then served for a quarter of its seconds."""
    steps = batching._Steps(plain=0.02, plain_stage=0.02, one=0.03, more=0.01, full=0.06)
    busy = _pace(steps, 30.0, 1.0, 1000, Lengths(250, 1))
    assert 1 < busy.together <= 4
    long = 0.03 + (busy.together - 1) * 0.01
    serving = (0.02 + long) / busy.together
    assert busy.busy == pytest.approx(30.0 * serving)
    load_ = 30.0 * 250 / 1000 * 0.08
    half = serving * min(busy.busy, 1) / 2
    assert busy.wait == pytest.approx(min(half / (1 - busy.busy), half * busy.together / (1 - load_)))
    never = _pace(steps, 1e-9, 1.0, 1000, Lengths(250, 1))
    assert (never.together, never.per_token) == pytest.approx((1, 0.02), rel=1e-6)
    crowded = _pace(steps, 1e6, 1.0, 1000, Lengths(250, 1))
    assert crowded.together == 4
    assert crowded.per_token == pytest.approx(0.02 + 0.03 + 3 * 0.01)
    assert crowded.wait > 1e3


@pytest.mark.parametrize("pp", [1, 2])
def test_prompts_pay_for_their_part_of_a_step(pp: int) -> None:
    of = deployed(pp)
    state = at(of, 0.05, 100)
    decoding = 0.05 * 199
    room = 2048 - decoding / pp
    chunks = ceil(3000 / room)
    prompt = _prompt(of, 0.0, chunks, room)
    written = 199 * _steps(of, decoding, 3000 / chunks, 3000 / chunks).plain / decoding
    assert prefill_share(of, state) == pytest.approx(prompt / (prompt + written))
    alone = at(of, 1e-4, 100)  # no step has less than one sequence
    written = 199 * _steps(of, 1.0, 1500.0, 1500.0).plain
    assert prefill_share(of, alone) == pytest.approx(
        _prompt(of, 0.0, 2, 2048) / (_prompt(of, 0.0, 2, 2048) + written), rel=1e-3
    )


def test_drafts_take_room_of_a_step() -> None:
    of = deployed()
    wide = of._replace(lengths=of.lengths._replace(drafts=3, tokens_per_step=2.0))
    found = at(wide, 1.0, 1000)
    decoding = 199 / 2
    room = 2048 - 4 * decoding
    assert found.decoding == pytest.approx(decoding)
    assert found.prefill_seconds >= _prompt(wide, decoding, ceil(3000 / room), room) * (1 - 1e-9)
    assert load.most(wide, 10_000) == pytest.approx(2048 / (4 * decoding + 3000))


@pytest.mark.parametrize("power", [1, 3, 9])
@pytest.mark.parametrize("zero", [0.02, 1.0, 77.7])
@pytest.mark.parametrize("under", [True, False])
def test_roots_of_powers(power: int, zero: float, under: bool) -> None:
    def function(x: float) -> float:
        return (x / zero) ** power - 1

    found = root(function, 1e-3, 1e3, under=under)
    assert found == pytest.approx(zero, rel=1e-11)
    assert not under or function(found) <= 0
    assert root(function, zero * 2, zero * 3) == zero * 2
    assert root(function, zero / 3, zero / 2) == zero / 2
    many = root(
        lambda x: (x / zero) ** power - 1, numpy.array([1e-3, zero * 2]), numpy.array([1e3, zero * 3]), under=under
    )
    assert many.tolist() == pytest.approx([zero, zero * 2], rel=1e-5)
    assert ROUNDS == 100

"""Candidates that start, all of them at once: can they meet the targets, with how many copies, and how is it then."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy

from kvplan.planning.fit.screen import CARRIES, COPIES, LIMIT, TARGETS
from kvplan.planning.speed import load
from kvplan.planning.speed.profile import some_of

if TYPE_CHECKING:
    from kvplan.planning.fit.ask import Ask
    from kvplan.planning.speed.batching import Steady
    from kvplan.planning.speed.profile import Profile

_ROUNDS = 3
"""How often copies are added where rounding left a target missed."""
MOST_COPIES = 1 << 20
"""Of one layout; a load that takes more is a slip of the hand."""
FULLEST = 0.95
"""Of the rate at which waits end, what a copy gets at most where no target for the first token limits them."""
NAMES = ("ttft", "tpot", "concurrency")
"""The targets on single requests, in the order of `Judged.which`."""


class Judged(NamedTuple):
    """One entry a candidate."""

    reached: Any
    """`TARGETS`, `COPIES`, `LIMIT` or `CARRIES`."""
    miss: Any
    """Where it fails: seconds over the target for a request that is alone, or GPUs or copies over the most."""
    which: Any
    """Index into `NAMES` of that target."""
    floor: Any
    """Seconds of that request."""
    floor_ttft: Any
    floor_tpot: Any
    copies: Any
    """Independent copies of the layout."""
    ttft: Any
    tpot: Any
    request: Any
    """Seconds from a request's arrival to its last token."""
    in_flight: Any
    """Of one replica."""
    slots: Any


def judge(ask: Ask, made: Profile, slots: Any, world: Any, dp: Any) -> Judged:
    """What becomes of the candidates of a joined profile.

    Args:
        slots: requests that one replica runs at once.
        world: GPUs of one copy.
        dp: replicas of one copy.
    """
    many, lengths = len(slots), made.lengths
    single = load.alone(made)
    limits = (ask.limits.ttft, ask.limits.tpot if lengths.steps else None, ask.limits.request)
    step = single.seconds_per_step / lengths.tokens_per_step
    floors = [single.seconds_to_first_token, step, single.request_seconds(lengths)]
    factors = numpy.array(
        [f / limit if limit is not None else numpy.zeros(many) for f, limit in zip(floors, limits, strict=True)]
    )
    which = factors.argmax(axis=0)
    miss = factors.max(axis=0)
    reached, copies = numpy.full(many, TARGETS), numpy.ones(many, numpy.int64)
    figures = {name: numpy.full(many, numpy.nan) for name in ("ttft", "tpot", "request", "in_flight")}
    rows = numpy.flatnonzero(miss <= 1)
    if len(rows):
        count, state, good, over = _loaded(ask, some_of(made, rows), slots[rows] * 1.0, dp[rows])
        copies[rows] = count
        reached[rows] = numpy.where(good, CARRIES, numpy.where(over > 1, COPIES, TARGETS))
        miss[rows] = numpy.where(over > 1, over, miss[rows])
        figures["ttft"][rows] = state.seconds_to_first_token
        figures["tpot"][rows] = state.seconds_per_step / lengths.tokens_per_step
        figures["request"][rows], figures["in_flight"][rows] = state.request_seconds(lengths), state.in_flight
    if ask.max_gpus is not None:
        over = (reached == CARRIES) & (copies * world > ask.max_gpus)
        reached = numpy.where(over, LIMIT, reached)
        miss = numpy.where(over, copies * world / ask.max_gpus, miss)
    floor = numpy.array(floors)[which, numpy.arange(many)]
    return Judged(
        reached, miss, which, floor, floors[0], floors[1], copies, slots=slots, **figures
    )  # fmt: skip


def _loaded(ask: Ask, made: Profile, slots: Any, dp: Any) -> tuple[Any, Steady, Any, Any]:
    """(copies, the steady state of one replica of one copy, whether the targets hold, copies over the most)."""
    wanted, rate = ask.concurrency or 1, ask.request_rate
    if rate is not None:
        most = load.carried(made, slots, ask.limits).requests_per_second * dp
        if ask.ttft is None:
            free = load.carried(made, slots).requests_per_second * dp if any(ask.limits) else most
            most = numpy.minimum(most, FULLEST * free)
        needed = rate / numpy.maximum(most, 1e-300)
        copies = _ceil(needed)
        if ask.concurrency is not None:
            copies = numpy.maximum(copies, _ceil(wanted / (slots * dp)))
    else:
        each = load.loops_carried(made, slots, ask.limits) * dp
        most, needed = each, wanted / numpy.maximum(each, 1e-300)
        copies = _ceil(needed)
    possible = copies < MOST_COPIES
    copies = numpy.where(possible, copies, 1)
    for _ in range(_ROUNDS):
        if rate is not None:
            share = rate / copies / dp
            state = load.at_rate(made, share, slots)
            good = (state.requests_per_second >= share * (1 - 1e-5)) & (state.in_flight < slots)
        else:
            running = _ceil(_ceil(wanted / copies) / dp)
            state = load.in_loop(made, running, slots)
            good = running <= slots
        good = good & ask.limits.met(state, made.lengths)
        if good[possible].all():
            break
        copies = numpy.where(good | ~possible, copies, more_copies(ask, copies))
    return copies, state, good & possible, numpy.where(possible | (most <= 0), 0.0, needed / MOST_COPIES)


def more_copies(ask: Ask, copies: Any) -> Any:
    """The next number of copies that takes something off each: a whole request where they are always under way."""
    if ask.request_rate is not None:
        return copies + 1
    each = _ceil((ask.concurrency or 1) / copies)
    fewer = _ceil((ask.concurrency or 1) / numpy.maximum(each - 1, 1))
    return numpy.where(each > 1, fewer, copies + 1)


def _ceil(values: Any) -> Any:
    least = numpy.ceil(numpy.minimum(values, MOST_COPIES) - 1e-9)
    return numpy.maximum(least, 1).astype(numpy.int64)

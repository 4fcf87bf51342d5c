"""The steady state of a given load: of requests at random, of a closed loop, or of the most that limits allow."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from kvplan.planning.speed.batching import Steady, at, seconds_per_token
from kvplan.planning.speed.profile import some_of
from kvplan.planning.speed.solve import root
from kvplan.spec.arrays import choose, is_array, larger, log, smaller, whole

if TYPE_CHECKING:
    from kvplan.planning.speed.profile import Lengths, Profile

_LEAST = 1e-9
"""Requests completed between two tokens that are as good as none."""
_SLACK = 1e-9


class Limits(NamedTuple):
    """What a load may not exceed, seconds where nothing else is said; None: anything goes."""

    ttft: float | None = None
    tpot: float | None = None
    request: float | None = None
    """From a request's arrival to its last token."""
    flying: float | None = None
    """Requests under way on the replica, those that wait included: a rate times their seconds (Little's law)."""

    def factor(self, state: Steady, lengths: Lengths) -> Any:
        """The most that a figure of a state is of its limit; 0 where there are none."""
        worst: Any = state.seconds_per_step * 0.0
        if self.ttft is not None:
            worst = larger(worst, state.seconds_to_first_token / self.ttft)
        if self.tpot is not None and lengths.steps:
            worst = larger(worst, state.seconds_per_step / lengths.tokens_per_step / self.tpot)
        if self.request is not None:
            worst = larger(worst, state.request_seconds(lengths) / self.request)
        if self.flying is not None:
            worst = larger(worst, state.requests_per_second * state.request_seconds(lengths) / self.flying)
        return worst

    def met(self, state: Steady, lengths: Lengths) -> Any:
        """Whether a state is within; an array where it is one."""
        return self.factor(state, lengths) <= 1 + _SLACK


_ANYTHING = Limits()


def most(made: Profile, slots: Any) -> Any:
    """Requests between two tokens beyond which a step is over the chunk, or more decode than there are slots."""
    steps = made.lengths.steps
    by_tokens = made.chunk * made.pp / (steps * made.lengths.width + made.lengths.fresh)
    by_slots = slots * 1.0 / steps if steps else slots * 1.0
    return larger(smaller(by_tokens, by_slots), 2 * _LEAST)


def alone(made: Profile) -> Steady:
    """A request that meets no other: its first token takes a prompt's seconds, each of the others a step's."""
    return at(made, _LEAST, 1.0, others=0.0, closed=True)


def at_rate(made: Profile, rate: Any, slots: Any) -> Steady:
    """One replica to which `rate` requests a second come at random (Poisson); what it cannot carry, it does not."""
    top, steps = most(made, slots), made.lengths.steps
    low = smaller(rate * alone(made).seconds_per_step, top)  # no step is shorter than that of a request that is alone

    def missing(made: Profile, rate: Any, slots: Any) -> Any:
        if not steps:
            return lambda x: log(at(made, x, slots).requests_per_second / rate)
        return lambda x: log(x / (rate * seconds_per_token(made, rate, x * steps)))

    return at(made, _root(missing, made, rate, slots, low, top), slots)


def in_loop(made: Profile, requests: Any, slots: Any) -> Steady:
    """One replica on which `requests` requests are always under way: each that ends is followed by another."""
    running, top = smaller(requests, slots) * 1.0, most(made, slots)

    def state(made: Profile, running: Any, slots: Any, x: Any) -> Steady:
        return at(made, x, slots, others=(running - 1) / running, closed=True)

    def missing(made: Profile, running: Any, slots: Any) -> Any:
        return lambda x: log(state(made, running, slots, x).in_flight / running)

    found = state(made, running, slots, _root(missing, made, running, slots, top * _LEAST, top))
    waiting = (requests - running) / found.requests_per_second
    return found._replace(slot_seconds=waiting, seconds_to_first_token=found.seconds_to_first_token + waiting)


def carried(made: Profile, slots: Any, limits: Limits = _ANYTHING) -> Steady:
    """One replica at the most requests a second, coming at random, for which waits end and the limits are met.

    Where not even one request meets them, `Steady.requests_per_second` is 0.
    """

    def worst(made: Profile, _: Any, slots: Any) -> Any:
        def over(x: Any) -> Any:
            state = at(made, x, slots)
            full = larger(state.prefill_utilization, state.in_flight / slots)
            return log(larger(full, limits.factor(state, made.lengths)))

        return over

    top = most(made, slots)
    x = _root(worst, made, None, slots, top * _LEAST, top, under=True)
    state = at(made, x, slots)
    holds = worst(made, None, slots)(x) <= _SLACK
    return state._replace(requests_per_second=choose(holds, state.requests_per_second, 0.0))


def loops_carried(made: Profile, slots: Any, limits: Limits) -> Any:
    """The most requests that can always be under way on one replica within the limits: whole, 0 if not even one."""

    def state(made: Profile, slots: Any, x: Any) -> Steady:
        running = larger(at(made, x, slots, closed=True).in_flight, 1.0)
        # which hardly changes how many there are
        return at(made, x, slots, others=(running - 1) / running, closed=True)

    def worst(made: Profile, _: Any, slots: Any) -> Any:
        def over(x: Any) -> Any:
            found = state(made, slots, x)
            return log(larger(found.in_flight / slots, limits.factor(found, made.lengths)))

        return over

    top = most(made, slots)
    x = _root(worst, made, None, slots, top * _LEAST, top, under=True)
    found = state(made, slots, x)
    least = choose(limits.met(alone(made), made.lengths) & (slots >= 1), 1, 0)
    return larger(least, whole(choose(worst(made, None, slots)(x) <= _SLACK, found.in_flight, 0.0) + 1e-5))


def _root(function: Any, made: Profile, load: Any, slots: Any, low: Any, high: Any, *, under: bool = False) -> Any:
    """The root of ``function(made, load, slots)``, of which some elements can be taken."""

    def part(rows: Any) -> Any:
        return function(some_of(made, rows), *(v[rows] if is_array(v) else v for v in (load, slots)))

    return root(function(made, load, slots), low, high, under=under, part=part)

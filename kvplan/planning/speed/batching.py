"""Continuous batching under a steady load: what steps take that carry decoding sequences and pieces of prompts.

Everything follows from one unknown, the requests x that are completed in the time between two tokens of a request.
A request of P prompt and O output tokens decodes for O - 1 of these times (its first token comes out of its prefill),
so x (O - 1) sequences decode: Little's law, counted in tokens. That gives the seconds of every kind of step, those
give the rate, and `kvplan.planning.speed.load` finds the x of a given rate or of a given number of requests.

Prompts ride in some steps, not evenly in all: such a step is bound by compute and makes everybody wait. Prompts wait
for each other as in an M/G/1 queue (Pollaczek and Khinchine), and requests for a slot as in M/G/c, by Sakasegawa's
approximation (Annals of the Institute of Statistical Mathematics 29, 1977). In a closed loop of N requests each meets
(N - 1) / N of what there is (Schweitzer's form of mean value analysis); alone it meets nothing, so its first token
takes what `prefill` says and the others what `decode` says.

Takes numbers or NumPy arrays for everything but the lengths.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from kvplan.planning.speed.profile import passed
from kvplan.planning.speed.solve import root
from kvplan.spec.arrays import ceiling, choose, is_array, larger, log, smaller

if TYPE_CHECKING:
    from kvplan.planning.speed.profile import Lengths, Profile

_FULL = 1e-9
"""What a queue that is full has left: waits are then longer than any that is asked for."""
_NEAR = 1e-3
"""What is left of a share of time that is all taken, for figures that stay finite then."""
_LONG = 1e6
"""Times its own steps, a queue that no request sees the end of."""
_E = 2.718281828459045
_BELOW = 1 - 1e-6
"""Of the rate at which every step carries all the prompts that it can: below any rate there is."""
_MEETINGS = 2
"""Rounds after which the chunks that share a step are taken to be settled."""


class Steady(NamedTuple):
    """One replica under a steady load (floats, or arrays of one shape)."""

    requests_per_second: Any
    decoding: Any
    """Sequences that get a token in each step, on average."""
    seconds_per_step: Any
    """Between two steps of a request: its time per output token, or with drafts per `Lengths.tokens_per_step`."""
    prefill_seconds: Any
    """From a prompt's first step to its last, decoding sequences on board."""
    queue_seconds: Any
    """Before that: for prompts ahead of it, and for the step that is under way."""
    slot_seconds: Any
    """Before that: for a place among the running requests."""
    seconds_to_first_token: Any
    """The three together."""
    in_flight: Any
    """Requests that are running, those in prefill included."""
    prefill_utilization: Any
    """Of the prompt tokens that fit into steps, the share that is taken; at 1 prompts wait without end."""

    def request_seconds(self, lengths: Lengths) -> Any:
        """From a request's arrival to its last token."""
        return self.seconds_to_first_token + lengths.steps * self.seconds_per_step


def at(made: Profile, x: Any, slots: Any, *, others: Any = 1.0, closed: bool = False) -> Steady:
    """The steady state in which `x` requests are completed in the time between two tokens, on average.

    Args:
        slots: requests that run at once, by memory and by settings.
        others: the part of the load that a request meets: 1 if requests come at random.
        closed: a fixed number of requests, each begun as another ends.
    """
    lengths = made.lengths
    decoding = x * lengths.steps
    seen = others * decoding
    room = larger(made.chunk - lengths.width * seen / made.pp, 1.0)
    chunks = ceiling(lengths.fresh / room)
    steps = _steps(made, 1 + seen, lengths.fresh / chunks, room)
    pace = _pace(steps, others * _rate(steps, x, others, chunks, room, lengths), chunks, room, lengths)
    step, together = pace.per_token, pace.together
    rate = x / step
    full = room / (lengths.fresh * (steps.plain_stage + steps.full))  # if prompts filled every step
    if closed:  # a loop goes no faster, however many requests are in it
        rate = smaller(rate, full)
    first = _prompt(made, seen / made.pp, chunks, room) + chunks * (together - 1) * steps.more
    queue = pace.wait
    if not closed:  # the plain step that is under way
        queue = queue + larger(1 - pace.busy, 0.0) * steps.plain / 2 * smaller(decoding, 1.0)
    residence = queue + first + lengths.steps * step
    running = rate * residence
    wait: Any = residence * 0.0
    if not closed:
        taken = running / slots
        tail = smaller(taken, 1.0) ** ((2 * (slots + 1)) ** 0.5 - 1)
        wait = residence / slots * tail / larger(1 - taken, _FULL) * (1 + lengths.output_cv**2) / 2
    return Steady(rate, decoding, step, first, queue, wait, queue + first + wait, running, rate / full)


def _prompt(made: Profile, decoding: Any, chunks: Any, room: Any) -> Any:
    """Seconds of the steps of one prompt beside `decoding` sequences: full ones of `room` tokens, then the rest.

    In a pipeline each follows the one before as soon as the slowest stage has done that (`prefill.left`).
    """
    full, slow = passed(made, decoding, room, chunks)
    last, rest = passed(made, decoding, made.lengths.fresh - (chunks - 1) * room, chunks)
    return choose(chunks > 1, full + (chunks - 2) * slow + rest, last) + chunks * made.step_seconds


def seconds_per_token(made: Profile, rate: Any, decoding: Any) -> Any:
    """Seconds between tokens where `decoding` sequences decode and `rate` requests a second come at random."""
    room = larger(made.chunk - made.lengths.width * decoding / made.pp, 1.0)
    chunks = ceiling(made.lengths.fresh / room)
    steps = _steps(made, 1 + decoding, made.lengths.fresh / chunks, room)
    return _pace(steps, rate, chunks, room, made.lengths).per_token


class _Steps(NamedTuple):
    """Seconds of the steps of a replica, by what they carry."""

    plain: Any
    """Of one without prompts."""
    plain_stage: Any
    """The slowest stage's part of it, and the engine's own time."""
    one: Any
    """What a chunk of a prompt adds to it."""
    more: Any
    """What each further chunk adds."""
    full: Any
    """What chunks add that fill the step."""


def _steps(made: Profile, decoding: Any, tokens: Any, room: Any) -> _Steps:
    """The steps in which `decoding` sequences (1 or more) have a token each, beside chunks of `tokens`.

    A pipeline serves them in micro-batches: a token waits for its own to pass all stages, and for the slowest stage
    to serve every one; a chunk rides on one of them.
    """
    chunks = ceiling(made.lengths.fresh / tokens)
    micro = larger(decoding / made.pp, 1.0)
    total, plain = passed(made, micro, 0.0, 1)
    _, one = passed(made, micro, tokens, chunks)
    _, full = passed(made, micro, room, chunks)
    several = room > 1.01 * tokens
    more = choose(several, (full - one) / larger(room - tokens, 1e-3) * tokens, one - plain)
    own = made.step_seconds
    return _Steps(own + larger(total, decoding / micro * plain), own + plain, one - plain, more, full - plain)


class _Pace(NamedTuple):
    """How prompts slow down those that decode, and each other."""

    per_token: Any
    """Seconds between the tokens of a request."""
    together: Any
    """Chunks that share a step with prompts on average."""
    busy: Any
    """Share of the time in which steps carry prompts."""
    wait: Any
    """Seconds that a prompt waits for those ahead of it."""


def _pace(steps: _Steps, rate: Any, chunks: Any, room: Any, lengths: Lengths) -> _Pace:
    """The seconds between tokens of a request that meets `rate` prompts a second.

    Steps with prompts are longer, by `_Steps.one` and `_Steps.more`. Prompts that come during a step go into the next
    together (`_together`). They wait as in M/G/1 for a server that gives each its share of a step or, where a
    step has room for many, for the end of the one under way and for what full steps leave over: whichever is shorter.
    Whoever has just had its first token
    begins to decode among those that waited behind it: it sees steps with prompts until their queue is empty, for
    ``l = busy + rate x wait`` prompts and those that come meanwhile, ``l / (1 - busy)``, and mean steps after that.

    Args:
        room: prompt tokens that fill a step.
    """
    most_together = larger(room / lengths.fresh, 1.0)
    together: Any = 1.0
    mean: Any = steps.plain
    long: Any = steps.one
    for _ in range(_MEETINGS):
        mean = steps.plain / larger(1 - rate * chunks / together * long, _NEAR)
        mean = smaller(mean, steps.plain + long)
        together = _together(rate * chunks * mean, rate * chunks * steps.more, most_together)
        long = steps.one + (together - 1) * steps.more
    serving = chunks * (steps.plain_stage + long) / together
    busy = rate * serving
    left = larger(1 - busy, _FULL)
    load = rate * lengths.fresh / room * (steps.plain_stage + steps.full)
    half = serving * smaller(busy, 1.0) * (1 + lengths.prompt_cv**2) / 2
    wait = smaller(half / left, half * together / larger(1 - load, _FULL))
    per_token = mean
    if lengths.steps:
        part = smaller(busy, 1.0)
        # steps with prompts to come, where there are any
        behind = larger(chunks / together * (busy + rate * wait) / left / larger(part, _NEAR), _NEAR)
        behind = smaller(behind, lengths.steps * _LONG)  # beyond that all steps are met, and 1 - e ** -tiny is noise
        met = part * behind * (1 - _E ** -(lengths.steps / behind))
        per_token = mean + smaller(met / lengths.steps, 1.0) * larger(steps.plain + long - mean, 0.0)
    return _Pace(per_token, together, busy, wait)


def _rate(steps: _Steps, x: Any, others: Any, chunks: Any, room: Any, lengths: Lengths) -> Any:
    """Requests a second that are completed when `x` are in the time between two tokens: ``rate x per_token = x``."""

    def function(steps: _Steps, x: Any, others: Any, chunks: Any, room: Any) -> Any:
        return lambda rate: log(rate * _pace(steps, others * rate, chunks, room, lengths).per_token / x)

    def part(rows: Any) -> Any:
        x_, others_, chunks_, room_, *each = (v[rows] if is_array(v) else v for v in (x, others, chunks, room, *steps))
        return function(_Steps(*each), x_, others_, chunks_, room_)

    top = x / steps.plain
    longest = steps.plain + steps.one + (larger(room / lengths.fresh, 1.0) - 1) * larger(steps.more, 0.0)
    return root(function(steps, x, others, chunks, room), x / longest * _BELOW, top, part=part)


def _together(carried: Any, share: Any, most: Any) -> Any:
    """Chunks that share a step with prompts.

    They do not come evenly: those of one step come together (Poisson), and the longer a step, the more ride in the
    next. From a quiet step on that is a branching process (Galton and Watson) whose mean offspring r is the share of
    time that chunks add. Until it dies out it has 1 / (1 - r) members, in about ``1 + L + 0.13 L^2`` generations,
    ``L = -ln(1 - r)`` (within 2 % of the exact sum up to r = 0.98).

    Args:
        carried: chunks of a step on average.
        share: r.
        most: chunks that fill a step.
    """
    left = larger(1 - share, 1e-3)
    long = -log(left)
    branching = 1 / (left * (1 + long + 0.13 * long * long))
    carried = larger(carried, 1e-9)
    return smaller(larger(larger(branching, carried / (1 - _E**-carried)), 1.0), most)


def prefill_share(made: Profile, state: Steady) -> Any:
    """Of the seconds of a steady state, the part that prompts take; the rest is decode's.

    Steps carry both, so their seconds are split as those of a prompt alone, ``prefill.prompt``, and of a decode step
    without prompts are to each other.
    """
    room = larger(made.chunk - made.lengths.width * state.decoding / made.pp, 1.0)
    chunks = ceiling(made.lengths.fresh / room)
    prompt = _prompt(made, 0.0, chunks, room)
    batch = larger(state.decoding, 1.0)
    plain = _steps(made, batch, made.lengths.fresh / chunks, made.lengths.fresh / chunks).plain
    decoding = made.lengths.steps * plain / batch
    return prompt / (prompt + decoding)

"""Made-up traces: lengths and arrivals by distribution, a common system prompt, conversations of several turns.

A description is one line of ``name=value``, parted by commas:

======================= ==============================================================================
``requests=1000``       in all
``prompt=``, ``output=``  a distribution of tokens (below); the prompt is what is new in it, without what is shared
``lengths=sharegpt``    both at once, from `LENGTHS`
``rate=2``              requests (first turns) a second; left out: all arrive at once
``arrivals=poisson``    or ``even``, or ``bursty:CV`` (gamma-distributed gaps of that coefficient of variation)
``system=500``          tokens that every prompt begins with
``turns=4``             turns of each conversation; each prompt repeats the conversation before it, answers included
``think=20``            mean seconds from one turn's arrival to the next one's (exponential)
``samples=1``           sequences generated from each prompt
``longest=2048``        prompt and output together at most; outputs, then prompts are cut, further turns left out
``seed=0``              the same seed gives the same trace
======================= ==============================================================================

Distributions: ``N`` (always N), ``uniform:A..B``, ``exponential:MEAN``, ``lognormal:MEAN:CV`` (CV 1 if left out).
"""

from __future__ import annotations

from dataclasses import replace
from math import log, sqrt
from typing import Any

import numpy as np

from kvplan.errors import InputError, UnknownNameError, printable
from kvplan.simulate.documents import Broken
from kvplan.simulate.trace import Floats, Ints, Trace

FLAG = "--synthetic"
NAMES = (
    "requests", "prompt", "output", "lengths", "rate", "arrivals", "system", "turns", "think", "samples", "longest",
    "seed",
)  # fmt: skip
LENGTHS = {
    "sharegpt": ("lognormal:161:1.3", "lognormal:338:0.8"),
    "alpaca": ("lognormal:19:0.7", "lognormal:58:1.0"),
}
"""name -> (prompt, output). Means of the PagedAttention paper (arXiv 2309.06180), section 6.1 and figure 11; that they
are lognormal, and how wide, is assumed here: the figure shows long tails, more so for ShareGPT."""
_SUCH = {"rate": "rate=2, or leave it out: all arrive at once", "think": "think=20", "arrivals": "arrivals=bursty:2"}
MOST_REQUESTS = 20_000_000
SYSTEM_KEY = 1


def synthetic(text: str, *, seed: int | None = None) -> Trace:
    """The trace that a description asks for.

    Args:
        seed: in place of the description's.

    Raises:
        UnknownNameError: a name that is none of `NAMES`.
        InputError: a value that cannot be read, or one that has no effect.
    """
    given = _read(text)
    if seed is not None and "seed" in given:
        raise InputError("the seed is given twice", where="--seed", hint=f"leave it out of {FLAG}")
    if "arrivals" in given and "rate" not in given:
        raise InputError("arrivals= has no rate: all arrive at once", where=FLAG, hint="add rate=2")
    count = _whole(given, "requests", 1000, most=MOST_REQUESTS)
    turns = _whole(given, "turns", 1, most=10_000)
    system = _whole(given, "system", 0, least=0)
    longest = _whole(given, "longest", 0, least=0)
    samples = _whole(given, "samples", 1)
    rng = np.random.default_rng(_whole(given, "seed", 0, least=0, most=1 << 60) if seed is None else seed)
    talks = -(-count // turns)
    prompt_text, output_text = _lengths(given)
    starts = arrivals(talks, _number(given, "rate", None), given.get("arrivals", "poisson"), rng)
    new = _draw(prompt_text, (talks, turns), rng, "prompt")
    out = _draw(output_text, (talks, turns), rng, "output")
    gaps = rng.exponential(_number(given, "think", 20.0) or 0.0, (talks, turns))
    gaps[:, 0] = 0
    times = starts[:, None] + np.cumsum(gaps, axis=1)
    before = np.cumsum(new + out, axis=1) - out  # new tokens of this turn and all that was said before
    prompts = (before + system).astype(np.int64)
    made = _assemble(text, times, prompts, out.astype(np.int64), system, samples, turns)
    if longest:
        made = _cut(made, longest, system)
    keep = np.arange(min(count, len(made)))
    return made.taken(keep)


def _assemble(name: str, times: Floats, prompts: Ints, outputs: Ints, system: int, samples: int, turns: int) -> Trace:
    """Requests in order of arrival. A conversation is one stream behind the system prompt; answers continue it."""
    talks, count = len(times), prompts.size
    flat = prompts.reshape(-1)
    parts = (system > 0) + (turns > 1)
    keys, lengths = np.zeros((count, parts), np.int64), np.zeros((count, parts), np.int64)
    talk = np.repeat(np.arange(talks), turns) + SYSTEM_KEY + 1
    if system:
        keys[:, 0], lengths[:, 0] = SYSTEM_KEY, system
    if turns > 1:
        keys[:, -1], lengths[:, -1] = talk, flat - system
    made = Trace(
        name=f"synthetic: {name}", format="synthetic", arrivals=times.reshape(-1), prompts=flat,
        outputs=outputs.reshape(-1), samples=np.full(count, samples, np.int64),
        offsets=np.arange(count + 1, dtype=np.int64) * parts, keys=keys.reshape(-1), lengths=lengths.reshape(-1),
        tails=talk if turns > 1 else np.full(count, -1, np.int64), block_tokens=None,
        timed=bool(times.max() > 0), broken=Broken(0, ()),
    )  # fmt: skip
    return made.taken(np.argsort(made.arrivals, kind="stable"))


def _cut(trace: Trace, longest: int, system: int) -> Trace:
    """Requests of at most `longest` tokens."""
    if system >= longest - 1:
        raise InputError(f"a system prompt of {system} tokens leaves nothing of {longest}", where=FLAG, hint="longest=")
    if np.diff(trace.offsets).max(initial=0) > (system > 0):  # conversations: a cut turn would not be the whole talk
        return trace.taken(np.flatnonzero(trace.prompts + trace.outputs <= longest))
    prompts = np.minimum(trace.prompts, longest - 1)
    return replace(trace, prompts=prompts, outputs=np.minimum(trace.outputs, longest - prompts))


def arrivals(count: int, rate: float | None, process: str, rng: np.random.Generator) -> Floats:
    """Seconds at which `count` requests arrive, the first at 0.

    Raises:
        InputError: no such process, or no rate above zero.
    """
    if rate is None:
        return np.zeros(count)
    if not 0 < rate < 1e9:
        raise InputError(f"{rate:g} requests a second make no sense", where="rate", hint="a number above 0")
    name, _, wide = process.partition(":")
    if name == "even":
        return np.arange(count) / rate
    variation = {"poisson": 1.0, "bursty": _positive(wide or "2", "arrivals")}.get(name)
    if variation is None:
        raise UnknownNameError("arrival process", process, ["poisson", "even", "bursty:2"], where="arrivals")
    shape = 1 / variation**2
    gaps = rng.gamma(shape, 1 / shape / rate, count)
    gaps[0] = 0
    return np.cumsum(gaps)


def _draw(text: str, size: tuple[int, int], rng: np.random.Generator, what: str) -> Floats:
    """Whole numbers of tokens, at least 1."""
    kind, _, rest = text.partition(":")
    if not rest:
        return np.full(size, float(max(1, int(_positive(kind, what)))))
    if kind == "uniform":
        low, _, high = rest.partition("..")
        first, last = int(_positive(low, what)), int(_positive(high, what))
        if first > last:
            raise InputError(f"{printable(rest, 30)} runs backwards", where=what, hint=f"uniform:{last}..{first}")
        return rng.integers(max(1, first), last, size, endpoint=True).astype(np.float64)
    mean_text, _, wide = rest.partition(":")
    mean = _positive(mean_text, what)
    if kind == "exponential":
        found = rng.exponential(mean, size)
    elif kind == "lognormal":
        spread = log(1 + _positive(wide or "1", what) ** 2)
        found = rng.lognormal(log(mean) - spread / 2, sqrt(spread), size)
    else:
        raise UnknownNameError("distribution", kind, ["uniform", "exponential", "lognormal"], where=what)
    return np.maximum(1, np.rint(found))


def _lengths(given: dict[str, str]) -> tuple[str, str]:
    name = given.get("lengths")
    if name is None:
        return given.get("prompt", "lognormal:1024"), given.get("output", "lognormal:256")
    if name not in LENGTHS:
        raise UnknownNameError("set of lengths", name, list(LENGTHS), where=FLAG, more=f"known: {', '.join(LENGTHS)}")
    prompt, output = LENGTHS[name]
    return given.get("prompt", prompt), given.get("output", output)


def _read(text: str) -> dict[str, str]:
    given: dict[str, str] = {}
    for part in filter(None, (p.strip() for p in text.split(","))):
        name, equals, value = part.partition("=")
        name = name.strip().replace("-", "_")
        if name not in NAMES:
            raise UnknownNameError("part of a trace", name, list(NAMES), where=FLAG, more=f"known: {', '.join(NAMES)}")
        if not equals or not value.strip():
            raise InputError(f"{printable(name, 30)} has no value", where=FLAG, hint="requests=1000,rate=2")
        if name in given:
            raise InputError(f"{printable(name, 30)} is given twice", where=FLAG, hint="leave one out")
        given[name] = value.strip()
    return given


def _positive(text: str, what: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = float("nan")
    if not 0 < value < 1e12:
        such = _SUCH.get(what, f"{what}=512")
        raise InputError(f"{printable(text, 30)!r} is not a number above 0", where=what, hint=f"such as {such}")
    return value


def _number(given: dict[str, str], name: str, otherwise: float | None) -> float | None:
    return _positive(given[name], name) if name in given else otherwise


def _whole(given: dict[str, str], name: str, otherwise: int, *, least: int = 1, most: int = 1 << 32) -> int:
    text = given.get(name)
    if text is None:
        return otherwise
    digits = text.replace("_", "")
    if not digits.isascii() or not digits.isdigit() or not least <= int(digits) <= most:
        raise InputError(
            f"{printable(text, 30)!r} is not a whole number from {least} to {most:,}", where=f"{FLAG} {name}",
            hint=f"{name}={otherwise or 1}",
        )  # fmt: skip
    return int(digits)


def retimed(trace: Trace, rate: float, seed: int = 0) -> Trace:
    """The same requests in the same order, arriving as a Poisson process."""
    times: Any = arrivals(len(trace), rate, "poisson", np.random.default_rng(seed))
    return replace(trace, arrivals=times, timed=True)


def sliced(
    trace: Trace, *, start: float = 0.0, end: float | None = None, limit: int | None = None, scale: float = 1.0
) -> Trace:
    """Requests that arrive from `start` on and before `end` (seconds), `limit` of them, their arrivals times `scale`.

    Raises:
        InputError: none is left.
    """
    chosen = trace.arrivals >= start
    if end is not None:
        chosen &= trace.arrivals < end
    found = np.flatnonzero(chosen)[:limit]
    if not len(found):
        raise InputError("no request is left of the trace", where="--start, --end", hint="widen the slice")
    made = trace if len(found) == len(trace) else trace.taken(found)
    return made if scale == 1.0 else replace(made, arrivals=made.arrivals * scale)

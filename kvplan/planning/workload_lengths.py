"""Lengths of requests: numbers, distributions or what a trace holds, down to the moments that the formulas take.

=========================================  ==================================================================
``1024``, ``32K``                          all alike
``lognormal:mean=1024,cv=1``               `cv` is the standard deviation over the mean; no more than p99.9
``uniform:min=256,max=4096``               all lengths in between alike
``percentiles:p50=800,p90=3000,p99=12000`` linear between them; ``p0`` is 1 and ``p100`` the last one if not given
=========================================  ==================================================================
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import pairwise
from math import exp, log, sqrt
from typing import Any, NamedTuple

from kvplan.errors import InputError, UnknownNameError, printable
from kvplan.units import parse_tokens

P999 = 3.090232306167813
"""Standard deviations above the median at which a normal distribution has 99.9 % below."""
MAX_CV = 100.0


class Distribution(NamedTuple):
    """Lengths in tokens."""

    mean: int
    cv: float
    """Standard deviation over mean."""
    longest: int
    """The longest one that is served: exactly, or 99.9 % where there is no end."""
    text: str
    """As it was given."""


def read_lengths(text: str, flag: str) -> Distribution:
    """A number of tokens, or a distribution of them.

    Raises:
        InputError: it cannot be read; UnknownNameError: no such distribution.
    """
    name, colon, rest = text.strip().partition(":")
    if not colon:
        tokens = 0 if text.strip() == "0" else parse_tokens(text, flag)
        return Distribution(tokens, 0.0, tokens, text.strip())
    if name not in _KINDS:
        raise UnknownNameError("distribution", name, list(_KINDS), where=flag, more=f"known: {', '.join(_KINDS)}")
    read, names, example = _KINDS[name]
    values: dict[str, str] = {}
    for part in rest.split(","):
        key, equals, value = part.strip().partition("=")
        known = key in names or (not names and key[:1] == "p" and _percent(key[1:]) is not None)
        if not equals or not known or key in values:
            raise InputError(f"cannot read {printable(part, 40)!r} in {name}", where=flag, hint=f"{flag} {example}")
        values[key] = value
    if set(names) - set(values):
        missing = ", ".join(n for n in names if n not in values)
        raise InputError(f"{name} needs {missing}", where=flag, hint=f"{flag} {example}")
    mean, cv, longest = read(values, flag, example)
    return Distribution(max(1, round(mean)), cv, max(1, round(longest)), text.strip())


def _lognormal(values: Mapping[str, str], flag: str, example: str) -> tuple[float, float, float]:
    mean, cv = parse_tokens(values["mean"], flag), _number(values["cv"], flag, example)
    if cv > MAX_CV:
        raise InputError(f"a cv of {cv:g} is absurdly large", where=flag, hint=f"{flag} {example}")
    variance = log(1 + cv * cv)
    return mean, cv, exp(log(mean) - variance / 2 + P999 * sqrt(variance))


def _uniform(values: Mapping[str, str], flag: str, example: str) -> tuple[float, float, float]:
    low, high = (0 if values[n].strip() == "0" else parse_tokens(values[n], flag) for n in ("min", "max"))
    if low > high:
        raise InputError(f"min {low:,} is above max {high:,}", where=flag, hint=f"{flag} {example}")
    mean = (low + high) / 2
    return mean, (high - low) / sqrt(12) / mean if mean else 0.0, high


def _percentiles(values: Mapping[str, str], flag: str, example: str) -> tuple[float, float, float]:
    points = sorted((_percent(key[1:]) or 0.0, parse_tokens(value, flag)) for key, value in values.items())
    if points[0][0] > 0:
        points.insert(0, (0.0, 1))
    if points[-1][0] < 100:
        points.append((100.0, points[-1][1]))
    first = second = 0.0
    for (p, low), (q, high) in pairwise(points):
        if high < low or q == p:
            raise InputError("percentiles do not rise", where=flag, hint=f"{flag} {example}")
        share = (q - p) / 100
        first += share * (low + high) / 2
        second += share * (low * low + low * high + high * high) / 3
    return first, sqrt(max(0.0, second - first * first)) / first, points[-1][1]


def _percent(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if 0 <= value <= 100 and text[:1].isdigit() else None


def _number(text: str, flag: str, example: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < 1e9:
        raise InputError(f"{printable(text, 40)!r} is not a number", where=flag, hint=f"{flag} {example}")
    return value


_Reader = Callable[[Mapping[str, str], str, str], tuple[float, float, float]]
_KINDS: dict[str, tuple[_Reader, tuple[str, ...], str]] = {
    "lognormal": (_lognormal, ("mean", "cv"), "lognormal:mean=1024,cv=1"),
    "uniform": (_uniform, ("min", "max"), "uniform:min=256,max=4096"),
    "percentiles": (_percentiles, (), "percentiles:p50=800,p90=3000,p99=12000"),
}
"""name -> (reader, the values it needs, an example)."""


class TraceLoad(NamedTuple):
    """What a trace asks of a deployment, on average."""

    prompts: Distribution
    outputs: Distribution
    longest: int
    """Prompt and output of the longest request."""
    requests: int
    requests_per_second: float | None
    """None: the trace does not say when requests come."""


def of_trace(trace: Any) -> TraceLoad:
    """The load of a trace (`kvplan.simulate.trace.Trace`): means and spreads over its requests, in whole.

    Prefixes that prompts have in common are not counted.
    """
    prompts, outputs = _moments(trace.prompts, "prompts"), _moments(trace.outputs, "outputs")
    span = float(trace.arrivals[-1]) if trace.timed else 0.0
    rate = (len(trace) - 1) / span if span > 0 and len(trace) > 1 else None
    return TraceLoad(prompts, outputs, int((trace.prompts + trace.outputs).max()), len(trace), rate)


def _moments(lengths: Any, what: str) -> Distribution:
    mean = float(lengths.mean())
    text = f"{what} of the trace: mean {mean:,.0f}, longest {int(lengths.max()):,}"
    return Distribution(max(1, round(mean)), float(lengths.std()) / mean, int(lengths.max()), text)

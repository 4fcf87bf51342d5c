"""Rules: ``metric operator value [unit]``, read and type-checked before any work.

=========================================  ================================================================
``verdict.fits == true``                   true or false
``verdict.binding != weights``             a name
``capacity.max_concurrency >= 8``          a number
``capacity.requests_at(32K) >= 4``         a figure that takes a length
``memory.unused_bytes >= 2 GiB``           bytes with their unit, or a whole number of them
``memory.unused_bytes >= 5 %``             of the memory of the GPU
``decode.seconds_per_step <= 25 ms``       s, ms, us
``capacity.kv_tokens >= baseline - 5 %``   of the earlier result; or less an amount in the metric's own unit
=========================================  ================================================================
"""

from __future__ import annotations

import re
from typing import Any, Literal, NamedTuple

from kvplan.check.metrics import Kind, Metric, find_metric
from kvplan.check.problems import Place
from kvplan.errors import InputError, KvplanError, printable
from kvplan.units import parse_size, parse_tokens, ungrouped

Level = Literal["error", "warn"]
LEVELS: tuple[Level, ...] = ("error", "warn")
Bound = Literal["pessimistic", "low", "mid", "high"]
BOUNDS: tuple[Bound, ...] = ("pessimistic", "low", "mid", "high")
OPERATORS = ("<=", ">=", "==", "!=", "<", ">")

_RULE = re.compile(r"(\s*)([A-Za-z_][\w.]*(?:\([^()]*\))?)(\s*)([<>=!~]+)(\s*)(.*?)\s*\Z", re.DOTALL)
_BASELINE = re.compile(r"baseline(?:\s*([-+])\s*(\S.*))?\Z")
_NUMBER = re.compile(r"([-+]?[0-9][0-9_,]*(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?)\s*(\S*)\Z")
_SECONDS = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "min": 60.0}
_MONEY = ("", "USD", "usd", "$")
_WANTED = {
    "bytes": "a size, such as 2 GiB", "tokens": "a number of tokens, such as 32K", "seconds": "a time, such as 50 ms",
    "money": "an amount, such as 0.50 USD", "share": "a share, such as 0.9 or 90 %", "number": "a number",
    "switch": "true or false", "text": "a name",
}  # fmt: skip
_EXAMPLES = {"bytes": "2 GiB", "tokens": "32K", "seconds": "50 ms", "money": "0.50 USD", "share": "0.9"}


class RuleSyntaxError(InputError):
    """A rule that cannot be read; `offset` is where in its text."""

    def __init__(self, message: str, hint: str, offset: int) -> None:
        super().__init__(message, hint=hint)
        self.offset = offset


class Limit(NamedTuple):
    """The right side of a rule."""

    value: Any
    """In the metric's own unit; for a percentage its number; for a baseline what is added to it."""
    percent: bool = False
    baseline: bool = False


class Rule(NamedTuple):
    """One promise."""

    text: str
    metric: Metric
    operator: str
    limit: Limit
    level: Level
    bound: Bound
    place: Place
    workloads: tuple[str, ...] = ()
    """Workloads that it is about; empty: all."""


class Parsed(NamedTuple):
    """The text of a rule, read."""

    metric: Metric
    operator: str
    limit: Limit


def parse_rule(text: str) -> Parsed:
    """A rule from its text.

    Raises:
        RuleSyntaxError: it is none, or metric and value do not go together.
    """
    match = _RULE.match(text)
    if match is None:
        raise RuleSyntaxError(
            f"{printable(text, 80)!r} is no rule", "write metric operator value, as in verdict.fits == true", 0
        )
    _, name, _, operator, _, right = match.groups()
    try:
        metric = find_metric(name)
    except InputError as error:
        raise RuleSyntaxError(error.message, error.hint or "", match.start(2)) from None
    if operator not in OPERATORS:
        hint = "write ==" if operator == "=" else f"one of {' '.join(OPERATORS)}"
        raise RuleSyntaxError(f"{operator!r} is no operator", hint, match.start(4))
    if metric.kind in ("switch", "text") and operator not in ("==", "!="):
        what = f"{metric.name} is {_WANTED[metric.kind]}, which {operator!r} cannot compare"
        raise RuleSyntaxError(what, "== or !=", match.start(4))
    if not right:
        raise RuleSyntaxError("the value is missing", f"{metric.name} {operator} {_WANTED[metric.kind]}", len(text))
    try:
        return Parsed(metric, operator, _limit(metric, right))
    except KvplanError as error:
        raise RuleSyntaxError(error.message, error.hint or "", match.start(6)) from None


def _limit(metric: Metric, text: str) -> Limit:
    baseline = _BASELINE.match(text)
    if baseline and metric.kind not in ("switch", "text"):
        sign, amount = baseline.groups()
        if amount is None:
            return Limit(0, baseline=True)
        found = _value(metric.kind, amount, metric.name, percent=True)
        return Limit(-found.value if sign == "-" else found.value, found.percent, True)
    if baseline:
        return Limit(None, baseline=True)
    return _value(metric.kind, text, metric.name, percent=_of_memory(metric))


def _of_memory(metric: Metric) -> bool:
    """Whether a percentage of this figure can only be one of a GPU's memory."""
    return metric.kind == "bytes" and (metric.section == "memory" or metric.name.endswith("_per_gpu"))


def _value(kind: Kind, text: str, name: str, *, percent: bool) -> Limit:
    if kind == "switch":
        if text not in ("true", "false"):
            raise InputError(f"{name} is true or false, not {printable(text, 40)!r}", hint=f"{name} == true")
        return Limit(text == "true")
    if kind == "text":
        plain = text[1:-1] if len(text) > 1 and text[0] == text[-1] and text[0] in "'\"" else text
        return Limit(None if plain in ("null", "none") else plain)
    match = _NUMBER.match(text)
    if not match:
        raise InputError(f"{name} is {_WANTED[kind]}, not {printable(text, 40)!r}", hint=_hint(kind, name))
    digits, unit = match.groups()
    plain = ungrouped(digits)
    if "," in plain or "_" in plain:
        raise InputError(f"{printable(text, 40)!r} is not a number", hint="write 1.5 with a point, 1,024 in threes")
    number = float(plain)
    if unit == "%":
        if kind == "share":
            return Limit(number / 100)
        if not percent:
            raise InputError(f"a percentage of what? {name} is {_WANTED[kind]}", hint=_hint(kind, name))
        return Limit(number, percent=True)
    return Limit(_amount(kind, number, unit, text, name))


def _amount(kind: Kind, number: float, unit: str, text: str, name: str) -> float | int:
    """A number with its unit, in the unit that plans are written in."""
    whole = int(number) if number == int(number) else number
    if kind == "bytes":
        if not unit and number == int(number):
            return whole
        if number == 0 and unit:
            parse_size(f"1{unit}", name)
            return 0
        return parse_size(f"{number:f}".rstrip("0").rstrip(".") + unit, name)
    if kind == "tokens":
        return parse_tokens(text.replace(",", ""), name) if number else 0
    if kind == "seconds":
        if unit not in _SECONDS:
            raise InputError(f"{printable(text, 40)!r} has no unit of time", hint=_hint(kind, name))
        return number * _SECONDS[unit]
    if kind == "money" and unit in _MONEY:
        return number
    if unit:
        raise InputError(f"{name} is {_WANTED[kind]}, without {printable(unit, 20)!r}", hint=_hint(kind, name))
    return whole


def _hint(kind: Kind, name: str) -> str:
    return f"{name} >= {_EXAMPLES.get(kind, '8')}, for example"

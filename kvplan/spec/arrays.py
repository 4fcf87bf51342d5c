"""What ``min``, ``max``, ``if`` and ``ceil`` cannot do for NumPy arrays, so that one formula serves both; searches.

Each function takes Python numbers, and then does what the built-in does, or arrays of any shapes that
broadcast. NumPy is imported only once an array is there. None has no place in an array: `MISSING` stands for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import reduce
from math import ceil
from math import log as logarithm
from typing import Any, TypeAlias

Number: TypeAlias = Any
"""An int or a float, or a NumPy array of them."""

MISSING = -1
"""In an array of counts: there is no such figure."""

_NUMBERS = (int, float)


def is_array(value: Any) -> bool:
    """Whether `value` is an array (or a NumPy scalar that came out of one), not a Python number or None."""
    return value is not None and not isinstance(value, _NUMBERS)


def smaller(a: Number, b: Number) -> Number:
    """The smaller of two numbers, element by element."""
    if isinstance(a, _NUMBERS) and isinstance(b, _NUMBERS):
        return min(a, b)
    import numpy

    return numpy.minimum(a, b)


def larger(a: Number, b: Number) -> Number:
    """The larger of two numbers, element by element."""
    if isinstance(a, _NUMBERS) and isinstance(b, _NUMBERS):
        return max(a, b)
    import numpy

    return numpy.maximum(a, b)


def least(values: Iterable[Number]) -> Number:
    """The smallest of at least one number."""
    return reduce(smaller, values)


def largest(values: Iterable[Number]) -> Number:
    """The largest of at least one number."""
    return reduce(larger, values)


def choose(condition: Any, yes: Any, no: Any) -> Number:
    """`yes` where `condition` holds, `no` elsewhere; None becomes `MISSING` in an array."""
    if not is_array(condition):
        return yes if condition else no
    import numpy

    return numpy.where(condition, MISSING if yes is None else yes, MISSING if no is None else no)


def filled(value: Number, otherwise: Number) -> Number:
    """`value`, or `otherwise` where it is None or `MISSING`."""
    if value is None:
        return otherwise
    return choose(value == MISSING, otherwise, value) if is_array(value) else value


def opposite(condition: Any) -> Any:
    """Where `condition` does not hold."""
    return ~condition if is_array(condition) else not condition


def whole(value: Number) -> Number:
    """`value` without its fraction."""
    return value.astype("int64") if is_array(value) else int(value)


def log(value: Number) -> Number:
    """The natural logarithm, element by element."""
    if not is_array(value):
        return logarithm(value)
    import numpy

    return numpy.log(value)


def ceiling(value: Number) -> Number:
    """The smallest whole number that is not below `value`."""
    if not is_array(value):
        return ceil(value)
    import numpy

    return numpy.ceil(value).astype("int64")


def quotient(have: Number, need: Number, otherwise: Number) -> Number:
    """How many `need` are in `have`, whole; `otherwise` where `need` is 0."""
    if not is_array(need):
        return have // need if need else otherwise
    return have // need if need.all() else choose(need == 0, otherwise, have // choose(need == 0, 1, need))


def ratio(have: Number, need: Number, otherwise: Number) -> Number:
    """`have` over `need`; `otherwise` where `need` is 0."""
    if not is_array(need):
        return have / need if need else otherwise
    return have / need if need.all() else choose(need == 0, otherwise, have / choose(need == 0, 1, need))


def most(cost: Callable[[Number], Number], have: Number, *, limit: int = 2**40) -> Number:
    """The largest count whose cost is at most `have`: 0 if none, None (in an array `MISSING`) if any up to `limit` is.

    Args:
        cost: never falls as its argument grows; takes an array where `have` is one.
    """
    if is_array(have):
        return _most_of_each(cost, have, limit)
    return None if cost(limit) <= have else last_true(0, limit, lambda count: bool(cost(count) <= have))


def last_true(low: int, high: int, holds: Callable[[int], bool]) -> int:
    """The largest whole number from `low` on and below `high` for which `holds` is true, found by halving.

    Args:
        low: taken to hold.
        high: taken not to.
        holds: true up to some number between them and false above it; asked of neither `low` nor `high`.
    """
    while high - low > 1:
        middle = (low + high) // 2
        if holds(middle):
            low = middle
        else:
            high = middle
    return low


def last_true_of_each(low: Number, high: Number, holds: Callable[[Number], Any]) -> Number:
    """`last_true` for every element of arrays at once."""
    import numpy

    while int((high - low).max(initial=0)) > 1:
        middle = (low + high) // 2
        held = holds(middle)
        low, high = numpy.where(held, middle, low), numpy.where(held, high, middle)
    return low


def _most_of_each(cost: Callable[[Number], Number], have: Number, limit: int) -> Number:
    """`most` for every element at once; the upper bound is found in Python's own integers, which do not overflow."""
    import numpy

    top, bound = int(have.max()), 1
    while bound < limit and cost(bound) <= top:
        bound = min(2 * bound, limit)
    low, high = numpy.zeros(have.shape, numpy.int64), numpy.full(have.shape, bound, numpy.int64)
    found = last_true_of_each(low, high, lambda count: cost(count) <= have)
    anything = have >= cost(limit) if cost(limit) <= top else False
    return numpy.where(anything, MISSING, found)

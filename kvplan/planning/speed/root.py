"""Where a rising function crosses zero, for numbers and for arrays of independent problems."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kvplan.spec.arrays import choose, is_array, larger, smaller

ROUNDS = 60
_CLOSE = 1e-12
_ROUNDS_ARRAY, _CLOSE_ARRAY = 18, 1e-4
"""Of an array, whose slowest element all others would wait for."""


def root(function: Callable[[Any], Any], low: Any, high: Any, *, under: bool = False) -> Any:
    """The x from `low` to `high`, both above zero, at which `function` is zero; the end that is nearest if it never is.

    Regula falsi on a logarithmic scale, by the Illinois rule, with a bisection in every third round: as quick as the
    first where the function is smooth, as safe as the second where it is not.

    Args:
        function: rises with x, in jumps too. Best given as a logarithm of a ratio.
        under: the largest x that was found at which it is not above zero, rather than the one nearest to zero.
    """
    below, above = function(low), function(high)
    many = is_array(above) or is_array(below)
    rounds, close = (_ROUNDS_ARRAY, _CLOSE_ARRAY) if many else (ROUNDS, _CLOSE)
    ended = (above <= 0) | (below >= 0)
    best = choose(above <= 0, high, low)
    miss = choose(ended, 0.0, choose(under, abs(below), smaller(abs(below), abs(above))))
    best = choose(ended | under | (abs(below) < abs(above)), best, high)
    side: Any = 0
    for number in range(rounds):
        if (miss.max() if is_array(miss) else miss) < close:
            break
        share = 0.5 if number % 3 == 2 else below / choose(below < above, below - above, -1.0)
        middle = low * (high / low) ** smaller(larger(share, 1e-4), 1 - 1e-4)
        value = function(middle)
        negative = value <= 0
        nearer = (abs(value) < miss) & (negative | (not under)) & (miss > 0)
        best, miss = choose(nearer, middle, best), choose(nearer, abs(value), miss)
        above = choose(negative, above * choose(side == 1, 0.5, 1.0), value)
        below = choose(negative, value, below * choose(side == -1, 0.5, 1.0))
        low, high = choose(negative, middle, low), choose(negative, high, middle)
        side = choose(negative, 1, -1)
    return best

"""Where a rising function crosses zero, for numbers and for arrays of independent problems."""

from __future__ import annotations

from collections.abc import Callable
from math import exp, log
from typing import Any, TypeAlias

from kvplan.spec.arrays import is_array

Function: TypeAlias = Callable[[Any], Any]
ROUNDS = 100
_CLOSE = 1e-12
_CLOSE_ARRAY = 1e-6
"""Of arrays, whose candidates are screened, not shown."""


def root(
    function: Function, low: Any, high: Any, *, under: bool = False, part: Callable[[Any], Function] | None = None
) -> Any:
    """The x from `low` to `high`, both above zero, at which `function` is zero; the end that is nearest if it never is.

    Chandrupatla's method (Advances in Engineering Software 28, 1997) on a logarithmic scale: inverse quadratic
    interpolation where three points say that it can be trusted, bisection elsewhere, jumps included.

    Args:
        function: rises with x, in jumps too. Best given as a logarithm of a ratio.
        under: the largest x that was found at which it is not above zero, rather than the one nearest to zero.
        part: of arrays, the function of the elements at these indices; those that are done are then left out.
    """
    below, above = function(low), function(high)
    if is_array(below) or is_array(above):
        return _of_each(function, low, high, below, above, under, part)
    if above <= 0 or below >= 0:
        return high if above <= 0 else low
    best, miss = (low, -below) if under or -below < above else (high, above)
    a, fa, b, fb = log(low), below, log(high), above
    share = fa / (fa - fb)
    for _ in range(ROUNDS):
        if miss < _CLOSE or abs(b - a) < _CLOSE:
            break
        edge = _CLOSE / 4 / abs(b - a)
        u = a + min(max(share, edge), 1 - edge) * (b - a)
        x = exp(u)
        f = function(x)
        if abs(f) < miss and not (under and f > 0):
            best, miss = x, abs(f)
        if (f > 0) == (fa > 0):
            c, fc = a, fa
        else:
            c, fc, b, fb = b, fb, a, fa
        a, fa, share = u, f, 0.5
        if fb != fc and c != b and f != fc:
            xi, phi = (a - b) / (c - b), (fa - fb) / (fc - fb)
            if phi * phi < xi and (1 - phi) ** 2 < 1 - xi:
                share = fa / (fb - fa) * fc / (fb - fc) + (c - a) / (b - a) * fa / (fc - fa) * fb / (fc - fb)
    return best


def _of_each(
    function: Function, low: Any, high: Any, below: Any, above: Any, under: bool,
    part: Callable[[Any], Function] | None,
) -> Any:  # fmt: skip
    """`root` of every element, from the values at both ends."""
    import numpy

    low, high, below, above = numpy.broadcast_arrays(low, high, below, above)
    first = (under | (-below < above)) & ~(above <= 0) | (below >= 0)
    best, miss = numpy.where(first, low, high) * 1.0, numpy.where(first, abs(below), abs(above)) * 1.0
    alive = numpy.flatnonzero((above > 0) & (below < 0) & (miss >= _CLOSE_ARRAY))
    a, fa, b, fb = numpy.log(low[alive]), below[alive], numpy.log(high[alive]), above[alive]
    share = fa / (fa - fb)
    with numpy.errstate(divide="ignore", invalid="ignore"):  # where points coincide, and a bisection follows
        for _ in range(ROUNDS):
            if not alive.size:
                break
            edge = _CLOSE_ARRAY / 4 / abs(b - a)
            u = a + numpy.clip(share, edge, 1 - edge) * (b - a)
            x = numpy.exp(u)
            if part is not None:
                f = part(alive)(x) if alive.size < best.size else function(x)
            else:
                every = best.copy()
                every[alive] = x
                f = function(every)[alive]
            nearer = (abs(f) < miss[alive]) & ((f <= 0) | (not under))
            best[alive] = numpy.where(nearer, x, best[alive])
            miss[alive] = numpy.where(nearer, abs(f), miss[alive])
            same = (f > 0) == (fa > 0)
            c, fc = numpy.where(same, a, b), numpy.where(same, fa, fb)
            b, fb = numpy.where(same, b, a), numpy.where(same, fb, fa)
            a, fa = u, f
            xi, phi = (a - b) / (c - b), (fa - fb) / (fc - fb)
            bent = fa / (fb - fa) * fc / (fb - fc) + (c - a) / (b - a) * fa / (fc - fa) * fb / (fc - fb)
            trusted = (phi * phi < xi) & ((1 - phi) ** 2 < 1 - xi) & numpy.isfinite(bent)
            share = numpy.where(trusted, bent, 0.5)
            going = (miss[alive] >= _CLOSE_ARRAY) & (abs(b - a) >= _CLOSE_ARRAY)
            if not going.all():
                alive, a, fa, b, fb, share = (each[going] for each in (alive, a, fa, b, fb, share))
    return best

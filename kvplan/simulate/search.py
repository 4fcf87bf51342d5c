"""The smallest pool that meets a target, by bisection over simulations.

A target is ``figure<=value``: ``ttft.p99<=2``, ``tpot.p90<=50ms``, ``preemptions<=0``, ``hit_rate>=30%``. More cache is
taken to be no worse; where a figure is not monotone the pool that is found meets the target, and a smaller one may.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from kvplan.errors import InputError, UnknownNameError, printable
from kvplan.simulate.describe import ceiling
from kvplan.simulate.documents import Simulation, Smallest
from kvplan.simulate.results import figures
from kvplan.simulate.run import Options, simulate
from kvplan.simulate.site import with_blocks

if TYPE_CHECKING:
    from kvplan.simulate.site import Site
    from kvplan.simulate.trace import Trace

FLAG = "--target"
_FORM = re.compile(r"\s*([a-z0-9_.]+)\s*(<=|>=|<|>)\s*([0-9]+(?:\.[0-9]+)?)\s*(ms|s|%|)\s*\Z")
_SCALES = {"": 1.0, "s": 1.0, "ms": 1e-3, "%": 1e-2}
_PLACES = {
    **{f"{name}.{p}": ("latency", name, p) for name in ("ttft", "tpot", "e2e") for p in ("p50", "p90", "p99", "mean")},
    **{f"queue.{p}": ("scheduling", "queue_seconds", p) for p in ("p50", "p90", "p99", "mean")},
    "preemptions": ("scheduling", "preemptions"),
    "rejected": ("scheduling", "rejected"),
    "hit_rate": ("cache", "hit_rate"),
    "hit_tokens": ("cache", "hit_tokens"),
    "requests_per_second": ("throughput", "requests_per_second"),
    "tokens_per_second": ("throughput", "tokens_per_second"),
}
LARGEST = 64
"""Times the deployment's pool, up to which a pool is looked for."""


class Target(NamedTuple):
    """One condition on the figures of a simulation."""

    text: str
    place: tuple[str, ...]
    sign: str
    value: float

    def met(self, simulation: Simulation) -> bool:
        """Whether the figures of a run meet it; a figure that is not there does not."""
        found: Any = simulation
        for key in self.place:
            found = getattr(found, key)
        if found is None:
            return False
        if self.sign[0] == "<":
            return bool(found < self.value or (self.sign == "<=" and found == self.value))
        return bool(found > self.value or (self.sign == ">=" and found == self.value))


def read_target(text: str) -> Target:
    """One target.

    Raises:
        InputError, UnknownNameError: it cannot be read, or names no figure.
    """
    match = _FORM.match(text)
    if not match:
        raise InputError(f"{printable(text, 40)!r} is not a target", where=FLAG, hint=f"{FLAG} 'ttft.p99<=2'")
    name, sign, digits, unit = match.groups()
    name = name.removeprefix("latency.").removeprefix("scheduling.").removeprefix("cache.").removeprefix("throughput.")
    if name not in _PLACES:
        raise UnknownNameError("figure", name, list(_PLACES), where=FLAG, more="such as ttft.p99, hit_rate")
    return Target(text.strip(), _PLACES[name], sign, float(digits) * _SCALES[unit])


def smallest_pool(
    site: Site, trace: Trace, options: Options, targets: Sequence[Target],
    *, told: Callable[[int], None] | None = None,
) -> Smallest:  # fmt: skip
    """The smallest pool with which a deployment meets all `targets`, and rejects no more than with its own.

    Args:
        told: is called after each simulation with how many there were. A KeyboardInterrupt ends the search early,
            with what it knows.
    """
    best, runs, interrupted = ceiling(trace, site.shape.span), 0, False
    texts = tuple(t.text for t in targets)
    allowed: int | None = None

    def holds(blocks: int) -> bool:
        nonlocal runs, allowed
        run = simulate(with_blocks(site, blocks), trace, options)
        if run.interrupted:
            raise KeyboardInterrupt
        result = figures(run, best=best)
        runs += 1
        if told is not None:
            told(runs)
        rejected = result.scheduling.rejected
        allowed = rejected if allowed is None else allowed
        return rejected <= allowed and all(t.met(result) for t in targets)

    high, low, met = site.num_blocks, 0, False
    try:
        while not (met := holds(high)) and high * 2 <= site.num_blocks * LARGEST:
            low, high = high, high * 2
        while met and high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if holds(middle) else (middle, high)
    except KeyboardInterrupt:
        interrupted = True
    if not met:
        return Smallest(texts, False, None, None, None, None, runs, None, interrupted)
    return Smallest(
        texts, True, high, high * site.block_bytes, site.tokens_of(high), high / site.num_blocks, runs, high - low,
        interrupted,
    )  # fmt: skip

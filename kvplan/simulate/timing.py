"""Seconds of a step, by the planner's own formulas, fast enough to be asked a million times.

A decode step of b sequences takes ``base(b) + b x J(c)``: weights, products, latencies and messages depend on the
number of tokens alone, and the cache and attention of one sequence at context c, joined, scale with b, because the
join is homogeneous. ``base`` is kept in a table; ``J`` becomes a line through knots between which the planner's
figure is straight (windows bend it). Where contexts differ, c is their mean: exact while J is straight, as it is for
full attention. A chunk of a prompt adds its products, its share of attention's square and one reading of the cache
up to its end, as `kvplan.planning.speed.prefill` does: a prompt alone takes exactly what the plan says, whatever the
chunks it is cut into.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from kvplan.planning.speed import work as of
from kvplan.planning.speed.decode import kernel_seconds, message_seconds
from kvplan.planning.speed.prefill import left, product_seconds
from kvplan.planning.speed.rates import join

if TYPE_CHECKING:
    from kvplan.planning.speed.figures import Setup
    from kvplan.planning.speed.work import StageWork

TOLERANCE = 1e-4
"""Relative distance from a straight line that is taken for straight."""


class Line:
    """A function of a length, straight between knots that are found by halving.

    Args:
        function: of a number of tokens.
        longest: beyond it the last piece goes on.
    """

    def __init__(self, function: Callable[[int], float], longest: int) -> None:
        knots = {0: function(0), longest: function(longest)}
        open_parts = [(0, longest)]
        while open_parts:
            low, high = open_parts.pop()
            middle = (low + high) // 2
            if middle == low:
                continue
            here = knots[middle] = function(middle)
            straight = knots[low] + (knots[high] - knots[low]) * (middle - low) / (high - low)
            if abs(here - straight) > TOLERANCE * abs(here):
                open_parts += [(low, middle), (middle, high)]
            else:
                quarter, far = (low + middle) // 2, (middle + high) // 2
                if any(
                    abs(function(x) - (knots[low] + (knots[high] - knots[low]) * (x - low) / (high - low)))
                    > TOLERANCE * abs(here)
                    for x in (quarter, far)
                ):
                    open_parts += [(low, middle), (middle, high)]
        self.at = sorted(knots)
        self.values = [knots[x] for x in self.at]
        self._thin()

    def _thin(self) -> None:
        """Drop knots that lie on the line through their neighbours."""
        at, values = [self.at[0]], [self.values[0]]
        for i in range(1, len(self.at) - 1):
            x, y = self.at[i], self.values[i]
            nx, ny = self.at[i + 1], self.values[i + 1]
            straight = values[-1] + (ny - values[-1]) * (x - at[-1]) / (nx - at[-1])
            if abs(y - straight) > 1e-12 * abs(y):
                at.append(x)
                values.append(y)
        self.at = [*at, self.at[-1]]
        self.values = [*values, self.values[-1]]

    def __call__(self, x: float) -> float:
        i = min(max(bisect_right(self.at, x), 1), len(self.at) - 1)
        low, high = self.at[i - 1], self.at[i]
        first, last = self.values[i - 1], self.values[i]
        return first + (last - first) * (x - low) / (high - low)

    def next_knot(self, x: float) -> float:
        """The knot after `x`; infinity behind the last."""
        i = bisect_right(self.at, x)
        return self.at[i] if i < len(self.at) - 1 else float("inf")


class StepTimer:
    """The clock of one replica.

    Args:
        setup: the deployment as the planner's speed formulas take it.
        longest: tokens of the longest sequence.
    """

    def __init__(self, setup: Setup, longest: int) -> None:
        self.setup = setup
        self.works, self.rates, self.layout = setup.works, setup.rates, setup.layout
        assert self.rates.matmul_flops is not None  # `kvplan.simulate.site.prepare` looked
        assert self.rates.attention_flops is not None
        self.flops, self.scores = self.rates.decode_flops, self.rates.attention_flops
        self.lines = [Line(self._per_sequence(work), max(2, longest)) for work in self.works]
        self.straight = all(len(line.at) == 2 for line in self.lines)
        self.latency = [kernel_seconds(work, self.rates) for work in self.works]
        self.alone = [w._replace(experts=tuple(e._replace(groups=1) for e in w.experts)) for w in self.works]
        self.bases: dict[int, list[float]] = {}
        self.squares: dict[int, list[float]] = {0: [0.0] * len(self.works)}
        self.fetches: dict[int, list[float]] = {}
        self.products = [2 * of.token_parameters(w) / self.flops for w in self.works]
        self.bodies = [[2 * of.token_parameters(w, head=False) for w in some] for some in (self.alone, self.works)]
        self.dense = not any(w.experts for w in self.works)
        self.ahead: list[float] | None = None
        """When each stage was done with the last `mixed` step of prompts alone, from its end (0 or less)."""

    def _per_sequence(self, work: StageWork) -> Callable[[int], float]:
        def seconds(context: int) -> float:
            cache = of.kv_bytes(work, context) / self.rates.attention_bandwidth
            attention = of.attention_flops(work, context, self.rates.index_share) / self.scores
            return float(join(cache, attention, self.rates.softness))

        return seconds

    def _base(self, batch: int) -> list[float]:
        """Per stage: seconds of a decode step of `batch` sequences without their caches."""
        found = self.bases.get(batch)
        if found is None:
            found = []
            for work, latency, product in zip(self.works, self.latency, self.products, strict=True):
                weights = of.weight_bytes(work, batch) / self.rates.weight_bandwidth
                messages = message_seconds(work, self.rates, self.layout, batch)
                found.append(float(join(weights, product * batch, self.rates.softness) + latency + messages))
            self.bases[batch] = found
        return found

    def decode(self, batch: int, context: float) -> float:
        """One step of `batch` sequences of `context` tokens on average: the planner's ``decode.step``."""
        if self.layout.pp == 1:
            return self._base(batch)[0] + batch * self.lines[0](context) + self.rates.step_seconds
        micro = -(-batch // self.layout.pp)
        parts = [b + micro * line(context) for b, line in zip(self._base(micro), self.lines, strict=True)]
        flying = -(-batch // micro)
        return max(sum(parts), flying * max(parts)) + self.rates.step_seconds

    def decodes(self, batch: int, tokens: int, steps: int) -> float:
        """`steps` steps one after the other, the first with `tokens` tokens in all sequences together."""
        total, context, left = 0.0, tokens / batch, steps
        if self.straight:
            return steps * self.decode(batch, context + (steps - 1) / 2)
        while left:
            bend = min(line.next_knot(context) for line in self.lines)
            part = left if bend >= context + left - 1 else min(left, max(1, int(bend - context) + 1))
            total += part * self.decode(batch, context + (part - 1) / 2)
            context, left = context + part, left - part
        return total

    def steps_until(self, batch: int, tokens: int, seconds: float, most: int) -> int:
        """The fewest steps, up to `most`, that take `seconds` or longer."""
        if self.decodes(batch, tokens, most) < seconds:
            return most
        low, high = 0, most
        while high - low > 1:
            middle = (low + high) // 2
            if self.decodes(batch, tokens, middle) < seconds:
                low = middle
            else:
                high = middle
        return high

    def mixed(
        self, batch: int, context: float, chunks: Sequence[tuple[int, int]], done: int,
        ahead: Sequence[float] | None = None,
    ) -> float:  # fmt: skip
        """One step that decodes `batch` sequences and computes `chunks` of prompts.

        Args:
            context: mean tokens of the decoding sequences.
            chunks: (first token, behind the last token) of each.
            done: prompts that are complete after it, whose last token passes the head.
            ahead: `ahead` after the step before, if all that this one computes could enter the pipeline behind it.
        """
        rates = self.rates
        new = sum(end - start for start, end in chunks)
        micro = -(-batch // self.layout.pp)
        total = slowest = 0.0
        each = []
        for stage, work in enumerate(self.works if batch else self.alone):
            products = self.bodies[batch > 0][stage] * new + 2 * work.head_parameters * done
            compute = product_seconds(rates, products) + self.products[stage] * micro
            reading = self._weights(stage, micro + new, batch > 0) / rates.weight_bandwidth
            fetching = squares = 0.0
            for start, end in chunks:
                fetching += self._fetch(stage, end)
                squares += self._square(stage, end) - self._square(stage, start)
            seconds = join(reading, compute, rates.softness) + join(fetching, squares, rates.softness)
            seconds += self.latency[stage] + message_seconds(work, rates, self.layout, micro + new)
            if batch:
                caches = micro * self.lines[stage](context)
                seconds += caches
                slowest = max(slowest, self._base(micro)[stage] + caches)
            total += seconds
            each.append(seconds)
        self.ahead = None
        if not batch and self.layout.pp > 1:
            free = left(ahead or [0.0] * len(each), each)
            total = free[-1]
            self.ahead = [at - total for at in free]
        if batch and self.layout.pp > 1:
            total = max(total, -(-batch // micro) * slowest)
        return float(total) + rates.step_seconds

    def _weights(self, stage: int, tokens: int, busy: bool) -> float:
        work = (self.works if busy else self.alone)[stage]
        return work.weight_bytes if self.dense else float(of.weight_bytes(work, tokens))

    def _fetch(self, stage: int, end: int) -> float:
        """Seconds of reading one sequence's cache of `end` tokens."""
        found = self.fetches.get(end)
        if found is None:
            found = [float(of.kv_bytes(w, end) / self.rates.attention_bandwidth) for w in self.works]
            if len(self.fetches) < _KEPT:
                self.fetches[end] = found
        return found[stage]

    def _square(self, stage: int, end: int) -> float:
        """Seconds of attention over the first `end` tokens of a prompt."""
        found = self.squares.get(end)
        if found is None:
            index = self.rates.index_share
            found = [float(of.prefill_attention_flops(w, end, index) / self.scores) for w in self.works]
            if len(self.squares) < _KEPT:
                self.squares[end] = found
        return found[stage]


_KEPT = 1 << 18
"""Lengths whose figures are kept."""

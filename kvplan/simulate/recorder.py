"""What happened when: integrals over time in a fixed number of bins, and one row a request."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from kvplan.simulate.trace import Floats, Ints

BINS = 512
"""At most; as time goes on the bins grow by doubling."""
FIELDS = ("busy", "used", "stored", "reserved", "idle", "external", "running", "waiting", "tokens")
_N = len(FIELDS)
_EVERY = 256
"""Requests between two signs of progress."""


class Timeline:
    """Integrals of one replica over time. Memory is in the units of its pool."""

    def __init__(self) -> None:
        self.width = 1 / 16
        self.bins: list[list[float]] = []
        self.total = [0.0] * _N
        self.end = 0.0
        """When the last interval ended."""
        self.peak_used = 0.0
        self.peak_running = 0

    def add(self, start: float, seconds: float, means: tuple[float, ...]) -> None:
        """`means` (as `FIELDS`, but for ``busy``) held from `start` on for `seconds`; ``tokens`` is a sum."""
        if seconds <= 0:
            return
        total = self.total
        total[0] += seconds
        for i in range(1, _N - 1):
            total[i] += means[i - 1] * seconds
        total[_N - 1] += means[_N - 2]
        while start + seconds >= self.width * BINS:
            self._double()
        rate = means[_N - 2] / seconds
        first = int(start / self.width)
        while seconds > 1e-12:
            while len(self.bins) <= first:
                self.bins.append([0.0] * _N)
            part = min(seconds, (first + 1) * self.width - start)
            if part <= 0:
                first += 1
                continue
            self.end = start + part
            row = self.bins[first]
            row[0] += part
            for i in range(1, _N - 1):
                row[i] += means[i - 1] * part
            row[_N - 1] += rate * part
            start, seconds, first = start + part, seconds - part, first + 1

    def rest(self, start: float, end: float, idle: float) -> None:
        """Nobody was served between two times; `idle` units held prefixes."""
        busy, spent = self.total[0], self.total[4]
        self.add(start, end - start, (0.0, 0.0, 0.0, idle, 0.0, 0.0, 0.0, 0.0))
        self.total[0], self.total[4] = busy, spent

    def _double(self) -> None:
        rows = self.bins
        self.bins = [
            [a + b for a, b in zip(rows[i], rows[i + 1] if i + 1 < len(rows) else [0.0] * _N, strict=True)]
            for i in range(0, len(rows), 2)
        ]
        self.width *= 2


def merged(lines: list[Timeline]) -> tuple[float, Floats]:
    """(seconds of a bin, bins x `FIELDS`) of several replicas added up."""
    width = max(line.width for line in lines)
    for line in lines:
        while line.width < width:
            line._double()
    length = max((len(line.bins) for line in lines), default=0)
    table = np.zeros((length, _N))
    for line in lines:
        if line.bins:
            table[: len(line.bins)] += np.array(line.bins)
    return width, table


class Rows:
    """One entry a request, NaN or -1 where it was not served."""

    def __init__(self, count: int, told: Callable[[int], None] | None = None) -> None:
        self.told = told
        """Is called now and then with how many more requests are through."""
        self.through = 0
        self.admitted = np.full(count, np.nan)
        self.first = np.full(count, np.nan)
        self.finish = np.full(count, np.nan)
        self.hits: Ints = np.zeros(count, np.int64)
        self.tried = np.zeros(count, np.bool_)
        """Whether it was looked up in the prefix cache."""
        self.preemptions = np.zeros(count, np.int32)
        self.replica = np.full(count, -1, np.int32)
        self.rejected: dict[int, str] = {}
        """request -> why it was turned away."""

    def count(self) -> None:
        """One more request is through: finished or rejected."""
        self.through += 1
        if self.told is not None and not self.through % _EVERY:
            self.told(_EVERY)


@dataclass(slots=True)
class Counts:
    """Totals of a replica."""

    hit_tokens: int = 0
    looked_up_tokens: int = 0
    preemptions: int = 0
    swapped_tokens: int = 0
    recomputed_tokens: int = 0
    steps: int = 0

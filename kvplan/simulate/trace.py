"""A trace in memory: arrivals, lengths and what prompts have in common, as flat arrays.

A prompt is a chain of segments. A segment is a key and a length: equal keys mean equal content *and* equal
content before it, so that two prompts share exactly the leading segments with equal keys. The last segment
may be shorter in one request than in another: the shorter one is then the beginning of the longer.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvplan.errors import InputError
from kvplan.simulate.documents import Broken

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

MAX_LENGTH = 1 << 32
"""Tokens of one request beyond which a trace is taken to be broken."""
MAX_NAMED = 3
"""Broken lines that are named; the rest are counted."""


@dataclass(frozen=True, kw_only=True)
class Trace:
    """Requests in order of arrival. All arrays have one entry a request, but for the segments."""

    name: str
    format: str
    arrivals: Floats
    """Seconds, the first request at 0."""
    prompts: Ints
    outputs: Ints
    samples: Ints
    """Sequences that are generated from one prompt."""
    offsets: Ints
    """Where a request's segments begin in `keys` and `lengths`; one entry more than requests."""
    keys: Ints
    lengths: Ints
    tails: Ints
    """Key of the stream that the output continues: that of the last segment, or -1: nobody reads it again."""
    block_tokens: int | None
    """Tokens of one block of the trace's own hash ids; None: it has none."""
    timed: bool
    """Whether the trace says when requests arrive; if not, all arrive at 0."""
    broken: Broken
    notes: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.prompts)

    def chain(self, index: int) -> list[tuple[int, int]]:
        """(key, tokens) of each segment of a prompt; empty: it has nothing in common with any other."""
        first, last = int(self.offsets[index]), int(self.offsets[index + 1])
        return list(zip(self.keys[first:last].tolist(), self.lengths[first:last].tolist(), strict=True))

    def taken(self, chosen: Ints) -> Trace:
        """The requests at `chosen` (ascending indices), the arrivals counted from the first of them."""
        counts = np.diff(self.offsets)
        offsets = np.concatenate(([0], np.cumsum(counts[chosen]))).astype(np.int64)
        starts, kept = self.offsets[:-1][chosen], counts[chosen]
        where = np.repeat(starts - offsets[:-1], kept) + np.arange(offsets[-1]) if len(chosen) else np.zeros(0, int)
        arrivals = self.arrivals[chosen]
        return replace(
            self, arrivals=arrivals - arrivals[0] if len(arrivals) else arrivals, prompts=self.prompts[chosen],
            outputs=self.outputs[chosen], samples=self.samples[chosen], tails=self.tails[chosen], offsets=offsets,
            keys=self.keys[where], lengths=self.lengths[where],
        )  # fmt: skip


class Builder:
    """Collects requests as a reader finds them.

    Args:
        strict: the first broken line ends the reading.
        where: the file, for messages.
    """

    def __init__(self, *, strict: bool = False, where: str = "") -> None:
        self.strict, self.where = strict, where
        self.arrivals, self.prompts, self.outputs = array("d"), array("q"), array("q")
        self.samples, self.tails = array("q"), array("q")
        self.offsets, self.keys, self.lengths = array("q", [0]), array("q"), array("q")
        self.broken = 0
        self.first: list[str] = []

    def add(
        self, arrival: float, prompt: int, output: int, keys: Any = (), lengths: Any = (), *, tail: int = -1,
        samples: int = 1,
    ) -> None:  # fmt: skip
        """One request; lengths are checked by the reader (`length`)."""
        self.arrivals.append(arrival)
        self.prompts.append(prompt)
        self.outputs.append(output)
        self.samples.append(samples)
        self.tails.append(tail)
        self.keys.extend(keys)
        self.lengths.extend(lengths)
        self.offsets.append(len(self.keys))

    def refuse(self, place: str, why: str) -> None:
        """A line that cannot be used.

        Raises:
            InputError: `strict` is set.
        """
        if self.strict:
            raise InputError(
                why, where=f"{self.where}, {place}", hint="without --strict broken lines are counted and left out"
            )
        self.broken += 1
        if len(self.first) < MAX_NAMED:
            self.first.append(f"{place}: {why}")

    def build(self, name: str, format: str, *, block_tokens: int | None = None, timed: bool = True) -> Trace:
        """The trace, sorted by arrival where it was not.

        Raises:
            InputError: there is no request in it.
        """
        if not self.prompts:
            lost = f" ({self.broken:,} broken, {self.first[0]})" if self.broken else ""
            raise InputError(f"no request in it{lost}", where=self.where or name, hint="is it a trace? --trace-format")
        arrivals = np.array(self.arrivals)
        made = Trace(
            name=name, format=format, arrivals=arrivals, prompts=_ints(self.prompts), outputs=_ints(self.outputs),
            samples=_ints(self.samples), offsets=_ints(self.offsets), keys=_ints(self.keys),
            lengths=_ints(self.lengths), tails=_ints(self.tails), block_tokens=block_tokens, timed=timed,
            broken=Broken(self.broken, tuple(self.first)),
        )  # fmt: skip
        late = int((np.diff(arrivals) < 0).sum())
        if not late:
            return replace(made, arrivals=arrivals - arrivals[0])
        some = (
            "a timestamp lies before the one above it" if late == 1 else f"{late:,} timestamps lie before those above"
        )
        notes = (f"{some}: the requests were sorted",)
        return replace(made.taken(np.argsort(arrivals, kind="stable")), notes=notes)


def _ints(values: array[int]) -> Ints:
    return np.array(values, dtype=np.int64)


def length(value: Any, name: str) -> int:
    """A number of tokens above zero.

    Raises:
        ValueError: anything else; says what it is.
    """
    if isinstance(value, str):
        text = value.strip()
        if not text.lstrip("-").isdigit():
            raise ValueError(f"{name} {text[:30]!r} is not a whole number")
        value = int(text)
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError(f"{name} is missing" if value is None else f"{name} {str(value)[:30]!r} is not a whole number")
    if value < 1:
        raise ValueError(f"{name} {value} is not above 0")
    if value > MAX_LENGTH:
        raise ValueError(f"{name} {value} is absurdly large")
    return value


def instant(value: Any, name: str) -> float:
    """A time in whatever unit.

    Raises:
        ValueError: not a finite number.
    """
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):  # a whole number of hundreds of digits is no float
        raise ValueError(f"{name} {str(value)[:30]!r} is not a time") from None
    if isinstance(value, bool) or number != number or abs(number) > 1e15:
        raise ValueError(f"{name} {str(value)[:30]!r} is not a time")
    return number

"""What is in a trace: counts, percentiles, arrivals, and how much of the prompts any cache could share."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from kvplan.simulate.documents import TRACE_SCHEMA, Arrivals, Bounded, Ceiling, Description, Spread, TraceLengths
from kvplan.simulate.trace import Floats, Ints, Trace

CACHE_BLOCKS = (10_000, 50_000)
"""Sizes of a cache, in blocks of the trace, for which the hits are counted if nothing is asked for."""
DEFAULT_BLOCK = 16
"""Tokens of a block where prompts share something and the trace has no blocks of its own."""
PERCENTS = (50, 90, 99)


def blocks_of(trace: Trace, size: int) -> Iterator[tuple[list[Any], int]]:
    """(block keys, tokens) of every prompt that says what it shares, in blocks of `size` tokens.

    A segment's blocks are told apart by their place in it; a block belongs to the segment of its last token.
    """
    own = trace.block_tokens == size
    for index, prompt in enumerate(trace.prompts.tolist()):
        chain = trace.chain(index)
        if own:
            yield [key for key, _ in chain], prompt
            continue
        keys: list[Any] = []
        end = 0
        for key, tokens in chain:
            first = end // size
            end += tokens
            keys += [(key, i) for i in range(first, end // size)]
        keys += [(-1 - index, i) for i in range(len(keys), -(-prompt // size))]  # what nobody else has
        yield keys, prompt


def ceiling(trace: Trace, block_tokens: int | None = None) -> Ceiling:
    """The most that prefix caching can save.

    Args:
        block_tokens: of a block, where the trace has none of its own; None: `DEFAULT_BLOCK`.
    """
    tokens = int(trace.prompts.sum())
    if not len(trace.keys):
        return Ceiling(None, 0, 0, tokens, 0)
    size = trace.block_tokens or block_tokens or DEFAULT_BLOCK
    seen: dict[int, int] = {}
    blocks = hits = saved = 0
    tails, outputs = trace.tails.tolist(), trace.outputs.tolist()
    for index, prompt in enumerate(trace.prompts.tolist()):
        found = end = first = key = 0
        leading = True
        for key, length in trace.chain(index):
            first, end = end // size, end + length
            count = max(1, end // size - first) if trace.block_tokens else end // size - first
            known = seen.get(key, 0)
            if leading:
                found += min(known, count)
                leading = known >= count
            if count > known:
                seen[key] = count
        if tails[index] >= 0 and tails[index] == key:
            seen[key] = max(seen.get(key, 0), (prompt + outputs[index] - 1) // size - first)
        blocks += -(-prompt // size)
        hits += found
        saved += min(found * size, prompt)
    return Ceiling(size, blocks, hits, tokens, saved)


def bounded(trace: Trace, cache_blocks: int) -> Bounded:
    """Hits of a cache of `cache_blocks` blocks."""
    size = trace.block_tokens or DEFAULT_BLOCK
    held: OrderedDict[Any, None] = OrderedDict()
    hits = saved = 0
    for keys, prompt in blocks_of(trace, size):
        found = _leading(keys, held)
        hits, saved = hits + found, saved + min(found * size, prompt)
        for key in reversed(keys):  # the first block is the last that was used: it stays longest
            held[key] = None
            held.move_to_end(key)
        while len(held) > cache_blocks:
            held.popitem(last=False)
    return Bounded(cache_blocks, hits, saved)


def _leading(keys: Sequence[Any], known: Any) -> int:
    """How many of `keys` are known before the first that is not."""
    for count, key in enumerate(keys):
        if key not in known:
            return count
    return len(keys)


def describe(trace: Trace, cache_blocks: Sequence[int] = CACHE_BLOCKS) -> Description:
    """What is in a trace; hits of caches of `cache_blocks` blocks where it says what prompts share."""
    most = ceiling(trace)
    return Description(
        schema=TRACE_SCHEMA, name=trace.name, format=trace.format, requests=len(trace),
        input_tokens=int(trace.prompts.sum()), output_tokens=int((trace.outputs * trace.samples).sum()),
        samples=int(trace.samples.max()), percentiles=TraceLengths(spread(trace.prompts), spread(trace.outputs)),
        arrivals=arrivals(trace.arrivals) if trace.timed else None, prefix_ceiling=most,
        lru=tuple(bounded(trace, size) for size in cache_blocks) if most.block_tokens else (),
        broken=trace.broken, notes=trace.notes,
    )  # fmt: skip


def spread(values: Ints) -> Spread:
    """Mean, percentiles, least and most."""
    p50, p90, p99 = map(float, np.percentile(values, PERCENTS))
    return Spread(float(values.mean()), int(values.min()), p50, p90, p99, int(values.max()))


def arrivals(times: Floats) -> Arrivals:
    """Duration, rate and burstiness of arrivals."""
    seconds, gaps = float(times[-1] - times[0]), np.diff(times)
    mean = float(gaps.mean()) if len(gaps) else 0.0
    return Arrivals(
        seconds,
        (len(times) - 1) / seconds if seconds > 0 else None,
        int(np.bincount((times // 60).astype(np.int64)).max()) if seconds < 1e9 else None,
        float(gaps.std() / mean) if mean > 0 else None,
    )

"""Prefix sharing in the arithmetic: what requests have in common is held once, the rest by each.

A system prompt of s tokens before requests of p more and o of output takes ``blocks(s)`` once and
``blocks(s + p + o) - blocks(s)`` for each request, where the engine shares it in whole blocks or pages; an engine that
shares nothing holds the whole of each. `Engine.holds` is that rule, and everything here asks it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from kvplan.spec.arrays import Number, choose, is_array, last_true, last_true_of_each, smaller

if TYPE_CHECKING:
    from kvplan.engines.base import Engine, Settings, Stage
    from kvplan.spec.model import ModelSpec

MOST = 1 << 20
"""No more requests than this are counted."""
LENGTHS = (0, *(256 << i for i in range(0, 14, 2)))
"""Lengths of a system prompt at which the report says how many requests run: none, 256, 1K, 4K, ..."""
_AT_LEAST, _TIMES = 4096, 4
"""They go up to 4K, or to four times the length that was given."""


class AtPrefix(NamedTuple):
    """What one replica runs at once behind a system prompt of one length, the rest of the request as it is."""

    prefix_tokens: int
    """Of the system prompt, which comes before the rest of the prompt."""
    shared_tokens: int
    """As many of them as the engine holds once for all requests."""
    requests: int
    """At once, the prefix shared."""
    requests_unshared: int
    """At once where each request holds its own copy."""


def requests(
    engine: Engine, stages: tuple[Stage, ...], settings: Settings, kv: tuple[Number, ...], *, by_cache: bool = False
) -> Number:
    """Requests of prompt + output that one replica runs at once, their common prefix held once.

    Args:
        settings: numbers, or arrays whose shapes broadcast; the concurrency in them does not count.
        kv: bytes of cache on each stage; arrays too.
        by_cache: as many as the cache holds, whatever limits the running ones.
    """
    count_at = engine.held_at if by_cache else engine.requests_at
    shared = settings.shared_prefix_tokens
    if not is_array(shared) and not shared:
        return count_at(stages, settings, kv, settings.request_tokens)
    dp = settings.data_parallel_size
    # an engine's own limit of running requests shows in how many of the shortest it takes
    top = smaller(count_at(stages, settings, kv, 1), MOST)

    def holds(count: Number) -> Any:
        return engine.holds(stages, replace(settings, concurrency=count * dp), kv)

    if not (is_array(holds(1)) or is_array(top)):
        return last_true(0, top + 1, holds)
    import numpy

    none = numpy.zeros(numpy.broadcast_shapes(numpy.shape(holds(1)), numpy.shape(top)), numpy.int64)
    found = last_true_of_each(none, none + top + 1, holds)
    alone = count_at(stages, settings, kv, settings.request_tokens)
    return choose(shared == 0, alone, found) if is_array(shared) else found


def running_limit(settings: Settings) -> int | None:
    """The engine's own limit of running requests of a replica; None: it has none beside the cache."""
    if settings.max_num_seqs:  # of each group of ranks that has a batch of its own
        return settings.max_num_seqs * int(settings.extra.get("attn_dp_size", 1))
    limit: int | None = settings.extra.get("max_running_requests")
    return limit


def by_prefix(
    model: ModelSpec, engine: Engine, stages: tuple[Stage, ...], settings: Settings, kv: tuple[int, ...]
) -> tuple[AtPrefix, ...]:
    """Capacity against the length of the system prompt, what each request has of its own staying the same.

    Args:
        model: as it is served.
        settings: their prompt is the system prompt (`shared_prefix_tokens`) and what each request adds to it.
    """
    own = settings.prompt_tokens - settings.shared_prefix_tokens
    top = max(_AT_LEAST, _TIMES * settings.shared_prefix_tokens)
    longest = min(settings.max_model_len - own - settings.output_tokens, top)
    lengths = sorted({n for n in LENGTHS if own + n > 0 and n <= longest} | {settings.shared_prefix_tokens})
    found = []
    for length in lengths:
        at = replace(settings, shared_prefix_tokens=length, prompt_tokens=own + length)
        alone = engine.requests_at(stages, at, kv, at.request_tokens)
        together = requests(engine, stages, at, kv) if length else alone
        held = engine.shared_prefix_tokens(model, at) if length else 0
        found.append(AtPrefix(length, int(held), int(together), int(alone)))
    return tuple(found)

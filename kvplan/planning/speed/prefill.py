"""Seconds from a prompt to its first token: matrix products, attention's quadratic part, chunks.

Takes ints or NumPy arrays for `tokens`, as `kvplan.planning.speed.decode` does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from kvplan.planning.speed import work as of
from kvplan.planning.speed.decode import kernel_seconds, message_seconds
from kvplan.planning.speed.rates import Rates, join
from kvplan.spec.arrays import choose, is_array, larger, smaller

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from kvplan.planning.speed.decode import Layout
    from kvplan.planning.speed.work import StageWork

MOST_CHUNKS = 256
"""Full steps of one prompt that are worked out one by one."""


class Prompt(NamedTuple):
    """One prompt alone on its replica, cold: no prefix is cached, nothing else runs."""

    flops: Any
    """Of the most loaded rank of every stage, added up."""
    num_bytes: Any
    """Read from memory by these ranks: weights once a chunk, the cache once a chunk."""
    memory: Any
    compute: Any
    communication: Any
    seconds: Any


def prompt(works: Sequence[StageWork], rates: Rates, layout: Layout, tokens: Any, chunk: Any) -> Prompt | None:
    """The prefill of one request; None where the device's matrix rate is not known.

    A prompt runs in ``ceil(tokens / chunk)`` steps, full ones and a rest as the engine cuts it; each reads the weights
    and the cache so far. With pipeline stages a chunk enters the first as soon as the one before has left it: engines
    count its tokens as computed when they schedule them. Source: vLLM 0.33.0 ``vllm/v1/core/sched/scheduler.py``,
    ``_update_after_schedule``, and ``vllm/config/vllm.py``, ``max_concurrent_batches``.

    FLOPs are ``2 x parameters x tokens`` (the head only for the last
    token) plus attention, half of the square (causal): ``2 x heads x (d_k + d_v) x tokens x (tokens + 1) / 2`` a
    layer of full attention. Of more than `MOST_CHUNKS` full steps neighbours count as the middle one of them.
    """
    if rates.matmul_flops is None or rates.attention_flops is None:
        return None
    steps = -(-tokens // chunk)
    before = (steps - 1) * chunk
    total = Prompt(tokens * 0, tokens * 0, 0.0, 0.0, 0.0, 0.0)
    stages = [w._replace(experts=tuple(e._replace(groups=1) for e in w.experts)) for w in works]  # the others idle
    free: list[Any] = [0.0] * len(stages)
    for number, start, end, last in (*_full_chunks(steps - 1, chunk), (1, before, tokens, True)):
        parts = [_chunk(w, rates, layout, start, end, w.head_parameters if last else 0) for w in stages]
        for part in parts:
            total = Prompt(*(sum_ + number * more for sum_, more in zip(total, part, strict=True)))
        free = left(free, [part.seconds for part in parts], number)
    return total._replace(seconds=rates.step_seconds * steps + free[-1])


def left(free: Sequence[Any], seconds: Sequence[Any], number: Any = 1) -> list[Any]:
    """When pipeline stages are free again that `number` equal chunks pass one behind the other.

    A chunk waits for the stage before it and for the chunk before it (a permutation flow shop, whose recurrence is
    Johnson's, Naval Research Logistics Quarterly 1, 1954).

    Args:
        free: when each stage was free before.
        seconds: of one chunk on each stage.
        number: may be 0, and an array.
    """
    if len(free) == 1:
        return [free[0] + number * seconds[0]]
    first: Any = free[0]
    last: Any = None
    found = []
    for was, here in zip(free, seconds, strict=True):
        first = larger(first, was) + here
        alone = first + (number - 1) * here
        last = alone if last is None else larger(last + here, alone)
        found.append(choose(number > 0, last, was))
    return found


def _full_chunks(count: Any, chunk: Any) -> Iterator[tuple[Any, Any, Any, bool]]:
    """(how many, first token, behind the last token, not the last) of the chunks before the last one."""
    most = int(count.max()) if is_array(count) else int(count)
    group = -(-most // MOST_CHUNKS)
    for first in range(0, most, group or 1):
        number = smaller(larger(count - first, 0), group)
        middle = first + larger(number - 1, 0) // 2
        yield number, middle * chunk, (middle + 1) * chunk, False


def _chunk(stage: StageWork, rates: Rates, layout: Layout, start: Any, end: Any, head: int) -> Prompt:
    """One stage's part of a step that computes the tokens from `start` up to `end` of a prompt.

    Args:
        head: parameters of the head, which the last token of a prompt passes; 0 where it is not among them.
    """
    new = end - start
    products = 2 * (of.token_parameters(stage, head=False) * new + head)
    attention = of.prefill_attention_flops(stage, end) - of.prefill_attention_flops(stage, start)
    scores = attention
    if of.index_reads(stage):
        narrow = rates.index_share
        scores = of.prefill_attention_flops(stage, end, narrow) - of.prefill_attention_flops(stage, start, narrow)
    compute, squares = product_seconds(rates, products), scores / rates.attention_flops
    weights, cache = of.weight_bytes(stage, new), of.kv_bytes(stage, end)
    reading, fetching = weights / rates.weight_bandwidth, cache / rates.attention_bandwidth
    messages = message_seconds(stage, rates, layout, new)
    seconds = join(reading, compute, rates.softness) + join(fetching, squares, rates.softness)
    return Prompt(
        products + attention, weights + cache, reading + fetching, compute + squares, messages,
        seconds + messages + kernel_seconds(stage, rates),
    )  # fmt: skip


def product_seconds(rates: Rates, products: Any) -> Any:
    """Seconds of `products` FLOPs of matrix products in a prefill."""
    assert rates.matmul_flops is not None  # the callers looked
    compute = products / (rates.matmul_flops * rates.prefill_share)
    return compute if rates.prefill_cap is None else join(compute, products / rates.prefill_cap, rates.softness)


def bound(parts: Prompt) -> str:
    """The largest of memory, compute and communication."""
    sizes = {"memory": parts.memory, "compute": parts.compute, "communication": parts.communication}
    return max(sizes, key=lambda name: float(sizes[name]))

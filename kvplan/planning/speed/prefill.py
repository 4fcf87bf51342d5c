"""Seconds from a prompt to its first token: matrix products, attention's quadratic part, chunks.

Takes ints or NumPy arrays for `tokens`, as `kvplan.planning.speed.decode` does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from kvplan.planning.speed import work as of
from kvplan.planning.speed.decode import kernel_seconds, message_seconds
from kvplan.planning.speed.rates import Rates, join
from kvplan.spec.arrays import is_array, larger, smaller

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

    A prompt runs in ``ceil(tokens / chunk)`` steps, full ones and a rest as the engine cuts it, stage after stage;
    each reads the weights and the cache so far. FLOPs are ``2 x parameters x tokens`` (the head only for the last
    token) plus attention, half of the square (causal): ``2 x heads x (d_k + d_v) x tokens x (tokens + 1) / 2`` a
    layer of full attention. Of more than `MOST_CHUNKS` full steps neighbours count as the middle one of them.
    """
    if rates.matmul_flops is None or rates.attention_flops is None:
        return None
    steps = -(-tokens // chunk)
    before = (steps - 1) * chunk
    total = Prompt(tokens * 0, tokens * 0, 0.0, 0.0, 0.0, rates.step_seconds * steps)
    for stage in works:
        stage = stage._replace(experts=tuple(e._replace(groups=1) for e in stage.experts))  # the others idle
        for number, start, end, head in (*_full_chunks(steps - 1, chunk), (1, before, tokens, stage.head_parameters)):
            part = _chunk(stage, rates, layout, start, end, head)
            total = Prompt(*(sum_ + number * more for sum_, more in zip(total, part, strict=True)))
    return total


def _full_chunks(count: Any, chunk: Any) -> Iterator[tuple[Any, Any, Any, int]]:
    """(how many, first token, behind the last token, no head) of the chunks before the last one."""
    most = int(count.max()) if is_array(count) else int(count)
    group = -(-most // MOST_CHUNKS)
    for first in range(0, most, group or 1):
        number = smaller(larger(count - first, 0), group)
        middle = first + larger(number - 1, 0) // 2
        yield number, middle * chunk, (middle + 1) * chunk, 0


def _chunk(stage: StageWork, rates: Rates, layout: Layout, start: Any, end: Any, head: int) -> Prompt:
    """One stage's part of a step that computes the tokens from `start` up to `end` of a prompt.

    Args:
        head: parameters of the head, which the last token of a prompt passes; 0 where it is not among them.
    """
    new = end - start
    products = 2 * (of.token_parameters(stage, head=False) * new + head)
    attention = of.prefill_attention_flops(stage, end) - of.prefill_attention_flops(stage, start)
    compute, squares = product_seconds(rates, products), attention / rates.attention_flops
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

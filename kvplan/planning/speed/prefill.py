"""Seconds from a prompt to its first token: matrix products, attention's quadratic part, chunks.

Takes ints or NumPy arrays for `tokens`, as `kvplan.planning.speed.decode` does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from kvplan.planning.speed import work as of
from kvplan.planning.speed.decode import kernel_seconds, message_seconds
from kvplan.planning.speed.rates import Rates, join

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvplan.planning.speed.decode import Layout
    from kvplan.planning.speed.work import StageWork


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


def prompt(works: Sequence[StageWork], rates: Rates, layout: Layout, tokens: Any, chunk: int) -> Prompt | None:
    """The prefill of one request; None where the device's matrix rate is not known.

    A prompt runs in ``ceil(tokens / chunk)`` steps, stage after stage; each reads the weights and the cache
    so far. FLOPs are ``2 x parameters x tokens`` (the head only for the last token) plus attention, half of
    the square (causal): ``2 x heads x (d_k + d_v) x tokens x (tokens + 1) / 2`` a layer of full attention.
    """
    if rates.matmul_flops is None or rates.attention_flops is None:
        return None
    steps = -(-tokens // chunk)
    mean = tokens // steps
    plateau = rates.matmul_flops * rates.prefill_share
    total = Prompt(tokens * 0, tokens * 0, 0.0, 0.0, 0.0, rates.step_seconds * steps)
    for stage in works:
        stage = stage._replace(experts=tuple(e._replace(groups=1) for e in stage.experts))  # the others idle
        products = 2 * (of.token_parameters(stage, head=False) * tokens + stage.head_parameters)
        attention = of.prefill_attention_flops(stage, tokens)
        compute = products / plateau
        if rates.prefill_cap:
            compute = join(compute, products / rates.prefill_cap, rates.softness)
        squares = attention / rates.attention_flops
        weights = steps * of.weight_bytes(stage, mean)
        cache = (steps + 1) * of.kv_bytes(stage, tokens) // 2
        reading = weights / rates.weight_bandwidth
        fetching = cache / rates.attention_bandwidth
        messages = message_seconds(stage, rates, layout, mean) * steps
        seconds = join(reading, compute, rates.softness) + join(fetching, squares, rates.softness)
        total = Prompt(
            total.flops + products + attention, total.num_bytes + weights + cache, total.memory + reading + fetching,
            total.compute + compute + squares, total.communication + messages,
            total.seconds + seconds + messages + steps * kernel_seconds(stage, rates),
        )  # fmt: skip
    return total


def bound(parts: Prompt) -> str:
    """The largest of memory, compute and communication."""
    sizes = {"memory": parts.memory, "compute": parts.compute, "communication": parts.communication}
    return max(sizes, key=lambda name: float(sizes[name]))

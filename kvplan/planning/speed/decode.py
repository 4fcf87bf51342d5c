"""Seconds of one decode step: memory, compute, latency and communication of every stage.

The formulas take ints or NumPy arrays for `batch` and `context`; a sweep calls `step` on whole grids.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from kvplan.planning.speed import work as of
from kvplan.planning.speed.constants import SOFTNESS
from kvplan.planning.speed.rates import Rates, join
from kvplan.spec.arrays import larger, last_true

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from kvplan.planning.speed.work import StageWork

_MOST = 1 << 20
"""No batch larger than this is looked at."""


class Layout(NamedTuple):
    """How the ranks of one replica share a step."""

    tp: int = 1
    pp: int = 1
    dp: int = 1
    expert_parallel: bool = False


class Step(NamedTuple):
    """Seconds of a step (floats, or arrays of one shape), by what they are spent on."""

    memory: Any
    """Reading weights, cache and states at the rates of a full pipe."""
    compute: Any
    """Matrix products and attention at the plateau; None where the device's rate is not known."""
    latency: Any
    """What kernels cost besides, and the engine's own time per step."""
    communication: Any
    seconds: Any
    """All of it: memory and compute overlap (`rates.join`), the rest does not."""


def step(works: Sequence[StageWork], rates: Rates, layout: Layout, batch: Any, context: Any, *, width: int = 1) -> Step:
    """One decode step of a replica: every one of `batch` sequences of `context` tokens gets a token.

    With pipeline stages the batch travels as up to `pp` micro-batches: a token waits for its own to pass all
    stages, and for the slowest stage to serve every micro-batch, whichever is longer.

    Args:
        width: tokens of each sequence that the step computes: 1, or 1 + drafts with speculative decoding
            (the drafts' own time is not in it).
    """
    micro = batch if layout.pp == 1 else -(-batch // layout.pp)
    flying = batch if layout.pp == 1 else -(-batch // micro)
    known = rates.matmul_flops is not None and rates.attention_flops is not None
    total = Step(0.0, 0.0 if known else None, rates.step_seconds, 0.0, rates.step_seconds)
    slowest: Any = 0.0
    for stage in works:
        part = _stage_step(stage, rates, layout, micro, context, width)
        compute = total.compute + part.compute if known else None
        total = Step(
            total.memory + part.memory, compute, total.latency + part.latency,
            total.communication + part.communication, total.seconds + part.seconds,
        )  # fmt: skip
        slowest = larger(slowest, part.seconds)
    if layout.pp == 1:
        return total
    return total._replace(seconds=larger(total.seconds, flying * slowest + rates.step_seconds))


def _stage_step(stage: StageWork, rates: Rates, layout: Layout, batch: Any, context: Any, width: int) -> Step:
    """One stage's part of a step over `batch` sequences."""
    weights = of.weight_bytes(stage, batch * width) / rates.weight_bandwidth
    cache = of.kv_bytes(stage, context) / rates.attention_bandwidth * batch
    latency, messages = kernel_seconds(stage, rates), message_seconds(stage, rates, layout, batch * width)
    if rates.matmul_flops is None or rates.attention_flops is None:
        return Step(weights + cache, None, latency, messages, weights + cache + latency + messages)
    products = 2 * width * of.token_parameters(stage) / rates.decode_flops * batch
    attention = of.attention_flops(stage, context, rates.index_share) / rates.attention_flops * width * batch
    both = join(weights, products, rates.softness) + join(cache, attention, rates.softness)
    return Step(weights + cache, products + attention, latency, messages, both + latency + messages)


def kernel_seconds(work: StageWork, rates: Rates) -> float:
    """Launch and ramp of every kernel of a stage, which no bandwidth shortens."""
    kernels = work.kernels
    return (
        kernels.linear * rates.linear_seconds
        + kernels.attention * rates.attention_seconds
        + kernels.layers * rates.layer_seconds
        + kernels.routed * rates.routing_seconds
    )


def message_seconds(work: StageWork, rates: Rates, layout: Layout, tokens: Any) -> Any:
    """Collectives of a step over `tokens` tokens (`sent`)."""
    collectives, num_bytes = sent(work, layout)
    return rates.message_seconds(tokens * num_bytes, collectives)


def sent(work: StageWork, layout: Layout) -> tuple[int, float]:
    """(collectives of a step, bytes that they carry over each link for every token).

    An all-reduce behind every mixer and every FFN, one gather of logits, hops. A ring all-reduce of n bytes over r
    ranks moves ``2 (r - 1) / r x n`` over each link (Patarasuk and Yuan, 2009). With expert parallelism over
    data-parallel replicas that of routed experts is a pair of all-to-alls instead, which carry each token to
    `per_token` experts and back.
    """
    collectives, num_bytes = 0, 0.0
    row = work.hidden_size * 2
    if layout.tp > 1:
        routed = work.kernels.routed if layout.expert_parallel and layout.dp > 1 else 0
        reduces = work.kernels.reduces - routed
        collectives += reduces
        num_bytes += reduces * 2 * (layout.tp - 1) / layout.tp * row
        if work.vocab_rows:
            collectives += 1
            num_bytes += (layout.tp - 1) * work.vocab_rows * 2
    if layout.expert_parallel and layout.dp > 1 and work.kernels.routed:
        ranks = layout.tp * layout.dp
        fan = max((e.per_token for e in work.experts), default=0)
        collectives += 2 * work.kernels.routed
        num_bytes += work.kernels.routed * 2 * fan * (ranks - 1) / ranks * row / layout.tp
    if layout.pp > 1:
        collectives += 1
        num_bytes += row
    return collectives, num_bytes


def bound(parts: Step, bare: float | None = None) -> str | None:
    """The largest of memory, compute and communication; None where compute is not known.

    Args:
        bare: seconds of the reading if nothing but the memory limited it (`memory_seconds`). Where the engine's
            kernels take longer to work through the bytes than the memory to give them, that is compute.
    """
    if parts.compute is None:
        return None
    sizes = {"memory": parts.memory, "compute": parts.compute, "communication": parts.communication}
    largest = max(sizes, key=lambda name: float(sizes[name]))
    if largest == "memory" and bare is not None and parts.memory > join(bare, bare, SOFTNESS):
        return "compute"
    return largest


def memory_seconds(works: Sequence[StageWork], rates: Rates, layout: Layout, batch: int, context: int) -> float | None:
    """Seconds in which the memory alone would give the bytes of a step; None: nothing else limits them."""
    if rates.weight_memory is None and rates.attention_memory is None:
        return None
    micro = -(-batch // layout.pp)
    weights, cache = rates.weight_memory or rates.weight_bandwidth, rates.attention_memory or rates.attention_bandwidth
    found: float = sum(of.weight_bytes(w, micro) / weights + of.kv_bytes(w, context) / cache * micro for w in works)
    return found


def ridge_batch(works: Sequence[StageWork], rates: Rates, layout: Layout) -> int | None:
    """The batch of a replica at which multiplying the weights takes as long as reading them.

    None where the matrix rate is not known. Both grow with the batch, but reading only by the experts it
    touches, so they cross once. The cache is on neither side: its bytes and its FLOPs grow alike.
    """
    if rates.matmul_flops is None:
        return None
    flops = rates.decode_flops

    def crossed(batch: int) -> bool:
        micro = -(-batch // layout.pp)
        reading = sum(of.weight_bytes(stage, micro) for stage in works) / rates.weight_bandwidth
        return bool(micro * sum(2 * of.token_parameters(stage) for stage in works) / flops >= reading)

    return _first(crossed)


def saturation_batch(works: Sequence[StageWork], rates: Rates, layout: Layout, context: int) -> int | None:
    """The batch of a replica at which throughput is half of its `ceiling`; doubling it brings less and less.

    Below the ridge where the cache's bytes, not the products, fill the step.
    """
    top = ceiling(works, rates, layout, context)
    if top is None:
        return None
    return _first(
        lambda batch: batch * layout.dp / float(step(works, rates, layout, batch, context).seconds) >= top / 2
    )


def _first(holds: Callable[[int], bool]) -> int | None:
    """The smallest batch from which `holds` is true; None: none up to `_MOST`."""
    return last_true(0, _MOST, lambda batch: not holds(batch)) + 1 if holds(_MOST) else None


def ceiling(works: Sequence[StageWork], rates: Rates, layout: Layout, context: int) -> float | None:
    """Tokens a second of the deployment that no batch passes, if the cache held any: the flat part.

    With ever larger batches the weights' bytes and the latencies are shared by ever more tokens; what
    remains is each token's own FLOPs, cache bytes and messages on the slowest stage.
    """
    if rates.matmul_flops is None or rates.attention_flops is None:
        return None
    slowest = 0.0
    for stage in works:
        products = 2 * of.token_parameters(stage) / rates.decode_flops
        attention = of.attention_flops(stage, context, rates.index_share) / rates.attention_flops
        cache = of.kv_bytes(stage, context) / rates.attention_bandwidth
        many = 1 << 30
        messages = message_seconds(stage, rates, layout, many) / many
        slowest = max(slowest, products + float(join(cache, attention, rates.softness)) + float(messages))
    return layout.dp / slowest

"""The work that a cache saves: the same generation with every token's K and V made anew at each step.

With a cache a step computes one token: ``2 x parameters`` FLOPs, and attention over n entries, O(n d).
Without, it computes all n tokens again: ``2 x parameters x n``, and attention of n queries over n entries,
O(n^2 d). Where layers have a window of w entries, w stands for one n; a state costs the same at any length. Over a
whole generation these sums grow with the square and with the cube of its length.
Bytes with a cache: the weights and the cache, read once a step. Without: the weights (all experts that n
tokens touch), and K and V of every token written and read back within the step. Activations are not counted.
K and V of an encoder's rows are made once with the prompt; without a cache at each step. The encoder itself, whose
output is kept either way, is not counted.
Batch 1, one device; the prompt's own prefill is the same either way and stands on its own line.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from kvplan.engines.base import Stage
from kvplan.planning.speed import work as of

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvplan.cache.bytes import KvFormats
    from kvplan.engines.base import Settings
    from kvplan.planning.weights import RoleWeights
    from kvplan.spec.model import ModelSpec

_EXACT = 4096
"""Longer generations are summed over this many steps by the trapezoid rule (error below 10^-6)."""


class Work(NamedTuple):
    """FLOPs and bytes of all decode steps of one generation."""

    matrix_flops: int
    attention_flops: int
    bytes_read: int
    """And written, where there is no cache."""


class NoCache(NamedTuple):
    """One generation, with the cache and without."""

    prompt_tokens: int
    output_tokens: int
    prefill_flops: int
    with_cache: Work
    without: Work
    flops_ratio: float
    """Work without the cache over work with it, prefill included in both."""
    bytes_ratio: float
    last_step_flops_ratio: float
    """The same of the last step alone."""
    cache_bytes: int
    """What the sequence holds at the end, for that."""
    growth_with: str
    growth_without: str


def no_cache(
    model: ModelSpec, roles: list[RoleWeights], formats: KvFormats, settings: Settings, prompt: int, output: int
) -> NoCache:
    """A generation of `output` tokens after `prompt`, on one device, batch 1."""
    stage = Stage(0, model, True, True, sum(r.num_bytes for r in roles))
    work = of.stage_work(model, stage, tuple(roles), formats, settings)
    once = 2 * of.token_parameters(work)
    encoded = of.encoded_work(model, roles)

    def again(tokens: int) -> int:
        """Matrix FLOPs of `tokens` tokens, of K and V of the encoder's rows, and of the logits of one token."""
        return 2 * (of.token_parameters(work, head=False) * tokens + work.head_parameters) + encoded.flops

    def over(term: Callable[[int], Any]) -> int:
        return _sum(term, prompt + 1, prompt + output)

    cached = Work(
        once * output, over(lambda n: of.attention_flops(work, n)),
        over(lambda n: of.weight_bytes(work, 1) + of.kv_bytes(work, n)),
    )  # fmt: skip
    anew = Work(
        over(again), over(lambda n: of.prefill_attention_flops(work, n)),
        over(lambda n: of.weight_bytes(work, n) + 2 * of.kv_bytes(work, n) + encoded.bytes_read),
    )  # fmt: skip
    prefill = again(prompt) + int(of.prefill_attention_flops(work, prompt))
    last = prompt + output
    longest = again(last) + int(of.prefill_attention_flops(work, last))
    return NoCache(
        prompt_tokens=prompt, output_tokens=output, prefill_flops=prefill, with_cache=cached, without=anew,
        flops_ratio=(_flops(anew) + prefill) / (_flops(cached) + prefill),
        bytes_ratio=anew.bytes_read / cached.bytes_read,
        last_step_flops_ratio=longest / (once + int(of.attention_flops(work, last))),
        cache_bytes=int(of.kv_bytes(work, last)) - work.state_bytes,
        growth_with=_growth(model, anew=False), growth_without=_growth(model, anew=True),
    )  # fmt: skip


def _growth(model: ModelSpec, *, anew: bool) -> str:
    """How a step grows with n tokens of width d: matrices, and what the kinds of the model's layers read of the past.

    A full cache is read whole, a window of w entries up to w; a state has one size, which its width sets.
    """
    windows = {stream.window for _, mixer in model.mixers() for stream in mixer.streams()}
    terms = ["n d^2", *(["n^2 d"] if None in windows else []), *(["n w d"] if any(windows) else [])]
    if not anew:
        terms = [{"n d^2": "d^2", "n^2 d": "n d", "n w d": "w d"}[term] for term in terms]
    return f"a step: O({' + '.join(terms)})"


def _flops(work: Work) -> int:
    return work.matrix_flops + work.attention_flops


def _sum(term: Callable[[int], Any], first: int, last: int) -> int:
    """The sum of `term` over the whole numbers from `first` to `last`."""
    count = last - first + 1
    if count <= _EXACT:
        return sum(int(term(n)) for n in range(first, last + 1))
    total, ends = 0.0, int(term(first)) + int(term(last))
    for i in range(_EXACT):
        low, high = first + (count - 1) * i // _EXACT, first + (count - 1) * (i + 1) // _EXACT
        total += (high - low) * (int(term(low)) + int(term(high))) / 2
    return int(total + ends / 2)

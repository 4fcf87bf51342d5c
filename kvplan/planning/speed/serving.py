"""Steady states of a server: continuous batching with chunked prefill, and speculative decoding.

Takes ints or NumPy arrays for lengths and numbers of requests.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from kvplan.planning.speed import decode
from kvplan.planning.speed import work as of
from kvplan.planning.speed.rates import join
from kvplan.spec.arrays import ceiling as ceil
from kvplan.spec.arrays import larger, smaller

if TYPE_CHECKING:
    from kvplan.planning.speed.figures import Setup


class Steady(NamedTuple):
    """One replica under a steady load: as many requests begin as end."""

    decoding: Any
    """Sequences that get a token in each step (a mean, not whole)."""
    prefill_tokens: Any
    """Prompt tokens that ride in each step (a mean)."""
    seconds_per_step: Any
    """Time per output token."""
    seconds_to_first_token: Any
    """Of a request that is admitted at once; waiting comes on top."""
    requests_per_second: Any
    output_tokens_per_second: Any


def steady(setup: Setup, running: Any, prompt: Any, output: Any, *, shared: Any = 0) -> Steady:
    """A replica that always has `running` requests of `prompt` and `output` tokens.

    Each step decodes D sequences and carries q prompt tokens. As many requests begin as end, so each decoded
    token brings ``(prompt - shared) / output`` prompt tokens: ``q = D (prompt - shared) / output``. A step takes at
    most `Setup.chunk` tokens, which bounds D; and requests in prefill are among the running. Decode and prefill
    share one pass over the weights, which is what chunked prefill gains (Sarathi-Serve, arXiv 2403.02310).

    Args:
        shared: prompt tokens whose cache other requests have left (a common prefix); they are not computed again.
    """
    chunk, output = setup.chunk, larger(output, 1)  # the first token comes out of the prefill
    fresh = prompt - shared
    per_token = fresh / output
    decoding = smaller(running, chunk / (1 + per_token))
    context = prompt + output // 2
    seconds = _mixed(setup, decoding, decoding * per_token, context, fresh, shared)
    room = larger(chunk - decoding, 1)
    first = ceil(fresh / room) * _mixed(setup, decoding, smaller(fresh, room), context, fresh, shared)
    busy = output * seconds + first
    # Those in prefill do not decode: by Little's law the share of a request's life spent decoding
    decoding = smaller(decoding, running * (output * seconds) / busy)
    seconds = _mixed(setup, decoding, decoding * per_token, context, fresh, shared)
    requests = decoding / output / seconds
    return Steady(decoding, decoding * per_token, seconds, first, requests, requests * output)


def _mixed(setup: Setup, decoding: Any, prefill: Any, context: Any, fresh: Any, shared: Any) -> Any:
    """Seconds of a step over `decoding` sequences and `prefill` prompt tokens.

    A prompt token's attention is that of its prefill on average: over `fresh` tokens after `shared` ones.
    """
    works, rates, layout, _ = setup
    tokens = (decoding + prefill) / layout.pp
    total: Any = rates.step_seconds
    slowest: Any = 0.0
    for stage in works:
        reading = of.weight_bytes(stage, tokens) / rates.weight_bandwidth
        cache = decoding / layout.pp * of.kv_bytes(stage, context) / rates.attention_bandwidth
        seconds = decode.kernel_seconds(stage, rates) + decode.message_seconds(stage, rates, layout, tokens)
        if rates.matmul_flops is None or rates.attention_flops is None:
            seconds = seconds + reading + cache
        else:
            products = tokens * (2 * of.token_parameters(stage)) / rates.matmul_flops
            scores = decoding / layout.pp * of.attention_flops(stage, context) / rates.attention_flops
            squares = of.prefill_attention_flops(stage, fresh + shared) - of.prefill_attention_flops(stage, shared)
            scores = scores + prefill / layout.pp * squares / larger(fresh, 1) / rates.attention_flops
            seconds = seconds + join(reading, products, rates.softness) + join(cache, scores, rates.softness)
        total, slowest = total + seconds, larger(slowest, seconds)
    return total if layout.pp == 1 else larger(total, layout.pp * slowest + rates.step_seconds)


def expected_tokens(acceptance: Any, drafts: int) -> Any:
    """Tokens a step brings on average with `drafts` proposals, each accepted with chance `acceptance` (below 1).

    ``(1 - a^(k+1)) / (1 - a)``: the run of accepted drafts and the token that the model adds itself.
    Source: speculative decoding, arXiv 2211.17192, equation 1.
    """
    return (1 - acceptance ** (drafts + 1)) / (1 - acceptance)


def speculative_seconds(setup: Setup, batch: Any, context: Any, drafts: int) -> Any:
    """Seconds of a step that proposes `drafts` tokens by the model's own draft layers and checks them all.

    A proposal reads the draft layers and the head once; drafts that come from elsewhere (n-grams) cost nothing here.
    """
    works, rates, layout, _ = setup
    checked = decode.step(works, rates, layout, batch, context, width=1 + drafts).seconds
    last = works[-1]
    if not last.draft_bytes:
        return checked
    reading = (last.draft_bytes + last.head_bytes) / rates.weight_bandwidth
    launches = 3 * rates.linear_seconds + rates.attention_seconds + rates.layer_seconds  # one layer and the head
    if rates.matmul_flops is None:
        return checked + drafts * (reading + launches)
    products = batch * (2 * (last.draft_parameters + last.head_parameters)) / rates.matmul_flops
    return checked + drafts * (join(reading, products, rates.softness) + launches)


def break_even(setup: Setup, batch: int, context: int, drafts: int) -> float:
    """Tokens that a speculative step must bring on average to be worth its time; above `drafts` + 1 it never is."""
    plain = float(decode.step(setup.works, setup.rates, setup.layout, batch, context).seconds)
    return float(speculative_seconds(setup, batch, context, drafts)) / plain

"""From bytes to SGLang's pools: tokens at full length, tokens of windowed layers, state slots.

Read in SGLang 0.5.23 ``python/sglang/srt/model_executor/pool_configurator.py`` and
``python/sglang/srt/mem_cache/kv_cache_configurator.py``; the older way with states in 0.5.6 and 0.5.12.
"""

from __future__ import annotations

from math import ceil
from typing import TYPE_CHECKING, NamedTuple

from kvplan.cache.bytes import KvFormats, state_bytes, stream_rows
from kvplan.engines.rows import architecture_key
from kvplan.engines.sglang.models import held_window
from kvplan.engines.versions import at_least

if TYPE_CHECKING:
    from kvplan.spec.model import ModelSpec

PADDING_SLOT_SINCE = "0.5.17"
"""From here on the state slot that takes dummy writes is charged to the pools; before, it is laid out beside them."""

LEAST_TOKENS = 2
"""Running requests are at most half the tokens (``resolve_max_num_reqs``): with fewer there is none."""


class Cell(NamedTuple):
    """Bytes per token over the layers of one rank, and per state slot."""

    full_k: int
    full_v: int
    window_k: int
    window_v: int
    """Of windowed layers that have a pool of their own; 0 where none have."""
    window: int
    """The largest of their windows, as SGLang counts it."""
    conv: int
    recurrent: int
    """Of one state slot."""
    slots: int = 0
    """State slots that one running request takes."""

    @property
    def full(self) -> int:
        return self.full_k + self.full_v

    @property
    def windowed(self) -> int:
        return self.window_k + self.window_v

    @property
    def state(self) -> int:
        return self.conv + self.recurrent

    def token_bytes(self, ratio: float) -> float:
        """Bytes that one token of ``max_total_num_tokens`` costs; an int where no pool shares it."""
        if not self.full:
            return self.windowed
        return self.full + ratio * self.windowed if self.windowed else self.full

    def tokens_bytes(self, tokens: int, ratio: float, window_tokens: int | None) -> int:
        """Bytes of `tokens` tokens; with a windowed pool of `window_tokens`, where its size is set."""
        if window_tokens is None or not (self.full and self.windowed):
            return ceil(tokens * self.token_bytes(ratio))
        return tokens * self.full + window_tokens * self.windowed


class Pools(NamedTuple):
    """What a rank lays out."""

    tokens: int
    """``max_total_num_tokens``: tokens at full length (of windowed layers, where there are no others)."""
    window_tokens: int
    slots: int
    """State slots that are handed out."""
    padding_slots: int

    @property
    def empty(self) -> bool:
        """Whether no request runs."""
        return self.tokens < LEAST_TOKENS


def cell(model: ModelSpec, formats: KvFormats, *, window_pool: bool, slots: int) -> Cell:
    """The cell of the layers of `model`, which is what one rank holds.

    Args:
        window_pool: windowed layers have a pool of their own.
        slots: state slots of one running request, where there are states.
    """
    sizes = [0] * 4
    window = conv = recurrent = 0
    only_conv = formats._replace(recurrent_bytes=0)
    for layers, mixer in model.mixers():
        for stream, size, _ in stream_rows(mixer, formats):
            own = window_pool and stream.window is not None
            pooled = stream.ratio if stream.role == "index" else 1
            sizes[2 * own + (stream.role == "v")] += layers * -(-size // pooled)
            window = max(window, held_window(architecture_key(model), stream.window or 0)) if own else window
        states = state_bytes(mixer, formats)
        conv += layers * state_bytes(mixer, only_conv)
        recurrent += layers * (states - state_bytes(mixer, only_conv))
    full_k, full_v, window_k, window_v = sizes
    return Cell(full_k, full_v, window_k, window_v, window, conv, recurrent, slots if conv + recurrent else 0)


def pools_of(
    have: int,
    one: Cell,
    *,
    version: str,
    page: int,
    ratio: float,
    state_ratio: float,
    slots: int | None,
    limit: int | None,
    window_tokens: int | None = None,
) -> Pools:
    """The pools that `have` bytes give.

    Args:
        ratio: ``swa_full_tokens_ratio``.
        state_ratio: ``mamba_full_memory_ratio``, bytes of states over bytes of tokens.
        slots: state slots that are asked for; None: as many as the ratio gives.
        limit: ``max_total_tokens``.
        window_tokens: the size of the windowed pool, where running requests set it; None: the ratio does.
    """
    padding = 1 if one.state and at_least(version, PADDING_SLOT_SINCE) else 0
    count = 0
    if one.state:
        budget = int(have * state_ratio / (1 + state_ratio))
        count = slots if slots is not None else max(0, budget // one.state - padding)
        have -= (count + padding) * one.state
    fixed = window_tokens if one.full and one.windowed else None
    if fixed is not None:
        have -= fixed * one.windowed
    size = one.full if fixed is not None else one.token_bytes(ratio)
    tokens = int(max(0, have) // size) if size else (limit or 0)
    if limit is not None and limit < tokens:
        tokens = limit
        fixed = None if fixed is None else min(fixed, limit)
    tokens = tokens // page * page
    windowed = 0
    if one.windowed:
        windowed = int(tokens * ratio) // page * page if one.full else tokens
    if fixed is not None:
        windowed = fixed
    return Pools(tokens, windowed, count, padding)


def least_bytes(
    one: Cell,
    *,
    version: str,
    page: int,
    ratio: float,
    state_ratio: float,
    slots: int | None,
    limit: int | None,
    window_tokens: int | None = None,
) -> int:
    """The fewest bytes that give one request its pools; arguments as in `pools_of`.

    A windowed pool holds more than the window and a page (``validate_swa_pool_size``).
    """
    tokens, fixed = -(-LEAST_TOKENS // page) * page, window_tokens if one.full and one.windowed else None
    if one.windowed and fixed is None:
        least = (one.window // page + 2) * page
        tokens = -(-ceil(least / ratio) // page) * page if one.full else least
        while one.full and int(tokens * ratio) < least:  # a float, as SGLang takes it
            tokens += page
    size, each = one.tokens_bytes(tokens, ratio, fixed), one.token_bytes(ratio)
    if fixed is None and each and size // each < tokens:
        size += 1  # the quotient of floats falls short
    if not one.state:
        return size
    padding = 1 if at_least(version, PADDING_SLOT_SINCE) else 0
    if slots is not None:
        return size + (slots + padding) * one.state
    # the states get their share whatever the tokens need, and tokens the other part
    return max(
        ceil((one.slots + padding) * one.state * (1 + state_ratio) / state_ratio), ceil(size * (1 + state_ratio))
    )


def held_bytes(pools: Pools, one: Cell, page: int) -> int:
    """Bytes of all pools, with the page that takes dummy writes."""
    tokens = (pools.tokens + page) * one.full if one.full else 0
    windowed = (pools.window_tokens + page) * one.windowed if one.windowed else 0
    return tokens + windowed + (pools.slots + pools.padding_slots) * one.state

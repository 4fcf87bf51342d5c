"""How many slots the cache classes of MLX-LM hold, push by push.

Read in mlx-lm 0.32.2 ``mlx_lm/models/cache.py``. Every class grows by concatenation in its own way; a
prompt is pushed in chunks of ``prefill_step``, later tokens one by one. All counts are slots of one layer.
"""

from __future__ import annotations

from math import lcm
from typing import NamedTuple

STEP = 256
"""Slots by which a cache grows."""
MOST_PUSHES = 1 << 12
"""Chunks that are followed one by one; beyond, only those after the last multiple of chunk and step."""


class Slots(NamedTuple):
    """What one layer holds."""

    last: int
    """Slots at the end."""
    after_prompt: int
    """Slots once the prompt is in."""
    before_last: int
    """Slots before the last chunk of the prompt; 0 where the prompt is one chunk."""
    grown_from: int
    """Slots of the old tensor at the largest growth by concatenation; 0: it never grew."""


def up(tokens: int) -> int:
    """`tokens` rounded up to whole steps."""
    return -(-tokens // STEP) * STEP


def plain(prompt: int, tokens: int, step: int) -> Slots:
    """``KVCache``: what is beyond the tokens so far is cut off before a growth, unless they fill whole steps."""
    whole, rest = divmod(prompt, step)
    used = slots = before = grown = 0
    if whole > MOST_PUSHES:
        period = lcm(step, STEP) // step
        used = slots = whole // period * period * step
        whole %= period
    for size in (*[step] * whole, rest):
        if size == 0:
            continue
        before = slots
        if used + size > slots:
            grown = slots
            slots = (used if used % STEP else slots) + up(size)
        used += size
    after = slots
    if tokens > slots:
        slots += up(tokens - slots)
        grown = slots - STEP
    return Slots(slots, after, before, grown)


def rotating(prompt: int, tokens: int, step: int, window: int) -> Slots:
    """``RotatingKVCache``: several tokens at once keep ``window - 1`` besides themselves; one at a time fills
    the window step by step and cuts what is above it."""
    whole, rest = divmod(prompt, step)
    held = before = offset = 0
    for size in (*[step] * min(whole, 3 + window // step), rest):  # one more than fills it: what was before
        if size == 0:
            continue
        before = held
        held = _one_by_one(held, offset, 1, window) if size == 1 else min(held, window - 1) + size
        offset += size
    after = held
    grown = before
    if tokens > prompt:
        held = _one_by_one(held, offset, tokens - prompt, window)
        grown = max(grown, min(after, held))
    return Slots(held, after, before, grown)


def _one_by_one(held: int, offset: int, count: int, window: int) -> int:
    """Slots after `count` single tokens."""
    if held < window:
        while offset + count > held and held < window:
            held += min(STEP, window - held)
    return min(held, window)


def chunked(prompt: int, tokens: int, step: int, chunk: int) -> Slots:
    """``ChunkedKVCache`` (Llama 4): cut to one chunk before each push, then grown as the plain cache is."""
    whole, rest = divmod(prompt, step)
    used = slots = before = grown = 0

    def push(size: int) -> None:
        nonlocal used, slots, before, grown
        before = slots
        if used > chunk:
            used = slots = chunk
        if used + size > slots:
            grown = max(grown, slots)
            slots = (used if used % STEP else slots) + up(size)
        used += size

    for size in (*[step] * min(whole, 3 + chunk // step), rest):
        if size:
            push(size)
    after, prompt_before, left = slots, before, tokens - prompt
    if left > 0 and used <= chunk:
        alone = min(left, chunk + 1 - used)
        if used + alone > slots:
            slots += up(used + alone - slots)
            grown = slots - STEP
        used, left = used + alone, left - alone
    if left > 0:
        push(1)
    return Slots(slots, after, prompt_before, grown)

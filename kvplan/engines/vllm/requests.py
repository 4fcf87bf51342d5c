"""How many blocks one request reserves in each group.

Source: vLLM 0.33.0 ``vllm/v1/kv_cache_interface.py``, ``max_memory_usage_bytes`` of every spec.
"""

from __future__ import annotations

from typing import NamedTuple

from kvplan.engines.vllm.specs import WHOLE, WINDOWED, CacheLayer, Group, up
from kvplan.spec.arrays import Number, choose, largest, most, smaller


class Limits(NamedTuple):
    """What bounds a request besides its length."""

    in_flight_tokens: int
    """Tokens scheduled and not yet settled, which a window keeps besides itself."""
    encoder_tokens: int = 0
    """Encoder tokens that cross attention reserves: the whole encoder budget, not one input's."""
    dcp: int = 1
    """Ranks that share the tokens of caches of which every token stays."""
    mamba_mode: str = "none"
    """``none``, ``align`` or ``all``."""
    retained_tokens: int = 0
    """Tokens kept below a window for drafts that read several tokens ahead."""
    draft_states: bool = True
    """Whether states of draft tokens are reserved."""


def layer_blocks(layer: CacheLayer, tokens: Number, limits: Limits) -> Number:
    """Blocks that a request of `tokens` (int or array) reserves for one layer."""
    size, family = layer.block_size, layer.family
    if family == "mamba":
        drafts = layer.draft_blocks if limits.draft_states else 0
        if limits.mamba_mode == "align":
            return 2 + drafts + layer.checkpoint_blocks
        if limits.mamba_mode == "all":
            return up(tokens, size) + drafts
        return 1 + drafts
    if family == "ring":
        return 1
    if family == "cross":
        return up(limits.encoder_tokens, size)
    if family in ("sliding", "sliding_mla"):
        kept = (layer.window or 1) - 1 + limits.retained_tokens + limits.in_flight_tokens
        return up(smaller(kept, tokens), size) + 1
    if family == "chunked":
        return up(smaller((layer.window or 0) + limits.in_flight_tokens, tokens), size)
    return up(up(tokens, limits.dcp), size)


def group_blocks(group: Group, tokens: Number, limits: Limits) -> Number:
    """Blocks of one group: the most that any of its layers needs."""
    if not group.mixed:
        return layer_blocks(group.first, tokens, limits)
    return largest(layer_blocks(layer, tokens, limits) for layer in dict.fromkeys(group.layers))


def shared_blocks(group: Group, shared: Number, tokens: Number, limits: Limits) -> Number:
    """Blocks of one group that requests of `tokens` have in common behind a prefix of `shared` tokens in whole blocks.

    A window shares what no request has left behind: all of the prefix while requests end within it. Beyond that
    nothing is counted, although the latest blocks are shared as long as nobody moves on.
    Source: vLLM ``vllm/v1/core/single_type_kv_cache_manager.py``, ``find_longest_cache_hit``: blocks from the start are
    a hit however few they are.
    """
    first = group.first
    if first.family in WHOLE:
        return group_blocks(group, shared, limits)
    if first.family in WINDOWED and first.window is not None and not group.mixed:
        return choose(tokens <= first.window, up(shared, first.block_size), 0)
    return 0


def alike(groups: list[Group]) -> list[tuple[Group, int]]:
    """Groups of which a request takes equally many blocks: one of them, and how many they are."""
    counted: dict[tuple[CacheLayer, ...], tuple[Group, int]] = {}
    for group in groups:
        key = tuple(dict.fromkeys(group.layers)) if group.mixed else (group.first,)
        counted[key] = (group, counted.get(key, (group, 0))[1] + 1)
    return list(counted.values())


def request_blocks(groups: list[tuple[Group, int]], tokens: Number, limits: Limits) -> Number:
    """Blocks of all groups (as `alike` counts them) together; every group draws from the one pool."""
    return sum(count * group_blocks(group, tokens, limits) for group, count in groups)


def longest_request(groups: list[tuple[Group, int]], blocks: Number, limits: Limits) -> Number:
    """The most tokens of one request that `blocks` hold; 0: none; None: any number."""
    return most(lambda tokens: request_blocks(groups, tokens, limits), blocks)

"""Which layers share a block table: vLLM's grouping of caches, and the bytes of one block.

Source: vLLM 0.33.0 ``vllm/v1/core/kv_cache_planning.py`` (``get_kv_cache_groups``,
``unify_kv_cache_spec_page_size``, ``_get_kv_cache_groups_uniform_page_size``,
``_get_packed_kv_cache_groups``); releases before it: ``vllm/v1/core/kv_cache_utils.py``.
"""

from __future__ import annotations

from math import lcm
from typing import NamedTuple

from kvplan.engines.vllm.specs import WHOLE, CacheLayer, Group, all_mergeable, least_padding, mergeable, one_type
from kvplan.engines.vllm.versions import Rules
from kvplan.errors import UnsupportedError

HYBRID_HINT = "type --disable-hybrid-kv-cache-manager, or use --engine generic"
"""What to do where pages cannot be unified."""


def make_groups(layers: list[CacheLayer], rules: Rules, *, hybrid: bool = True, packed: bool = False) -> list[Group]:
    """Split the caches of a whole model into groups.

    Args:
        layers: every cache of every layer, in model order.
        hybrid: False: the hybrid manager is disabled, windows are held whole.
        packed: blocks hold the pages of all layers side by side (DeepSeek-V4).

    Raises:
        UnsupportedError: pages that this version cannot bring to one size.
    """
    if not layers:
        return []
    if not hybrid:
        layers = _without_windows(layers, keep=rules.has("window_own_block") and not rules.has("promoted_take_block"))
        if rules.has("mimo_own_values") and not rules.has("promoted_keep_values"):
            layers = [_square(layer) for layer in layers]
        if not (all_mergeable(layers) or one_type(layers)):
            raise UnsupportedError(
                "vLLM needs its hybrid cache manager for this model: the caches do not become one kind without it",
                where="--disable-hybrid-kv-cache-manager",
                hint="leave the flag out",
            )
    everything = tuple(range(len(layers)))
    if all_mergeable(layers):
        return [Group(everything, tuple(layers))]
    if one_type(layers):
        return [Group(everything, tuple(layers), True)]
    if packed and len({layer.page_bytes for layer in layers}) > 1:
        return _packed(layers) if rules.has("packed_groups") else _tuples(layers, rules)
    unified = _same_page(layers, rules)
    if unified is None:
        whole = _without_windows(layers)
        if {"mla", "sliding"} <= {x.family for x in layers} and rules.has("buckets_merge") and one_type(whole):
            return [Group(everything, tuple(whole), True)]
        raise UnsupportedError(
            f"vLLM {rules.name} cannot bring this model's cache pages to one size",
            where="--engine vllm",
            hint=HYBRID_HINT,
        )
    return _by_kind(unified, rules)


def _without_windows(layers: list[CacheLayer], *, keep: bool = False) -> list[CacheLayer]:
    """Windowed layers as full ones, where the model has full ones besides.

    Args:
        keep: they keep blocks of their own.
    """
    if all_mergeable(layers) or one_type(layers):
        return layers
    whole = {layer.block_size for layer in layers if layer.family in WHOLE}
    if not whole:
        return layers
    size = whole.pop() if len(whole) == 1 and not keep else None
    return [layer.promoted(size) for layer in layers]


def _square(layer: CacheLayer) -> CacheLayer:
    """A layer that was windowed, with values as wide as keys, as 0.20 makes it (``unify_hybrid_kv_cache_specs``)."""
    if layer.family != "full" or layer.window is None or len(layer.shape) < 4:
        return layer
    keys, values = layer.shape[1:3]
    assert isinstance(keys, int)
    assert isinstance(values, int)
    return layer._replace(
        row_bytes=layer.row_bytes * 2 * keys // (keys + values), shape=(*layer.shape[:2], keys, *layer.shape[3:])
    )


def _same_page(layers: list[CacheLayer], rules: Rules) -> list[CacheLayer] | None:
    """All layers with the largest page: by larger blocks where it divides, by padding else. None: impossible."""
    largest = max(layer.page_bytes for layer in layers)
    cache: dict[CacheLayer, CacheLayer | None] = {}
    for layer in dict.fromkeys(layers):
        page = layer.page_bytes
        if page == largest:
            cache[layer] = layer
        elif layer.family == "mamba":
            cache[layer] = layer._replace(padded_bytes=largest) if rules.has("states_may_be_padded") else None
        elif largest % page == 0:
            scale = largest // page
            cache[layer] = layer._replace(
                block_size=layer.block_size * scale, padded_bytes=layer.padded_bytes and largest
            )
        elif _paddable(layer, rules):
            cache[layer] = layer._replace(padded_bytes=largest)
        else:
            return None
    found = [cache[layer] for layer in layers]
    return None if None in found else [layer for layer in found if layer is not None]


def _paddable(layer: CacheLayer, rules: Rules) -> bool:
    """Whether a page may be larger than its rows: until 0.28 TurboQuant's backend does not read by a block's stride.

    Source: vLLM 0.24.0 ``vllm/v1/attention/backend.py``, ``indexes_kv_by_block_stride``.
    """
    packed = bool(layer.shape) and str(layer.shape[-1]).startswith("turboquant")
    since = "packed_may_be_padded" if packed else "pages_may_be_padded"
    return layer.family not in ("mla", "sliding_mla") and rules.has(since)


def _by_kind(layers: list[CacheLayer], rules: Rules) -> list[Group]:
    """Buckets of equal layers, cut into groups of one size, dealt round robin."""
    same: dict[CacheLayer, list[int]] = {}
    for index, layer in enumerate(layers):
        same.setdefault(layer, []).append(index)
    buckets: list[list[int]] = []
    kinds: list[list[CacheLayer]] = []
    for layer, members in same.items():
        home = next((i for i, k in enumerate(kinds) if all(mergeable(layer, other) for other in k)), None)
        if home is None or not rules.has("buckets_merge"):
            buckets.append(list(members))
            kinds.append([layer])
        else:
            buckets[home] += members
            kinds[home].append(layer)
    size = _group_size([len(b) for b in buckets], rules)
    groups = []
    for bucket in buckets:
        count = -(-len(bucket) // size)
        for i in range(count):
            members = bucket[i::count]
            groups.append(Group(tuple(members), tuple(layers[m] for m in members)))
    return groups


def _group_size(counts: list[int], rules: Rules) -> int:
    """Layers per group: the smallest bucket, or the largest where it is not much larger."""
    smallest, largest = min(counts), max(counts)
    if not rules.has("group_of_the_larger"):
        return smallest
    quarters = 6 if rules.has("group_factor_1_5") else 5
    return largest if 4 * largest < quarters * smallest else smallest


def _tuples(layers: list[CacheLayer], rules: Rules) -> list[Group]:
    from kvplan.engines.vllm.tuples import tuple_groups

    return tuple_groups(layers, rules)


class _Bucket(NamedTuple):
    members: list[int]
    by_page: dict[int, list[int]]
    """Page bytes -> members with it, in order of first appearance."""

    @property
    def balanced(self) -> bool:
        """Whether every page size occurs equally often: one of each makes a repeating pattern."""
        return len({len(m) for m in self.by_page.values()}) == 1

    @property
    def repeats(self) -> int:
        return max(len(m) for m in self.by_page.values())


def _packed(layers: list[CacheLayer]) -> list[Group]:
    """Groups whose blocks hold pages of different sizes side by side."""
    buckets: list[_Bucket] = []
    for index, layer in enumerate(layers):
        for bucket in buckets:
            if one_type([*(layers[m] for m in bucket.members[:1]), layer]):
                break
        else:
            bucket = _Bucket([], {})
            buckets.append(bucket)
        bucket.members.append(index)
        bucket.by_page.setdefault(layer.page_bytes, []).append(index)
    floor = max((b.repeats for b in buckets if b.balanced and len(b.by_page) > 1), default=0)
    repeats = least_padding([b.repeats for b in buckets if b.balanced], floor) if floor else None
    counts = [-(-b.repeats // repeats) if repeats and b.balanced else 1 for b in buckets]
    anchor = 0
    states = []
    for bucket, count in zip(buckets, counts, strict=True):
        family = layers[bucket.members[0]].family
        state = family in ("mamba", "ring") or (repeats is None and family in ("sliding", "sliding_mla"))
        states.append(state)
        parts = len(bucket.members) if state else count
        anchor = max(anchor, sum(-(-len(m) // parts) * page for page, m in bucket.by_page.items()))
    groups: list[Group] = []
    for bucket, start, state in zip(buckets, counts, states, strict=True):
        count = start
        if anchor and state:
            per_block = max(anchor // layers[bucket.members[0]].page_bytes, 1)
            count = max(count, -(-len(bucket.members) // per_block))
        patterns = [bucket.members] if count == 1 else [list(r) for r in zip(*bucket.by_page.values(), strict=True)]
        for i in range(count):
            members = [m for pattern in patterns[i::count] for m in pattern]
            groups.append(Group(tuple(members), tuple(layers[m] for m in members), True))
    return groups


def block_bytes(groups: list[Group], held: set[int] | None = None) -> int:
    """Bytes of one block: the largest group's pages, or its slots.

    Args:
        held: indices of the layers that the rank holds; None: all.
    """
    if groups and groups[0].slots:
        from kvplan.engines.vllm.tuples import slot_bytes

        return slot_bytes(groups, held)
    if held is None:
        size = max((group.page_bytes for group in groups), default=0)
        stride = lcm(*(x.stride for g in groups for x in g.layers))
    else:
        here = [[x for m, x in zip(g.members, g.layers, strict=True) if m in held] for g in groups]
        size = max((sum(x.page_bytes for x in layers) for layers in here), default=0)
        stride = lcm(*(x.stride for layers in here for x in layers))
    return -(-size // stride) * stride

"""DeepSeek-V4's caches before 0.29: layer tuples, whose pages of one size share a slot across groups.

Source: vLLM 0.20.0 to 0.28.0 ``vllm/v1/core/kv_cache_utils.py`` (``group_and_unify_kv_cache_specs``,
``_get_kv_cache_groups_uniform_groups``, ``_get_kv_cache_config_deepseek_v4``,
``get_max_concurrency_for_kv_cache_config``).
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from kvplan.engines.vllm.requests import Limits, group_blocks
from kvplan.engines.vllm.specs import CacheLayer, Group, least_padding, up

if TYPE_CHECKING:
    from kvplan.engines.vllm.versions import Rules
    from kvplan.spec.arrays import Number


def tuple_groups(layers: list[CacheLayer], rules: Rules) -> list[Group]:
    """One group of every cache that stays whole, and the windows cut into groups of about as many tuples.

    Until 0.26 a window's page is padded to the next larger one of the first group, so that they can share a slot.
    """
    slots = "" if rules.has("v4_windows_unpadded") else "page" if rules.has("v4_slots_by_page") else "tuple"
    whole = [i for i, layer in enumerate(layers) if layer.family == "mla"]
    windows: dict[tuple[int, int | None], list[int]] = {}
    for index, layer in enumerate(layers):
        if layer.family != "mla":
            windows.setdefault((layer.block_size, layer.window), []).append(index)
    sizes = sorted({layers[i].page_bytes for i in whole})
    counts = [_tuples([layers[i] for i in members]) for members in (whole, *windows.values())]
    chunk = least_padding(counts, counts[0])
    found = [Group(tuple(whole), tuple(layers[i] for i in whole), True, slots)]
    for members in windows.values():
        by_page: dict[int, list[int]] = {}
        for index in members:
            by_page.setdefault(_slot(layers[index].page_bytes, sizes, slots), []).append(index)
        parts = up(len(next(iter(by_page.values()))), chunk)
        tuples = list(zip(*by_page.values(), strict=True))
        for part in range(parts):
            chosen = [index for one in tuples[part::parts] for index in one]
            padded = tuple(_padded(layers[i], _slot(layers[i].page_bytes, sizes, slots)) for i in chosen)
            found.append(Group(tuple(chosen), padded, True, slots))
    return found


def _tuples(layers: list[CacheLayer]) -> int:
    """Tuples of a group: how often its most frequent page size occurs."""
    return max(Counter(layer.page_bytes for layer in layers).values(), default=0)


def _slot(page: int, sizes: list[int], slots: str) -> int:
    """Bytes of the slot that a window's page lies in."""
    return min((size for size in sizes if size >= page), default=page) if slots else page


def _padded(layer: CacheLayer, size: int) -> CacheLayer:
    return layer if layer.page_bytes == size else layer._replace(padded_bytes=size)


def slot_bytes(groups: list[Group], held: set[int] | None) -> int:
    """Bytes of one block where groups share slots.

    Until 0.22: the first group's page sizes, each once, times the most tuples of any group. From 0.23 on every page
    size counts as many slots as any group needs of it.

    Args:
        held: indices of the caches that the rank holds; None: all.
    """
    pages = [
        Counter(x.page_bytes for m, x in zip(g.members, g.layers, strict=True) if held is None or m in held)
        for g in groups
    ]
    if groups[0].slots == "tuple":
        return sum(pages[0]) * max((n for counted in pages for n in counted.values()), default=0)
    most: Counter[int] = Counter()
    for counted in pages:
        most |= counted
    return sum(size * slots for size, slots in most.items())


def checked_bytes(groups: list[Group], held: set[int] | None) -> int:
    """Bytes that the check at start charges for a block until 0.28: the first group's page sizes, once for every tuple.

    From 0.23 on a block may weigh less or more than that. Source: vLLM 0.20.0 to 0.28.0
    ``vllm/v1/core/kv_cache_utils.py``, ``_max_memory_usage_bytes_from_groups``.
    """
    first = projected(groups[0], held)
    most = max(_tuples(list(projected(group, held))) for group in groups)
    return sum({layer.page_bytes for layer in first}) * most


def projected(group: Group, held: set[int] | None) -> tuple[CacheLayer, ...]:
    """The group's caches on a rank; of a rank that holds none, all of them, as ``_project_kv_cache_groups_to_worker``
    leaves them."""
    if held is None:
        return group.layers
    return tuple(x for m, x in zip(group.members, group.layers, strict=True) if m in held) or group.layers


def printed_request_blocks(groups: list[Group], tokens: Number, limits: Limits, held: set[int] | None = None) -> Number:
    """Blocks by which vLLM divides for "Maximum concurrency" until 0.26: a request's bytes over the first group's.

    Groups whose blocks are lighter than the first one's count for less than the block that they take from the pool, so
    the printed concurrency is higher than what runs.
    """
    here = [group._replace(layers=projected(group, held)) for group in groups]
    spent = sum(group_blocks(group, tokens, limits) * group.page_bytes for group in here)
    return up(spent, here[0].page_bytes)

"""PyTorch's caching allocator as arithmetic: what a list of tensors takes of a card, before it is allocated.

Source: PyTorch 2.13 ``c10/core/AllocatorConfig.h`` (constants) and ``c10/cuda/CUDACachingAllocator.cpp``
(``round_size``, ``get_allocation_size``, ``should_split``, ``try_allocate_expandable_block``); the same since 2.0.

Sizes are rounded up to 512 bytes. Those up to 1 MiB are cut from segments of 2 MiB, those below 10 MiB from segments
of 20 MiB, larger ones get a segment of their own, rounded up to 2 MiB. What is left of a segment stays free for later
tensors if it is large enough (at least 512 bytes in small segments, above 1 MiB in large ones); if not, the tensor is
counted with it, and ``memory_allocated`` says more than was asked for. With expandable segments there is one segment
for small and one for large tensors, grown by 2 and by 20 MiB, and nothing is left over between tensors.
Modelled: an empty allocator, one stream, no ``max_split_size_mb`` and no ``roundup_power2_divisions``.
"""

from __future__ import annotations

import os
from bisect import bisect_left, insort
from collections.abc import Iterable
from typing import NamedTuple

from kvplan.units import MIB

MIN_BLOCK = 512
SMALL_SIZE = MIB
"""Largest tensor that is packed into small segments."""
SMALL_SEGMENT = 2 * MIB
LARGE_SEGMENT = 20 * MIB
MIN_LARGE = 10 * MIB
"""From here on a tensor gets a segment of its own."""
ROUND_LARGE = 2 * MIB


class Reservation(NamedTuple):
    """What the allocator holds once all tensors are there."""

    requested_bytes: int
    allocated_bytes: int
    """``torch.cuda.memory_allocated``."""
    reserved_bytes: int
    """``torch.cuda.memory_reserved``, and what the driver counts: segments are multiples of its 2 MiB pages."""
    segments: int


def round_size(num_bytes: int) -> int:
    """A tensor's size as the allocator counts it."""
    return max(MIN_BLOCK, _up(num_bytes, MIN_BLOCK))


def segment_size(num_bytes: int) -> int:
    """The segment that is asked of the driver for a rounded size, where no free block serves."""
    if num_bytes <= SMALL_SIZE:
        return SMALL_SEGMENT
    return LARGE_SEGMENT if num_bytes < MIN_LARGE else _up(num_bytes, ROUND_LARGE)


def reserve(sizes: Iterable[int], *, expandable: bool = False) -> Reservation:
    """What tensors of `sizes` bytes take, allocated in this order by an empty allocator."""
    return _expandable(sizes) if expandable else _segments(sizes)


def _segments(sizes: Iterable[int]) -> Reservation:
    free: dict[bool, list[int]] = {True: [], False: []}
    requested = allocated = reserved = segments = 0
    for size in sizes:
        if not size:
            continue
        requested += size
        rounded = round_size(size)
        small = rounded <= SMALL_SIZE
        pool = free[small]
        place = bisect_left(pool, rounded)
        if place < len(pool):
            block = pool.pop(place)
        else:
            block = segment_size(rounded)
            reserved += block
            segments += 1
        rest = block - rounded
        if rest >= MIN_BLOCK if small else rest > SMALL_SIZE:
            insort(pool, rest)
            block = rounded
        allocated += block
    return Reservation(requested, allocated, reserved, segments)


def _expandable(sizes: Iterable[int]) -> Reservation:
    used = {True: 0, False: 0}
    requested = 0
    for size in sizes:
        if size:
            requested += size
            rounded = round_size(size)
            used[rounded <= SMALL_SIZE] += rounded
    reserved = _up(used[True], SMALL_SEGMENT) + _up(used[False], LARGE_SEGMENT)
    return Reservation(requested, used[True] + used[False], reserved, sum(1 for size in used.values() if size))


def most_blocks(free_bytes: int, tensor_block_bytes: Iterable[int], *, expandable: bool = False) -> int:
    """The most blocks that fit `free_bytes` when every tensor holds as many.

    Args:
        tensor_block_bytes: bytes of one block in each tensor (one entry: all layers in one tensor).
    """
    parts = tuple(tensor_block_bytes)
    low, high = 0, free_bytes // max(1, sum(parts))
    while low < high:
        middle = (low + high + 1) // 2
        if reserve((middle * part for part in parts), expandable=expandable).reserved_bytes <= free_bytes:
            low = middle
        else:
            high = middle - 1
    return low


_SETTINGS = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF")


def expandable_segments() -> bool:
    """Whether this process asked for expandable segments (``PYTORCH_ALLOC_CONF``, ``PYTORCH_CUDA_ALLOC_CONF``)."""
    for name in _SETTINGS:
        for item in os.environ.get(name, "").lower().replace(" ", "").split(","):
            if item == "expandable_segments:true":
                return True
    return False


_UNMODELLED = ("roundup_power2_divisions", "max_split_size_mb", "backend:cudamallocasync")


def unmodelled() -> str | None:
    """The setting under which torch's allocator rounds in ways that `reserve` does not model; None: there is none."""
    for name in ("PYTORCH_NO_CUDA_MEMORY_CACHING", "PYTORCH_NO_HIP_MEMORY_CACHING"):
        if os.environ.get(name):
            return name
    for name in _SETTINGS:
        text = os.environ.get(name, "").lower().replace(" ", "")
        for item in _UNMODELLED:
            if item in text:
                return f"{name} with {item}"
    return None


def _up(value: int, step: int) -> int:
    return -(-value // step) * step

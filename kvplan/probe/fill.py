"""The whole card: filled to the block that the planner calls the last one, and one block beyond.

CUDA and ROCm only. Nothing is written to the memory; the driver hands out pages of its own at once, so what could be
allocated is there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kvplan.probe import extras
from kvplan.probe.allocator import LARGE_SEGMENT, expandable_segments, most_blocks, unmodelled
from kvplan.probe.memory import out_of_memory
from kvplan.probe.receipt import Row, row
from kvplan.units import MIB, human_bytes

if TYPE_CHECKING:
    from kvplan.probe.device import ProbeDevice
    from kvplan.probe.session import Session

DRIVER_PAGE = 2 * MIB
"""Pages in which the driver hands out memory; one of those that it calls free it keeps.

Source: one H200, driver 580.159: whatever was allocated before, the largest tensor is that much below what
``mem_get_info`` calls free, and the remainder of a page.
"""
DRIVERS_SEEN = ("580.159",)
"""What versions begin with on which that was seen: under others the card's last page informs."""
REACH = 64
"""Blocks around the prediction that are tried before giving up."""


def usable_bytes(free_bytes: int) -> int:
    """What the driver hands out of the bytes that it calls free: whole pages, and never the last one."""
    return max(0, free_bytes - DRIVER_PAGE) // DRIVER_PAGE * DRIVER_PAGE


def measure(session: Session) -> list[Row]:
    """Rows for one tensor over all layers, and for a tensor a layer."""
    device, layout = session.device, session.layout
    if not device.is_cuda:
        return []
    pages = [layer.page_bytes(layout.block_size) for layer in layout.layers]
    pages = [page for page in pages if page]
    if not pages:
        return []
    expandable = expandable_segments()
    block = sum(pages)
    session.say("fill, the largest tensor")
    device.release()
    rows: list[Row] = [] if expandable else [_largest(device)]
    for name, parts in (("one tensor", [block]), ("a tensor a layer", pages)):
        session.say(f"fill, {name}")
        device.release()
        free = device.free_now()
        predicted = most_blocks(usable_bytes(free), parts, expandable=expandable)
        found = most_allocated(device, parts, predicted)
        note = (
            f"{human_bytes(free)} free, blocks of {human_bytes(block)}; "
            + ("not found near the prediction" if found is None else f"{free - found * block:,} B left over")
        )  # fmt: skip
        rows.append(
            row("fill", f"{name}: blocks", predicted=predicted, measured=found, unit="count", tolerance=0.0, note=note)
        )
        if name == "one tensor":
            given = usable_bytes(free)
            rows += _planned(session, given // LARGE_SEGMENT * LARGE_SEGMENT if expandable else given, found)
    return [_judged(device, r) for r in rows]


def _judged(device: ProbeDevice, found: Row) -> Row:
    """The row, or one that informs where the driver or the allocator is another than those that were seen."""
    driver, setting = device.driver or "an unknown one", unmodelled()
    if setting is None and driver.startswith(DRIVERS_SEEN):
        return found
    why = (
        f"{setting} is set" if setting is not None else f"driver {driver} may keep another page than {DRIVERS_SEEN[0]}"
    )
    return found._replace(tolerance=None, passed=None, note=f"{found.note}; not judged: {why}")


def _largest(device: ProbeDevice) -> Row:
    """The largest tensor that can be allocated, in pages of the driver."""
    free = device.free_now()
    predicted = usable_bytes(free)
    found = most_allocated(device, [DRIVER_PAGE], predicted // DRIVER_PAGE)
    return row(
        "fill", "largest tensor", predicted=predicted, measured=None if found is None else found * DRIVER_PAGE,
        unit="bytes", tolerance=0.0, note=f"of {free:,} B that are called free; the driver keeps a page of 2 MiB",
    )  # fmt: skip


def _planned(session: Session, free: int, found: int | None) -> list[Row]:
    """What the plan's engine would say of exactly these bytes."""
    if session.settings.pipeline_parallel_size > 1 or session.settings.num_gpu_blocks_override is not None:
        return []
    if len(session.layout.kinds()) != 1 or session.layout.layers[0].states:
        return []  # engines pad pages where layers differ
    pool = session.engine.pool(session.outcome.stages, session.settings, (free,))
    if pool.block_size != session.layout.block_size or pool.num_blocks is None:
        return []
    return [
        row(
            "fill", f"capacity by {session.engine.name}", predicted=pool.num_blocks, measured=found, unit="count",
            tolerance=0.0, note=f"blocks of {pool.block_size} tokens that the plan counts in {free:,} B",
        )
    ]  # fmt: skip


def most_allocated(device: ProbeDevice, parts: list[int], guess: int) -> int | None:
    """The largest number of blocks that can be allocated: it holds, and one more does not; None: far from `guess`."""
    if holds(device, parts, guess):
        for extra in range(1, REACH + 1):
            if not holds(device, parts, guess + extra):
                return guess + extra - 1
        return None
    for fewer in range(1, REACH + 1):
        if guess - fewer <= 0 or holds(device, parts, guess - fewer):
            return max(0, guess - fewer)
    return None


def holds(device: ProbeDevice, parts: list[int], blocks: int) -> bool:
    """Whether tensors of `blocks` blocks can be allocated, all at once; everything is freed again."""
    torch = extras.torch()
    tensors: list[Any] = []
    try:
        for part in parts:
            tensors.append(torch.empty(blocks * part, dtype=torch.uint8, device=device.torch_device))
        device.synchronize()
    except (RuntimeError, MemoryError) as error:
        if not out_of_memory(error):
            raise
        return False
    else:
        return True
    finally:
        tensors.clear()
        device.release()

"""Whether others work on the card: by the driver's processes and bytes, or by what torch calls free."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from kvplan.errors import InputError
from kvplan.units import GIB, MIB, human_bytes

if TYPE_CHECKING:
    from kvplan.probe.device import ProbeDevice
    from kvplan.probe.nvml import Process

BUSY_BYTES = 64 * MIB
"""Of other processes on a card: more than this disturbs the measurement."""
UNNAMED_BYTES = 1 * GIB
"""In use by processes that nothing names: containers hide those, not their memory. A process's own context is less."""


def refuse_busy(device: ProbeDevice) -> None:
    """Raise where other processes work on the card.

    Raises:
        InputError: says how much they hold.
    """
    if not device.is_cuda:
        return
    others: tuple[Process, ...] = ()
    if device.nvml is not None and not device.nvml.mig:  # which counts the whole card, of which MIG gives a part
        others = device.nvml.others(os.getpid())
    used = device.nvml.used_bytes if device.nvml is not None and not device.nvml.mig else None
    if used is None:  # no NVML, as on ROCm: torch's bytes, in which this process's own context (0.3 to 0.6 GiB) counts
        used = 0 if device.shared_memory else device.total_bytes - device.free_bytes
    held = sum(p.used_bytes or 0 for p in others)
    busy = held if others and held else used if others else 0
    if not others and used > UNNAMED_BYTES:
        busy = used
    if busy > BUSY_BYTES:
        who = f"{len(others)} other process{'es' if len(others) != 1 else ''}" if others else "somebody"
        raise InputError(
            f"{device.name} is busy: {who} hold{'s' if len(others) < 2 else ''} {human_bytes(busy)}", where="--device",
            hint="wait, name another as in cuda:1, or add --busy to measure all the same",
        )  # fmt: skip

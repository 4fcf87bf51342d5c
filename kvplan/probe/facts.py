"""The device's facts against one another: driver, torch, catalog; and what starting to use it costs."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from kvplan.probe import extras, nvml
from kvplan.probe.receipt import Row, row

if TYPE_CHECKING:
    from kvplan.probe.device import ProbeDevice
    from kvplan.probe.session import Session

TOTAL_TOLERANCE = 0.01
"""Between the catalog's bytes and this card's: drivers differ in what they keep."""
BANDWIDTH_TOLERANCE = 0.02
"""Between datasheet and ``2 x bus x clock``: datasheets round."""
CONTEXT_BYTES = 554_500_096
"""Of NVML's "used" for a CUDA context in torch. Source: one H200, driver 580.159, torch 2.11.0+cu130, November 2026."""
CONTEXT_TOLERANCE = 0.25
"""It grows with multiprocessors, driver and the kernels that torch loads."""


def measure(session: Session) -> list[Row]:
    """Rows of the section ``device``."""
    device = session.device
    rows = [
        row("device", "memory in total", predicted=_catalog_total(device), measured=device.total_bytes, unit="bytes",
            tolerance=TOTAL_TOLERANCE if _catalog_total(device) else None, note=_note(device)),
        row("device", "memory free", predicted=None, measured=device.free_bytes, unit="bytes", note="before the probe"),
    ]  # fmt: skip
    known = device.nvml
    if known is not None:
        if known.reserved_bytes is not None:
            rows.append(
                row(
                    "device", "torch's total", predicted=known.total_bytes - known.reserved_bytes,
                    measured=device.total_bytes, unit="bytes", tolerance=0.0, note="NVML's total less its reserved",
                )
            )  # fmt: skip
        rows += _context(device)
    if device.theoretical_bandwidth is not None:
        sheet = device.gpu.bandwidth_bytes_per_second if device.gpu is not None else None
        rows.append(
            row(
                "device", "bandwidth in theory", predicted=sheet, measured=device.theoretical_bandwidth, unit="bytes/s",
                tolerance=BANDWIDTH_TOLERANCE if sheet else None,
                note=f"{device.bandwidth_source}; predicted is the datasheet's",
            )
        )  # fmt: skip
    return rows


def _catalog_total(device: ProbeDevice) -> int | None:
    return device.gpu.device_bytes if device.gpu is not None else None


def _note(device: ProbeDevice) -> str:
    if device.gpu is None:
        return f"{device.name} is not in the catalog" if device.kind != "cpu" else "of the machine or control group"
    basis, source = device.gpu.device_bytes_basis
    return f"catalog: {device.gpu.id}, {basis} ({source})"


def _context(device: ProbeDevice) -> list[Row]:
    """What the first allocation costs besides its own bytes."""
    torch = extras.torch()
    assert device.nvml is not None  # the caller looked
    keep = torch.empty(1, device=device.torch_device)
    device.synchronize()
    used = nvml.used_bytes(device.nvml.number)
    reserved = torch.cuda.memory_reserved(device.index)
    del keep
    if used is None:
        return []
    cost = used - reserved - device.nvml.used_bytes
    if cost <= 0:  # somebody else freed memory, or this process had a context before it was looked at
        return []
    return [
        row(
            "device", "context", predicted=CONTEXT_BYTES, measured=cost, unit="bytes", tolerance=CONTEXT_TOLERANCE,
            note="of NVML's used, for torch's context; predicted as on one H200",
        )
    ]  # fmt: skip


def device_payload(device: ProbeDevice) -> dict[str, Any]:
    """The device as the receipt gives it: what torch, NVML and the catalog say.

    Receipts are published, so the card's UUID and the ids of other processes stay out of them; how many there are
    stays in.
    """
    known = device.nvml
    private = ("uuid", "processes")
    driver = None
    if known is not None:
        driver = {k: v for k, v in nvml_payload(known).items() if k not in private}
        driver["other_processes"] = len(known.others(os.getpid()))
    return {
        "kind": device.kind,
        "index": device.index,
        "name": device.name,
        "gpu": device.gpu.id if device.gpu else None,
        "total_bytes": device.total_bytes,
        "free_bytes": device.free_bytes,
        "theoretical_bandwidth": device.theoretical_bandwidth,
        "bandwidth_source": device.bandwidth_source,
        "compute_capability": device.compute_capability,
        "multiprocessors": device.multiprocessors,
        "cache_bytes": device.l2_bytes,
        "nvml": driver,
    }


def nvml_payload(known: nvml.NvmlFacts) -> dict[str, Any]:
    """What the driver's library says of one card."""
    plain = known._asdict()
    plain["processes"] = [p._asdict() for p in known.processes]
    plain["theoretical_bandwidth"] = known.theoretical_bandwidth
    return plain

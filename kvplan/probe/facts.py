"""The device's facts against one another: driver, torch, catalog; and what starting to use it costs."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from kvplan.probe import extras, nvml
from kvplan.probe.device import BANDWIDTH_TOLERANCE, SHEET
from kvplan.probe.receipt import Row, row

if TYPE_CHECKING:
    from kvplan.probe.device import ProbeDevice
    from kvplan.probe.session import Session

TOTAL_TOLERANCE = 0.01
"""Between the catalog's bytes and this card's: drivers differ in what they keep."""
CONTEXT_BYTES = 554_500_096
"""Of NVML's "used" for a CUDA context in torch. Source: one H200, driver 580.159, torch 2.11.0+cu130, November 2026."""
CONTEXT_GPU = "h200-sxm"
"""Where that was read: on other cards it informs."""
CONTEXT_TOLERANCE = 0.25
"""It grows with multiprocessors, driver and the kernels that torch loads."""


def measure(session: Session) -> list[Row]:
    """Rows of the section ``device``."""
    device = session.device
    planned, there, known_exactly = _totals(device)
    rows = [
        row("device", "memory in total", predicted=planned, measured=there, unit="bytes",
            tolerance=TOTAL_TOLERANCE if known_exactly else None, note=_note(device)),
        row("device", "memory free", predicted=None, measured=device.free_bytes, unit="bytes", note="before the probe"),
    ]  # fmt: skip
    known = device.nvml
    if known is not None:
        if known.total_bytes is not None and known.reserved_bytes is not None and not known.mig:
            rows.append(
                row(
                    "device", "torch's total", predicted=known.total_bytes - known.reserved_bytes,
                    measured=device.total_bytes, unit="bytes", tolerance=0.0, note="NVML's total less its reserved",
                )
            )  # fmt: skip
        rows += _context(device)
    if device.theoretical_bandwidth is not None:
        sheet = device.gpu.bandwidth_bytes_per_second if device.gpu is not None else None
        judged = sheet and not device.bandwidth_source.startswith(SHEET)
        rows.append(
            row(
                "device", "bandwidth in theory", predicted=sheet, measured=device.theoretical_bandwidth, unit="bytes/s",
                tolerance=BANDWIDTH_TOLERANCE if judged else None,
                note=f"{device.bandwidth_source}; predicted is the datasheet's",
            )
        )  # fmt: skip
    return rows


def _totals(device: ProbeDevice) -> tuple[int | None, int, bool]:
    """(the catalog's bytes, this card's of the same kind, whether somebody read the catalog's on such a card).

    A datasheet's GB are no bytes, and of memory shared with a processor systems leave a card this much or that.
    """
    gpu, known = device.gpu, device.nvml
    if gpu is None:
        return None, device.total_bytes, False
    if gpu.torch_total_bytes is None and gpu.nvml_total_bytes is not None and known and known.total_bytes is not None:
        return gpu.nvml_total_bytes, known.total_bytes, not known.mig
    exact = gpu.torch_total_bytes is not None and not gpu.unified_memory and not (known is not None and known.mig)
    return gpu.device_bytes, device.total_bytes, exact


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
    if used is None or device.nvml.used_bytes is None:
        return []
    cost = used - reserved - device.nvml.used_bytes
    if cost <= 0:  # somebody else freed memory, or this process had a context before it was looked at
        return []
    seen = device.gpu is not None and device.gpu.id == CONTEXT_GPU
    return [
        row(
            "device", "context", predicted=CONTEXT_BYTES, measured=cost, unit="bytes",
            tolerance=CONTEXT_TOLERANCE if seen else None,
            note="of NVML's used, for torch's context; predicted as on one H200"
            + ("" if seen else ", and not judged on another card"),
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

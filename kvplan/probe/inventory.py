"""``gpus detect``: every device of this machine, as driver, torch and catalog see it, and where they differ."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kvplan.errors import InputError
from kvplan.probe import extras, nvml
from kvplan.probe.device import BANDWIDTH_TOLERANCE, ProbeDevice, detect, match
from kvplan.probe.facts import TOTAL_TOLERANCE, nvml_payload

if TYPE_CHECKING:
    from kvplan.probe.nvml import NvmlFacts
    from kvplan.spec.gpu import GpuSpec


def inventory() -> tuple[list[dict[str, Any]], list[str]]:
    """(devices, remarks on what could not be read).

    Raises:
        InputError: neither the driver's library nor torch sees a GPU; says what is missing.
    """
    remarks: list[str] = []
    cards: list[NvmlFacts] = []
    try:
        cards = nvml.all_facts(remarks=remarks)
    except InputError as error:
        remarks.append(f"NVML: {error}")
        first = error
    else:
        first = InputError("no GPU is visible", hint="kvplan gpus list shows the catalog")
    seen, said = _torch_devices()
    remarks += said
    if not cards and not seen:
        if isinstance(first, extras.MissingExtraError) or not any(r.startswith("torch") for r in remarks):
            raise first
        lacking = any("not installed" in remark for remark in remarks)
        shown = "`kvplan gpus list` shows the catalog; `kvplan validate MODEL` measures a CPU too"
        raise InputError("; ".join(remarks), hint=f"{extras.INSTALL}, on a machine with a GPU" if lacking else shown)
    devices = [_device(card, _of_card(card, seen)) for card in cards]
    taken = {id(_of_card(card, seen)) for card in cards}
    devices += [_device(None, device) for device in seen if id(device) not in taken]
    return devices, remarks


def _torch_devices() -> tuple[list[ProbeDevice], list[str]]:
    """What torch sees besides the CPU."""
    try:
        torch = extras.torch()
    except extras.MissingExtraError as error:
        return [], [str(error)]
    kind = "rocm" if torch.version.hip else "cuda"
    if torch.cuda.is_available():
        return [detect(f"{kind}:{i}") for i in range(torch.cuda.device_count())], []
    if torch.backends.mps.is_available():
        return [detect("mps")], []
    return [], [f"torch {torch.__version__} sees no GPU"]


def _of_card(card: NvmlFacts, seen: list[ProbeDevice]) -> ProbeDevice | None:
    return next((d for d in seen if d.nvml is not None and d.nvml.uuid == card.uuid), None)


def _device(card: NvmlFacts | None, device: ProbeDevice | None) -> dict[str, Any]:
    """One device: three views, and the differences between them."""
    name = card.name if card else device.name if device else ""
    size = card.total_bytes if card else None
    if size is None and device is not None:
        size = device.total_bytes
    gpu = device.gpu if device and device.gpu else match(name, size)
    return {
        "name": name,
        "gpu": gpu.id if gpu else None,
        "nvml": nvml_payload(card) if card else None,
        "torch": _torch_payload(device) if device else None,
        "catalog": _catalog_payload(gpu) if gpu else None,
        "differences": differences(card, device, gpu),
    }


def _torch_payload(device: ProbeDevice) -> dict[str, Any]:
    return {
        "kind": device.kind, "index": device.index, "name": device.name, "total_bytes": device.total_bytes,
        "free_bytes": device.free_bytes, "compute_capability": device.compute_capability,
        "multiprocessors": device.multiprocessors, "cache_bytes": device.l2_bytes, "version": device.torch_version,
        "runtime": device.runtime_version, "theoretical_bandwidth": device.theoretical_bandwidth,
    }  # fmt: skip


def _catalog_payload(gpu: GpuSpec) -> dict[str, Any]:
    return {
        "name": gpu.name, "nvml_total_bytes": gpu.nvml_total_bytes, "torch_total_bytes": gpu.torch_total_bytes,
        "device_bytes": gpu.device_bytes, "bandwidth_bytes_per_second": gpu.bandwidth_bytes_per_second,
        "compute_capability": gpu.compute_capability, "multiprocessors": gpu.sm_count,
    }  # fmt: skip


def differences(card: NvmlFacts | None, device: ProbeDevice | None, gpu: GpuSpec | None) -> list[str]:
    """What does not agree between the three views, a sentence each."""
    found: list[str] = []
    if gpu is None:
        found.append("not in the catalog: plans take what is read here")
    if card is not None and device is not None and card.total_bytes is not None and card.reserved_bytes is not None:
        off = card.total_bytes - card.reserved_bytes - device.total_bytes
        if off:
            found.append(
                f"torch's total is {abs(off):,} B {'below' if off > 0 else 'above'} NVML's total less reserved"
            )
    total = device.total_bytes if device else card.total_bytes if card else None
    if gpu is not None and total is not None:
        planned = gpu.device_bytes if device else gpu.nvml_total_bytes
        if planned and abs(total / planned - 1) > TOTAL_TOLERANCE:
            found.append(f"{total:,} B here, {planned:,} B in the catalog ({total / planned - 1:+.1%})")
    rate = card.theoretical_bandwidth if card else None
    sheet = gpu.bandwidth_bytes_per_second if gpu else None
    if rate and sheet and abs(rate / sheet - 1) > BANDWIDTH_TOLERANCE:
        found.append(
            f"bus and clock give {rate / 1e9:,.0f} GB/s, the datasheet {sheet / 1e9:,.0f} ({rate / sheet - 1:+.1%})"
        )
    capability = card.compute_capability if card else device.compute_capability if device else None
    if gpu is not None and gpu.compute_capability and capability and capability != gpu.compute_capability:
        found.append(f"compute capability {capability} here, {gpu.compute_capability} in the catalog")
    units = device.multiprocessors if device else None
    if gpu is not None and gpu.sm_count and units and units != gpu.sm_count:
        found.append(f"{units} multiprocessors here, {gpu.sm_count} in the catalog")
    if card is not None and card.mig:
        found.append("MIG is on: a process sees a part of this card")
    return found

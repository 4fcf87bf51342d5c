"""What NVIDIA's management library says of the cards of this machine; needs no torch and starts no context."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from kvplan.errors import InputError
from kvplan.probe.extras import pynvml


class Process(NamedTuple):
    """A process that holds memory of a card."""

    pid: int
    used_bytes: int | None
    """None: the driver does not say (containers, MIG)."""


class NvmlFacts(NamedTuple):
    """One card. None: the driver does not say."""

    number: int
    """As nvidia-smi numbers the cards."""
    name: str
    uuid: str
    driver: str
    total_bytes: int | None
    """None as well as the other bytes: a card that shares the processor's memory has none of its own (GB10)."""
    reserved_bytes: int | None
    """What the driver keeps for itself; torch's total is the total without it."""
    used_bytes: int | None
    """By processes, this one included; without `reserved_bytes` where the driver tells them apart."""
    free_bytes: int | None
    processes: tuple[Process, ...]
    ecc: bool | None
    mig: bool | None
    bus_width_bits: int | None
    max_memory_clock_mhz: int | None
    memory_clock_mhz: int | None
    sm_clock_mhz: int | None
    max_sm_clock_mhz: int | None
    compute_capability: str | None
    power_limit_watts: float | None

    @property
    def theoretical_bandwidth(self) -> float | None:
        """Bytes a second: two transfers a clock over the bus (DDR), ``2 x bits / 8 x clock``."""
        if not self.bus_width_bits or not self.max_memory_clock_mhz:
            return None
        return 2 * self.bus_width_bits / 8 * self.max_memory_clock_mhz * 1e6

    def others(self, pid: int) -> tuple[Process, ...]:
        """Processes but this one."""
        return tuple(p for p in self.processes if p.pid != pid)


@contextmanager
def session(where: str | None = None) -> Iterator[Any]:
    """NVML, initialised and shut down again.

    Raises:
        MissingExtraError: not installed.
        InputError: no driver, no card.
    """
    module = pynvml(where)
    try:
        module.nvmlInit()
    except module.NVMLError as error:
        raise InputError(
            f"no NVIDIA driver answers ({_text(error)})", where=where,
            hint="name the GPU with --gpu NAME; `kvplan gpus list` shows the names",
        ) from None  # fmt: skip
    try:
        yield module
    finally:
        module.nvmlShutdown()


def all_facts(where: str | None = None, remarks: list[str] | None = None) -> list[NvmlFacts]:
    """Every card that can be read, in the driver's order (that of the PCI bus, as nvidia-smi numbers them).

    Args:
        remarks: gets a sentence for each card that the driver cannot read (one that fell off the bus).

    Raises:
        MissingExtraError: not installed. InputError: no driver, or it reads no card of those that it has.
    """
    found, lost = [], []
    with session(where) as nvml:
        for index in range(_quiet(nvml, nvml.nvmlDeviceGetCount) or 0):
            try:
                found.append(read(nvml, index))
            except nvml.NVMLError as error:
                lost.append(f"GPU {index} cannot be read ({_text(error)})")
    if lost and not found:
        raise InputError(
            "; ".join(lost), where=where, hint="name the GPU with --gpu NAME; `kvplan gpus list` shows the names"
        )
    if remarks is not None:
        remarks += lost
    return found


def quiet_facts() -> list[NvmlFacts]:
    """Every card; nothing where NVML does not answer."""
    try:
        return all_facts()
    except InputError:
        return []


def facts_of(found: list[NvmlFacts], uuid: str | None, index: int) -> NvmlFacts | None:
    """The card with a UUID (torch numbers cards by ``CUDA_VISIBLE_DEVICES``, NVML does not); None: not there."""
    if uuid is not None:
        key = uuid.lower().removeprefix("gpu-")
        return next((f for f in found if f.uuid.lower().removeprefix("gpu-") == key), None)
    return next((f for f in found if f.number == index), None)


def read(nvml: Any, index: int) -> NvmlFacts:
    """The facts of one card."""
    handle = nvml.nvmlDeviceGetHandleByIndex(index)
    total, reserved, used, free = _memory(nvml, handle)

    def ask(name: str, *args: Any) -> Any:
        return _quiet(nvml, lambda: getattr(nvml, name)(handle, *args))

    ecc, mig, capability = ask("nvmlDeviceGetEccMode"), ask("nvmlDeviceGetMigMode"), None
    if found := ask("nvmlDeviceGetCudaComputeCapability"):
        capability = f"{found[0]}.{found[1]}"
    power = ask("nvmlDeviceGetEnforcedPowerLimit")
    return NvmlFacts(
        number=index, name=_text(nvml.nvmlDeviceGetName(handle)), uuid=_text(ask("nvmlDeviceGetUUID") or ""),
        driver=_text(nvml.nvmlSystemGetDriverVersion()), total_bytes=total, reserved_bytes=reserved, used_bytes=used,
        free_bytes=free, processes=_processes(ask), ecc=None if ecc is None else bool(ecc[0]),
        mig=None if mig is None else bool(mig[0]), bus_width_bits=ask("nvmlDeviceGetMemoryBusWidth"),
        max_memory_clock_mhz=ask("nvmlDeviceGetMaxClockInfo", nvml.NVML_CLOCK_MEM),
        memory_clock_mhz=ask("nvmlDeviceGetClockInfo", nvml.NVML_CLOCK_MEM),
        sm_clock_mhz=ask("nvmlDeviceGetClockInfo", nvml.NVML_CLOCK_SM),
        max_sm_clock_mhz=ask("nvmlDeviceGetMaxClockInfo", nvml.NVML_CLOCK_SM),
        compute_capability=capability, power_limit_watts=None if power is None else power / 1000,
    )  # fmt: skip


def used_bytes(index: int) -> int | None:
    """Bytes of a card in use right now, without what the driver reserves; None: NVML does not answer."""
    try:
        with session() as nvml:
            handle = _quiet(nvml, lambda: nvml.nvmlDeviceGetHandleByIndex(index))
            return None if handle is None else _memory(nvml, handle)[2]
    except InputError:
        return None


def _memory(nvml: Any, handle: Any) -> tuple[int | None, int | None, int | None, int | None]:
    """(total, reserved, used, free); the first version of the call counts what is reserved as used.

    All None where the card has no memory of its own (``NVML_ERROR_NOT_SUPPORTED`` on GB10).
    """
    version = getattr(nvml, "nvmlMemory_v2", None)
    found = None
    if version is not None:
        found = _quiet(nvml, lambda: nvml.nvmlDeviceGetMemoryInfo(handle, version=version))
    if found is not None:
        return int(found.total), int(found.reserved), int(found.used), int(found.free)
    found = _quiet(nvml, lambda: nvml.nvmlDeviceGetMemoryInfo(handle))
    if found is None:
        return None, None, None, None
    return int(found.total), None, int(found.used), int(found.free)


def _processes(ask: Callable[..., Any]) -> tuple[Process, ...]:
    found: dict[int, Process] = {}
    for name in ("nvmlDeviceGetComputeRunningProcesses", "nvmlDeviceGetGraphicsRunningProcesses"):
        for item in ask(name) or ():
            size = item.usedGpuMemory
            found[int(item.pid)] = Process(int(item.pid), None if size is None else int(size))
    return tuple(found.values())


def _quiet(nvml: Any, call: Callable[[], Any]) -> Any:
    """What the call returns; None where this driver or card does not know it."""
    try:
        return call()
    except (nvml.NVMLError, AttributeError, TypeError):
        return None


def _text(value: object) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)

"""The device that is probed: what its driver, torch and the catalog say of it, side by side.

CUDA and ROCm cards share torch's ``cuda`` interface; MPS and the CPU have their own. A `ProbeDevice` is plain data
but for its methods, which ask torch.
"""

from __future__ import annotations

import contextlib
import os
import re
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from kvplan.errors import InputError, UnknownNameError
from kvplan.probe import extras, nvml

if TYPE_CHECKING:
    from kvplan.probe.nvml import NvmlFacts
    from kvplan.spec.gpu import GpuSpec

Kind = Literal["cuda", "rocm", "mps", "cpu"]
KINDS: tuple[Kind, ...] = ("cuda", "rocm", "mps", "cpu")
_FLAG = "--device"
SHEET = "datasheet"
"""Begins `ProbeDevice.bandwidth_source` where bus and clock are not known, or not believed."""
BANDWIDTH_TOLERANCE = 0.02
"""Between datasheet and ``2 x bus x clock``: datasheets round."""
_FAR = 0.15
"""From the catalog's bytes: more is another card. Datasheets' GB read as 10^9 are 7 % below the GiB that are meant."""


@dataclass(frozen=True, kw_only=True)
class ProbeDevice:
    """One device of this machine."""

    kind: Kind
    index: int = 0
    """As torch numbers the cards that this process sees."""
    name: str
    """As torch prints it; of a CPU, as the kernel does."""
    total_bytes: int
    """As torch reports it; of a CPU, the machine's memory or its control group's limit."""
    free_bytes: int
    """When it was looked at."""
    theoretical_bandwidth: float | None
    """Bytes a second from bus width and clock; None where nothing says (CPU)."""
    bandwidth_source: str
    nvml: NvmlFacts | None
    gpu: GpuSpec | None
    """The catalog's entry; None: not in it."""
    compute_capability: str | None = None
    multiprocessors: int | None = None
    l2_bytes: int | None = None
    """Last-level cache, which timing has to defeat; None on a CPU, where a virtual machine sees that of the whole
    socket: timing takes a size of its own."""
    torch_version: str
    triton_version: str | None = None
    runtime_version: str | None = None
    """Of CUDA or HIP that torch was built with."""
    bus_width_bits: int | None = None
    """Of its memory: HBM's are 1,024 and more, those of GDDR at most 512."""
    shared_memory: bool = False
    """Whether the processor uses the same memory: what is not free is then no other process's of this card."""

    @property
    def is_cuda(self) -> bool:
        """Whether torch's ``cuda`` interface drives it (NVIDIA and AMD)."""
        return self.kind in ("cuda", "rocm")

    @property
    def torch_device(self) -> Any:
        """The ``torch.device``."""
        where = "cuda" if self.is_cuda else self.kind
        return extras.torch().device(where, self.index if self.is_cuda else None)

    @property
    def driver(self) -> str | None:
        """Version of its driver, where NVML says."""
        return self.nvml.driver if self.nvml else None

    def current(self) -> AbstractContextManager[Any]:
        """Makes it the card that launches, graphs and events of this process mean; the one before is restored."""
        if not self.is_cuda:
            return contextlib.nullcontext()
        found: AbstractContextManager[Any] = extras.torch().cuda.device(self.index)
        return found

    def synchronize(self) -> None:
        """Wait until everything that was queued is done."""
        torch = extras.torch()
        if self.is_cuda:
            torch.cuda.synchronize(self.index)
        elif self.kind == "mps":
            torch.mps.synchronize()

    def release(self) -> None:
        """Give what the allocator caches back to the driver; live tensors stay."""
        torch = extras.torch()
        if self.is_cuda:
            import gc

            gc.collect()  # recorded graphs and their tensors may name each other
            torch.cuda.empty_cache()
        elif self.kind == "mps":
            torch.mps.empty_cache()
        else:
            _trim_heap()

    def free_now(self) -> int:
        """Bytes that could be allocated now."""
        return _free(self.kind, self.index)


def detect(name: str | None = None, *, where: str = _FLAG) -> ProbeDevice:
    """The device behind ``--device``: ``cuda``, ``cuda:1``, ``rocm``, ``mps``, ``cpu``; None: the best there is.

    Raises:
        MissingExtraError: torch is not installed.
        UnknownNameError: no such kind; InputError: this machine or this torch has none.
    """
    torch = extras.torch(where if name else None)
    kind, index = _parse(name)
    if kind is None:
        kind = "rocm" if torch.version.hip else "cuda"
        if not torch.cuda.is_available():
            kind = "mps" if torch.backends.mps.is_available() else "cpu"
    if kind in ("cuda", "rocm"):
        return _card(torch, kind, index)
    return _mps(torch) if kind == "mps" else _cpu(torch)


def _parse(name: str | None) -> tuple[Kind | None, int]:
    if name is None or name.lower() == "auto":
        return None, 0
    kind, colon, number = name.lower().partition(":")
    if kind not in KINDS or (colon and not number.isdigit()):
        raise UnknownNameError("device", name, list(KINDS), where=_FLAG, more=f"type {', '.join(KINDS)} or cuda:1")
    if number and kind in ("cpu", "mps"):
        raise UnknownNameError("device", name, [kind], where=_FLAG, more=f"there is one {kind}: type {kind}")
    return kind, int(number or 0)


def _card(torch: Any, kind: Kind, index: int) -> ProbeDevice:
    hip = bool(torch.version.hip)
    cards = nvml.quiet_facts() if kind == "cuda" else []  # before torch starts a context, whose cost is measured
    if not torch.cuda.is_available() or hip is (kind == "cuda"):
        built = torch.version.hip or torch.version.cuda or "the CPU alone"
        raise InputError(
            f"torch sees no {'AMD' if kind == 'rocm' else 'NVIDIA'} GPU (it was built for {built})", where=_FLAG,
            hint="type --device cpu, or install a torch for this GPU",
        )  # fmt: skip
    if index >= torch.cuda.device_count():
        raise InputError(
            f"there is no GPU {index}: torch sees {torch.cuda.device_count()}", where=_FLAG, hint=f"type {kind}:0"
        )
    facts = torch.cuda.get_device_properties(index)
    uuid = str(getattr(facts, "uuid", "") or "") or None
    known = nvml.facts_of(cards, uuid, index)
    gpu = match(facts.name, int(facts.total_memory))
    bandwidth, source = _bandwidth(facts, known, gpu, hip=hip)
    return ProbeDevice(
        kind=kind, index=index, name=facts.name, total_bytes=int(facts.total_memory), free_bytes=_free(kind, index),
        theoretical_bandwidth=bandwidth, bandwidth_source=source, nvml=known, gpu=gpu,
        compute_capability=f"{facts.major}.{facts.minor}" if kind == "cuda" else None,
        multiprocessors=facts.multi_processor_count, l2_bytes=getattr(facts, "L2_cache_size", None),
        torch_version=torch.__version__, triton_version=_triton(),
        runtime_version=torch.version.hip or torch.version.cuda,
        bus_width_bits=(known.bus_width_bits if known else None) or getattr(facts, "memory_bus_width", None) or None,
        shared_memory=bool(getattr(facts, "is_integrated", False)) or (gpu is not None and gpu.unified_memory),
    )  # fmt: skip


def _bandwidth(
    facts: Any, known: NvmlFacts | None, gpu: GpuSpec | None, *, hip: bool = False
) -> tuple[float | None, str]:
    if known is not None and known.theoretical_bandwidth:
        mhz, bits = known.max_memory_clock_mhz, known.bus_width_bits
        return known.theoretical_bandwidth, f"2 x {bits} bit x {mhz} MHz (NVML)"
    clock, bits = getattr(facts, "memory_clock_rate", 0), getattr(facts, "memory_bus_width", 0)
    sheet = gpu.bandwidth_bytes_per_second if gpu is not None else None
    if clock and bits:
        rate, source = 2 * bits / 8 * clock * 1e3, f"2 x {bits} bit x {clock / 1000:.0f} MHz (torch)"
        if gpu is None or not sheet or not hip or abs(rate / sheet - 1) <= BANDWIDTH_TOLERANCE:
            return rate, source
        return float(sheet), f"{SHEET} of {gpu.id}: {source} is another rate"  # clocks of HBM3 are told halved
    if gpu is not None and sheet:
        return float(sheet), f"{SHEET} of {gpu.id}"
    return None, "not known"


def match(name: str, total_bytes: int | None) -> GpuSpec | None:
    """The catalog's entry for a driver's name; cards that share a name are told apart by their memory."""
    from kvplan.catalog import gpu_ids, load_gpu, resolve_gpu_name

    try:
        found = resolve_gpu_name(name)
    except InputError:  # it fits more than one
        found = None
        if total_bytes is None:
            return None
    else:
        if found is None:
            return None
    first = load_gpu(found) if found is not None else None
    if first is not None and (total_bytes is None or _same_size(first, total_bytes)):
        return first
    names = {name, f"NVIDIA {name}", *((first.name,) if first else ())}
    stem = re.sub(r"-\d+gb$", "", found) if found else None
    alike = [
        gpu
        for gpu in map(load_gpu, gpu_ids())
        if names & {gpu.name, *gpu.aliases} or (stem is not None and re.sub(r"-\d+gb$", "", gpu.id) == stem)
    ]
    sized = [gpu for gpu in alike if _same_size(gpu, total_bytes or 0)]
    if sized:
        return sized[0]
    # a catalog may lack the card of the same name with half the memory; of memory shared with a processor a card gets
    # what firmware and system leave it
    if first is None or first.unified_memory or total_bytes is None:
        return first
    return None if abs(first.device_bytes - total_bytes) > _FAR * total_bytes else first


def _same_size(gpu: GpuSpec, total_bytes: int) -> bool:
    """Whether a card of `total_bytes` can be this one: drivers and torch differ by up to 6 %."""
    return abs(gpu.device_bytes - total_bytes) <= 0.06 * total_bytes


def _mps(torch: Any) -> ProbeDevice:
    if not torch.backends.mps.is_available():
        raise InputError("this machine or this torch has no MPS device", where=_FLAG, hint="type --device cpu")
    name, total = _cpu_name(), int(torch.mps.recommended_max_memory())
    gpu = match(name, None)
    rate = float(gpu.bandwidth_bytes_per_second) if gpu and gpu.bandwidth_bytes_per_second else None
    return ProbeDevice(
        kind="mps", name=name, total_bytes=total, free_bytes=_free("mps", 0), theoretical_bandwidth=rate,
        bandwidth_source=f"{SHEET} of {gpu.id}" if gpu and rate else "not known", nvml=None, gpu=gpu,
        torch_version=torch.__version__,
    )  # fmt: skip


def _cpu(torch: Any) -> ProbeDevice:
    return ProbeDevice(
        kind="cpu", name=_cpu_name(), total_bytes=_host_total(), free_bytes=_free("cpu", 0),
        theoretical_bandwidth=None, bandwidth_source="no interface says; measured instead", nvml=None, gpu=None,
        multiprocessors=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        torch_version=torch.__version__, triton_version=None,
    )  # fmt: skip


def _free(kind: Kind, index: int) -> int:
    if kind in ("cuda", "rocm"):
        return int(extras.torch().cuda.mem_get_info(index)[0])
    if kind == "mps":
        torch = extras.torch()
        return max(0, int(torch.mps.recommended_max_memory()) - int(torch.mps.driver_allocated_memory()))
    return _host_available()


def _trim_heap() -> None:
    """Give freed heap pages back to the system (glibc keeps them, and later tensors would seem to cost nothing)."""
    import ctypes

    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


def _triton() -> str | None:
    try:
        import triton
    except ImportError:
        return None
    return str(triton.__version__)


def _meminfo() -> dict[str, int]:
    """``/proc/meminfo`` in bytes; empty elsewhere than on Linux."""
    found: dict[str, int] = {}
    try:
        with open("/proc/meminfo", encoding="ascii") as file:
            for line in file:
                key, _, rest = line.partition(":")
                if rest.split() and rest.split()[-1] == "kB":
                    found[key] = int(rest.split()[0]) * 1024
    except (OSError, ValueError):
        return {}
    return found


def machine_bytes() -> int | None:
    """The machine's memory; None where the system does not say."""
    return _meminfo().get("MemTotal")


def _cgroup(name: str) -> int | None:
    """A number of this process's control group (version 2); None: no limit, or no such file."""
    try:
        with open(f"/sys/fs/cgroup/{name}", encoding="ascii") as file:
            return int(file.read())
    except (OSError, ValueError):
        return None


def _host_total() -> int:
    total = _meminfo().get("MemTotal")
    if total is None:
        try:
            total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        except (ValueError, OSError, AttributeError):
            total = 8 << 30
    return min(total, _cgroup("memory.max") or total)


def _host_available() -> int:
    total = _host_total()
    free = _meminfo().get("MemAvailable", total // 2)
    limit, used = _cgroup("memory.max"), _cgroup("memory.current")
    return max(0, min(free, limit - used)) if limit is not None and used is not None else free


def _cpu_name() -> str:
    import platform

    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
            for line in file:
                if line.startswith(("model name", "Hardware")):
                    return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine() or "CPU"

"""An accelerator: how many bytes it has, how fast it reads them, and who says so."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from kvplan.errors import printable
from kvplan.spec.shown import Shown

SCHEMA = "kvplan.gpu/1"


LEAST_BYTES = 1 << 20
"""Engines count the memory of an accelerator in MiB and divide by it; less is a slip of the unit."""


@dataclass(frozen=True, kw_only=True, repr=False)
class Price(Shown):
    """Dated on-demand price range of one accelerator."""

    low_usd_per_hour: float
    high_usd_per_hour: float
    source: str
    date: str


@dataclass(frozen=True, kw_only=True, repr=False)
class GpuSpec(Shown):
    """One accelerator as programs see it. Rates are dense and per accelerator."""

    id: str
    name: str
    """The name its driver prints."""
    vendor: str
    """In lower case, however it was written."""
    architecture: str
    datasheet_gb: float
    """What the datasheet says, in its own loose GB; never used as bytes where better is known."""
    bandwidth_bytes_per_second: int | None
    """Datasheet memory bandwidth; None where a device is described by its memory alone."""
    nvml_total_bytes: int | None = None
    """What nvidia-smi or its like prints as total."""
    nvml_total_source: str | None = None
    torch_total_bytes: int | None = None
    """What torch reports as total: NVML's total less what the driver keeps."""
    torch_total_source: str | None = None
    aliases: tuple[str, ...] = ()
    compute_capability: str | None = None
    """``9.0`` on NVIDIA's; elsewhere what the vendor calls the instruction set, as in ``gfx942``."""
    sm_count: int | None = None
    fp16_flops: int | None = None
    bf16_flops: int | None = None
    fp8_flops: int | None = None
    fp4_flops: int | None = None
    int8_ops: int | None = None
    fp16_accumulate_flops: int | None = None
    """fp16 with fp16 accumulation, the number that GeForce sheets advertise."""
    interconnect: str | None = None
    """``nvlink``, ``pcie``, ...: how it reaches its neighbours."""
    interconnect_bytes_per_second: int | None = None
    """Both directions together."""
    interconnect_note: str | None = None
    interconnect_generation: int | None = None
    """Of PCIe."""
    interconnect_lanes: int | None = None
    """Of PCIe."""
    interconnect_bridge: bool = False
    """Only between cards that a bridge joins (pairs, as a rule)."""
    tdp_watts: float | None = None
    unified_memory: bool = False
    """Memory shared with the CPU, of which the GPU gets a capped part."""
    price: Price | None = None
    source: tuple[str, ...] = ()
    confidence: str = ""
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        bandwidth = self.bandwidth_bytes_per_second
        if (bandwidth is not None and bandwidth <= 0) or self.datasheet_gb <= 0:
            raise ValueError("bandwidth_bytes_per_second and datasheet_gb must be above 0")
        if self.device_bytes < LEAST_BYTES:
            raise ValueError(f"its memory, {self.device_bytes:,} B, is too little for an accelerator")
        object.__setattr__(self, "vendor", self.vendor.strip().lower())  # engines and rates know them so
        if self.vendor == "nvidia" and self.compute_capability is not None:
            major, _, minor = self.compute_capability.partition(".")
            if not (self.compute_capability.isascii() and major.isdigit() and len(minor) == 1 and minor.isdigit()):
                raise ValueError(
                    f'compute_capability is {printable(repr(self.compute_capability), 40)}, not "9.0" or its like: '
                    "digits, a dot, a digit"
                )

    @property
    def device_bytes(self) -> int:
        """Bytes a process can hope for, from the best figure there is (see `device_bytes_basis`)."""
        if self.torch_total_bytes is not None:
            return self.torch_total_bytes
        if self.nvml_total_bytes is not None:
            return self.nvml_total_bytes
        return int(self.datasheet_gb * 10**9)

    @property
    def device_bytes_basis(self) -> tuple[Literal["measured", "modelled"], str]:
        """Where `device_bytes` comes from: (basis, source)."""
        if self.torch_total_bytes is not None:
            return "measured", self.torch_total_source or "total that torch printed"
        if self.nvml_total_bytes is not None:
            return "modelled", "driver total; torch sees up to 1 % less"
        return "modelled", "datasheet GB read as 10^9 bytes; no driver total is known"

"""A card that is not there: NVML as a module of plain functions, and devices made of numbers."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

H200 = {
    "name": "NVIDIA H200", "uuid": "GPU-0000aaaa-1111", "total": 150_754_820_096, "reserved": 644_939_776, "used": 0,
    "bus": 6016, "memory_clock": 3201, "capability": (9, 0), "processes": (),
}  # fmt: skip
"""One card as its driver describes it (driver 580.159)."""


class FakeNvml(ModuleType):
    """``pynvml`` over a list of cards; what a card lacks raises, as the library does."""

    NVML_CLOCK_SM, NVML_CLOCK_MEM = 1, 2
    nvmlMemory_v2 = 2

    class NVMLError(Exception):
        """As the library's."""

    def __init__(self, cards: list[dict[str, Any]], broken: str | None = None) -> None:
        super().__init__("pynvml")
        self.cards, self.broken, self.open = cards, broken, 0

    def nvmlInit(self) -> None:
        if self.broken:
            raise self.NVMLError(self.broken)
        self.open += 1

    def nvmlShutdown(self) -> None:
        self.open -= 1

    def __getattr__(self, name: str) -> Any:
        asks = {
            "nvmlDeviceGetCount": lambda: len(self.cards),
            "nvmlSystemGetDriverVersion": lambda: "580.159",
            "nvmlDeviceGetHandleByIndex": self._handle,
            "nvmlDeviceGetName": lambda card: card["name"],
            "nvmlDeviceGetUUID": lambda card: card["uuid"],
            "nvmlDeviceGetMemoryInfo": self._memory,
            "nvmlDeviceGetComputeRunningProcesses": lambda card: [
                SimpleNamespace(pid=pid, usedGpuMemory=used) for pid, used in card["processes"]
            ],
            "nvmlDeviceGetMemoryBusWidth": lambda card: card["bus"],
            "nvmlDeviceGetMaxClockInfo": lambda card, which: card["memory_clock"] if which == 2 else 1980,
            "nvmlDeviceGetCudaComputeCapability": lambda card: card["capability"],
        }
        if name in asks:
            return asks[name]
        if name.startswith("nvml"):
            return self._unknown
        raise AttributeError(name)

    def _memory(self, card: dict[str, Any], version: int | None = None) -> SimpleNamespace:
        if card["total"] is None:
            raise self.NVMLError("Not Supported")
        reserved = card["reserved"]
        if version is not None and reserved is None:
            raise self.NVMLError("not supported")
        used = card["used"] + (0 if version else reserved or 0)
        free = card["total"] - (reserved or 0) - card["used"]
        return SimpleNamespace(total=card["total"], reserved=reserved, used=used, free=free)

    def _handle(self, index: int) -> dict[str, Any]:
        if self.cards[index].get("lost"):
            raise self.NVMLError("GPU is lost")
        return self.cards[index]

    def _unknown(self, *args: object) -> None:
        raise self.NVMLError("Not Supported")


@pytest.fixture
def fake_nvml(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Puts cards into the machine: ``fake_nvml(H200, {**H200, "name": ...})``."""

    def install(*cards: dict[str, Any], broken: str | None = None) -> FakeNvml:
        module = FakeNvml(list(cards), broken)
        monkeypatch.setitem(sys.modules, "pynvml", module)
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        return module

    return install


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Torch on one core: small operators only wait for one another on several, the more so beside other tests."""
    try:
        import torch
    except ImportError:
        yield
        return
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def no_extras(monkeypatch: pytest.MonkeyPatch) -> None:
    """An installation without the extra."""
    monkeypatch.setitem(sys.modules, "torch", None)
    monkeypatch.setitem(sys.modules, "pynvml", None)

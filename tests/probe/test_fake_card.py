"""A card made of numbers whose memory is the machine's: what is judged on which card, and what survives a failure."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("torch", reason="the probe's extra is not installed")

import torch

from kvplan.catalog import load_gpu
from kvplan.probe import allocator, bandwidth, facts, fill, linear, memory, nvml, run, stack, timing
from kvplan.probe.device import ProbeDevice, _bandwidth
from kvplan.probe.kernels import between
from kvplan.probe.receipt import Row, row
from kvplan.probe.session import MeasuredFigure, MeasuredLine, Session
from kvplan.sources import find_model
from kvplan.units import MIB

from .conftest import H200


class Card(ProbeDevice):
    """A GPU by its facts, a CPU by its tensors."""

    @property
    def torch_device(self) -> Any:
        return torch.device("cpu")

    def synchronize(self) -> None: ...

    def release(self) -> None: ...


def card(**changes: Any) -> Card:
    """An H200 unless told otherwise, with a cache that the buffers of these tests defeat."""
    facts_ = {
        "kind": "cuda", "name": "NVIDIA H200", "total_bytes": 150_109_880_320, "free_bytes": 150_109_880_320,
        "theoretical_bandwidth": 4.8e12, "bandwidth_source": "2 x 6016 bit x 3201 MHz (NVML)", "nvml": None,
        "gpu": load_gpu("h200-sxm"), "compute_capability": "9.0", "multiprocessors": 132, "l2_bytes": 1 << 19,
        "torch_version": torch.__version__, "bus_width_bits": 6016,
    }  # fmt: skip
    return Card(**{**facts_, **changes})


def session_of(device: Card, megabytes: int = 128) -> Session:
    request = run.Request(find_model("llama-3.2-1b"), "vllm", {}, device, megabytes * MIB, quick=True)
    return run.open_session(request, lambda text: None)


@pytest.fixture
def no_compiler(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Triton that is installed and cannot compile; the kernels that were tried."""
    tried: list[str] = []

    class Kernel:
        def __init__(self, name: str) -> None:
            self.name = name

        def __getitem__(self, grid: object) -> Any:
            def launch(*args: object, **meta: object) -> None:
                tried.append(self.name)
                raise RuntimeError("Failed to find C compiler. Please specify via CC environment variable.\nmore")

            return launch

    for name, kernels in (("triton_step", ("add_norm", "rotate", "gate")), ("triton_read", ("read_sum",))):
        module = ModuleType(name)
        for kernel in kernels:
            setattr(module, kernel, Kernel(kernel))
        monkeypatch.setitem(sys.modules, f"kvplan.probe.kernels.{name}", module)
    monkeypatch.setattr(between, "_fused", lambda x: True)
    monkeypatch.setattr(between, "_broken", {})
    monkeypatch.setattr(bandwidth, "triton_runs", lambda device, fmt: True)
    return tried


def timed(seconds: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every way of reading runs once, and takes as long as it is said to."""

    def seconds_of(session: Session, method: bandwidth.Method) -> list[float]:
        method.run()
        return [seconds] * 3

    monkeypatch.setattr(bandwidth, "_seconds", seconds_of)


def test_bandwidth_is_measured_without_a_compiler(no_compiler: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    timed(1e-3, monkeypatch)
    session = session_of(card())
    rows = bandwidth.measure(session)
    broken = [r for r in rows if r.measured is None]
    assert len(broken) == len(no_compiler) == 2
    assert all(r.name.startswith("Triton read kernel") and r.passed is None for r in broken)
    assert "does not run here: RuntimeError: Failed to find C compiler" in broken[0].note
    assert {"amax of int32", "copy", "read ceiling"} <= {r.name for r in rows if r.measured}
    assert session.figures.read_bytes_per_second is not None


def test_bandwidth_fails_where_nothing_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(session: Session, method: bandwidth.Method) -> list[float]:
        raise RuntimeError("an illegal memory access")

    monkeypatch.setattr(bandwidth, "_seconds", broken)
    with pytest.raises(RuntimeError, match="illegal"):
        bandwidth.measure(session_of(card()))

    def full(session: Session, method: bandwidth.Method) -> list[float]:
        raise torch.OutOfMemoryError

    monkeypatch.setattr(bandwidth, "_seconds", full)
    with pytest.raises(torch.OutOfMemoryError):
        bandwidth.measure(session_of(card()))


def test_between_falls_back_once_and_says_so(no_compiler: list[str]) -> None:
    x, weight = torch.randn(3, 64), torch.rand(64)
    for _ in range(2):
        rest, out = torch.ones(3, 64), torch.empty(3, 64)
        between.add_norm(x, rest, weight, out)
        assert torch.equal(rest, x + 1)
        torch.testing.assert_close(out, torch.nn.functional.rms_norm(x + 1, (64,), weight, 1e-6))
        gated = torch.empty(3, 32)
        between.gate(x, gated)
        torch.testing.assert_close(gated, torch.nn.functional.silu(x[:, :32]) * x[:, 32:])
        turned = torch.empty(3, 4, 16)
        between.rotate(x, torch.stack((torch.ones(8), torch.zeros(8))), turned)
        assert torch.equal(turned.flatten(1), x)
    assert no_compiler == ["add_norm", "gate", "rotate"]
    assert [line.partition(" by ")[0] for line in between.unfused()] == ["norms", "gates", "rotary positions"]


def test_a_kernel_that_fails_while_it_is_recorded_is_no_fallback(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(between, "_broken", {})
    monkeypatch.setattr(between, "_fused", lambda x: True)
    recording = [True]
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: recording[0])
    x: Any = SimpleNamespace(is_cuda=True)

    def launch() -> None:
        raise RuntimeError("operation not permitted when stream is capturing")

    with pytest.raises(RuntimeError, match="capturing"):
        between._launched("gates", x, launch)
    assert between.unfused() == []
    recording[0] = False
    assert between._launched("gates", x, launch) is False
    assert len(between.unfused()) == 1


@pytest.mark.parametrize(
    ("changes", "share", "passed"),
    [
        ({}, 0.956, True), ({}, 0.94, False), ({}, 1.03, True), ({}, 1.4, False),
        ({"bus_width_bits": 384}, 0.85, True), ({"bus_width_bits": 384}, 1.4, False),  # GDDR falls short, with ECC more
        ({"kind": "rocm"}, 1.4, None), ({"bus_width_bits": None}, 0.5, None),
        ({"bandwidth_source": "datasheet of mi300x"}, 0.7, None),
    ],
)  # fmt: skip
def test_the_ceiling_is_judged_where_theory_is_sure(changes: dict[str, Any], share: float, passed: bool | None) -> None:
    found = bandwidth._ceiling(card(**changes), 8 << 30, "amax", [share * 4.8e12] * 3)
    assert found.passed is passed
    assert ("not judged" in found.note) is (passed is None or found.sense == "at_most")


def test_a_buffer_within_reach_of_the_cache_is_not_complete(monkeypatch: pytest.MonkeyPatch) -> None:
    timed(1e-3, monkeypatch)
    session = session_of(card(l2_bytes=60 * MIB))
    bandwidth.measure(session)
    assert len(session.lacks) == 1
    assert "32 MiB are read, 0.5 times the last-level cache, and 36 times are needed" in session.lacks[0]
    session = session_of(card(l2_bytes=MIB // 2))
    bandwidth.measure(session)
    assert session.lacks == []


def test_copies_within_reach_of_the_cache_are_told() -> None:
    timing.cache_shortfall()
    device = card(l2_bytes=60 * MIB)
    assert timing.copies_for(device, 64 * MIB, 1 << 40) * 64 >= 36 * 60
    assert timing.cache_shortfall() is None
    timing.copies_for(device, 15 * MIB, 60 * MIB)
    timing.copies_for(device, 64 * MIB, 19 * MIB)
    assert "1.0 times the last-level cache" in (timing.cache_shortfall() or "")
    assert timing.cache_shortfall() is None


def test_a_clock_that_is_told_halved_gives_way_to_the_datasheet() -> None:
    told = SimpleNamespace(memory_clock_rate=1_300_000, memory_bus_width=8192)
    known = load_gpu("mi300x")
    rate, source = _bandwidth(told, None, known, hip=True)
    assert (rate, source.partition(":")[0]) == (5.3e12, "datasheet of mi300x")
    assert "2 x 8192 bit x 1300 MHz (torch) is another rate" in source
    assert _bandwidth(told, None, None, hip=True)[0] == pytest.approx(2.6624e12)
    assert _bandwidth(told, None, known)[0] == pytest.approx(2.6624e12)  # NVIDIA's clocks are those of the bus
    rows = device_rows(card(kind="rocm", gpu=known, theoretical_bandwidth=rate, bandwidth_source=source))
    assert rows["bandwidth in theory"].passed is None


def device_rows(device: Card) -> dict[str, Row]:
    return {r.name: r for r in facts.measure(session_of(device))}


def test_totals_are_judged_where_somebody_read_them(monkeypatch: pytest.MonkeyPatch, fake_nvml: Any) -> None:
    monkeypatch.setattr(facts, "_context", lambda device: [])
    assert device_rows(card())["memory in total"].passed is True
    assert device_rows(card(total_bytes=140_000_000_000))["memory in total"].passed is False
    sheet = load_gpu("gh200-144gb")  # a datasheet's GB
    assert device_rows(card(gpu=sheet, total_bytes=151 * 10**9))["memory in total"].passed is None
    four = load_gpu("rtx-4060")
    fake_nvml({**H200, "name": four.name, "total": 8_585_740_288, "reserved": 300 * MIB})
    (known,) = nvml.all_facts()
    device = card(gpu=four, nvml=known, total_bytes=8_585_740_288 - 300 * MIB)
    found = device_rows(device)["memory in total"]  # NVML's beside NVML's: torch's is 4 % below
    assert (found.predicted, found.measured, found.passed) == (8_585_740_288, 8_585_740_288, True)
    assert device_rows(card(gpu=load_gpu("gb10"), total_bytes=120 * 10**9))["memory in total"].passed is None


@pytest.mark.parametrize(("gpu", "passed"), [("h200-sxm", False), ("rtx-4060", None)])
def test_a_context_is_judged_on_the_card_where_one_was_seen(
    gpu: str, passed: bool | None, monkeypatch: pytest.MonkeyPatch, fake_nvml: Any
) -> None:
    fake_nvml(H200)
    (known,) = nvml.all_facts()
    monkeypatch.setattr(nvml, "used_bytes", lambda number: 300 * MIB)
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda index: 0)
    (found,) = facts._context(card(gpu=load_gpu(gpu), nvml=known))
    assert (found.measured, found.passed) == (300 * MIB, passed)


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("PYTORCH_CUDA_ALLOC_CONF", "backend: cudaMallocAsync", "backend:cudamallocasync"),
        ("PYTORCH_ALLOC_CONF", "roundup_power2_divisions:[256:1,>:4]", "roundup_power2_divisions"),
        ("PYTORCH_HIP_ALLOC_CONF", "max_split_size_mb:128", "max_split_size_mb"),
        ("PYTORCH_NO_CUDA_MEMORY_CACHING", "1", "PYTORCH_NO_CUDA_MEMORY_CACHING"),
        ("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True,garbage_collection_threshold:0.8", None),
    ],
)
def test_an_allocator_that_is_not_modelled_is_not_judged(
    name: str, value: str, says: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    for other in (*allocator._SETTINGS, "PYTORCH_NO_CUDA_MEMORY_CACHING", "PYTORCH_NO_HIP_MEMORY_CACHING"):
        monkeypatch.delenv(other, raising=False)
    monkeypatch.setenv(name, value)
    setting = allocator.unmodelled()
    assert (setting is None) if says is None else (setting is not None and says in setting)
    monkeypatch.setattr(memory, "state", lambda device: (0, 0, 0))  # what nobody's arithmetic says
    session = session_of(card())
    rows = memory.compare(session, "one", [memory.Shape("uint8", (3 * MIB,))], 3 * MIB, "")
    assert [r.passed for r in rows] == [True, *[None if says else False] * 3]
    assert all((f"not judged: {setting} is set" in r.note) is bool(says) for r in rows[1:])
    judged = fill._judged(card(), row("fill", "x", predicted=2, measured=1, unit="count", tolerance=0.0))
    assert judged.passed is None  # no driver is known


def test_the_last_page_is_judged_under_a_driver_that_was_seen(fake_nvml: Any) -> None:
    fake_nvml(H200)
    (known,) = nvml.all_facts()
    found = row("fill", "x", predicted=2, measured=1, unit="count", tolerance=0.0)
    assert fill._judged(card(nvml=known._replace(driver="580.159.04")), found) == found
    other = fill._judged(card(nvml=known._replace(driver="595.10")), found)
    assert (other.passed, other.tolerance) == (None, None)
    assert "driver 595.10 may keep another page" in other.note


@pytest.mark.parametrize(
    ("predicted", "crosses", "passed"), [(256, True, True), (180, True, False), (256, False, False), (775, False, None)]
)
def test_a_crossing_beyond_what_is_tried_informs(
    predicted: int, crosses: bool, passed: bool | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some cards multiply so fast beside their memory that no batch of the ladder is bound by products."""
    session = session_of(card())
    session.figures.linear["16"] = MeasuredLine(
        MeasuredFigure(4e12, 4e12, 4e12, 3), MeasuredFigure(0.0, 0.0, 0.0, 3), 0.01
    )
    monkeypatch.setattr(linear.decode, "ridge_batch", lambda works, rates, layout: predicted)
    # as the planner joins them: the cube root of 1 + (batch / 256)^3
    monkeypatch.setattr(
        linear, "layer_products", lambda session, layers, batch: [(1 + crosses * (batch / 256) ** 3) ** (1 / 3)]
    )
    one = torch.ones((1, 1))
    (found,) = linear._crossing(session, [stack.Layer(dense=[(one, one, True)])])
    assert found.passed is passed
    assert (found.measured is not None) == crosses
    assert ("not judged" in found.note) == (passed is None)

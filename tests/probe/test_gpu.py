"""On a real GPU: what the allocator and the driver say, to the byte."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvplan.planning.calibration import load_calibration
from kvplan.probe import fill, run
from kvplan.probe.allocator import reserve
from kvplan.probe.device import detect
from kvplan.probe.memory import Shape, allocated
from kvplan.sources import find_model

torch = pytest.importorskip("torch", reason="the probe's extra is not installed")

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]


@pytest.mark.parametrize("model", ["llama-3.1-8b", "gemma-3-27b", "deepseek-v3", "falcon-h1-7b"])
def test_memory_blocks_and_correctness_hold(model: str) -> None:
    request = run.Request(
        find_model(model), "vllm", {}, detect("cuda"), quick=True,
        sections=("device", "memory", "blocks", "correctness"),
    )  # fmt: skip
    receipt = run.validate(request)
    assert [(r.name, r.predicted, r.measured) for r in receipt.rows if r.passed is False] == []
    assert receipt.counts.passed > 30


def test_the_card_is_filled_to_the_predicted_block() -> None:
    request = run.Request(
        find_model("llama-3.1-8b"), "vllm", {}, detect("cuda"), quick=True, fill=True, sections=("fill",)
    )
    receipt = run.validate(request)
    assert [(r.name, r.predicted, r.measured) for r in receipt.rows if r.passed is False] == []
    seen = (request.device.driver or "").startswith(fill.DRIVERS_SEEN)
    assert receipt.counts.passed == (4 if seen else 0)
    assert len(receipt.rows) == 4


@pytest.mark.parametrize("sizes", [[512] * 5000, [3 << 20] * 7, [1, 700_000, 11 << 20, 2_000_001] * 9])
def test_the_allocators_arithmetic(sizes: list[int]) -> None:
    device = detect("cuda")
    with allocated(device, [Shape("uint8", (size,)) for size in sizes]) as held:
        assert not isinstance(held, str)
    model = reserve(sizes)
    assert held.allocated_bytes == model.allocated_bytes
    assert held.reserved_bytes == model.reserved_bytes


@pytest.mark.parametrize("shape", ["text", "table", "json"])
def test_the_command_prints_its_report(shape: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from kvplan.cli.main import main

    saved = tmp_path / "here.json"
    words = ["validate", "llama-3.2-1b", "--quick", "--only", "device,bandwidth", "--save", str(saved), "--busy"]
    status = main([*words, "--format", shape])
    shown = capsys.readouterr()
    assert status == 0, shown.err
    assert "read ceiling" in shown.out
    assert load_calibration(str(saved)).kind == "cuda"


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two cards")
def test_the_second_card_is_the_one_that_is_measured() -> None:
    """Graphs, events and Triton's launches are the current card's."""
    before, untouched = torch.cuda.current_device(), torch.cuda.memory_reserved(0)
    request = run.Request(
        find_model("llama-3.2-1b"), "vllm", {}, detect("cuda:1"), quick=True, sections=("bandwidth", "attention")
    )
    receipt = run.validate(request)
    assert [r.name for r in receipt.rows if r.passed is False] == []
    assert any(r.name.startswith("Triton") and r.measured for r in receipt.rows)
    assert (torch.cuda.current_device(), torch.cuda.memory_reserved(0)) == (before, untouched)


def test_nothing_is_left_behind() -> None:
    device = detect("cuda")
    torch.empty(1, device="cuda")
    device.release()
    before = torch.cuda.memory_reserved(device.index)
    run.validate(run.Request(find_model("llama-3.2-1b"), "vllm", {}, device, quick=True, sections=("memory", "blocks")))
    device.release()
    assert torch.cuda.memory_reserved(device.index) <= before

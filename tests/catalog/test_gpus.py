"""The accelerators against the facts they were written from."""

from __future__ import annotations

import json
import subprocess
import sys
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from kvplan.catalog import gpu_ids, load_gpu

ROOT = Path(__file__).resolve().parents[2]
FACTS = {
    fact["id"]: fact
    for fact in map(json.loads, (ROOT / "tests" / "data" / "gpus.jsonl").read_text(encoding="utf-8").splitlines())
}
MEASURED = "h200-sxm"
RATES = {
    "fp16_tflops_dense": "fp16_flops",
    "bf16_tflops_dense": "bf16_flops",
    "fp8_tflops_dense": "fp8_flops",
    "fp4_tflops_dense": "fp4_flops",
    "int8_tops_dense": "int8_ops",
    "fp16_tflops_fp16_accumulate": "fp16_accumulate_flops",
}


def scaled(value: float | None, factor: int) -> int | None:
    return None if value is None else int(Decimal(str(value)) * factor)


def test_every_fact_has_a_file() -> None:
    """A file without a fact was written by hand: its figures are held to the laws below, and to nothing else."""
    assert set(gpu_ids()) >= FACTS.keys()
    assert FACTS


@pytest.mark.parametrize("name", FACTS)
def test_spec_equals_fact(name: str) -> None:
    fact, gpu = FACTS[name], load_gpu(name)
    same = {
        "id": "id", "name": "name", "vendor": "vendor", "arch": "architecture", "confidence": "confidence",
        "compute_capability": "compute_capability", "memory_datasheet_gb": "datasheet_gb", "tdp_w": "tdp_watts",
    }  # fmt: skip
    for theirs, ours in same.items():
        assert getattr(gpu, ours) == fact.get(theirs), ours
    for theirs, ours in {"aliases": "aliases", "source": "source", "notes": "notes"}.items():
        assert getattr(gpu, ours) == tuple(fact.get(theirs, ())), ours
    for theirs, ours in RATES.items():
        assert getattr(gpu, ours) == scaled(fact.get(theirs), 10**12), ours
    assert gpu.bandwidth_bytes_per_second == scaled(fact["mem_bandwidth_gb_s"], 10**9)
    assert gpu.unified_memory == fact.get("unified_memory", False)
    if name != MEASURED:
        assert gpu.nvml_total_bytes == scaled(fact.get("memory_total_mib"), 2**20)
        assert gpu.nvml_total_source == fact.get("memory_total_source")
        assert gpu.torch_total_bytes == fact.get("torch_total_bytes")
        assert (gpu.torch_total_source is None) == (gpu.torch_total_bytes is None)


@pytest.mark.parametrize("name", FACTS)
def test_link_and_price_equal_fact(name: str) -> None:
    fact, gpu = FACTS[name], load_gpu(name)
    link: dict[str, Any] = fact.get("interconnect") or {}
    assert gpu.interconnect == link.get("type")
    assert gpu.interconnect_bytes_per_second == scaled(link.get("gb_s_bidirectional"), 10**9)
    assert (gpu.interconnect_generation, gpu.interconnect_lanes) == (link.get("gen"), link.get("lanes"))
    assert (gpu.interconnect_bridge, gpu.interconnect_note) == (link.get("bridge", False), link.get("note"))
    price = fact.get("price_usd_hour")
    assert (gpu.price is None) == (price is None)
    if gpu.price and price:
        found = (gpu.price.low_usd_per_hour, gpu.price.high_usd_per_hour, gpu.price.source, gpu.price.date)
        assert found == (price["low"], price["high"], price["source"], price["date"])


@pytest.mark.parametrize("name", gpu_ids())
def test_figures_are_whole_and_memory_shrinks_from_driver_to_torch(name: str) -> None:
    gpu = load_gpu(name)
    for field in (*RATES.values(), "bandwidth_bytes_per_second", "nvml_total_bytes", "torch_total_bytes"):
        assert isinstance(getattr(gpu, field), int | None), field
    if gpu.nvml_total_bytes and gpu.torch_total_bytes:
        # consumer cards on which torch printed the driver's rounded total are equal at most
        assert 0.9 * gpu.nvml_total_bytes < gpu.torch_total_bytes <= gpu.nvml_total_bytes * 1.0005
    if gpu.nvml_total_bytes:
        assert 0.88 < gpu.nvml_total_bytes / (gpu.datasheet_gb * 2**30) <= 1.02


NVIDIA = [gpu.id for gpu in map(load_gpu, gpu_ids()) if gpu.vendor == "nvidia" and gpu.architecture != "rubin"]


@pytest.mark.parametrize("name", NVIDIA)
def test_rates_are_dense(name: str) -> None:
    """Half the bits double the rate; a sparse figure among dense ones would give four times."""
    gpu = load_gpu(name)
    gaming = 2 if gpu.fp16_accumulate_flops else 1  # GeForce halves what accumulates in fp32
    if gpu.fp8_flops and gpu.bf16_flops:
        assert gpu.fp8_flops / gpu.bf16_flops <= 2.05
    if gpu.fp4_flops and gpu.fp8_flops:
        assert gpu.fp4_flops / gpu.fp8_flops <= (3.2 if "ultra" in gpu.architecture else 2.15 * gaming)
    if gpu.int8_ops and gpu.fp16_flops:
        assert gpu.int8_ops / gpu.fp16_flops <= 2.05 * gaming


def test_known_dense_rates() -> None:
    assert load_gpu("h100-sxm").bf16_flops == 989 * 10**12  # 1,979 with sparsity
    assert load_gpu("a100-sxm4-80gb").bf16_flops == 312 * 10**12  # 624 with sparsity
    assert load_gpu("l40s").bf16_flops == 362 * 10**12  # 733 with sparsity


def test_the_measured_card() -> None:
    gpu = load_gpu("H200")
    assert gpu.nvml_total_bytes == 150_754_820_096
    assert gpu.torch_total_bytes == gpu.device_bytes == 150_109_880_320
    basis, source = gpu.device_bytes_basis
    assert basis == "measured"
    assert "driver 580.159, November 2026" in source


@pytest.mark.parametrize(
    ("name", "count"),
    [("h100-sxm", 132), ("h100-pcie", 114), ("a100-sxm4-40gb", 108), ("l4", 58), ("rtx-5090", 170), ("b200", 148)],
)
def test_multiprocessors(name: str, count: int) -> None:
    assert load_gpu(name).sm_count == count


def test_files_are_up_to_date() -> None:
    script = [sys.executable, "scripts/make_gpus.py", "tests/data/gpus.jsonl", "--check"]
    done = subprocess.run(script, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr

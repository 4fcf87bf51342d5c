"""Start-ups of SGLang that print tokens and bytes: bytes for the printed tokens, tokens for the printed bytes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kvplan import plan
from kvplan.units import GIB

ROWS = {
    row["id"]: row
    for row in map(json.loads, Path("tests/data/cases/field.jsonl").read_text().splitlines())
    if row["engine"].startswith("sglang") and "pure-kv" in row["kinds"]
}

DEPLOYED: dict[str, tuple[str, str, dict[str, Any]]] = {
    "sglang-18263-qwen3-30b-mi": ("qwen3-30b-a3b", "0.5.17", {}),
    "idx-sglang-qwen25-32b-tp4": ("qwen2.5-32b", "0.4.9", {"tensor_parallel_size": 4}),
    # states in bf16 and 43 slots, as 3.09 GB of them say
    "idx-sglang-qwen36-27b": ("qwen3.5-27b", "0.5.17", {"mamba_ssm_cache_dtype": "bf16", "max_mamba_cache_size": 43}),
    # a fork of SGLang that keeps the experts on the CPU; FlashMLA's pages of 64
    "kt-1969-dsv32": ("deepseek-v3.2", "0.5.12", {"kv_cache_dtype": "bf16", "page_size": 64}),
}
"""id -> (model, version, settings that the report states or that its other figures fix)."""


def test_every_report_is_planned() -> None:
    assert set(DEPLOYED) == set(ROWS)


def rounded(num_bytes: int) -> float:
    return round(num_bytes / GIB, 2)


@pytest.mark.parametrize("name", sorted(DEPLOYED))
def test_bytes_of_the_printed_tokens(name: str) -> None:
    model, version, given = DEPLOYED[name]
    seen = ROWS[name]["reported"]
    made = plan(model, engine=f"sglang@{version}", max_total_tokens=seen["kv_tokens"], **given).allocation
    assert made is not None
    full = next(p for p in made.pools if p.kind == "full")
    if "k_gb" in seen:
        assert (rounded(full.k_bytes), rounded(full.v_bytes)) == (seen["k_gb"], seen["v_gb"])
    else:
        assert rounded(full.bytes) == seen["kv_gb"]
    if "mamba_ssm_gb" in seen:
        (states,) = made.states
        assert states.cells == seen["mamba_slots"] + 1
        assert (rounded(states.k_bytes), rounded(states.v_bytes)) == (seen["mamba_conv_gb"], seen["mamba_ssm_gb"])


@pytest.mark.parametrize("name", sorted(DEPLOYED))
def test_tokens_of_the_printed_bytes(name: str) -> None:
    """Two digits of GB carry half a hundredth of uncertainty each way."""
    model, version, given = DEPLOYED[name]
    seen = ROWS[name]["reported"]
    printed = seen["k_gb"] + seen["v_gb"] if "k_gb" in seen else seen["kv_gb"]
    slots = given.get("max_mamba_cache_size", 0)
    states = (slots + 1) * 78_446_592 if slots else 0
    bounds = []
    for error in (-0.01, 0.01):
        made = plan(
            model, engine=f"sglang@{version}", kv_cache_memory_bytes=int((printed + error) * GIB) + states, **given
        ).capacity
        assert made is not None
        assert made.kv_tokens is not None
        bounds.append(made.kv_tokens)
    assert bounds[0] <= seen["kv_tokens"] <= bounds[1]

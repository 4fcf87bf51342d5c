"""Pages, tokens and concurrency that people's own vLLM logs print, from the bytes that they print."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kvplan.catalog import load_gpu
from kvplan.planning.plan import Plan
from kvplan.planning.planner import plan_deployment
from kvplan.sources import find_model
from kvplan.sources.hf.read import read_config
from kvplan.spec.model import ModelSpec
from kvplan.units import GIB

CASES = Path(__file__).parents[2] / "data" / "cases"
FIELD = json.loads((CASES / "vllm_field.json").read_text())
PLANNED: dict[str, dict[str, Any]] = FIELD["planned"]
SET_ASIDE: dict[str, str] = FIELD["set_aside"]
REPORTS = {
    row["id"]: row
    for name in ("field.jsonl", "field_2026.jsonl", "field_more.jsonl")
    for row in map(json.loads, (CASES / name).read_text().splitlines())
    if row["engine"] == "vllm"
}
PURE = {name for name, row in REPORTS.items() if "pure-kv" in row["kinds"]}
NEEDED: dict[str, dict[str, Any]] = FIELD["needed"]
"""Refusals that print what one request needs."""
REFUSED = {name: REPORTS[name] for name in NEEDED}
STATED = ("max_model_len", "max_num_seqs", "max_num_batched_tokens", "block_size", "kv_cache_dtype", "enforce_eager",
          "enable_prefix_caching", "enable_expert_parallel")  # fmt: skip
HALF_DIGIT = 0.00501
"""GiB: half of the last digit that vLLM prints."""


def test_every_report_is_planned_or_set_aside_with_a_reason() -> None:
    assert not set(PLANNED) & set(SET_ASIDE)
    assert set(PLANNED) | set(SET_ASIDE) == PURE
    assert all(len(reason) > 15 for reason in SET_ASIDE.values())


def model_of(case: dict[str, Any]) -> ModelSpec:
    named = case["model"]
    if isinstance(named, str):
        return find_model(named)
    data = json.loads((CASES / "vllm_configs" / f"{named['config']}.json").read_text())
    return read_config({**data, **named["changes"]})


def planned(name: str, gib: float) -> Plan:
    """The deployment of a report with so many bytes per GPU; what the report states comes from the report."""
    case, said = {**PLANNED, **NEEDED}[name], REPORTS[name]["settings"]
    given = {key: said[key] for key in STATED if key in said}
    given |= {"tensor_parallel_size": said.get("tp", 1), **case["settings"]}
    given["kv_cache_memory_bytes"] = int(gib * GIB)
    return plan_deployment(model_of(case), load_gpu(case["gpu"]), f"vllm@{case['version']}", given)


@pytest.mark.parametrize("name", [n for n in PLANNED if "kv_tokens" in REPORTS[n]["reported"]])
def test_tokens_and_concurrency_of_the_printed_bytes(name: str) -> None:
    """Within the last digit of the printed GiB, and no further."""
    said = REPORTS[name]["reported"]
    low, high = (planned(name, said["available_kv_gib"] + side).capacity for side in (-HALF_DIGIT, HALF_DIGIT))
    assert low is not None
    assert high is not None
    assert low.engine_reported_tokens is not None
    assert high.engine_reported_tokens is not None
    assert low.engine_reported_tokens <= said["kv_tokens"] <= high.engine_reported_tokens
    if "concurrency" in said:
        assert round(low.max_concurrency, 2) <= said["concurrency"] <= round(high.max_concurrency, 2)
    block = REPORTS[name]["settings"].get("attention_block_size")
    if block is not None:
        assert low.block_size == block
    if "gpu_blocks" in said:
        assert low.num_blocks is not None
        assert high.num_blocks is not None
        assert low.num_blocks <= said["gpu_blocks"] <= high.num_blocks


@pytest.mark.parametrize("name", list(NEEDED))
def test_what_a_refused_length_needed(name: str) -> None:
    """The bytes of one request, and the longest that the bytes left would have held, as the refusal prints them."""
    said = REFUSED[name]["reported"]
    have = said.get("available_kv_gib", 1.0)
    low, high = (planned(name, have + side) for side in (-HALF_DIGIT, HALF_DIGIT))
    assert low.verdict.fits is False
    assert low.kv.bytes_per_sequence_per_gpu / GIB == pytest.approx(said["needed_kv_gib"], abs=HALF_DIGIT)
    if "max_len_estimate" in said:
        lengths = [made.capacity.max_single_request_tokens for made in (low, high) if made.capacity is not None]
        assert lengths[0] is not None
        assert lengths[1] is not None
        assert lengths[0] <= said["max_len_estimate"] <= lengths[1]

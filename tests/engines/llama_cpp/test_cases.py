"""Every recorded start of llama.cpp: each printed cache, to the 0.01 MiB it prints; refusals refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kvplan.engines.base import CachePool
from kvplan.errors import UnsupportedError
from kvplan.planning.plan import Plan
from kvplan.planning.planner import plan_deployment
from kvplan.sources.gguf.metadata import read_metadata
from kvplan.spec.model import ModelSpec

DATA = Path(__file__).parents[2] / "data"
MIB = 2**20
PRINTED = 0.00501
"""Half of the last printed digit, and a rounding of it."""

GEMMA_3_270M = {
    "context_length": 32768, "embedding_length": 640, "block_count": 18, "feed_forward_length": 2048,
    "attention.head_count": 4, "attention.head_count_kv": 1, "attention.key_length": 256,
    "attention.value_length": 256, "attention.sliding_window": 512, "vocab_size": 262144,
}  # fmt: skip
"""What the file of the ``file`` cases says."""

CASES = [json.loads(line) for line in (DATA / "cases" / "llama_cpp.jsonl").read_text().splitlines()]
STARTED = [case for case in CASES if not case.get("error")]
REFUSED = [case for case in CASES if case.get("error")]


def spec_of(case: dict[str, Any]) -> ModelSpec:
    if case["arch"] == "file":
        return read_metadata("gemma3", GEMMA_3_270M)
    return read_metadata(case["arch"], case["model_params"])


def planned(case: dict[str, Any]) -> Plan:
    s = case["settings"]
    given = {
        "ctx_size": s["n_ctx"], "cache_type_k": s["type_k"], "cache_type_v": s["type_v"], "parallel": s["n_seq_max"],
        "kv_unified": s["kv_unified"], "flash_attn": "on" if s["flash_attn"] else "off", "swa_full": s["swa_full"],
        "batch_size": s["n_batch"], "ubatch_size": s["n_ubatch"], "n_rs_seq": s["n_rs_seq"],
        "n_outputs_max": s.get("n_outputs_max", 0),
    }  # fmt: skip
    return plan_deployment(spec_of(case), None, "llama.cpp", given)


def sizes(pool: CachePool) -> tuple[float, float, float]:
    return pool.bytes / MIB, pool.k_bytes / MIB, pool.v_bytes / MIB


def assert_printed(found: list[tuple[float, ...]], printed: list[tuple[float, ...]]) -> None:
    assert len(found) == len(printed)
    for got, want in zip(sorted(found), sorted(printed), strict=True):
        assert got == pytest.approx(want, abs=PRINTED)


def test_the_corpus_is_whole() -> None:
    assert (len(STARTED), len(REFUSED)) == (97, 2)


@pytest.mark.parametrize("case", STARTED, ids=lambda c: c["id"])
def test_every_printed_cache(case: dict[str, Any]) -> None:
    plan, seen = planned(case), case["observed"]
    assert plan.allocation is not None
    caches, held = plan.allocation.pools, plan.allocation.states
    printed = [c for c in seen["kv_caches"] if c["total_mib"]]
    assert_printed([sizes(p) for p in caches], [(c["total_mib"], c["k_mib"], c["v_mib"]) for c in printed])
    assert sorted(p.cells or 0 for p in caches) == sorted(c["cells"] * c["streams"] for c in printed)
    states = [(c["total_mib"], c["r_mib"], c["s_mib"]) for c in seen["recurrent"]]
    assert_printed([sizes(p) for p in held if p.kind == "recurrent"], states)
    compressor = sum(p.bytes for p in held if p.kind == "compressor") / MIB
    assert compressor == pytest.approx(seen.get("dsv4_compressor_state_mib", 0), abs=PRINTED)
    state = plan.allocation.state_bytes / MIB
    assert state == pytest.approx(sum(s[0] for s in states) + compressor, abs=2 * PRINTED)
    assert plan.allocation.bytes == sum(p.bytes for p in (*caches, *held))
    assert plan.allocation.bytes / MIB == pytest.approx(seen["kv_bytes_mib"] + state, abs=0.06)


@pytest.mark.parametrize("case", STARTED, ids=lambda c: c["id"])
def test_context_of_a_slot(case: dict[str, Any]) -> None:
    assert planned(case).inputs["max_model_len"] == case["observed"]["resolved"]["n_ctx_seq"]


@pytest.mark.parametrize("case", REFUSED, ids=lambda c: c["id"])
def test_refusals(case: dict[str, Any]) -> None:
    with pytest.raises(UnsupportedError) as error:
        planned(case)
    assert error.value.exit_status == 2
    assert error.value.hint
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("case", STARTED, ids=lambda c: c["id"])
def test_compute_buffer_within_its_bounds(case: dict[str, Any]) -> None:
    """The printed reservation lies between the bounds that the budget gives the modelled one."""
    from kvplan.engines.llama_cpp.buffers import HIGH, LOW

    plan, printed = planned(case), case["observed"]["compute_buffer_mib"]["CPU"]
    assert plan.allocation is not None
    assert plan.allocation.compute_buffer_bytes is not None
    size = plan.allocation.compute_buffer_bytes / MIB
    assert LOW * size <= printed <= HIGH * size


def test_compute_buffers_are_close_on_the_whole() -> None:
    ratios = []
    for case in STARTED:
        allocation = planned(case).allocation
        assert allocation is not None
        assert allocation.compute_buffer_bytes is not None
        ratios.append(abs(allocation.compute_buffer_bytes / MIB / case["observed"]["compute_buffer_mib"]["CPU"] - 1))
    ratios.sort()
    assert ratios[len(ratios) // 2] < 0.015
    assert ratios[len(ratios) * 9 // 10] < 0.11

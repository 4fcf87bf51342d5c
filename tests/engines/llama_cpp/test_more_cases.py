"""More starts of llama.cpp, of every architecture that it caches for: each printed cache, to the 0.01 MiB it prints.

Recorded with libllama 0.5.0 (CPU build) from metadata alone (``llama_model_init_from_user``, ``no_alloc``). The models
called ``made up`` have shapes that exercise an architecture's rules; their compute buffers are not compared.
"""

from __future__ import annotations

import json
import lzma
from pathlib import Path
from typing import Any

import pytest

from kvplan.engines.llama_cpp.buffers import HIGH, LOW
from kvplan.planning.plan import Plan
from kvplan.planning.planner import plan_deployment
from kvplan.sources.gguf.metadata import read_metadata

MIB = 2**20
PRINTED = 0.0051
DEFAULTS: dict[str, Any] = {
    "n_ctx": 4096, "type_k": "f16", "type_v": "f16", "n_seq_max": 1, "kv_unified": False, "flash_attn": True,
    "swa_full": False, "n_batch": 2048, "n_ubatch": 512, "n_rs_seq": 0, "n_outputs_max": 0,
}  # fmt: skip
OURS = {
    "n_ctx": "ctx_size", "type_k": "cache_type_k", "type_v": "cache_type_v", "n_seq_max": "parallel",
    "n_batch": "batch_size", "n_ubatch": "ubatch_size",
}  # fmt: skip

DATA = Path("tests/data/cases")
MORE = (DATA / "llama_cpp_more.jsonl").read_text()
WIDE = lzma.decompress((DATA / "llama_cpp_wide.jsonl.xz").read_bytes()).decode()
MODELS = [json.loads(line) for line in (*MORE.splitlines(), *WIDE.splitlines())]
CASES = [
    pytest.param(model, case, id=f"{model['arch']}-{model['model']}-{n}")
    for model in MODELS
    for n, case in enumerate(model["cases"])
]


def planned(model: dict[str, Any], case: dict[str, Any]) -> Plan:
    asked = DEFAULTS | case["settings"]
    given = {OURS.get(name, name): value for name, value in asked.items()}
    given["flash_attn"] = "on" if asked["flash_attn"] else "off"
    return plan_deployment(read_metadata(model["arch"], model["model_params"]), None, "llama.cpp", given)


def assert_printed(found: list[tuple[float, ...]], printed: list[tuple[float, ...]]) -> None:
    assert len(found) == len(printed)
    for got, want in zip(sorted(found), sorted(printed), strict=True):
        assert got == pytest.approx(want, abs=PRINTED)


@pytest.mark.parametrize(("model", "case"), CASES)
def test_every_printed_cache(model: dict[str, Any], case: dict[str, Any]) -> None:
    plan = planned(model, case)
    laid = plan.allocation
    assert laid is not None
    printed = [c for c in case["kv_caches"] if c[0]]
    assert_printed(
        [(p.bytes / MIB, p.k_bytes / MIB, p.v_bytes / MIB) for p in laid.pools], [(c[0], c[3], c[4]) for c in printed]
    )
    assert sorted(p.cells or 0 for p in laid.pools) == sorted(c[1] * c[2] for c in printed)
    states = [(p.bytes / MIB, p.k_bytes / MIB, p.v_bytes / MIB) for p in laid.states if p.kind == "recurrent"]
    for got, want in zip(sorted(states), sorted(tuple(s) for s in case["recurrent"] if s[0]), strict=True):
        assert got == pytest.approx(want, abs=2 * PRINTED)
    assert plan.inputs["max_model_len"] == case["n_ctx_seq"]


def _bounded(model: dict[str, Any], case: dict[str, Any]) -> bool:
    """DeepSeek-V4 with whole windows takes up to 8 bytes a cell and token, more than the model of buffers knows."""
    known = model["arch"] != "deepseek4" or not case["settings"].get("swa_full")
    return known and "compute_buffer_mib" in case


@pytest.mark.parametrize(("model", "case"), [c for c in CASES if _bounded(*c.values)])
def test_compute_buffer_within_its_bounds(model: dict[str, Any], case: dict[str, Any]) -> None:
    laid = planned(model, case).allocation
    assert laid is not None
    assert laid.compute_buffer_bytes is not None
    size = laid.compute_buffer_bytes / MIB
    assert LOW * size <= case["compute_buffer_mib"] <= HIGH * size


def test_compute_buffers_are_close_on_the_whole() -> None:
    off = []
    for param in CASES:
        model, case = param.values
        laid = planned(model, case).allocation
        assert laid is not None
        if "compute_buffer_mib" in case and laid.compute_buffer_bytes:
            off.append(abs(case["compute_buffer_mib"] * MIB / laid.compute_buffer_bytes - 1))
    off.sort()
    assert off[len(off) // 2] < 0.025
    assert off[len(off) * 9 // 10] < 0.14

"""Every recorded transformers cache, to the byte: bytes held, peak, refusals."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kvplan.engines.transformers import cache
from kvplan.engines.transformers.engine import Transformers
from kvplan.errors import KvplanError
from kvplan.planning.plan import Plan
from kvplan.planning.planner import plan_deployment
from kvplan.planning.settings import resolve
from kvplan.sources.hf.read import read_config
from kvplan.spec.model import ModelSpec

CASES = [json.loads(line) for line in Path("tests/data/cases/transformers.jsonl").read_text().splitlines()]

CLASS_DEFAULTS = {
    "qwen3_next": {"full_attention_interval": 4},
    "qwen3_5_text": {"full_attention_interval": 4},
    "deepseek_v32": {"index_head_dim": 128, "index_n_heads": 64, "index_topk": 2048},
    "glm_moe_dsa": {"index_head_dim": 128, "index_n_heads": 32, "index_topk": 2048},
    "gemma4_text": {"global_head_dim": 512},
}
"""What the recorded configurations leave to their class (``models/<family>/configuration_<family>.py``)."""

OUTSIDE = {"recurrent_gemma", "minimax"}
"""Their recurrent state is not in the cache object, so the recorded bytes leave it out (as the cases note)."""

NAMES = {
    "nbits": "cache_nbits", "q_group_size": "cache_group_size", "residual_length": "cache_residual_length",
    "backend": "cache_backend", "max_cache_len": "max_cache_len",
}  # fmt: skip


def model_of(case: dict[str, Any]) -> ModelSpec:
    config = {k: v for k, v in case["model_params"].items() if k != "kv_geometry_of"}
    config = {
        "model_type": case["arch"],
        "dtype": case["settings"]["dtype"],
        **CLASS_DEFAULTS.get(case["arch"], {}),
        **config,
    }
    return read_config(config, name=case["id"])


def settings_of(case: dict[str, Any]) -> dict[str, Any]:
    given = case["settings"]
    found = {ours: given[theirs] for theirs, ours in NAMES.items() if theirs in given}
    kind = "dynamic" if given["cache"] == "own" else given["cache"]
    return found | {
        "cache_implementation": kind, "concurrency": given["batch"], "prompt_tokens": given["prompt_tokens"],
        "output_tokens": given["decode_steps"], "max_model_len": 4096,
    }  # fmt: skip


def planned(case: dict[str, Any]) -> Plan:
    return plan_deployment(model_of(case), None, f"transformers@{case['version']}", settings_of(case))


@pytest.mark.parametrize("case", [c for c in CASES if "observed" in c], ids=lambda c: c["id"])
def test_bytes_held(case: dict[str, Any]) -> None:
    allocation = planned(case).allocation
    assert allocation is not None
    held = allocation.bytes - (allocation.state_bytes if case["arch"] in OUTSIDE else 0)
    assert held == case["observed"]["kv_bytes"]
    assert allocation.bytes == sum(p.bytes for p in (*allocation.pools, *allocation.states))
    kinds = case["observed"]["after_decode"]["bytes_by_kind"]
    if "conv_states" in kinds:
        assert allocation.state_bytes == kinds["conv_states"] + kinds["recurrent_states"]
    assert sum(p.k_bytes for p in allocation.pools if p.kind == "index") == kinds.get("indexer_keys", 0)


@pytest.mark.parametrize("case", [c for c in CASES if "observed" in c], ids=lambda c: c["id"])
def test_peak_covers_what_was_alive(case: dict[str, Any]) -> None:
    """Storages after the prompt, and what the largest concatenation took beside the rest of the cache."""
    allocation = planned(case).allocation
    assert allocation is not None
    assert allocation.peak_bytes is not None
    for stage in ("after_prefill", "after_decode"):
        seen = case["observed"][stage]
        assert allocation.peak_bytes >= seen["storage_bytes"]
        assert allocation.peak_bytes >= seen["max_cat_in_plus_out_bytes"]


@pytest.mark.parametrize(
    "case", [c for c in CASES if c["settings"]["cache"] in ("dynamic", "dynamic_noconfig")], ids=lambda c: c["id"]
)
def test_storage_after_the_prompt(case: dict[str, Any]) -> None:
    """Slices of the whole prompt keep it alive in every layer."""
    engine = Transformers(case["version"])
    model = model_of(case)
    settings, _ = resolve(model, None, engine, settings_of(case))
    rows = [r for r in engine.rows(model, settings) if r.kind not in cache.OUTSIDE]
    given = case["settings"]
    seen = cache.storage_bytes(rows, engine.layout(model, settings), given["batch"], given["prompt_tokens"])
    assert seen == case["observed"]["after_prefill"]["storage_bytes"]


@pytest.mark.parametrize("case", [c for c in CASES if "error" in c], ids=lambda c: c["id"])
def test_refused(case: dict[str, Any]) -> None:
    with pytest.raises(KvplanError) as caught:
        planned(case)
    assert caught.value.exit_status == 2
    assert caught.value.hint

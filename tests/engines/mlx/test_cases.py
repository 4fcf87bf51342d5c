"""Every recorded MLX-LM cache, to the byte; classes on their own are planned as models of one layer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kvplan.planning.plan import Plan
from kvplan.planning.planner import plan_deployment
from kvplan.sources.hf.read import read_config

CASES = [json.loads(line) for line in Path("tests/data/cases/mlx_lm.jsonl").read_text().splitlines()]


def config_of(case: dict[str, Any]) -> dict[str, Any]:
    """The model's configuration, or that of one layer with the cache class under test."""
    params, given = case["model_params"], case["settings"]
    if "model_type" in params:
        filled = {"full_attention_interval": 4} if params["model_type"] == "qwen3_next" else {}  # the class default
        return {**filled, **params, "dtype": given["dtype"]}
    config = {
        "model_type": "qwen3", "hidden_size": 256, "intermediate_size": 64, "vocab_size": 256,
        "num_hidden_layers": params["layers"], "num_attention_heads": params["n_kv_heads"],
        "num_key_value_heads": params["n_kv_heads"], "head_dim": params["k_head_dim"], "dtype": given["dtype"],
    }  # fmt: skip
    if given.get("max_size") and not given["keep"]:
        config |= {
            "model_type": "gpt_oss", "layer_types": ["sliding_attention"], "sliding_window": given["max_size"],
            "num_local_experts": 2, "num_experts_per_tok": 1,
        }  # fmt: skip
    return config


def planned(case: dict[str, Any]) -> Plan:
    given = case["settings"]
    settings = {
        "concurrency": given.get("batch", 1), "prompt_tokens": given["prompt"],
        "prefill_step_size": given["prefill_step"],
        "output_tokens": max(1, given["decode"]), "max_model_len": 8192,
    }  # fmt: skip
    if "bits" in given:
        settings |= {"kv_bits": given["bits"], "kv_group_size": given["group_size"], "quantized_kv_start": 0}
    if given.get("keep"):  # the cache that --max-kv-size makes keeps its first four tokens
        settings["max_kv_size"] = given["max_size"]
    return plan_deployment(read_config(config_of(case), name=case["id"]), None, "mlx@0.32.2", settings)


@pytest.mark.parametrize("case", CASES, ids=lambda c: c["id"])
def test_bytes_held(case: dict[str, Any]) -> None:
    allocation = planned(case).allocation
    assert allocation is not None
    assert allocation.bytes == case["observed"]["kv_bytes"]
    assert allocation.bytes == sum(p.bytes for p in (*allocation.pools, *allocation.states))


@pytest.mark.parametrize("case", CASES, ids=lambda c: c["id"])
def test_peak_covers_every_stage(case: dict[str, Any]) -> None:
    allocation = planned(case).allocation
    assert allocation is not None
    assert allocation.peak_bytes is not None
    assert allocation.peak_bytes >= max(stage["bytes"] for stage in case["observed"]["stages"])

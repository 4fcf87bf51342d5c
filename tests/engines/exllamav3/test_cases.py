"""Every recorded ExLlamaV3 cache layer, to the byte, as a model of as many such layers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kvplan.errors import UnsupportedError
from kvplan.planning.plan import Plan
from kvplan.planning.planner import plan_deployment
from kvplan.sources.hf.read import read_config

CASES = [json.loads(line) for line in Path("tests/data/cases/exllamav3.jsonl").read_text().splitlines()]


def planned(case: dict[str, Any]) -> Plan:
    params, given = case["model_params"], case["settings"]
    config = {
        "model_type": "llama", "hidden_size": 256, "intermediate_size": 64, "vocab_size": 256,
        "num_hidden_layers": params["layers_of_real_model"],
    }  # fmt: skip
    if "kv_lora_rank" in params:
        config |= {
            "model_type": "deepseek_v3", "num_attention_heads": 8, "num_key_value_heads": 8, "q_lora_rank": 64,
            "kv_lora_rank": params["kv_lora_rank"],
            "qk_rope_head_dim": params["qk_rope_head_dim"], "qk_nope_head_dim": 128,
            "v_head_dim": 128, "n_routed_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 32,
            "first_k_dense_replace": 1, "n_group": 1, "topk_group": 1,
        }  # fmt: skip
    else:
        heads = params["num_kv_heads"]
        config |= {"num_attention_heads": heads, "num_key_value_heads": heads, "head_dim": params["head_dim"]}
    settings: dict[str, Any] = {"cache_tokens": given["max_num_tokens"], "max_model_len": given["max_num_tokens"]}
    if "k_bits" in given:
        settings["cache_bits"] = f"{given['k_bits']},{given['v_bits']}"
    return plan_deployment(read_config(config, name=case["id"]), None, "exllamav3@1.6.5", settings)


@pytest.mark.parametrize("case", [c for c in CASES if "observed" in c], ids=lambda c: c["id"])
def test_bytes_held(case: dict[str, Any]) -> None:
    made = planned(case)
    allocation, layers = made.allocation, case["model_params"]["layers_of_real_model"]
    assert allocation is not None
    assert allocation.bytes == layers * case["observed"]["kv_bytes"]
    assert made.kv.bytes_per_token == layers * case["observed"]["bytes_per_token_per_layer"]
    (pool,) = allocation.pools
    assert pool.blocks == case["observed"]["tensors"][0]["shape"][0]


@pytest.mark.parametrize("case", [c for c in CASES if "error" in c], ids=lambda c: c["id"])
def test_refused(case: dict[str, Any]) -> None:
    with pytest.raises(UnsupportedError, match="2 to 8 bits"):
        planned(case)

"""Caches that people's own logs print, of llama.cpp and of Ollama."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kvplan import load_model
from kvplan.planning.planner import plan_deployment
from kvplan.sources.gguf.metadata import read_metadata
from kvplan.spec.model import ModelSpec

MIB = 2**20
FILE = Path(__file__).parents[2] / "data" / "cases" / "llama_cpp_field.jsonl"
CASES = {case["id"]: case for case in map(json.loads, FILE.read_text().splitlines())}


def plain(layers: int, hidden: int, heads: int, kv_heads: int) -> ModelSpec:
    """A llama of that shape, as its file describes it."""
    keys = {
        "block_count": layers, "embedding_length": hidden, "attention.head_count": heads,
        "attention.head_count_kv": kv_heads, "feed_forward_length": 4 * hidden, "vocab_size": 32000,
        "context_length": 131072, "attention.key_length": 128, "attention.value_length": 128,
    }  # fmt: skip
    return read_metadata("llama", keys)


def legacy_deepseek() -> ModelSpec:
    keys = {
        "block_count": 61, "embedding_length": 7168, "attention.head_count": 128, "attention.head_count_kv": 128,
        "attention.key_length": 192, "attention.value_length": 128, "attention.kv_lora_rank": 512,
        "attention.q_lora_rank": 1536, "feed_forward_length": 18432, "vocab_size": 129280, "context_length": 163840,
        "rope.dimension_count": 64,
    }  # fmt: skip
    return read_metadata("deepseek2", keys)


def qwen35_4b() -> ModelSpec:
    keys = {
        "block_count": 32, "embedding_length": 2560, "attention.head_count": 16, "attention.head_count_kv": 4,
        "attention.key_length": 256, "attention.value_length": 256, "full_attention_interval": 4,
        "feed_forward_length": 9216, "ssm.conv_kernel": 4, "ssm.inner_size": 4096, "ssm.state_size": 128,
        "ssm.time_step_rank": 32, "ssm.group_count": 16, "vocab_size": 248320, "context_length": 262144,
    }  # fmt: skip
    return read_metadata("qwen35", keys)


MODELS: dict[str, Any] = {
    "ollama-16480-gptoss120b": "gpt-oss-120b",
    "ollama-6160-mistral-small-22b": plain(56, 6144, 48, 8),
    "ollama-8447-deepseek-671b": legacy_deepseek(),
    "llamacpp-14604-gemma3n": "gemma-3n-e4b",
    "idx-qwen35-27b-q3km": "qwen3.5-27b",
    "idx-qwen35-4b-4k": qwen35_4b(),
    "gpubench-kv-llama-2-13b-q4_0-c512": "llama-2-13b",
    "gpubench-kv-llama-2-13b-f16-c512": "llama-2-13b",
    "gpubench-kv-llama-13b-q4_0-c512": plain(40, 5120, 40, 40),
    "gpubench-kv-llama-13b-f16-c512": plain(40, 5120, 40, 40),
    "gpubench-kv-llama-65b-q4_0-c512": plain(80, 8192, 64, 64),
    "gpubench-kv-llama-65b-f16-c512": plain(80, 8192, 64, 64),
    # the source guesses DeepSeek-V4; 21 indexer layers with a key per token are GLM-5.2's
    "fresh-61313070182-4gpu-dsv4-512k": "glm-5.2",
}


def test_every_case_has_its_model() -> None:
    assert set(MODELS) == set(CASES)


def pools_of(case: dict[str, Any]) -> dict[str, Any]:
    found, s = MODELS[case["id"]], case["settings"]
    model = load_model(found) if isinstance(found, str) else found
    slots = s.get("n_seq_max", 1)
    given: dict[str, Any] = {"ctx_size": s["n_ctx"], "parallel": slots}
    if "cache_type_k" in s:
        given |= {"cache_type_k": s["cache_type_k"], "cache_type_v": s["cache_type_v"]}
    if "n_batch" in s:
        given |= {"batch_size": s["n_batch"], "ubatch_size": s["n_ubatch"]}
    engine = "ollama" if case["engine"].startswith("ollama") else "llama.cpp"
    if engine == "ollama":
        given = {k: v for k, v in given.items() if k not in ("ctx_size", "parallel", "batch_size", "ubatch_size")}
        given |= {"num_ctx": s["n_ctx"] // slots, "num_parallel": slots}
        given |= {"num_batch": s["n_batch"]} if "n_batch" in s else {}
    plan = plan_deployment(model, None, engine, given)
    assert plan.allocation is not None
    return {pool.kind: pool for pool in (*plan.allocation.pools, *plan.allocation.states)}


@pytest.mark.parametrize("case", [pytest.param(c, id=i) for i, c in CASES.items()])
def test_field(case: dict[str, Any]) -> None:
    pools, said = pools_of(case), case["reported"]
    compared = 0
    for key, kind, part in (
        ("kv_mib", "full", "bytes"), ("k_mib", "full", "k_bytes"), ("v_mib", "full", "v_bytes"),
        ("swa_kv_mib", "sliding", "bytes"), ("rs_mib", "recurrent", "bytes"), ("rs_r_mib", "recurrent", "k_bytes"),
        ("rs_s_mib", "recurrent", "v_bytes"), ("indexer_kv_mib", "index", "bytes"),
    ):  # fmt: skip
        if key in said:
            assert getattr(pools[kind], part) / MIB == pytest.approx(said[key], abs=0.00501), key
            compared += 1
    assert compared

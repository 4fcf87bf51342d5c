"""Blocks under mamba cache mode all: multiples of the chunk that the kernel scans, as the configuration states it.

The figures are those of vLLM's own configuration, model classes and planner, run without a device.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kvplan.api import plan
from kvplan.cache.mamba import Mamba2
from kvplan.catalog import load_gpu, load_model
from kvplan.planning.planner import plan_deployment
from kvplan.sources.hf.read import read_config
from kvplan.spec.model import ModelSpec

CONFIGS = Path(__file__).parents[2] / "data" / "cases" / "vllm_configs"
MAMBA = {
    "model_type": "mamba2", "architectures": ["Mamba2ForCausalLM"], "hidden_size": 4096, "num_heads": 128,
    "head_dim": 64, "state_size": 128, "n_groups": 8, "conv_kernel": 4, "expand": 2, "num_hidden_layers": 8,
    "vocab_size": 32768, "torch_dtype": "bfloat16",
}  # fmt: skip
"""Mamba 2 at the sizes of its class, which has a chunk of 256."""
FALCON = {
    "model_type": "falcon_h1", "architectures": ["FalconH1ForCausalLM"], "vocab_size": 32000, "hidden_size": 3072,
    "num_hidden_layers": 8, "intermediate_size": 14336, "num_attention_heads": 12, "num_key_value_heads": 2,
    "head_dim": 128, "mamba_d_ssm": 3072, "mamba_n_heads": 24, "mamba_d_head": 128, "mamba_n_groups": 1,
    "mamba_d_state": 256, "mamba_d_conv": 4, "mamba_expand": 2, "max_position_embeddings": 8192,
    "torch_dtype": "bfloat16",
}  # fmt: skip


def model(name: str) -> ModelSpec:
    own = {"mamba2": MAMBA, "falcon-h1": {**FALCON, "mamba_chunk_size": 128}}
    return read_config(own[name] if name in own else json.loads((CONFIGS / f"{name}.json").read_text()))


@pytest.mark.parametrize(
    ("name", "version", "given", "available", "figures"),
    [
        ("nemotron-h-8b", "0.27.0", {"max_model_len": 8000}, 39856586909, (1152, 2111, 344653)),
        ("nemotron-h-8b", "0.22.0", {"max_model_len": 4096}, 56904266886, (1152, 3014, 440905)),
        ("falcon-h1", "0.27.0", {"max_model_len": 1000}, 25336231791, (1664, 1858, 929000)),
        ("mamba2", "0.27.0", {"max_model_len": 8000}, 54962040885, (16, 3182, 50912)),
        ("mamba2", "0.20.0", {"max_model_len": 1000, "mamba_block_size": 1024}, 21763842378, (16, 1260, 1290240)),
        (
            "mamba2", "0.20.0",
            {"max_model_len": 1000, "mamba_block_size": 256, "block_size": 32, "mamba_cache_mode": "align",
             "max_num_batched_tokens": 2048},
            41455883247, (32, 2400, 614400),
        ),
    ],
)  # fmt: skip
def test_blocks_of_whole_chunks(
    name: str, version: str, given: dict[str, Any], available: int, figures: tuple[int, int, int]
) -> None:
    settings = {"kv_cache_memory_bytes": available, "enable_prefix_caching": True, **given}
    made = plan_deployment(model(name), load_gpu("h100-sxm"), f"vllm@{version}", settings).capacity
    assert made is not None
    assert (made.block_size, made.num_blocks, made.engine_reported_tokens) == figures


def test_a_chunk_left_to_the_class() -> None:
    found = {b.chunk_size for b in mixers(model("mamba2"))} | {b.chunk_size for b in mixers(read_config(FALCON))}
    assert found == {256}
    assert {b.chunk_size for b in mixers(model("falcon-h1"))} == {128}


def mixers(spec: ModelSpec) -> list[Mamba2]:
    return [m for b in spec.blocks.values() for m in b.mixers if isinstance(m, Mamba2)]


@pytest.mark.parametrize(
    ("name", "chunk"),
    [("nemotron-3-nano-30b-a3b", 128), ("granite-4.0-h-small", 256), ("zamba2-7b", 256), ("falcon-h1-7b", 128)],
)
def test_models_of_the_catalog_have_one(name: str, chunk: int) -> None:
    assert {m.chunk_size for m in mixers(load_model(name))} == {chunk}
    made = plan(
        name, gpu="h100-sxm", engine="vllm@0.22.0", enable_prefix_caching=True, max_model_len=4096,
        mamba_cache_mode="all", kv_cache_memory_bytes=20 * 10**9,
    )  # fmt: skip
    assert made.capacity.block_size % chunk == 0

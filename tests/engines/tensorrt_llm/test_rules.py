"""TensorRT-LLM: the fraction of what is left, blocks, pools per window."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kvplan import load_gpu, plan
from kvplan.errors import KvplanError
from kvplan.sources.commands import read_command
from kvplan.units import GIB

ROWS = {
    row["id"]: row
    for row in map(json.loads, Path("tests/data/cases/field.jsonl").read_text().splitlines())
    if row["engine"] == "tensorrt-llm" and "pure-kv" in row["kinds"]
}


def test_every_report_is_planned() -> None:
    assert set(ROWS) == {"trtllm-1400-7b-a100"}


def test_a_llama_2_7b_of_2024() -> None:
    """67 GB of cache: the pool is what is left, not what a request needs."""
    seen = ROWS["trtllm-1400-7b-a100"]["reported"]
    made = plan("llama-2-7b", engine="tensorrt-llm", kv_cache_dtype="fp16", kv_cache_memory_bytes=seen["kv_bytes"])
    assert made.capacity is not None
    assert made.capacity.kv_tokens == seen["kv_tokens"]
    assert made.allocation is not None
    assert made.allocation.bytes == seen["kv_bytes"]


@pytest.mark.parametrize(("dtype", "size"), [("bf16", 131_072), ("fp8", 65_536), ("nvfp4", 36_864)])
def test_bytes_per_token(dtype: str, size: int) -> None:
    made = plan("llama-3.1-8b", engine="tensorrt-llm", kv_cache_dtype=dtype, max_total_tokens=3200).allocation
    assert made is not None
    assert made.bytes == 3200 * size


def test_the_fraction_is_of_what_is_left() -> None:
    """62 GiB free after the trial run: 0.9 of it holds 457,113 tokens, 14,284 blocks of 32."""
    made = plan("llama-3.1-8b", engine="tensorrt-llm", kv_cache_memory_bytes=int(0.9 * 62 * GIB)).capacity
    assert made is not None
    assert made.num_blocks == 14_284
    assert made.kv_tokens == 457_088


def test_the_waterfall_leaves_a_tenth() -> None:
    made = plan("llama-3.1-8b", gpu=load_gpu("h100-sxm"), engine="tensorrt-llm")
    assert made.memory is not None
    row = made.memory[0]
    (kept,) = [t for t in row.terms if t.name.startswith("left free")]
    rest = row.total_bytes - sum(t.bytes for t in row.terms if t is not kept)
    assert kept.bytes == round(rest * 0.1)
    assert row.kv_bytes == rest - kept.bytes
    assert kept.low_bytes <= kept.bytes <= kept.high_bytes
    less = plan("llama-3.1-8b", gpu=load_gpu("h100-sxm"), engine="tensorrt-llm", free_gpu_memory_fraction=0.45)
    assert less.memory is not None
    assert abs(less.memory[0].kv_bytes - rest * 0.45) < 2


def test_windows_get_equal_shares() -> None:
    made = plan("gpt-oss-20b", engine="tensorrt-llm", kv_cache_memory_bytes=30 * 10**9)
    assert made.allocation is not None
    assert {p.kind: p.blocks for p in made.allocation.pools} == {"sliding": 19_073, "full": 19_073}
    assert made.capacity is not None
    assert made.capacity.kv_tokens == 19_073 * 32
    assert made.capacity.max_concurrency == 19_073 / 4096


def test_latent_rows_and_attention_dp() -> None:
    given: dict[str, Any] = {"kv_cache_memory_bytes": 20 * GIB, "tensor_parallel_size": 8}
    plain = plan("deepseek-v3", engine="tensorrt-llm", **given).capacity
    shared = plan("deepseek-v3", engine="tensorrt-llm", attn_dp_size=8, **given).capacity
    assert plain is not None
    assert shared is not None
    assert plain.kv_tokens == shared.kv_tokens == 20 * GIB // 70_272 // 32 * 32
    assert shared.max_concurrency == 8 * (plain.max_concurrency or 0)
    heads = plan("llama-3.1-70b", engine="tensorrt-llm", attn_dp_size=8, **given).allocation
    assert heads is not None
    assert heads.bytes == 20 * GIB // 327_680 // 32 * 32 * 327_680


def test_heads_are_repeated_above_their_number() -> None:
    made = plan("llama-3.1-8b", engine="tensorrt-llm", tensor_parallel_size=16, max_total_tokens=32).allocation
    assert made is not None
    assert made.bytes == 32 * 32 * 2 * 128 * 2


def test_first_ranks_get_the_odd_layers() -> None:
    made = plan("llama-3.1-70b", gpu=load_gpu("h200-sxm"), engine="tensorrt-llm", pipeline_parallel_size=3)
    assert made.memory is not None
    layers = [row.weights_by_role["attention"] for row in made.memory]
    assert layers[0] == layers[1] > layers[2]


@pytest.mark.parametrize(
    ("model", "given"),
    [
        ("nemotron-h-8b", {}),
        ("deepseek-v4-flash", {}),
        ("llama-3.1-8b", {"tokens_per_block": 48}),
        ("llama-3.1-8b", {"free_gpu_memory_fraction": 1.1}),
        ("llama-3.1-8b", {"free_gpu_memory_fraction": "0"}),
        ("llama-3.1-8b", {"tensor_parallel_size": 8, "attn_dp_size": 4}),
    ],
)
def test_refusals(model: str, given: dict[str, Any]) -> None:
    with pytest.raises(KvplanError) as caught:
        plan(model, engine="tensorrt-llm", **given)
    assert caught.value.hint


@pytest.mark.parametrize(("backend", "said"), [("tensorrt", True), ("_autodeploy", True), ("pytorch", False)])
def test_backends_that_lay_out_memory_otherwise(backend: str, said: bool) -> None:
    found = read_command(f"trtllm-serve meta-llama/Llama-3.1-8B --backend {backend}")
    assert bool([w for w in found.warnings if f"--backend {backend}" in w]) is said
    assert ("--backend" in found.ignored) is said


def test_a_limit_above_the_models_is_lowered() -> None:
    """It starts, with the model's maximum: longer requests do not run, and shorter ones do."""
    made = plan("llama-3-8b", gpu="h100-sxm", engine="tensorrt-llm", max_model_len=32_768)
    assert made.verdict.fits
    assert made.capacity is not None
    assert made.capacity.max_concurrency == 0
    assert made.capacity.max_single_request_tokens == 8192
    requests = {at.tokens: at.requests for at in made.capacity.at}
    assert requests[32_768] == 0 < requests[4096]
    assert [w for w in made.warnings if "lowers max_seq_len to the model's 8,192" in w]
    long = plan("llama-3-8b", gpu="h100-sxm", engine="tensorrt-llm", max_model_len=32_768, prompt_tokens=16_384)
    assert long.verdict.fits is False
    assert not [w for w in plan("llama-3-8b", gpu="h100-sxm", engine="tensorrt-llm").warnings if "lowers" in w]

"""More of vLLM's numbers, executed by its own planner code or printed by it, release by release."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kvplan.catalog import load_gpu, load_model
from kvplan.errors import UnsupportedError
from kvplan.planning.plan import Capacity, Plan
from kvplan.planning.planner import plan_deployment
from kvplan.sources.hf.read import read_config
from kvplan.spec.model import ModelSpec

CONFIGS = Path(__file__).parents[2] / "data" / "cases" / "vllm_configs"


def model(name: str, **changes: Any) -> ModelSpec:
    return read_config({**json.loads((CONFIGS / f"{name}.json").read_text()), **changes})


def plan(name: str, have: float, *, version: str = "0.33.0", gpu: str = "h100-sxm", **settings: Any) -> Plan:
    short = {"tp": "tensor_parallel_size", "pp": "pipeline_parallel_size", "dcp": "decode_context_parallel_size"}
    given = {short.get(k, k): v for k, v in settings.items()}
    return plan_deployment(model(name), load_gpu(gpu), f"vllm@{version}", {**given, "kv_cache_memory_bytes": int(have)})


def capacity(*args: Any, **settings: Any) -> Capacity:
    found = plan(*args, **settings).capacity
    assert found is not None
    return found


LATEST = [
    ("llama-3.1-70b", 20e9, dict(pp=3, max_model_len=32768), 11302, 180832, "5.52"),
    ("qwen3-235b-a22b", 30e9, dict(tp=8, max_model_len=40960), 38958, 623328, "15.22"),
    ("qwen3-235b-a22b", 30e9, dict(tp=8, dcp=2, max_model_len=40960), 38958, 1246656, "30.44"),
    ("mistral-7b-v0.1", 30e9, dict(max_model_len=32768), 14305, 365922, "11.17"),
    ("deepseek-v3", 30e9, dict(tp=8, dcp=8, max_model_len=163840), 26682, 3415296, "20.85"),
    ("qwen3-next-80b", 30e9, dict(tp=2, max_model_len=262144), 4238, 2389174, "9.11"),
    ("nemotron-h-8b", 30e9, dict(max_model_len=8192), 1760, 554535, "67.69"),
    ("gpt-oss-120b", 25e9, dict(tp=2, max_model_len=131072), 84771, 1204455, "9.19"),
    ("llama-4-scout-text", 30e9, dict(tp=4, max_model_len=131072), 152587, None, "11.92"),
    ("whisper-large-v3", 10e9, dict(max_model_len=448, max_num_batched_tokens=1500), None, 14005, None),
    ("gemma-3-27b-text", 80e9, dict(max_model_len=8192, disable_hybrid_kv_cache_manager=True), 9844, 157504, None),
    ("llama-3.1-8b", 60e9, dict(tp=8, max_model_len=8192), 228881, None, None),
    ("llama-3.1-8b", 60e9, dict(max_model_len=10001), None, 457074, "45.70"),
]


@pytest.mark.parametrize(("name", "have", "settings", "blocks", "tokens", "concurrency"), LATEST)
def test_latest(
    name: str, have: float, settings: dict[str, Any], blocks: int | None, tokens: int | None, concurrency: str | None
) -> None:
    found = capacity(name, have, **settings)
    assert blocks is None or found.num_blocks == blocks
    assert tokens is None or found.engine_reported_tokens == tokens
    assert concurrency is None or f"{found.max_concurrency:.2f}" == concurrency


BY_VERSION = [
    ("gpt-oss-20b", 131072, {}, {"0.20.0": (610336, "8.76"), "0.20.1": (1147696, "8.76"), "0.24.0": (1147696, "8.76"),
                                 "0.26.0": (1083997, "8.27"), "0.32.0": (1083997, "8.27")}),
    ("gemma-3-27b-text", 131072, {}, {"0.20.0": (52304, "1.96"), "0.24.0": (257420, "1.96"),
                                      "0.28.0": (203719, "1.55")}),
    ("llama-4-scout-text", 131072, dict(tp=4), {"0.20.0": (610336, "13.55"), "0.20.1": (1775557, "13.55"),
                                                "0.26.0": (1562490, "11.92")}),
    ("qwen3-next-80b", 262144, dict(tp=2, enable_prefix_caching=True),
     {"0.20.0": (609824, "9.19"), "0.24.0": (2410328, "9.19"), "0.32.0": (2410328, "9.19"),
      "0.33.0": (2389174, "9.11")}),
]  # fmt: skip


@pytest.mark.parametrize(("name", "length", "settings", "expected"), BY_VERSION, ids=[row[0] for row in BY_VERSION])
def test_what_each_release_prints(
    name: str, length: int, settings: dict[str, Any], expected: dict[str, tuple[int, str]]
) -> None:
    """The same 30e9 bytes and 8,192 batched tokens under several releases."""
    for version, (tokens, concurrency) in expected.items():
        asked = {"max_num_seqs": 256, **settings}
        found = capacity(name, 30e9, version=version, max_model_len=length, max_num_batched_tokens=8192, **asked)
        assert (found.engine_reported_tokens, f"{found.max_concurrency:.2f}") == (tokens, concurrency), version


def test_old_token_line_divides_by_groups_and_multiplies_by_ranks() -> None:
    found = capacity("llama-3.1-8b", 60e9, version="0.20.0", max_model_len=10001)
    assert found.engine_reported_tokens == 457760
    shared = capacity("deepseek-v3", 30e9, version="0.20.0", tp=8, dcp=8, max_model_len=163840)
    assert shared.num_blocks is not None
    assert shared.engine_reported_tokens == shared.num_blocks * 16 * 8


def test_length_is_fitted_to_the_memory_less_one_block() -> None:
    found = plan("llama-3.1-8b", 10e9, max_model_len=-1)
    assert found.inputs["max_model_len"] == 76272
    assert found.capacity is not None
    assert found.capacity.engine_reported_tokens == 76288


def test_null_block_is_checked_since_0_29() -> None:
    exactly = 512 * 2097152
    assert plan("llama-3.1-8b", exactly, max_model_len=8192).verdict.fits is False
    old = plan("llama-3.1-8b", exactly, version="0.28.0", max_model_len=8192).capacity
    assert old is not None
    assert old.max_single_request_tokens == 8192


@pytest.mark.parametrize(
    ("name", "gpu", "dtype", "version", "block", "block_bytes"),
    [
        ("deepseek-v3", "h100-sxm", "auto", "0.33.0", 16, 1124352),
        ("deepseek-v3", "h100-sxm", "fp8", "0.33.0", 64, 2248704),
        ("deepseek-v3", "h100-sxm", "auto", "0.17.0", 64, 4 * 1124352),
        ("deepseek-v3", "b200", "auto", "0.33.0", 32, 2 * 1124352),
        ("deepseek-v3", "b200", "auto", "0.14.0", 128, 8 * 1124352),
        ("deepseek-v3", "a100-80gb-sxm", "fp8", "0.25.0", 16, 562176),
        ("deepseek-v3.2", "h100-sxm", "fp8", "0.33.0", 64, 3076352),
        ("deepseek-v3.2", "h100-sxm", "auto", "0.33.0", 64, 5012736),
        ("deepseek-v3.2", "h100-sxm", "auto", "0.13.0", 64, 3076352),
        ("deepseek-v3.2", "b200", "fp8", "0.33.0", 64, 2764032),
        ("deepseek-v3.2", "b200", "fp8", "0.17.0", 64, 3076352),
    ],
)
def test_backend_sets_block_and_row(
    name: str, gpu: str, dtype: str, version: str, block: int, block_bytes: int
) -> None:
    """Latent caches: 16, 32, 64 or 128 tokens by device and format; 656 or 576 bytes of a sparse row."""
    found = plan(name, 30e9, gpu=gpu, version=version, tp=8, max_model_len=8192, kv_cache_dtype=dtype)
    assert found.capacity is not None
    assert found.capacity.block_size == block
    assert found.capacity.num_blocks == 30_000_000_000 // block_bytes


def test_a_block_size_passes_over_backends() -> None:
    """fp8 rows in blocks of 16: FlashMLA takes 64, so Triton serves."""
    found = plan("deepseek-v3", 30e9, tp=8, max_model_len=8192, kv_cache_dtype="fp8", block_size=16)
    assert found.inputs["attention_backend"] == "TRITON_MLA"
    assert found.capacity is not None
    assert found.capacity.num_blocks == 30_000_000_000 // 562176


@pytest.mark.parametrize(
    ("version", "prefix", "block"),
    [
        ("0.33.0", True, 576),
        ("0.33.0", False, 544),
        ("0.32.0", True, 544),
        ("0.27.0", None, 544),
        ("0.17.0", None, 544),
    ],
)
def test_hybrid_block_by_release(version: str, prefix: bool | None, block: int) -> None:
    asked = {} if prefix is None else {"enable_prefix_caching": prefix}
    found = capacity("qwen3-next-80b", 30e9, version=version, tp=2, max_model_len=262144, **asked)
    assert found.block_size == block


def test_hybrid_latent_block_aligns_to_128_since_0_27() -> None:
    new = capacity("kimi-linear-48b", 30e9, version="0.28.0", tp=4, max_model_len=131072)
    old = capacity("kimi-linear-48b", 30e9, version="0.26.0", tp=4, max_model_len=131072)
    assert new.block_size == 512
    assert old.block_size == 480  # 16 x ceil(542,720 / 18,432)


@pytest.mark.parametrize(("version", "bytes_"), [("0.33.0", 4), ("0.19.0", 2), ("0.12.0", 2)])
def test_nemotron_h_states_by_release(version: str, bytes_: int) -> None:
    """128 heads of 64 x 128 in fp32 since 0.20.0, fp16 before; the convolution in bf16: 3 x 10,240."""
    state = 128 * 64 * 128 * bytes_ + 3 * 10240 * 2
    found = plan("nemotron-h-8b", 30e9, version=version, max_model_len=8192, enable_prefix_caching=False)
    assert found.capacity is not None
    assert found.capacity.block_size == 16 * -(-state // (16 * 4096))


def test_qwen35_states_follow_the_configuration() -> None:
    """mamba_ssm_dtype in the file doubles the recurrent part; without it the model's dtype counts."""
    data = json.loads((CONFIGS / "qwen3.5-text-default.json").read_text())
    found = []
    for changes in ({}, {"mamba_ssm_dtype": "float32"}):
        spec = read_config({**data, **changes})
        given = {"kv_cache_memory_bytes": 30 * 10**9, "max_model_len": 8192, "enable_prefix_caching": False}
        made = plan_deployment(spec, load_gpu("h100-sxm"), "vllm", given).capacity
        assert made is not None
        assert made.block_size is not None
        found.append(made.block_size)
    assert found[1] > 1.8 * found[0]


def test_draft_layers_are_layers() -> None:
    plain = plan("glm-4.5-air", 30e9, tp=4, max_model_len=131072)
    drafted = plan("glm-4.5-air", 30e9, tp=4, max_model_len=131072, speculative_config='{"method": "mtp"}')
    assert plain.capacity is not None
    assert drafted.capacity is not None
    assert plain.capacity.num_blocks == 30_000_000_000 // (46 * 16384)
    assert drafted.capacity.num_blocks == 30_000_000_000 // (47 * 16384)
    assert drafted.kv.bytes_per_token * 46 == plain.kv.bytes_per_token * 47


def test_drafts_without_a_cache_change_nothing() -> None:
    plain = capacity("llama-3.1-8b", 30e9, max_model_len=8192)
    config = {"method": "ngram", "num_speculative_tokens": 4}
    assert capacity("llama-3.1-8b", 30e9, max_model_len=8192, speculative_config=config) == plain


def test_unknown_release_takes_the_nearest_and_says_so() -> None:
    found = plan("llama-3.1-8b", 30e9, version="0.27.3", max_model_len=8192)
    assert found.inputs["engine_version"] == "0.27.0"
    assert any("0.27.3" in text and "0.27.0" in text for text in found.warnings)
    assert plan("llama-3.1-8b", 30e9, version="1.2", max_model_len=8192).inputs["engine_version"] == "0.33.0"
    # older than what was read: the paging of the oldest release, the budget of its own
    old = plan("llama-3.1-8b", 30e9, version="0.8.5", max_model_len=8192)
    assert old.inputs["engine_version"] == "0.8.5"
    assert any("0.11.0" in text for text in old.warnings)
    exact = plan("llama-3.1-8b", 30e9, version="v0.33", max_model_len=8192)
    assert not any("is not known" in text for text in exact.warnings)


def test_nvfp4_caches_need_blackwell() -> None:
    with pytest.raises(UnsupportedError, match="compute capability 10"):
        plan_deployment(load_model("llama-3.1-8b"), load_gpu("h100-sxm"), "vllm", {"kv_cache_dtype": "nvfp4"})
    found = plan_deployment(load_model("llama-3.1-8b"), load_gpu("b200"), "vllm", {"kv_cache_dtype": "nvfp4"})
    assert found.kv.bytes_per_token == 131_072 * 9 // 32

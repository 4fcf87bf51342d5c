"""Backends, cache rows and batch limits that vLLM refuses, with its reason and what fits instead."""

from __future__ import annotations

from typing import Any

import pytest

from kvplan import plan
from kvplan.errors import UnknownNameError, UnsupportedError


@pytest.mark.parametrize(
    ("model", "gpu", "given", "why", "hint"),
    [
        ("llama-3.1-8b", "h100-sxm", {"attention_backend": "FLASHMLA"}, "non-MLA not supported", "FLASH_ATTN"),
        ("gemma-3-27b", "h100-sxm", {"attention_backend": "FLASH_ATTN_MLA"}, "non-MLA", "FLASH_ATTN"),
        ("deepseek-v3", "h200-sxm", {"attention_backend": "FLASH_ATTN", "tensor_parallel_size": 8}, "MLA not supported",
         "FLASH_ATTN_MLA"),
        ("deepseek-v3", "h200-sxm", {"attention_backend": "CUTLASS_MLA", "tensor_parallel_size": 8},
         "compute capability not supported (9.0)", "FLASH_ATTN_MLA"),
        ("deepseek-v3", "h200-sxm", {"attention_backend": "FLASH_ATTN_MLA", "tensor_parallel_size": 8,
                                     "kv_cache_dtype": "fp8"}, "kv_cache_dtype not supported", "FLASHMLA"),
        ("llama-3.1-8b", "a100-sxm4-80gb", {"attention_backend": "FLASH_ATTN", "kv_cache_dtype": "fp8"},
         "kv_cache_dtype not supported", "FLASHINFER"),
        ("llama-3.1-8b", "h100-sxm", {"attention_backend": "TRITON_ATTN", "kv_cache_dtype": "turboquant_k8v4"},
         "kv_cache_dtype not supported", "TURBOQUANT"),
    ],
)  # fmt: skip
def test_a_backend_that_does_not_fit(model: str, gpu: str, given: dict[str, Any], why: str, hint: str) -> None:
    with pytest.raises(UnsupportedError) as caught:
        plan(model, gpu=gpu, max_model_len=4096, **given)
    assert why in caught.value.message
    assert f"--attention-backend {hint}," in (caught.value.hint or "")


def test_the_backend_of_the_hint_fits() -> None:
    for name in ("FLASH_ATTN", "FLASHINFER", "TRITON_ATTN"):
        assert plan("llama-3.1-8b", gpu="h100-sxm", kv_cache_dtype="fp8", attention_backend=name).verdict.fits


def test_an_unknown_backend_names_those_that_fit() -> None:
    with pytest.raises(UnknownNameError) as caught:
        plan("llama-3.1-8b", gpu="h100-sxm", attention_backend="FOO")
    assert "FLASHINFER" in (caught.value.hint or "")
    assert "MLA" not in (caught.value.hint or "")


@pytest.mark.parametrize(
    ("gpu", "version", "dtype", "backend"),
    [
        ("a100-sxm4-80gb", "0.33.0", "fp8", "FLASHINFER"), ("h100-sxm", "0.33.0", "fp8", "FLASH_ATTN"),
        ("h100-sxm", "0.33.0", "fp8_e5m2", "FLASHINFER"), ("h100-sxm", "0.20.0", "fp8_e5m2", "FLASH_ATTN"),
        ("a100-sxm4-80gb", "0.33.0", "auto", "FLASH_ATTN"), ("t4", "0.33.0", "auto", "TRITON_ATTN"),
        ("t4", "0.20.0", "auto", "FLASHINFER"),
    ],
)  # fmt: skip
def test_the_first_that_fits(gpu: str, version: str, dtype: str, backend: str) -> None:
    made = plan("qwen3-8b", gpu=gpu, engine=f"vllm@{version}", kv_cache_dtype=dtype, max_model_len=4096)
    assert made.inputs["attention_backend"] == backend


@pytest.mark.parametrize(("model", "tp"), [("llama-3.1-8b", 1), ("deepseek-v3", 8)])
def test_rows_of_sparse_attention_are_for_it_alone(model: str, tp: int) -> None:
    with pytest.raises(UnsupportedError) as caught:
        plan(model, gpu="h200-sxm", tensor_parallel_size=tp, kv_cache_dtype="fp8_ds_mla")
    assert caught.value.hint == "type --kv-cache-dtype fp8"
    assert plan("deepseek-v3.2", gpu="h200-sxm", tensor_parallel_size=8, kv_cache_dtype="fp8_ds_mla").kv


@pytest.mark.parametrize("version", ["0.11.0", "0.33.0"])
def test_a_step_holds_a_token_of_every_sequence(version: str) -> None:
    with pytest.raises(UnsupportedError) as caught:
        plan("llama-3.1-8b", gpu="h100-sxm", engine=f"vllm@{version}", max_num_seqs=512, max_num_batched_tokens=256)
    assert caught.value.hint == "type --max-num-batched-tokens 512, or --max-num-seqs 256"
    assert plan("llama-3.1-8b", gpu="h100-sxm", max_num_seqs=256, max_num_batched_tokens=256).verdict.fits
    assert plan("llama-3.1-8b", gpu="h100-sxm", max_num_batched_tokens=256).inputs["max_num_seqs"] == 256


def test_devices_without_bfloat16_are_named() -> None:
    assert any("no bfloat16" in text for text in plan("qwen3-8b", gpu="t4", max_model_len=2048).warnings)
    assert not any("no bfloat16" in text for text in plan("qwen3-8b", gpu="h100-sxm").warnings)


@pytest.mark.parametrize(
    ("gpu", "stored", "refused", "taken"),
    [("t4", "fp8", "0.24.0", "0.23.0"), ("a100-sxm-80gb", "fp8_per_token_head", "0.33.0", None)],
)
def test_tritons_kernels_take_fp8_from_compute_capability_8_9_on(
    gpu: str, stored: str, refused: str, taken: str | None
) -> None:
    given: dict[str, Any] = {"max_model_len": 2048, "kv_cache_dtype": stored, "weights": "fp8"}
    with pytest.raises(UnsupportedError, match="no backend for dense attention") as error:
        plan("llama-3.1-8b", gpu=gpu, engine=f"vllm@{refused}", **given)
    assert "--kv-cache-dtype auto" in str(error.value.hint)
    if taken:
        assert plan("llama-3.1-8b", gpu=gpu, engine=f"vllm@{taken}", **given).verdict.fits
    assert plan("llama-3.1-8b", gpu="l4", engine=f"vllm@{refused}", **given).verdict is not None


def test_tritons_latent_kernel_takes_fp8_from_compute_capability_8_9_on() -> None:
    given: dict[str, Any] = {"max_model_len": 2048, "kv_cache_dtype": "fp8"}
    assert plan("deepseek-v2-lite", gpu="a100-sxm-80gb", engine="vllm@0.25.0", **given).verdict.fits
    with pytest.raises(UnsupportedError, match="no backend for mla attention"):
        plan("deepseek-v2-lite", gpu="a100-sxm-80gb", engine="vllm@0.26.0", **given)

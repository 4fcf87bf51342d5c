"""Advice is exact: what it names fits, and one more token, request, layer or thousandth less does not."""

from __future__ import annotations

from typing import Any

import pytest

from kvplan import plan

CASES: list[tuple[str, str, str, dict[str, Any]]] = [
    ("llama-3.1-8b", "l4", "vllm", {}),
    ("llama-3.1-8b", "l4", "vllm", {"max_model_len": 8192, "concurrency": 500}),
    ("llama-3.1-8b", "l4", "sglang", {"max_model_len": 8192, "concurrency": 500}),
    ("llama-3.1-8b", "l4", "tensorrt-llm", {"concurrency": 30}),
    ("gemma-3-27b", "a100-sxm4-80gb", "vllm", {"concurrency": 400}),
    ("qwen3-8b", "rtx-3060-12gb", "llama.cpp", {"weights": "q8_0", "ctx_size": 65536, "parallel": 1}),
    ("qwen3-32b", "rtx-4090", "llama.cpp", {"weights": "q4_k_m", "ctx_size": 65536, "parallel": 1}),
    ("llama-3.1-70b", "h100-sxm", "vllm", {"max_model_len": 8192}),
    ("qwen3-14b", "l40s", "vllm", {"gpu_memory_utilization": 0.5, "max_model_len": 8192}),
    ("nemotron-h-8b", "l4", "vllm", {"max_model_len": 8192, "max_num_seqs": 1024}),
    ("mamba2-2.7b", "l4", "vllm", {"max_model_len": 8192, "max_num_seqs": 1024, "gpu_memory_utilization": 0.7}),
]
NEXT = {
    "--max-model-len": 1, "--concurrency": 1, "--max-num-seqs": 1, "--n-gpu-layers": 1, "--ctx-size": 256,
    "--gpu-memory-utilization": -0.001, "--prompt-tokens": 1,
}  # fmt: skip
"""Flags -> what is added to a value to be one too many."""


def hints(name: str, gpu: str, engine: str, given: dict[str, Any]) -> list[tuple[str, str]]:
    made = plan(name, gpu=gpu, engine=engine, **given)
    assert made.verdict.fits is False
    return [(hint.flag, hint.value) for hint in made.verdict.hints]


def setting(flag: str, value: float) -> dict[str, Any]:
    return {flag.removeprefix("--").replace("-", "_"): round(value, 3) if flag.endswith("utilization") else int(value)}


@pytest.mark.parametrize(("name", "gpu", "engine", "given"), CASES)
def test_what_is_advised_fits_and_no_more_would(name: str, gpu: str, engine: str, given: dict[str, Any]) -> None:
    found = hints(name, gpu, engine, given)
    assert found
    for flag, text in found:
        if flag not in NEXT:
            continue
        value = float(text.split()[0].replace(",", ""))
        assert plan(name, gpu=gpu, engine=engine, **{**given, **setting(flag, value)}).verdict.fits, flag
        beyond = setting(flag, value + NEXT[flag])
        assert not plan(name, gpu=gpu, engine=engine, **{**given, **beyond}).verdict.fits, flag


def test_a_request_over_the_limit_takes_a_longer_limit_or_a_shorter_prompt() -> None:
    given = {"max_model_len": 2048, "prompt_tokens": 3000, "output_tokens": 256}
    assert hints("llama-3.1-8b", "h100-sxm", "vllm", given) == [
        ("--max-model-len", "3256"),
        ("--prompt-tokens", "1792"),
    ]


def test_advice_of_every_sort_is_met() -> None:
    """The cases above have what the law is about."""
    met = {flag for case in CASES for flag, _ in hints(*case)}
    assert met >= {"--max-model-len", "--concurrency", "--gpu-memory-utilization", "--n-gpu-layers", "--max-num-seqs"}
    assert met >= {"--weights", "--kv-cache-dtype", "--tensor-parallel-size"}

"""Which runner serves a deployment, and the batches it has in flight: the tables of each release's own configuration.

The figures of ``gemma-3-27b`` are those of vLLM's own planner (``get_kv_cache_configs`` of 0.33.0) for 32,768 tokens,
20 GiB and 8,192 or 16,384 tokens in flight.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from kvplan import load_gpu, load_model, plan
from kvplan.engines.base import Settings
from kvplan.engines.vllm.choices import capability_of
from kvplan.engines.vllm.runner import batches_in_flight, runner
from kvplan.engines.vllm.versions import parse
from kvplan.errors import UnsupportedError
from kvplan.units import GIB

ONE_BATCH, TWO_BATCHES = (97_435, 2.97), (62_557, 1.91)
"""(tokens in the log, concurrency) of gemma-3-27b."""


def settings_of(version: str, gpu: str = "h100-sxm", **given: Any) -> Settings:
    fields = {name: given.pop(name) for name in list(given) if name in Settings.__dataclass_fields__}
    extra = {"compute_capability": capability_of(load_gpu(gpu)), **given}
    return Settings(engine="vllm", engine_version=version, extra=extra, **fields)


def drafted(method: str, **more: Any) -> dict[str, Any]:
    return {"speculative_config": json.dumps({"method": method, "num_speculative_tokens": 3, **more})}


def which(name: str, version: str, gpu: str = "h100-sxm", **given: Any) -> int:
    return runner(load_model(name), settings_of(version, gpu, **given), parse(version))


@pytest.mark.parametrize(
    ("name", "version", "gpu", "expected"),
    [
        ("qwen3-32b", "0.21.0", "h100-sxm", 1), ("qwen3-32b", "0.22.0", "h100-sxm", 2),
        ("qwen3-32b-awq", "0.23.0", "h100-sxm", 1), ("qwen3-32b-awq", "0.24.0", "h100-sxm", 2),
        ("llama-3.1-8b", "0.22.0", "h100-sxm", 1), ("llama-3.1-8b", "0.23.0", "h100-sxm", 2),
        ("gemma-3-27b", "0.24.0", "h100-sxm", 1), ("gemma-3-27b", "0.25.0", "h100-sxm", 2),
        ("qwen3-30b-a3b", "0.28.0", "h100-sxm", 1), ("qwen3-30b-a3b", "0.29.0", "h100-sxm", 2),
        ("qwen3.6-27b", "0.28.0", "h100-sxm", 1), ("qwen3.6-27b", "0.29.0", "h100-sxm", 2),
        ("deepseek-v4-flash", "0.27.0", "h100-sxm", 1), ("deepseek-v4-flash", "0.28.0", "h100-sxm", 2),
        ("deepseek-v4-flash", "0.28.0", "mi300x", 1), ("deepseek-v4-flash", "0.31.0", "mi300x", 1),
        ("deepseek-v4-flash", "0.32.0", "mi300x", 2), ("glm-5", "0.29.0", "mi300x", 2),
        ("glm-5", "0.30.0", "mi300x", 1),
    ],
)  # fmt: skip
def test_by_default(name: str, version: str, gpu: str, expected: int) -> None:
    assert which(name, version, gpu) == expected


V1 = {
    "ngram": "0.32.0", "ngram_gpu": "0.32.0", "draft_model": "0.31.0", "suffix": "", "custom_class": "",
    "medusa": "0.33.0", "mlp_speculator": "0.33.0", "eagle": "0.25.0", "mtp": "0.25.0", "dflash": "0.25.0",
}  # fmt: skip
"""Method -> the first release (from 0.25 on) whose V2 runner has it; empty: none."""


@pytest.mark.parametrize("method", V1)
@pytest.mark.parametrize("version", [f"0.{minor}.0" for minor in range(25, 34)])
def test_by_method_of_drafting(method: str, version: str) -> None:
    """``_get_v2_model_runner_unsupported_features``, release by release."""
    first = V1[method]
    expected = 2 if first and parse(version) >= parse(first) else 1
    assert which("gemma-3-27b", version, **drafted(method, model="x")) == expected


def test_what_else_decides() -> None:
    assert which("qwen3-32b", "0.33.0", model_runner=1) == 1
    assert which("qwen3-30b-a3b", "0.26.0", model_runner=2) == 2
    assert which("qwen3-30b-a3b", "0.28.0", **drafted("dspark", model="x")) == 2
    staged: dict[str, Any] = {"pipeline_parallel_size": 2, **drafted("eagle3", model="x")}
    assert (which("qwen3-32b", "0.29.0", **staged), which("qwen3-32b", "0.30.0", **staged)) == (1, 2)
    assert which("qwen3-32b", "0.33.0", **drafted("eagle", model="x", parallel_drafting=True)) == 1
    assert which("qwen3-32b", "0.33.0", **drafted("dflash", model="x", parallel_drafting=True)) == 2
    assert which("qwen3-32b", "0.32.0", **drafted("draft_model", model="x", use_heterogeneous_vocab=True)) == 1
    elastic: dict[str, Any] = {"enable_elastic_ep": True}
    assert (which("qwen3-32b", "0.31.0", **elastic), which("qwen3-32b", "0.32.0", **elastic)) == (1, 2)
    raw: dict[str, Any] = {"logprobs_mode": "raw_logits"}
    assert (which("qwen3-32b", "0.25.0", **raw), which("qwen3-32b", "0.26.0", **raw)) == (1, 2)


def test_a_state_per_block_needs_v1_in_two_releases() -> None:
    asked: dict[str, Any] = {"mamba_cache_mode": "all", "enable_prefix_caching": True}
    found = [which("nemotron-h-8b", f"0.{minor}.0", **asked) for minor in (29, 30, 31)]
    assert found == [2, 1, 1]
    assert which("nemotron-h-8b", "0.31.0", **{**asked, "enable_prefix_caching": False}) == 2
    assert which("qwen3-next-80b-a3b", "0.31.0", **asked) == 2  # has no such mode, and falls back to align


@pytest.mark.parametrize(
    ("version", "given", "stages", "expected"),
    [
        ("0.33.0", {}, 1, 2), ("0.33.0", {}, 2, 3), ("0.33.0", {"async_scheduling": False}, 1, 1),
        ("0.33.0", {"async_scheduling": False}, 4, 4), ("0.33.0", {"model_runner": 1}, 1, 2),
        ("0.33.0", {"model_runner": 1}, 2, 2), ("0.32.0", drafted("ngram"), 1, 1), ("0.32.0", drafted("ngram"), 2, 2),
        ("0.33.0", drafted("ngram"), 1, 2), ("0.33.0", drafted("suffix"), 1, 1), ("0.31.0", drafted("ngram_gpu"), 1, 2),
        ("0.27.0", drafted("draft_model", model="x"), 1, 1), ("0.28.0", drafted("draft_model", model="x"), 1, 2),
        ("0.32.0", drafted("mtp", disable_padded_drafter_batch=True), 1, 1),
        ("0.33.0", drafted("mtp", disable_padded_drafter_batch=True), 1, 2),
    ],
)  # fmt: skip
def test_batches_in_flight(version: str, given: dict[str, Any], stages: int, expected: int) -> None:
    """``max_concurrent_batches``: V2 one over the stages, V1 two without stages; one a stage without looking ahead."""
    settings = settings_of(version, pipeline_parallel_size=stages, **given)
    assert batches_in_flight(load_model("gemma-3-27b"), settings, parse(version)) == expected


@pytest.mark.parametrize(
    ("version", "given", "expected"),
    [
        ("0.33.0", {}, TWO_BATCHES), ("0.33.0", {"async_scheduling": False}, ONE_BATCH),
        ("0.33.0", {"model_runner": 1}, TWO_BATCHES),
        ("0.31.0", drafted("ngram"), ONE_BATCH), ("0.32.0", drafted("ngram"), ONE_BATCH),
        ("0.33.0", drafted("ngram"), TWO_BATCHES), ("0.33.0", drafted("suffix"), ONE_BATCH),
        *((f"0.{minor}.0", drafted(method), ONE_BATCH) for minor in range(26, 33)
          for method in ("medusa", "mlp_speculator")),
    ],
)  # fmt: skip
def test_windows_keep_the_batches_in_flight(version: str, given: dict[str, Any], expected: tuple[int, float]) -> None:
    made = plan(
        "gemma-3-27b", gpu="h100-sxm", engine=f"vllm@{version}", max_model_len=32_768, kv_cache_memory_bytes=20 * GIB,
        **given,
    ).capacity  # fmt: skip
    assert made is not None
    assert made.max_concurrency is not None
    assert (made.engine_reported_tokens, round(made.max_concurrency, 2)) == expected


@pytest.mark.parametrize("method", ["medusa", "mlp_speculator"])
def test_methods_that_are_gone(method: str) -> None:
    with pytest.raises(UnsupportedError, match=r"0\.33\.0 has no drafts by"):
        plan("llama-3.1-8b", gpu="h100-sxm", engine="vllm@0.33.0", **drafted(method))

"""What vLLM refuses whatever the memory, and what changes with a what-if."""

from __future__ import annotations

import json
from dataclasses import replace
from math import ceil
from pathlib import Path
from typing import Any

import pytest

from kvplan.catalog import load_gpu, load_model
from kvplan.engines import get_engine
from kvplan.engines.base import Settings
from kvplan.engines.vllm import speculation
from kvplan.engines.vllm.versions import CHANGES, RELEASES, Rules, nearest, parse
from kvplan.errors import InputError, KvplanError, UnknownNameError, UnsupportedError
from kvplan.planning.drafts import served_model
from kvplan.planning.evaluate import evaluate
from kvplan.planning.planner import plan_deployment
from kvplan.planning.settings import resolve
from kvplan.sources.hf.read import read_config
from kvplan.spec.model import ModelSpec

CONFIGS = Path(__file__).parents[2] / "data" / "cases" / "vllm_configs"


def model(name: str) -> ModelSpec:
    return read_config(json.loads((CONFIGS / f"{name}.json").read_text()))


def refused(spec: ModelSpec, *, version: str = "0.33.0", gpu: str = "h100-sxm", **given: Any) -> KvplanError:
    with pytest.raises(KvplanError) as caught:
        plan_deployment(spec, load_gpu(gpu), f"vllm@{version}", {"kv_cache_memory_bytes": 10**10, **given})
    assert "\n" not in str(caught.value)
    return caught.value


@pytest.mark.parametrize(
    ("name", "given", "kind", "where", "hint"),
    [
        ("llama-3.1-8b", dict(block_size=24), UnsupportedError, "--block-size", "--block-size 16"),
        ("llama-3.1-8b", dict(attention_backend="FLASHY"), UnknownNameError, "--attention-backend", "FLASH_ATTN"),
        ("deepseek-v3", dict(attention_backend="FLASHMLA", block_size=48, tensor_parallel_size=8),
         UnsupportedError, "--block-size", "--block-size 64"),
        ("llama-3.1-8b", dict(kv_cache_dtype="q8_0"), UnsupportedError, "--kv-cache-dtype", "--kv-cache-dtype"),
        ("llama-3.1-8b", dict(kv_cache_dtype="fp8,bf16"), UnsupportedError, "--kv-cache-dtype", "fp8"),
        ("llama-3.1-8b", dict(decode_context_parallel_size=2, tensor_parallel_size=8), UnsupportedError,
         "--decode-context-parallel-size", "larger"),
        ("gemma-3-27b-text", dict(decode_context_parallel_size=2, tensor_parallel_size=32), UnsupportedError,
         "--decode-context-parallel-size", "1"),
        ("qwen3-next-80b", dict(disable_hybrid_kv_cache_manager=True), UnsupportedError,
         "--disable-hybrid-kv-cache-manager", "leave"),
        ("qwen3-next-80b", dict(mamba_cache_mode="all"), UnsupportedError, "--mamba-cache-mode", "align"),
        ("qwen3-next-80b", dict(mamba_cache_mode="some"), InputError, "--mamba-cache-mode", "align"),
        ("llama-3.1-8b", dict(speculative_config="{"), InputError, "--speculative-config", "mtp"),
        ("llama-3.1-8b", dict(speculative_config='{"method": "mtp"}'), UnsupportedError, "--speculative-config",
         "model"),
        ("llama-3.1-8b", dict(speculative_config={"method": "eagle3", "num_speculative_tokens": 2}), InputError,
         "--speculative-config", "model"),
        ("llama-3.1-8b", dict(speculative_config={"method": "ngram"}), InputError, "--speculative-config", "num"),
        ("llama-3.1-8b", dict(max_model_len=200000), UnsupportedError, "--max-model-len", "131072"),
    ],
)  # fmt: skip
def test_refused(name: str, given: dict[str, Any], kind: type[KvplanError], where: str, hint: str) -> None:
    error = refused(model(name), **given)
    assert isinstance(error, kind)
    assert error.where == where
    assert hint in (error.hint or "")


@pytest.mark.parametrize(
    ("name", "version", "given", "words"),
    [
        ("llama-3.1-8b", "0.19.0", dict(kv_cache_dtype="turboquant_k8v4"), "since 0.20.0"),
        ("llama-3.1-8b", "0.24.0", dict(kv_cache_dtype="int4_per_token_head"), "since 0.25.0"),
        (
            "deepseek-v3.2",
            "0.33.0",
            dict(gpu="a100-80gb-sxm", tensor_parallel_size=8),
            "no backend for sparse",
        ),
    ],
)
def test_refused_by_version_or_device(name: str, version: str, given: dict[str, Any], words: str) -> None:
    assert words in str(refused(model(name), version=version, **given))


@pytest.mark.parametrize("name", ["rwkv-7-g1-7.2b", "recurrentgemma-2b"])
def test_models_that_are_not_modelled_say_so(name: str) -> None:
    error = refused(load_model(name), max_model_len=2048)
    assert "generic" in (error.hint or "")


def test_no_chunk_no_blocks() -> None:
    """A GGUF file does not hold the kernel's chunk; before 0.28 the size of a block depends on it."""
    config = json.loads((CONFIGS / "nemotron-h-8b.json").read_text())
    del config["chunk_size"]
    error = refused(read_config(config), version="0.26.0", enable_prefix_caching=True)
    assert "chunk size" in str(error)
    assert "--mamba-block-size" in (error.hint or "")


def test_mode_all_keeps_a_state_per_block() -> None:
    """0.26 with prefix caching and the kernel's chunk of 256: one state a block, blocks of whole chunks."""
    given = {
        "kv_cache_memory_bytes": 30 * 10**9, "max_model_len": 8192, "enable_prefix_caching": True,
        "mamba_block_size": 256,
    }  # fmt: skip
    found = plan_deployment(model("nemotron-h-8b"), load_gpu("h100-sxm"), "vllm@0.26.0", given).capacity
    assert found is not None
    state = 128 * 64 * 128 * 4 + 3 * 10240 * 2
    assert found.block_size == 256 * ceil(ceil(state / 4096) / 256)
    assert found.num_blocks is not None
    groups = 24 // 4 + 1
    assert found.max_concurrency == found.num_blocks / (groups * ceil(8192 / found.block_size))


def test_a_changed_format_changes_the_backend() -> None:
    """Hopper reads bf16 latent rows with FlashAttention in blocks of 16, fp8 rows with FlashMLA in blocks of 64."""
    engine, spec, gpu = get_engine("vllm"), model("deepseek-v3.2"), load_gpu("h100-sxm")
    given = {"kv_cache_memory_bytes": 30 * 10**9, "max_model_len": 8192, "tensor_parallel_size": 8}
    settings, _ = resolve(spec, gpu, engine, given)
    served = served_model(spec, engine, settings)
    before = evaluate(served, gpu, engine, settings).pool
    after = evaluate(served, gpu, engine, replace(settings, kv_cache_dtype="fp8")).pool
    assert before is not None
    assert after is not None
    assert before.num_blocks == 30_000_000_000 // 5012736
    assert after.num_blocks == 30_000_000_000 // 3076352


def test_rows_of_mixed_heads_grow_the_block() -> None:
    """MiMo-V2-Flash at tp 4: one full head of 192 + 128 beside two sliding ones: pages 10,240 and 20,480."""
    given = {"kv_cache_memory_bytes": 30 * 10**9, "max_model_len": 8192, "tensor_parallel_size": 4}
    engine, spec, gpu = get_engine("vllm"), load_model("mimo-v2-flash"), load_gpu("h100-sxm")
    settings, _ = resolve(spec, gpu, engine, given)
    outcome = evaluate(served_model(spec, engine, settings), gpu, engine, settings)
    laid = engine.layout(outcome.stages[0], settings)  # type: ignore[attr-defined]
    assert {(g.first.family, g.first.block_size, g.first.page_bytes) for g in laid.groups} == {
        ("full", 32, 20480), ("sliding", 16, 20480),
    }  # fmt: skip


def test_versions() -> None:
    assert list(RELEASES) == sorted(RELEASES, key=parse)
    assert all(change.since <= parse(RELEASES[-1]) for change in CHANGES.values())
    for text in ("0.33.0", "v0.33.0", "0.33"):
        assert nearest(text) == ("0.33.0", None)
    assert nearest("0.19.2rc1")[0] == "0.19.0"
    assert nearest("0.19.2rc1")[1] is not None
    for text in ("latest", "", "0", "0.x"):
        with pytest.raises(InputError):
            parse(text)
    with pytest.raises(KeyError):
        Rules().has("no such rule")


def test_several_draft_modules_keep_tokens_below_the_window() -> None:
    two = speculation.parse({"method": "mtp", "num_speculative_tokens": 3})
    assert speculation.retained_tokens(two, 3) == 2
    assert speculation.retained_tokens(two, 1) == 0
    assert speculation.retained_tokens(None, 3) == 0
    eagle = speculation.parse({"method": "eagle", "model": "x", "num_speculative_tokens": 3})
    assert speculation.retained_tokens(eagle, 3) == 0


def test_chunked_attention_with_an_eagle_draft_holds_everything() -> None:
    """Llama 4: chunks are freed under the hybrid manager, and held whole beside a draft of that family."""
    spec = model("llama-4-scout-text")
    given = {"kv_cache_memory_bytes": 30 * 10**9, "max_model_len": 131072, "tensor_parallel_size": 4}
    draft = model("llama-3.1-8b")
    short = replace(draft, layers=draft.layers[:1])
    config = {"method": "eagle", "num_speculative_tokens": 2, "model": short}
    plain = plan_deployment(spec, load_gpu("h100-sxm"), "vllm", given).capacity
    drafted = plan_deployment(spec, load_gpu("h100-sxm"), "vllm", {**given, "speculative_config": config}).capacity
    assert plain is not None
    assert drafted is not None
    assert drafted.max_concurrency is not None
    assert plain.max_concurrency is not None
    assert drafted.max_concurrency < plain.max_concurrency / 2
    assert drafted.num_blocks == 30_000_000_000 // (49 * 16384)


def test_settings_carry_what_was_chosen() -> None:
    settings, _ = resolve(model("qwen3-next-80b"), load_gpu("b200"), get_engine("vllm"), {})
    assert isinstance(settings, Settings)
    assert settings.extra["attention_backend"] == "FLASHINFER"
    assert settings.extra["gdn_prefill_backend"] == "flashinfer"
    assert settings.max_num_batched_tokens == 16384
    old, _ = resolve(model("qwen3-next-80b"), load_gpu("b200"), get_engine("vllm@0.27.0"), {})
    assert old.max_num_batched_tokens == 8192
    assert old.enable_prefix_caching is False


@pytest.mark.parametrize("gpu", ["mi300x", "rtx-5090", "a100-80gb-sxm"])
def test_every_device_has_a_backend_for_plain_and_latent_attention(gpu: str) -> None:
    for name in ("llama-3.1-8b", "deepseek-v3"):
        given = {"kv_cache_memory_bytes": 10**10, "max_model_len": 4096}
        found = plan_deployment(model(name), load_gpu(gpu), "vllm", given)
        assert found.capacity is not None
        assert found.capacity.block_size == 16
        warned = any("not modelled" in text for text in found.warnings)
        assert warned == (gpu == "mi300x")

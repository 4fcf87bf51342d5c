"""Caches of single engines in figures worked by hand: quantised tails, states, pools of windows, shares of GPUs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from kvplan import load_gpu, load_model
from kvplan.engines import get_engine
from kvplan.engines.base import Settings
from kvplan.engines.common import vision_parameters
from kvplan.engines.vllm.backends import forced_block
from kvplan.engines.vllm.budget_activation import encoder_peaks
from kvplan.engines.vllm.states import state_dtypes
from kvplan.engines.vllm.versions import CHANGES
from kvplan.errors import InputError, UnsupportedError
from kvplan.planning.evaluate import evaluate
from kvplan.planning.settings import resolve


def served(name: str, engine: str, gpu: str = "h200-sxm", **given: Any) -> tuple[Any, Any, Settings]:
    spec, chosen = load_model(name), get_engine(engine)
    settings, _ = resolve(spec, load_gpu(gpu), chosen, {"max_model_len": 4096, **given})
    return spec, chosen, settings


# ---- transformers ----


def kinds(name: str, engine: str = "transformers", **given: Any) -> dict[str, tuple[int | None, int, int]]:
    spec, chosen, settings = served(name, engine, **given)
    found = chosen.pools(spec, settings, 1, 100, 100)
    return {pool.kind: (pool.cells, pool.k_bytes, pool.v_bytes) for pool in found}


def test_pools_of_transformers() -> None:
    token = 32 * 8 * 128 * 2
    assert kinds("llama-3.1-8b") == {"full": (100, 100 * token, 100 * token)}
    assert set(kinds("gemma-3-27b")) == {"full", "sliding"}
    assert set(kinds("deepseek-v2-lite")) == {"full"}
    assert set(kinds("gemma-3n-e4b")) == {"full", "sliding"}
    assert set(kinds("falcon-mamba-7b")) == {"recurrent"}
    assert set(kinds("qwen3-next-80b-a3b")) == {"full", "recurrent"}
    # RWKV takes its state as an argument of its own, RecurrentGemma keeps it on its modules
    assert "recurrent outside the cache" in kinds("rwkv-7-g1-7.2b")
    assert "recurrent" not in kinds("rwkv-7-g1-7.2b")


def test_a_latent_row_without_a_rotary_part_is_kept_too() -> None:
    spec, chosen, settings = served("deepseek-v2-lite", "transformers")
    blocks = {
        name: replace(block, mixers=tuple(replace(m, qk_rope_head_dim=0) for m in block.mixers))
        for name, block in spec.blocks.items()
    }
    (pool,) = chosen.pools(replace(spec, blocks=blocks), settings, 1, 100, 100)
    assert (pool.kind, pool.bytes) == ("full", 100 * 27 * 512 * 2)


@pytest.mark.parametrize(
    ("name", "version", "state_bytes"),
    [
        ("qwen3-next-80b-a3b", "4.57.6", 4), ("falcon-mamba-7b", "4.57.6", 2), ("falcon-mamba-7b", "5.24.0", 4),
        ("falcon-h1-7b", "4.57.6", 2), ("qwen3-next-80b-a3b", "5.24.0", 4),
    ],
)  # fmt: skip
def test_recurrent_states_before_and_after_one_cache_class(name: str, version: str, state_bytes: int) -> None:
    """4.57.6 keeps Mamba's states in the model's dtype; the delta rule computes and keeps float32 in both."""
    spec, chosen, settings = served(name, f"transformers@{version}")
    assert chosen.layout(spec, settings).state_bytes == state_bytes


def test_a_quantised_cache_at_its_fullest() -> None:
    """All but the newest 127 of 1000 tokens in 4 bits with a scale and a zero point of 16 bits for 64 elements."""
    spec, chosen, settings = served("llama-3.1-8b", "transformers", cache_implementation="quantized")
    layout = chosen.layout(spec, settings)
    assert (layout.nbits, layout.group, layout.residual) == (4, 64, 128)
    element, token = (64 * 4 // 8 + 2 * 2) / 64, 2 * 32 * 8 * 128
    assert chosen.held_bytes(spec, settings, 1000) == 873 * token * element + 127 * token * 2
    assert chosen.held_bytes(spec, settings, 1) < chosen.held_bytes(spec, settings, 2)


# ---- TensorRT-LLM ----


def test_one_block_in_every_pool_is_a_start() -> None:
    spec, chosen, settings = served("llama-3.1-8b", "tensorrt-llm")
    stages = evaluate(spec, load_gpu("h200-sxm"), chosen, settings).stages
    block = 32 * 131_072
    assert chosen.start_bytes(stages[0], settings) == block
    one, none = (chosen.pool(stages, settings, (have,)) for have in (block, block - 1))
    assert (one.num_blocks, one.kv_tokens, one.starts) == (1, 32, True)
    assert (none.num_blocks, none.kv_tokens, none.starts) == (0, 0, False)


def test_the_tokens_of_windowed_pools_are_those_of_the_full_one() -> None:
    """Gemma 3: ten full layers and 52 of 1024 tokens in two pools of equal bytes; the full pool's tokens count."""
    spec, chosen, settings = served("gemma-3-27b", "tensorrt-llm")
    stages = evaluate(spec, load_gpu("h200-sxm"), chosen, settings).stages
    pools = {pool.window: pool.token_bytes for pool in chosen.window_pools(spec, settings)}
    row = 2 * 16 * 128 * 2
    assert sorted(pools.values()) == [10 * row, 52 * row]
    have = 2 * 1000 * 32 * 52 * row  # a thousand blocks of the windows' pool, 5200 of the other
    found = chosen.pool(stages, settings, (have,))
    assert (found.num_blocks, found.kv_tokens) == (5200, 5200 * 32)


# ---- llama.cpp ----


def test_one_share_for_each_gpu() -> None:
    _, _, settings = served("llama-3.1-8b", "llama.cpp", tensor_split="3,1")
    assert settings.pipeline_parallel_size == 2
    _, _, settings = served("llama-3.1-8b", "llama.cpp", tensor_split="3,1", pipeline_parallel_size=2)
    assert settings.pipeline_parallel_size == 2
    with pytest.raises(InputError, match="2 shares for 3 GPUs"):
        served("llama-3.1-8b", "llama.cpp", tensor_split="3,1", pipeline_parallel_size=3)


# ---- vLLM ----


def test_changes_of_vllm_came_with_its_releases() -> None:
    for name, change in CHANGES.items():
        major, minor, patch = change.since
        assert major == 0, name
        assert 6 <= minor <= 40, name
        assert 0 <= patch <= 4, name


def test_the_encoders_peak_is_one_layer_of_siglip() -> None:
    """27 layers as wide as 1152, MLPs of 4320: four patches a token, twice the MLP and three hidden states, 16 bits."""
    spec, chosen, settings = served("gemma-3-27b", "vllm", max_num_batched_tokens=8192)
    (stage,) = evaluate(spec, load_gpu("h200-sxm"), chosen, settings).stages
    assert vision_parameters(spec) == pytest.approx(310 * 1152**2, rel=0.03)
    peak, held = encoder_peaks(stage, spec, settings)
    assert peak.bytes == pytest.approx(8192 * 4 * 2 * (2 * 4320 + 3 * 1152), rel=0.02)
    assert peak.low <= peak.bytes <= peak.high
    assert held == 8192 * 5376 * 2
    _, _, off = served("gemma-3-27b", "vllm", language_model_only=True)
    assert encoder_peaks(stage, spec, off)[0].bytes == 0


@pytest.mark.parametrize(
    ("family", "capability", "version", "block"),
    [
        ("dense", "9.0", "0.11.0", None), ("sparse", "10.0", "0.11.0", 64), ("mla", "9.0", "0.11.0", 64),
        ("mla", "10.0", "0.11.0", 128), ("mla", "8.0", "0.11.0", 16), ("mla", "9.0", "0.33.0", None),
        ("sparse", "10.0", "0.33.0", None),
    ],
)  # fmt: skip
def test_blocks_of_latent_rows_before_backends_chose(
    family: str, capability: str, version: str, block: int | None
) -> None:
    assert forced_block(family, capability, get_engine(f"vllm@{version}").rules) == block


# ---- MLX ----


@pytest.mark.parametrize(("name", "hint"), [("llama-3.2-1b", "type --kv-group-size 64")])
def test_the_largest_group_that_divides_a_head(name: str, hint: str) -> None:
    spec, chosen, settings = served(name, "mlx", "apple-m4-max", kv_bits=4, kv_group_size=128, quantized_kv_start=0)
    with pytest.raises(UnsupportedError, match="groups of 128 do not divide a head of 64") as caught:
        chosen.check(spec, settings, load_gpu("apple-m4-max"))
    assert caught.value.hint == hint


@pytest.mark.parametrize(
    ("name", "version", "recurrent"),
    [
        ("qwen3.6-27b", "0.33.0", 4), ("qwen3.6-27b", "0.16.0", None), ("qwen3-next-80b-a3b", "0.33.0", None),
        ("nemotron-3-nano-30b-a3b", "0.33.0", 4),
    ],
)  # fmt: skip
def test_states_follow_the_configuration_where_the_architecture_says_so(
    name: str, version: str, recurrent: int | None
) -> None:
    spec, rules = load_model(name), get_engine(f"vllm@{version}").rules
    assert state_dtypes(spec, rules) == (2, recurrent)
    assert state_dtypes(replace(spec, architecture="OtherForCausalLM", recurrent_dtype="fp32"), rules) == (2, None)
    assert state_dtypes(spec, rules, conv="float32", recurrent="float16") == (4, 2)


# ---- SGLang ----


def test_requests_take_whole_pages() -> None:
    """Pages of 64 tokens: a request of 100 takes two, one of 128 as many, one of 129 three."""
    spec, chosen, settings = served("llama-3.1-8b", "sglang", page_size=64)
    stages = evaluate(spec, load_gpu("h200-sxm"), chosen, settings).stages
    have = (4 * 2**30,)
    tokens = chosen.pool(stages, settings, have).kv_tokens
    counts = [chosen.requests_at(stages, settings, have, n) for n in (100, 128, 129)]
    assert counts == [tokens // 128, tokens // 128, tokens // 192]

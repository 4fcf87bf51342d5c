"""How layers, tokens, experts and requests split, where an off-by-one would go unnoticed elsewhere."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kvplan import load_model, plan
from kvplan.cache.bytes import bytes_per_token, sequence_bytes
from kvplan.engines import get_engine
from kvplan.engines.base import Engine, Settings
from kvplan.engines.common import balanced_split
from kvplan.errors import InputError, UnsupportedError
from kvplan.planning.planner import rope_rule


def generic_formats(name: str, dtype: str):
    settings = Settings(engine="generic", engine_version="1", kv_cache_dtype=dtype)
    return get_engine("generic").kv_formats(load_model(name), settings)


@pytest.mark.parametrize(
    ("layers", "stages", "want"),
    [(80, 3, [27, 27, 26]), (61, 8, [7, 7, 8, 8, 8, 8, 8, 7]), (62, 4, [15, 16, 16, 15]), (32, 1, [32])],
)
def test_the_remainder_goes_to_the_stages_before_the_last(layers: int, stages: int, want: list[int]) -> None:
    """Splits that vLLM 0.33.0 made."""
    assert balanced_split(layers, stages) == want


def test_the_most_loaded_replica_runs_the_odd_request() -> None:
    settings = Settings(engine="generic", engine_version="1", concurrency=9, data_parallel_size=4)
    assert settings.concurrency_per_replica == 3
    need = 1280 * 131_072
    fits = dict(engine="generic", max_model_len=1280, data_parallel_size=4, concurrency=9)
    assert plan("llama-3.1-8b", **fits, kv_cache_memory_bytes=3 * need).verdict.fits
    assert not plan("llama-3.1-8b", **fits, kv_cache_memory_bytes=3 * need - 1).verdict.fits


def test_context_parallel_ranks_hold_every_dcp_th_token() -> None:
    model, formats = load_model("deepseek-v3"), generic_formats("deepseek-v3", "bf16")
    assert sequence_bytes(model, 1000, formats, dcp=8) == 125 * 70_272
    assert sequence_bytes(model, 1001, formats, dcp=8) == 126 * 70_272
    assert bytes_per_token(model, formats, dcp=8) == 70_272 // 8


def test_context_parallelism_needs_copies_under_every_engine() -> None:
    with pytest.raises(UnsupportedError, match="needs 2 copies"):
        plan("llama-3.1-70b", engine="generic", tensor_parallel_size=8, decode_context_parallel_size=2)
    kv = plan("llama-3.1-70b", engine="generic", tensor_parallel_size=16, decode_context_parallel_size=2).kv
    assert kv.bytes_per_token_per_gpu * 16 == kv.bytes_per_token


def test_kivi_keeps_its_newest_tokens_in_16_bits() -> None:
    model, formats = load_model("llama-3.1-8b"), generic_formats("llama-3.1-8b", "kivi_2bit_g32")
    plain, residual = 131_072, formats.k.residual_tokens
    packed = bytes_per_token(model, formats)
    assert packed == plain * 3 // 16  # 2 bits and a scale and zero of 16 bits for 32 elements
    assert residual > 0
    assert sequence_bytes(model, residual, formats) == residual * plain
    assert sequence_bytes(model, residual + 1000, formats) == residual * plain + 1000 * packed


def test_edge_layers_of_turboquant_stay_in_16_bits() -> None:
    kv = plan("llama-3.1-8b", engine="generic", max_model_len=131_072, kv_cache_dtype="turboquant_4bit_nc").kv
    assert kv.bytes_per_sequence == 5800 * 2**20
    assert kv.bytes_per_token == 28 * 8 * 134 + 4 * 4096


def test_a_shared_prefix_is_held_once_and_the_rest_by_everyone() -> None:
    need = 131_072 * (1000 + 5 * (1280 - 1000))
    settings = dict(engine="generic", max_model_len=1280, concurrency=5, shared_prefix_tokens=1000)
    assert plan("llama-3.1-8b", **settings, kv_cache_memory_bytes=need).verdict.fits
    found = plan("llama-3.1-8b", **settings, kv_cache_memory_bytes=need - 1)
    assert not found.verdict.fits
    assert "4 do" in found.verdict.reason


def test_every_busy_replica_stores_the_prefix() -> None:
    shared = plan("llama-3.1-8b", concurrency=5, data_parallel_size=4, shared_prefix_tokens=100).kv.shared_prefix
    assert shared is not None
    assert shared.bytes_saved == 96 * 131_072


def test_asking_for_more_cache_than_the_device_has_does_not_fit() -> None:
    found = plan("llama-3.1-8b", gpu="h100-sxm", max_model_len=1024, kv_cache_memory_bytes=80 * 10**9)
    assert not found.verdict.fits
    assert found.verdict.binding == "kv"
    assert plan("llama-3.1-8b", gpu="h100-sxm", max_model_len=1280, kv_cache_memory_bytes=40 * 10**9).verdict.fits


def test_asking_for_more_blocks_than_the_device_has_does_not_fit() -> None:
    found = plan("llama-3.1-8b", gpu="h100-sxm", max_model_len=1280, num_gpu_blocks_override=10**6)
    assert not found.verdict.fits
    assert plan("llama-3.1-8b", gpu="h100-sxm", max_model_len=1280, num_gpu_blocks_override=1000).verdict.fits


def test_a_vocabulary_that_does_not_divide_is_rounded_up() -> None:
    assert Engine.vocab_rows(get_engine("generic"), 50_257, 2) == 25_129
    assert get_engine("vllm").vocab_rows(50_257, 2) == 25_152  # padded to a multiple of 64 first


def test_experts_are_cut_over_replicas_under_vllm() -> None:
    def routed(**layout: object) -> int:
        found = plan("deepseek-v3", gpu="b300", max_model_len=1280, **layout)
        assert found.memory is not None
        return found.memory[0].weights_by_role["routed_experts"]

    assert (
        routed(data_parallel_size=8)
        == routed(tensor_parallel_size=8)
        == routed(data_parallel_size=8, enable_expert_parallel=True)
    )


def test_fp32_checkpoints_are_served_in_16_bits() -> None:
    for engine in ("vllm", "generic"):
        found = plan("olmo-2-7b", gpu="h100-sxm", engine=engine)
        assert found.kv.bytes_per_token == 524_288
        assert found.memory is not None
        assert abs(found.memory[0].weights_by_role["dense_ffn"] - 2 * 32 * 3 * 4096 * 11008) == 0


def test_states_are_not_stored_in_blocks() -> None:
    for name in ("q8_0", "nvfp4"):
        with pytest.raises(InputError, match="states are not stored"):
            plan("qwen3-next-80b-a3b", engine="generic", mamba_ssm_cache_dtype=name)
    plain = plan("qwen3-next-80b-a3b", engine="generic").kv.fixed_bytes_per_sequence
    wide = plan("qwen3-next-80b-a3b", engine="generic", mamba_ssm_cache_dtype="float32").kv.fixed_bytes_per_sequence
    assert wide - plain == 36 * 32 * 128 * 128 * 2


def test_fp8_tiles_are_not_cut() -> None:
    with pytest.raises(UnsupportedError, match="192") as caught:
        plan("Qwen/Qwen3-235B-A22B-FP8", gpu="h100-sxm", tensor_parallel_size=8)
    assert "--tensor-parallel-size 4" in (caught.value.hint or "")
    plan("Qwen/Qwen3-235B-A22B-FP8", gpu="h100-sxm", tensor_parallel_size=8, enable_expert_parallel=True)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("llama-3.1-8b", "rope scaling llama3, factor 8, already in that maximum"),
        ("opt-6.7b", "a learned table of 2,050 positions"),
        ("mistral-7b-v0.3", "no rope scaling in its configuration"),
    ],
)
def test_the_rope_rule_in_words(name: str, words: str) -> None:
    assert words in rope_rule(load_model(name))


def test_the_cache_weighs_as_much_as_the_weights_exactly_there() -> None:
    model = replace(load_model("llama-3.1-8b"), max_position_embeddings=10**6)
    kv = plan(model, engine="generic", max_model_len=1024).kv
    at, weights = kv.exceeds_weights_at_tokens, 2 * model.parameters
    assert at is not None
    assert (at - 1) * kv.bytes_per_token < weights <= at * kv.bytes_per_token


def test_fitting_a_length_needs_a_maximum_and_a_memory() -> None:
    with pytest.raises(InputError, match="does not say"):
        plan("mamba2-2.7b", gpu="h100-sxm", engine="generic", max_model_len=-1)
    with pytest.raises(InputError, match="no memory is given"):
        plan("llama-3.1-8b", max_model_len=-1)

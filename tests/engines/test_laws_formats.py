"""Formats and pools of single engines, and since when there are such formats."""

from __future__ import annotations

from typing import Any

import pytest

from kvplan import load_gpu, load_model, plan
from kvplan.engines import get_engine
from kvplan.engines.base import Settings
from kvplan.engines.vllm.backends import Backend, preferred_block
from kvplan.engines.vllm.budget_activation import latent_prefill_bytes
from kvplan.engines.vllm.choices import FORMATS
from kvplan.errors import UnsupportedError
from kvplan.planning.evaluate import evaluate, mix_range
from kvplan.planning.settings import resolve
from kvplan.spec.format_table import FORMATS as TABLE
from kvplan.spec.formats import get_format


def served(name: str, engine: str, gpu: str = "h200-sxm", **given: Any) -> tuple[Any, Any, Settings]:
    spec, chosen = load_model(name), get_engine(engine)
    settings, _ = resolve(spec, load_gpu(gpu), chosen, {"max_model_len": 4096, **given})
    return spec, chosen, settings


def test_formats_of_vllm_came_with_its_releases() -> None:
    for name, (major, minor, patch) in FORMATS.items():
        assert get_format(name).name == name
        assert major == 0
        assert 11 <= minor <= 40, name
        assert 0 <= patch <= 4, name


@pytest.mark.parametrize(("bits", "group", "size"), [(4, 64, 36), (8, 64, 68), (4, 32, 20), (8, 128, 132), (3, 64, 28)])
def test_groups_of_mlx_have_a_scale_and_a_bias(bits: int, group: int, size: int) -> None:
    spec, chosen, settings = served("llama-3.1-8b", "mlx", "apple-m4-max", kv_bits=bits, kv_group_size=group)
    fmt = chosen.kv_formats(spec, settings).k
    assert (fmt.block_elements, fmt.block_bytes) == (group, size)


def test_the_pool_of_exllamav3_is_that_of_its_fullest_gpu() -> None:
    spec, chosen, settings = served("llama-3.1-8b", "exllamav3", pipeline_parallel_size=2)
    stages = evaluate(spec, load_gpu("h200-sxm"), chosen, settings).stages
    small, large = 2**30, 2**32
    pools = [chosen.pool(stages, settings, have).kv_tokens for have in ((small, large), (large, small))]
    assert pools[0] == pools[1] == chosen.pool(stages, settings, (small, small)).kv_tokens
    assert pools[0] % 256 == 0
    assert pools[0] * 16 * 4096 <= small  # sixteen layers of 4096 bytes a token on each GPU


@pytest.mark.parametrize(
    ("dtype", "k", "v"),
    [("fp16", "fp16", "fp16"), ("exl3_4", "exl3_4", "exl3_4"), ("exl3_8,exl3_4", "exl3_8", "exl3_4")],
)
def test_cache_types_of_exllamav3(dtype: str, k: str, v: str) -> None:
    spec, chosen, settings = served("llama-3.1-8b", "exllamav3", kv_cache_dtype=dtype)
    found = chosen.kv_formats(spec, settings)
    assert (found.k.name, found.v.name) == (k, v)


@pytest.mark.parametrize("dtype", ["fp16,exl3_4", "bf16", "fp8"])
def test_cache_types_that_exllamav3_has_not(dtype: str) -> None:
    with pytest.raises(UnsupportedError, match="exllamav3 stores fp16 or 2 to 8 bits"):
        plan("llama-3.1-8b", gpu="h200-sxm", engine="exllamav3", max_model_len=4096, kv_cache_dtype=dtype)


MIXED = [name for name, row in TABLE.items() if row.get("mix")]


def test_files_of_mixed_types_are_in_the_table() -> None:
    """The quantiser's own types, and a publisher's: an empty list would leave the next test without a case."""
    assert {"q8_0", "q4_0", "q4_k_m", "q6_k", "iq4_xs", "iq2_xxs", "ud_q4_k_xl"} <= set(MIXED)


@pytest.mark.parametrize("name", MIXED)
def test_ranges_of_mixed_files_hold_the_figure_that_is_used(name: str) -> None:
    low, high = mix_range(get_format(name, use="weights"))
    assert 50 <= low < 100 < high <= 150
    assert abs((low + high) / 2 - 100) <= 1


def test_the_chunk_of_context_that_latent_attention_rebuilds() -> None:
    """vLLM: eight times the longest request, or four blocks a sequence, 65,536 rows at most; 16-bit K and V.

    A block of every sequence at least, up to 0.27; with 1,024 sequences of blocks of 128 that is twice the cap.
    """
    spec, chosen, settings = served("deepseek-v3", "generic")
    (stage,) = evaluate(spec, load_gpu("h200-sxm"), chosen, settings).stages
    row = 2 * 128 * (128 + 128)

    def rows(length: int, sequences: int, version: str = "0.33.0", block: int = 64) -> float:
        given = Settings(engine="vllm", engine_version=version, max_model_len=length, max_num_seqs=sequences)
        return latent_prefill_bytes(stage, given, block) / row

    assert [rows(4096, 16), rows(1024, 64), rows(1024, 256), rows(131_072, 16)] == [32_768, 16_384, 65_536, 65_536]
    assert rows(131_072, 1024, "0.27.0", 128) == 131_072
    assert rows(131_072, 1024, "0.28.0", 128) == 65_536
    assert rows(8, 1, "0.28.0", 128) == 512


def test_sparse_attention_rebuilds_rows_since_the_layer_does() -> None:
    """vLLM 0.15: ``FlashMLASparseImpl.forward`` allocates nothing in the profile; 0.16: ``MLAAttention`` does."""
    spec, chosen, settings = served("deepseek-v3.2", "generic")
    (stage,) = evaluate(spec, load_gpu("h200-sxm"), chosen, settings).stages
    row = 2 * 128 * (128 + 128)
    for version, rows in (("0.15.0", 0), ("0.16.0", 65_536)):
        given = Settings(engine="vllm", engine_version=version, max_model_len=131_072, max_num_seqs=16)
        assert latent_prefill_bytes(stage, given, 64) == rows * row


def test_the_block_that_every_backend_takes() -> None:
    assert preferred_block([Backend((16,)), Backend((16,))]) == 16
    assert preferred_block([Backend((16,)), Backend((64,))]) == preferred_block([Backend((64,)), Backend((16,))]) == 64
    assert preferred_block([Backend((32,)), Backend((48,))]) == 96

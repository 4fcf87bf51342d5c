"""More of what vLLM's planner computed or refused: block sizes by hand, formats unread, stages, context ranks.

The figures are those of vLLM's own configuration, model classes and planner, run without a device.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kvplan.api import plan
from kvplan.catalog import load_gpu
from kvplan.errors import UnsupportedError
from kvplan.planning.planner import plan_deployment
from kvplan.sources.hf.read import read_config

CONFIGS = Path(__file__).parents[2] / "data" / "cases" / "vllm_configs"


def refused(match: str, model: str, **given: Any) -> str:
    with pytest.raises(UnsupportedError, match=match) as caught:
        plan(model, **given)
    return str(caught.value.where)


def test_blocks_of_compressed_entries_as_given() -> None:
    given = {"gpu": "h100-sxm", "tensor_parallel_size": 4, "max_model_len": 131072, "kv_cache_memory_bytes": 30 * 10**9}
    own, asked = plan("deepseek-v4-flash", **given), plan("deepseek-v4-flash", block_size=512, **given)
    assert (own.capacity.block_size, asked.capacity.block_size) == (256, 512)
    assert asked.capacity.num_blocks < own.capacity.num_blocks < 2.1 * asked.capacity.num_blocks
    assert refused("multiple of 256", "deepseek-v4-flash", block_size=128, **given) == "--block-size"


@pytest.mark.parametrize(("version", "row"), [("0.20.0", 2), ("0.31.0", 2), ("0.32.0", 1), ("0.33.0", 1)])
def test_a_model_that_did_not_read_the_cache_format(version: str, row: int) -> None:
    """MiMo-V2-Flash at tp 8, one head of 192 and 128 on a rank: 0.31.0 made 385,812 blocks of these bytes."""
    made = plan(
        "mimo-v2-flash", gpu="h100-sxm", engine=f"vllm@{version}", tensor_parallel_size=8, kv_cache_dtype="fp8",
        max_model_len=4096, kv_cache_memory_bytes=35556503004,
    )  # fmt: skip
    assert made.capacity.num_blocks == 35556503004 // (9 * 16 * 320 * row)
    assert any("whatever --kv-cache-dtype says" in text for text in made.warnings) == (row == 2)


@pytest.mark.parametrize("dtype", ["int8_per_token_head", "fp8_per_token_head", "int4_per_token_head"])
@pytest.mark.parametrize("model", ["deepseek-v3", "deepseek-v3.2"])
def test_no_kernel_reads_latent_rows_scaled_by_head(model: str, dtype: str) -> None:
    refused("has no backend for", model, gpu="h200-sxm", tensor_parallel_size=8, kv_cache_dtype=dtype)


def test_sparse_rows_over_context_ranks() -> None:
    """FlashMLA's sparse kernel: fp8 rows since 0.29, 16 bits never; FlashInfer's since 0.25."""
    given = {
        "gpu": "h200-sxm", "tensor_parallel_size": 8, "decode_context_parallel_size": 2, "max_model_len": 8192,
        "max_num_seqs": 8,
    }  # fmt: skip
    flag = "--decode-context-parallel-size"
    assert refused("in 16 bits", "deepseek-v3.2", **given) == flag
    assert refused("before 0.29.0", "deepseek-v3.2", engine="vllm@0.28.0", kv_cache_dtype="fp8", **given) == flag
    assert plan("deepseek-v3.2", engine="vllm@0.29.0", kv_cache_dtype="fp8", **given).capacity
    wide = {**given, "gpu": "b200", "kv_cache_dtype": "fp8"}
    assert plan("deepseek-v3.2", engine="vllm@0.25.0", **wide).capacity
    assert refused("before 0.25.0", "deepseek-v3.2", engine="vllm@0.24.0", **wide) == flag


@pytest.mark.parametrize("model", ["whisper-large-v3", "gemma-3n-e4b"])
def test_models_that_do_not_run_in_stages(model: str) -> None:
    assert refused("SupportsPP", model, gpu="h100-sxm", pipeline_parallel_size=2) == "--pipeline-parallel-size"


@pytest.mark.parametrize(
    ("model", "gpu", "version", "given", "match"),
    [
        ("deepseek-v3", "v100-sxm2-32gb", "0.33.0", {}, "fp8_block on compute capability 7.5 and above"),
        ("llama-3.1-8b", "v100-sxm2-32gb", "0.33.0", {"weights": "fp8"}, "7.5 and above, not 7"),
        ("llama-3.1-8b", "t4", "0.13.0", {"weights": "fp8"}, "8 and above, not 7.5"),
        ("gpt-oss-20b", "t4", "0.33.0", {}, "mxfp4 on compute capability 8 and above"),
    ],
)
def test_weights_below_their_least_device(
    model: str, gpu: str, version: str, given: dict[str, Any], match: str
) -> None:
    refused(match, model, gpu=gpu, engine=f"vllm@{version}", max_model_len=2048, **given)


def test_weights_on_their_least_device() -> None:
    made = plan("llama-3.1-8b", gpu="t4", engine="vllm@0.33.0", weights="fp8", max_model_len=2048)
    assert made.capacity.num_blocks > 0


def test_packed_and_plain_rows_in_stages() -> None:
    """Mixtral 8x7B under 0.30.0, tp 2, pp 3: blocks of 32 tokens where a rank's first layer is plain, else of 96."""
    given = {
        "tensor_parallel_size": 2, "pipeline_parallel_size": 3, "kv_cache_dtype": "turboquant_3bit_nc",
        "max_model_len": 1000, "kv_cache_memory_bytes": 16923080907,
    }  # fmt: skip
    config = json.loads((CONFIGS / "mistral-7b-v0.1.json").read_text()) | {"sliding_window": None}
    made = plan_deployment(read_config(config), load_gpu("h100-sxm"), "vllm@0.30.0", given).capacity
    assert made is not None
    assert (made.num_blocks, made.engine_reported_tokens) == (28691, 177104)


def test_compressed_caches_needed_the_flag() -> None:
    given = {"gpu": "h200-sxm", "tensor_parallel_size": 4, "max_model_len": 8192}
    for version, said in (("0.29.0", True), ("0.30.0", False)):
        made = plan("deepseek-v4-flash", engine=f"vllm@{version}", **given)
        assert any("only with --kv-cache-dtype fp8" in text for text in made.warnings) == said
    flagged = plan("deepseek-v4-flash", engine="vllm@0.29.0", kv_cache_dtype="fp8", **given)
    assert not any("only with --kv-cache-dtype fp8" in text for text in flagged.warnings)


@pytest.mark.parametrize(
    ("config", "version", "given", "expected"),
    [
        # 0.25 to 0.27 pack int4 rows of full layers alone; windowed pages are twice as large, full ones padded to them
        ("mistral-7b-v0.1", "0.26.0", {"kv_cache_dtype": "int4_per_token_head", "max_model_len": 1000,
         "max_num_seqs": 16, "kv_cache_memory_bytes": 18682787874}, (17277, 269953)),
        ("gpt-oss-120b", "0.25.0", {"kv_cache_dtype": "int4_per_token_head", "max_model_len": 40960,
         "tensor_parallel_size": 4, "max_num_seqs": 256, "kv_cache_memory_bytes": 29997450293}, (382933, 5090858)),
        # 0.25 to 0.29 give windowed layers the smallest kernel block, whatever --block-size says
        ("mistral-7b-v0.1", "0.26.0", {"block_size": 48, "max_model_len": 32768, "num_gpu_blocks_override": 20000,
         "kv_cache_memory_bytes": 10600968181}, (20000, 511600)),
    ],
)  # fmt: skip
def test_windowed_rows_and_blocks(config: str, version: str, given: dict[str, Any], expected: tuple[int, int]) -> None:
    spec = read_config(json.loads((CONFIGS / f"{config}.json").read_text()))
    made = plan_deployment(spec, load_gpu("h100-sxm"), f"vllm@{version}", given).capacity
    assert made is not None
    assert (made.num_blocks, made.engine_reported_tokens) == expected


def test_largest_windowed_block_since_0_30() -> None:
    spec = read_config(json.loads((CONFIGS / "mistral-7b-v0.1.json").read_text()))
    given = {"block_size": 48, "max_model_len": 32768, "kv_cache_memory_bytes": 10**10}
    found = [plan_deployment(spec, load_gpu("h100-sxm"), f"vllm@{v}", given).capacity for v in ("0.29.0", "0.30.0")]
    assert [c.num_blocks for c in found if c] == [10**10 // (32 * 65536), 10**10 // (32 * 65536 * 3)]


@pytest.mark.parametrize(
    ("version", "given", "expected"),
    [
        # mode all: a state a block of 2,048 tokens; beside drafts align in 0.20 and 0.21, and their states since 0.22
        ("0.26.0", {"tensor_parallel_size": 2, "max_model_len": 8192}, (2048, 1788, 457728)),
        ("0.24.0", {"tensor_parallel_size": 2, "max_model_len": 20000, "drafts": 5}, (2048, 1788, 310956)),
        ("0.19.0", {"max_model_len": 40960, "mamba_ssm_cache_dtype": "float32", "drafts": 5,
         "kv_cache_memory_bytes": 8433163268}, (2048, 251, 63488)),
    ],
)  # fmt: skip
def test_states_of_every_block(version: str, given: dict[str, Any], expected: tuple[int, int, int]) -> None:
    """Jamba with prefix caching, of which 0.15 to 0.27 keep every block's states by default."""
    given = {"kv_cache_memory_bytes": 30 * 10**9, "enable_prefix_caching": True} | given
    drafts = given.pop("drafts", 0)
    if drafts:
        given["speculative_config"] = {"method": "ngram", "num_speculative_tokens": drafts}
    spec = read_config(json.loads((CONFIGS / "jamba-v0.1.json").read_text()))
    made = plan_deployment(spec, load_gpu("h100-sxm"), f"vllm@{version}", given).capacity
    assert made is not None
    assert (made.block_size, made.num_blocks, made.engine_reported_tokens) == expected


@pytest.mark.parametrize(
    ("config", "version", "available", "figures"),
    [
        ({}, "0.33.0", 20001234567, (3179, 50764)),
        ({"model_type": "mistral", "architectures": ["MistralForCausalLM"], "max_position_embeddings": 32768,
          "sliding_window": 65536, "num_key_value_heads": 8, "head_dim": 128}, "0.33.0", 20008641969, (9540, 152342)),
    ],
)  # fmt: skip
def test_a_window_beyond_the_context(
    config: dict[str, Any], version: str, available: int, figures: tuple[int, int]
) -> None:
    """Phi-3-mini-128k has one of 262,144: its layers are paged as sliding ones, with a block more a request."""
    phi = {
        "model_type": "phi3", "architectures": ["Phi3ForCausalLM"], "num_hidden_layers": 32, "hidden_size": 3072,
        "num_attention_heads": 32, "num_key_value_heads": 32, "intermediate_size": 8192, "vocab_size": 32064,
        "max_position_embeddings": 131072, "torch_dtype": "bfloat16", "sliding_window": 262144,
    }  # fmt: skip
    given = {"kv_cache_memory_bytes": available, "max_model_len": 8192}
    made = plan_deployment(read_config({**phi, **config}), load_gpu("h100-sxm"), f"vllm@{version}", given).capacity
    assert made is not None
    assert (made.num_blocks, made.engine_reported_tokens) == figures


def test_attention_that_never_reads_the_format() -> None:
    """Falcon's layers are built without ``cache_config``: 2 bytes an element, whatever is asked for."""
    falcon = {
        "model_type": "falcon", "architectures": ["FalconForCausalLM"], "hidden_size": 4544, "num_hidden_layers": 32,
        "num_attention_heads": 71, "multi_query": True, "vocab_size": 65024, "torch_dtype": "bfloat16",
    }  # fmt: skip
    given = {"kv_cache_memory_bytes": 52917440002, "max_model_len": 2048, "kv_cache_dtype": "fp8"}
    made = plan_deployment(read_config(falcon), load_gpu("h100-sxm"), "vllm", given)
    assert made.capacity is not None
    assert (made.capacity.num_blocks, made.capacity.engine_reported_tokens) == (403728, 6459648)
    assert any("whatever --kv-cache-dtype says" in text for text in made.warnings)


def test_a_length_that_no_key_states() -> None:
    """Falcon-Mamba says none: 2,048 tokens, one state of which is a block."""
    made = plan("falcon-mamba-7b", gpu="h100-sxm", kv_cache_memory_bytes=2976 * 64 * 311296)
    assert made.inputs["max_model_len"] == 2048
    assert (made.capacity.num_blocks, made.capacity.engine_reported_tokens) == (2976, 6094848)


@pytest.mark.parametrize(("version", "bytes_per_element"), [("0.13.0", 2), ("0.14.0", 1), ("0.20.0", 1), ("0.33.0", 1)])
def test_a_format_that_the_checkpoint_declares(version: str, bytes_per_element: int) -> None:
    """``kv_cache_quant_algo`` of ModelOpt is read since 0.14.0; before it, ``auto`` is the model's own dtype."""
    config = json.loads((CONFIGS / "llama-3.1-8b.json").read_text())
    config["quantization_config"] = {
        "quant_method": "modelopt", "quant_algo": "FP8", "kv_cache_quant_algo": "FP8", "exclude_modules": ["lm_head"],
    }  # fmt: skip
    given = {"kv_cache_memory_bytes": 20 * 10**9, "max_model_len": 4096}
    made = plan_deployment(read_config(config), load_gpu("h100-sxm"), f"vllm@{version}", given).capacity
    assert made is not None
    assert made.num_blocks == 20 * 10**9 // (32 * 16 * 8 * 256 * bytes_per_element)

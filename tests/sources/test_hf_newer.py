"""Families of 2025 and 2026: parameters of small models as transformers builds them; files of which it has no class.

What their caches hold is in ``tests/data/cases/transformers_more.jsonl``.
"""

from __future__ import annotations

from typing import Any

import pytest

from kvplan.catalog import load_gpu
from kvplan.errors import SpecError
from kvplan.planning.planner import plan_deployment
from kvplan.sources.hf.read import read_config
from kvplan.spec.model import ModelSpec

NARROW: dict[str, Any] = {
    "hidden_size": 64, "intermediate_size": 160, "vocab_size": 500, "num_attention_heads": 8,
    "num_key_value_heads": 4, "head_dim": 16, "max_position_embeddings": 4096, "tie_word_embeddings": False,
    "sliding_window": 64,
}  # fmt: skip
MLA = {"kv_lora_rank": 32, "qk_nope_head_dim": 16, "qk_rope_head_dim": 8, "v_head_dim": 16, "num_attention_heads": 4}
EXPERTS = {"num_experts_per_tok": 2, "moe_intermediate_size": 24}
DORY = NARROW | {"num_hidden_layers": 8, "n_input_layers": 2, "n_output_layers": 2}
CASES: dict[str, tuple[dict[str, Any], int, int]] = {
    "bailing_hybrid": (
        NARROW | MLA | EXPERTS | {"num_hidden_layers": 7, "layer_group_size": 3, "num_experts": 8,
                                  "num_shared_experts": 1, "first_k_dense_replace": 2, "short_conv_kernel_size": 4,
                                  "layer_types": [*["linear_attention", "linear_attention", "full_attention"] * 2,
                                                  "linear_attention"]},
        499_108 + 5 * 8, 7,
    ),
    "hy_v4": (
        NARROW | MLA | EXPERTS | {"num_hidden_layers": 6, "n_routed_experts": 8, "n_shared_experts": 1, "hc_mult": 4,
                                  "q_lora_rank": 24, "index_head_dim": 16, "index_n_heads": 2, "index_topk": 2048},
        449_541 - 1, 6,
    ),
    "dory": (DORY, 578_036, 12),
    "lara_mini": (
        NARROW | EXPERTS | {"num_hidden_layers": 6, "num_experts": 8, "shared_expert_intermediate_size": 24,
                            "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 16,
                            "linear_value_head_dim": 16},
        442_856, 6,
    ),
    "lfm3": (NARROW | {"num_hidden_layers": 8}, 471_392, 8),
    "moshi": (NARROW | {"num_hidden_layers": 3, "ffn_dim": 320, "head_dim": None}, 193_536, 3),
    "muse_spark_text": (
        NARROW | EXPERTS | {"num_hidden_layers": 5, "num_local_experts": 8, "moe_hidden_size": 32,
                            "mlp_layer_types": ["dense", *["sparse"] * 4]},
        320_640 + 500 * 64, 5,
    ),
}  # fmt: skip
"""model_type -> configuration, parameters of transformers 5.24.0 on its meta device (its biases of the router are
buffers, the offset of Hy 4's stream mixer one number more, Muse Spark's head is not of the text part), and caches."""


def read(kind: str, **changes: Any) -> ModelSpec:
    data = {"model_type": kind, **CASES[kind][0], **changes}
    return read_config({key: value for key, value in data.items() if value is not None})


@pytest.mark.parametrize("kind", CASES)
def test_parameters_and_layers(kind: str) -> None:
    found = read(kind)
    assert (found.parameters, len(found.layers)) == CASES[kind][1:]


def kinds(spec: ModelSpec) -> list[str]:
    return [m.kind for name in spec.layers for m in spec.blocks[name].mixers]


def test_layers_of_attention_and_of_ffn_are_one() -> None:
    """Dory's released files list 16 layers; each pair is one, and the loops count them by pairs as well."""
    words = [word for i in range(8) for word in ("full_attention" if i % 4 == 3 else "sliding_attention", "mlp")]
    listed = read("dory", num_hidden_layers=16, n_input_layers=4, n_output_layers=4, layer_types=words)
    assert (kinds(listed), listed.parameters) == (kinds(read("dory")), read("dory").parameters)
    last = read("dory", recurrent_kv_cache_mode="last_loop")
    assert (len(last.layers), last.parameters) == (8, read("dory").parameters)
    with pytest.raises(SpecError, match="alternate"):
        read("dory", num_hidden_layers=16, layer_types=["mlp", "full_attention"] * 8)
    with pytest.raises(SpecError, match="do not make up"):
        read("dory", n_input_layers=9)


BAILING = {
    "hidden_size": 2048, "intermediate_size": 5120, "vocab_size": 157184, "num_attention_heads": 16,
    "num_key_value_heads": 16, "head_dim": 64, "num_experts": 64, "num_experts_per_tok": 8, "num_shared_experts": 1,
    "moe_intermediate_size": 512, "first_k_dense_replace": 1, "max_position_embeddings": 32768,
    "torch_dtype": "bfloat16", "tie_word_embeddings": False, "layer_group_size": 5, "num_hidden_layers": 20,
    "kv_lora_rank": 512, "q_lora_rank": 1024, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128,
}  # fmt: skip


@pytest.mark.parametrize(
    ("config", "given", "available", "figures"),
    [
        (
            {"architectures": ["BailingMoeV2_5ForCausalLM"], "group_norm_size": 4}, {}, 20004938268,
            (128, 33916, 3821521),
        ),
        (
            {"architectures": ["BailingMoeV2_5ForCausalLM"], "group_norm_size": 4}, {"kv_cache_dtype": "fp8"},
            20007407402, (256, 33920, 6784000),
        ),
        (
            {"architectures": ["BailingMoeV3ForCausalLM"], "short_conv_kernel_size": 4, "num_hidden_layers": 22}, {},
            20008641969, (256, 11307, 2380421),
        ),
    ],
)  # fmt: skip
def test_one_name_and_two_kinds_of_linear_attention(
    config: dict[str, Any], given: dict[str, Any], available: int, figures: tuple[int, int, int]
) -> None:
    """vLLM 0.33.0's own planner: lightning in Ring 2.5, Kimi delta attention in Ling 3; layers after the last group of
    five attend."""
    spec = read_config({"model_type": "bailing_hybrid", **BAILING, **config})
    settings = {"kv_cache_memory_bytes": available, "max_model_len": 8000, **given}
    made = plan_deployment(spec, load_gpu("h100-sxm"), "vllm@0.33.0", settings).capacity
    assert made is not None
    assert (made.block_size, made.num_blocks, made.engine_reported_tokens) == figures


def test_ling_before_linear_attention() -> None:
    ling = {key: value for key, value in BAILING.items() if "rank" not in key and key[:2] not in ("qk", "v_")} | {
        "model_type": "bailing_moe", "num_key_value_heads": 4, "head_dim": 128, "use_qk_norm": True,
    }  # fmt: skip
    found = read_config(ling)
    assert kinds(found) == ["full"] * 20
    assert {m.kv_heads for b in found.blocks.values() for m in b.mixers} == {4}
    linear = read_config({**ling, "model_type": "bailing_moe_linear", "group_norm_size": 4})
    assert kinds(linear) == (["lightning"] * 4 + ["full"]) * 4


def test_a_text_part_that_does_not_say_what_it_is() -> None:
    """The whole's class knows, and the text's has the sizes; Qwen2-Audio's file leaves out most of them."""
    text = {"intermediate_size": 11008, "vocab_size": 156032, "max_position_embeddings": 8192}
    whole = {"architectures": ["Qwen2AudioForConditionalGeneration"], "model_type": "qwen2_audio", "text_config": text}
    found = read_config(whole)
    mixer: Any = found.blocks[found.layers[0]].mixers[0]
    assert (len(found.layers), found.hidden_size, mixer.kv_heads, mixer.head_dim, mixer.qkv_bias) == (
        32, 4096, 32, 128, True,
    )  # fmt: skip
    named = read_config({**whole, "text_config": {"model_type": "qwen2", **text}})
    assert (found.blocks, found.layers) == (named.blocks, named.layers)
    nested = {"model_type": "qwen3_vl", "text_config": {"num_hidden_layers": 2}}
    assert read_config(nested).family == "qwen3_vl_text"


OPENELM = {
    "model_type": "openelm", "ffn_dim_divisor": 256, "ffn_with_glu": True, "head_dim": 64, "max_context_length": 2048,
    "ffn_multipliers": [0.5, 0.73, 0.97, 1.2, 1.43, 1.67, 1.9, 2.13, 2.37, 2.6, 2.83, 3.07, 3.3, 3.53, 3.77, 4.0],
    "num_kv_heads": [3] * 5 + [4] * 7 + [5] * 4, "num_query_heads": [12] * 5 + [16] * 7 + [20] * 4,
    "model_dim": 1280, "normalize_qk_projections": True, "num_transformer_layers": 16, "num_gqa_groups": 4,
    "qkv_multipliers": [0.5, 1.0], "share_input_output_layers": True, "vocab_size": 32000,
}  # fmt: skip


def test_layers_that_grow() -> None:
    """OpenELM-270M: its published total, and heads of its own in each group of layers."""
    found = read_config(OPENELM)
    assert (found.parameters, found.max_position_embeddings) == (271_527_168, 2048)
    heads = [m.kv_heads for name in found.layers for m in found.blocks[name].mixers]
    assert heads == OPENELM["num_kv_heads"]
    with pytest.raises(SpecError, match="ffn_multipliers"):
        read_config({**OPENELM, "ffn_multipliers": ["1.0"] * 16})
    with pytest.raises(SpecError, match="16"):
        read_config({**OPENELM, "num_kv_heads": [4]})


def test_layers_that_run_twice() -> None:
    """Nanbeige: each run has a cache, as MLX-LM 0.32.2 makes them; the weights are those of one."""
    plain = {"model_type": "nanbeige", "num_hidden_layers": 3, **NARROW, "sliding_window": None}
    once, twice = read_config(plain), read_config({**plain, "num_loops": 2})
    assert (len(once.layers), len(twice.layers)) == (3, 6)
    assert once.parameters == twice.parameters
    with pytest.raises(SpecError, match="loop_share_kv"):
        read_config({**plain, "num_loops": 2, "loop_share_kv": True})
    with pytest.raises(SpecError, match="num_loops"):
        read_config({**plain, "num_loops": 0})


def test_windows_of_plamo_3() -> None:
    """Every eighth layer is global, as in MLX-LM 0.32.2 and llama.cpp (``plamo3``)."""
    plamo = {"model_type": "plamo3", "num_hidden_layers": 17, **NARROW, "sliding_window": None, "window_size": 64}
    assert kinds(read_config(plamo)) == (["sliding"] * 7 + ["full"]) * 2 + ["sliding"]
    assert kinds(read_config({**plamo, "sliding_window_pattern": 2}))[:3] == ["sliding", "full", "sliding"]


@pytest.mark.parametrize(
    ("version", "bias", "qk_norm"), [(2.5, False, None), (2.6, True, None), ("2.6", True, None), (4.5, False, "head")]
)
def test_language_models_of_minicpm_v(version: object, bias: bool, qk_norm: str | None) -> None:
    flat = {"model_type": "minicpmv", "num_hidden_layers": 2, **NARROW, "sliding_window": None, "version": version}
    mixer: Any = read_config(flat).blocks["layer"].mixers[0]
    assert (mixer.qkv_bias, mixer.qk_norm) == (bias, qk_norm)


def test_experts_of_two_modes() -> None:
    """ERNIE 4.5 VL lists sizes by mode, text first; only the text's are routed to by text."""
    flat = {
        "model_type": "ernie4_5_moe_vl", "num_hidden_layers": 3, **NARROW, "sliding_window": None, "moe_k": 2,
        "moe_num_experts": [8, 6], "moe_intermediate_size": [24, 12], "moe_layer_start_index": [1, 1],
        "moe_layer_end_index": [2, 2], "moe_num_shared_experts": 1, "moe_layer_interval": 1,
    }  # fmt: skip
    found = read_config(flat)
    assert [len(found.blocks[name].tensors) for name in found.layers] == [0, 3, 3]
    more = read_config({**flat, "moe_num_experts": [8, 7]})
    assert more.parameters - found.parameters == 2 * (3 * 12 * 64 + 64 + 1)

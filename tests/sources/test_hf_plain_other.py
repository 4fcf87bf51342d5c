"""Families whose layers are no row of traits: parameters and cache of small models, as transformers builds them."""

from __future__ import annotations

from typing import Any

import pytest

from kvplan.errors import SpecError
from kvplan.sources.hf.plain_other import PLAIN_OTHER
from kvplan.sources.hf.read import read_config
from kvplan.spec.model import ModelSpec

NARROW: dict[str, Any] = {
    "num_hidden_layers": 6, "hidden_size": 64, "intermediate_size": 160, "vocab_size": 500, "num_attention_heads": 8,
    "num_key_value_heads": 4, "max_position_embeddings": 4096, "tie_word_embeddings": False,
}  # fmt: skip
BASE = NARROW | {"head_dim": 16}
MLA = {"kv_lora_rank": 32, "q_lora_rank": 24, "qk_nope_head_dim": 16, "qk_rope_head_dim": 8, "v_head_dim": 16}
EXPERTS = {"n_routed_experts": 10, "num_experts_per_tok": 2, "moe_intermediate_size": 24, "n_shared_experts": 1}
CASES: dict[str, tuple[str, dict[str, Any], int, int, int]] = {
    "beam": (
        "beam", BASE | {"num_experts": 10, "num_experts_per_tok": 2, "moe_intermediate_size": 24}, 494_768, 6, 128
    ),
    "cpmant": (
        "cpmant",
        {"num_hidden_layers": 6, "hidden_size": 64, "vocab_size": 500, "num_attention_heads": 8, "dim_head": 16,
         "dim_ff": 160, "segment_types": 4, "prompt_types": 3, "prompt_length": 5, "position_bias_num_buckets": 32},
        447_360, 6, 256,
    ),
    "doge": ("doge", NARROW | {"num_experts": 16384, "num_experts_per_tok": 64}, 324_536, 6, 64),
    "doge of experts": (
        "doge", NARROW | {"is_moe": True, "num_experts": 100, "num_experts_per_tok": 4}, 409_016, 6, 64
    ),
    "hrm_text": (
        "hrm_text", NARROW | {"num_key_value_heads": None, "num_hidden_layers": 2, "H_cycles": 2, "L_cycles": 3,
                              "head_dim": 8}, 268_864, 16, 128,
    ),
    "hrm_text as saved": (
        "hrm_text", NARROW | {"num_key_value_heads": None, "num_hidden_layers": 16, "num_layers_per_stack": 2,
                              "H_cycles": 2, "L_cycles": 3, "head_dim": 8}, 268_864, 16, 128,
    ),
    "jetmoe": (
        "jetmoe", NARROW | {"kv_channels": 16, "num_local_experts": 5, "num_experts_per_tok": 2}, 1_285_952, 6, 128
    ),
    "minicpm3": ("minicpm3", NARROW | MLA, 400_016, 6, 40),
    "youtu": ("youtu", NARROW | MLA, 400_016, 6, 40),
    "axk1": ("axk1", NARROW | MLA | EXPERTS, 503_376, 6, 40),
    "sarvam_mla": ("sarvam_mla", NARROW | MLA | EXPERTS | {"q_lora_rank": None}, 539_776, 6, 40),
    "glm4v_text": ("glm4v_text", NARROW, 324_416, 6, 64),
    "glm4v_moe_text": ("glm4v_moe_text", BASE | EXPERTS | {"first_k_dense_replace": 1}, 501_184, 6, 128),
    "glm_ocr_text": ("glm_ocr_text", BASE, 397_376, 6, 128),
    "hunyuan_vl_text": ("hunyuan_vl_text", BASE, 396_800, 6, 128),
    "molmo2_text": ("molmo2_text", BASE, 404_992, 6, 128),
}  # fmt: skip
"""name -> model_type, configuration, parameters and (layers, cache elements per token and layer) of transformers 5.24.0
on its meta device."""
SIZES_OF_THE_CLASS = {
    "beam": 501_267_599_808, "cpmant": 9_517_453_312, "doge": 403_055_872, "hrm_text": 1_447_822_848,
    "modernbert-decoder": 149_655_232, "minicpm3": 4_073_875_968, "axk1": 518_983_052_288,
    "axk2": 20_314_494_976, "sarvam_mla": 106_031_763_456, "youtu": 1_961_560_064,
}  # fmt: skip


def read(model_type: str, **changes: Any) -> ModelSpec:
    kept = {key: value for key, value in changes.items() if value is not None or key == "q_lora_rank"}
    return read_config({"model_type": model_type, **kept})


def cached(model: ModelSpec) -> list[int]:
    """Elements one token adds to the cache of each layer."""
    each = {
        name: sum(s.heads * s.head_dim for mixer in block.mixers for s in mixer.streams())
        for name, block in model.blocks.items()
    }
    return [each[name] for name in model.layers]


@pytest.mark.parametrize("name", CASES)
def test_parameters_and_cache(name: str) -> None:
    kind, changes, parameters, layers, elements = CASES[name]
    model = read(kind, **changes)
    assert model.parameters == parameters
    assert cached(model) == [elements] * layers


def test_the_first_layer_of_modernbert_has_one_norm_less_and_every_third_is_global() -> None:
    data = {
        "num_hidden_layers": 22, "hidden_size": 768, "intermediate_size": 1152, "vocab_size": 50368,
        "num_attention_heads": 12, "max_position_embeddings": 8192,
    }  # fmt: skip
    model = read("modernbert-decoder", **data)
    assert model.parameters == SIZES_OF_THE_CLASS["modernbert-decoder"]
    windows = [model.blocks[name].mixers[0].streams()[0].window for name in model.layers]
    assert windows == [None if i % 3 == 0 else 64 for i in range(22)]
    every = read("modernbert-decoder", **data, global_attn_every_n_layers=1, local_attention=512)
    assert {kind for _, mixer in every.mixers() for kind in [mixer.kind]} == {"full"}


@pytest.mark.parametrize(
    ("model_type", "data"),
    [
        ("beam", {"num_hidden_layers": 52, "hidden_size": 5120, "intermediate_size": 20480, "vocab_size": 151936,
                  "num_attention_heads": 48, "num_key_value_heads": 8, "num_experts": 256, "num_experts_per_tok": 8,
                  "moe_intermediate_size": 2560}),
        ("cpmant", {"num_hidden_layers": 48, "hidden_size": 4096, "vocab_size": 30720, "num_attention_heads": 32}),
        ("minicpm3", {"num_hidden_layers": 62, "hidden_size": 2560, "intermediate_size": 6400, "vocab_size": 73448,
                      "num_attention_heads": 40, "num_key_value_heads": 40}),
        ("youtu", {"num_hidden_layers": 32, "hidden_size": 2048, "intermediate_size": 6144, "vocab_size": 128256,
                   "num_attention_heads": 16, "num_key_value_heads": 16}),
        ("axk1", {"num_hidden_layers": 61, "hidden_size": 7168, "intermediate_size": 18432, "vocab_size": 163840,
                  "num_attention_heads": 64, "num_key_value_heads": 64}),
        ("axk2", {"num_hidden_layers": 48, "hidden_size": 2048, "intermediate_size": 5120, "vocab_size": 163840,
                  "num_attention_heads": 32, "layer_types": ["indexed_attention"] * 48}),
        ("sarvam_mla", {"num_hidden_layers": 32, "hidden_size": 4096, "intermediate_size": 16384, "vocab_size": 262144,
                        "num_attention_heads": 64}),
    ],
)  # fmt: skip
def test_sizes_that_the_class_fills_in(model_type: str, data: dict[str, Any]) -> None:
    assert read(model_type, **data).parameters == SIZES_OF_THE_CLASS[model_type]


def test_index_keys_of_axk2_and_other_kinds_of_layers() -> None:
    sizes = NARROW | MLA | EXPERTS | {"index_head_dim": 16, "index_n_heads": 2}
    assert cached(read("axk2", **sizes)) == [32 + 8 + 16] * 6
    with pytest.raises(SpecError, match="layer_types has 'full_attention'"):
        read("axk2", **sizes, layer_types=["full_attention"] * 6)


def test_windows_of_beam() -> None:
    model = read("beam", **CASES["beam"][1] | {"num_hidden_layers": 8})
    windows = [model.blocks[name].mixers[0].streams()[0].window for name in model.layers]
    assert windows == [512, 512, 512, 512, 512, None, 512, None]
    assert [name.endswith("dense") for name in model.layers] == [True] * 3 + [False] * 5


def test_runs_of_a_layer_share_its_weights_and_not_its_cache() -> None:
    short, long = read("hrm_text", **CASES["hrm_text"][1]), read("hrm_text", **CASES["hrm_text"][1] | {"H_cycles": 5})
    assert short.parameters == long.parameters
    assert (short.num_layers, long.num_layers) == (16, 40)
    assert short.layers[:8] == ("low_0", "low_1") * 3 + ("high_0", "high_1")
    with pytest.raises(SpecError, match="does not fit"):
        read("hrm_text", **CASES["hrm_text as saved"][1] | {"num_hidden_layers": 17})


def test_chosen_experts_of_jetmoe_may_not_outnumber_the_others() -> None:
    with pytest.raises(SpecError, match="num_experts_per_tok"):
        read("jetmoe", **CASES["jetmoe"][1] | {"num_experts_per_tok": 6})


def test_every_family_has_a_case() -> None:
    same = {"chameleon", "cosmos3_edge_text", "deepseek_ocr2_text", "granite4_vision_text", "granite_docling_text",
            "paddleocr_vl_text", "unlimited_ocr_text"}  # fmt: skip
    assert set(PLAIN_OTHER) == {kind for kind, *_ in CASES.values() if kind in PLAIN_OTHER} | same | {
        "modernbert-decoder",
    }  # fmt: skip
    llama = read("llama", **BASE)
    for kind in same - {"chameleon", "cosmos3_edge_text"}:
        assert read(kind, **BASE).parameters == llama.parameters
    assert read("cosmos3_edge_text", **BASE).parameters == llama.parameters - 6 * 64 * 160
    assert cached(read("chameleon", **BASE)) == cached(llama)


@pytest.mark.parametrize("tied", [True, False, None])
def test_the_head_of_cpm_ant_is_its_own_whatever_the_file_says(tied: bool | None) -> None:
    """Its embedding has rows for prompts, and the head has none: they cannot be one matrix."""
    sizes = {"num_hidden_layers": 48, "hidden_size": 4096, "vocab_size": 30720, "num_attention_heads": 32}
    assert read("cpmant", **sizes, tie_word_embeddings=tied).parameters == SIZES_OF_THE_CLASS["cpmant"]

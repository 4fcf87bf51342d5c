"""Quantised checkpoints with exceptions: groups by role, modules by name, and what cannot be told apart."""

from __future__ import annotations

import time
from typing import Any

import pytest

from kvplan.errors import SpecError
from kvplan.sources.hf.read import read_config
from kvplan.spec.formats import get_format
from kvplan.spec.model import Checkpoint, ModelSpec

LAYERS = 4
DENSE: dict[str, Any] = {
    "model_type": "llama", "num_hidden_layers": LAYERS, "hidden_size": 512, "intermediate_size": 1024,
    "vocab_size": 1000, "num_attention_heads": 8, "num_key_value_heads": 4, "max_position_embeddings": 8192,
}  # fmt: skip
EXPERTS = DENSE | {
    "model_type": "qwen3_moe", "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 128,
    "mlp_only_layers": [0],
}  # fmt: skip
INT4 = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 128}
INT8 = {"num_bits": 8, "type": "int", "strategy": "channel"}
FFN = ("gate_proj", "up_proj", "down_proj")


def read(quantization: dict[str, Any], base: dict[str, Any] = DENSE) -> ModelSpec:
    return read_config({**base, "quantization_config": quantization})


def formats(model: ModelSpec, *roles: str) -> list[str]:
    stored = model.checkpoint or Checkpoint(format=model.dtype, roles=())
    return [stored.overrides.get(r, stored.format if r in stored.roles else model.dtype) for r in roles]


def names(inner: str, layers: range = range(LAYERS)) -> list[str]:
    return [f"model.layers.{i}.{inner}.{leaf}" for i in layers for leaf in FFN]


def groups(*pairs: tuple[list[str], dict[str, Any]], ignore: list[str] | None = None) -> dict[str, Any]:
    given = {f"group_{i}": {"targets": t, "weights": w} for i, (t, w) in enumerate(pairs)}
    return {"quant_method": "compressed-tensors", "format": "mixed-precision", "config_groups": given,
            "ignore": ["lm_head"] if ignore is None else ignore}  # fmt: skip


@pytest.mark.parametrize("turned", [False, True])
def test_groups_count_for_the_roles_they_target(turned: bool) -> None:
    pairs = [(["re:.*mlp.*"], INT4), (["re:.*self_attn.*"], INT8)]
    found = read(groups(*(pairs[::-1] if turned else pairs)))
    assert formats(found, "dense_ffn", "attention", "head") == ["int4_g128", "int8_channel", "bf16"]
    assert not found.file_warnings


def test_a_group_of_some_modules_leaves_the_others_as_they_were() -> None:
    found = read(groups((["re:.*mlp.*"], INT4)))
    assert formats(found, "dense_ffn", "attention") == ["int4_g128", "bf16"]


def test_named_modules_win_over_the_linear_ones() -> None:
    found = read(groups((["Linear"], INT4), (["re:.*self_attn.*"], INT8)))
    assert formats(found, "dense_ffn", "attention") == ["int4_g128", "int8_channel"]


def test_experts_apart_from_dense_layers() -> None:
    found = read(groups((["re:.*mlp.experts.*"], INT4), (["Linear"], INT8)), EXPERTS)
    assert formats(found, "routed_experts", "dense_ffn", "attention") == ["int4_g128", "int8_channel", "int8_channel"]


def test_a_head_that_is_not_left_out_is_quantised() -> None:
    assert formats(read(groups((["Linear"], INT4), ignore=[])), "head") == ["int4_g128"]
    assert formats(read({"quant_method": "gptq", "bits": 4, "group_size": 128, "lm_head": True}), "head") == ["gptq"]


@pytest.mark.parametrize("method", ["ignored_layers", "modules_to_not_convert"])
def test_modules_of_every_layer_by_name(method: str) -> None:
    found = read({"quant_method": "fp8", method: names("mlp")})
    assert formats(found, "dense_ffn", "attention") == ["bf16", "fp8_e4m3"]
    assert not found.file_warnings


def test_every_expert_by_name() -> None:
    listed = [name for n in range(4) for name in names(f"mlp.experts.{n}", range(1, LAYERS))]
    found = read({"quant_method": "fp8", "ignored_layers": listed}, EXPERTS)
    assert formats(found, "routed_experts", "dense_ffn") == ["bf16", "fp8_e4m3"]
    some = read({"quant_method": "fp8", "ignored_layers": listed[:-1]}, EXPERTS)
    assert formats(some, "routed_experts") == ["fp8_e4m3"]
    assert "routed experts in 3 of 3 layers" in some.file_warnings[0]


@pytest.mark.parametrize(
    ("quantization", "said"),
    [
        ({"quant_method": "fp8", "ignored_layers": ["model.layers.0.mlp.gate_proj"]}, "dense ffn in 1 of 4 layers"),
        ({"quant_method": "fp8", "ignored_layers": names("mlp", range(2))}, "dense ffn in 2 of 4 layers"),
        (groups((["Linear"], INT4), ignore=["lm_head", *names("mlp", range(2))]), "dense ffn in 2 of 4 layers"),
        ({"quant_method": "gptq", "bits": 4, "dynamic": {"-:.*gate.*": {}}}, "dense ffn in 4 of 4 layers"),
        ({"quant_method": "gptq", "bits": 4, "dynamic": {r"+:.*layers\.[01]\..*attn.*": {"bits": 8}}},
         "attention in 2 of 4 layers"),
        ({"quant_method": "auto-round", "bits": 4, "extra_config": {"model.layers.0.mlp": {"bits": 16}}},
         "dense ffn in 1 of 4 layers"),
        ({"bits": 4, "group_size": 64, "model.layers.0.mlp.down_proj": {"group_size": 64, "bits": 8}},
         "dense ffn in 1 of 4 layers"),
        ({"quant_method": "fp8", "ignored_layers": ["re:(a+)+$"]}, "1 patterns of module names are not judged"),
        ({"quant_method": "fp8", "ignored_layers": ["re:["]}, "1 patterns of module names are not judged"),
        (groups((["Linear"], INT8)) | {"format": "sparse-24-bitmask"}, "2:4 sparsity"),
    ],
)  # fmt: skip
def test_what_is_not_told_apart_is_said(quantization: dict[str, Any], said: str) -> None:
    assert any(said in warning for warning in read(quantization).file_warnings)


def test_modules_of_mlx_with_bits_of_their_own() -> None:
    own = {name: {"group_size": 64, "bits": 8} for name in names("mlp")} | {"lm_head": {"group_size": 64, "bits": 6}}
    found = read({"bits": 4, "group_size": 64, **own})
    assert formats(found, "dense_ffn", "attention", "head") == ["mlx8_g64", "mlx4_g64", "mlx6_g64"]
    off = read({"bits": 4, "group_size": 64, **dict.fromkeys(names("mlp"), False)})
    assert formats(off, "dense_ffn", "attention") == ["bf16", "mlx4_g64"]


@pytest.mark.parametrize(
    ("rule", "expected"), [("-:.*mlp.*", "bf16"), ("+:.*mlp.*", "gptq_int8"), (".*mlp.*", "gptq_int8")]
)
def test_rules_of_gptq_for_a_whole_role(rule: str, expected: str) -> None:
    found = read({"quant_method": "gptq", "bits": 4, "dynamic": {rule: {"bits": 8}}})
    assert formats(found, "dense_ffn", "attention") == [expected, "gptq"]


def test_bitsandbytes_that_is_switched_off() -> None:
    assert read({"quant_method": "bitsandbytes", "load_in_4bit": False, "load_in_8bit": False}).checkpoint is None


def test_bitsandbytes_before_it_had_a_name() -> None:
    assert formats(read({"load_in_8bit": True, "llm_int8_threshold": 6.0}), "attention") == ["bnb_int8"]
    assert formats(read({"load_in_4bit": True, "bnb_4bit_quant_type": "nf4"}), "attention") == ["nf4"]


def test_hostile_patterns_are_bounded() -> None:
    layers = read_config({**DENSE, "num_hidden_layers": 2000})
    hostile = {"quant_method": "fp8", "ignored_layers": [f"re:.*a.*b.*{i}.*x" for i in range(2000)]}
    start = time.process_time()
    found = read(hostile, {**DENSE, "num_hidden_layers": 2000})
    assert time.process_time() - start < 60
    assert found.num_layers == layers.num_layers
    assert "not judged" in found.file_warnings[0]


# ---- modelopt: an algorithm for each layer ----


def mixed(layers: dict[str, str], *, nested: bool = False) -> dict[str, Any]:
    listed = {name: {"quant_algo": algo, "group_size": 16} for name, algo in layers.items()}
    said = {"quant_algo": "MIXED_PRECISION", "kv_cache_quant_algo": "FP8", "quantized_layers": listed}
    return {"quant_method": "modelopt", **({"quantization": said} if nested else said)}


def of_experts(algo: str, first: int = 1) -> dict[str, str]:
    return {
        f"model.layers.{i}.mlp.experts.{e}.{leaf}": algo for i in range(first, LAYERS) for e in range(4) for leaf in FFN
    }


def of_attention(algo: str, layers: int = LAYERS) -> dict[str, str]:
    return {f"model.layers.{i}.self_attn.{q}_proj": algo for i in range(layers) for q in "qkvo"}


@pytest.mark.parametrize("nested", [False, True])
def test_mixed_precision_by_role(nested: bool) -> None:
    found = read(mixed(of_experts("NVFP4") | of_attention("FP8"), nested=nested), EXPERTS)
    assert formats(found, "routed_experts", "attention", "dense_ffn", "head") == ["nvfp4", "fp8_e4m3", "bf16", "bf16"]
    assert found.checkpoint is not None
    assert found.checkpoint.kv_cache_format == "fp8_e4m3"
    assert not found.file_warnings


def test_mixed_precision_that_differs_between_layers_is_said() -> None:
    found = read(mixed(of_experts("NVFP4") | of_attention("FP8", 2)), EXPERTS)
    assert formats(found, "routed_experts", "attention") == ["nvfp4", "fp8_e4m3"]
    assert any("attention in 2 of 4 layers" in warning for warning in found.file_warnings)


@pytest.mark.parametrize(
    ("layers", "said"), [({}, "without quantized_layers"), (of_attention("W2A1"), "'W2A1' of model.layers.0.self_attn")]
)
def test_mixed_precision_that_is_not_understood(layers: dict[str, str], said: str) -> None:
    with pytest.raises(SpecError, match=said):
        read(mixed(layers), EXPERTS)


# ---- 2:4 sparsity of Marlin ----


@pytest.mark.parametrize(
    ("quantization", "bits"),
    [
        (groups((["Linear"], INT4)) | {"format": "marlin-24"}, 8 * 50 / 128),
        ({"quant_method": "gptq", "bits": 4, "group_size": 128, "checkpoint_format": "marlin_24"}, 8 * 50 / 128),
        ({"quant_method": "gptq", "bits": 4, "group_size": -1, "checkpoint_format": "marlin_24"}, 3.0),
    ],
)
def test_half_of_the_values_and_where_they_stood(quantization: dict[str, Any], bits: float) -> None:
    found = read(quantization)
    assert found.checkpoint is not None
    stored = get_format(found.checkpoint.format, use="weights")
    assert 8 * stored.block_bytes / stored.block_elements == bits
    assert not found.file_warnings


def test_marlin_knows_no_other_sparse_formats() -> None:
    with pytest.raises(SpecError, match="8 bits"):
        read({"quant_method": "gptq", "bits": 8, "group_size": 128, "checkpoint_format": "marlin_24"})

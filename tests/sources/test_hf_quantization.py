"""Every dialect of ``quantization_config``: what it is read as, what is refused, and the ways past a refusal."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from published import FACTS

from kvplan import load_model, plan
from kvplan.errors import SpecError
from kvplan.planning.weights import rank_weights, weight_format
from kvplan.sources import find_model
from kvplan.sources.hf.read import read_config
from kvplan.spec.formats import get_format
from kvplan.spec.model import ModelSpec

LLAMA: dict[str, Any] = {
    "model_type": "llama", "num_hidden_layers": 4, "hidden_size": 512, "intermediate_size": 1024, "vocab_size": 1024,
    "num_attention_heads": 8, "num_key_value_heads": 4, "max_position_embeddings": 8192, "torch_dtype": "float16",
}  # fmt: skip


def read(quantization: dict[str, Any], **more: Any) -> ModelSpec:
    return read_config({**LLAMA, "quantization_config": quantization}, **more)


def int4(**changes: Any) -> dict[str, Any]:
    """One compressed-tensors group of 4-bit integers."""
    weights = {"num_bits": 4, "type": "int", "strategy": "channel", "symmetric": True, "group_size": None, **changes}
    return {
        "quant_method": "compressed-tensors", "format": "pack-quantized", "ignore": ["lm_head"],
        "config_groups": {"group_0": {"targets": ["Linear"], "weights": weights}},
    }  # fmt: skip


def quark(**weight: Any) -> dict[str, Any]:
    return {"quant_method": "quark", "exclude": ["lm_head"], "global_quant_config": {"weight": weight}}


def torchao(name: str, **data: Any) -> dict[str, Any]:
    return {"quant_method": "torchao", "quant_type": {"default": {"_type": name, "_data": data}}}


def auto_round(**changes: Any) -> dict[str, Any]:
    return {"quant_method": "auto-round", "bits": 4, "group_size": 128, "sym": True, **changes}


@pytest.mark.parametrize(
    ("quantization", "stored"),
    [
        ({"quant_method": "awq", "bits": 4, "group_size": 32}, "awq_g32"),
        ({"quant_method": "awq", "bits": 4, "group_size": -1}, "awq_channel"),
        ({"quant_method": "awq_marlin", "bits": 4, "group_size": 128}, "awq"),
        ({"quant_method": "gptq", "bits": 4, "group_size": -1}, "gptq4_channel"),
        ({"quant_method": "gptq", "bits": 8, "group_size": 32}, "gptq8_g32"),
        ({"quant_method": "gptq", "bits": 8, "group_size": -1}, "gptq8_channel"),
        ({"quant_method": "gptq", "bits": 3, "group_size": 128}, "gptq3_g128"),
        ({"quant_method": "gptq", "bits": 2, "group_size": 64}, "gptq2_g64"),
        ({"quant_method": "gptq_marlin", "bits": 4, "group_size": 128}, "gptq"),
        (int4(), "int4_channel"),
        (int4(symmetric=False), "gptq4_channel"),
        (int4(strategy="group", group_size=64, symmetric=False), "int4_g64_zp"),
        ({"quant_method": "mxfp8", "weight_block_size": [1, 32]}, "mxfp8"),
        (auto_round(), "gptq"),
        (auto_round(quant_method="intel/auto-round"), "gptq"),
        (auto_round(packing_format="auto_round:auto_awq"), "awq"),
        (auto_round(bits=2, group_size=32), "gptq2_g32"),
        (auto_round(data_type="mx_fp", group_size=32), "mxfp4"),
        (auto_round(data_type="mx_fp8", bits=8, group_size=32), "mxfp8"),
        (auto_round(data_type="nv_fp4", group_size=16), "nvfp4"),
        (auto_round(data_type="fp", bits=8, group_size=-1), "fp8_channel"),
        (auto_round(data_type="fp8", bits=8, group_size=[128, 128]), "fp8_block"),
        (quark(dtype="fp8_e4m3", qscheme="per_tensor"), "fp8_e4m3"),
        (quark(dtype="fp8_e4m3", qscheme="per_channel"), "fp8_channel"),
        (quark(dtype="fp8_e4m3", qscheme="per_block", block_size=[128, 128]), "fp8_block"),
        (quark(dtype="fp4", qscheme="per_group", group_size=32), "mxfp4"),
        (quark(dtype="uint4", qscheme="per_group", group_size=128), "int4_g128_zp"),
        (quark(dtype="int8", qscheme="per_channel"), "int8_channel"),
        (torchao("Int4WeightOnlyConfig", group_size=64), "int4_g64_zp"),
        (torchao("Int8WeightOnlyConfig"), "int8_channel"),
        (torchao("Float8DynamicActivationFloat8WeightConfig"), "fp8_e4m3"),
        (torchao("Float8DynamicActivationFloat8WeightConfig", granularity=[{"_type": "PerRow"}]), "fp8_channel"),
        ({"quant_method": "torchao", "quant_type": "int8_weight_only"}, "int8_channel"),
        ({"quant_method": "hqq", "quant_config": {"weight_quant_params": {"nbits": 4}}}, "int4_g64_zp"),
        ({"quant_method": "exl3", "bits": 4.0, "head_bits": 6}, "exl3_4.00bpw"),
        ({"quant_method": "bitnet", "quantization_mode": "offline"}, "bitnet"),
        ({"quant_method": "fp_quant", "forward_dtype": "mxfp4"}, "mxfp4"),
        ({"quant_method": "w8a8_int8"}, "int8_channel"),
        ({"quant_method": "w8a8_fp8"}, "fp8_channel"),
        ({"quant_method": "modelopt", "quant_algo": "W4A8_AWQ"}, "int4_g128"),
        ({"quant_method": "modelopt", "quant_algo": "W4A16_AWQ", "group_size": 64}, "int4_g64"),
        ({"quant_method": "modelopt", "quant_algo": "MXFP4"}, "mxfp4"),
        ({"quant_method": "modelopt", "quant_algo": "W8A8_SQ_PER_CHANNEL"}, "int8_channel"),
    ],
)  # fmt: skip
def test_methods(quantization: dict[str, Any], stored: str) -> None:
    model = read(quantization)
    assert model.checkpoint is not None
    assert model.checkpoint.format == stored
    assert {"attention", "dense_ffn"} <= set(model.checkpoint.roles)
    assert model.file_warnings == ()


@pytest.mark.parametrize(
    ("name", "bits"),
    [
        ("gptq2_g32", 2 + 18 / 32), ("gptq3_g128", 3 + 19 / 128), ("gptq8_g32", 8 + 24 / 32), ("awq_g32", 4 + 20 / 32),
        ("int4_channel", 4 + 16 / 4096), ("bitnet", 2.0), ("exl3_4.25bpw", 4.25 + 32 / 4096),
        ("exl3-6.0", 6 + 32 / 4096),
    ],
)  # fmt: skip
def test_bits_of_a_square_matrix(name: str, bits: float) -> None:
    assert 8 * get_format(name, use="weights").tensor_bytes(4096 * 4096, 4096) == bits * 4096 * 4096


@pytest.mark.parametrize(
    ("said", "stored"), [("FP8", "fp8_e4m3"), ("INT8", "int8"), ("NVFP4", "nvfp4"), ("none", None), (None, None)]
)
def test_caches_that_modelopt_quantises(said: str | None, stored: str | None) -> None:
    model = read({"quant_method": "modelopt", "quant_algo": "FP8", "kv_cache_quant_algo": said})
    assert model.checkpoint is not None
    assert model.checkpoint.kv_cache_format == stored


def test_the_cache_alone_may_be_quantised() -> None:
    model = read({"quant_method": "modelopt", "quant_algo": None, "kv_cache_quant_algo": "FP8"})
    assert model.checkpoint is not None
    assert (model.checkpoint.roles, model.checkpoint.kv_cache_format) == ((), "fp8_e4m3")


@pytest.mark.parametrize(
    "quantization",
    [
        {"quant_method": "vptq"}, {"quant_method": "aqlm"}, {"quant_method": "gptq", "bits": 5, "group_size": 128},
        {"quant_method": "awq", "bits": 3, "group_size": 128}, auto_round(data_type="fp", bits=4),
        {"quant_method": "hqq", "nbits": 9}, quark(dtype="fp5", qscheme="per_tensor"), torchao("UnheardOf"),
        {"quant_method": "exl3", "bits": "four"}, {"quant_method": "modelopt", "quant_algo": "FP5"},
        {"quant_method": "modelopt", "quant_algo": "FP8", "kv_cache_quant_algo": "FP5"},
        {"quant_method": "fp8", "weight_block_size": [7, 7]}, int4(num_bits=3), {"bits": 9, "group_size": 64},
    ],
)  # fmt: skip
def test_what_is_not_understood_has_a_way_past(quantization: dict[str, Any]) -> None:
    with pytest.raises(SpecError, match=r"quantization_config: .* not understood") as caught:
        read(quantization)
    assert "--weights FORMAT" in (caught.value.hint or "")
    model = read(quantization, weights_told=True)
    assert model.checkpoint is None
    assert any("not understood" in warning for warning in model.file_warnings)


def test_weights_that_the_user_describes_go_past_an_unknown_method(tmp_path: Path) -> None:
    path = tmp_path / "odd.json"
    path.write_text(json.dumps({**LLAMA, "quantization_config": {"quant_method": "vptq"}}))
    with pytest.raises(SpecError, match="'vptq' is not understood"):
        plan(str(path), gpu="h100-sxm")
    with pytest.raises(SpecError, match="'vptq' is not understood"):
        plan(str(path), gpu="h100-sxm", weights="auto")
    made = plan(str(path), gpu="h100-sxm", weights="fp8")
    assert any("'vptq' is not understood" in warning for warning in made.warnings)
    assert made.memory is not None
    plain = plan(str(path), gpu="h100-sxm", weights="fp16").memory
    assert plain is not None
    assert made.memory[0].weights_bytes < plain[0].weights_bytes


def test_headers_go_past_an_unknown_method(llama_folder: Callable[..., Path]) -> None:
    folder = llama_folder(quantization_config={"quant_method": "vptq"})
    model = find_model(str(folder))
    assert model.checkpoint is not None
    assert sum(sum(by.values()) for by in model.checkpoint.stored.values()) == 2 * model.parameters
    assert any("'vptq' is not understood" in warning for warning in model.file_warnings)
    (folder / "model.safetensors").unlink()
    with pytest.raises(SpecError, match="'vptq' is not understood"):
        find_model(str(folder))


def test_exl3_files_hold_what_the_formats_give(checkpoints: Any, tmp_path: Path) -> None:
    """Trellis, signs of inputs and of outputs, counted from the configuration and from the headers."""
    quantization = {"quant_method": "exl3", "bits": 4.0, "head_bits": 6}
    config = {**LLAMA, "tie_word_embeddings": False, "quantization_config": quantization}
    tensors = []
    for name, dtype, shape in checkpoints.llama_tensors(config, "F16"):
        if name.endswith("_proj.weight") or name == "lm_head.weight":
            stem, bits = name.removesuffix("weight"), 6 if "lm_head" in name else 4
            rows, columns = shape
            tensors += [
                (stem + "trellis", "I16", (columns // 16, rows // 16, 16 * bits)), (stem + "suh", "F16", (columns,)),
                (stem + "svh", "F16", (rows,)),
            ]  # fmt: skip
        else:
            tensors.append((name, dtype, shape))
    model = find_model(str(checkpoints.write(tmp_path / "exl3", config, tensors)))
    assert model.checkpoint is not None
    held = {role: sum(by.values()) for role, by in model.checkpoint.stored.items()}
    computed = find_model(str(tmp_path / "exl3" / "config.json"))
    rows = rank_weights(computed, computed, weight_format(computed, "auto"), tp=1, vocab_rows=1024)
    assert {row.role: row.num_bytes for row in rows} == held
    assert sum(model.checkpoint.stored_parameters.values()) == computed.parameters
    assert not re.search("parameters", " ".join(plan(model, engine="exllamav3").warnings))


def test_a_mean_between_two_quarters_is_rounded_up_and_said() -> None:
    model = read({"quant_method": "exl3", "bits": 3.1, "head_bits": 6})
    assert model.checkpoint is not None
    assert model.checkpoint.format == "exl3_3.25bpw"
    assert "3.1 bits a weight are counted as 3.25" in model.file_warnings[0]


# ---- published files ----


def test_nvfp4_experts_beside_an_fp8_rest() -> None:
    """DeepSeek-V4-Flash-NVFP4: ``ignore`` is what modelopt left to fp8, not what is stored in 16 bits."""
    own = FACTS["deepseek-v4-flash"]["config"]
    layers = {f"layers.{i}.ffn.experts": {"quant_algo": "NVFP4", "group_size": 16} for i in range(43)}
    said = {
        "quant_algo": "MIXED_PRECISION", "moe_quant_algo": "NVFP4", "quantized_layers": layers,
        "ignore": ["*.attn.*", "*.ffn.shared_experts.*", "head", "mtp.*"],
    }  # fmt: skip
    model = read_config({**own, "quantization_config": {**own["quantization_config"], **said}})
    published = read_config(own)
    assert model.checkpoint is not None
    assert published.checkpoint is not None
    assert model.checkpoint.format == published.checkpoint.format == "fp8_block"
    assert set(model.checkpoint.roles) == set(published.checkpoint.roles)
    assert model.checkpoint.overrides == {"routed_experts": "nvfp4"}
    assert published.checkpoint.overrides == {"routed_experts": "mxfp4"}


@pytest.mark.parametrize(("said", "stored"), [(None, "mxfp4"), ("fp4", "mxfp4"), ("fp8", None)])
def test_experts_of_deepseek_v4_are_four_bits_unless_the_file_says_otherwise(
    said: str | None, stored: str | None
) -> None:
    model = read_config({**FACTS["deepseek-v4-flash"]["config"], "expert_dtype": said})
    assert model.checkpoint is not None
    assert model.checkpoint.overrides.get("routed_experts") == stored


def test_a_pattern_per_layer_is_judged_in_every_layer() -> None:
    """Patterns as modelopt writes them: the attention of every layer, and the gates of two dense ones."""
    config = {**FACTS["deepseek-v3"]["config"], "quantization_config": None}
    layers = config["num_hidden_layers"]
    left = [f"model.layers.{i}.self_attn*" for i in range(layers)] + [f"model.layers.{i}.mlp.gate*" for i in (0, 1)]
    said = {"quant_method": "modelopt", "quant_algo": "NVFP4", "ignore": left}
    model = read_config({**config, "quantization_config": said})
    assert model.checkpoint is not None
    assert "attention" not in model.checkpoint.roles
    assert "routed_experts" in model.checkpoint.roles
    assert not any("not judged" in warning for warning in model.file_warnings)


def test_experts_beside_a_dense_ffn_are_not_part_of_it() -> None:
    """Gemma-4-26B: ``mlp`` is the dense FFN of a layer whose experts stand beside it."""
    config = FACTS["gemma-4-26b-a4b"]["config"]
    left = [f"model.language_model.layers.{i}.{part}*" for i in range(30) for part in ("mlp", "router", "self_attn")]
    said = {"quant_method": "modelopt", "quant_algo": "NVFP4", "ignore": left}
    model = read_config({**config, "quantization_config": said})
    assert model.checkpoint is not None
    assert model.checkpoint.roles == ("routed_experts",)


def test_fuller_files_of_known_models() -> None:
    """Keys that some copies of a file have and others have not."""
    glm, mimo = FACTS["glm-5"]["config"], FACTS["mimo-v2-flash"]["config"]
    assert read_config({**glm, "indexer_rope_interleave": True}).blocks == read_config(glm).blocks
    again = {**mimo, "sliding_window_size": mimo["sliding_window"]}
    assert read_config(again).blocks == read_config(mimo).blocks
    assert read_config({k: v for k, v in again.items() if k != "sliding_window"}).blocks == read_config(mimo).blocks
    with pytest.raises(SpecError, match="sliding_window is 128 and sliding_window_size 64"):
        read_config({**mimo, "sliding_window_size": 64})
    flash = FACTS["deepseek-v4-flash"]["config"]
    named = read_config({**flash, "model_type": "deepseek_ref", "architectures": ["DeepseekV4ForCausalLM"]})
    assert (named.blocks, named.family) == (read_config(flash).blocks, "deepseek_v4")
    inner = {k: v for k, v in FACTS["minimax-m3"]["config"].items() if k not in ("model_type", "architectures")}
    nested = {
        "model_type": "minimax_m3_vl", "architectures": ["MiniMaxM3SparseForConditionalGeneration"],
        "text_config": {**inner, "architectures": ["MiniMaxM3SparseForCausalLM"]},
    }  # fmt: skip
    assert read_config(nested).blocks == load_model("minimax-m3").blocks


def test_the_way_past_an_unknown_field_says_what_it_does(tmp_path: Path) -> None:
    path = tmp_path / "odd.json"
    path.write_text(json.dumps({**LLAMA, "window_of_opportunity": 7}))
    with pytest.raises(SpecError) as caught:
        load_model(str(path))
    assert caught.value.hint == "--assume llama-like reads it without these fields"
    warning = load_model(str(path), assume="llama-like").file_warnings[0]
    assert warning.startswith("read without what is not understood")


def test_the_language_model_of_a_llava_may_leave_its_sizes_to_the_class() -> None:
    """llava-1.5-7b-hf: 7,063,427,072 parameters."""
    text = {"model_type": "llama", "max_position_embeddings": 4096, "vocab_size": 32064}
    vision = {
        "model_type": "clip_vision_model", "hidden_size": 1024, "intermediate_size": 4096, "num_attention_heads": 16,
        "num_hidden_layers": 24, "image_size": 336, "patch_size": 14,
    }  # fmt: skip
    model = read_config({"model_type": "llava", "text_config": text, "vision_config": vision})
    assert (model.num_layers, model.hidden_size) == (32, 4096)
    assert model.parameters == 7_063_427_072
    with pytest.raises(SpecError, match="num_hidden_layers"):
        read_config(text)


def test_a_file_of_mistrals_own_format_is_named_as_such(tmp_path: Path) -> None:
    path = tmp_path / "params.json"
    path.write_text(json.dumps({"dim": 4096, "n_layers": 32, "head_dim": 128, "n_heads": 32, "vocab_size": 32768}))
    with pytest.raises(SpecError, match="Mistral's or Meta's own format"):
        load_model(str(path))

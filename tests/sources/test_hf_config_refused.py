"""Configurations that are refused and how, what may be left out, and files that are spoiled."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from published import FACTS, LLAMA

from kvplan.errors import KvplanError, SpecError
from kvplan.sources.hf.class_defaults import SIZES
from kvplan.sources.hf.read import FAMILIES, read_config

# ---- refusals ----


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"model_type": "mystery"}, "'mystery' is not known"),
        ({"model_type": None}, "no model_type"),
        ({"num_hidden_layers": None}, "num_hidden_layers"),
        ({"num_hidden_layers": 0}, "0 layers"),
        ({"num_hidden_layers": -3}, "-3 layers"),
        ({"num_hidden_layers": 10**9}, "1000000000 layers"),
        ({"num_hidden_layers": "32"}, "whole number"),
        ({"num_hidden_layers": 1.5}, "whole number"),
        ({"num_hidden_layers": float("nan")}, "whole number"),
        ({"num_hidden_layers": True}, "whole number"),
        ({"num_hidden_layers": float("inf")}, "whole number"),
        ({"rope_scaling": {"type": "yarn", "factor": float("inf")}}, "rope_scaling"),
        ({"num_attention_heads": 30}, "do not divide"),
        ({"num_key_value_heads": 5}, "multiple"),
        ({"num_key_value_heads": 0}, "kv_heads must be above 0"),
        ({"hidden_size": 2**60}, "absurdly large"),
        ({"sliding_window": 0}, "sliding_window"),
        ({"sliding_window": 4096, "layer_types": ["full_attention"] * 3}, "3 entries for 4 layers"),
        ({"sliding_window": 4096, "layer_types": ["full_attention"] * 5}, "5 entries for 4 layers"),
        ({"num_experts": 4, "num_experts_per_tok": 2, "mlp_layer_types": ["sparse"] * 3}, "3 entries for 4 layers"),
        ({"num_experts": 4, "num_experts_per_tok": 2, "moe_layer_freq": [1] * 5}, "5 entries for 4 layers"),
        ({"num_experts": 10**12, "num_experts_per_tok": 2}, "1,000,000,000,000 experts"),
        ({"sliding_window": 4096, "layer_types": ["strange_attention"] * 4}, "strange_attention"),
        ({"layer_types": ["sliding_attention"] * 4}, "no sliding_window"),
        ({"max_position_embeddings": -1}, "max_position_embeddings"),
        ({"quantization_config": {"quant_method": "magic"}}, "magic"),
        ({"torch_dtype": "int3"}, "int3"),
        ({"attention_bias": "yes"}, "true or false"),
        ({"cross_cache_window": 512}, "cross_cache_window"),
        ({"kv_lora_rank": 512}, "kv_lora_rank"),
        ({"linear_attn_config": {"kda_layers": [1]}}, "linear_attn_config"),
        ({"vocab_size": None}, "vocab_size"),
    ],
)  # fmt: skip
def test_refusals(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(SpecError) as caught:
        read_config({**LLAMA, **changes}, where="a/config.json")
    assert words in str(caught.value)
    assert str(caught.value).startswith("a/config.json")
    assert "\n" not in str(caught.value)


def test_an_unknown_family_lists_what_may_matter_and_the_way_out() -> None:
    data = {**LLAMA, "model_type": "mystery", "latent_cache_dim": 99}
    with pytest.raises(SpecError, match="latent_cache_dim") as caught:
        read_config(data)
    assert "--assume llama-like" in (caught.value.hint or "")
    assumed = read_config(data, assume="llama-like")
    assert [block.mixers[0].kind for block in assumed.blocks.values()] == ["full"]
    assert len(assumed.layers) == 4


def test_harmless_fields_pass() -> None:
    extra = {
        "attention_dropout": 0.0, "use_cache": True, "pretraining_tp": 1, "initializer_range": 0.02, "rope_theta": 5e5,
        "bos_token_id": 1, "rms_norm_eps": 1e-5, "hidden_act": "silu", "mlp_bias": False, "head_dim": 128,
        "attn_logit_softcapping": None, "transformers_version": "4.43", "cache_implementation": "hybrid",
        "sliding_window": None, "index_head_dim": None,
    }  # fmt: skip
    assert read_config({**LLAMA, **extra}) == read_config(LLAMA)


@pytest.mark.parametrize("data", [None, [], "text", 5, {}, {"model_type": "llama"}])
def test_not_a_configuration(data: Any) -> None:
    with pytest.raises(SpecError):
        read_config(data)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=6,
)


@settings(max_examples=300, deadline=None)
@given(model=st.sampled_from(sorted(FACTS)), value=JSON, pick=st.integers(0, 10**6))
def test_a_spoiled_file_is_read_or_refused(model: str, value: Any, pick: int) -> None:
    """Any value under any key: a model, or an error of ours; never another exception."""
    data = deepcopy(FACTS[model]["config"])
    level = data["text_config"] if "text_config" in data and pick % 3 else data
    level[sorted(level)[pick % len(level)]] = value
    try:
        said = read_config(data).id
    except KvplanError as error:
        said = str(error)
    assert said.isprintable()


def test_names_of_families_are_strings_of_transformers() -> None:
    assert all(name == name.strip() and " " not in name for name in FAMILIES)


def _dropped_defaults() -> list[tuple[str, str]]:
    """(model, key) for every size in a published file that equals its class's default."""
    found = []
    for name, fact in FACTS.items():
        text = fact["config"].get("text_config", fact["config"])
        kind = text.get("model_type", fact["config"].get("model_type"))
        found += [(name, key) for key, value in SIZES.get(kind, {}).items() if text.get(key) == value]
    return found


@pytest.mark.parametrize(("name", "key"), _dropped_defaults())
def test_a_key_that_equals_its_class_default_may_be_left_out(name: str, key: str) -> None:
    data = deepcopy(FACTS[name]["config"])
    whole = read_config(deepcopy(data))
    data.get("text_config", data).pop(key)
    assert read_config(data).blocks == whole.blocks


def test_a_latent_row_without_its_rotary_part_is_refused() -> None:
    kimi = deepcopy(FACTS["kimi-linear-48b-a3b"]["config"]) | {"model_type": "kimi_k3"}
    del kimi["qk_rope_head_dim"]
    with pytest.raises(SpecError, match="qk_rope_head_dim"):
        read_config(kimi)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"torch_dtype": "float7"}, "dtype 'float7' is not understood"),
        ({"dtype": "bfloat16", "torch_dtype": "float7"}, "dtype 'float7' is not understood"),
        ({"torch_dtype": False}, "dtype False is not understood"),
        ({"quantization_config": {"quant_method": "gptq", "bits": 0}}, "GPTQ with 0 bits"),
        ({"quantization_config": {"quant_method": "gptq", "bits": 4, "group_size": 0}}, "groups of 0"),
        ({"quantization_config": {"quant_method": "awq", "bits": 0}}, "AWQ with 0 bits"),
        ({"rope_scaling": {"type": "yarn", "factor": "4"}}, "factor of the rope rule should be a number"),
        ({"model_type": "qwen3_moe", "num_experts": -8}, "num_experts must not be below 0"),
        ({"model_type": "qwen3_moe", "decoder_sparse_step": -1}, "decoder_sparse_step must not be below 0"),
        ({"model_type": "qwen3_moe", "decoder_sparse_step": 0}, "decoder_sparse_step must be above 0"),
        ({"model_type": "qwen3_moe", "num_experts_per_tok": -2}, "num_experts_per_tok must not be below 0"),
        ({"model_type": "qwen3_moe", "mlp_only_layers": ["x"]}, "mlp_only_layers should be a whole number"),
    ],
)
def test_values_that_no_model_has_are_refused(changed: dict[str, Any], said: str) -> None:
    config = {
        "model_type": "llama", "hidden_size": 256, "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": 2, "intermediate_size": 512, "vocab_size": 1000, "num_experts": 8,
        "num_experts_per_tok": 2, "moe_intermediate_size": 64, "decoder_sparse_step": 1,
    }  # fmt: skip
    with pytest.raises(SpecError) as error:
        read_config(config | changed)
    assert said in error.value.message

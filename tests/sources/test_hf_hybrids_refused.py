"""Hybrid and recurrent families: configurations that must be refused, and how."""

from __future__ import annotations

import copy
import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from published import FACTS

from kvplan.errors import KvplanError, SpecError
from kvplan.sources.hf.hybrids import HYBRIDS
from kvplan.sources.hf.keys import Config, Layers

MINE = [name for name, fact in FACTS.items() if fact["config"]["model_type"] in HYBRIDS]


def config(name: str) -> dict[str, Any]:
    """A copy of a published configuration: the level that holds the layers."""
    whole = copy.deepcopy(FACTS[name]["config"])
    text: dict[str, Any] = whole.get("text_config", whole)
    return text


def read(data: dict[str, Any]) -> Layers:
    return HYBRIDS[data["model_type"]](Config(data))


def nested(name: str, key: str, **values: Any) -> dict[str, Any]:
    data = config(name)
    return {key: data[key] | values}


def short(name: str, key: str) -> dict[str, Any]:
    return {key: config(name)[key][:-1]}


BAD: list[tuple[str, dict[str, Any], str]] = [
    ("qwen3.5-27b", short("qwen3.5-27b", "layer_types"), "layer_types has 63 entries for 64 layers"),
    ("qwen3.5-27b", {"layer_types": ["linear_attention"] * 65}, "65 entries for 64"),
    ("qwen3.5-27b", {"layer_types": ["linear_attention"] * 63 + ["mystery"]}, "'mystery'"),
    ("qwen3.5-27b", {"layer_types": None, "full_attention_interval": None}, "which layers have attention"),
    ("qwen3.5-27b", {"layer_types": None, "full_attention_interval": 0}, "full_attention_interval"),
    ("qwen3.5-27b", {"linear_conv_kernel_dim": 0}, "linear_conv_kernel_dim must be above 0"),
    ("qwen3.5-27b", {"linear_num_value_heads": 40}, "multiple of key_heads"),
    ("qwen3.5-27b", {"mtp_num_hidden_layers": 10**9}, "at most 64"),
    ("qwen3.5-27b", {"num_hidden_layers": 10**9, "layer_types": None}, "more than any model"),
    ("kimi-linear-48b-a3b", nested("kimi-linear-48b-a3b", "linear_attn_config", full_attn_layers=[0, 4]), "layer 0"),
    ("kimi-linear-48b-a3b", nested("kimi-linear-48b-a3b", "linear_attn_config", full_attn_layers=[4, 28]), "layer 28"),
    ("kimi-linear-48b-a3b", nested("kimi-linear-48b-a3b", "linear_attn_config", full_attn_layers=[4, 4]), "twice"),
    ("kimi-linear-48b-a3b", nested("kimi-linear-48b-a3b", "linear_attn_config", full_attn_layers=[4]), "neither in"),
    ("kimi-linear-48b-a3b", nested("kimi-linear-48b-a3b", "linear_attn_config", full_attn_layers=[3, 4]), "in both"),
    ("kimi-linear-48b-a3b", nested("kimi-linear-48b-a3b", "linear_attn_config", windows=[4]), "'windows'"),
    ("kimi-linear-48b-a3b", nested("kimi-linear-48b-a3b", "linear_attn_config", short_conv_kernel_size=0), "above 0"),
    ("kimi-linear-48b-a3b", {"linear_attn_config": None}, "which layers have attention"),
    ("kimi-linear-48b-a3b", {"linear_attn_config": [4]}, "should be an object"),
    ("kimi-linear-48b-a3b", {"layer_types": ["linear_attention"] * 27}, "layer 3 (from 0)"),
    ("glm-5.3-flash", nested("glm-5.3-flash", "linear_attn_config", full_attn_layers=[45]), "run from 0 to 44"),
    ("glm-5.3-flash", {"mlp_layer_types": ["dense"] * 44}, "44 entries for 45"),
    ("glm-5.3-flash", {"mlp_layer_types": ["dense"] * 45}, "layer 3 (from 0)"),
    ("glm-5.3-flash", {"indexer_types": ["some"] * 45}, "'some'"),
    ("glm-5.3-flash", {"indexer_types": None, "index_topk_pattern": 7}, "index_topk_pattern"),
    ("glm-5.3-flash", {"indexer_types": None, "index_topk_pattern": "FS"}, "2 entries for 45"),
    ("minimax-text-01", short("minimax-text-01", "attn_type_list"), "79 entries for 80"),
    ("minimax-text-01", {"attn_type_list": [2] * 80}, "layer kind 2"),
    ("minimax-text-01", {"attn_type_list": [True] * 80}, "layer kind True"),
    ("nemotron-h-8b", {"hybrid_override_pattern": "M-*"}, "3 entries for 52"),
    ("nemotron-h-8b", {"hybrid_override_pattern": "M" * 51 + "X"}, "'X'"),
    ("nemotron-h-8b", {"hybrid_override_pattern": None}, "not described"),
    ("nemotron-h-8b", {"hybrid_override_pattern": 52}, "should be a string"),
    ("nemotron-h-8b", {"conv_kernel": 0}, "conv_kernel must be above 0"),
    ("nemotron-h-8b", {"n_groups": 7}, "multiple of groups"),
    ("nemotron-3-ultra-550b-a55b", {"layers_block_type": []}, "is empty"),
    ("nemotron-3-ultra-550b-a55b", {"mtp_layers_block_type": ["conv"]}, "'conv'"),
    ("jamba-1.5-mini", {"attn_layer_offset": 8}, "attn_layer_offset 8 is not below"),
    ("jamba-1.5-mini", {"expert_layer_offset": 2}, "expert_layer_offset 2 is not below"),
    ("jamba-1.5-mini", {"layers_block_type": ["mamba"] * 32}, "layer 4 (from 0)"),
    ("jamba-1.5-mini", {"mamba_dt_rank": "automatic"}, "mamba_dt_rank"),
    ("jamba-1.5-mini", {"mamba_expand": float("nan")}, "mamba_expand"),
    ("granite-4.0-h-tiny", {"layer_types": None}, "no layer_types"),
    ("granite-4.0-h-tiny", {"mamba_d_head": 60}, "inner size 3072"),
    ("granite-4.0-h-tiny", {"mamba_d_conv": 0}, "mamba_d_conv must be above 0"),
    ("mamba2-2.7b", {"num_heads": 79}, "inner size 5120"),
    ("falcon-mamba-7b", {"conv_kernel": 0}, "conv_kernel must be above 0"),
    ("zamba2-2.7b", {"hybrid_layer_ids": [54]}, "names layer 54"),
    ("zamba2-2.7b", {"hybrid_layer_ids": None}, "no hybrid_layer_ids"),
    ("zamba2-2.7b", {"num_mem_blocks": 0}, "num_mem_blocks must be above 0"),
    ("rwkv-7-g1-7.2b", {"head_dim": 96}, "heads of 96"),
    ("rwkv-7-g1-7.2b", {"attn": {"layers": [3]}}, "attn"),
    ("plamo-2-1b", {"mamba_step": 1}, "at least 2"),
    ("lfm2-8b-a1b", {"conv_L_cache": 0}, "conv_L_cache must be above 0"),
    ("lfm2-8b-a1b", {"layer_types": ["conv"] * 23}, "23 entries for 24"),
    ("recurrentgemma-2b", {"block_types": []}, "is empty"),
    ("recurrentgemma-2b", {"lru_width": 2561}, "do not divide"),
    ("recurrentgemma-2b", {"attention_window_size": 0}, "attention_window_size must be above 0"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "change", "message"), BAD, ids=lambda v: str(v)[:40])
def test_bad_configurations_are_refused(name: str, change: dict[str, Any], message: str) -> None:
    with pytest.raises(SpecError, match=re.escape(message)) as caught:
        read(config(name) | change)
    assert "\n" not in str(caught.value)


HOSTILE = st.sampled_from(
    [0, -1, 1, 3, 2**47, 2**70, 0.5, float("nan"), "", "x", True, [], [1], ["x"], [[]], {}, {"a": 1}]
)


@settings(max_examples=400, deadline=None)
@given(name=st.sampled_from(MINE), data=st.data(), value=HOSTILE)
def test_one_hostile_value_never_escapes(name: str, data: st.DataObject, value: Any) -> None:
    changed = config(name)
    changed[data.draw(st.sampled_from(sorted(k for k in changed if k != "model_type")))] = value
    try:
        found = read(changed)
    except KvplanError:
        return
    for block in found.blocks.values():
        for mixer in block.mixers:
            assert all(s.head_dim > 0 and s.heads > 0 for s in mixer.streams())
            assert all(s.elements >= 0 for s in mixer.states())

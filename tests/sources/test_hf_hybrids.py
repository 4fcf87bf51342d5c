"""Hybrid and recurrent families: kinds, states and parameter counts against the published facts."""

from __future__ import annotations

import copy
from collections import Counter
from typing import Any

import pytest
from published import FACTS

from kvplan.errors import SpecError
from kvplan.sources.hf.hybrids import HYBRIDS
from kvplan.sources.hf.keys import Config, Layers
from kvplan.sources.hf.known import CLASS_DEFAULTS, TIED
from kvplan.sources.hf.read import read_config
from kvplan.spec.model import ModelSpec

RECURRENT = {"linear", "mamba", "conv", "rglru"}
MINE = [i for i, f in FACTS.items() if f["config"]["model_type"] in HYBRIDS]

KIND_OF = {
    "gated_delta_net": "linear", "kda": "linear", "lightning": "linear", "rwkv": "linear", "mamba1": "mamba",
    "mamba2": "mamba", "short_conv": "conv", "rg_lru": "rglru", "full": "full", "mla": "mla", "sliding": "sliding",
}  # fmt: skip
"""Cache kinds in the words of the facts."""


def config(name: str) -> dict[str, Any]:
    """A copy of a published configuration: the level that holds the layers, with what it leaves to its class."""
    whole = copy.deepcopy(FACTS[name]["config"])
    text: dict[str, Any] = whole.get("text_config", whole)
    text = {**CLASS_DEFAULTS.get(text["model_type"], {}), **text}
    text.setdefault("tie_word_embeddings", whole.get("tie_word_embeddings"))
    return text


def read(data: dict[str, Any]) -> Layers:
    return HYBRIDS[data["model_type"]](Config(data))


def spec(data: dict[str, Any]) -> ModelSpec:
    found = read(data)
    tied = data.get("tie_word_embeddings")
    return ModelSpec(
        id="m", name="m", family="m", architecture="M", hidden_size=data["hidden_size"], vocab_size=data["vocab_size"],
        blocks=found.blocks, layers=found.layers, tensors=found.tensors, final_norms=found.final_norms,
        draft_layers=found.draft_layers, draft_tensors=found.draft_tensors,
        tie_word_embeddings=data["model_type"] in TIED if tied is None else tied,
    )  # fmt: skip


def kinds_by_layer(found: Layers) -> list[tuple[str, ...]]:
    return [tuple(m.kind for m in found.blocks[name].mixers) for name in found.layers]


def test_every_recurrent_model_of_the_facts_has_a_reader() -> None:
    recurrent = {i for i, f in FACTS.items() if {g["kind"] for g in f["resolved"]["kv_groups"]} & RECURRENT}
    assert len(recurrent) >= 36
    assert recurrent <= set(MINE)


@pytest.mark.parametrize("name", MINE)
def test_layer_kinds_and_sizes_match_the_facts(name: str) -> None:
    want = FACTS[name]["resolved"]
    counts: Counter[str] = Counter()
    slope = 0
    groups = {g["kind"]: g for g in want["kv_groups"]}
    for layers, mixer in spec(config(name)).mixers():
        kind = KIND_OF[mixer.kind]
        counts[kind] += layers
        grown = [s for s in mixer.streams() if s.role != "index"]
        per_token = sum(s.heads * s.head_dim for s in grown)
        assert per_token == groups[kind].get("elems_per_token", 0)
        assert {s.window for s in grown} <= {groups[kind].get("window")}
        if "kv_heads" in groups[kind]:
            assert {(s.heads, s.head_dim) for s in grown} == {(groups[kind]["kv_heads"], groups[kind]["head_dim"])}
        slope += layers * 2 * sum(s.heads * s.head_dim for s in grown if s.window is None)
    assert counts == {g["kind"]: g["layers"] for g in want["kv_groups"]}
    assert slope == want["bytes_per_token_bf16_unbounded"]


@pytest.mark.parametrize("name", MINE)
def test_states_match_the_facts(name: str) -> None:
    found = {"recurrent": 0, "conv": 0}
    for layers, mixer in spec(config(name)).mixers():
        for state in mixer.states():
            found["recurrent" if state.name == "recurrent" else "conv"] += layers * state.elements
    want = FACTS[name]["resolved"].get("state_elems_per_sequence", {"recurrent": 0, "conv": 0})
    if FACTS[name]["config"]["model_type"] == "lfm2_moe":
        # the fact counts conv_L_cache columns, as transformers keeps them; engines keep one less
        kernel = FACTS[name]["config"]["conv_L_cache"]
        want = want | {"conv": want["conv"] * (kernel - 1) // kernel}
    assert found == want


@pytest.mark.parametrize("name", MINE)
def test_number_of_layers(name: str) -> None:
    found = read(config(name))
    assert len(found.layers) == FACTS[name]["resolved"]["num_layers"]


@pytest.mark.parametrize("name", [n for n in MINE if FACTS[n].get("total_params")])
def test_parameters_match_the_published_total(name: str) -> None:
    fact = FACTS[name]
    want = fact["total_params"] - fact.get("tower_params", 0)
    if fact["config"]["model_type"] == "kimi_k3":  # its total is rounded arithmetic and has a vision tower in it
        assert spec(config(name)).parameters == pytest.approx(want, rel=2e-4)
    else:
        assert spec(config(name)).parameters == want


def test_rwkv5_parameters_by_hand() -> None:
    width, wide, layers, vocab = 2560, 8960, 32, 65536
    layer = 5 * width**2 + 8 * width  # time mixing: r, k, v, g, o; 4 mixing, decay, bonus, norm of two
    layer += 2 * width * wide + width**2 + 2 * width + 4 * width  # channel mixing, two norms with bias
    data = config("rwkv-5-world-3b")
    assert spec(data).parameters == layers * layer + vocab * width + 4 * width
    assert spec(data | {"tie_word_embeddings": False}).parameters == pytest.approx(3.06e9, rel=2e-3)


OTHERS: dict[str, tuple[dict[str, Any], int]] = {
    "LFM2-1.2B": (
        {
            "model_type": "lfm2", "hidden_size": 2048, "block_ff_dim": 12288, "block_auto_adjust_ff_dim": True,
            "block_ffn_dim_multiplier": 1.0, "block_multiple_of": 256, "num_hidden_layers": 16, "vocab_size": 65536,
            "num_attention_heads": 32, "num_key_value_heads": 8, "conv_L_cache": 3, "conv_bias": False,
            "full_attn_idxs": [2, 5, 8, 10, 12, 14],
        },
        1_170_340_608,
    ),
    "mamba-2.8b": (
        {
            "model_type": "mamba", "hidden_size": 2560, "num_hidden_layers": 64, "vocab_size": 50280,
            "state_size": 16, "conv_kernel": 4, "expand": 2, "time_step_rank": 160, "use_bias": False,
        },
        2_768_345_600,
    ),
    "Bamba-9B": (
        {
            "model_type": "bamba", "hidden_size": 4096, "num_hidden_layers": 32, "attn_layer_indices": [9, 18, 27],
            "intermediate_size": 14336, "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128256,
            "mamba_n_heads": 128, "mamba_d_head": "auto", "mamba_n_groups": 1, "mamba_d_state": 128,
            "mamba_d_conv": 4, "mamba_expand": 2, "mamba_conv_bias": True,
        },
        9_780_235_392,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", OTHERS)
def test_families_outside_the_facts(name: str) -> None:
    data, total = OTHERS[name]
    assert spec(data).parameters == total


# Draft modules ------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [n for n in MINE if FACTS[n].get("checkpoint_params")])
def test_draft_module_is_what_the_checkpoint_has_besides(name: str) -> None:
    fact, data = FACTS[name], config(name)
    want = fact["checkpoint_params"] - fact["total_params"]
    if data["model_type"] == "qwen3_next":  # its file does not name the module
        assert spec(data).draft_parameters == 0
        data["num_nextn_predict_layers"] = 1
    if data["model_type"] == "glm5_next_text":  # the checkpoint counts the routers' correction buffers
        routers = data["mlp_layer_types"].count("sparse") + 1
        want -= routers * data["n_routed_experts"]
    assert spec(data).draft_parameters == want


def test_draft_layers_cache_like_their_model() -> None:
    glm = read(config("glm-5.3-flash"))
    assert [m.kind for m in glm.blocks[glm.draft_layers[0]].mixers] == ["mla"]
    ultra = read(config("nemotron-3-ultra-550b-a55b"))
    assert ultra.draft_layers == ("attention", "moe")
    twice = read(config("qwen3.5-27b") | {"mtp_num_hidden_layers": 2})
    assert [m.kind for name in twice.draft_layers for m in twice.blocks[name].mixers] == ["full", "full"]


def test_nemotron_draft_pattern_is_not_the_main_list() -> None:
    data = config("nemotron-3-ultra-550b-a55b")
    data["layer_types"] = data.pop("layers_block_type")
    del data["mtp_layers_block_type"]
    assert read(data).draft_layers == ("attention", "moe")
    assert read(data | {"mtp_hybrid_override_pattern": "*E-"}).draft_layers == ("attention", "moe", "mlp")


# Dialects -----------------------------------------------------------------------------------------


def test_kimi_layer_numbers_start_at_one() -> None:
    kinds = kinds_by_layer(read(config("kimi-linear-48b-a3b")))
    assert [i for i, k in enumerate(kinds) if k == ("mla",)] == [3, 7, 11, 15, 19, 23, 26]


def test_glm_layer_numbers_start_at_zero() -> None:
    kinds = kinds_by_layer(read(config("glm-5.3-flash")))
    assert [i for i, k in enumerate(kinds) if k == ("mla",)] == list(range(3, 45, 4))


SAME_LAYERS: dict[str, tuple[str, list[str], dict[str, Any]]] = {
    "interval": ("qwen3.5-27b", ["layer_types"], {}),
    "types": ("qwen3.5-27b", ["full_attention_interval"], {}),
    "kimi types": (
        "kimi-linear-48b-a3b",
        ["linear_attn_config"],
        {
            "layer_types": [
                "full_attention" if i in (4, 8, 12, 16, 20, 24, 27) else "linear_attention" for i in range(1, 28)
            ],
            "linear_num_heads": 32, "linear_head_dim": 128, "linear_conv_kernel_dim": 4,
        },
    ),
    "minimax types": (
        "minimax-text-01",
        ["attn_type_list"],
        {"layer_types": (["linear_attention"] * 7 + ["full_attention"]) * 10},
    ),
    "glm without types": ("glm-5.3-flash", ["layer_types", "indexer_types", "hc_mult"], {}),
    "nemotron words": (
        "nemotron-h-8b",
        ["hybrid_override_pattern", "num_hidden_layers"],
        {
            "layers_block_type": [
                {"M": "mamba", "-": "mlp", "*": "full_attention"}[c]
                for c in FACTS["nemotron-h-8b"]["config"]["hybrid_override_pattern"]
            ]
        },
    ),
    "granite words": (
        "granite-4.0-h-tiny",
        [],
        {
            "layer_types": [
                {"mamba": "linear_attention", "attention": "full_attention"}[k]
                for k in FACTS["granite-4.0-h-tiny"]["config"]["layer_types"]
            ]
        },
    ),
    "zamba block types": (
        "zamba2-2.7b",
        ["hybrid_layer_ids"],
        {
            "layers_block_type": [
                "hybrid" if i in (6, 12, 18, 24, 30, 36, 42, 47, 51) else "linear_attention" for i in range(54)
            ]
        },
    ),
    "lfm2 indices": ("lfm2-8b-a1b", ["layer_types"], {"full_attn_idxs": [2, 6, 10, 14, 18, 21]}),
    "jamba words": (
        "jamba-1.5-mini",
        [],
        {"layers_block_type": ["attention" if i % 8 == 4 else "mamba" for i in range(32)]},
    ),
    "griffin words": (
        "recurrentgemma-2b",
        ["block_types"],
        {"layer_types": ["sliding_attention" if i % 3 == 2 else "linear_attention" for i in range(26)]},
    ),
    "automatic rank": ("jamba-1.5-mini", [], {"mamba_dt_rank": "auto"}),
    "automatic heads": ("falcon-h1-7b", [], {"mamba_d_head": "auto"}),
}  # fmt: skip


@pytest.mark.parametrize("dialect", SAME_LAYERS)
def test_dialects_say_the_same(dialect: str) -> None:
    name, without, instead = SAME_LAYERS[dialect]
    data = {k: v for k, v in config(name).items() if k not in without} | instead
    assert read(data) == read(config(name))


def test_zamba_shares_two_blocks_in_turn() -> None:
    found = read(config("zamba2-7b"))
    uses = [name for name in found.layers if found.blocks[name].shared_mixers]
    assert uses == ["hybrid_1", "hybrid_2"] * 6 + ["hybrid_1"]
    assert kinds_by_layer(found)[6:8] == [("mamba2", "full"), ("mamba2",)]


def test_zamba_attention_adapters_are_per_use() -> None:
    data = config("zamba2-2.7b")
    more = spec(data | {"use_shared_attention_adapter": True, "adapter_rank": 64}).parameters
    without = spec(data | {"adapter_rank": 64}).parameters
    assert more - without == 9 * 3 * 2 * 64 * 5120


def test_falcon_mamba_states_its_width() -> None:
    """The published file of Falcon-Mamba-7B: 8,192 wide, although 16 x 4,096 is not."""
    data = {
        "model_type": "falcon_mamba", "hidden_size": 4096, "intermediate_size": 8192, "expand": 16, "state_size": 16,
        "num_hidden_layers": 64, "time_step_rank": 256, "conv_kernel": 4, "vocab_size": 65024, "use_bias": False,
        "tie_word_embeddings": False,
    }  # fmt: skip
    model = read_config(data)
    assert model.parameters == 7_272_665_088
    assert model.blocks["mamba"].mixers[0].inner_size == 8192  # type: ignore[attr-defined]


def test_mamba2_widths_must_agree() -> None:
    data = {
        "model_type": "mamba2", "hidden_size": 64, "expand": 2, "num_heads": 8, "head_dim": 16, "state_size": 16,
        "n_groups": 1, "conv_kernel": 4, "num_hidden_layers": 2, "vocab_size": 100,
    }  # fmt: skip
    same = read_config(data | {"intermediate_size": 128})
    assert same == read_config(data)
    assert read_config({k: v for k, v in data.items() if k != "expand"} | {"intermediate_size": 128}) == same
    with pytest.raises(SpecError, match="intermediate_size 256 is not expand times the hidden size, 128"):
        read_config(data | {"intermediate_size": 256})


def test_falcon_h1_biases_are_separate() -> None:
    data = config("falcon-h1-0.5b")
    base = spec(data).parameters
    assert spec(data | {"projectors_bias": True}).parameters - base == 36 * 1024
    inner = 1536
    projected = 2 * inner + 2 * 128 + 24
    assert spec(data | {"mamba_proj_bias": True}).parameters - base == 36 * projected
    assert spec(data | {"mamba_rms_norm": True}).parameters - base == 36 * inner


def test_plamo_full_attention_layers_have_no_window() -> None:
    kinds = kinds_by_layer(read(config("plamo-2-1b") | {"full_attention_idx": [3, 15]}))
    assert [i for i, k in enumerate(kinds) if k == ("full",)] == [3, 15]
    assert [i for i, k in enumerate(kinds) if k == ("sliding",)] == [1, 5, 7, 9, 11, 13]


def test_glm_layers_that_share_an_index_store_none() -> None:
    data = config("glm-5.3-flash")
    data["indexer_types"] = ["full"] * 7 + ["shared"] * 38
    found = read(data)
    with_index = [i for i, n in enumerate(found.layers) if any(len(m.streams()) == 2 for m in found.blocks[n].mixers)]
    assert with_index == [3]


def test_rwkv_ranks_of_the_file_win() -> None:
    data = config("rwkv-7-g1-7.2b")
    ranks = {"decay_low_rank_dim": 96, "a_low_rank_dim": 96, "v_low_rank_dim": 64, "gate_low_rank_dim": 320}
    assert read(data).notes
    assert not read(data | ranks).notes
    assert spec(data).parameters - spec(data | ranks).parameters == 32 * 2 * 4096 * (832 - 576)


def test_kimi_attention_over_blocks_and_latent_norm() -> None:
    data = config("kimi-k3")
    base = spec(data).parameters
    assert spec(data | {"attn_res_block_size": 12}).parameters - base == (93 * 4 + 2) * 7168
    assert spec(data | {"latent_moe_use_norm": True}).parameters - base == 92 * 3584


def test_kimi_full_rank_gate_and_latent_experts() -> None:
    data = config("kimi-k3")
    base = spec(data).parameters
    data["linear_attn_config"]["use_full_rank_gate"] = False
    width = 96 * 128
    assert base - spec(data).parameters == 69 * (7168 * width - 128 * (7168 + width))
    data = config("kimi-k3") | {"mla_use_output_gate": False}
    assert base - spec(data).parameters == 24 * 7168 * width


@pytest.mark.parametrize("name", MINE)
def test_whole_files_reach_these_readers(name: str) -> None:
    whole = read_config(FACTS[name]["config"])
    assert (whole.layers, whole.blocks) == (spec(config(name)).layers, spec(config(name)).blocks)


EXTRA_KEYS: dict[str, dict[str, Any]] = {
    "granite-4.0-micro": {"mamba_n_heads": 128, "mamba_d_state": 256, "mamba_d_conv": 4, "mamba_expand": 2},
    "jamba-1.5-mini": {"mamba_inner_layernorms": True, "use_mamba_kernels": True, "num_logits_to_keep": 1},
    "glm-5.3-flash": {"indexer_rope_interleave": True, "index_topk_freq": 1, "hc_sinkhorn_iters": 20},
    "nemotron-h-8b": {"mamba_hidden_act": "silu", "chunk_size": 128, "time_step_rank": 256, "expand": 2},
    "zamba2-2.7b": {"kv_channels": 80, "num_query_groups": 32, "use_mem_rope": False, "state_size": 64},
    "falcon-mamba-7b": {"use_falcon_mambapy": False, "mixer_rms_eps": 1e-6, "use_conv_bias": True},
}


@pytest.mark.parametrize("name", EXTRA_KEYS)
def test_keys_of_real_files_without_effect_are_understood(name: str) -> None:
    data = config(name)
    assert read_config(data | EXTRA_KEYS[name]).blocks == read_config(data).blocks

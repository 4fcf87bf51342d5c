"""Families with one kind of attention outside the catalog: parameters by the shapes of their modules, and windows."""

from __future__ import annotations

from typing import Any

import pytest

from kvplan.errors import SpecError
from kvplan.sources.hf.plain_more import PLAIN_MORE
from kvplan.sources.hf.read import read_config
from kvplan.spec.model import ModelSpec

L, D, F, V, H, K, E = 6, 64, 160, 500, 8, 4, 16  # layers, width, FFN, vocabulary, heads, KV heads, head size
Q, KV = H * E, K * E
BASE: dict[str, Any] = {
    "num_hidden_layers": L, "hidden_size": D, "intermediate_size": F, "vocab_size": V, "num_attention_heads": H,
    "num_key_value_heads": K, "head_dim": E, "max_position_embeddings": 131072, "tie_word_embeddings": False,
}  # fmt: skip
ATTENTION, GATED, NORMS = 2 * D * Q + 2 * D * KV, 3 * D * F, 2 * D
PLAIN_LAYER = ATTENTION + GATED + NORMS
AROUND = 2 * V * D + D
MOE = {"num_experts": 10, "num_experts_per_tok": 2, "moe_intermediate_size": 24}
EXPERTS = 10 * 3 * D * 24 + 10 * D
SHARED = 3 * D * 24
MHA = 4 * (D * D + D)  # four biased projections
GPT_LAYER = MHA + 2 * D * 4 * D + 5 * D + 4 * D  # with a biased FFN four times as wide, and two LayerNorms

CASES: dict[str, tuple[dict[str, Any], int]] = {
    "afmoe": (
        MOE | {"num_dense_layers": 1, "num_shared_experts": 2},
        L * (ATTENTION + D * Q + 2 * E + 4 * D) + GATED + (L - 1) * (EXPERTS + 10 + 2 * SHARED) + AROUND,
    ),
    "apertus1p5_text": ({}, L * (ATTENTION + 2 * D * F + NORMS + 2 * E + 2) + AROUND),
    "aria_text": (
        {"moe_num_experts": 10, "moe_topk": 2, "moe_num_shared_experts": 2},
        L * (ATTENTION + NORMS + 12 * GATED + 10 * D) + AROUND,
    ),
    "bitnet": ({}, L * (PLAIN_LAYER + D + F) + AROUND),
    "biogpt": (
        {"head_dim": None, "num_key_value_heads": None},
        L * (MHA + 2 * D * F + F + D + 4 * D) + 2 * V * D + 2 * D + 131074 * D,
    ),
    "cohere2_moe": (
        {"num_experts": 10, "num_experts_per_tok": 2, "num_shared_experts": 1, "first_k_dense_replace": 1,
         "prefix_dense_intermediate_size": 200},
        L * (ATTENTION + D) + 3 * D * 200 + (L - 1) * (11 * GATED + 10 * D) + AROUND,
    ),
    "ctrl": (
        {"n_layer": L, "n_head": H, "n_embd": D, "dff": F, "n_positions": 256, "head_dim": None,
        "num_key_value_heads": None},
        L * (MHA + 2 * D * F + F + D + 4 * D) + 2 * V * D + V + 2 * D,
    ),
    "diffllama": ({}, L * (PLAIN_LAYER + 4 * E) + AROUND),
    "cwm": ({}, L * PLAIN_LAYER + AROUND),
    "emu3_text_model": ({}, L * PLAIN_LAYER + AROUND),
    "exaone_moe": (
        MOE | {"num_shared_experts": 1, "first_k_dense_replace": 1},
        L * (ATTENTION + NORMS + 2 * E) + GATED + (L - 1) * (EXPERTS + SHARED) + AROUND,
    ),
    "flint": (
        MOE | {"shared_expert_intermediate_size": 48},
        L * (ATTENTION + NORMS + 2 * E + H) + 2 * GATED + (L - 2) * (EXPERTS + 3 * D * 48) + AROUND,
    ),
    "gpt_neox_japanese": (
        {"intermediate_multiple_size": 3, "head_dim": None, "num_key_value_heads": None},
        L * (4 * D * D + 6 * D * D + 4 * D) + D + 2 * V * D + 2 * D,
    ),
    "granite_swa": ({}, L * (PLAIN_LAYER + H) + AROUND),
    "granitemoe_swa": (
        {"num_local_experts": 10, "num_experts_per_tok": 2, "shared_intermediate_size": 40},
        L * (ATTENTION + NORMS + H + 10 * GATED + 10 * D + 3 * D * 40) + AROUND,
    ),
    "hyperclovax": ({}, L * (PLAIN_LAYER + 2 * D) + AROUND),
    "iquestcoder": ({}, L * PLAIN_LAYER + AROUND),
    "jais2": ({}, L * (ATTENTION + Q + 2 * KV + D + 2 * D * F + F + D + 4 * D) + AROUND + D),
    "kolibri1": (
        MOE | {"shared_expert_intermediate_size": 48},
        L * (ATTENTION + 4 * D + 2 * E + EXPERTS + 3 * D * 48) + AROUND,
    ),
    "laguna": (
        MOE | {"shared_expert_intermediate_size": 24, "num_attention_heads_per_layer": [8, 4, 4, 8, 4, 4],
               "mlp_layer_types": ["dense"] + ["sparse"] * 5},
        sum(2 * D * h * E + 2 * D * KV + NORMS + 2 * E + D * h for h in (8, 4, 4, 8, 4, 4))
        + GATED + 5 * (EXPERTS + 10 + SHARED) + AROUND,
    ),
    "mellum": (MOE, L * (ATTENTION + NORMS + 2 * E + EXPERTS) + AROUND),
    "nanochat": ({}, L * (ATTENTION + 2 * D * F) + 2 * V * D),
    "openai-gpt": (
        {"n_layer": L, "n_head": H, "n_embd": D, "n_positions": 128, "head_dim": None, "num_key_value_heads": None},
        L * GPT_LAYER + 2 * V * D + 128 * D,
    ),
    "phi4_multimodal": ({}, L * PLAIN_LAYER + AROUND),
    "sarvam_moe": (
        MOE | {"first_k_dense_replace": 1, "num_shared_experts": 1},
        L * (ATTENTION + NORMS + 2 * E) + GATED + (L - 1) * (EXPERTS + SHARED) + AROUND,
    ),
    "solar_open": (
        {"n_routed_experts": 10, "num_experts_per_tok": 2, "moe_intermediate_size": 24, "n_shared_experts": 1},
        L * (ATTENTION + NORMS + EXPERTS + SHARED) + AROUND,
    ),
    "vaultgemma": ({}, L * PLAIN_LAYER + AROUND),
    "xglm": (
        {"attention_heads": H, "num_attention_heads": None, "ffn_dim": F, "d_model": D, "num_layers": L,
        "head_dim": None,
         "num_key_value_heads": None, "intermediate_size": None, "hidden_size": None, "num_hidden_layers": None},
        L * (MHA + 2 * D * F + F + D + 4 * D) + 2 * V * D + 2 * D,
    ),
}  # fmt: skip


def read(model_type: str, **changes: Any) -> ModelSpec:
    data = {key: value for key, value in (BASE | {"model_type": model_type} | changes).items() if value is not None}
    return read_config(data)


@pytest.mark.parametrize("model_type", CASES)
def test_parameters(model_type: str) -> None:
    """By the modules of transformers 5.24.0, added up by hand."""
    changes, expected = CASES[model_type]
    assert read(model_type, **changes).parameters == expected


def test_every_family_has_a_case() -> None:
    assert set(PLAIN_MORE) - {"fuyu", "phi4mm"} == set(CASES)
    assert read("fuyu").blocks == read("persimmon").blocks


@pytest.mark.parametrize(
    ("model_type", "full"),
    [("afmoe", {3}), ("cwm", {0, 4}), ("exaone_moe", {3}), ("flint", {0, 1, 5}), ("granite_swa", {0, 4}),
     ("granitemoe_swa", {0, 4}),
     ("kolibri1", {4}), ("laguna", set(range(6))), ("mellum", set(range(6))), ("vaultgemma", {1, 3, 5}),
     ("cohere2_moe", {0, 4}),
     ("jais2", set(range(6))), ("nanochat", set(range(6)))],
)  # fmt: skip
def test_which_layers_slide_where_the_file_does_not_say(model_type: str, full: set[int]) -> None:
    """The rule of the class, and its window where the file has none; a list in the file wins."""
    changes = {key: value for key, value in CASES[model_type][0].items() if key != "layer_types"}
    model = read(model_type, **changes)
    assert {i for i, name in enumerate(model.layers) if model.blocks[name].mixers[0].kind == "full"} == full
    listed = ["sliding_attention"] * 5 + ["full_attention"]
    model = read(model_type, **changes, layer_types=listed, sliding_window=32)
    kinds = [model.blocks[name].mixers[0] for name in model.layers]
    assert [mixer.kind for mixer in kinds] == ["sliding"] * 5 + ["full"]
    assert kinds[0].streams()[0].window == 32


def test_a_wrong_list_of_heads_is_refused() -> None:
    with pytest.raises(SpecError, match="num_attention_heads_per_layer"):
        read("laguna", num_attention_heads_per_layer=[8, 8])
    with pytest.raises(SpecError, match="gating"):
        read("laguna", gating="per-token")


# ---- windows that a switch turns on ----


def kinds(model_type: str, **changes: Any) -> list[str]:
    model = read(model_type, num_hidden_layers=4, **changes)
    return [model.blocks[name].mixers[0].kind for name in model.layers]


@pytest.mark.parametrize("model_type", ["qwen2", "qwen2_5_vl", "qwen3", "qwen3_moe", "smollm3"])
def test_families_that_slide_only_where_the_file_says_so(model_type: str) -> None:
    """The class leaves ``use_sliding_window`` off; the other keys are decoys then."""
    assert kinds(model_type, sliding_window=4096) == ["full"] * 4


def test_windows_of_dots_and_of_the_first_qwen_mixture() -> None:
    """From ``max_window_layers`` on, without a switch; every other of the first, with one."""
    changes: dict[str, Any] = MOE | {"sliding_window": 4096, "max_window_layers": 3}
    assert kinds("dots1", **changes) == ["full"] * 3 + ["sliding"]
    assert kinds("dots1", **changes | {"max_window_layers": None}) == ["full"] * 4
    assert kinds("qwen2_moe", **changes, use_sliding_window=True) == ["sliding", "full", "sliding", "full"]
    assert kinds("qwen2_moe", **changes, use_sliding_window=False) == ["full"] * 4


# ---- what files leave to the class ----


@pytest.mark.parametrize(
    ("model_type", "changes", "window"),
    [
        ("mistral", {}, 4096),
        ("mistral", {"sliding_window": 512}, 512),
        ("ministral", {}, 4096),
        ("mixtral", {}, None),
    ],
)
def test_the_window_of_a_class(model_type: str, changes: dict[str, Any], window: int | None) -> None:
    mixture = {"num_local_experts": 8, "num_experts_per_tok": 2} if model_type == "mixtral" else {}
    model = read(model_type, **mixture, **changes)
    assert [(n, getattr(m, "window", None)) for n, m in model.mixers()] == [(L, window)]


def test_a_window_that_the_file_switches_off_stays_off() -> None:
    model = read_config(
        {**{k: v for k, v in BASE.items() if v is not None}, "model_type": "mistral", "sliding_window": None}
    )
    assert [m.kind for _, m in model.mixers()] == ["full"]


def test_the_layers_of_a_class_that_look_at_an_image() -> None:
    text = {**BASE, "model_type": "mllama_text_model", "num_hidden_layers": 40}
    vision = {"image_size": 560, "patch_size": 14, "max_num_tiles": 4, "model_type": "mllama_vision_model"}
    model = read_config({"model_type": "mllama", "text_config": text, "vision_config": vision})
    kinds = [model.blocks[name].mixers[0].kind for name in model.layers]
    crossing = [i for i, kind in enumerate(kinds) if kind == "cross"]
    assert crossing == [3, 8, 13, 18, 23, 28, 33, 38]


def test_a_head_with_rows_of_its_own_is_refused() -> None:
    with pytest.raises(SpecError, match="output_vocab_size"):
        read("apertus1p5_text", output_vocab_size=7)

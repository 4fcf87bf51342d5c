"""File types of GGUF against a real file and against the rules of the quantizer."""

from __future__ import annotations

import json
from math import prod
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvplan.cache.attention import FullAttention
from kvplan.cache.latent import LatentAttention
from kvplan.errors import UnknownNameError
from kvplan.spec.ffn import DenseFfn, MoeFfn
from kvplan.spec.format_table import FORMATS
from kvplan.spec.formats import format_names, get_format
from kvplan.spec.gguf_mix import mix_bounds, mix_names, tensor_bytes, tensor_format
from kvplan.spec.model import Block, ModelSpec

REAL = json.loads((Path(__file__).parents[1] / "data" / "gemma-3-270m-q4_k_m.tensors.json").read_text())


def test_real_file_is_reproduced_tensor_by_tensor() -> None:
    """Gemma 3 270M, Q4_K_M: 236 tensors with their types, and the bytes of all of them."""
    total = 0
    for name, type_name, shape in REAL["tensors"]:
        layer = int(name.split(".")[1]) if name.startswith("blk.") else None
        found = tensor_format(
            "q4_k_m", name, layer, REAL["layers"], gqa_ratio=REAL["query_heads"] // REAL["kv_heads"], tied_head=True,
            row_elements=shape[0],
        )  # fmt: skip
        assert found == get_format(type_name).name, name
        total += get_format(found).tensor_bytes(prod(shape), shape[0])
    assert len(REAL["tensors"]) == 236
    assert total == REAL["tensor_bytes"] == 246_587_904


def _type(mix: str, name: str, layer: int | None = 10, layers: int = 32, **settings: object) -> str:
    given_settings = {"gqa_ratio": 4, "row_elements": 4096, **settings}
    return tensor_format(mix, name, layer, layers, **given_settings)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("mix", "name", "layer", "expected"),
    [
        ("q4_k_m", "output", None, "q6_k"), ("q4_k_m", "token_embd", None, "q4_k"),
        ("q4_k_m", "attn_q", 0, "q4_k"), ("q4_k_m", "attn_v", 0, "q6_k"), ("q4_k_m", "attn_v", 4, "q4_k"),
        ("q4_k_m", "attn_v", 6, "q6_k"), ("q4_k_m", "ffn_down", 31, "q6_k"), ("q4_k_m", "ffn_down", 7, "q4_k"),
        ("q4_k_s", "attn_v", 3, "q5_k"), ("q4_k_s", "attn_v", 4, "q4_k"), ("q4_k_s", "ffn_down", 3, "q5_k"),
        ("q4_k_s", "ffn_down", 4, "q4_k"), ("q5_k_m", "ffn_down", 0, "q6_k"), ("q5_k_m", "ffn_down", 4, "q5_k"),
        ("q5_k_s", "attn_v", 0, "q5_k"), ("q6_k", "ffn_down", 0, "q6_k"), ("q8_0", "output", None, "q8_0"),
        ("q4_0", "output", None, "q6_k"), ("q4_0", "ffn_down", 0, "q4_0"), ("q2_k", "attn_v", 5, "q4_k"),
        ("q2_k", "ffn_down", 5, "q3_k"), ("q2_k", "attn_output", 5, "q3_k"), ("q2_k", "ffn_up", 5, "q2_k"),
        ("q2_k_s", "ffn_down", 3, "q4_k"), ("q2_k_s", "ffn_down", 4, "q2_k"), ("q3_k_s", "attn_v", 0, "q3_k"),
        ("q3_k_m", "attn_v", 1, "q5_k"), ("q3_k_m", "attn_v", 2, "q4_k"), ("q3_k_m", "ffn_down", 1, "q5_k"),
        ("q3_k_m", "ffn_down", 2, "q4_k"), ("q3_k_m", "attn_output", 9, "q4_k"), ("q3_k_l", "ffn_down", 9, "q5_k"),
        ("q3_k_l", "attn_output", 9, "q5_k"), ("iq4_xs", "attn_v", 9, "q5_k"), ("iq4_xs", "ffn_down", 3, "q5_k"),
        ("iq3_xs", "attn_k", 9, "iq3_xxs"), ("iq3_xs", "ffn_up", 9, "iq3_xxs"), ("iq3_xs", "ffn_up", 3, "iq3_s"),
        ("iq3_xs", "ffn_gate", 28, "iq3_s"), ("iq3_xxs", "attn_q", 9, "iq2_s"), ("iq3_xxs", "attn_output", 9, "iq3_s"),
        ("iq3_xxs", "ffn_down", 1, "iq3_xxs"), ("iq3_m", "attn_output", 9, "q4_k"), ("iq2_s", "ffn_up", 9, "iq2_xs"),
        ("iq2_m", "ffn_up", 9, "iq2_s"), ("iq2_m", "ffn_down", 3, "iq3_s"), ("iq2_xxs", "token_embd", None, "q2_k"),
        ("iq1_s", "attn_output", 9, "iq2_xxs"), ("iq1_s", "output", None, "q5_k"), ("tq1_0", "token_embd", None,
         "q4_k"),
        ("mxfp4_moe", "ffn_up_exps", 9, "mxfp4"), ("mxfp4_moe", "attn_q", 9, "q8_0"), ("q4_k_m", "ffn_gate_inp",
         9, "fp32"),
        ("q4_k_m", "attn_q_a_norm", 9, "fp32"), ("q4_k_m", "ssm_conv1d", 9, "fp32"), ("q4_k_m", "ssm_alpha", 9, "q4_k"),
        ("q4_k_m", "laurel_l", 9, "fp16"), ("ud-q4_k_xl", "attn_v", 0, "q6_k"),
    ],
)  # fmt: skip
def test_rules(mix: str, name: str, layer: int | None, expected: str) -> None:
    """A dense model of 32 layers with four query heads per KV head and a head of its own."""
    assert _type(mix, name, layer) == expected


def test_eight_experts_and_eighty_layers_are_treated_apart() -> None:
    assert _type("q4_k_m", "attn_v", num_experts=8) == "q8_0"
    assert _type("q4_k_m", "attn_k", num_experts=8) == "q8_0"
    assert _type("q4_k_m", "attn_output", num_experts=8) == "q5_k"
    assert _type("q4_k_m", "attn_k", num_experts=128) == "q4_k"
    assert _type("q4_k_m", "attn_v", 13, 80, gqa_ratio=8) == "q5_k"
    assert _type("q4_k_m", "attn_v", 12, 80, gqa_ratio=8) == "q6_k"
    assert _type("q4_k_m", "attn_v", 13, 80, gqa_ratio=1) == "q4_k"


def test_grouping_matters_from_four_on() -> None:
    assert _type("q2_k", "attn_v", gqa_ratio=3) == "q3_k"
    assert _type("iq4_xs", "attn_v", gqa_ratio=1) == "iq4_xs"


def test_importance_matrix_changes_the_first_layers() -> None:
    assert _type("q4_0", "ffn_down", 3, imatrix=True) == "q4_1"
    assert _type("iq4_xs", "ffn_down", 3, imatrix=True) == "iq4_xs"
    assert _type("iq3_xxs", "ffn_down", 9, imatrix=False) == "q3_k"


@pytest.mark.parametrize(
    ("row", "mix", "expected"),
    [(4096, "q4_k_m", "q4_k"), (640, "q4_k_m", "q5_0"), (640, "q5_k_s", "q5_1"), (640, "q6_k", "q8_0"), (640,
     "q3_k_s", "q4_0"),
     (640, "iq3_s", "iq4_nl"), (48, "q4_k_m", "fp16"), (80, "q8_0", "fp16")],
)  # fmt: skip
def test_rows_that_blocks_do_not_divide(row: int, mix: str, expected: str) -> None:
    assert _type(mix, "attn_q", row_elements=row) == expected


def test_tied_embeddings_stand_in_for_the_head() -> None:
    assert _type("q4_k_m", "token_embd", None, tied_head=True) == "q6_k"
    assert _type("q4_k_m", "token_embd", None, tied_head=True, row_elements=640) == "q8_0"


def test_unknown_file_type() -> None:
    with pytest.raises(UnknownNameError) as caught:
        _type("q4_k_x", "attn_q")
    assert "q4_k_m" in (caught.value.hint or "")


def test_every_mix_of_the_format_table_has_a_rule() -> None:
    mixes = {get_format(n).mix for n in format_names("weights")} - {None}
    assert mixes <= set(mix_names())


@pytest.mark.parametrize("mix", [m for m in mix_names() if m.startswith("ud_")])
def test_publisher_recipes_have_bounds(mix: str) -> None:
    bounds = mix_bounds(mix)
    assert bounds is not None
    low, high = (get_format(b).mean_bits() for b in bounds)
    assert low < high
    assert low <= get_format(mix).mean_bits() <= high
    assert mix_bounds("q4_k_m") is None


@given(
    st.sampled_from(mix_names()),
    st.sampled_from(["attn_q", "attn_k", "attn_v", "attn_qkv", "attn_output", "ffn_up", "ffn_down_exps",
    "token_embd", "output"]),
    st.integers(0, 79), st.integers(80, 120), st.sampled_from([0, 8, 128]), st.integers(1, 16), st.booleans(),
    st.integers(1, 512).map(lambda n: 16 * n),
)  # fmt: skip
def test_every_answer_is_a_format_whose_blocks_divide_the_row(
    mix: str, name: str, layer: int, layers: int, experts: int, gqa: int, tied: bool, row: int
) -> None:
    found = tensor_format(
        mix, name, layer, layers, num_experts=experts, gqa_ratio=gqa, tied_head=tied, row_elements=row
    )
    assert row % FORMATS[found]["block_elements"] == 0


def _model(**fields: object) -> ModelSpec:
    attention = FullAttention(query_heads=32, kv_heads=8, head_dim=128)
    base: dict[str, object] = {
        "id": "m", "name": "m", "family": "f", "architecture": "A", "hidden_size": 4096, "vocab_size": 128_256,
        "blocks": {"b": Block(mixers=(attention,), ffns=(DenseFfn(intermediate_size=14_336),))}, "layers": ("b",) * 32,
    }  # fmt: skip
    return ModelSpec(**{**base, **fields})  # type: ignore[arg-type]


def _file_bytes(model: ModelSpec, mix: str) -> int:
    fmt = get_format(mix)
    total = sum(tensor_bytes(fmt, t, model, None) for t in model.tensors_outside_layers())
    for layer, name in enumerate(model.layers):
        total += sum(tensor_bytes(fmt, t, model, layer) for t in model.block_tensors(name))
    return total


BITS_PER_WEIGHT = {
    "iq1_s": 2.0042, "iq1_m": 2.1460, "iq2_xxs": 2.3824, "iq2_xs": 2.5882, "iq2_s": 2.7403, "iq2_m": 2.9294,
    "iq3_xxs": 3.2548, "iq3_xs": 3.4977, "iq3_s": 3.6606, "iq3_m": 3.7628, "iq4_xs": 4.4597, "iq4_nl": 4.6818,
    "q2_k_s": 2.9697, "q2_k": 3.1593, "q3_k_s": 3.6429, "q3_k_l": 4.2979, "q4_k_s": 4.6672, "q4_k_m": 4.8944,
    "q5_k_s": 5.5704, "q5_k_m": 5.7036, "q6_k": 6.5633, "q8_0": 8.5008,
}  # fmt: skip
"""Llama-3.1-8B as llama.cpp measures it: ggml-org/llama.cpp 311c2c9, tools/quantize/README.md."""


@pytest.mark.parametrize("mix", BITS_PER_WEIGHT)
def test_whole_model_sizes_of_llama_31_8b(mix: str) -> None:
    model = _model()
    assert _file_bytes(model, mix) * 8 / model.parameters == pytest.approx(BITS_PER_WEIGHT[mix], abs=0.00006)


def test_only_layers_with_a_v_projection_count() -> None:
    """Every fourth of 32 layers has attention: its eight V projections are places 0 to 7."""
    mixers = (FullAttention(query_heads=32, kv_heads=8, head_dim=128),)
    blocks = {"a": Block(mixers=mixers), "m": Block()}
    model = _model(blocks=blocks, layers=("m", "m", "m", "a") * 8)
    tensor = next(t for t in model.block_tensors("a") if t.name == "attn_v")
    fmt = get_format("q4_k_m")
    sizes = {layer: tensor_bytes(fmt, tensor, model, layer) for layer in range(3, 32, 4)}
    q6, q4 = (get_format(n).tensor_bytes(tensor.elements, 4096) for n in ("q6_k", "q4_k"))
    assert [sizes[layer] for layer in range(3, 32, 4)] == [q6, q4, q4, q6, q4, q4, q6, q6]


def test_latent_projection_is_stored_as_two_tensors() -> None:
    latent = LatentAttention(
        query_heads=16, kv_lora_rank=512, qk_rope_head_dim=64, qk_nope_head_dim=128, v_head_dim=128
    )
    ffn = MoeFfn(experts=64, experts_per_token=6, intermediate_size=1408)
    model = _model(hidden_size=2048, blocks={"b": Block(mixers=(latent,), ffns=(ffn,))}, layers=("b",) * 27)
    tensor = next(t for t in model.block_tensors("b") if t.name == "attn_kv_b")
    half = 16 * 128 * 512
    expected = half // 32 * 22 + half // 256 * 144  # rows of 128 fall back to q5_0, rows of 512 stay q4_k
    assert tensor_bytes(get_format("q4_k_m"), tensor, model, 10) == expected

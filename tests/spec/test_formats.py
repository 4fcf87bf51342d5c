"""The format table against figures that engines printed and papers give."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvplan.cache.attention import FullAttention
from kvplan.cache.bytes import KvFormats, rows_of
from kvplan.errors import UnknownNameError
from kvplan.spec.format_table import FORMAT_ALIASES, FORMATS
from kvplan.spec.formats import Format, format_names, get_format
from kvplan.spec.kind import ROLES

MIB = 2**20


def mixed_pair(k: str, v: str) -> int:
    """Bytes of one token in one layer of 8 heads of 128, K stored as `k` and V as `v`."""
    mixer = FullAttention(query_heads=32, kv_heads=8, head_dim=128)
    formats = KvFormats(get_format(k), get_format(v), get_format("bf16"), 2, 2)
    return sum(size for _, size, _ in rows_of(mixer.streams(), formats))


@pytest.mark.parametrize(
    ("name", "mib"),
    [
        ("bf16", 16384), ("fp16", 16384), ("fp32", 32768), ("fp8", 8192), ("fp8_e5m2", 8192), ("q8_0", 8704),
        ("nvfp4", 4608), ("q4_0", 4608), ("iq4_nl", 4608), ("mlx4_g64", 4608), ("quanto4", 4608), ("mxfp4", 4352),
        ("mxfp6", 6400), ("mxfp8", 8448), ("exl3_4", 4608), ("exl3_2", 2560), ("exl3_8", 8704), ("kivi2_g64", 2560),
        ("kivi2_g32", 3072), ("kivi4_g32", 5120), ("kivi4_g64", 4608), ("turboquant_4bit_nc", 4288),
        ("int4_g32", 4608), ("int4_g64", 4352), ("int4_g128", 4224), ("int4_g32_zp", 5120), ("int4_g64_zp", 4608),
        ("int4_g128_zp", 4352), ("q5_1", 6144), ("q5_0", 5632), ("q4_1", 5120),
    ],
)  # fmt: skip
def test_llama_31_8b_cache_at_131072_tokens(name: str, mib: int) -> None:
    """32 layers, 8 KV heads of 128."""
    assert sum(get_format(name).pair_bytes(8, 128, 128)) * 32 * 131_072 == mib * MIB


def test_turboquant_keeps_two_layers_at_each_end() -> None:
    """4288 MiB for 28 of 32 layers, four in bf16: 5800 MiB."""
    fmt, bf16 = get_format("turboquant_4bit_nc"), get_format("bf16")
    edge = 2 * fmt.edge_layers
    total = (32 - edge) * sum(fmt.pair_bytes(8, 128, 128)) + edge * sum(bf16.pair_bytes(8, 128, 128))
    assert total * 131_072 == 5800 * MIB


@pytest.mark.parametrize(
    ("name", "slot"),
    [
        ("turboquant_k8v4", 196), ("turboquant_4bit_nc", 134), ("turboquant_k3v4_nc", 118), ("turboquant_3bit_nc", 102),
        ("int8_per_token_head", 264), ("fp8_per_token_head", 264), ("int4_per_token_head", 136), ("nvfp4", 144),
    ],
)  # fmt: skip
def test_vllm_slots_of_one_head_at_128(name: str, slot: int) -> None:
    k, v = get_format(name).pair_bytes(1, 128, 128)
    assert k + v == slot
    assert sum(get_format(name).pair_bytes(8, 128, 128)) == 8 * slot


@pytest.mark.parametrize(
    ("name", "page"),
    [("int8_per_token_head", 33_792), ("int4_per_token_head", 17_408), ("nvfp4", 18_432), ("bf16", 65_536)],
)
def test_vllm_page_bytes_of_a_llama_layer(name: str, page: int) -> None:
    assert 16 * sum(get_format(name).pair_bytes(8, 128, 128)) == page


def test_vllm_latent_rows() -> None:
    assert get_format("fp8_ds_mla").row_bytes(1, 576) == 656
    assert get_format("nvfp4_ds_mla").row_bytes(1, 576) == 352
    assert get_format("int8_per_token_head").row_bytes(1, 576) == 580


def test_pairs_are_rounded_up_per_head() -> None:
    """Keys of 25 bytes: 3-bit keys of 60 elements take 24 + 2, values of 4 bits 30 + 4; 61 makes it odd."""
    fmt = get_format("turboquant_k3v4_nc")
    assert fmt.pair_bytes(4, 56, 58) == (4 * (21 + 2), 4 * (29 + 4))  # 56 per head, even: nothing added
    assert fmt.pair_bytes(4, 56, 60) == (4 * 23, 4 * (30 + 4) + 4)  # 57 per head: one byte added to each


def test_mixed_pairs_take_each_format_as_it_is() -> None:
    """llama.cpp, Llama-3.1-8B, 8192 cells, K q8_0 and V q4_0: 416 MiB."""
    assert mixed_pair("q8_0", "q4_0") * 32 * 8192 == 416 * MIB


@pytest.mark.parametrize(
    ("name", "num_bytes"),
    [
        ("mlx4_g64", 1_179_648),
        ("mlx8_g64", 2_228_224),
        ("mlx2_g64", 655_360),
        ("mlx4_g32", 1_310_720),
        ("mlx4_g128", 1_114_112),
    ],
)
def test_mlx_holds_1024_slots(name: str, num_bytes: int) -> None:
    assert 1024 * sum(get_format(name).pair_bytes(8, 128, 128)) == num_bytes


@pytest.mark.parametrize(
    ("name", "bits"),
    [
        ("quanto4", 4.5), ("quanto2", 2.5), ("hqq8", 8.5), ("hqq1", 1.5), ("quanto4_g32", 5.0), ("quanto4_g128", 4.25),
        ("int4_g64_zp_fp32", 5.0), ("int8_per_token", 8 + 16 / 1024), ("int8_per_token_fp32", 8 + 32 / 1024),
        ("int8_per_token_head", 8.25), ("turboquant_k8v4", 6.125), ("turboquant_3bit_nc", 3.1875), ("exl3_5", 5.5),
    ],
)  # fmt: skip
def test_bits_per_element(name: str, bits: float) -> None:
    assert get_format(name).mean_bits(8, 128) == bits


def test_transformers_quantised_store() -> None:
    """512 tokens in 4 layers of 8 x 128 by quanto, 4 bits, groups of 64: 2,359,296 bytes."""
    assert 512 * 4 * sum(get_format("quanto4").pair_bytes(8, 128, 128)) == 2_359_296


@pytest.mark.parametrize(
    ("k", "v", "num_bytes"), [(8, 8, 2176), (6, 6, 1664), (5, 4, 1280), (4, 4, 1152), (3, 3, 896), (2, 2, 640)]
)
def test_exllamav3_token_in_one_layer(k: int, v: int, num_bytes: int) -> None:
    assert mixed_pair(f"exl3_{k}", f"exl3_{v}") == num_bytes


def test_llama_cpp_takes_exactly_nine_cache_types() -> None:
    types = {"f32", "f16", "bf16", "q8_0", "q5_1", "q5_0", "q4_1", "q4_0", "iq4_nl"}
    assert all(get_format(t, use="cache") for t in types)
    with pytest.raises(UnknownNameError, match="unknown cache format"):
        get_format("q4_k", use="cache")


def test_gguf_blocks_are_ggml_blocks() -> None:
    """The pairs of ggml 0.25.3, kept with the tests."""
    pairs = json.loads((Path(__file__).parents[1] / "data" / "ggml_block_sizes.json").read_text())
    for name, (elements, size) in pairs.items():
        fmt = get_format(name)
        assert fmt.block_bytes * elements == size * fmt.block_elements, name
        if name != "nvfp4":
            assert (fmt.block_elements, fmt.block_bytes) == (elements, size), name
    assert len(pairs) == 27


@pytest.mark.parametrize(
    ("name", "rows", "columns", "num_bytes"),
    [
        ("awq", 4096, 4096, 4096 * 32 * 133 // 2),
        ("awq", 4864, 896, 4864 * 7 * 133 // 2),
        ("gptq", 10, 100, 10 * 133 // 2),
        ("gptq_g32", 64, 4096, 64 * 128 * 37 // 2),
        ("int4_g128", 4096, 4096, 4096 * 32 * 66),
        ("w4a16", 4096, 4096, 4096 * 32 * 66),
        ("w8a16", 4096, 4096, 4096 * 4096 + 4096 * 4),
        ("fp8_block", 7168, 2048, 7168 * 2048 + 56 * 16 * 4),
        ("fp8_block", 576, 7168, 576 * 7168 + 5 * 56 * 4),
        ("fp8_channel", 4096, 4096, 4096 * 4096 + 4096 * 4),
        ("nf4", 4096, 4096, 4096 * 64 * 36),
        ("nf4_dq", 4096, 4096, 1024 * 8452),
        ("bnb_int8", 4096, 4096, 4096 * 4096 + 4 * 4096),
        ("bf16", 3, 5, 30),
        ("mxfp4", 2880, 2880, 2880 * 90 * 17),
        ("q6_k", 128256, 4096, 128256 * 16 * 210),
    ],
)
def test_weight_matrices(name: str, rows: int, columns: int, num_bytes: int) -> None:
    assert get_format(name, use="weights").tensor_bytes(rows * columns, columns) == num_bytes


def test_weight_roles_name_what_stays_unquantised() -> None:
    matrices = {"attention", "dense_ffn", "routed_experts", "shared_experts"}
    assert set(get_format("awq").weight_roles) == matrices
    assert get_format("awq").rest_format is None
    assert set(get_format("q4_k_m").weight_roles) == matrices | {"embedding", "head"}
    assert get_format("q4_k_m").rest_format == "fp32"
    assert set(get_format("mlx4").weight_roles) == matrices | {"embedding", "head"}
    assert set(get_format("fp16").weight_roles) == set(ROLES)
    assert all(set(get_format(n).weight_roles) <= set(ROLES) for n in format_names("weights"))


@pytest.mark.parametrize("name", format_names())
def test_every_row_is_a_format(name: str) -> None:
    fmt = get_format(name)
    assert fmt.name == name
    assert fmt.source
    assert fmt.use in ("cache", "weights", "both")
    assert fmt.block_elements > 0
    assert fmt.block_bytes > 0
    assert fmt.rest_format is None or fmt.rest_format in FORMATS
    assert all(get_format(alias).name == name for alias in fmt.aliases)
    if fmt.use != "weights":
        assert 1.0 < fmt.mean_bits() <= 32


def test_no_two_rows_share_a_name() -> None:
    aliases = [a for row in FORMATS.values() for a in row.get("aliases", ())]
    assert len(aliases) == len(set(aliases)) == len(FORMAT_ALIASES)
    assert not set(aliases) & set(FORMATS)
    assert all(n == n.lower() for n in (*aliases, *FORMATS))


@pytest.mark.parametrize(
    ("typed", "canonical"),
    [
        ("BF16", "bf16"), ("bfloat16", "bf16"), ("half", "fp16"), ("fp8", "fp8_e4m3"), ("fp8_inc", "fp8_e4m3"),
        ("Q4_K_M", "q4_k_m"), ("UD-Q4_K_XL", "ud_q4_k_xl"), ("w8a8", "int8_channel"), ("awq-marlin", "awq"),
    ],
)  # fmt: skip
def test_spellings(typed: str, canonical: str) -> None:
    assert get_format(typed).name == canonical


@pytest.mark.parametrize(
    "name",
    [
        "fp8", "fp8_e4m3", "fp8_e5m2", "fp8_inc", "int8_per_token_head", "fp8_per_token_head",
        "int4_per_token_head", "nvfp4",
        "turboquant_k8v4", "turboquant_4bit_nc", "turboquant_k3v4_nc", "turboquant_3bit_nc", "fp8_ds_mla",
        "nvfp4_ds_mla",
        "bfloat16", "float16",
    ],
)  # fmt: skip
def test_vllm_names_are_understood(name: str) -> None:
    assert get_format(name, use="cache")


def test_unknown_names_offer_the_nearest() -> None:
    with pytest.raises(UnknownNameError) as caught:
        get_format("fp8_e4m4", use="cache", where="--kv-cache-dtype")
    assert "fp8_e4m3" in (caught.value.hint or "")
    assert str(caught.value).startswith("--kv-cache-dtype: ")
    with pytest.raises(UnknownNameError) as caught:
        get_format("auto")
    assert "leave the flag out" in (caught.value.hint or "")
    with pytest.raises(UnknownNameError) as caught:
        get_format("awq", use="cache")
    assert "awq is a format for weights only" in (caught.value.hint or "")


HEAD_FORMATS = [get_format(n) for n in format_names("cache") if not n.endswith("_ds_mla")]


@given(st.sampled_from(HEAD_FORMATS), st.integers(1, 64), st.integers(1, 8), st.integers(1, 8))
def test_more_heads_or_dims_never_take_fewer_bytes(fmt: Format, heads: int, k: int, v: int) -> None:
    """Head sizes that every block divides."""
    dim_k, dim_v = 128 * k, 128 * v
    pair = sum(fmt.pair_bytes(heads, dim_k, dim_v))
    assert pair < sum(fmt.pair_bytes(heads + 1, dim_k, dim_v))
    assert pair < sum(fmt.pair_bytes(heads, dim_k + 128, dim_v))
    assert pair < sum(fmt.pair_bytes(heads, dim_k, dim_v + 128))
    assert pair % fmt.align_bytes == 0
    assert pair * 8 >= heads * (dim_k + dim_v)  # no format here goes below one bit


@given(st.sampled_from([get_format(n) for n in format_names("weights")]), st.integers(1, 300), st.integers(1, 2000))
def test_weight_rows_add_up(fmt: Format, rows: int, columns: int) -> None:
    one, many = fmt.tensor_bytes(columns, columns), fmt.tensor_bytes(rows * columns, columns)
    assert many >= one
    assert many <= rows * one
    assert isinstance(many, int)


STATED = re.compile(r"(?:^|_|bf|fp|int|iq|tq|q|nf|mlx|gptq|kivi|k)(\d+(?:\.\d+)?)(?=bpw|bit|v\d|$|_|m)")
"""The bits of a code in a format's name: the first number that is no group or version."""


def code_bits(name: str) -> float | None:
    found = STATED.search(name)
    return float(found[1]) if found else None


@pytest.mark.parametrize("name", format_names())
def test_a_block_holds_its_codes_and_little_besides(name: str) -> None:
    """Bits of codes as the name states them, and at most two an element for scales and minima: 260 bytes for 32
    elements of 8 bits would be 57 bits too many."""
    fmt, bits = get_format(name), code_bits(name)
    held = 8 * fmt.block_bytes / fmt.block_elements
    assert 1 <= held <= 32
    if bits is None:
        assert held <= 16
    else:
        assert 0 <= held - bits <= 2


def test_most_names_state_their_bits() -> None:
    said = [name for name in format_names() if code_bits(name) is not None]
    assert len(said) > 0.9 * len(format_names())
    assert [code_bits(name) for name in ("q8_0", "exl3_8", "nvfp4", "turboquant_k8v4", "fp8_ds_mla", "kivi2_g32")] == [
        8, 8, 4, 8, 8, 2,
    ]  # fmt: skip

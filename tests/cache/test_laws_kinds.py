"""What every cache kind weighs, keeps, reads and splits, in figures worked by hand from published sizes.

The sizes are those of released models (their configurations); sums are written out so that they can be checked with
a pocket calculator. Counts of parameters of whole models are held elsewhere: here each part stands alone.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any

import pytest
from example_kinds import (
    EVERY,
    GRIFFIN,
    KIMI,
    LFM,
    LLAMA,
    MAMBA,
    MAMBA2,
    MINIMAX,
    NEXT,
    RWKV,
    V3,
    V4,
    V32,
    elements,
    states,
    weights,
)

from kvplan.cache import KINDS, kind_class
from kvplan.cache.none import NoCache
from kvplan.spec.ffn import DenseFfn, MoeFfn
from kvplan.spec.kind import CacheKind, LayerPart, Read, Stream, Tensor


def test_every_kind_is_among_the_examples_and_names_itself() -> None:
    assert set(EVERY) == set(KINDS)
    for name, mixer in EVERY.items():
        assert mixer.kind == name
        assert type(mixer) is kind_class(name)
    with pytest.raises(ValueError, match="unknown cache kind 'paged'; known: full, sliding"):
        kind_class("paged")


@pytest.mark.parametrize(
    ("mixer", "hidden", "total"),
    [
        # q and o 4096 x 4096, k and v 1024 x 4096
        (LLAMA, 4096, 2 * 4096 * 4096 + 2 * 1024 * 4096),
        # biases of q, k and v as in Qwen2, then of o as well
        (replace(LLAMA, qkv_bias=True), 4096, 41_943_040 + 4096 + 1024 + 1024),
        (replace(LLAMA, output_bias=True), 4096, 41_943_040 + 4096),
        # norms over each head (Qwen3), per head, over all heads (OLMo 2)
        (replace(LLAMA, qk_norm="head"), 4096, 41_943_040 + 2 * 128),
        (replace(LLAMA, qk_norm="heads"), 4096, 41_943_040 + (32 + 8) * 128),
        (replace(LLAMA, qk_norm="full"), 4096, 41_943_040 + 4096 + 1024),
        (replace(LLAMA, sinks=True), 4096, 41_943_040 + 32),
        (replace(LLAMA, gate_per_head=True), 4096, 41_943_040 + 32 * 4096),
        (replace(LLAMA, output_gate=True), 4096, 41_943_040 + 4096 * 4096),
        (replace(LLAMA, shared_kv_projection=True), 4096, 41_943_040 - 1024 * 4096),
        # queries by way of 2048 dimensions: 4096 x 2048, 2048 x 4096, a norm; the square 4096 x 4096 goes
        (replace(LLAMA, q_lora_rank=2048), 4096, 41_943_040 - 4096 * 4096 + 2 * 2048 * 4096 + 2048),
        # values half as wide: v 512 x 4096 and o 4096 x 2048
        (replace(LLAMA, head_dim_v=64), 4096, 41_943_040 - 512 * 4096 - 2048 * 4096),
        # an indexer of four heads of 64: queries, one key, its norm's weight and bias
        (replace(LLAMA, index_head_dim=64, index_heads=4), 4096, 41_943_040 + 4 * 64 * 4096 + 64 * 4096 + 2 * 64),
        # twice the hidden size goes in, once comes out
        (replace(LLAMA, input_size=8192), 4096, 4096 * 8192 + 2 * 1024 * 8192 + 4096 * 4096),
        (replace(EVERY["cross"], gated=True), 1280, 4 * 1280 * 1280 + 2),
        # 187,107,328 of DeepSeek-V3's 671 B parameters are in the attention of each layer
        (V3, 7168, 187_107_328),
        (replace(V3, output_gate=True), 7168, 187_107_328 + 128 * 128 * 7168),
        (replace(V3, q_lora_rank=None), 7168, 187_107_328 - 1536 * (7168 + 1 + 24_576) + 24_576 * 7168),
        # the indexer of V3.2: 64 queries of 128 from 1536, a key and its norm, a weight per head
        (V32, 7168, 187_107_328 + 64 * 128 * 1536 + 128 * 7168 + 2 * 128 + 64 * 7168),
        # mamba-130m has 129,135,360 parameters: 24 blocks with a norm each, 50,280 x 768 embeddings, a last norm
        (MAMBA, 768, (129_135_360 - 50_280 * 768 - 768) // 24 - 768),
        (replace(MAMBA, bias=True), 768, 3_770_880 + 2 * 1536 + 768),
        (replace(MAMBA, norms=True), 768, 3_770_880 + 48 + 16 + 16),
        (replace(MAMBA, conv_bias=False), 768, 3_770_880 - 1536),
        # mamba2-130m has 128,989,632: 24 blocks with a norm each, 50,288 x 768 embeddings, a last norm
        (MAMBA2, 768, (128_989_632 - 50_288 * 768 - 768) // 24 - 768),
        (replace(MAMBA2, bias=True), 768, 3_764_552 + 3352 + 768),
        (replace(MAMBA2, bias=True, output_bias=False), 768, 3_764_552 + 3352),
        (replace(MAMBA2, output_bias=True), 768, 3_764_552 + 768),
        (replace(MAMBA2, norm=False), 768, 3_764_552 - 1536),
        (replace(MAMBA2, conv_bias=False), 768, 3_764_552 - 1792),
        # q, k, v and gate 12,288 x 2048; beta and alpha 64 x 2048; taps 8192 x 4; A and dt 2 x 32; norm; o 2048 x 4096
        (NEXT, 2048, 12_288 * 2048 + 64 * 2048 + 8192 * 4 + 64 + 128 + 2048 * 4096),
        # q, k, v and o 4 x 4096 x 2304; taps 12,288 x 4; decay and gate by way of 128; beta; A and dt; norm
        (KIMI, 2304, 4 * 4096 * 2304 + 12_288 * 4 + 2 * (128 * 2304 + 4096 * 128) + 32 * 2304 + 32 + 4096 + 128),
        (
            replace(KIMI, full_rank_gate=True),
            2304,
            5 * 4096 * 2304 + 12_288 * 4 + 128 * 2304 + 4096 * 128 + 32 * 2304 + 32 + 4096 + 128,
        ),
        # q, k, v and gate 4 x 8192 x 6144, a norm over 8192, o
        (MINIMAX, 6144, 5 * 8192 * 6144 + 8192),
        # x, y and out squares of 2560; taps and bias; two gates of ten 256 x 256 blocks; four biases and the decay
        (GRIFFIN, 2560, 3 * 2560 * 2560 + 2560 * 5 + 2 * 10 * 256 * 256 + 5 * 2560 + 2560),
        # B, C and x in one 6144 x 2048 projection, three taps, out; then the biases of all three
        (LFM, 2048, 3 * 2048 * 2048 + 3 * 2048 + 2048 * 2048),
        (replace(LFM, bias=True), 2048, 4 * 2048 * 2048 + 3 * 2048 + 3 * 2048 + 2048 + 2048),
        # receptance, key, value, output; fourteen vectors; before version 7 a gate too, and fewer vectors
        (RWKV, 4096, 4 * 4096 * 4096 + 14 * 4096),
        (replace(RWKV, version=6), 4096, 5 * 4096 * 4096 + 10 * 4096),
        (replace(RWKV, version=5), 4096, 5 * 4096 * 4096 + 8 * 4096),
        (replace(RWKV, low_rank=544), 4096, 4 * 4096 * 4096 + 14 * 4096 + 544 * 2 * 4096),
        (NoCache(), 4096, 0),
        (NoCache(linear=True), 4096, 4096 * 4096),
    ],
)  # fmt: skip
def test_parameters(mixer: CacheKind, hidden: int, total: int) -> None:
    assert sum(weights(mixer, hidden).values()) == total


def test_parameters_of_compressed_attention() -> None:
    assert weights(V4, 4096) == {
        "attn_q_a": 1024 * 4096, "attn_q_a_norm": 1024, "attn_q_b": 64 * 512 * 1024, "attn_kv": 512 * 4096,
        "attn_kv_norm": 512, "attn_output_a": 8 * 1024 * (64 * 512 // 8), "attn_output_b": 4096 * 8 * 1024,
        "attn_sinks": 64, "compressor": 4 * 512 * 4096, "indexer_q": 64 * 128 * 1024, "indexer_weights": 64 * 4096,
        "indexer_compressor": 4 * 128 * 4096,
    }  # fmt: skip
    reads_another = weights(replace(V4, compressor=False), 4096)
    assert set(weights(V4, 4096)) - set(reads_another) == {"compressor", "indexer_compressor"}
    plain = weights(replace(V4, index_head_dim=None, q_lora_rank=None, o_lora_rank=None), 4096)
    assert plain["compressor"] == 2 * 512 * 4096  # no overlap without an indexer
    assert plain["attn_q_b"] == plain["attn_output"] == 64 * 512 * 4096
    assert not {"attn_q_a", "indexer_q", "attn_output_a"} & set(plain)
    assert weights(replace(V4, q_lora_rank=None), 4096)["indexer_q"] == 64 * 128 * 4096


def test_a_layer_that_stores_no_index_key_has_no_indexer() -> None:
    """Some layers read the indexer of another: heads alone make none, and neither does a size alone."""
    for mixer in (V32, V4):
        for other in (replace(mixer, index_head_dim=None), replace(mixer, index_heads=None)):
            assert not [name for name in weights(other, 4096) if name.startswith("indexer_")]
    assert len(replace(V32, index_head_dim=None).streams()) == 1
    assert len(replace(V4, index_head_dim=None).streams()) == 2


def test_a_shared_layer_may_carry_no_projections_of_its_own() -> None:
    mixer = EVERY["shared"]
    own = weights(replace(mixer, qkv_bias=True, qk_norm="head"), 2048)
    none = weights(replace(mixer, qkv_bias=True, qk_norm="head", own_kv_weights=False), 2048)
    assert own["attn_k"] == own["attn_v"] == 2 * 256 * 2048
    assert set(own) - set(none) == {"attn_k", "attn_v"}
    assert (own["attn_qkv_bias"], none["attn_qkv_bias"]) == ((8 + 2 + 2) * 256, 8 * 256)
    assert (own["attn_qk_norm"], none["attn_qk_norm"]) == (2 * 256, 256)
    full = replace(mixer, qk_norm="full", own_kv_weights=False)
    assert weights(full, 2048)["attn_qk_norm"] == 8 * 256
    assert mixer.streams() == ()


@pytest.mark.parametrize(
    ("mixer", "kept"),
    [
        (MAMBA, {"conv": 1536 * 3, "recurrent": 1536 * 16}),
        (MAMBA2, {"conv": (1536 + 2 * 128) * 3, "recurrent": 24 * 64 * 128}),
        (NEXT, {"conv": (2 * 2048 + 4096) * 3, "recurrent": 32 * 128 * 128}),
        (KIMI, {"conv": 3 * 4096 * 3, "recurrent": 32 * 128 * 128}),
        (MINIMAX, {"recurrent": 64 * 128 * 128}),
        (GRIFFIN, {"conv": 2560 * 3, "recurrent": 2560}),
        (LFM, {"conv": 2048 * 2}),
        (RWKV, {"shift": 2 * 4096, "recurrent": 64 * 64 * 64}),
        (replace(RWKV, token_shifts=1), {"shift": 4096, "recurrent": 64 * 64 * 64}),
        (LLAMA, {}),
        (NoCache(), {}),
    ],
)
def test_states(mixer: CacheKind, kept: dict[str, int]) -> None:
    assert states(mixer) == kept
    # decay, update, readout; the delta rule reads by the key first; RWKV-7 also puts that back by another vector
    products = {"gated_delta_net": 4, "kda": 4, "rwkv": 5}.get(mixer.kind, 3)
    work = {"conv": 2, "shift": 2, "recurrent": 2 * products}
    assert mixer.state_flops() == sum(elements * work[name] for name, elements in kept.items())


@pytest.mark.parametrize(
    ("mixer", "tokens", "want"),
    [
        (LLAMA, 1000, 2 * 8 * 128 * 1000),
        (replace(LLAMA, head_dim_v=64), 1000, 8 * (128 + 64) * 1000),
        (replace(LLAMA, index_head_dim=64, index_heads=4), 1000, (2 * 8 * 128 + 64) * 1000),
        (EVERY["sliding"], 4095, 2048 * 4095),
        (EVERY["sliding"], 9999, 2048 * 4096),
        (EVERY["chunked"], 9999, 2048 * 8192),
        (EVERY["cross"], 7, 2 * 20 * 64 * 1500),
        (EVERY["shared"], 1000, 0),
        (V3, 1000, 576 * 1000),
        (V32, 1000, (576 + 128) * 1000),
        # 128 recent entries of 512; 250 entries and 250 index keys stand for 1000 (and for 1003) tokens
        (V4, 1003, 128 * 512 + 250 * 512 + 250 * 128),
        (replace(V4, ratio=None), 1003, 128 * 512),
    ],
)
def test_growing_parts(mixer: CacheKind, tokens: int, want: int) -> None:
    assert elements(mixer, tokens) == want


def test_a_latent_row_equals_gqa_with_two_and_a_quarter_groups() -> None:
    """DeepSeek-V2 paper (arXiv 2405.04434), section 2.1.4."""
    group = replace(LLAMA, query_heads=128, kv_heads=1)
    assert elements(V3, 400) * 100 == elements(group, 400) * 225
    as_mha = V3.as_mha()
    assert elements(as_mha, 10) == 10 * 128 * (192 + 128)
    assert as_mha.query_heads == 128
    assert elements(LLAMA.as_mha(), 10) == 4 * elements(LLAMA, 10) == 32 * elements(LLAMA.as_mqa(), 10)


def test_flops_over_the_cache() -> None:
    # 2 per multiply-add, a product with K and one with V, for each of 32 query heads
    assert LLAMA.attention_flops(1000) == 2 * 2 * 32 * 128 * 1000
    assert LLAMA.prefill_flops(1000) == 2 * 2 * 32 * 128 * (1000 * 1001 // 2)
    assert replace(LLAMA, head_dim_v=64).attention_flops(1000) == 2 * 32 * (128 + 64) * 1000
    indexed = replace(LLAMA, index_head_dim=64, index_heads=4)
    assert indexed.attention_flops(1) - LLAMA.attention_flops(1) == 2 * 4 * 64
    assert replace(indexed, index_heads=None).attention_flops(1) - LLAMA.attention_flops(1) == 2 * 64
    # a shared layer works as much as the one it reads, over its window
    shared = EVERY["shared"]
    assert shared.attention_flops(1000) == 2 * 2 * 8 * 256 * 1000
    assert replace(shared, window=512).attention_flops(1000) == 2 * 2 * 8 * 256 * 512


def test_flops_over_latent_rows() -> None:
    # decode: scores over 576, sums over 512; prefill: K of 192 and V of 128 per head
    assert V3.attention_flops(1000) == 2 * 128 * (576 + 512) * 1000
    assert V3.prefill_flops(3) == 2 * 128 * (192 + 128) * (1 + 2 + 3)
    # with the indexer at most 2048 rows are read, while it looks at all keys
    # prefill rebuilds K and V for tokens that read all rows; the others work on the rows that each picks
    full, picked = 2048 * 2049 // 2, 2048 * (10_000 - 2048)
    scores = 2 * 128 * ((192 + 128) * full + (576 + 512) * picked)
    assert V32.prefill_flops(10_000) == scores + 2 * 64 * 128 * (10_000 * 10_001 // 2)
    assert V32.attention_flops(10_000) == 2 * 128 * (576 + 512) * 2048 + 2 * 64 * 128 * 10_000
    assert replace(V32, index_heads=None).attention_flops(1) == 2 * 128 * (576 + 512) + 2 * 128
    rows, keys = V32.reads()
    assert (rows.limit, keys.limit) == (2048, None)


def test_flops_over_compressed_entries() -> None:
    entry, key = 2 * 2 * 64 * 512, 2 * 64 * 128
    assert V4.attention_flops(100) == entry * (100 + 25) + key * 25
    assert V4.attention_flops(10_000) == entry * (128 + 512) + key * 2500
    assert replace(V4, index_heads=None).attention_flops(4) == entry * (4 + 1) + 2 * 128


@pytest.mark.parametrize("name", sorted(EVERY))
@pytest.mark.parametrize("tokens", [0, 1, 5, 127, 128, 129, 700])
def test_a_prefill_is_the_sum_of_its_tokens(name: str, tokens: int) -> None:
    """`Read.total` is a closed form: it equals what is read at 1, 2, ... tokens, one after the other."""
    mixer = EVERY[name]
    if name in ("sliding", "chunked"):
        mixer = replace(mixer, window=128)
    for read in mixer.reads():
        short = read._replace(limit=50) if read.limit is not None else read
        assert short.total(tokens) == sum(short.entries(n) for n in range(1, tokens + 1))


@pytest.mark.parametrize("ratio", [1, 4, 128])
@pytest.mark.parametrize("limit", [None, 3])
def test_a_prefill_over_compressed_entries(ratio: int, limit: int | None) -> None:
    read = Read(Stream("compressed", 1, 512, "k", ratio=ratio), 1, 1, limit)
    for tokens in range(0, 600, 37):
        assert read.total(tokens) == sum(read.entries(n) for n in range(1, tokens + 1))


PARTS: dict[str, LayerPart] = {
    **EVERY,
    "dense": DenseFfn(intermediate_size=14_336),
    "moe": MoeFfn(experts=8, experts_per_token=2, intermediate_size=14_336),
}
SIZES = [
    (name, field.name) for name, part in PARTS.items() for field in fields(part) if field.type in ("int", "int | None")
]
"""Every field of whole numbers of every kind of layer and of FFN."""
OR_NONE_AT_ALL = {("mla", "qk_rope_head_dim"), ("rwkv", "low_rank"), ("moe", "shared_intermediate_size")}


@pytest.mark.parametrize(("name", "field"), SIZES)
def test_sizes_are_above_zero(name: str, field: str) -> None:
    """Also those that only weights depend on: a layer that takes memory away passes for a model that fits."""
    may = (name, field) in OR_NONE_AT_ALL
    said = "not be negative" if may else "be above 0"
    for value in (-1, -100_000):
        with pytest.raises(ValueError, match=f"^{field} must {said}, not {value}$"):
            replace(PARTS[name], **{field: value})
    if may:
        assert getattr(replace(PARTS[name], **{field: 0}), field) == 0
    else:
        with pytest.raises(ValueError, match=f"^{field} must be above 0, not 0$"):
            replace(PARTS[name], **{field: 0})


def test_every_size_is_looked_at() -> None:
    assert {name for name, _ in SIZES} == set(PARTS) - {"none"}
    assert {("mla", "index_heads"), ("full", "query_dim"), ("cross", "input_size"), ("rwkv", "token_shifts"),
            ("compressed", "o_lora_rank"), ("shared", "window"),
            ("moe", "expert_hidden_size")} <= set(SIZES)  # fmt: skip
    for name, part in PARTS.items():
        assert part.may_be_zero == {field for kind, field in OR_NONE_AT_ALL if kind == name}


@dataclass(frozen=True, kw_only=True)
class Folded(CacheKind):
    """As the page on extending says: streams, tensors and ranks, and nothing else."""

    heads: int
    head_dim: int
    kind: str = "folded"

    def streams(self) -> tuple[Stream, ...]:
        return (Stream("folded", self.heads, self.head_dim, "k", ratio=4),)

    def tensors(self, hidden_size: int) -> tuple[Tensor, ...]:
        return (Tensor("attn_q", "attention", (self.heads * self.head_dim, hidden_size)),)

    def shard(self, tp: int) -> Folded:
        return replace(self, heads=self.heads // tp)


def test_a_kind_that_says_nothing_of_reads_reads_what_it_holds() -> None:
    (read,) = Folded(heads=8, head_dim=64).reads()
    assert (read.entries(1000), read.stream.heads * read.stream.head_dim) == (250, 8 * 64)
    assert Folded(heads=8, head_dim=64).attention_flops(1000) == 2 * 8 * 64 * 250
    with pytest.raises(ValueError, match=r"^heads must be above 0, not -8$"):
        Folded(heads=-8, head_dim=64)


def test_earlier_versions_of_rwkv_have_no_delta_rule() -> None:
    matrix = 64 * 64 * 64
    assert replace(RWKV, version=6).state_flops() == 2 * 2 * 4096 + 2 * 3 * matrix
    assert RWKV.state_flops() == 2 * 2 * 4096 + 2 * 5 * matrix


@pytest.mark.parametrize("name", sorted(EVERY))
def test_what_a_layer_holds_it_reads(name: str) -> None:
    """Every growing part is read, at the bytes that it has; only a layer without one may read another's."""
    mixer = EVERY[name]
    read = {read.stream for read in mixer.reads()}
    assert read >= set(mixer.streams())
    assert read == set(mixer.streams()) or name == "shared"
    assert all(r.flops > 0 and r.prefill_flops > 0 for r in mixer.reads())


def test_a_kind_without_weights_or_ranks_is_no_kind() -> None:
    """Said when it is made, not by the first plan on two GPUs."""
    for missing in ("tensors", "shard"):
        methods = {n: f for n, f in vars(Folded).items() if n in {"streams", "tensors", "shard"} - {missing}}
        with pytest.raises(TypeError, match=rf"abstract method '?{missing}"):
            type("Unfinished", (CacheKind,), {"kind": "unfinished", **methods})()


@pytest.mark.parametrize(
    ("name", "changes", "said"),
    [
        ("full", {"kv_heads": 5}, r"query_heads \(32\) is not a multiple of kv_heads \(5\)"),
        ("mla", {"qk_rope_head_dim": -1}, "qk_rope_head_dim must not be negative, not -1"),
        ("mamba1", {"decay_heads": 100}, r"decay_heads \(100\) do not divide inner_size \(1536\)"),
        ("mamba2", {"groups": 5}, r"mamba heads \(24\) are not a multiple of groups \(5\)"),
        ("gated_delta_net", {"key_heads": 5}, r"value_heads \(32\) is not a multiple of key_heads \(5\)"),
        ("rg_lru", {"heads": 7}, r"heads \(7\) do not divide the recurrent width \(2560\)"),
        ("rwkv", {"version": 4}, "no RWKV version 4; known: 5, 6, 7"),
    ],
)
def test_sizes_that_contradict_each_other(name: str, changes: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=f"^{said}$"):
        replace(EVERY[name], **changes)


def test_no_rotary_part_is_fine() -> None:
    assert replace(V3, qk_rope_head_dim=0).row_dim == 512


def test_matrix_kernels_of_a_step() -> None:
    """q, k, v fused and the output; latent attention has its two low-rank halves besides; no mixer, none."""
    kernels = {name: mixer.linear_kernels for name, mixer in EVERY.items()}
    assert kernels.pop("mla") == kernels.pop("compressed") == 5
    assert kernels.pop("none") == 0
    assert set(kernels.values()) == {2}

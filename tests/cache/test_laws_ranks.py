"""What tensor parallelism divides of every cache kind, and what each rank holds a copy of."""

from __future__ import annotations

from dataclasses import replace

import pytest
from example_kinds import (
    EVERY,
    LLAMA,
    MAMBA,
    MAMBA2,
    RWKV,
    V3,
    V4,
    V32,
    elements,
    states,
    weights,
)

from kvplan.cache.none import NoCache

WHOLE_ON_EVERY_RANK = {
    "mla": {"attn_q_a", "attn_q_a_norm", "attn_kv_a_mqa", "attn_kv_a_norm", "indexer_q", "indexer_k",
            "indexer_weights", "indexer_norm"},
    "compressed": {"attn_q_a", "attn_q_a_norm", "attn_kv", "attn_kv_norm", "compressor", "indexer_q",
                   "indexer_weights", "indexer_compressor"},
    "gated_delta_net": {"ssm_norm"},
    "kda": {"ssm_f_a", "ssm_g_a", "ssm_norm"},
    "rg_lru": {"linear_out_bias"},
}  # fmt: skip
"""Weights that tensor parallelism copies: all others are divided."""


@pytest.mark.parametrize("name", sorted(set(EVERY) - {"mamba1", "mamba2", "none"}))
def test_ranks_divide_weights_or_copy_them(name: str) -> None:
    mixer, hidden = EVERY[name], 2560
    rank, whole = weights(mixer.shard(2), hidden), weights(mixer, hidden)
    copied = WHOLE_ON_EVERY_RANK.get(name, set())
    assert rank == {n: size if n in copied else size // 2 for n, size in whole.items()}


@pytest.mark.parametrize("name", ["full", "sliding", "chunked", "cross"])
def test_ranks_divide_kv_heads_down_to_one(name: str) -> None:
    mixer = replace(EVERY[name], query_heads=32, kv_heads=8, head_dim=128)
    heads = {tp: (mixer.shard(tp).query_heads, mixer.shard(tp).kv_heads) for tp in (1, 2, 8, 16, 32)}
    assert heads == {1: (32, 8), 2: (16, 4), 8: (4, 1), 16: (2, 1), 32: (1, 1)}
    assert elements(mixer.shard(16), 100) == elements(mixer.shard(8), 100) == elements(mixer, 100) // 8
    with pytest.raises(ValueError, match=r"query_heads \(32\) cannot be divided by tensor parallel size 64"):
        mixer.shard(64)
    with pytest.raises(ValueError, match=r"kv_heads \(8\) cannot be divided by tensor parallel size 3"):
        replace(mixer, query_heads=48).shard(3)
    with pytest.raises(ValueError, match=r"kv_heads \(8\) neither divides nor is divided by .* 12"):
        replace(mixer, query_heads=48).shard(12)


def test_ranks_divide_an_output_of_another_width() -> None:
    odd = replace(LLAMA, query_dim=2048)
    assert weights(odd, 4096)["attn_output"] == 4096 * 2048
    assert odd.shard(4).query_dim == 512
    with pytest.raises(ValueError, match=r"attention output width \(2048\)"):
        replace(odd, query_heads=48, kv_heads=48, head_dim=64).shard(3)


@pytest.mark.parametrize("name", ["mamba1", "gated_delta_net", "kda", "lightning", "short_conv", "rg_lru"])
def test_ranks_divide_states(name: str) -> None:
    assert states(EVERY[name].shard(2)) == {n: size // 2 for n, size in states(EVERY[name]).items()}


def test_ranks_copy_latent_rows_and_token_shifts() -> None:
    for mixer in (V3, V32, V4):
        assert mixer.shard(8).streams() == mixer.streams()
        assert mixer.shard(8).query_heads == mixer.query_heads // 8
    assert states(RWKV.shard(4)) == {"shift": 2 * 4096, "recurrent": 16 * 64 * 64}
    assert V4.shard(4).o_groups == 2
    with pytest.raises(ValueError, match=r"^output groups \(8\) cannot be divided by tensor parallel size 16$"):
        V4.shard(16)  # 64 heads would divide, half a group has no matrix
    assert replace(V4, o_groups=None, o_lora_rank=None).shard(2).o_groups is None
    assert NoCache(linear=True).shard(2) == NoCache(linear=True)


def test_ranks_of_state_space_layers() -> None:
    """B and C of Mamba 2 are divided by groups; where these do not divide, each rank has one group of its own."""
    eight = replace(MAMBA2, groups=8)
    assert (eight.shard(4).heads, eight.shard(4).groups) == (6, 2)
    assert (eight.shard(8).heads, eight.shard(8).groups) == (3, 1)
    assert replace(MAMBA2, heads=48, groups=2).shard(16).groups == 1
    assert MAMBA2.shard(4).conv_channels == 1536 // 4 + 2 * 128
    by_head = replace(MAMBA, decay_heads=48)
    assert (by_head.shard(4).inner_size, by_head.shard(4).decay_heads) == (384, 12)
    assert MAMBA.shard(4).decay_heads is None
    assert weights(by_head, 768)["ssm_a_d_dt_bias"] == 48 * 3
    assert weights(by_head, 768)["ssm_dt"] == 48 * 48
    with pytest.raises(ValueError, match="mamba heads"):
        by_head.shard(32)


@pytest.mark.parametrize(
    ("name", "what"),
    [
        ("mamba1", "mamba inner size"), ("mamba2", "mamba heads"), ("gated_delta_net", "linear key heads"),
        ("kda", "linear heads"), ("lightning", "linear heads"), ("short_conv", "convolution channels"),
        ("rwkv", "heads"), ("rg_lru", "recurrent width"), ("mla", "query_heads"), ("compressed", "query_heads"),
    ],
)  # fmt: skip
def test_what_does_not_divide_is_named(name: str, what: str) -> None:
    with pytest.raises(ValueError, match=rf"^{what} \(\d+\) cannot be divided by tensor parallel size 7$"):
        EVERY[name].shard(7)

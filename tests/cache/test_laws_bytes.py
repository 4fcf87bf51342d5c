"""The one formula of bytes, held against counting entry by entry and against figures worked by hand."""

from __future__ import annotations

from functools import cache

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvplan import load_model
from kvplan.cache.bytes import (
    KvFormats,
    bytes_per_token,
    fixed_bytes,
    longest_sequence,
    mixer_bytes,
    prefix_bytes,
    sequence_bytes,
    state_bytes,
    stream_rows,
)
from kvplan.cache.sharding import legal_sizes, shard_model
from kvplan.errors import UnsupportedError
from kvplan.spec.formats import get_format
from kvplan.spec.model import ModelSpec

MODELS = (
    "llama-3.1-8b", "deepseek-v3", "deepseek-v3.2", "deepseek-v4-flash", "gemma-3-27b", "gpt-oss-20b",
    "qwen3-next-80b-a3b", "falcon-h1-7b", "whisper-large-v3", "rwkv-7-g1-7.2b",
)  # fmt: skip


@cache
def model(name: str) -> ModelSpec:
    return load_model(name)


def formats(k: str = "bf16", v: str | None = None, index: str = "bf16", **rest: object) -> KvFormats:
    given = dict(conv_bytes=2, recurrent_bytes=4) | rest
    return KvFormats(get_format(k), get_format(v or k), get_format(index), **given)


def counted(name: str, tokens: int, dcp: int = 1) -> int:
    """Bytes in 16 bits by counting, token by token, what is kept: no closed form, no formats."""
    total = 0
    for layers, mixer in model(name).mixers():
        for stream in mixer.streams():
            if stream.fixed_entries is not None:
                kept = stream.fixed_entries
            else:
                # rank 0 of `dcp` keeps tokens 0, dcp, 2 dcp ... of what is not bounded by a window
                mine = [t for t in range(tokens) if stream.window is not None or t % dcp == 0]
                entries = [n for n, _ in enumerate(mine) if (n + 1) % stream.ratio == 0]
                kept = len(entries if stream.window is None else entries[-stream.window :])
            total += layers * kept * stream.heads * stream.head_dim * 2
        for state in mixer.states():
            total += layers * state.channels * state.columns * (4 if state.name == "recurrent" else 2)
    return total


@pytest.mark.parametrize("name", MODELS)
@given(tokens=st.integers(0, 1500))
def test_a_sequence_is_what_counting_finds(name: str, tokens: int) -> None:
    assert sequence_bytes(model(name), tokens, formats()) == counted(name, tokens)


@pytest.mark.parametrize("name", ["llama-3.1-8b", "deepseek-v3.2", "gemma-3-27b", "gpt-oss-20b"])
@given(tokens=st.integers(0, 1500), dcp=st.sampled_from([2, 3, 4, 8]))
def test_a_rank_of_context_parallelism_is_what_counting_finds(name: str, tokens: int, dcp: int) -> None:
    assert sequence_bytes(model(name), tokens, formats(), dcp=dcp) == counted(name, tokens, dcp)


@pytest.mark.parametrize("name", MODELS)
@given(tokens=st.integers(0, 3000))
def test_a_token_adds_the_slope(name: str, tokens: int) -> None:
    """Over a run of tokens that is a multiple of every ratio, and that crosses no window, growth is the slope."""
    ratios = [s.ratio for _, mixer in model(name).mixers() for s in mixer.streams()]
    windows = [s.window * s.ratio for _, mixer in model(name).mixers() for s in mixer.streams() if s.window]
    run = max(ratios, default=1)
    assert all(run % ratio == 0 for ratio in ratios)
    tokens = tokens // run * run
    if any(tokens < window < tokens + run for window in windows):
        return
    grown = sequence_bytes(model(name), tokens + run, formats()) - sequence_bytes(model(name), tokens, formats())
    slope = bytes_per_token(model(name), formats(), at=tokens)
    assert run * slope - run < grown <= run * slope


def test_slopes_in_round_figures() -> None:
    assert bytes_per_token(model("llama-3.1-8b"), formats()) == 2 * 32 * 8 * 128 * 2
    assert bytes_per_token(model("llama-3.1-8b"), formats(), dcp=8) == 2 * 32 * 8 * 128 * 2 // 8
    assert bytes_per_token(model("llama-3.1-8b"), formats(), dcp=3) == -(-131_072 // 3)
    assert bytes_per_token(model("deepseek-v3"), formats()) == 61 * 576 * 2
    # Gemma 3 27B: 62 layers of 16 heads of 128, every sixth of them global, the others over 1024 tokens
    assert bytes_per_token(model("gemma-3-27b"), formats()) == 62 * 2 * 16 * 128 * 2
    assert bytes_per_token(model("gemma-3-27b"), formats(), at=1023) == 62 * 2 * 16 * 128 * 2
    assert bytes_per_token(model("gemma-3-27b"), formats(), at=1024) == 10 * 2 * 16 * 128 * 2
    # a window is kept whole by every rank of context parallelism
    assert bytes_per_token(model("gemma-3-27b"), formats(), dcp=2) == (52 + 10 / 2) * 2 * 16 * 128 * 2
    assert bytes_per_token(model("whisper-large-v3"), formats()) == 32 * 2 * 1280 * 2


def test_draft_layers_count_where_asked() -> None:
    v3, row = model("deepseek-v3"), 576 * 2
    assert bytes_per_token(v3, formats(), drafts=True) == 62 * row
    assert sequence_bytes(v3, 100, formats(), drafts=True) == 100 * 62 * row
    assert sequence_bytes(v3, 100, formats()) == 100 * 61 * row
    assert fixed_bytes(v3, formats(), drafts=True) == 0


def test_what_a_request_holds_before_its_first_token() -> None:
    # Whisper large v3: 32 decoder layers over 1500 positions of the encoder
    assert fixed_bytes(model("whisper-large-v3"), formats()) == 32 * 2 * 1280 * 1500 * 2
    assert fixed_bytes(model("llama-3.1-8b"), formats()) == 0
    # Qwen3-Next: 36 layers with 32 matrices of 128 x 128 and three columns of 8192 channels
    assert fixed_bytes(model("qwen3-next-80b-a3b"), formats()) == 36 * (32 * 128 * 128 * 4 + 8192 * 3 * 2)
    wide = formats(short_convolutions=frozenset())
    assert fixed_bytes(model("qwen3-next-80b-a3b"), wide) == 36 * (32 * 128 * 128 * 4 + 8192 * 4 * 2)
    short = formats(short_convolutions=frozenset({"gated_delta_net"}))
    assert fixed_bytes(model("qwen3-next-80b-a3b"), short) == fixed_bytes(model("qwen3-next-80b-a3b"), formats())


def test_bytes_of_each_state_follow_its_own_dtype() -> None:
    (mixer,) = {m for _, m in model("rwkv-7-g1-7.2b").mixers() if m.states()}
    shift, matrix = 2 * 4096, 64 * 64 * 64
    assert state_bytes(mixer, formats(conv_bytes=4, recurrent_bytes=4)) == 4 * (shift + matrix)
    assert state_bytes(mixer, formats(conv_bytes=2, recurrent_bytes=4)) == 2 * shift + 4 * matrix
    # only convolutions have a column more
    assert state_bytes(mixer, formats(conv_bytes=2, short_convolutions=frozenset())) == 2 * shift + 4 * matrix


def test_kivi_keeps_its_newest_128_tokens_in_16_bits() -> None:
    """KIVI (arXiv 2402.02750): below the residual length nothing is quantised, above it all but the newest are."""
    stored, wide = formats("kivi_2bit_g32"), formats()
    llama = model("llama-3.1-8b")
    packed = 131_072 * 3 // 16  # 2 bits, and 32 bits of scale and zero point for 32 elements
    for tokens in (0, 1, 127, 128):
        assert sequence_bytes(llama, tokens, stored) == sequence_bytes(llama, tokens, wide)
    for tokens in (129, 1000):
        assert sequence_bytes(llama, tokens, stored) == 128 * 131_072 + (tokens - 128) * packed


@pytest.mark.parametrize(
    ("name", "head"), [("turboquant_k8v4", 196), ("turboquant_4bit_nc", 134), ("turboquant_k3v4_nc", 118),
                       ("turboquant_3bit_nc", 102)],
)  # fmt: skip
def test_k_and_v_of_a_head_are_rounded_up_together(name: str, head: int) -> None:
    """Bytes of one token and head of 128, K and V, as vLLM 0.33.0 lays them out."""
    mixer = next(m for _, m in model("llama-3.1-8b").mixers())
    assert sum(size for _, size, _ in stream_rows(mixer, formats(name))) == 8 * head


def test_turboquant_leaves_two_layers_at_each_end() -> None:
    stored = formats("turboquant_k8v4")
    llama = model("llama-3.1-8b")
    per_layer = 8 * 196  # 196 bytes a head, as vLLM 0.33.0 prints for these heads of 128
    token = 28 * per_layer + 4 * 2 * 8 * 128 * 2
    assert bytes_per_token(llama, stored) == token
    assert sequence_bytes(llama, 1000, stored) == 1000 * token
    assert sequence_bytes(llama, 1000, stored, dcp=8) == 125 * token
    assert sequence_bytes(llama, 1001, stored, dcp=8) == 126 * token
    assert bytes_per_token(llama, stored, dcp=3) == -(-token // 3)
    # models with windows or states are quantised throughout
    for name in ("gpt-oss-20b", "falcon-h1-7b"):
        rows = sum(layers * size for layers, m in model(name).mixers() for _, size, _ in stream_rows(m, stored))
        assert bytes_per_token(model(name), stored) == rows


def test_turboquant_counts_encoder_rows_of_outer_layers_once() -> None:
    """Cross attention holds its 1,500 rows whatever the text: the four outer layers' surplus is no part of a token."""
    stored, whisper = formats("turboquant_4bit_nc"), model("whisper-large-v3")
    packed, plain = 20 * (2 * (64 // 2) + 6), 20 * 2 * 64 * 2
    token = 28 * packed + 4 * plain
    assert bytes_per_token(whisper, stored) == token
    assert fixed_bytes(whisper, stored) == 1500 * token
    assert sequence_bytes(whisper, 448, stored) == (1500 + 448) * token


def test_turboquant_spares_the_models_ends_and_not_those_of_every_stage() -> None:
    stored, llama = formats("turboquant_4bit_nc"), model("llama-3.1-8b")
    packed, plain = 8 * (2 * (128 // 2) + 6), 8 * 2 * 128 * 2
    stage = shard_model(llama, tp=1, layers=llama.layers[:8])
    assert bytes_per_token(stage, stored, ends=(True, False)) == 6 * packed + 2 * plain
    assert bytes_per_token(stage, stored, ends=(False, False)) == 8 * packed
    assert bytes_per_token(stage, stored, ends=(False, True)) == 6 * packed + 2 * plain


@pytest.mark.parametrize("name", ["llama-3.1-8b", "gemma-3-27b", "deepseek-v3.2", "whisper-large-v3"])
@pytest.mark.parametrize("dcp", [1, 2])
def test_a_shared_prefix_is_what_no_window_forgets(name: str, dcp: int) -> None:
    if name == "whisper-large-v3" and dcp > 1:
        return
    kept = [
        layers * -(-1001 // dcp) * s.heads * s.head_dim * 2
        for layers, m in model(name).mixers()
        for s in m.streams()
        if s.window is None and s.fixed_entries is None
    ]
    assert prefix_bytes(model(name), 1001, formats(), dcp=dcp) == sum(kept)


@pytest.mark.parametrize("name", ["llama-3.1-8b", "deepseek-v3", "deepseek-v3.2"])
@pytest.mark.parametrize("stored", ["bf16", "fp8_e4m3", "q8_0", "turboquant_k8v4", "turboquant_4bit_nc"])
@given(tokens=st.integers(0, 200_000), dcp=st.sampled_from([1, 2, 3, 8]))
def test_a_prefix_of_nothing_but_plain_tokens_is_the_sequence(name: str, stored: str, tokens: int, dcp: int) -> None:
    """Without windows, states, encoder rows and a residue, all of a sequence can be shared, its outer layers too."""
    kept = formats(stored)
    assert prefix_bytes(model(name), tokens, kept, dcp=dcp) == sequence_bytes(model(name), tokens, kept, dcp=dcp)


def test_prefixes_in_round_figures() -> None:
    # 28 layers of 134 bytes a head (4 bits), 4 outer layers of 512
    assert prefix_bytes(model("llama-3.1-8b"), 4096, formats("turboquant_4bit_nc")) == 4096 * 8 * (28 * 134 + 4 * 512)
    assert prefix_bytes(model("llama-3.1-8b"), 1000, formats()) == 131_072_000
    assert prefix_bytes(model("gemma-3-27b"), 1000, formats()) == 10 * 2 * 16 * 128 * 2 * 1000
    assert prefix_bytes(model("deepseek-v4-flash"), 1000, formats()) < sequence_bytes(
        model("deepseek-v4-flash"), 1000, formats()
    )
    assert prefix_bytes(model("whisper-large-v3"), 0, formats()) == 0


def test_k_v_and_index_keys_each_have_their_format() -> None:
    (mixer,) = {m for _, m in model("deepseek-v3.2").mixers()}
    rows = stream_rows(mixer, formats("fp8_e4m3", index="bf16"))
    assert [(s.name, size, fmt.name) for s, size, fmt in rows] == [
        ("latent", 576, "fp8_e4m3"), ("index", 256, "bf16"),
    ]  # fmt: skip
    llama = next(m for _, m in model("llama-3.1-8b").mixers())
    assert [size for _, size, _ in stream_rows(llama, formats("bf16", "fp8_e4m3"))] == [2048, 1024]
    assert mixer_bytes(llama, 10, formats("bf16", "fp8_e4m3")) == 10 * 3072
    # q8_0 K beside q4_0 V: 34 bytes and 18 bytes for 32 elements
    assert mixer_bytes(llama, 1, formats("q8_0", "q4_0")) == 1024 // 32 * (34 + 18)


def test_the_longest_sequence_to_the_byte() -> None:
    llama = model("llama-3.1-8b")
    assert longest_sequence(llama, 131_072 * 77, formats()) == 77
    assert longest_sequence(llama, 131_072 * 77 - 1, formats()) == 76
    assert longest_sequence(llama, 131_071, formats()) == 0
    assert longest_sequence(llama, 131_072 * 5, formats(), dcp=8) == 40
    assert longest_sequence(llama, 131_072 * 77, formats(), limit=77) is None
    # states alone: any length, or none
    rwkv = model("rwkv-7-g1-7.2b")
    state = fixed_bytes(rwkv, formats())
    assert longest_sequence(rwkv, state, formats()) is None
    assert longest_sequence(rwkv, state - 1, formats()) == 0


def test_sharding_names_what_works() -> None:
    llama = model("llama-3.1-8b")
    assert legal_sizes(llama) == [1, 2, 4, 8, 16, 32]
    assert legal_sizes(llama, 8) == [1, 2, 4, 8]
    assert legal_sizes(llama, 7) == [1, 2, 4]
    with pytest.raises(UnsupportedError) as caught:
        shard_model(llama, tp=3)
    assert "llama-3.1-8b: query_heads (32)" in str(caught.value)
    assert caught.value.hint == "sizes that work: 1, 2, 4, 8, 16, 32"
    assert caught.value.where == "--tensor-parallel-size"


def test_a_stage_has_its_layers_and_the_last_one_the_drafts() -> None:
    v3 = model("deepseek-v3")
    stage = shard_model(v3, tp=1, layers=v3.layers[:10], drafts=False)
    assert (stage.num_layers, stage.draft_layers) == (10, ())
    assert sequence_bytes(stage, 7, formats(), drafts=True) == 7 * 10 * 576 * 2
    last = shard_model(v3, tp=1, layers=v3.layers[-10:])
    assert sequence_bytes(last, 7, formats(), drafts=True) == 7 * 11 * 576 * 2
    assert shard_model(v3, tp=1) == v3

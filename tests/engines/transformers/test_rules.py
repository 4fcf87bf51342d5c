"""Rules of transformers' caches by version, and what it refuses."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given as drawn
from hypothesis import strategies as st

from kvplan import load_gpu, load_model, plan
from kvplan.engines.transformers import cache
from kvplan.errors import InputError, KvplanError, UnsupportedError
from kvplan.sources.hf.read import read_config


def held(model: str, engine: str = "transformers", **settings: Any) -> int:
    allocation = plan(model, engine=engine, **settings).allocation
    assert allocation is not None
    return allocation.bytes


@pytest.mark.parametrize(("version", "row"), [("5.24.0", 1152), ("5.15.1", 1152), ("5.14.1", 81920), ("4.57.6", 81920)])
def test_latent_rows_since_5_15(version: str, row: int) -> None:
    assert held("deepseek-v3", f"transformers@{version}", prompt_tokens=999, output_tokens=1) == 61 * 1000 * row


def test_windows_keep_one_token_less_and_static_ones_do_not() -> None:
    token = 2 * 16 * 128 * 2
    assert held("gemma-3-27b", prompt_tokens=3999, output_tokens=1) == token * (10 * 4000 + 52 * 1023)
    static = held("gemma-3-27b", cache_implementation="static", max_cache_len=4000)
    assert static == token * (10 * 4000 + 52 * 1024)


def test_static_takes_the_maximum_length() -> None:
    assert held("llama-3.1-8b", cache_implementation="static", max_model_len=2048, concurrency=3) == 3 * 2048 * 131072


def test_a_rolled_static_window_is_copied() -> None:
    short = plan("gemma-3-27b", engine="transformers", cache_implementation="static", max_model_len=4096).allocation
    far = plan(
        "gemma-3-27b", engine="transformers", cache_implementation="static", max_model_len=4096, prompt_tokens=3000,
    ).allocation  # fmt: skip
    assert short is not None
    assert far is not None
    assert short.peak_bytes is not None
    assert far.peak_bytes == short.bytes + 1024 * 2 * 16 * 128 * 2


def test_mamba_states_were_in_the_model_dtype() -> None:
    new = plan("jamba-1.5-mini", engine="transformers").allocation
    old = plan("jamba-1.5-mini", engine="transformers@4.57.6").allocation
    assert new is not None
    assert old is not None
    (now,) = new.states
    (then,) = old.states
    assert now.v_bytes == 2 * then.v_bytes == 28 * 8192 * 16 * 4
    assert now.k_bytes == then.k_bytes == 28 * 8192 * 4 * 2


@pytest.mark.parametrize(
    ("model", "settings"),
    [
        ("gemma-3-27b", {}),
        ("jamba-1.5-mini", {}),
        ("deepseek-v3.2", {}),
        ("llama-3.1-8b", {"cache_nbits": 8}),
        ("llama-3.1-8b", {"cache_backend": "hqq", "cache_nbits": 3}),
        ("llama-3.1-8b", {"cache_backend": "awq"}),
        ("llama-3.1-8b", {"cache_backend": "fp8", "cache_nbits": 8}),
        ("llama-3.1-8b", {"cache_group_size": 96}),
        ("llama-3.1-8b", {"kv_cache_dtype": "fp8"}),
    ],
)
def test_quantised_refusals(model: str, settings: dict[str, Any]) -> None:
    with pytest.raises(UnsupportedError) as caught:
        plan(model, engine="transformers", cache_implementation="quantized", **settings)
    assert caught.value.hint


def test_the_old_release_quantises_windows_at_full_length() -> None:
    size = held(
        "gemma-2-9b", "transformers@4.57.6", cache_implementation="quantized", prompt_tokens=8000, output_tokens=128
    )
    assert size == 42 * 8128 * 2 * 8 * 256 * 9 // 16


def test_fp8_came_late() -> None:
    with pytest.raises(UnsupportedError, match=r"5\.22"):
        plan("llama-3.1-8b", engine="transformers@5.20.2", cache_implementation="quantized", cache_backend="fp8")


@pytest.mark.parametrize("name", ["cache_nbits", "cache_group_size", "max_cache_len"])
def test_settings_of_another_cache(name: str) -> None:
    given: dict[str, Any] = {name: 4}
    with pytest.raises(InputError):
        plan("llama-3.1-8b", engine="transformers", **given)


@pytest.mark.parametrize("name", ["offloaded", "paged", "sliding"])
def test_other_implementations(name: str) -> None:
    with pytest.raises(UnsupportedError):
        plan("llama-3.1-8b", engine="transformers", cache_implementation=name)


@pytest.mark.parametrize("value", [0, -1, 2.5, "64", True])
def test_bad_numbers(value: Any) -> None:
    with pytest.raises(KvplanError):
        plan("llama-3.1-8b", engine="transformers", cache_implementation="quantized", cache_group_size=value)


def test_prompt_of_a_windowed_model_needs_full_attention_memory() -> None:
    made = plan("gemma-3-27b", gpu=load_gpu("h100-sxm"), engine="transformers", max_model_len=65536)
    assert made.verdict.fits is False
    assert made.verdict.binding == "kv"
    assert made.capacity is not None
    assert made.capacity.max_single_request_tokens is not None
    assert made.capacity.kv_tokens is not None
    assert made.capacity.max_single_request_tokens < 65536 < made.capacity.kv_tokens


def test_batches_share_nothing() -> None:
    made = plan("llama-3.1-8b", engine="transformers", concurrency=4, shared_prefix_tokens=512)
    assert made.kv.shared_prefix is not None
    assert made.kv.shared_prefix.bytes_saved == 0


def test_tensor_parallel_divides_heads_but_not_latent_rows() -> None:
    assert held("llama-3.1-8b", tensor_parallel_size=4) * 4 == held("llama-3.1-8b")
    assert held("deepseek-v3", tensor_parallel_size=8) == held("deepseek-v3")


@drawn(
    prompt=st.integers(1, 5000), steps=st.integers(0, 700), residual=st.integers(0, 200), bits=st.sampled_from([2, 4])
)
def test_the_residual_is_what_steps_make_it(prompt: int, steps: int, residual: int, bits: int) -> None:
    """Against the loop that the engine runs: one token at a time, everything requantised when the residual is full."""
    quantised, waiting = prompt, 0
    for _ in range(steps):
        if waiting + 1 >= residual:
            quantised, waiting = quantised + waiting + 1, 0
        else:
            waiting += 1
    layout = cache.Layout("quantized", 2, 4, 0, "quanto", bits, 64, residual)
    assert layout.split(prompt, prompt + steps) == (quantised, waiting)


@drawn(prompt=st.integers(1, 4000), steps=st.integers(0, 500), more=st.integers(1, 300))
def test_laws(prompt: int, steps: int, more: int) -> None:
    """More tokens never take fewer bytes, and the peak is never below what is held."""
    from kvplan.engines.rows import cache_rows

    rows = cache_rows(load_model("gpt-oss-20b"))
    layout = cache.Layout("dynamic", 2, 4, 0)
    one = sum(p.bytes for p in cache.pools(rows, layout, 2, prompt, prompt + steps))
    two = sum(p.bytes for p in cache.pools(rows, layout, 2, prompt, prompt + steps + more))
    assert one <= two <= cache.peak_bytes(rows, layout, 2, prompt, prompt + steps + more)


@pytest.mark.parametrize("implementation", ["dynamic", "static"])
def test_windows_that_are_in_the_mask_alone_cut_no_cache(implementation: str) -> None:
    """GPT-Neo 1.3B: 24 layers keep K and V of all 2,048 tokens, 402,653,184 bytes in 16 bits."""
    config = {
        "model_type": "gpt_neo", "hidden_size": 2048, "num_layers": 24, "num_heads": 16, "vocab_size": 50257,
        "attention_types": [[["global", "local"], 12]], "window_size": 256, "max_position_embeddings": 2048,
        "torch_dtype": "bfloat16",
    }  # fmt: skip
    made = plan(
        read_config(config), engine="transformers", max_model_len=2048, cache_implementation=implementation
    )  # fmt: skip
    assert made.kv.bytes_per_sequence_per_gpu == 24 * 2 * 2048 * 2048 * 2 == 402_653_184

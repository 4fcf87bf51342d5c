"""How MLX-LM's caches grow, which model gets which, and what it refuses."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvplan import load_gpu, plan
from kvplan.engines.mlx import growth
from kvplan.errors import InputError, UnsupportedError
from kvplan.units import MIB

PUSHES = st.tuples(st.integers(1, 4000), st.integers(0, 900), st.sampled_from([1, 7, 100, 256, 300, 512, 2048]))


def follow_plain(prompt: int, tokens: int, step: int) -> int:
    """The plain cache, push by push, in the words of its rules rather than its code."""
    used = slots = 0
    sizes = [step] * (prompt // step) + [prompt % step] * (prompt % step > 0) + [1] * (tokens - prompt)
    for size in sizes:
        if used + size > slots:
            if used % 256:
                slots = used  # the tail is cut off
            slots += -(-size // 256) * 256
        used += size
    return slots


def follow_rotating(prompt: int, tokens: int, step: int, window: int) -> int:
    slots = used = 0
    sizes = [step] * (prompt // step) + [prompt % step] * (prompt % step > 0) + [1] * (tokens - prompt)
    for size in sizes:
        if size > 1:
            slots = min(slots, window - 1) + size
        else:
            if used >= slots and slots < window:
                slots += min(256, window - used)
            slots = min(slots, window)
        used += size
    return slots


@given(pushes=PUSHES)
def test_plain_growth(pushes: tuple[int, int, int]) -> None:
    prompt, more, step = pushes
    assert growth.plain(prompt, prompt + more, step).last == follow_plain(prompt, prompt + more, step)


@given(pushes=PUSHES, window=st.sampled_from([1, 2, 100, 128, 300, 512, 1000]))
@settings(max_examples=200)
def test_rotating_growth(pushes: tuple[int, int, int], window: int) -> None:
    prompt, more, step = pushes
    found = growth.rotating(prompt, prompt + more, step, window)
    assert found.last == follow_rotating(prompt, prompt + more, step, window)


def test_growth_far_out_costs_no_time() -> None:
    assert growth.plain(2**40, 2**40 + 1, 2048).last == 2**40 + 256
    assert growth.rotating(2**40, 2**40, 2048, 512).after_prompt == 511 + 2048


@pytest.mark.parametrize(
    ("prompt", "more", "step", "slots"), [(1000, 0, 2048, 1024), (1000, 30, 2048, 1280), (5000, 200, 512, 5376)]
)
def test_documented_growth(prompt: int, more: int, step: int, slots: int) -> None:
    assert growth.plain(prompt, prompt + more, step).last == slots


def held(model: str, **given: Any) -> int:
    allocation = plan(model, engine="mlx", **given).allocation
    assert allocation is not None
    return allocation.bytes


def test_windows_only_where_the_class_makes_rotating_caches() -> None:
    token = 2 * 8 * 256 * 2
    assert held("gemma-2-9b", prompt_tokens=8000, output_tokens=100) == 42 * 8192 * token  # keeps everything
    token = 2 * 16 * 128 * 2
    assert held("gemma-3-27b", prompt_tokens=8000, output_tokens=100) == token * (10 * 8192 + 52 * 1024)
    assert held("mistral-7b-v0.1", prompt_tokens=8000, output_tokens=100) == 32 * 8192 * 4096


def test_the_prompt_of_a_windowed_layer_comes_in_chunks() -> None:
    made = plan("gemma-3-27b", engine="mlx", prompt_tokens=8192, output_tokens=1).allocation
    assert made is not None
    assert made.peak_bytes is not None
    assert made.peak_bytes >= 2 * 16 * 128 * 2 * (10 * 8192 + 52 * (1023 + 2048))


def test_max_kv_size_is_ignored_by_models_with_caches_of_their_own() -> None:
    made = plan("llama-3.1-8b", engine="mlx", max_kv_size=1024, prompt_tokens=3000, output_tokens=3)
    assert made.allocation is not None
    assert made.allocation.bytes == 3072 * 131072
    assert any("max-kv-size" in w for w in made.warnings)
    assert held("qwen3-32b", max_kv_size=1024, prompt_tokens=3000, output_tokens=3) == 1024 * 262144


def test_quantised_from_5000_tokens_on() -> None:
    assert held("llama-3.1-8b", kv_bits=4, prompt_tokens=4000, output_tokens=100) == 4352 * 131072
    assert held("llama-3.1-8b", kv_bits=4, prompt_tokens=8000, output_tokens=192) == 8192 * 131072 * 9 // 32


@pytest.mark.parametrize(
    ("model", "given_settings"),
    [
        ("gemma-3-27b", {"kv_bits": 4}),
        ("gpt-oss-20b", {"kv_bits": 8}),
        ("deepseek-v3", {"kv_bits": 4}),
        ("llama-3.1-8b", {"kv_bits": 7}),
        ("llama-3.1-8b", {"kv_bits": 4, "kv_group_size": 48}),
        ("phi-2", {"kv_bits": 4, "quantized_kv_start": 0}),
        ("qwen3-32b", {"kv_bits": 4, "max_kv_size": 8192}),
        ("deepseek-v4-flash", {}),
        ("llama-3.1-8b", {"kv_cache_dtype": "fp8"}),
    ],
)
def test_refusals(model: str, given_settings: dict[str, Any]) -> None:
    with pytest.raises(UnsupportedError) as caught:
        plan(model, engine="mlx", **given_settings)
    assert caught.value.hint


def test_a_group_without_bits() -> None:
    with pytest.raises(InputError):
        plan("llama-3.1-8b", engine="mlx", kv_group_size=32)


def test_falcon_h1_caches_are_never_converted() -> None:
    plain = held("falcon-h1-7b", prompt_tokens=8000, output_tokens=1)
    assert held("falcon-h1-7b", kv_bits=4, prompt_tokens=8000, output_tokens=1) == plain


def test_the_wired_limit() -> None:
    gpu = load_gpu("apple-m2-max")
    made = plan("llama-3.1-8b", gpu=gpu, engine="mlx")
    assert made.memory is not None
    assert made.memory[0].budget_bytes == gpu.device_bytes * 3 // 4 // MIB * MIB
    raised = plan("llama-3.1-8b", gpu=gpu, engine="mlx", iogpu_wired_limit_mb=88_000)
    assert raised.memory is not None
    assert raised.memory[0].budget_bytes == 88_000 * MIB


@given(prompt=st.integers(1, 9000), steps=st.integers(1, 600))
@settings(max_examples=30, deadline=None)
def test_peak_is_never_below_what_is_held(prompt: int, steps: int) -> None:
    made = plan("gpt-oss-20b", engine="mlx", prompt_tokens=prompt, output_tokens=steps, max_model_len=16384).allocation
    assert made is not None
    assert made.peak_bytes is not None
    assert made.bytes <= made.peak_bytes

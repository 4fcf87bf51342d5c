"""Caches of ``generate()`` on random shapes, tensor by tensor, and what transformers refuses.

Read in transformers 5.24.0 ``src/transformers/cache_utils.py`` (``DynamicLayer``, ``DynamicSlidingWindowLayer``,
``StaticLayer``, ``QuantizedLayer``) and ``generation/utils.py``.
"""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from at_random import Shape, latent, plain, windowed, worked

from kvplan import load_model, plan
from kvplan.errors import KvplanError
from kvplan.planning.planner import plan_deployment


def wide(shape: Shape) -> tuple[int, int]:
    """Elements of K and of V of a token in one layer."""
    return (shape.rank, shape.rope) if shape.rank else (shape.kv_heads * shape.head_dim,) * 2


def kept(window: int | None, tokens: int) -> int:
    """A sliding layer keeps one token less than its window: the next one completes it."""
    return tokens if window is None else min(tokens, window - 1)


@pytest.mark.parametrize("seed", range(8))
def test_dynamic_and_static(seed: int) -> None:
    rng = Random(f"dynamic {seed}")
    for _ in range(20):
        shape = rng.choice([plain, windowed, latent])(rng)
        batch, prompt, output = rng.randint(1, 5), rng.randint(1, 3000), rng.randint(1, 200)
        static = rng.random() < 0.4 and not shape.rank
        tokens = prompt + output
        cells = rng.randint(tokens, 6000)
        given: dict[str, Any] = {
            "concurrency": batch, "prompt_tokens": prompt, "output_tokens": output, "max_model_len": cells,
        }  # fmt: skip
        given |= {"cache_implementation": "static"} if static else {}
        made = plan_deployment(shape.model, None, "transformers", given).allocation
        k, v = wide(shape)
        held = 0
        for window in shape.windows:
            n = min(cells, window or cells) if static else kept(window, tokens)
            held += batch * n * (k + v) * 2
        assert made is not None
        assert made.bytes == held
        assert made.peak_bytes is not None
        assert made.peak_bytes >= held
        if not any(shape.windows):
            grown = batch * (tokens - 1) * max(k, v) * 2
            prefill = batch * prompt * ((k + v) * shape.layers + max(k, v)) * 2
            assert made.peak_bytes == (held if static else max(prefill, held + grown))


@pytest.mark.parametrize("seed", range(6))
def test_quantised(seed: int) -> None:
    """Step by step: tokens wait in full precision until as many as the residual are there, then all is quantised."""
    rng = Random(f"quantised {seed}")
    for _ in range(15):
        shape = plain(rng)
        bits, group = rng.choice([2, 4]), rng.choice([32, 64])
        if shape.kv_heads * shape.head_dim % group:
            continue
        residual, prompt, output = rng.randint(1, 200), rng.randint(1, 1500), rng.randint(1, 500)
        quantised, waiting = prompt, 0
        for _ in range(output):
            if waiting + 1 >= residual:
                quantised, waiting = quantised + waiting + 1, 0
            else:
                waiting += 1
        each = shape.kv_heads * shape.head_dim
        size = quantised * (each * bits // 8 + each // group * 2 * 2) + waiting * each * 2
        made = plan_deployment(
            shape.model, None, "transformers",
            {"cache_implementation": "quantized", "cache_nbits": bits, "cache_group_size": group,
             "cache_residual_length": residual, "prompt_tokens": prompt, "output_tokens": output,
             "max_model_len": prompt + output},
        ).allocation  # fmt: skip
        assert made is not None
        assert made.bytes == 2 * shape.layers * size
        tokens = prompt + output
        before = tokens - 1 - (output - 1) % residual if residual > 1 else tokens - 1
        assert made.peak_bytes == made.bytes + 2 * each * (before + tokens) * 2


@pytest.mark.parametrize("seed", range(5))
def test_as_many_tokens_as_bytes_hold(seed: int) -> None:
    rng = Random(f"hold {seed}")
    for _ in range(10):
        shape = rng.choice([plain, latent])(rng)
        k, v = wide(shape)
        each, tokens, longest = shape.layers * (k + v) * 2, rng.randint(2, 4000), rng.randint(2, 3000)
        peak = each * tokens + (tokens - 1) * max(k, v) * 2
        need = each * longest + (longest - 1) * max(k, v) * 2
        for have, single in ((peak, tokens), (peak - 1, tokens - 1)):
            engine, found = worked(shape.model, "transformers", kv_cache_memory_bytes=have, max_model_len=longest)
            assert found.pool is not None
            assert found.kv_bytes is not None
            assert found.pool.max_single_request_tokens == single
            assert found.pool.kv_tokens == have // each
            assert found.pool.starts is (need <= have)
            assert found.pool.max_concurrency == pytest.approx(have / need)
            assert engine.start_bytes(found.stages[0], found.settings) == need
            assert engine.request_bytes(found.stages[0], found.settings, tokens) == each * tokens
            assert engine.requests_at(found.stages, found.settings, found.kv_bytes, longest) == have // need
            assert engine.shared_prefix_tokens(shape.model, found.settings) == 0
            for batch in {max(1, have // need), have // need + 1}:
                given = {"concurrency": batch, "prompt_tokens": longest - 1, "output_tokens": 1}
                engine, found = worked(
                    shape.model, "transformers", kv_cache_memory_bytes=have, max_model_len=longest, **given
                )
                assert found.kv_bytes is not None
                assert engine.holds(found.stages, found.settings, found.kv_bytes) is (batch * need <= have)


@pytest.mark.parametrize(("version", "size"), [("4.57.6", 2 * 128 * (192 + 128)), ("5.24.0", 2 * (512 + 64))])
def test_latent_rows_by_release(version: str, size: int) -> None:
    made = plan("deepseek-v3", engine=f"transformers@{version}", prompt_tokens=9, output_tokens=1)
    assert made.allocation is not None
    assert made.allocation.bytes == 61 * 10 * size
    said = [w for w in made.warnings if "rebuilt from the latent" in w]
    assert ([f"{size:,} B a token" in w for w in said] == [True]) is (version == "4.57.6")
    assert bool(said) is (version == "4.57.6")


@pytest.mark.parametrize(("prompt", "said"), [(127, False), (128, True), (129, True)])
def test_a_prompt_as_long_as_the_window_is_said(prompt: int, said: bool) -> None:
    made = plan("gpt-oss-20b", engine="transformers", prompt_tokens=prompt, output_tokens=1)
    assert any("keep the whole prompt alive" in w for w in made.warnings) is said
    static = plan(
        "gpt-oss-20b", engine="transformers", prompt_tokens=prompt, output_tokens=1, cache_implementation="static"
    )
    assert not any("keep the whole prompt alive" in w for w in static.warnings)
    full = plan("llama-3.1-8b", engine="transformers", prompt_tokens=prompt)
    assert not any("keep the whole prompt alive" in w for w in full.warnings)


@pytest.mark.parametrize(
    ("given", "want"),
    [
        ({}, {"cache_implementation": "dynamic", "cache_nbits": None, "max_cache_len": None}),
        ({"cache_implementation": "static", "max_model_len": 77}, {"max_cache_len": 77}),
        ({"cache_implementation": "static"}, {"max_cache_len": 131_072}),
        ({"cache_implementation": "quantized"},
         {"cache_backend": "quanto", "cache_nbits": 4, "cache_group_size": 64, "cache_residual_length": 128}),
        ({"cache_implementation": "quantized", "cache_backend": "fp8"}, {"cache_nbits": None}),
    ],
)  # fmt: skip
def test_defaults(given: dict[str, Any], want: dict[str, Any]) -> None:
    extra = worked(load_model("llama-3.1-8b"), "transformers", **given)[1].settings.extra
    assert {name: extra.get(name) for name in want} == want


@pytest.mark.parametrize(
    ("model", "given", "says", "hint"),
    [
        ("llama-3.1-8b", {"cache_implementation": "paged"}, "no cache implementation", "paged caches are not modelled"),
        ("llama-3.1-8b", {"cache_implementation": "x"}, "no cache implementation 'x'", "type one of"),
        ("llama-3.1-8b", {"cache_nbits": 4}, "is a setting of the quantized cache", "--cache-implementation quantized"),
        ("llama-3.1-8b", {"max_cache_len": 4}, "is a setting of the static cache", "--cache-implementation static"),
        ("llama-3.1-8b", {"cache_implementation": "quantized", "cache_nbits": 3}, "does not take 3 bits",
         "type --cache-nbits 2"),
        ("llama-3.1-8b", {"cache_implementation": "quantized", "cache_nbits": 8}, "does not take 8 bits",
         "type --cache-nbits 4"),
        ("llama-3.1-8b", {"cache_implementation": "quantized", "cache_backend": "hqq", "cache_nbits": 3},
         "fails to run with 3 bits", "--cache-nbits"),
        ("llama-3.1-8b", {"cache_implementation": "quantized", "cache_group_size": 96},
         "groups of 96 do not divide the 1024 and 1024", "type --cache-group-size 128"),
        ("llama-3.1-8b", {"cache_implementation": "quantized", "cache_group_size": 0}, "at least 1", ""),
        ("llama-3.1-8b", {"cache_implementation": "quantized", "cache_residual_length": -1}, "at least 0", ""),
        ("llama-3.1-8b", {"cache_implementation": "quantized", "cache_backend": "x"}, "no cache backend 'x'", "quanto"),
        ("llama-3.1-8b", {"cache_implementation": "quantized", "cache_backend": "fp8", "cache_nbits": 8},
         "one scale per tensor", "leave it out"),
        ("gpt-oss-20b", {"cache_implementation": "quantized"}, "has sliding layers", "dynamic"),
        ("qwen3-next-80b-a3b", {"cache_implementation": "quantized"}, "has gated_delta_net layers", "dynamic"),
        ("llama-3.1-8b", {"kv_cache_dtype": "fp8"}, "keeps the cache in the model's dtype, not in fp8_e4m3",
         "--cache-nbits 4"),
        ("llama-3.1-8b", {"tensor_parallel_size": 2, "decode_context_parallel_size": 2}, "context parallelism", "1"),
        ("deepseek-v4-flash", {"cache_implementation": "static"}, "only the dynamic cache", "dynamic"),
    ],
)  # fmt: skip
def test_refusals(model: str, given: dict[str, Any], says: str, hint: str) -> None:
    with pytest.raises(KvplanError) as caught:
        plan(model, engine="transformers", **given)
    assert says in str(caught.value)
    assert hint in caught.value.hint


@pytest.mark.parametrize(("heads", "dim", "near"), [(3, 16, 16), (3, 32, 32), (5, 64, 64), (1, 24, 1)])
def test_the_group_that_would_divide(heads: int, dim: int, near: int) -> None:
    shape = plain(Random(1), num_attention_heads=heads, num_key_value_heads=heads, head_dim=dim)
    with pytest.raises(KvplanError, match=f"do not divide the {heads * dim} and") as caught:
        plan_deployment(
            shape.model, None, "transformers", {"cache_implementation": "quantized", "cache_group_size": 100}
        )
    assert caught.value.hint == f"type --cache-group-size {near}"


def test_fp8_has_one_scale_for_each_tensor() -> None:
    made = plan(
        "llama-3.1-8b", engine="transformers", cache_implementation="quantized", cache_backend="fp8", prompt_tokens=100,
        output_tokens=28,
    ).allocation  # fmt: skip
    assert made is not None
    assert made.bytes == 32 * 2 * (128 * 1024 + 4)
    assert made.peak_bytes == made.bytes + 128 * 2 * 1024 * 2
    with pytest.raises(KvplanError, match="no cache backend 'fp8'"):
        plan("llama-3.1-8b", engine="transformers@4.57.6", cache_implementation="quantized", cache_backend="fp8")


def test_old_releases_have_no_static_cache_beside_states() -> None:
    with pytest.raises(KvplanError, match="a cache of its own, which is never static") as caught:
        plan("qwen3-next-80b-a3b", engine="transformers@4.57.6", cache_implementation="static")
    assert caught.value.hint == "type --cache-implementation dynamic"
    assert plan("llama-3.1-8b", engine="transformers@4.57.6", cache_implementation="static").allocation


def test_a_token_of_the_quantised_store() -> None:
    """bits / 8 and a scale and a zero point of 2 bytes each for every group."""
    for bits, group in ((2, 32), (4, 64), (4, 128)):
        made = plan(
            "llama-3.1-8b", engine="transformers", cache_implementation="quantized", cache_nbits=bits,
            cache_group_size=group,
        )  # fmt: skip
        assert made.kv.bytes_per_token == 32 * 2 * (1024 * bits // 8 + 1024 // group * 4)


def test_all_prompts_at_once() -> None:
    """Activations of every prompt of the batch, a row of logits for each, and the CUDA context."""
    made = plan("llama-3.1-8b", gpu="h100-sxm", engine="transformers", concurrency=3, prompt_tokens=500)
    assert made.memory is not None
    terms = {t.name: t for t in made.memory[0].terms}
    assert terms["activation peak"].bytes == 2 * 1500 * (3 * 14336 + 4 * 4096) + 6 * 3 * 128256
    assert terms["CUDA context"].bytes == 1 << 29

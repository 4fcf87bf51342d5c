"""TensorRT-LLM's blocks on random deployments, by its own rules written down a second time.

Read in ``tensorrt_llm/_torch/pyexecutor/resource_manager.py`` (``calculate_max_num_blocks``,
``calculate_max_num_blocks_for_vswa``, ``get_cache_bytes_per_token``), ``_util.py`` beside it
(``configure_kv_cache_capacity``), ``tensorrt_llm/mapping.py`` (``pp_layers``) of 1.3.
"""

from __future__ import annotations

from random import Random
from typing import Any, NamedTuple

import pytest
from at_random import Shape, latent, plain, row, windowed, worked

from kvplan import load_model, plan
from kvplan.errors import KvplanError
from kvplan.planning.planner import plan_deployment
from kvplan.units import MIB


class Asked(NamedTuple):
    """A deployment."""

    shape: Shape
    tp: int
    pp: int
    dp: int
    storage: str
    size: int
    limit: int | None
    have: int
    longest: int

    @property
    def given(self) -> dict[str, Any]:
        made: dict[str, Any] = {
            "tensor_parallel_size": self.tp, "pipeline_parallel_size": self.pp, "kv_cache_dtype": self.storage,
            "tokens_per_block": self.size, "kv_cache_memory_bytes": self.have, "max_model_len": self.longest,
        }  # fmt: skip
        if self.dp > 1:
            made["attn_dp_size"] = self.dp
        if self.limit is not None:
            made["max_total_tokens"] = self.limit
        return made


def asked(rng: Random) -> Asked:
    shape = rng.choice([plain, windowed, latent])(rng)
    tp = rng.choice([n for n in (1, 2, 4, 8) if shape.query_heads % n == 0])
    pp = rng.choice([1, 1, 2, 3])
    pp = min(pp, shape.layers)
    size, storage = rng.choice([16, 32, 64, 128]), rng.choice(["auto", "auto", "fp8", "nvfp4"])
    limit = rng.choice([None, None, rng.randint(1, 200_000)])
    dp = rng.choice([1, tp])
    have, longest = rng.randint(1 << 20, 1 << 33), rng.randint(200, shape.longest)
    return Asked(shape, tp, pp, dp, storage, size, limit, have, longest)


def stages(one: Asked) -> list[dict[int | None, int]]:
    """Bytes of a token by window, for the ranks of each stage: the first ``layers % pp`` stages have a layer more."""
    shape, found, at = one.shape, [], 0
    heads = 1 if one.shape.rank else -(-shape.kv_heads // (1 if one.dp > 1 else one.tp))
    for rank in range(one.pp):
        layers = shape.layers // one.pp + (rank < shape.layers % one.pp)
        sizes: dict[int | None, int] = {}
        for window in shape.windows[at : at + layers]:
            kept = window if window is not None and window < one.longest else None
            each = (
                row(shape.rank + shape.rope, one.storage)
                if shape.rank
                else 2 * row(heads * shape.head_dim, one.storage)
            )
            sizes[kept] = sizes.get(kept, 0) + each
        found.append(sizes)
        at += layers
    return found


def blocks(one: Asked) -> dict[int | None, int]:
    """Blocks of each window's pool: the fewest that any rank's bytes give."""
    least: dict[int | None, int] = {}
    for sizes in stages(one):
        have = one.have if one.limit is None else min(one.have, one.limit * sum(sizes.values()))
        for window, size in sizes.items():
            count = int(have / len(sizes) / size / one.size + 1e-12)
            assert count * one.size * size * len(sizes) <= have < (count + 1) * one.size * size * len(sizes)
            least[window] = min(count, least.get(window, count))
    return least


def needed(window: int | None, tokens: int, size: int) -> int:
    """Blocks of a request: up to its last token, or from any place in a block over the window."""
    touched = len({token // size for token in range(tokens)}) if tokens < 3000 else (tokens + size - 1) // size
    return touched if window is None else min(touched, (window + size - 1) // size + 1)


@pytest.mark.parametrize("seed", range(12))
def test_blocks_and_requests(seed: int) -> None:
    rng = Random(f"blocks {seed}")
    for _ in range(25):
        one = asked(rng)
        engine, outcome = worked(one.shape.model, "tensorrt-llm", **one.given)
        pool, counts = outcome.pool, blocks(one)
        assert pool is not None
        assert outcome.kv_bytes is not None
        first = counts[None] if None in counts else min(counts.values())
        assert (pool.block_size, pool.num_blocks) == (one.size, first), one
        assert pool.kv_tokens == pool.engine_reported_tokens == first * one.size
        ratios = [n / needed(w, one.longest, one.size) for w, n in counts.items()]
        assert pool.max_concurrency == pytest.approx(one.dp * min(ratios), rel=1e-12)
        assert pool.max_single_request_tokens == (first * one.size if None in counts else one.longest)
        assert pool.starts is (min(counts.values()) > 0)
        assert pool.used_bytes == tuple(
            sum(counts[w] * one.size * size for w, size in sizes.items()) for sizes in stages(one)
        )
        for tokens in (1, one.size, one.size + 1, one.longest, one.shape.longest, one.shape.longest + 1):
            held = one.dp * min(n // needed(w, tokens, one.size) for w, n in counts.items())
            held = 0 if tokens > one.shape.longest else held
            found = engine.held_at(outcome.stages, outcome.settings, outcome.kv_bytes, tokens)
            assert found == held, (one, tokens)
            running = engine.requests_at(outcome.stages, outcome.settings, outcome.kv_bytes, tokens)
            assert running == min(held, 2048 * one.dp)
        for stage, sizes in zip(outcome.stages, stages(one), strict=True):
            want = sum(needed(w, one.longest, one.size) * one.size * size for w, size in sizes.items())
            assert engine.request_bytes(stage, outcome.settings, one.longest) == want
            assert engine.start_bytes(stage, outcome.settings) == max(sizes.values()) * len(sizes) * one.size


@pytest.mark.parametrize("seed", range(8))
def test_what_the_pools_hold_at_once(seed: int) -> None:
    """Shared blocks of a prefix lie once in pools that keep everything; windows keep their own."""
    rng = Random(f"holds {seed}")
    seen = set()
    for _ in range(30):
        one = asked(rng)
        prompt, output = rng.randint(1, 4000), rng.randint(1, 500)
        prefix = rng.choice([0, rng.randint(1, 5000)])
        counts, shared = blocks(one), min(prefix, prompt - 1) // one.size
        each = {w: needed(w, prompt + output, one.size) for w in counts}
        runs = [
            1 + (n - each[w]) // (each[w] - (0 if w else shared)) if n >= each[w] else 0 for w, n in counts.items()
        ]  # of one rank
        at_most = min(runs) if prompt + output <= one.shape.longest else 0
        for running in {1, at_most, at_most + 1, max(1, at_most * one.dp), at_most * one.dp + 1} - {0}:
            given = one.given | {
                "concurrency": running, "prompt_tokens": prompt, "output_tokens": output,
                "shared_prefix_tokens": min(prefix, prompt), "max_model_len": max(one.longest, prompt + output),
            }  # fmt: skip
            if given["max_model_len"] != one.longest and any(one.shape.windows):
                continue  # other windows are then kept whole
            engine, outcome = worked(one.shape.model, "tensorrt-llm", **given)
            assert outcome.kv_bytes is not None
            found = engine.holds(outcome.stages, outcome.settings, outcome.kv_bytes)
            assert found is (-(-running // one.dp) <= at_most), (one, running, at_most)
            seen.add(found)
    assert seen == {True, False}


@pytest.mark.parametrize("seed", range(4))
def test_pools_as_they_are_laid_out(seed: int) -> None:
    rng = Random(f"laid {seed}")
    for _ in range(25):
        one = asked(rng)._replace(pp=1)
        given = one.given
        if rng.random() < 0.4:
            limit = rng.randint(1, 100_000)
            one = one._replace(limit=limit, have=limit * sum(stages(one)[0].values()))
            given = one.given
            del given["kv_cache_memory_bytes"]
        made = plan_deployment(one.shape.model, None, "tensorrt-llm", given).allocation
        (sizes,), counts = stages(one), blocks(one)
        assert made is not None
        found = {pool.kind: pool for pool in made.pools}
        assert set(found) == {"full" if w is None else "sliding" for w in counts}
        assert made.bytes == sum(counts[w] * one.size * size for w, size in sizes.items())
        for window, size in sizes.items():
            pool = found["full" if window is None else "sliding"]
            assert (pool.blocks, pool.cells) == (counts[window], counts[window] * one.size)
            assert pool.bytes == pool.k_bytes + pool.v_bytes == counts[window] * one.size * size
            assert pool.v_bytes == (0 if one.shape.rank else pool.k_bytes)


def test_nothing_is_laid_out_where_neither_bytes_nor_tokens_are_given() -> None:
    assert plan("llama-3.1-8b", engine="tensorrt-llm").allocation is None


def test_a_limit_of_tokens_is_one_of_bytes() -> None:
    """Gemma 3 27B: 52 windowed layers and 10 others of 8,192 bytes; a million bytes-of-a-token shared by halves."""
    made = plan("gemma-3-27b", engine="tensorrt-llm", max_total_tokens=100_000).allocation
    assert made is not None
    half = 100_000 * 62 * 8192 // 2
    assert {p.kind: p.blocks for p in made.pools} == {
        "sliding": half // (52 * 8192) // 32, "full": half // (10 * 8192) // 32,
    }  # fmt: skip


# ---- what is refused, to the last one that is not ----


@pytest.mark.parametrize(
    ("given", "says", "hint"),
    [
        ({"tokens_per_block": 48}, "power of two, not 48", "type --tokens-per-block 32"),
        ({"tokens_per_block": 127}, "power of two, not 127", "type --tokens-per-block 64"),
        ({"tokens_per_block": 3}, "power of two, not 3", "type --tokens-per-block 2"),
        ({"tensor_parallel_size": 4, "attn_dp_size": 2}, "all 4 tensor-parallel", "type --attn-dp-size 4"),
        ({"kv_cache_dtype": "fp16"}, "no cache in fp16", "type --kv-cache-dtype auto"),
        ({"kv_cache_dtype": "fp32"}, "no cache in fp32", "type --kv-cache-dtype auto"),
        ({"kv_cache_dtype": "int8"}, "no cache in int8", "type --kv-cache-dtype fp8"),
        ({"kv_cache_dtype": "fp8,bf16"}, "K and V in one format", "type --kv-cache-dtype fp8"),
        ({"free_gpu_memory_fraction": 1.01}, "1.01", "--free-gpu-memory-fraction 1"),
        ({"decode_context_parallel_size": 2, "tensor_parallel_size": 2}, "context parallelism",
         "--decode-context-parallel-size 1"),
        ({"tokens_per_block": 0}, "at least 1", ""),
        ({"max_total_tokens": 0}, "at least 1", ""),
        ({"attn_dp_size": 0}, "at least 1", ""),
    ],
)  # fmt: skip
def test_refusals(given: dict[str, Any], says: str, hint: str) -> None:
    with pytest.raises(KvplanError) as caught:
        plan("llama-3.1-8b", engine="tensorrt-llm", kv_cache_memory_bytes=1 << 30, **given)
    assert says in str(caught.value)
    assert hint in caught.value.hint


@pytest.mark.parametrize(
    ("gpu", "storage", "hint"),
    [
        ("a100-80gb-sxm", "fp8", "auto"), ("a100-80gb-sxm", "nvfp4", "auto"), ("l40s", "fp8", None),
        ("l40s", "nvfp4", "fp8"), ("h100-sxm", "fp8", None), ("h100-sxm", "nvfp4", "fp8"), ("b200", "nvfp4", None),
        ("b200", "fp8", None), ("a100-80gb-sxm", "bf16", None),
    ],
)  # fmt: skip
def test_which_devices_have_the_kernels(gpu: str, storage: str, hint: str | None) -> None:
    """fp8 from compute capability 8.9 on (L40S), nvfp4 from 10 on (B200): documentation of ``KvCacheConfig.dtype``."""
    if hint is None:
        assert plan("llama-3.1-8b", gpu=gpu, engine="tensorrt-llm", kv_cache_dtype=storage).kv.bytes_per_token
        return
    with pytest.raises(KvplanError, match=r"compute capability (?:8\.9|10) and above") as caught:
        plan("llama-3.1-8b", gpu=gpu, engine="tensorrt-llm", kv_cache_dtype=storage)
    assert caught.value.hint == f"type --kv-cache-dtype {hint}"


@pytest.mark.parametrize(("length", "fits"), [(8192, True), (8193, False)])
def test_the_longest_request_is_the_models(length: int, fits: bool) -> None:
    """Llama 3 8B was trained with 8,192."""
    made = plan(
        "llama-3-8b", engine="tensorrt-llm", kv_cache_memory_bytes=1 << 32, max_model_len=length,
        prompt_tokens=length - 1, output_tokens=1,
    )  # fmt: skip
    assert made.verdict.fits is (None if fits else False) or made.verdict.fits is fits
    assert made.capacity is not None
    assert (made.capacity.max_concurrency > 0) is fits
    assert made.capacity.max_single_request_tokens == (8192 if not fits else (1 << 32) // 131_072)
    assert bool([w for w in made.warnings if "lowers max_seq_len to the model's 8,192" in w]) is not fits


@pytest.mark.parametrize(
    ("rope", "longest"),
    [(None, 4096), ({"rope_type": "linear", "factor": 4.0}, 16384), ({"rope_type": "dynamic", "factor": 2.0}, 8192)],
)
def test_scaled_positions(rope: dict[str, Any] | None, longest: int) -> None:
    """``infer_max_seq_len``: the factor counts, but for kinds whose files state the long context."""
    shape = plain(Random(5), max_position_embeddings=4096, rope_scaling=rope)
    engine, _ = worked(shape.model, "tensorrt-llm", kv_cache_memory_bytes=1 << 30)
    assert engine.longest_context(shape.model) == longest
    assert engine.default_context(shape.model) == 4096


def test_bounds_of_what_lies_outside_torch() -> None:
    """1 GiB (400 MiB to 2 GiB) of one GPU, 2 (1 to 4) where ranks talk; a tenth of what is left stays free."""
    for given, sizes in (
        ({}, (1024, 400, 2048)), ({"tensor_parallel_size": 2}, (2048, 1024, 4096)),
        ({"pipeline_parallel_size": 2}, (2048, 1024, 4096)),
    ):  # fmt: skip
        _, outcome = worked(load_model("llama-3.1-8b"), "tensorrt-llm", "h100-sxm", **given)
        assert outcome.waterfalls is not None
        terms = {t.name: t for t in outcome.waterfalls[0].terms}
        outside = terms["outside torch"]
        assert (outside.bytes, outside.low_bytes, outside.high_bytes) == tuple(n * MIB for n in sizes)
        kept, weights = terms["left free by free_gpu_memory_fraction"], outcome.stages[0].weights_bytes
        peak = terms["activation peak"]
        total = outcome.waterfalls[0].total_bytes
        for left, spent in (
            (kept.bytes, peak.bytes + outside.bytes), (kept.low_bytes, peak.high_bytes + outside.high_bytes),
            (kept.high_bytes, peak.low_bytes + outside.low_bytes),
        ):  # fmt: skip
            assert left == pytest.approx((total - weights - spent) * 0.1, abs=1)
        assert peak.bytes == 2 * 8192 * (3 * 14336 // given.get("tensor_parallel_size", 1) + 4 * 4096) + (
            0 if given.get("pipeline_parallel_size") else 6 * 2048 * 128256
        )
        assert (peak.low_bytes, peak.high_bytes) == (peak.bytes // 2, 2 * peak.bytes)

"""ExLlamaV3's pool, rings and states on random deployments, from the shapes of its own tensors.

Read in exllamav3 ``exllamav3/cache/fp16.py``, ``quant.py``, ``mla.py`` (`paged`), ``modules/sliding_attn.py``
(``kv_state_size``), ``modules/gated_delta_net.py`` and ``generator/pagetable.py``.
"""

from __future__ import annotations

from math import prod
from random import Random
from typing import Any

import pytest
from at_random import Shape, latent, plain, windowed, worked

from kvplan import plan
from kvplan.engines.base import STATE_KINDS
from kvplan.errors import KvplanError
from kvplan.planning.planner import plan_deployment

PAGE, HALF, INT = 256, 2, 4


def tensors(tokens: int, shape: Shape, bits: tuple[int, int] | None) -> tuple[int, int, int]:
    """(bytes of K and its scales, of V, of what is rebuilt in 16 bits) of one paged layer."""
    pages = (tokens // PAGE, PAGE)
    if shape.rank:
        latents = prod((*pages, 1, shape.rank)) * HALF
        if bits:
            latents = prod((*pages, shape.rank // 32 * bits[0])) * INT + prod((*pages, shape.rank // 32)) * HALF
        return latents, prod((*pages, 1, shape.rope)) * HALF, 0
    plain_half = prod((*pages, shape.kv_heads, shape.head_dim)) * HALF
    if not bits:
        return plain_half, plain_half, 0
    wide = shape.kv_heads * shape.head_dim
    scales = prod((*pages, wide // 32)) * HALF
    k, v = (prod((*pages, wide // 32 * n)) * INT + scales for n in bits)
    return k, v, 2 * plain_half


def ring(window: int, slots: int, shape: Shape) -> int:
    """Bytes of K and V of one windowed layer."""
    state = -(-(window + 2 * PAGE) // PAGE) * PAGE
    return 2 * prod((slots, state, shape.kv_heads, shape.head_dim)) * HALF


class Asked:
    """A random deployment."""

    def __init__(self, rng: Random, stages: int | None = None) -> None:
        self.shape = rng.choice([plain, windowed, latent])(rng)
        self.bits = rng.choice([None, (8, 8), (6, 6), (rng.randint(2, 8), rng.randint(2, 8))])
        self.slots = rng.choice([None, 1, rng.randint(2, 40)])
        self.length = rng.randint(1, self.shape.longest)
        self.stages = stages or rng.choice([1, 1, 2, 3])
        self.stages = min(self.stages, self.shape.layers)
        self.tokens = rng.choice([None, -(-self.length // PAGE + -rng.randint(0, 50)) * PAGE])

    @property
    def given(self) -> dict[str, Any]:
        found: dict[str, Any] = {"max_model_len": self.length}
        if self.bits:
            k, v = self.bits
            found["cache_bits"] = str(k) if k == v else f"{k},{v}"
        for name, value in (("max_num_seqs", self.slots), ("cache_tokens", self.tokens)):
            if value is not None:
                found[name] = value
        if self.stages > 1:
            found["gpus"] = self.stages
        return found

    @property
    def laid(self) -> int:
        """Tokens of the pool."""
        return self.tokens or -(-self.length // PAGE) * PAGE

    def split(self) -> list[tuple[int | None, ...]]:
        """Windows of the layers of each stage, the first ones a layer more."""
        found, at = [], 0
        for n in range(self.stages):
            count = self.shape.layers // self.stages + (n < self.shape.layers % self.stages)
            found.append(self.shape.windows[at : at + count])
            at += count
        return found

    def bytes(self, layers: tuple[int | None, ...], tokens: int) -> int:
        fixed = sum(ring(w, self.slots or 16, self.shape) for w in layers if w)
        return fixed + sum(sum(tensors(tokens, self.shape, self.bits)[:2]) for w in layers if not w)


@pytest.mark.parametrize("seed", range(10))
def test_what_is_laid_out(seed: int) -> None:
    rng = Random(f"laid {seed}")
    for _ in range(20):
        one = Asked(rng, stages=1)
        made = plan_deployment(one.shape.model, None, "exllamav3", one.given).allocation
        assert made is not None
        assert made.bytes == one.bytes(one.shape.windows, one.laid)
        paged = [tensors(one.laid, one.shape, one.bits) for w in one.shape.windows if not w]
        found = {p.kind: p for p in made.pools}
        if paged:
            full = found["full"]
            assert (full.cells, full.blocks) == (one.laid, one.laid // PAGE)
            assert (full.k_bytes, full.v_bytes) == (sum(p[0] for p in paged), sum(p[1] for p in paged))
        rebuilt = max((p[2] for p in paged), default=0)
        assert made.peak_bytes == (made.bytes + rebuilt if rebuilt else None)
        rings = [ring(w, one.slots or 16, one.shape) for w in one.shape.windows if w]
        assert ("sliding" in found) == bool(rings)
        if rings:
            assert found["sliding"].bytes == sum(rings)
            assert found["sliding"].k_bytes == found["sliding"].v_bytes == sum(rings) // 2
            assert found["sliding"].blocks is None


@pytest.mark.parametrize("seed", range(10))
def test_it_lies_in_as_many_bytes_and_not_in_one_less(seed: int) -> None:
    rng = Random(f"lies {seed}")
    for _ in range(12):
        one = Asked(rng)
        if one.tokens is None:
            one.tokens = one.laid
        need = max(one.bytes(layers, one.laid) for layers in one.split())
        for have in (need, need - 1):
            engine, outcome = worked(one.shape.model, "exllamav3", kv_cache_memory_bytes=have, **one.given)
            pool, fits = outcome.pool, have == need
            assert pool is not None
            assert outcome.kv_bytes is not None
            assert pool.starts is fits
            assert pool.kv_tokens == (one.laid if fits else 0)
            assert (pool.block_size, pool.num_blocks, pool.engine_reported_tokens) == (PAGE, one.laid // PAGE, one.laid)
            assert pool.max_single_request_tokens == one.laid
            assert pool.max_concurrency == (one.laid // PAGE / -(-one.length // PAGE) if fits else 0)
            assert pool.used_bytes == tuple(one.bytes(layers, one.laid) for layers in one.split())
            for tokens in (1, PAGE, PAGE + 1, one.length, one.laid, one.laid + 1):
                count = min(one.slots or 16, one.laid // PAGE // -(-tokens // PAGE)) if fits else 0
                assert engine.requests_at(outcome.stages, outcome.settings, outcome.kv_bytes, tokens) == count
        for stage, layers in zip(outcome.stages, one.split(), strict=True):
            slots = one.slots or 16
            fixed = sum(ring(w, slots, one.shape) for w in layers if w) // slots
            paged = sum(sum(tensors(PAGE, one.shape, one.bits)[:2]) for w in layers if not w)
            for tokens in (1, PAGE, PAGE + 1):
                assert engine.request_bytes(stage, outcome.settings, tokens) == -(-tokens // PAGE) * paged + fixed
            assert engine.start_bytes(stage, outcome.settings) == one.bytes(layers, one.laid)
            words = f"the cache of {one.laid:,} tokens (and what {slots:,} slots keep) needs"
            assert engine.start_words(outcome.settings) == words


@pytest.mark.parametrize("seed", range(6))
def test_given_bytes_are_filled_with_whole_pages(seed: int) -> None:
    rng = Random(f"filled {seed}")
    for _ in range(15):
        one = Asked(rng)
        one.tokens = None
        pages = rng.randint(-(-one.length // PAGE), 400)
        exact = [one.bytes(layers, pages * PAGE) for layers in one.split()]
        for have, whole in ((max(exact), pages), (max(exact) - 1, pages - 1)):
            counts = []
            for layers in one.split():
                fixed, page = one.bytes(layers, 0), one.bytes(layers, PAGE) - one.bytes(layers, 0)
                counts.append((have - fixed) // page if page else None)
            if None in counts:
                continue  # a stage of nothing but rings
            want = max(0, min(n for n in counts if n is not None)) * PAGE
            _, outcome = worked(one.shape.model, "exllamav3", kv_cache_memory_bytes=have, **one.given)
            assert outcome.pool is not None
            assert outcome.pool.engine_reported_tokens == want
            assert want == whole * PAGE or len(exact) > 1
            if one.stages == 1:
                made = plan_deployment(
                    one.shape.model, None, "exllamav3", {**one.given, "kv_cache_memory_bytes": have}
                ).allocation
                assert made is not None
                assert made.bytes == one.bytes(one.shape.windows, want) <= have


@pytest.mark.parametrize("seed", range(6))
def test_jobs_share_whole_pages_of_a_prefix(seed: int) -> None:
    """By reference, and only where no layer keeps a ring or a state for each slot."""
    rng = Random(f"prefix {seed}")
    seen = set()
    for _ in range(25):
        one = Asked(rng)
        slots = one.slots or 16
        prompt, output, prefix = rng.randint(1, 3000), rng.randint(1, 400), rng.randint(0, 3000)
        one.length = min(one.shape.longest, max(one.length, prompt + output))
        one.tokens = -(-one.length // PAGE) * PAGE * rng.randint(1, 20)
        rings = [[w for w in layers if w] for layers in one.split()]
        shared = 0 if rings[0] else min(prefix, prompt, prompt - 1) // PAGE
        each = -(-(prompt + output) // PAGE)
        pages = one.tokens // PAGE
        most = min(slots, 1 + (pages - each) // (each - shared)) if pages >= each else 0
        for running in {1, most, most + 1} - {0}:
            workload = {
                "concurrency": running, "prompt_tokens": prompt, "output_tokens": output,
                "shared_prefix_tokens": min(prefix, prompt), "kv_cache_memory_bytes": 1 << 45,
            }  # fmt: skip
            engine, outcome = worked(one.shape.model, "exllamav3", **one.given, **workload)
            assert outcome.kv_bytes is not None
            found = engine.holds(outcome.stages, outcome.settings, outcome.kv_bytes)
            assert found is (running <= most), (one.given, workload, most)
            seen.add(found)
    assert seen == {True, False}


def test_states_of_a_gated_delta_net() -> None:
    """Convolutions of kernel size columns in 16 bits, matrices in float32, for every slot."""
    for slots in (1, 3, 16):
        made = plan("qwen3-next-80b-a3b", engine="exllamav3", max_model_len=512, max_num_seqs=slots).allocation
        assert made is not None
        (states,) = made.states
        assert states.kind in STATE_KINDS
        assert states.k_bytes == 36 * slots * (2 * 16 * 128 + 32 * 128) * 4 * HALF
        assert states.v_bytes == 36 * slots * 32 * 128 * 128 * 4
        assert states.cells is None
        assert made.state_bytes == states.bytes == states.k_bytes + states.v_bytes


@pytest.mark.parametrize(
    ("given", "says", "hint"),
    [
        ({"cache_tokens": 1000}, "multiple of 256 tokens, not 1,000", "type --cache-tokens 1024"),
        ({"cache_tokens": 100}, "multiple of 256 tokens, not 100", "type --cache-tokens 256"),
        ({"cache_tokens": 700}, "multiple of 256 tokens, not 700", "type --cache-tokens 768"),
        ({"cache_tokens": 256, "max_model_len": 257}, "a cache of 256 tokens never holds a request of 257",
         "type --cache-tokens 512, or"),
        ({"cache_bits": "1"}, "not 1", "type --cache-bits 2, or"), ({"cache_bits": "9"}, "not 9", "--cache-bits 8, or"),
        ({"cache_bits": "4,9"}, "not 9", "--cache-bits 8, or"), ({"cache_bits": "4,x"}, "K or K,V in bits", "8,4"),
        ({"cache_bits": "1000"}, "K or K,V in bits", "8,4"), ({"cache_bits": "4,4,4"}, "K or K,V in bits", "8,4"),
        ({"kv_cache_dtype": "fp8"}, "stores fp16 or 2 to 8 bits, not fp8", "type --cache-bits 8"),
        ({"kv_cache_dtype": "fp16,exl3_4"}, "stores fp16 or 2 to 8 bits", "type --cache-bits 8"),
        ({"max_num_seqs": 0}, "0", ""),
    ],
)  # fmt: skip
def test_refusals(given: dict[str, Any], says: str, hint: str) -> None:
    with pytest.raises(KvplanError) as caught:
        plan("llama-3.1-8b", engine="exllamav3", **{"max_model_len": 256, **given})
    assert says in str(caught.value)
    assert hint in caught.value.hint


@pytest.mark.parametrize(
    ("given", "size"),
    [
        ({}, 4096), ({"cache_bits": "16"}, 4096), ({"cache_bits": "16,16"}, 4096), ({"cache_bits": "fp16"}, 4096),
        ({"kv_cache_dtype": "fp16"}, 4096), ({"kv_cache_dtype": "fp16,fp16"}, 4096), ({"cache_bits": " 8 "}, 2176),
        ({"kv_cache_dtype": "exl3_8"}, 2176), ({"kv_cache_dtype": "exl3_8,exl3_2"}, 2 * 32 * (34 + 10) // 2),
        ({"cache_bits": "100"}, None), ({"cache_bits": "999"}, None),
    ],
)  # fmt: skip
def test_the_ways_to_say_how_it_is_stored(given: dict[str, Any], size: int | None) -> None:
    """1,024 elements of K and of V a layer: 32 groups of 4 x bits + 2 bytes."""
    if size is None:
        with pytest.raises(KvplanError, match="2 to 8 bits"):
            plan("llama-3.1-8b", engine="exllamav3", max_model_len=256, **given)
        return
    assert plan("llama-3.1-8b", engine="exllamav3", max_model_len=256, **given).kv.bytes_per_token == 32 * size


def test_rows_that_are_no_groups_of_32() -> None:
    narrow = plain(Random(3), num_attention_heads=1, num_key_value_heads=1, head_dim=80)
    with pytest.raises(KvplanError, match="groups of 32") as caught:
        plan_deployment(narrow.model, None, "exllamav3", {"cache_bits": "8"})
    assert caught.value.hint == "leave --cache-bits out"
    assert plan_deployment(narrow.model, None, "exllamav3", {}).kv.bytes_per_token == narrow.layers * 2 * 80 * 2


def test_which_windows_are_rings() -> None:
    for model, rings in (("gemma-3-27b", False), ("gpt-oss-20b", True), ("llama-3.1-8b", False)):
        made = plan(model, engine="exllamav3", max_model_len=4096)
        assert made.allocation is not None
        assert ("sliding" in {p.kind for p in made.allocation.pools}) is rings
        assert any("at full length" in w for w in made.warnings) is (model == "gemma-3-27b")


def test_the_chunk_and_the_slots_of_the_memory_besides() -> None:
    """A chunk of 2,048 tokens through the widest layer, a row of logits for every slot; 512 MiB (300 to 1,024)."""
    for slots in (1, 16, 40):
        made = plan("llama-3.1-8b", gpu="h100-sxm", engine="exllamav3", max_model_len=256, max_num_seqs=slots)
        assert made.memory is not None
        terms = {t.name: t for t in made.memory[0].terms}
        peak, context = terms["activation peak"], terms["CUDA context"]
        assert peak.bytes == 2 * 2048 * (3 * 14336 + 4 * 4096) + 6 * slots * 128256
        assert (context.bytes, context.low_bytes, context.high_bytes) == (1 << 29, 300 << 20, 1 << 30)

"""SGLang's pools on random deployments, by its configurators' rules written down a second time.

Read in ``python/sglang/srt/model_executor/pool_configurator.py`` and ``mem_cache/kv_cache_configurator.py`` of 0.5.23,
``model_executor/model_runner_kv_cache_mixin.py`` of 0.5.12 and 0.5.14, ``model_executor/model_runner.py`` of 0.5.6.
"""

from __future__ import annotations

from fractions import Fraction
from random import Random
from typing import Any, NamedTuple

import pytest
from at_random import Shape, latent, plain, windowed, worked

from kvplan import plan
from kvplan.engines.base import Engine
from kvplan.planning.evaluate import Outcome
from kvplan.planning.planner import plan_deployment
from kvplan.sources.hf.read import read_config
from kvplan.spec.model import ModelSpec

VERSIONS = ("0.4.9", "0.5.2", "0.5.6", "0.5.12", "0.5.14", "0.5.17", "0.5.20", "0.5.23")


def since(version: str, first: str) -> bool:
    return VERSIONS.index(version) >= VERSIONS.index(first)


class Facts(NamedTuple):
    """What the layers of one attention rank take."""

    model: ModelSpec
    full: int
    """Bytes of a token over the layers that keep everything."""
    windowed: int
    """The same over windowed layers with a pool of their own."""
    window: int
    """``sliding_window_size``."""
    state: int
    """Bytes of a state slot."""
    longest: int


class Asked(NamedTuple):
    """Settings; None: left out."""

    version: str
    page: int
    ratio: float | None
    state_ratio: float | None
    running: int | None
    limit: int | None
    slots: int | None
    radix: bool
    overlap: bool
    strategy: str | None
    chunk: int
    dp: int
    length: int

    @property
    def given(self) -> dict[str, Any]:
        named = {
            "swa_full_tokens_ratio": self.ratio, "mamba_full_memory_ratio": self.state_ratio,
            "max_running_requests": self.running, "max_total_tokens": self.limit, "max_mamba_cache_size": self.slots,
            "mamba_radix_cache_strategy": self.strategy, "max_model_len": self.length, "page_size": self.page,
            "chunked_prefill_size": self.chunk,
        }  # fmt: skip
        found = {name: value for name, value in named.items() if value is not None}
        found |= {} if self.radix else {"disable_radix_cache": True}
        found |= {} if self.overlap else {"disable_overlap_schedule": True}
        return found | ({"attn_dp_size": self.dp, "tensor_parallel_size": self.dp} if self.dp > 1 else {})


class Laid(NamedTuple):
    tokens: int
    window_tokens: int
    slots: int
    padding: int
    each: int
    """State slots of a running request."""


def of_shape(shape: Shape, storage: str, version: str) -> Facts:
    size = {"auto": 2, "fp8_e4m3": 1, "fp8_e5m2": 1}[storage]
    each = (shape.rank + shape.rope if shape.rank else 2 * shape.kv_heads * shape.head_dim) * size
    windows = [w for w in shape.windows if w]
    pooled = bool(windows) and since(version, "0.5.12")  # gpt-oss: is_hybrid_swa_model
    own = len(windows) if pooled else 0
    window = windows[0] - 1 if pooled and windows[0] is not None else 0
    return Facts(shape.model, each * (shape.layers - own), each * own, window, 0, shape.longest)


def hybrid(rng: Random) -> Facts:
    """Qwen3-Next: every fourth layer attends, the others keep a convolution in 16 bits and a matrix in float32."""
    layers, heads, kv = 4 * rng.randint(1, 5), 8, rng.choice([1, 2, 4])
    key, value, wide = rng.choice([2, 4]), rng.choice([4, 8]), rng.choice([64, 128])
    config = {
        "model_type": "qwen3_next", "architectures": ["Qwen3NextForCausalLM"], "hidden_size": 512, "vocab_size": 1024,
        "intermediate_size": 512, "num_hidden_layers": layers, "num_attention_heads": heads, "num_key_value_heads": kv,
        "head_dim": 128, "max_position_embeddings": 65536, "torch_dtype": "bfloat16", "linear_num_key_heads": key,
        "linear_num_value_heads": value, "linear_key_head_dim": wide, "linear_value_head_dim": wide,
        "linear_conv_kernel_dim": 4, "full_attention_interval": 4, "num_experts": 4, "num_experts_per_tok": 2,
        "moe_intermediate_size": 64, "shared_expert_intermediate_size": 64, "decoder_sparse_step": 1,
        "mlp_only_layers": [], "norm_topk_prob": True, "tie_word_embeddings": False,
    }  # fmt: skip
    conv = 3 * (2 * key * wide + value * wide) * 2
    state = (layers * 3 // 4) * (conv + value * wide * wide * 4)
    model = read_config(config, name="random")
    return Facts(model, layers // 4 * 2 * kv * 128 * 2, 0, 0, state, 65536)


def slots_each(one: Asked) -> int:
    """``_calculate_mamba_ratio``."""
    if not one.radix:
        return 1
    tracks, strategy = since(one.version, "0.5.14"), one.strategy or "auto"
    if strategy == "auto":
        strategy = "extra_buffer" if tracks and (one.overlap or one.page > 1) else "no_buffer"
    if strategy == "no_buffer":
        return 3
    return 3 + (2 if one.overlap and strategy == "extra_buffer" else 1)


def laid(have: int, facts: Facts, one: Asked) -> Laid:
    ratio, count, padding = 0.8 if one.ratio is None else one.ratio, 0, 0
    if facts.state:
        padding = int(since(one.version, "0.5.17"))
        if one.slots is not None:
            count = one.slots // one.dp
        elif not one.radix and one.running is not None:
            count = max(1, one.running // one.dp)
        elif not one.radix and not since(one.version, "0.5.12"):
            count = max(1, 512 // one.dp)
        else:
            part = Fraction(0.9 if one.state_ratio is None else one.state_ratio)
            count = max(0, int(have * part / (1 + part)) // facts.state - padding)
        have -= (count + padding) * facts.state
    each = slots_each(one) if facts.state else 0
    capped = (
        facts.windowed and facts.full and not one.radix and one.running is not None and since(one.version, "0.5.14")
    )
    if capped:
        assert one.running is not None
        trailing = facts.window + 128 + one.page + one.page
        chunks = 2 if one.overlap else 1
        cap = trailing * max(1, one.running // one.dp) + chunks * (one.chunk // one.dp) + one.page
        windows = -(-cap // one.page) * one.page
        tokens = max(0, (have - windows * facts.windowed) // facts.full) // one.page * one.page
        if one.limit is not None and one.limit < tokens:
            tokens, windows = one.limit // one.page * one.page, min(windows, one.limit)
        return Laid(tokens, windows, count, padding, each)
    cell = facts.full + ratio * facts.windowed if facts.windowed else facts.full
    tokens = int(max(have, 0) // cell)
    if one.limit is not None:
        tokens = min(tokens, one.limit)
    tokens = tokens // one.page * one.page
    return Laid(tokens, int(tokens * ratio) // one.page * one.page if facts.windowed else 0, count, padding, each)


def asked(rng: Random, facts: Facts, version: str) -> Asked:
    radix, states = rng.random() < 0.6, bool(facts.state)
    strategy = None
    if states and radix and since(version, "0.5.14"):
        strategy = rng.choice([None, "auto", "no_buffer", "extra_buffer"])
    overlap = rng.random() < 0.7
    return Asked(
        version, rng.choice([1, 1, 16, 64]), rng.choice([None, round(rng.uniform(0.05, 1), 2)]),
        rng.choice([None, round(rng.uniform(0.1, 3), 2)]) if states else None,
        rng.choice([None, rng.randint(1, 64)]), rng.choice([None, None, rng.randint(64, 90_000)]),
        rng.choice([None, None, rng.randint(1, 300)]) if states else None, radix, overlap, strategy,
        rng.choice([1024, 4096]), rng.choice([1, 1, 2]), rng.randint(64, facts.longest),
    )  # fmt: skip


def outcome(facts: Facts, one: Asked, have: int, **more: Any) -> tuple[Engine, Outcome]:
    return worked(facts.model, f"sglang@{one.version}", kv_cache_memory_bytes=have, **one.given, **more)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("kind", ["plain", "windowed", "latent", "hybrid"])
def test_pools(version: str, kind: str) -> None:
    rng = Random(f"{version} {kind}")
    starts = set()
    for _ in range(14):
        if kind == "hybrid":
            if not since(version, "0.5.6"):
                return
            facts, storage = hybrid(rng), "auto"
        else:
            make = {"plain": plain, "windowed": windowed, "latent": latent}[kind]
            storage = rng.choice(["auto", "fp8_e4m3", "fp8_e5m2"])
            facts = of_shape(make(rng), storage, version)
        one = asked(rng, facts, version)
        have = rng.randint(1 << 22, 1 << rng.randint(25, 34))
        want = laid(have, facts, one)
        engine, found = outcome(facts, one, have, kv_cache_dtype=storage)
        pool = found.pool
        assert pool is not None
        assert found.kv_bytes is not None
        assert (pool.kv_tokens, pool.num_blocks, pool.block_size) == (want.tokens, want.tokens // one.page, one.page), (
            one, have,
        )  # fmt: skip
        assert pool.engine_reported_tokens == want.tokens
        assert pool.state_slots == want.slots
        assert pool.max_num_seqs_allowed == (want.slots // want.each * one.dp if want.each else None)
        used = (want.tokens + one.page) * facts.full + (want.slots + want.padding) * facts.state
        used += (want.window_tokens + one.page) * facts.windowed if facts.windowed else 0
        assert pool.used_bytes == (used,)
        running = one.running // one.dp if one.running else 0
        most = max(1, running) if one.running else max(min(int(want.tokens / one.length * 512), 4096), 2048)
        most = min(most, want.tokens // 2)
        most = min(most, want.slots // want.each) if want.each else most
        enough = not facts.windowed or want.window_tokens > facts.window + one.page
        assert pool.starts is (want.tokens > 0 and enough and most > 0), (one, have, pool.refusal)
        starts.add(pool.starts)
        assert pool.max_single_request_tokens == max(0, want.tokens - one.page)
        for tokens in (1, one.page + 1, one.length):
            held = -(-tokens // one.page) * one.page
            counts = [Fraction(want.tokens, held)]
            if facts.windowed:
                kept = min(held, -(-(facts.window + one.page) // one.page) * one.page)
                counts.append(Fraction(want.window_tokens, kept))
            if want.each:
                counts.append(Fraction(want.slots, want.each))
            at_once = int(min(counts))
            assert engine.held_at(found.stages, found.settings, found.kv_bytes, tokens) == at_once * one.dp
            assert engine.requests_at(found.stages, found.settings, found.kv_bytes, tokens) == one.dp * min(
                at_once, max(0, most)
            )
            if tokens == one.length:
                assert pool.max_concurrency == pytest.approx(one.dp * float(min(counts)))
    assert starts


@pytest.mark.parametrize("seed", range(6))
def test_what_holds_at_once(seed: int) -> None:
    """Pages of a common prefix lie once in the tree; its last token is computed again."""
    rng = Random(f"holds {seed}")
    for _ in range(12):
        facts = of_shape(rng.choice([plain, latent])(rng), "auto", "0.5.23")
        one = asked(rng, facts, "0.5.23")._replace(limit=None)
        prompt, output, prefix = rng.randint(1, 3000), rng.randint(1, 300), rng.randint(0, 3000)
        one = one._replace(length=prompt + output)
        have = rng.randint(1 << 24, 1 << 31)
        want = laid(have, facts, one)
        shared = min(prefix, prompt, prompt - 1) // one.page * one.page if one.radix else 0
        each = -(-(prompt + output) // one.page) * one.page
        most = 1 + (want.tokens - each) // (each - shared) if want.tokens >= each else 0
        for running in {1, max(1, most * one.dp), most * one.dp + 1}:
            engine, found = outcome(
                facts, one, have, concurrency=running, prompt_tokens=prompt, output_tokens=output,
                shared_prefix_tokens=min(prefix, prompt),
            )  # fmt: skip
            assert found.kv_bytes is not None
            assert engine.holds(found.stages, found.settings, found.kv_bytes) is (-(-running // one.dp) <= most)


@pytest.mark.parametrize("version", ["0.5.6", "0.5.12", "0.5.14", "0.5.17", "0.5.23"])
def test_it_starts_with_as_many_bytes_as_it_says(version: str) -> None:
    """And not with one less, where no share of them goes to states."""
    rng = Random(version)
    for _ in range(30):
        facts = hybrid(rng) if rng.random() < 0.3 else of_shape(rng.choice([plain, windowed])(rng), "auto", version)
        one = asked(rng, facts, version)._replace(limit=None, dp=1, page=rng.choice([1, 16]))
        one = one._replace(slots=None if one.slots is None else max(5, one.slots))
        engine, found = outcome(facts, one, 1 << 40)
        need = engine.start_bytes(found.stages[0], found.settings)
        for have in (need, need - 1):
            want = laid(have, facts, one)
            enough = not facts.windowed or want.window_tokens > facts.window + one.page
            enough = enough and (not want.each or want.slots >= want.each)
            made = outcome(facts, one, have)[1].pool
            assert made is not None
            assert made.starts is (want.tokens > 1 and enough)
            if have == need or not facts.state or one.slots is not None:
                assert made.starts is (have == need), (one, need, made.refusal)
        if facts.state and one.slots is None and (one.radix or one.running is None):
            share = outcome(facts, one, need * 99 // 100)[1].pool
            assert share is not None
            assert not share.starts


@pytest.mark.parametrize("seed", range(5))
def test_pools_as_they_are_laid_out(seed: int) -> None:
    rng = Random(f"laid {seed}")
    for _ in range(12):
        version = rng.choice(VERSIONS[2:])
        facts = hybrid(rng) if rng.random() < 0.4 else of_shape(rng.choice([plain, windowed])(rng), "auto", version)
        one, have = asked(rng, facts, version)._replace(dp=1), rng.randint(1 << 26, 1 << 33)
        want = laid(have, facts, one)
        if want.tokens <= 0:
            continue
        made = plan_deployment(
            facts.model, None, f"sglang@{version}", {**one.given, "kv_cache_memory_bytes": have}
        ).allocation
        assert made is not None
        found = {p.kind: p for p in (*made.pools, *made.states)}
        cells = want.tokens + one.page
        assert (found["full"].cells, found["full"].blocks) == (cells, cells // one.page)
        assert found["full"].bytes == cells * facts.full
        assert found["full"].k_bytes == found["full"].v_bytes == cells * facts.full // 2
        if facts.windowed:
            windows = want.window_tokens + one.page
            assert (found["sliding"].cells, found["sliding"].bytes) == (windows, windows * facts.windowed)
        if facts.state:
            slots = want.slots + want.padding
            assert (found["recurrent"].cells, found["recurrent"].bytes) == (slots, slots * facts.state)
            assert made.state_bytes == slots * facts.state
        assert set(found) == {"full"} | ({"sliding"} if facts.windowed else set()) | (
            {"recurrent"} if facts.state else set()
        )


@pytest.mark.parametrize("page", [1, 16, 64])
@pytest.mark.parametrize("limit", [64, 1000, 65536])
def test_a_limit_of_tokens_alone(page: int, limit: int) -> None:
    for model, full, windowed_ in (("llama-3.1-8b", 131_072, 0), ("gpt-oss-20b", 24_576, 24_576)):
        made = plan(model, engine="sglang", max_total_tokens=limit, page_size=page).allocation
        assert made is not None
        tokens = limit // page * page
        window = int(tokens * 0.8) // page * page + page if windowed_ else 0
        assert made.bytes == (tokens + page) * full + window * windowed_

"""Laws that every engine's budget and pool keep, whatever the engine."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest

from kvplan import load_gpu, load_model
from kvplan.engines import ENGINES, get_engine
from kvplan.engines.base import Engine
from kvplan.engines.common import experts_term, forward_term, widest_ffn
from kvplan.engines.llama_cpp.architectures import gguf_name
from kvplan.engines.sglang.fraction import prefill_graph_count, reserved_mib, static_fraction
from kvplan.errors import InputError, UnsupportedError
from kvplan.planning.drafts import served_model
from kvplan.planning.evaluate import Outcome, evaluate, settled
from kvplan.planning.settings import resolve
from kvplan.units import GIB

GPU = {"mlx": "apple-m4-max"}
MODELS = ("llama-3.1-8b", "gemma-3-27b", "gpt-oss-20b", "deepseek-v2-lite")
CASES = [(engine, name) for engine in ENGINES for name in MODELS]


@cache
def outcome(engine: str, name: str, **given: Any) -> tuple[Engine, Outcome]:
    spec, device, chosen = load_model(name), load_gpu(GPU.get(engine, "h200-sxm")), get_engine(engine)
    settings, _ = resolve(spec, device, chosen, {"max_model_len": 4096, **given})
    spec = served_model(spec, chosen, settings)
    return chosen, evaluate(spec, device, chosen, settings)


@pytest.mark.parametrize(("engine", "name"), CASES)
def test_terms_are_whole_bytes_between_their_bounds(engine: str, name: str) -> None:
    _, found = outcome(engine, name)
    for fall in found.waterfalls:
        for term in fall.terms:
            assert {type(term.bytes), type(term.low_bytes), type(term.high_bytes)} == {int}, term.name
            assert term.low_bytes <= term.bytes <= term.high_bytes, term.name
        assert sum(term.low_bytes for term in fall.terms) >= 0


@pytest.mark.parametrize(("engine", "name"), CASES)
def test_no_memory_holds_nothing(engine: str, name: str) -> None:
    chosen, found = outcome(engine, name)
    none = tuple(0 for _ in found.stages)
    pool = chosen.pool(found.stages, found.settings, none)
    assert not pool.starts
    if chosen.fills_budget:  # the others lay out what they were asked for
        assert not chosen.holds(found.stages, found.settings, none)
        assert not pool.num_blocks
        assert not pool.kv_tokens
        assert not pool.max_concurrency
        assert not pool.max_single_request_tokens
        assert chosen.requests_at(found.stages, found.settings, none, 100) == 0


def test_a_missing_byte_is_no_block() -> None:
    chosen, found = outcome("vllm", "llama-3.1-8b")
    assert chosen.pool(found.stages, found.settings, (-1,)).num_blocks == 0
    chosen, found = outcome("generic", "llama-3.1-8b")
    assert chosen.requests_at(found.stages, found.settings, (-1,), 100) == 0


@pytest.mark.parametrize(("engine", "name"), CASES)
def test_more_memory_never_holds_less_and_longer_requests_are_never_more(engine: str, name: str) -> None:
    chosen, found = outcome(engine, name)
    before: list[float] = []
    for gib in (1, 2, 3, 7, 20, 21, 60):
        kv = tuple(gib * GIB for _ in found.stages)
        pool = chosen.pool(found.stages, found.settings, kv)
        counts = [chosen.requests_at(found.stages, found.settings, kv, n) for n in (1, 15, 16, 17, 1000, 4096)]
        assert counts == sorted(counts, reverse=True)
        now = [pool.kv_tokens or 0, pool.max_single_request_tokens or 0, float(pool.max_concurrency or 0), *counts]
        assert all(a <= b for a, b in zip(before, now, strict=bool(before))), (before, now)
        before = now


# ---- terms that several engines share, worked by hand ----


def term(engine: str, name: str, what: str, **given: Any) -> Any:
    _, found = outcome(engine, name, **given)
    (only,) = (t for t in found.waterfalls[0].terms if t.name == what)
    return only


def test_activations_of_a_forward_pass() -> None:
    """Tokens through the widest layer (gate, up and their product, four hidden vectors, 16 bits) and rows of logits."""
    (stage,) = outcome("generic", "llama-3.1-8b")[1].stages
    found = forward_term(stage, load_model("llama-3.1-8b"), 100, 4, "all at once")
    peak = 2 * 100 * (3 * 14_336 + 4 * 4096) + 6 * 4 * 128_256
    assert (found.bytes, found.low_bytes, found.high_bytes) == (peak, peak // 2, 2 * peak)
    assert type(found.low_bytes) is int
    (stage,) = outcome("generic", "mixtral-8x7b")[1].stages
    assert widest_ffn(stage) == 2 * 14_336  # both experts of a token
    first, _ = outcome("generic", "llama-3.1-8b", pipeline_parallel_size=2)[1].stages
    assert forward_term(first, load_model("llama-3.1-8b"), 100, 4, "").bytes == 2 * 100 * (3 * 14_336 + 4 * 4096)


def test_rows_of_routed_experts() -> None:
    (stage,) = outcome("generic", "mixtral-8x7b")[1].stages
    found = experts_term(stage, load_model("mixtral-8x7b"), 100)
    assert found is not None
    rows = 100 * 2 * (4 * 4096 + 6 * 14_336)
    assert (found.bytes, found.low_bytes, found.high_bytes) == (rows, rows // 2, rows * 3 // 2)
    v3 = load_model("deepseek-v3")  # experts in fp8: the inputs of both products in 8 bits besides
    (stage,) = outcome("generic", "deepseek-v3")[1].stages
    found = experts_term(stage, v3, 100)
    assert found is not None
    assert found.bytes == 100 * 8 * (4 * 7168 + 6 * 2048 + 7168 + 2048)
    (stage,) = outcome("generic", "llama-3.1-8b")[1].stages
    assert experts_term(stage, load_model("llama-3.1-8b"), 100) is None


def test_groups_of_dp_attention_hold_all_attention_weights() -> None:
    """Four groups over four ranks: each rank has the quarter that is counted, and three more."""
    found = term("sglang", "llama-3.1-8b", "attention weights of DP attention", tensor_parallel_size=4, attn_dp_size=4)
    extra = 3 * 32 * 41_943_040 // 4 * 2
    assert (found.bytes, found.low_bytes, found.high_bytes) == (extra, extra * 3 // 4, extra * 5 // 4)


# ---- facts of single engines ----


def test_gguf_names_of_architectures() -> None:
    assert gguf_name("LlamaForCausalLM") == gguf_name("llama") == "llama"
    assert gguf_name("mistral4") == "mistral4"
    assert gguf_name("NobodysForCausalLM") is None


def test_one_length_has_one_name() -> None:
    with pytest.raises(InputError, match="num_ctx and max_model_len say the same thing twice"):
        outcome("ollama", "llama-3.1-8b", num_ctx=2048)


def test_caches_of_exllamav3_are_whole_pages() -> None:
    _, found = outcome("exllamav3", "llama-3.1-8b", cache_tokens=8192)
    assert found.pool is not None
    assert found.pool.kv_tokens == 8192
    for tokens, near in ((8000, 7936), (8100, 8192), (100, 256)):
        with pytest.raises(UnsupportedError, match=f"multiple of 256 tokens, not {tokens:,}") as caught:
            outcome("exllamav3", "llama-3.1-8b", cache_tokens=tokens)
        assert caught.value.hint == f"type --cache-tokens {near}"
    for name in ("deepseek-v3.2", "glm-5.2", "rwkv-7-g1-7.2b"):
        with pytest.raises(UnsupportedError, match="caches of exllamav3 are not modelled"):
            settled(load_model(name), load_gpu("h200-sxm"), get_engine("exllamav3"), {"max_model_len": 4096})


@pytest.mark.parametrize(("version", "share"), [("0.19.0", 0.9), ("0.20.0", 0.92), ("0.33.0", 0.92)])
def test_the_share_that_vllm_takes(version: str, share: float) -> None:
    _, found = outcome(f"vllm@{version}", "llama-3.1-8b")
    assert found.settings.gpu_memory_utilization == share


def test_what_sglang_reserved_by_class_of_card() -> None:
    """0.5.2: 2.8 GiB below 35 GiB, 9.5 below 90, 12 below 160, and more for each rank; 32 GiB from there on."""

    def reserved(gib: int, tp: int = 1, attn_dp: int = 1) -> float:
        return reserved_mib(
            gib * 1024, version="0.5.2", tp=tp, pp=1, chunk=2048, running=None, attn_dp=attn_dp, latent=False
        )

    assert [reserved(gib) / 1024 for gib in (24, 34, 35, 80, 89, 90, 141, 159, 160, 192)] == pytest.approx(
        [2.9, 2.9, 10.0, 10.0, 10.0, 12.5, 12.5, 12.5, 32, 32]
    )
    assert reserved(80, 8) / 1024 == pytest.approx(9.5 + 4)
    assert reserved(80, 8, 8) - reserved(80, 8) == 4096


def test_what_sglang_reserves_by_formula() -> None:
    """0.5.23 on 80 GiB: 512, 1.5 a token of a chunk, 1/8 GiB a rank, 2 a captured sequence, 8 a prefill graph."""

    def reserved(gib: int, version: str = "0.5.23", **given: Any) -> float:
        said = dict(tp=1, pp=1, chunk=8192, running=None, attn_dp=1, latent=False) | given
        return reserved_mib(gib * 1024, version=version, **said)

    graphs = prefill_graph_count(8192)
    assert graphs == 8 + 14 + 8 + 8 + 12 + 8
    assert reserved(48) == 512 + 1.5 * 8192 + 128 + 2 * 32 + 8 * graphs
    assert reserved(48, tp=2, pp=2) == 512 + 1.5 * 8192 + 512 + 2 * 32 + 8 * graphs
    assert reserved(48, running=10) == 512 + 1.5 * 8192 + 128 + 2 * 10 + 8 * graphs
    assert reserved(48, latent=True) == 512 + 1.5 * 8192 + 128 + 2 * 32 + 1536
    assert reserved(48, attn_dp=2) - reserved(48) == 3 * 32 * 2
    assert reserved(192, attn_dp=2) - reserved(192) == 4.5 * 512 * 2
    assert reserved(48, "0.5.6") == 512 + 1.5 * 8192 + 128 + 2 * 32
    assert reserved(80, "0.5.6", chunk=2048) == 10 * 1024  # large cards keep 10 GiB at least
    assert reserved(48, "0.5.6", chunk=64) == 512 + 1.5 * 2048 + 128 + 2 * 32
    assert static_fraction(80 * 1024, 10 * 1024) == 0.875

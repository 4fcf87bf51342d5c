"""Notes of a plan word by word, with engines that are made up: at the last figure that is told and the next."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from kvplan import load_gpu, load_model
from kvplan.engines.base import Pool, Settings, Stage
from kvplan.errors import UnsupportedError
from kvplan.planning import notes as of
from kvplan.units import GIB

LLAMA, HYBRID = load_model("llama-3.1-8b"), load_model("granite-4.0-h-tiny")


def settings(**changes: Any) -> Settings:
    sizes = {"max_model_len": 2000, "prompt_tokens": 1000, "output_tokens": 100}
    return Settings(**{"engine": "x", "engine_version": "1", **sizes, **changes})


def pool(tokens: int | None = 4000, concurrency: float = 2.0, single: int = 2000) -> Pool:
    return Pool(16, 250, tokens, tokens, concurrency, single, True, (0,))


def outcome(asked: Settings, held: Pool | None = None, count: int = 1, **more: Any) -> Any:
    stages = tuple(Stage(n, LLAMA, n == 0, n == count - 1, 0) for n in range(count))
    return SimpleNamespace(settings=asked, pool=held, stages=stages, fits=True, **more)


# ---- copies of one cache ----


@pytest.mark.parametrize(
    ("name", "tp", "copies"),
    [
        ("llama-3.1-8b", 1, 1), ("llama-3.1-8b", 2, 1), ("llama-3.1-8b", 8, 1), ("llama-3.1-8b", 16, 2),
        ("llama-3.1-8b", 32, 4), ("deepseek-v3", 1, 1), ("deepseek-v3", 2, 2), ("deepseek-v3", 8, 8),
        ("mamba2-2.7b", 8, 1), ("falcon-7b", 4, 4), ("gemma-3-27b", 16, 1), ("gemma-3-27b", 32, 2),
    ],
)  # fmt: skip
def test_ranks_that_hold_the_same(name: str, tp: int, copies: int) -> None:
    assert of._copies(load_model(name), tp) == copies


@pytest.mark.parametrize(
    ("held", "changes", "tokens"),
    [
        (None, {}, 0), (pool(), {}, 4000), (pool(), {"data_parallel_size": 3}, 12_000),
        (pool(None, 2.5), {}, 5000), (pool(None, 2.5), {"data_parallel_size": 2}, 10_000),
        (pool(), {"extra": {"attn_dp_size": 4}}, 16_000),
        (pool(None, 2.5), {"extra": {"attn_dp_size": 4}}, 5000),  # the concurrency is of all of them
        (pool(0, 2.5), {}, 0),
    ],
)  # fmt: skip
def test_tokens_over_all_replicas(held: Pool | None, changes: dict[str, Any], tokens: int) -> None:
    assert of._tokens(outcome(settings(**changes), held)) == tokens


def sharing(monkeypatch: pytest.MonkeyPatch, *tried: Pool | None, refused: tuple[int, ...] = (), **changes: Any) -> Any:
    """The note of DeepSeek's latent cache under an engine with as many other layouts as there are pools."""
    pools = list(tried)

    def check(_: Any, asked: Settings, __: Any) -> None:
        if asked.block_size in refused:
            raise UnsupportedError("no kernels")

    own: Any = SimpleNamespace(
        sharing_layouts=lambda _, ranks: [(f"-x {n} of {ranks}", {"block_size": n}) for n in range(1, len(pools) + 1)],
        check=check,
    )
    monkeypatch.setattr(of, "evaluate", lambda *given: outcome(given[3], pools[given[3].block_size - 1]))
    asked = settings(**{"tensor_parallel_size": 8, **changes})
    return list(of._same_cache_everywhere(load_model("deepseek-v3"), None, own, outcome(asked, pool())))


def test_layouts_without_copies(monkeypatch: pytest.MonkeyPatch) -> None:
    said = "8 ranks hold the same cache, 4,000 tokens in all, no more than one of them would; of the same GPUs "
    assert sharing(monkeypatch, pool(26_000)) == [said + "-x 1 of 8 holds 26,000 (6.5 x)"]
    two = sharing(monkeypatch, None, pool(8000))
    assert two == [said + "-x 1 of 8 does not fit, -x 2 of 8 holds 8,000 (2.0 x)"]
    assert sharing(monkeypatch, pool(9000), pool(8000), refused=(1,)) == [said + "-x 2 of 8 holds 8,000 (2.0 x)"]
    assert sharing(monkeypatch, pool(9000), refused=(1,)) == []
    assert sharing(monkeypatch) == []
    assert sharing(monkeypatch, pool(8000), decode_context_parallel_size=8) == []
    half = sharing(monkeypatch, pool(8000), decode_context_parallel_size=4)
    assert half == [said.replace("8 ranks", "2 ranks") + "-x 1 of 2 holds 8,000 (2.0 x)"]
    assert sharing(monkeypatch, pool(8000), extra={"attn_dp_size": 2}) == []
    assert sharing(monkeypatch, pool(8000), extra={"attn_dp_size": 1}) != []


def test_nothing_is_compared_with_a_cache_that_holds_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    own: Any = SimpleNamespace(sharing_layouts=lambda *_: [("-x", {})], check=lambda *_: None)
    monkeypatch.setattr(of, "evaluate", lambda *given: outcome(given[3], pool(8000)))
    asked, model = settings(tensor_parallel_size=2), load_model("deepseek-v3")
    assert list(of._same_cache_everywhere(model, None, own, outcome(asked, pool(0)))) == []
    assert list(of._same_cache_everywhere(model, None, own, outcome(asked, None))) == []


# ---- what a start needs ----


@pytest.mark.parametrize(
    ("fills", "held", "expected"),
    [
        (True, pool(single=2000), ([40, 50], "one request of the limit")),
        (True, pool(single=1999), ([40, 10], "the smallest cache that starts")),
        (True, None, ([40, 50], "one request of the limit")),
        (False, pool(single=1999), ([40, 10], "its caches")),
    ],
)
def test_bytes_without_which_a_start_is_of_no_use(fills: bool, held: Pool | None, expected: Any) -> None:
    """Of each stage: what the engine starts with, or a request of the limit where it holds one."""
    own: Any = SimpleNamespace(
        fills_budget=fills, start_bytes=lambda stage, _: (40, 10)[stage.number],
        request_bytes=lambda stage, _, tokens: (tokens // 100, tokens // 40)[stage.number],
    )  # fmt: skip
    assert of._start(own, outcome(settings(), held, 2)) == expected


# ---- a format without effect ----


def effect(model: Any, sizes: dict[tuple[str, int], int], *, pages: bool = True, **changes: Any) -> list[str]:
    """With request bytes of (format, tokens)."""

    def check(_: Any, asked: Settings, __: Any) -> None:
        if (asked.kv_cache_dtype, 0) in sizes:
            raise UnsupportedError("no kernels")

    own: Any = SimpleNamespace(
        pages_cover_states=pages, smaller_kv_formats=("fp8", "fp4"), check=check,
        request_bytes=lambda stage, asked, tokens: sizes[asked.kv_cache_dtype, tokens] - stage.number,
    )  # fmt: skip
    asked = settings(**changes)
    return list(of._format_without_effect(model, load_gpu("l4"), own, outcome(asked, pool(), 2)))


SIZES = {("auto", 1100): 10 * GIB, ("fp8", 1100): 9 * GIB, ("auto", 2000): 20 * GIB, ("fp8", 2000): 16 * GIB}


def test_a_smaller_format_that_saves_next_to_nothing() -> None:
    """More than 80 % of the bytes that are there without it."""
    short = (
        "a cache in fp8 saves only 10% for requests of 1,100 tokens: 9.000 GiB per GPU are reserved, 10.000 GiB in the "
        "model's dtype; the size of a page is that of a state"
    )
    assert effect(HYBRID, SIZES) == [short]
    assert effect(HYBRID, SIZES, kv_cache_dtype="fp8") == [short]
    both = effect(HYBRID, SIZES | {("fp8", 2000): 16 * GIB + 1})
    assert both[0] == short
    assert both[1].startswith("a cache in fp8 saves only 20% for requests of 2,000 tokens: 16.000 GiB")
    same = effect(HYBRID, SIZES | {("fp8", 1100): 10 * GIB})
    assert same[0].startswith("a cache in fp8 saves nothing for requests of 1,100 tokens: 10.000 GiB")
    assert len(effect(HYBRID, SIZES, prompt_tokens=1900)) == 0  # of 2,000 tokens, the limit itself
    assert effect(HYBRID, {("auto", 2000): 8, ("fp8", 2000): 9}, prompt_tokens=1901) != []  # those over it are not run


def test_where_formats_do_what_they_say() -> None:
    assert effect(HYBRID, SIZES, pages=False) == []
    assert effect(LLAMA, SIZES) == []
    assert effect(load_model("mamba2-2.7b"), SIZES) == []
    for wide in ("bf16", "fp16", "f16", "bfloat16", "float16", "half"):
        assert effect(HYBRID, SIZES | {(wide, 1100): 10 * GIB, (wide, 2000): 20 * GIB}, kv_cache_dtype=wide) == []
    assert effect(HYBRID, SIZES | {("fp8", 0): 1}) == []


# ---- which notes there are ----


def test_the_most_sequences_are_told_where_it_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_to_paste", "_breaks_first", "_same_cache_everywhere", "_format_without_effect"):
        monkeypatch.setattr(of, name, lambda *_, said=name: iter((said,)))
    own: Any = SimpleNamespace(sequences_flag="--max-num-seqs", sequence_needs="each needs a block")
    every = ("_to_paste", "_breaks_first", "_same_cache_everywhere", "_format_without_effect")
    there = outcome(settings())
    assert of.notes(LLAMA, None, own, there) == every == of.notes(LLAMA, None, own, there, 0)
    said = "--max-num-seqs is 1,234 at most with this memory: each needs a block"
    assert of.notes(LLAMA, None, own, there, 1234) == (*every, said)
    there.fits = False
    assert of.notes(LLAMA, None, own, there, 1234) == every
    assert of.WORTHLESS_SHARE == 0.8

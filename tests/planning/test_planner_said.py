"""Warnings and shares of a plan, with models, devices and pools that are made up."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from kvplan import load_gpu, load_model
from kvplan.engines.base import Pool, Settings, Stage, Term
from kvplan.planning import explain, kv, no_cache, planner
from kvplan.planning.evaluate import Waterfall
from kvplan.planning.plan import OPTIONAL_KEYS, to_plain

LLAMA, L4, GIB = load_model("llama-3.1-8b"), load_gpu("l4"), 2**30


def settings(**changes: Any) -> Settings:
    return Settings(**{"engine": "x", "engine_version": "1", "max_model_len": 2000, **changes})


def pool(**changes: Any) -> Pool:
    return Pool(16, 100, 1600, 1600, 0.8, 1600, True, (7, 9))._replace(**changes)


# ---- warnings ----


@pytest.mark.parametrize(
    ("model", "said"),
    [
        ({"position_embeddings": 2048}, "a learned table of 2,048 positions, which ends there"),
        ({"rope": None}, "no rope scaling in its configuration"),
        ({"rope": {}}, "no rope scaling in its configuration"),
        ({"rope": {"rope_type": "yarn", "factor": 4.0}}, "rope scaling yarn, factor 4, already in that maximum"),
        ({"rope": {"type": "linear", "factor": 2}}, "rope scaling linear, factor 2, already in that maximum"),
        ({"rope": {"rope_type": "llama3"}}, "rope scaling llama3"), ({"rope": {"factor": "x"}}, "rope scaling rope"),
    ],
)  # fmt: skip
def test_how_positions_work(model: dict[str, Any], said: str) -> None:
    known = {"position_embeddings": None, "rope": None, **model}
    assert planner.rope_rule(SimpleNamespace(**known)) == said  # type: ignore[arg-type]


def model_warnings(limit: int | None = 4096, model: Any = LLAMA, **changes: Any) -> list[str]:
    engine: Any = SimpleNamespace(longest_context=lambda _: limit)
    return planner._model_warnings(model, engine, settings(**changes))


def test_what_to_know_about_a_model() -> None:
    over = "max_model_len 4,097 is above the model's maximum of 4,096 (rope scaling llama3, factor 8, already in that "
    assert model_warnings(max_model_len=4097) == [over + "maximum)"]
    assert model_warnings(max_model_len=4096) == [] == model_warnings(None, max_model_len=4097)
    assert model_warnings(max_model_len=4097, allow_long_max_model_len=True) == []
    recalled = "the shape of llama-3.1-8b is recalled, not read from its configuration"
    assert model_warnings(model=replace(LLAMA, confidence="recalled")) == [recalled]
    assert model_warnings(model=replace(LLAMA, file_warnings=("odd file",), confidence="recalled")) == [
        "odd file",
        recalled,
    ]


def test_what_to_know_about_a_device() -> None:
    assert planner._gpu_warnings(None) == []
    recalled = "the figures of l4 are recalled, not read from a source"
    for confidence, told in (("recalled", True), ("recalled, seen", False), ("seen", False)):
        assert (recalled in planner._gpu_warnings(replace(L4, confidence=confidence))) is told
    basis, source = L4.device_bytes_basis
    said = f"device memory of l4 is not measured: {source}"
    assert (said in planner._gpu_warnings(L4)) is (basis != "measured")
    mac = load_gpu("apple-m4-max")
    shares = "shares its memory with the CPU: what other programs hold is not available"
    assert planner._gpu_warnings(mac)[-1] == f"apple-m4-max {shares}"
    assert not any(shares in text for text in planner._gpu_warnings(L4))


@pytest.mark.parametrize(
    ("held", "told"),
    [
        (pool(), True), (pool(max_single_request_tokens=1999), True), (pool(max_single_request_tokens=2000), False),
        (pool(max_single_request_tokens=1), True), (pool(max_single_request_tokens=0), False),
        (pool(starts=False), False), (None, False),
    ],
)  # fmt: skip
def test_pools_shorter_than_the_limit(held: Pool | None, told: bool) -> None:
    engine: Any = SimpleNamespace(name="x")
    found = planner._short_pool(engine, SimpleNamespace(pool=held, settings=settings()))  # type: ignore[arg-type]
    tokens = held.max_single_request_tokens if held else 0
    said = (
        f"the pool holds {tokens:,} tokens of one request, less than the limit of 2,000: x starts, and longer requests "
        "do not run"
    )
    assert found == ([said] if told else [])


# ---- bytes and shares ----


@pytest.mark.parametrize(
    ("held", "fills", "override", "have", "expected"),
    [
        (pool(), True, None, (100, 200), [100, 200]), (pool(), False, None, (100, 200), [7, 9]),
        (pool(), True, 5, (100, 200), [7, 9]), (None, False, None, (100, -5), [100, 0]),
        (pool(), True, None, (100, -5), [100, 0]), (pool(), False, None, (100, 0), [100, 0]),
        (pool(), False, None, (100, 1), [7, 9]),
    ],
)  # fmt: skip
def test_bytes_of_cache_on_a_rank(held: Any, fills: bool, override: int | None, have: Any, expected: list[int]) -> None:
    engine: Any = SimpleNamespace(fills_budget=fills)
    assert planner.rank_kv_bytes(engine, settings(num_gpu_blocks_override=override), held, have) == expected


def fall(total: int, budget: int, spent: int, low: int = 0, high: int = 0) -> Waterfall:
    term = Term("weights", "weights", spent, spent - low, spent + high, "exact", "")
    return Waterfall(total, budget, (term,), budget - spent)


def outcome(*falls: Waterfall, **changes: Any) -> Any:
    stages = tuple(Stage(n, LLAMA, n == 0, True, 0) for n in range(len(falls)))
    return SimpleNamespace(settings=settings(**changes), waterfalls=falls or None, stages=stages, pool=pool())


def engine(start: int = 100, **more: Any) -> Any:
    return SimpleNamespace(**{
        "settings": frozenset({"gpu_memory_utilization"}), "start_bytes": lambda stage, _: start * (stage.number + 1),
        "budget_bytes": lambda total, asked: int(total * asked.gpu_memory_utilization),
        "pool": lambda stages, asked, kv: pool(
            starts=min(kv) >= 150, kv_tokens=min(kv), max_single_request_tokens=min(kv)
        ),
        **more,
    })  # fmt: skip


def test_the_smallest_share_of_a_device_that_starts() -> None:
    """1,000 bytes, 600 of them spent: 150 for the pool are 75 %, of two stages 200 for the second one's start."""
    whole = {"gpu_memory_utilization": 0.9}
    assert planner.smallest_utilization(engine(), outcome(fall(1000, 900, 600), **whole)) == 0.75
    two = outcome(fall(1000, 900, 600), fall(1000, 900, 600), **whole)
    assert planner.smallest_utilization(engine(), two) == 0.8
    assert planner.smallest_utilization(engine(start=300), outcome(fall(1000, 900, 600), **whole)) == 0.9
    assert planner.smallest_utilization(engine(start=400), outcome(fall(1000, 900, 600), **whole)) == 1.0
    assert planner.smallest_utilization(engine(start=401), outcome(fall(1000, 900, 600), **whole)) is None
    assert planner.smallest_utilization(engine(), outcome(**whole)) is None
    asked = outcome(fall(1000, 900, 600), kv_cache_memory_bytes=5, **whole)
    assert planner.smallest_utilization(engine(), asked) is None
    assert planner.smallest_utilization(engine(settings=frozenset()), outcome(fall(1000, 900, 600), **whole)) is None


def test_capacity_at_the_ends_of_the_terms() -> None:
    of = outcome(fall(1000, 900, 600, 50, 80), fall(1000, 900, 500, 10, 20))
    assert planner._capacity_at(engine(), of, -1) == (220, 0.8, 220)
    assert planner._capacity_at(engine(), of, 1) == (350, 0.8, 350)
    none = outcome(fall(1000, 900, 600, 50, 300))
    assert planner._capacity_at(engine(), none, -1) == (0, 0.0, 0)
    least = outcome(fall(1000, 900, 600, 50, 299))
    assert planner._capacity_at(engine(), least, -1) == (1, 0.8, 1)
    assert planner._capacity_at(engine(), outcome(fall(1000, 900, 600)), -1) is None
    assert planner._capacity_at(engine(), outcome(fall(1000, 900, 600, 1)), 1) is not None
    given = outcome(fall(1000, 900, 600, 50, 80), kv_cache_memory_bytes=5)
    assert planner._capacity_at(engine(), given, 1) is None
    assert planner._capacity_at(engine(), outcome(), 1) is None
    assert planner.LENGTHS == (1024, 4096, 16_384, 65_536, 262_144, 1_048_576)


# ---- plain data, formulas, sums ----


def test_plain_data() -> None:
    held = pool()
    assert to_plain({"a": (held, [1, (2,)]), "b": None}) == {
        "a": [held._asdict() | {"used_bytes": [7, 9]}, [1, [2]]],
        "b": None,
    }
    assert OPTIONAL_KEYS == ("cost", "serving")


@pytest.mark.parametrize("length", [1, 2, 7])
def test_sums_of_whole_numbers(length: int) -> None:
    assert no_cache._sum(lambda n: n * n, 3, 2 + length) == sum(n * n for n in range(3, 3 + length))
    assert no_cache._EXACT == 4096


@pytest.mark.parametrize("count", [4096, 4097, 10_000])
def test_long_sums_by_trapezoids(count: int) -> None:
    """Of a straight line they are exact, and of a square within a millionth."""
    assert no_cache._sum(lambda n: 3 * n + 1, 5, 4 + count) == sum(3 * n + 1 for n in range(5, 5 + count))
    assert no_cache._sum(lambda n: n * n, 5, 4 + count) == pytest.approx(
        sum(n * n for n in range(5, 5 + count)), rel=1e-6
    )


def term(stream: str, *values: int, per_entry: int = 1, until: int | None = None) -> explain.StreamTerm:
    factors = tuple(explain.Factor(symbol, value) for symbol, value in zip(("layers", "heads"), values, strict=True))
    return explain.StreamTerm("full", stream, factors, per_entry, None, "bf16", 1, until, "")


@pytest.mark.parametrize(
    ("streams", "formula", "worked"),
    [
        ([("k", 2, 3), ("v", 2, 3)], "2 x layers x heads", "2 x 2 x 3 = 9 B"),
        ([("k", 2, 3), ("v", 2, 4)], "layers x heads", "2 x 3 + 2 x 4 = 9 B"),
        ([("v", 2, 3), ("k", 2, 3)], "layers x heads", "2 x 3 + 2 x 3 = 9 B"),
        ([("k", 2, 3)], "layers x heads", "2 x 3 = 9 B"),
        ([("latent", 2, 3), ("k", 2, 3), ("v", 2, 3)], "layers x heads + 2 x layers x heads",
         "2 x 3 + 2 x 2 x 3 = 9 B"),
        ([], "no part of the cache grows with the tokens", "0 B"),
    ],
)  # fmt: skip
def test_a_formula_in_symbols_and_numbers(streams: list[Any], formula: str, worked: str) -> None:
    assert explain._formula(tuple(term(*each) for each in streams), 9) == (formula, worked)


def test_entries_of_several_tokens_and_streams_that_stand_still() -> None:
    wide = (term("k", 2, 3, per_entry=4), term("k", 2, 3, until=0), term("k", 2, 3, until=9))
    formula, worked = explain._formula(wide, 1234)
    assert formula == "layers x heads / tokens per entry + layers x heads"
    assert worked == "2 x 3 / 4 + 2 x 3 = 1,234 B"
    assert explain._formula((term("k", 2, 3, until=0),), 0)[1] == "0 B"
    assert explain._with_layers(term("k", 1, 1, per_entry=4)._replace(bytes_per_token=10), 3).bytes_per_token == 8
    assert explain._with_layers(term("k", 1, 1, until=0)._replace(bytes_per_token=10), 3).bytes_per_token == 0


def test_a_cache_as_heavy_as_the_weights() -> None:
    from kvplan.engines import get_engine

    formats = get_engine("generic").kv_formats(LLAMA, settings())
    for tokens in (1, 2, 1000):
        assert kv.exceeds_at(LLAMA, formats, tokens * 131_072) == tokens
        assert kv.exceeds_at(LLAMA, formats, tokens * 131_072 + 1) == tokens + 1
    assert kv.exceeds_at(load_model("rwkv-7-g1-7.2b"), formats, 10**12) is None

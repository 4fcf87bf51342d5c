"""The work of a stage in whole bytes, and what stands below the line to paste."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from kvplan import load_gpu, load_model
from kvplan.engines.base import Pool, Settings, Stage, Term
from kvplan.planning import notes
from kvplan.planning.evaluate import Waterfall
from kvplan.planning.speed import work as of
from kvplan.planning.speed.work import Experts, _experts, _period
from kvplan.planning.weights import RoleWeights

from .round_rates import made

LLAMA, L4, GIB = load_model("llama-3.1-8b"), load_gpu("l4"), 2**30


# ---- work ----


def plain(**changes: Any) -> Settings:
    return Settings(engine="x", engine_version="", **changes)


def test_experts_in_whole_bytes() -> None:
    mixtral = load_model("mixtral-8x7b")
    held = RoleWeights("routed_experts", 1001, 3003, 0)
    assert _experts(mixtral, mixtral, held, plain()) == (Experts(8, 2, 3003, 1001, 1),)
    (found,) = _experts(mixtral, mixtral, held, plain(data_parallel_size=4, enable_expert_parallel=True))
    assert found == Experts(8, 2, 3003, 1001, 4)
    assert all(type(value) is int for value in found)
    assert _experts(mixtral, mixtral, held, plain(data_parallel_size=4))[0].groups == 1
    assert (
        _experts(mixtral, mixtral, None, plain()) == () == _experts(LLAMA, LLAMA, held._replace(parameters=0), plain())
    )


@pytest.mark.parametrize(
    ("layers", "period"),
    [("a", 1), ("aa", 1), ("ab", 2), ("abab", 2), ("aba", 3), ("aab", 3), ("aabaab", 3), ("abcabcabc", 3), ("aaab", 4)],
)
def test_names_that_come_again(layers: str, period: int) -> None:
    assert _period(tuple(layers)) == period


@pytest.mark.parametrize(("tokens", "groups", "share"), [(1, 1, 0.25), (2, 1, 0.4375), (1, 2, 0.4375), (0, 3, 0.0)])
def test_experts_that_tokens_touch(tokens: int, groups: int, share: float) -> None:
    """Of 8, two a token: one is missed by a token with chance 3/4."""
    experts = Experts(8, 2, 800, 400, groups)
    assert experts.touched(tokens) == pytest.approx(share)
    work = made().works[0]._replace(weight_bytes=1000, experts=(experts, experts))
    assert of.weight_bytes(work, tokens) == int(1000 + 2 * 800 * share)
    assert of.weight_bytes(work._replace(experts=()), tokens) == 1000


@pytest.mark.parametrize("groups", [1, 4])
def test_parameters_of_a_token(groups: int) -> None:
    work = made().works[0]._replace(parameters=100, head_parameters=7, experts=(Experts(8, 2, 0, 403, groups),))
    assert of.token_parameters(work) == 100 + 403 * 2 * groups // 8 + 7
    assert of.token_parameters(work, head=False) == 100 + 403 * 2 * groups // 8


def test_states_are_read_and_written_and_streams_shared_out() -> None:
    work = made().works[0]
    assert work.state_bytes == 0
    assert of.kv_bytes(work, 1000) == 1000 * 131_072
    assert of.kv_bytes(work._replace(state_bytes=50), 1000) == 1000 * 131_072 + 100
    assert of.kv_bytes(work._replace(dcp=3), 1000) == 334 * 131_072
    assert of.kv_bytes(work._replace(edge_bytes=5), 1000) == 1000 * (131_072 + 5)
    assert of.kv_bytes(work._replace(edge_bytes=5, dcp=2), 1001) == 501 * (131_072 + 5)


# ---- to paste ----


def outcome(have: tuple[int, ...] = (3 * GIB,), high: int = 0, fits: bool = True, **changes: Any) -> Any:
    term = Term("x", "runtime", GIB, GIB, GIB + high, "modelled", "")
    settings = plain(**{"max_model_len": 2000, **changes})
    stages = tuple(Stage(n, LLAMA, n == 0, True, 0) for n in range(len(have)))
    falls = tuple(Waterfall(9 * GIB, 8 * GIB, (term,), left) for left in have)
    held = Pool(16, 100, 1600, 1600, 0.8, 2000, True, (0,))
    return SimpleNamespace(settings=settings, fits=fits, kv_bytes=have, waterfalls=falls, stages=stages, pool=held)


def pasted(
    monkeypatch: pytest.MonkeyPatch, of_: Any, line: str = "run it", beside: str = "", **engine: Any
) -> list[str]:
    own: Any = SimpleNamespace(**{
        "typed": lambda settings, _: settings, "fills_budget": True, "start_bytes": lambda *_: GIB,
        "request_bytes": lambda *_: GIB, **engine,
    })  # fmt: skip
    monkeypatch.setattr(
        "kvplan.engines.paste.command", lambda *_: SimpleNamespace(line=line, beside=beside) if line else None
    )
    return list(notes._to_paste(LLAMA, L4, own, of_))


@pytest.mark.parametrize(
    ("have", "high", "said"),
    [
        ((3 * GIB,), GIB, "leaves 2.00 GiB per GPU beyond one request of the limit (1.00 GiB if"),
        ((3 * GIB,), 2 * GIB, "leaves 2.00 GiB per GPU beyond one request of the limit (0.00 GiB if"),
        ((3 * GIB,), 3 * GIB, "leaves 2.00 GiB per GPU beyond one request of the limit (1.00 GiB short if"),
        ((3 * GIB, 2 * GIB), 0, "leaves 1.00 GiB per GPU beyond one request of the limit (1.00 GiB if"),
    ],
)
def test_what_a_start_leaves(have: Any, high: int, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    found = pasted(monkeypatch, outcome(have, high))
    assert found == [f"to paste: run it\n{said} every modelled term is at its upper bound)"]


def test_what_stands_beside_the_line(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = outcome(kv_cache_memory_bytes=GIB)
    assert pasted(monkeypatch, asked) == ["to paste: run it"]
    assert pasted(monkeypatch, asked, beside="a file") == ["to paste: run it\na file"]
    packed = outcome(kv_cache_memory_bytes=GIB, weights="fp8")
    assert pasted(monkeypatch, packed, beside="a file") == ["to paste: run it\na checkpoint in fp8; a file"]
    assert pasted(monkeypatch, packed, "run --quantization fp8") == ["to paste: run --quantization fp8"]
    blind = outcome()
    blind.waterfalls = None
    assert pasted(monkeypatch, blind) == ["to paste: run it"]
    both = pasted(monkeypatch, outcome(weights="fp8"), beside="a file")
    assert both[0].startswith("to paste: run it\na checkpoint in fp8; a file; leaves 2.00 GiB per GPU")


def test_nothing_to_paste(monkeypatch: pytest.MonkeyPatch) -> None:
    assert pasted(monkeypatch, outcome(fits=False)) == []
    assert pasted(monkeypatch, outcome(), line="") == []
    without = outcome()
    without.kv_bytes = None
    assert pasted(monkeypatch, without) == []
    monkeypatch.setattr(notes, "_typed", lambda *_: None)
    assert pasted(monkeypatch, outcome()) == []


@pytest.mark.parametrize(
    ("own", "reach", "share"),
    [(0.8, 800, 0.8), (0.8, 801, 0.801), (0.8, 1000, 1.0), (0.8, 1001, None), (0.85, 200, 0.85), (0.5, 777, 0.777)],
)
def test_a_share_that_reaches_the_same_pool(
    own: float, reach: int, share: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its own where that is enough, else the smallest thousandth; of a pool of as many tokens and slots."""
    held = Pool(16, 100, 1600, 1600, 0.8, 1600, True, (0,), state_slots=3)

    def evaluate(_: Any, __: Any, ___: Any, tried: Settings) -> Any:
        there = round(tried.extra["mem_fraction_static"] * 1000)
        other = held._replace(kv_tokens=1599) if there % 2 else held._replace(state_slots=2)
        return SimpleNamespace(pool=held if there >= reach else other if there > 5 else None)

    monkeypatch.setattr(notes, "evaluate", evaluate)
    settings = plain()
    typed = plain(extra={"mem_fraction_static": own})
    engine: Any = SimpleNamespace(typed=lambda *_: typed)
    of_ = SimpleNamespace(settings=settings, pool=held)
    found = notes._typed(LLAMA, L4, engine, of_)  # type: ignore[arg-type]
    assert (found and found.extra["mem_fraction_static"]) == share
    assert notes._typed(LLAMA, None, engine, of_) is typed  # type: ignore[arg-type]
    same: Any = SimpleNamespace(typed=lambda *_: settings)
    assert notes._typed(LLAMA, L4, same, of_) is settings  # type: ignore[arg-type]


# ---- what is left ----


def test_a_sweep_over_prefixes_counts_requests_without_one_as_they_are() -> None:
    """Fourteen of a request without a prefix run, three of those that share one; on two replicas."""
    import numpy

    from kvplan.planning.prefix import requests

    def held(_: Any, asked: Settings, kv: Any) -> Any:
        return numpy.broadcast_to(
            asked.concurrency <= 2 * 3, numpy.shape(asked.concurrency + asked.shared_prefix_tokens)
        )

    own: Any = SimpleNamespace(
        requests_at=lambda stages, asked, kv, tokens: 100 if tokens == 1 else 14, holds=held,
        held_at=lambda stages, asked, kv, tokens: 200 if tokens == 1 else 28,
    )  # fmt: skip
    swept = plain(shared_prefix_tokens=numpy.array([0, 5, 9]), data_parallel_size=2)
    assert requests(own, (), swept, ()).tolist() == [14, 3, 3]
    assert requests(own, (), plain(), ()) == 14
    assert requests(own, (), plain(), (), by_cache=True) == 28
    one = SimpleNamespace(**{**vars(own), "holds": lambda _, asked, kv: asked.concurrency <= 2 * 3})
    assert requests(one, (), plain(shared_prefix_tokens=5, data_parallel_size=2), ()) == 3  # type: ignore[arg-type]
    assert requests(one, (), plain(shared_prefix_tokens=5), ()) == 6  # type: ignore[arg-type]
    few = SimpleNamespace(**{**vars(one), "requests_at": lambda *_: 4})
    assert requests(few, (), plain(shared_prefix_tokens=5), ()) == 4  # type: ignore[arg-type]


@pytest.mark.parametrize(("off", "found"), [(0.0, True), (1.0, True), (-1.0, True), (1.1, False), (-2.0, False)])
def test_a_cache_type_by_the_bytes_of_a_token(off: float, found: bool) -> None:
    """65,536 bytes a token of Llama 3.1 8B are 8 bits; a byte off is rounding."""
    from kvplan.engines import get_engine
    from kvplan.engines.log_table import Figure, Run
    from kvplan.planning.log_case import _cache_dtype
    from kvplan.sources.logs import Log

    run, settings, origins = Run(), {"max_model_len": 4096}, dict[str, str]()
    run.figures["token"] = [Figure(65_536 + off, 0.0, "bytes", 3)]
    log, engine = Log("vllm", "0.11.0", "", "", run, 1, ()), get_engine("vllm")
    _cache_dtype(log, LLAMA, engine, settings, origins, "x", {})
    assert (settings.get("kv_cache_dtype") == engine.smaller_kv_formats[0]) is found
    assert ("kv_cache_dtype" in origins) is found
    if found:
        assert origins["kv_cache_dtype"].startswith("x, line 3: a token takes 65,53")
    for given in ({"kv_cache_dtype": "auto"}, {}):
        known = {"max_model_len": 4096, **({} if given else {"kv_cache_dtype": "auto"})}
        _cache_dtype(log, LLAMA, engine, known, origins, "x", given)
        assert known.get("kv_cache_dtype", "auto") == "auto"


@pytest.mark.parametrize(("flag", "searched"), [("--max-num-seqs", True), ("--max-running-requests", False)])
def test_the_most_sequences_that_start(flag: str, searched: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Places fall by one for every ten sequences: 100 - n / 10 >= n up to 90. Where they do not move they are told."""
    from kvplan.planning import advice

    tried: list[int] = []

    def attempt(max_num_seqs: int) -> Any:
        tried.append(max_num_seqs)
        return SimpleNamespace(pool=SimpleNamespace(max_num_seqs_allowed=100 - max_num_seqs // 10))

    monkeypatch.setattr(advice, "attempts", lambda *_: attempt)
    own: Any = SimpleNamespace(sequences_flag=flag)

    def most(allowed: int | None = 70, **settings: Any) -> int | None:
        held: Any = SimpleNamespace(max_num_seqs_allowed=allowed)
        return advice.most_sequences(LLAMA, L4, own, SimpleNamespace(pool=held, settings=plain(**settings)))  # type: ignore[arg-type]

    assert most() == (91 if searched else 70)
    assert bool(tried) is searched
    assert len(tried) < 12
    assert most(None) is None
    if searched:
        assert most(max_num_batched_tokens=40) == 41
        assert most(max_num_batched_tokens=40, defaults={"max_num_batched_tokens": "x"}) == 91
        monkeypatch.setattr(advice, "attempts", lambda *_: lambda max_num_seqs: None)
        assert most() == 0


def test_layouts_beyond_what_is_searched() -> None:
    from kvplan.errors import InputError
    from kvplan.planning.fit.search import fit

    from .fit.test_rank_and_rows import asked

    for replicas in (512, 513):
        ask = asked(concurrency=1, gpus=("h100-sxm",), settings={"data_parallel_size": replicas}, weights=("bf16",))
        if replicas == 512:
            assert fit(LLAMA, ask).inputs["settings"] == {"data_parallel_size": 512}
            continue
        with pytest.raises(InputError) as refused:
            fit(LLAMA, ask)
        assert refused.value.message == "513 GPUs for one copy are more than the 512 that are searched"
        assert refused.value.where == "layout"

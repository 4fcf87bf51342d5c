"""What a question may not ask, and how misses are counted and told, with candidates that are made up."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy
import pytest

from kvplan import load_gpu, load_model
from kvplan.errors import InputError, UnsupportedError
from kvplan.planning.fit import search
from kvplan.planning.fit.ask import Ask, check
from kvplan.planning.fit.candidates import Layout
from kvplan.planning.fit.cases import Case
from kvplan.planning.fit.judge import MOST_COPIES, Judged, more_copies
from kvplan.planning.fit.misses import Misses
from kvplan.planning.fit.screen import (
    CACHE,
    CARRIES,
    COPIES,
    LIMIT,
    NO_FIGURES,
    REFUSED,
    TARGETS,
    WEIGHTS,
    Failed,
    measured_of,
)

from .test_rank_and_rows import asked

LLAMA = load_model("llama-3.1-8b")
L4, T4, V100, H100, MI300X = (load_gpu(name) for name in ("l4", "t4", "v100-sxm2-32gb", "h100-sxm", "mi300x"))
ONE, TWO = Case("vllm", "auto", "fp8", Layout()), Case("vllm", "fp8", "auto", Layout(2))


# ---- questions ----


def refusal(ask: Ask, model: Any = LLAMA) -> InputError:
    with pytest.raises(InputError) as caught:
        check(ask, model)
    return caught.value


def test_requests_longer_than_the_model_or_the_limit() -> None:
    own = refusal(asked(prompt=130_973, output=100, concurrency=1))
    assert own.message == ("requests of 131,073 tokens (prompt + output) are over the 131,072 that llama-3.1-8b takes")
    typed = refusal(asked(concurrency=1, settings={"max_model_len": 1199}))
    assert typed.message == "requests of 1,200 tokens (prompt + output) are over the 1,199 of --max-model-len"
    for error in (own, typed):
        assert (error.where, error.hint) == ("--prompt-tokens", "shorter requests, or a longer --max-model-len")
    check(asked(prompt=130_972, output=100, concurrency=1), LLAMA)
    check(asked(prompt=10**6, output=100, concurrency=1), replace(LLAMA, max_position_embeddings=None))
    check(asked(prompt=10**6, output=100, settings={"max_model_len": 2 * 10**6}), LLAMA)
    none = refusal(asked(prompt=0, concurrency=1))
    assert (none.message, none.where, none.hint) == (
        "a request without a prompt", "--prompt-tokens", "at least 1 token",
    )  # fmt: skip


def test_limits_of_one_request() -> None:
    assert asked(request_rate=4.0, concurrency=10, ttft=0.5, tpot=0.1).limits == (0.5, 0.1, 2.5, None)
    assert asked(request_rate=4.0, ttft=0.5).limits == (0.5, None, None, None)
    assert asked(concurrency=10).limits == (None, None, None, None)
    plain = asked()
    assert (plain.prices, plain.settings, plain.gpus, plain.engines, plain.weights, plain.kv_formats) == (
        (), {}, (), (), (), (),
    )  # fmt: skip
    assert (plain.max_gpus, plain.top, plain.every, plain.request_rate, plain.concurrency) == (
        None, 20, False, None, None,
    )  # fmt: skip


def test_the_most_that_two_targets_allow_together() -> None:
    """0.5 s and 199 tokens of 20 ms are 4.48 s: a hundredth of a request a second keeps no whole one under way."""
    error = refusal(asked(request_rate=0.01, concurrency=1, ttft=0.5, tpot=0.02))
    assert error.message == (
        "1 requests in flight at 0.01 a second last 100 s each (Little's law), and --ttft 0.5 with --tpot 0.02 "
        "allows 4.48 s"
    )
    assert (error.where, error.hint) == ("--concurrency", "leave it out, or at most 1")
    check(asked(request_rate=1 / 4.48, concurrency=1, ttft=0.5, tpot=0.02), LLAMA)
    assert refusal(asked(request_rate=2.0, concurrency=9, ttft=0.5, tpot=0.02)).hint == "leave it out, or at most 8"


@pytest.mark.parametrize(
    ("ask", "copies", "more"),
    [
        ({"request_rate": 5.0}, [1, 7], [2, 8]),
        # as many as take one request off each: 10 on 1, 5 on 2 (9 at most a copy), then 4 each on 3, 3 on 4, 2 on 5
        ({"concurrency": 10}, [1, 2, 3, 4, 5, 10], [2, 3, 4, 5, 10, 11]),
        ({"concurrency": 1}, [1, 4], [2, 5]),
        ({}, [1], [2]),
    ],
)  # fmt: skip
def test_the_next_number_of_copies(ask: dict[str, Any], copies: list[int], more: list[int]) -> None:
    assert more_copies(asked(**ask), numpy.array(copies)).tolist() == more


def test_calibrations_that_no_one_gave() -> None:
    assert measured_of(asked(), [L4]) == {}


# ---- what is looked at ----


def test_engines_and_the_devices_that_they_are_tried_on() -> None:
    mac = load_gpu("apple-m4-max")
    misses = Misses(asked())
    assert search._by_engine([L4, mac], asked(), misses) == {"vllm": [L4], "mlx": [mac]}
    assert misses.all_refused() is None
    both = search._by_engine([L4, mac], asked(engines=("llama.cpp", "sglang")), misses)
    assert both == {"llama.cpp": [L4, mac], "sglang": [L4]}
    assert search._by_engine([mac], asked(engines=("sglang",)), misses) == {}
    error = misses.all_refused()
    assert error is not None
    assert (error.message, error.where) == ("sglang has no backend for apple", "--engine")
    assert error.hint == "name other engines or GPUs"
    search._by_engine([mac], asked(engines=("sglang", "tensorrt-llm")), misses := Misses(asked()))
    error = misses.all_refused()
    assert error is not None
    assert error.message == "sglang and tensorrt-llm have no backend for apple"


@pytest.mark.parametrize(
    ("gpu", "weights", "cache", "ask", "left"),
    [
        (V100, "fp8", "auto", {}, [("fp8", "weights")]), (V100, "fp8", "auto", {"weights": ("fp8",)}, []),
        (V100, "fp8", "auto", {"kv_formats": ("fp8",)}, [("fp8", "weights")]), (T4, "fp8", "auto", {}, []),
        (MI300X, "fp8", "fp8", {}, []), (H100, "fp8", "fp8", {}, []), (T4, "auto", "auto", {}, []),
        (V100, "auto", "fp8", {}, [("fp8", "cache")]),
        (V100, "auto", "fp8", {"kv_formats": ("fp8",)}, []),
        (V100, "fp8", "fp8", {}, [("fp8", "weights"), ("fp8", "cache")]),
    ],
)  # fmt: skip
def test_formats_without_units(gpu: Any, weights: str, cache: str, ask: dict[str, Any], left: Any) -> None:
    misses, screen = Misses(asked()), SimpleNamespace(engine=SimpleNamespace(name="vllm"), latent=False)
    for _ in range(2):  # told once
        found = search._lacking(screen, gpu, weights, cache, asked(**ask), misses)  # type: ignore[arg-type]
        assert found is bool(left)
    assert [(each.format, each.use, each.gpus) for each in misses.not_tried()] == [
        (*each, (gpu.id,)) for each in left
    ]  # fmt: skip


# ---- misses ----


def failed(misses: Misses, gpus: list[Any], reached: Any, miss: Any, case: Case = ONE, why: str = "") -> None:
    misses.failed(Failed(case, gpus, reached, miss, why))


def test_the_furthest_and_then_the_nearest_counts() -> None:
    misses = Misses(asked(max_gpus=3))
    failed(misses, [L4, T4], numpy.array([WEIGHTS, WEIGHTS]), numpy.array([3.0, 2.0]))
    failed(misses, [L4, T4], WEIGHTS, numpy.array([2.5, 2.0]), TWO)
    groups = misses.grouped(set())
    assert [(group.reason, group.gpus) for group in groups] == [("the weights do not load", ("l4", "t4"))]
    nearest = groups[0].nearest
    assert nearest is not None
    assert tuple(nearest) == (
        "t4", "vllm", "1 GPU", "auto", "fp8", 2.0, "2 x the memory of a GPU, auto weights",
    )  # fmt: skip
    failed(misses, [L4], CACHE, 1.2345, TWO)
    failed(misses, [L4], WEIGHTS, 1.01)
    groups = misses.grouped(set())
    assert [group.reason for group in groups] == [
        "no room for the longest request beside the weights", "the weights do not load",
    ]  # fmt: skip
    assert groups[0].nearest == ("l4", "vllm", "tp 2", "fp8", "auto", 1.2345, "1.23 x the memory of a GPU, fp8 weights")
    assert [group.gpus for group in misses.grouped({"t4"})] == [("l4",)]
    assert misses.verdict() == (
        "nothing carries it: no room for the longest request beside the weights; nearest: l4, tp 2: 1.23 x the memory "
        "of a GPU, fp8 weights"
    )


@pytest.mark.parametrize(
    ("reached", "miss", "reason", "text"),
    [
        (LIMIT, 7 / 3, "more GPUs than --max-gpus", "7 GPUs, auto weights"),
        (COPIES, 2.5, "more than 1,048,576 copies, the most that are counted", "2,621,440 copies, auto weights"),
        (NO_FIGURES, 1.0, "no figure", None), (REFUSED, 1.0, "no figure", None),
    ],
)  # fmt: skip
def test_a_miss_in_words(reached: int, miss: float, reason: str, text: str | None) -> None:
    misses = Misses(asked(max_gpus=3))
    failed(misses, [L4], reached, miss, why="no figure")
    (group,) = misses.grouped(set())
    assert group.reason == reason
    assert (group.nearest and group.nearest.text) == text
    near = f"; nearest: l4, 1 GPU: {text}" if text else ""
    assert misses.verdict() == f"nothing carries it: {reason}{near}"
    assert MOST_COPIES == 1_048_576


def test_reasons_by_how_many_gpus_have_them() -> None:
    misses = Misses(asked())
    failed(misses, [L4], WEIGHTS, 2.0)
    failed(misses, [T4, H100], CACHE, 2.0)
    assert [len(group.gpus) for group in misses.grouped(set())] == [2, 1]


def test_who_speaks_where_everything_is_refused() -> None:
    misses, near, far = Misses(asked()), UnsupportedError("too many", hint="fewer"), UnsupportedError("no backend")
    misses.refused(L4, far)
    misses.refused(T4, near, 2.0)
    assert misses.all_refused() is near
    misses.failed(Failed(TWO, [H100], REFUSED, 9.0, "heads", InputError("heads")))
    assert str(misses.all_refused()) == "heads"  # a case that was tried says more than devices that were not
    failed(misses, [MI300X], WEIGHTS, 9.0)
    assert misses.all_refused() is None
    assert Misses(asked()).all_refused() is None


def judged(**changes: Any) -> Judged:
    one = numpy.ones(2)
    fields: dict[str, Any] = dict.fromkeys(Judged._fields, one)
    fields |= {
        "reached": numpy.array([TARGETS, CARRIES]), "miss": numpy.array([2.0, 0.0]), "which": numpy.array([0, 0]),
        "floor": numpy.array([0.5, 0.1]), "floor_ttft": numpy.array([0.5, 0.1]),
        "floor_tpot": numpy.array([0.01, 0.02]),
    }  # fmt: skip
    return Judged(**{**fields, **changes})


NO_LOAD = "nothing carries it: single requests meet the targets, no load does"


@pytest.mark.parametrize(
    ("ask", "which", "miss", "floor", "said"),
    [
        ({"ttft": 0.09}, 0, 5.5, 0.5,
         "--ttft 90 ms is below what any of them reaches with a single request: the best is 100 ms (t4, vllm, 1 GPU, "
         "fp8 cache)"),
        ({"tpot": 0.005, "ttft": 0.3}, 1, 2.0, 0.01,
         "--tpot 5 ms is below what any of them reaches with a single request: the best is 10 ms (l4, vllm, 1 GPU, "
         "fp8 cache)"),
        ({"ttft": 0.3, "tpot": 0.01}, 0, 2.0, 0.6,
         "--ttft and --tpot contradict each other here: nothing meets both (--ttft alone is met by t4, vllm, 1 GPU, "
         "fp8 cache; --tpot alone is met by l4, vllm, 1 GPU, fp8 cache)"),
        ({"ttft": 0.3, "tpot": 0.02}, 0, 1.0, 0.3, NO_LOAD), ({"ttft": 0.3}, 0, 2.0, 0.6, NO_LOAD),
        ({"request_rate": 2.0, "concurrency": 1}, 2, 2.0, 1.0,
         "--concurrency and --request-rate contradict each other: together they allow 500 ms a request (Little's law), "
         "and the fastest takes 1 s (l4)"),
    ],
)  # fmt: skip
def test_targets_that_nothing_meets(ask: dict[str, Any], which: int, miss: float, floor: float, said: str) -> None:
    misses = Misses(asked(**ask))
    changes = {"which": [which, 0], "miss": [miss, 0.0], "floor": [floor, 0.1]}
    misses.judged([(ONE, L4), (ONE, T4)], judged(**{name: numpy.array(values) for name, values in changes.items()}))
    assert misses.verdict() == said
    (group,) = misses.grouped(set())
    assert group.gpus == ("l4",)  # the other one carries it
    what = ("time to first token", "time per output token", "seconds of a request")[which]
    assert group.reason == (f"{what} over the target" if miss > 1 else "the targets do not hold under load")

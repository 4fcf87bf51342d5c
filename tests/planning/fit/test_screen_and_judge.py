"""Screening part by part: which devices are alike, what starts, and how many copies a load takes."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy
import pytest

from kvplan import load_gpu, load_model
from kvplan.engines.base import Stage
from kvplan.planning.fit import judge, search
from kvplan.planning.fit.candidates import Layout, lacks
from kvplan.planning.fit.cases import Case, settings_key
from kvplan.planning.fit.screen import CACHE, NO_FIGURES, WEIGHTS, Failed, Screen, Started, _stage_key
from kvplan.planning.speed.batching import Steady

from .test_rank_and_rows import asked

LLAMA, GEMMA = load_model("llama-3.1-8b"), load_model("gemma-3-27b")
L4, T4, H100 = (load_gpu(name) for name in ("l4", "t4", "h100-sxm"))
PLAIN = Case("vllm", "auto", "auto", Layout())


# ---- stages and settings that are alike ----


def test_stages_that_need_the_same_bytes() -> None:
    middle = Stage(1, LLAMA, False, False, 100, first_layer=8)
    assert _stage_key(middle) == _stage_key(middle._replace(number=2, first_layer=16))
    for change in ({"weights_bytes": 101}, {"first": True}, {"last": True}, {"spec": GEMMA}):
        assert _stage_key(middle) != _stage_key(middle._replace(**change))
    # of several kinds of layers their order counts
    mixed = middle._replace(spec=GEMMA)
    assert _stage_key(mixed) != _stage_key(mixed._replace(first_layer=16))


def test_settings_that_lay_out_the_same_pool() -> None:
    screen = Screen(LLAMA, "vllm", [L4], asked(concurrency=1), {})
    settings: Any = screen.cases.settings(PLAIN, L4)
    from dataclasses import replace

    same = replace(settings, defaults={"x": "y"}, extra={**settings.extra, "compute_capability": "1.0"})
    assert settings_key(same) == settings_key(settings)
    assert settings_key(replace(settings, max_num_seqs=3)) != settings_key(settings)
    assert settings_key(replace(settings, extra={"more": 1})) != settings_key(settings)


# ---- formats ----


def test_formats_and_the_kernels_that_they_need() -> None:
    """vLLM unpacks fp8 weights from 7.5, a cache in fp8 from 8.0; 4-bit weights begin with 7.5, 8-bit ones before."""
    old, ampere = load_gpu("v100-sxm2-32gb"), load_gpu("a100-sxm4-80gb")
    assert [lacks("vllm", gpu, "fp8") for gpu in (old, T4, ampere)] == ["no fp8 units", "", ""]
    assert [lacks("vllm", gpu, "fp8", cache=True) for gpu in (T4, ampere)] == ["no fp8 units", ""]
    assert lacks("vllm", ampere, "fp8", cache=True, latent=True) == "no fp8 units"
    assert lacks("vllm", T4, "fp8", latent=True) == ""
    assert lacks("vllm", old, "awq") == "no kernels for 4-bit weights"
    for eight in ("gptq_int8", "int8_g128"):  # 8.2 and 8.1 bits with their scales
        assert lacks("vllm", old, eight) == ""
    for gpu, latent, cache in ((T4, False, True), (ampere, False, False), (ampere, True, True)):
        screen: Any = SimpleNamespace(engine=SimpleNamespace(name="vllm"), latent=latent)
        misses: Any = SimpleNamespace(left_out=lambda *_: None)
        assert search._lacking(screen, gpu, "auto", "fp8", asked(), misses) is cache
        assert search._lacking(screen, gpu, "fp8", "auto", asked(), misses) is False


# ---- what starts ----


def parts(ask: Any, *gpus: Any, case: Case = PLAIN, model: Any = LLAMA) -> list[Any]:
    screen = Screen(model, case.engine, gpus, ask, {})
    return list(screen.run(case, list(range(len(gpus)))))


def test_one_request_at_once_is_enough_to_start() -> None:
    (started,) = parts(asked(concurrency=1, settings={"max_num_seqs": 1}), L4, H100)
    assert isinstance(started, Started)
    assert (started.slots.tolist(), started.gpus) == ([1, 1], [L4, H100])
    (many,) = parts(asked(concurrency=1, settings={"max_num_seqs": 9}), L4)
    assert many.slots.tolist() == [9]


def test_devices_that_do_not_hold_the_weights_or_a_request() -> None:
    big = load_model("llama-3.1-70b")
    (lost,) = parts(asked(concurrency=1), L4, H100, model=big)
    assert isinstance(lost, Failed)
    assert (lost.gpus, lost.reached) == ([L4, H100], WEIGHTS)
    heaviest = 2 * big.parameters
    assert lost.miss.tolist() == pytest.approx([heaviest / gpu.device_bytes for gpu in (L4, H100)])
    long = asked(prompt=100_000, concurrency=1)._replace(longest=120_000)
    started, short = sorted(parts(long, L4, H100), key=lambda part: isinstance(part, Failed))
    assert (started.gpus, short.gpus) == ([H100], [L4])
    assert short.reached.tolist() == [CACHE]
    assert 1 < short.miss[0] < 2
    # of the same case as a plan has it
    screen = Screen(LLAMA, "vllm", [L4], long, {})
    settings: Any = screen.cases.settings(PLAIN, L4, screen.cases.keys[0])
    structure: Any = screen.cases.structure(PLAIN, settings)
    memory = screen._memory(structure, settings, [0])
    start = 120_000 * 131_072
    assert short.miss[0] == pytest.approx((memory.needed[0] + start) / memory.budgets[0], rel=1e-3)


def test_a_device_without_figures_is_a_gap() -> None:
    from dataclasses import replace

    blind = replace(L4, id="blind", bandwidth_bytes_per_second=None)
    started, gap = sorted(parts(asked(concurrency=1), L4, blind), key=lambda part: isinstance(part, Failed))
    assert (started.gpus, gap.gpus, gap.reached) == ([L4], [blind], NO_FIGURES)
    assert gap.why == "no figure for its FLOPs or its bandwidth"


@pytest.mark.parametrize(
    ("model", "engine"), [("llama-3.1-8b", "vllm"), ("llama-3.1-8b", "sglang"), ("granite-4.0-h-tiny", "vllm")]
)
def test_what_starts_with_so_many_bytes(model: str, engine: str) -> None:
    spec, case = load_model(model), Case(engine, "auto", "auto", Layout())
    screen = Screen(spec, engine, [H100], asked(concurrency=1, settings={"max_model_len": 4096}), {})
    settings: Any = screen.cases.settings(case, H100)
    structure: Any = screen.cases.structure(case, settings)
    (least,) = screen._starts_at(structure, settings)
    assert least == screen.engine.start_bytes(structure.stages[0], settings)
    have = [least - 1, least, 2 * least, 7 * least, 1 << 38]
    found = screen._slots(structure, settings, [numpy.array(have)]).tolist()
    for size, count in zip(have, found, strict=True):
        pool = screen.engine.pool(structure.stages, settings, (size,))
        runs = screen.engine.requests_at(structure.stages, settings, (size,), 1200)
        starts = pool.starts and not pool.refusal and size >= least
        assert count == (min(runs, settings.max_num_seqs or 1 << 20) if starts else 0)
    assert found[0] == 0 < found[-1]


def test_no_more_requests_than_are_counted() -> None:
    """A million of two tokens each, where no setting of the engine limits them."""
    ask, case = asked(prompt=1, output=1, concurrency=1)._replace(longest=2), Case("generic", "auto", "auto", Layout())
    screen = Screen(LLAMA, "generic", [H100], ask, {})
    settings: Any = screen.cases.settings(case, H100)
    structure: Any = screen.cases.structure(case, settings)
    few, many = 5 * 2 * 131_072, (1 << 21) * 2 * 131_072
    assert screen._slots(structure, settings, [numpy.array([few, many])]).tolist() == [5, 1 << 20]


# ---- copies ----


def loaded(
    monkeypatch: pytest.MonkeyPatch, ask: Any, most: list[float], good_up_to: list[float], slots: float = 10.0,
    dp: int = 1, free: list[float] | None = None,
) -> tuple[list[int], list[bool], list[float]]:  # fmt: skip
    """Copies, whether they hold, and copies over the most: of candidates that carry `most` each."""
    ones = numpy.ones(len(most))
    limit = numpy.array(good_up_to)

    def state(load: Any, rate: Any) -> Any:
        none = Steady(*(numpy.zeros(len(most)),) * len(Steady._fields))
        return none._replace(requests_per_second=rate, in_flight=numpy.where(load <= limit, 0.0, slots))

    def carried(made: Any, _: Any, limits: Any = None) -> Any:
        return SimpleNamespace(requests_per_second=numpy.array(most if limits is not None or free is None else free))

    fake = SimpleNamespace(
        carried=carried, loops_carried=lambda *_: numpy.array(most),
        at_rate=lambda made, rate, _: state(rate, rate * ones), in_loop=lambda made, running, _: state(running, ones),
    )  # fmt: skip
    monkeypatch.setattr(judge, "load", fake)
    made: Any = SimpleNamespace(lengths=ask.lengths)
    copies, _, good, over = judge._loaded(ask, made, slots * ones, dp * ones.astype(int))
    return copies.tolist(), good.tolist(), over.tolist()


def test_copies_are_added_until_a_rate_is_carried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two carry it by their sum; the second candidate takes 4 in truth, the third more than three rounds find."""
    ask = asked(request_rate=10.0, ttft=1.0)
    copies, good, over = loaded(monkeypatch, ask, [5.0, 5.0, 5.0], [5.0, 2.5, 2.0])
    assert (copies[:2], good, over) == ([2, 4], [True, True, False], [0.0, 0.0, 0.0])
    assert loaded(monkeypatch, ask, [4.999], [99.0])[0] == [3]
    assert loaded(monkeypatch, ask, [5.0], [99.0], dp=2)[0] == [1]


def test_a_rate_without_a_target_for_the_first_token_leaves_a_reserve(monkeypatch: pytest.MonkeyPatch) -> None:
    ask = asked(request_rate=9.5)
    assert loaded(monkeypatch, ask, [10.0], [99.0])[0] == [1]
    assert loaded(monkeypatch, ask, [9.99], [99.0])[0] == [2]
    assert loaded(monkeypatch, asked(request_rate=9.5, ttft=1.0), [9.5], [99.0])[0] == [1]
    # with another target: of what is carried without one
    assert loaded(monkeypatch, asked(request_rate=9.5, tpot=9.0), [9.5], [99.0], free=[10.0])[0] == [1]
    assert loaded(monkeypatch, asked(request_rate=9.5, tpot=9.0), [9.5], [99.0], free=[9.9])[0] == [2]


def test_a_rate_beside_requests_under_way_takes_copies_for_both(monkeypatch: pytest.MonkeyPatch) -> None:
    for concurrency, copies in ((20, 2), (21, 3), (5, 1)):
        ask = asked(request_rate=1.0, concurrency=concurrency, ttft=100.0)
        assert loaded(monkeypatch, ask, [5.0], [99.0])[0] == [copies]
    assert loaded(monkeypatch, asked(request_rate=1.0, concurrency=40, ttft=100.0), [5.0], [99.0], dp=2)[0] == [2]


def test_loads_beyond_all_copies(monkeypatch: pytest.MonkeyPatch) -> None:
    most = judge.MOST_COPIES
    copies, good, over = loaded(monkeypatch, asked(request_rate=2.0 * most, ttft=1.0), [1.0, 3.0, 0.0], [1e9] * 3)
    assert (copies[0], good) == (1, [False, True, False])
    assert over == [2.0, 0.0, 0.0]


def test_requests_that_are_always_under_way(monkeypatch: pytest.MonkeyPatch) -> None:
    ask = asked(concurrency=12)
    assert loaded(monkeypatch, ask, [6.0, 5.0], [6.0, 5.0])[:2] == ([2, 3], [True, True])
    # six each are too many for the second: five on three copies, then four, three on the next
    assert loaded(monkeypatch, ask, [6.0], [99.0], slots=5.0)[:2] == ([3], [True])
    assert loaded(monkeypatch, ask, [6.0], [99.0], dp=2)[:2] == ([1], [True])
    assert loaded(monkeypatch, ask, [0.0], [99.0])[1:] == ([False], [0.0])
    assert loaded(monkeypatch, asked(), [1.0], [1.0])[:2] == ([1], [True])


# ---- what was asked, once more ----


def test_an_answer_repeats_its_question() -> None:
    mac = load_gpu("apple-m4-max")
    found = search._inputs(LLAMA, asked(concurrency=3), [L4, mac, H100], None)
    assert (found["engines"], found["source"], found["model"]) == (["mlx", "vllm"], "llama-3.1-8b", "llama-3.1-8b")
    assert (found["max_model_len"], found["shared_prefix_tokens"], found["settings"]) == (1200, 0, {})
    given = {"max_model_len": 9000, "shared_prefix_tokens": 7, "ttft": None}
    typed = search._inputs(LLAMA, asked(engines=("sglang", "generic"), settings=given), [L4], "mine")
    assert (typed["engines"], typed["source"]) == (["sglang", "generic"], "mine")
    assert (typed["max_model_len"], typed["shared_prefix_tokens"]) == (9000, 7)
    assert typed["settings"] == {"max_model_len": 9000, "shared_prefix_tokens": 7}

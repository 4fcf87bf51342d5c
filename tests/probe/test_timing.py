"""The clock of the probe."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvplan.probe import timing
from kvplan.probe.device import detect


def device(**facts: Any) -> Any:
    """A device of which timing needs little."""
    return SimpleNamespace(**{"is_cuda": False, "l2_bytes": None, "synchronize": lambda: None, **facts})


@given(st.integers(1, 1 << 31), st.integers(1, 1 << 37))
def test_copies_defeat_the_cache_or_fill_the_limit(each: int, limit: int) -> None:
    card = device(is_cuda=True, l2_bytes=50 << 20)
    copies = timing.copies_for(card, each, limit)
    assert copies >= 1
    assert copies == 1 or copies * each <= limit
    if limit >= 200 * (50 << 20):
        assert copies * each >= timing.CACHES_OVER * (50 << 20) or (copies + 1) * each > limit
        assert copies >= min(timing.LEAST_COPIES, max(1, limit // each))


def test_a_sample_is_the_time_of_one_part() -> None:
    calls = []

    def work() -> None:
        calls.append(None)
        time.sleep(0.006)

    found = timing.sample(device(), work, samples=4, per=3)
    assert len(found) == 4
    assert all(seconds >= 0.002 for seconds in found)
    assert len(calls) == 1 + 4  # one to warm up; a pass of 6 ms is long enough alone


def test_short_work_is_repeated_within_a_sample() -> None:
    calls = []
    timing.sample(device(), lambda: calls.append(None), samples=2)
    assert len(calls) > 100


@pytest.mark.gpu
def test_a_graph_replays_the_work() -> None:
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    from kvplan.probe.device import detect

    card, x = detect("cuda"), torch.zeros(4, device="cuda")
    found = timing.sample(card, lambda: x.add_(1), samples=5, warm=2)
    assert len(found) == 5
    assert all(0 < seconds < 1 for seconds in found)
    assert x.unique().numel() == 1
    assert x[0] >= 2 + 1 + 5  # warm passes, at least one warm replay, the samples; recording runs nothing


class Event:
    """As much of a CUDA event as a sample needs."""

    def __init__(self, **_: Any) -> None: ...

    def record(self) -> None: ...

    def elapsed_time(self, _end: Event) -> float:
        return 1.0


@pytest.mark.parametrize("seconds", [0.0, 0.005])
def test_ranks_that_talk_do_the_same_number_of_passes(seconds: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timing.extras, "torch", lambda: SimpleNamespace(cuda=SimpleNamespace(Event=Event)))
    calls = []

    def work() -> None:
        calls.append(None)
        time.sleep(seconds)

    timing.sample(device(is_cuda=True), work, samples=3, graph=False, replays=7)
    assert len(calls) == 7 + 3


@pytest.mark.parametrize(("alone", "together", "expected"), [(1e-3, 30e-3, 1), (2e-3, 1e-3, 2)])
def test_one_thread_runs_where_several_wait_for_one_another(
    alone: float, together: float, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [0.0]

    def clock() -> float:
        now[0] += alone if torch.get_num_threads() == 1 else together
        return now[0]

    torch = pytest.importorskip("torch", reason="the probe's extra is not installed")
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        monkeypatch.setattr(timing.time, "perf_counter", clock)
        with timing.quickest_threads(detect("cpu")) as threads:
            assert threads == torch.get_num_threads() == expected
        assert torch.get_num_threads() == 2
        with timing.quickest_threads(replace(detect("cpu"), kind="cuda")) as threads:
            assert threads is None
    finally:
        torch.set_num_threads(before)


def test_time_without_a_core_is_the_systems_own_count(monkeypatch: pytest.MonkeyPatch) -> None:
    ran, waited = timing.core_seconds()
    assert ran > 0 or not Path("/proc/thread-self/schedstat").exists()
    assert waited >= 0
    monkeypatch.setattr(timing, "core_seconds", lambda: (ran + 3.0, waited + 1.0))
    assert timing.waited_share((ran, waited)) == pytest.approx(0.25)
    monkeypatch.setattr(timing, "core_seconds", lambda: (0.0, 0.0))
    assert timing.waited_share((0.0, 0.0)) == 0.0

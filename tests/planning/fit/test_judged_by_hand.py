"""Candidates judged by figures of our choosing: which target they miss alone, and what a load makes of them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy
import pytest

from kvplan.planning.fit import judge as of
from kvplan.planning.fit.judge import Judged, _ceil, judge
from kvplan.planning.fit.screen import CARRIES, COPIES, LIMIT, TARGETS
from kvplan.planning.speed.batching import Steady

from .test_rank_and_rows import asked


def steady(**figures: list[float]) -> Steady:
    count = len(next(iter(figures.values())))
    none = Steady(*(numpy.zeros(count),) * len(Steady._fields))
    return none._replace(**{name: numpy.array(values) for name, values in figures.items()})


def judged(
    monkeypatch: pytest.MonkeyPatch, ask: Any, first: list[float], step: list[float], *, copies: list[int],
    good: list[bool], over: list[float], world: int = 2, tokens: float = 1.0, loaded: list[int] | None = None,
) -> Judged:  # fmt: skip
    """With the seconds of a request that is alone, and what `_loaded` says of those that are quick enough."""
    lengths = ask.lengths._replace(tokens_per_step=tokens, drafts=int(tokens > 1))
    alone = steady(seconds_to_first_token=first, seconds_per_step=step)
    monkeypatch.setattr(of, "load", SimpleNamespace(alone=lambda _: alone))
    monkeypatch.setattr(of, "some_of", lambda made, rows: rows.tolist())

    def under_load(_: Any, rows: list[int], slots: Any, dp: Any) -> Any:
        assert loaded is None or rows == loaded
        assert slots.tolist() == [10.0 + row for row in rows]
        state = steady(
            seconds_to_first_token=[0.3 + row for row in rows], seconds_per_step=[0.02] * len(rows),
            in_flight=[4.0 + row for row in rows],
        )  # fmt: skip
        return tuple(numpy.array([values[row] for row in rows]) if i != 1 else state for i, values in
                     enumerate((copies, None, good, over)))  # fmt: skip

    monkeypatch.setattr(of, "_loaded", under_load)
    many = len(first)
    made: Any = SimpleNamespace(lengths=lengths)
    return judge(ask, made, 10 + numpy.arange(many), numpy.full(many, world), numpy.ones(many, int))


def test_a_request_that_is_alone_misses_its_worst_target(monkeypatch: pytest.MonkeyPatch) -> None:
    ask = asked(ttft=0.5, tpot=0.01, output=101, concurrency=8, request_rate=4.0)  # 2 s a request
    found = judged(
        monkeypatch, ask, [0.5, 1.0, 0.25, 0.5], [0.01, 0.01, 0.03, 0.0155], copies=[3, 0, 0, 0],
        good=[True, False, False, False], over=[0.0] * 4, loaded=[0],
    )  # fmt: skip
    assert found.reached.tolist() == [CARRIES, TARGETS, TARGETS, TARGETS]
    assert found.miss.tolist() == pytest.approx([1.0, 2.0, 3.0, 1.55])
    assert [of.NAMES[i] for i in found.which] == ["ttft", "ttft", "tpot", "tpot"]
    assert found.floor.tolist() == pytest.approx([0.5, 1.0, 0.03, 0.0155])
    assert found.floor_ttft.tolist() == [0.5, 1.0, 0.25, 0.5]
    assert found.floor_tpot.tolist() == [0.01, 0.01, 0.03, 0.0155]
    assert found.copies.tolist() == [3, 1, 1, 1]
    assert found.slots.tolist() == [10, 11, 12, 13]
    assert (found.ttft[0], found.tpot[0], found.request[0], found.in_flight[0]) == pytest.approx((0.3, 0.02, 2.3, 4.0))
    assert numpy.isnan(found.ttft[1:]).all()


def test_seconds_of_a_whole_request_are_a_target_too(monkeypatch: pytest.MonkeyPatch) -> None:
    ask = asked(output=101, concurrency=4, request_rate=4.0)  # a second a request
    found = judged(
        monkeypatch, ask, [0.5, 0.0], [0.02, 0.01], copies=[0, 1], good=[False, True], over=[0.0] * 2, loaded=[1]
    )  # fmt: skip
    assert (of.NAMES[found.which[0]], found.miss[0], found.floor[0]) == ("concurrency", 2.5, 2.5)
    assert found.reached.tolist() == [TARGETS, CARRIES]


def test_tokens_that_come_together_share_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    ask = asked(tpot=0.01, output=101, request_rate=4.0)
    found = judged(
        monkeypatch, ask, [0.5], [0.02], copies=[1], good=[True], over=[0.0], tokens=2.0, loaded=[0]
    )  # fmt: skip
    assert (found.reached[0], found.floor_tpot[0], found.tpot[0]) == (CARRIES, 0.01, 0.01)
    assert found.request[0] == pytest.approx(0.3 + 50 * 0.02)


def test_an_output_of_one_token_has_no_time_per_token(monkeypatch: pytest.MonkeyPatch) -> None:
    ask = asked(tpot=1e-9, ttft=1.0, output=1, request_rate=4.0)
    found = judged(monkeypatch, ask, [0.5], [0.02], copies=[1], good=[True], over=[0.0], loaded=[0])
    assert (found.reached[0], found.miss[0], found.which[0]) == (CARRIES, 0.5, 0)


def test_without_targets_every_load_is_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    found = judged(
        monkeypatch, asked(request_rate=4.0), [9.0, 9.0, 9.0], [9.0] * 3, copies=[1, 2, 1], good=[True, False, False],
        over=[0.0, 0.0, 2.5], loaded=[0, 1, 2],
    )  # fmt: skip
    assert found.reached.tolist() == [CARRIES, TARGETS, COPIES]
    assert found.miss.tolist() == [0.0, 0.0, 2.5]


def test_more_gpus_than_there_may_be(monkeypatch: pytest.MonkeyPatch) -> None:
    given: dict[str, Any] = {"copies": [3, 4, 5], "good": [True, True, False], "over": [0.0, 1.0, 1.01]}
    found = judged(monkeypatch, asked(request_rate=4.0, max_gpus=6), [1.0] * 3, [1.0] * 3, **given)
    assert found.reached.tolist() == [CARRIES, LIMIT, COPIES]
    assert found.miss.tolist() == pytest.approx([0.0, 8 / 6, 1.01])
    wide = judged(monkeypatch, asked(request_rate=4.0, max_gpus=6), [1.0] * 3, [1.0] * 3, **given, world=3)
    assert wide.reached.tolist() == [LIMIT, LIMIT, COPIES]
    assert wide.miss.tolist() == pytest.approx([1.5, 2.0, 1.01])
    free = judged(monkeypatch, asked(request_rate=4.0), [1.0] * 3, [1.0] * 3, **given)
    assert free.reached.tolist() == [CARRIES, CARRIES, COPIES]


def test_nobody_is_quick_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    found = judged(monkeypatch, asked(ttft=0.1), [1.0], [1.0], copies=[], good=[], over=[], loaded=[-1])
    assert (found.reached.tolist(), found.copies.tolist(), found.miss.tolist()) == ([TARGETS], [1], [10.0])


@pytest.mark.parametrize(
    ("value", "whole"),
    [(0.0, 1), (1.0, 1), (1 + 1e-10, 1), (1 + 1e-8, 2), (2.5, 3), (1e300, 1 << 20), ((1 << 20) + 5, 1 << 20), (-3, 1)],
)
def test_whole_copies(value: float, whole: int) -> None:
    assert _ceil(numpy.array([value])).tolist() == [whole]

"""Orders of candidates and what a row is made of, with candidates that are made up."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest

from kvplan import load_gpu
from kvplan.engines.base import Settings
from kvplan.planning.cost import Price
from kvplan.planning.fit import rank, rows, search
from kvplan.planning.fit.ask import Ask
from kvplan.planning.fit.candidates import Layout
from kvplan.planning.fit.cases import Case
from kvplan.planning.fit.result import Margins
from kvplan.planning.speed.profile import Lengths
from kvplan.planning.workload_lengths import Distribution


class Device(NamedTuple):
    """What orders look at."""

    id: str
    device_bytes: int


def priced(usd: float | None, date: str | None = None) -> Price | None:
    return None if usd is None else Price(usd, usd, usd, "--price", date)


def candidate(
    gpu: str = "l4", usd: float | None = 1.0, seconds: float = 1.0, copies: int = 1, layout: Layout | None = None,
    weights: str = "auto", cache: str = "auto", memory: int = 100,
) -> Any:  # fmt: skip
    case = Case("vllm", weights, cache, layout or Layout())
    return search.Candidate(None, case, Device(gpu, memory), copies, priced(usd), seconds)  # type: ignore[arg-type]


def asked(**given: Any) -> Ask:
    lengths = Lengths(given.pop("prompt", 1000), given.pop("output", 200), 0, given.pop("prompt_cv", 0.0),
                      given.pop("output_cv", 0.0))  # fmt: skip
    both = (Distribution(n, 0.0, n, str(n)) for n in (1000, 200))
    return Ask(lengths, *both, 1200, **given)


# ---- orders ----


def test_gpus_are_copies_of_a_layout() -> None:
    assert candidate(copies=3, layout=Layout(2, 2, 2)).gpus == 24
    assert Layout(2, 3, 5, 2).world == 30


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ({"usd": 1.0, "copies": 3}, {"usd": 2.0, "copies": 2}),  # dollars of all GPUs
        ({"usd": 2.0, "copies": 2}, {"usd": 4.0, "seconds": 0.1, "memory": 1, "copies": 2}),
        ({"usd": 9.0}, {"usd": None}),  # the unpriced follow
        ({"usd": None}, {"usd": None, "copies": 2}),
        ({"usd": 4.0, "memory": 999}, {"usd": 2.0, "copies": 2, "memory": 1}),  # as dear: fewer GPUs
        ({"memory": 100, "weights": "fp8"}, {"memory": 101}),  # then less memory
        ({"seconds": 9.0}, {"weights": "fp8"}), ({"seconds": 9.0}, {"cache": "fp8"}),
        ({"weights": "fp8"}, {"weights": "fp8", "cache": "fp8", "seconds": 0.1}),
        ({"seconds": 0.5, "gpu": "z"}, {"gpu": "a"}),  # the faster one
        ({"gpu": "a"}, {"gpu": "b"}),
    ],
)  # fmt: skip
def test_what_comes_before_what(first: dict[str, Any], second: dict[str, Any]) -> None:
    one, two = candidate(**first), candidate(**second)
    assert rank.ordered([one, two]) == rank.ordered([two, one]) == [one, two]


def test_the_first_of_each_gpu() -> None:
    a, b, c = candidate("l4"), candidate("t4"), candidate("l4", 2.0)
    assert rank.best_of_each([a, b, c]) == [a, b]
    assert rank.best_of_each([c, b, a]) == [c, b]


def test_a_front_gains_two_per_cent_for_every_dollar_more() -> None:
    cheap, worth = candidate("a", 1.0, 100.0), candidate("b", 2.0, 97.9)
    same, slow = candidate("c", 3.0, 97.9 * 0.981), candidate("d", 1.5, 98.1)
    assert rank.front([worth, same, slow, cheap]) == [cheap, worth]
    assert rank.front([candidate("e", 3.0, 97.9 * 0.979), worth, cheap])[2].gpu.id == "e"
    # copies cost too, and of what costs the same the faster one comes first, then fewer GPUs
    assert rank.front([candidate("a", 1.0, 50.0, copies=4), worth]) == [worth, candidate("a", 1.0, 50.0, copies=4)]
    assert [each.gpu.id for each in rank.front([candidate("x", 2.0, 5.0), candidate("y", 2.0, 4.0)])] == ["y"]
    assert [each.copies for each in rank.front([candidate("x", 1.0, 5.0, 2), candidate("x", 2.0, 5.0, 1)])] == [1]


def test_a_front_of_the_unpriced_counts_gpus() -> None:
    one, two, three = (candidate(gpu, None, 10.0 / n, n) for gpu, n in (("a", 1), ("b", 2), ("c", 3)))
    assert rank.front([three, one, two]) == [one, two, three]
    paid = candidate("p", 99.0, 99.0)
    assert rank.front([one, paid]) == [paid]  # where something has a price, that is what counts
    assert rank.front([]) == []


# ---- what a copy is asked for ----


def settings_of(ask: Ask, copies: int = 4, *, drafts: bool = False, usd: float | None = None, **more: Any) -> Any:
    screen: Any = SimpleNamespace(
        given={"max_model_len": 1200, "acceptance_rate": 0.5}, drafts=drafts, measured=more.pop("measured", {})
    )
    each = candidate(layout=Layout(2), cache="fp8", usd=usd)._replace(screen=screen, **more)
    return rows.settings_of(each, ask, copies)


def test_a_copy_has_its_part_of_the_traffic() -> None:
    common = {"max_model_len": 1200, "tensor_parallel_size": 2, "kv_cache_dtype": "fp8", "price": ()}
    assert settings_of(asked(request_rate=10.0)) == {**common, "request_rate": 2.5}
    assert settings_of(asked(concurrency=9)) == {**common, "concurrency": 3}
    assert settings_of(asked(concurrency=8)) == {**common, "concurrency": 2}
    assert settings_of(asked()) == {**common, "concurrency": 1}
    both = settings_of(asked(request_rate=10.0, concurrency=9, ttft=0.5, tpot=0.1, prompt_cv=1.0, output_cv=2.0))
    targets = {"ttft": 0.5, "tpot": 0.1, "prompt_cv": 1.0, "output_cv": 2.0}
    assert both == {**common, "request_rate": 2.5, "concurrency": 3, **targets}
    assert settings_of(asked(concurrency=4), drafts=True)["acceptance_rate"] == 0.5


def test_prices_and_calibrations_are_given_where_they_were_given() -> None:
    assert settings_of(asked(), usd=2.5)["price"] == ((None, 2.5),)
    assert settings_of(asked(), price=priced(2.5, "2026-11-30"))["price"] == ()
    ask = asked(settings={"calibration": "x.json"})
    assert "calibration" not in settings_of(ask)
    assert "calibration" not in settings_of(ask, measured={"t4": None})
    assert settings_of(ask, measured={"l4": None})["calibration"] == "x.json"


# ---- how far a row stays from what was asked ----


def margins(ask: Ask, *, dp: int = 1, concurrency: int = 1, **serving: Any) -> Margins:
    settings = Settings(engine="x", engine_version="", data_parallel_size=dp, concurrency=concurrency)
    known = {"in_flight": 4.0, "slots": 10, "request_rate": None, "max_request_rate": 8.0, "ttft_seconds": 0.2,
             "tpot_seconds": 0.03}  # fmt: skip
    return rows._margins(ask, settings, SimpleNamespace(**{**known, **serving}))  # type: ignore[arg-type]


def test_margins() -> None:
    assert margins(asked(request_rate=6.0), request_rate=6.0) == pytest.approx((0.6, 0.25, None, None), nan_ok=True)
    assert margins(asked(request_rate=6.0), request_rate=6.0, dp=2)[0] == pytest.approx(0.8)
    assert margins(asked(request_rate=6.0), request_rate=6.0, max_request_rate=None)[1] is None
    assert margins(asked(ttft=0.5, tpot=0.04))[2:] == pytest.approx((0.6, 0.25))
    assert margins(asked(ttft=0.5, tpot=0.04), ttft_seconds=None, tpot_seconds=None)[2:] == (1.0, 1.0)
    # those that are asked for take their places, whether they are under way on average or not
    assert margins(asked(concurrency=9), concurrency=9)[0] == pytest.approx(0.1)
    assert margins(asked(concurrency=9), concurrency=9, dp=2)[0] == pytest.approx(0.5)
    assert margins(asked(), concurrency=9)[0] == pytest.approx(0.1)
    assert margins(asked(concurrency=9, request_rate=1.0), concurrency=9)[0] == pytest.approx(0.1)
    assert margins(asked(request_rate=1.0), concurrency=9)[0] == pytest.approx(0.6)
    assert margins(asked(concurrency=2), concurrency=2)[0] == pytest.approx(0.6)
    assert margins(asked(request_rate=1.0), slots=None, in_flight=None)[0] == 1.0


# ---- what to type ----


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.1, "0.1"), (2.5, "2.5"), (1 / 3, "0.33333333333333331"), (7, "7"), ("a b", "'a b'"), ("fp8", "fp8"),
        (1e-7, "1e-07"), (123456789.125, "123456789.125"), (3.0, "3"), (0.1234567890123, "0.12345678901230001"),
    ],
)  # fmt: skip
def test_values_as_they_are_typed_give_themselves(value: Any, text: str) -> None:
    from shlex import split

    assert rows._typed(value) == text
    assert [type(value)(word) for word in split(text)] == [value]


def test_the_words_of_a_row() -> None:
    given = {
        "max_model_len": 1200, "enable_prefix_caching": False, "enforce_eager": True, "enable_expert_parallel": False,
        "tensor_parallel_size": 2, "pipeline_parallel_size": 3, "data_parallel_size": 4,
        "decode_context_parallel_size": 5, "price": ((None, 2.5),), "request_rate": 1 / 4,
    }  # fmt: skip
    assert rows._flags(candidate(), given, asked()) == (
        "--gpu l4 --engine vllm --max-model-len 1200 --no-enable-prefix-caching --enforce-eager -tp 2 -pp 3 -dp 4 "
        "-dcp 5 --price 2.5 --request-rate 0.25"
    )


def test_a_device_is_named_so_that_it_is_found(tmp_path: Path) -> None:
    text = (Path(rows.__file__).parents[2] / "data" / "gpus" / "nvidia" / "l4.yaml").read_text(encoding="utf-8")
    file = tmp_path / "mine.yaml"
    file.write_text(text.replace("id: l4", "id: my-l4"), encoding="utf-8")
    mine, other = load_gpu(str(file)), SimpleNamespace(id="nobody-s")
    assert mine.id == "my-l4"
    assert rows._named(mine, asked(gpus=("t4", str(file)))) == str(file)
    assert rows._named(load_gpu("t4"), asked(gpus=("t4", str(file)))) == "t4"
    assert rows._named(other, asked(gpus=("t4", str(file)))) == "nobody-s"  # type: ignore[arg-type]


# ---- the search's own words ----


def reason(*found: Any, **row: Any) -> str:
    made = {"gpus": 1200, "gpu": "l4", "usd_per_hour": 1234.5, **row}
    return search._reason([SimpleNamespace(**made)], found, None)  # type: ignore[list-item,arg-type]


def test_the_first_row_in_words() -> None:
    one, two, other = candidate("l4"), candidate("l4", 2.0), candidate("t4")
    assert reason(one) == "1,200 x l4, $1,234.50 an hour, is first of 1 way on 1 GPU"
    assert reason(one, two) == "1,200 x l4, $1,234.50 an hour, is first of 2 ways on 1 GPU"
    assert reason(one, two, other, usd_per_hour=None) == "1,200 x l4, no price known, is first of 3 ways on 2 GPUs"
    misses: Any = SimpleNamespace(verdict=lambda: "nothing carries it")
    assert search._reason([], [one], misses) == "nothing carries it"


def test_a_computer_of_its_own_is_no_card() -> None:
    mac, card, two = load_gpu("apple-m4-max"), load_gpu("l4"), Layout(2)
    assert search._networked(mac, two, asked())
    for gpu, layout, ask in ((mac, Layout(), asked()), (card, two, asked()), (mac, two, asked(gpus=("apple-m4-max",)))):
        assert not search._networked(gpu, layout, ask)
    assert not search._sensible(mac, two, {}, asked())
    assert search._sensible(mac, Layout(), {}, asked())


def test_layouts_up_to_eight_times_the_smallest_that_starts() -> None:
    card = load_gpu("l4")
    assert search._sensible(card, Layout(16), {"l4": 2, "t4": 1}, asked())
    assert not search._sensible(card, Layout(17), {"l4": 2}, asked())
    assert search._sensible(card, Layout(512), {}, asked())
    assert not search._sensible(card, Layout(513), {}, asked())


def test_the_first_candidates_that_the_planner_confirms(monkeypatch: pytest.MonkeyPatch) -> None:
    """As many as wanted out of those and ten more, each planned once."""
    looked: list[float] = []

    def planned(each: Any, ask: Ask) -> Any:
        looked.append(each.request_seconds)
        row: Any = SimpleNamespace(seconds=each.request_seconds, _replace=lambda rank: (rank, each.request_seconds))
        return row if each.request_seconds % 2 else None

    monkeypatch.setattr(search, "planned", planned)
    known: dict[Any, Any] = {}
    chosen = [candidate(seconds=float(n)) for n in range(40)]
    assert search._planned(chosen, 3, asked(), known) == ((1, 1.0), (2, 3.0), (3, 5.0))
    assert looked == [0, 1, 2, 3, 4, 5]
    assert search._planned(chosen, 4, asked(), known)[-1] == (4, 7.0)
    assert looked == list(range(8))
    even = [candidate(seconds=float(n)) for n in range(0, 80, 2)]
    assert search._planned(even, 3, asked(), {}) == ()
    assert looked[8:] == [float(n) for n in range(0, 26, 2)]
    assert search._planned(chosen, 0, asked(), {}) == ()

"""``--vary`` against plain loops: every value of lists, ranges, steps and factors, and both sides of every limit."""

from __future__ import annotations

from decimal import Decimal
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import settings as limits
from hypothesis import strategies as st

from kvplan.cli.flags import PLAN
from kvplan.cli.sweep import SweepVerb
from kvplan.errors import InputError, KvplanError, UnknownNameError
from kvplan.planning.sweep_axes import MAX_POINTS, MAX_VALUES, Axis, read_axes, size_of


def axis(text: str, flags: Any = None, **fixed: Any) -> Axis:
    (found,) = read_axes([text], SweepVerb.flags if flags is None else flags, fixed)
    return found


def values(text: str) -> list[Any]:
    return list(axis(text).values)


def refused(*texts: str, **fixed: Any) -> InputError | UnknownNameError:
    with pytest.raises((InputError, UnknownNameError)) as caught:
        read_axes(texts, SweepVerb.flags, fixed)
    assert str(caught.value).startswith("--vary")
    return caught.value


# ---- whole numbers ----


@limits(max_examples=60)
@given(low=st.integers(1, 50), span=st.integers(0, 60), step=st.integers(1, 9))
def test_steps_from_the_first_to_the_last(low: int, span: int, step: int) -> None:
    expected, at = [], low
    while at <= low + span:
        expected.append(at)
        at += step
    assert values(f"concurrency={low}..{low + span}:{step}") == expected
    assert values(f"concurrency={low}..{low + span}") == list(range(low, low + span + 1))
    assert values(f"concurrency={low}") == [low]


@limits(max_examples=60)
@given(
    low=st.integers(1, 300), times=st.integers(1, 40), factor=st.sampled_from(["1.1", "1.25", "1.5", "2", "3", "10"])
)
def test_factors_from_the_first_to_the_last(low: int, times: int, factor: str) -> None:
    """Whole parts of exact powers, each once."""
    high, expected, power = low * times, [], 0
    while low * Fraction(factor) ** power <= high:
        whole = int(low * Fraction(factor) ** power)
        if whole not in expected:
            expected.append(whole)
        power += 1
    assert values(f"max-model-len={low}..{high}*{factor}") == expected


@limits(max_examples=60)
@given(parts=st.lists(st.tuples(st.integers(1, 20), st.integers(0, 5)), min_size=1, max_size=4))
def test_lists_hold_every_value_once_in_the_order_typed(parts: list[tuple[int, int]]) -> None:
    text = ",".join(f"{low}..{low + span}" if span else f"{low}" for low, span in parts)
    expected = list(dict.fromkeys(n for low, span in parts for n in range(low, low + span + 1)))
    assert values(f"concurrency={text}") == expected
    assert values(f"concurrency={text.replace(',', ' , ')}") == expected


def test_a_value_typed_twice_is_there_once_and_semicolons_part_what_holds_commas() -> None:
    assert values("concurrency=3,1,3") == [3, 1]
    assert values("kv-cache-dtype=fp8;default;fp8") == ["fp8", None]
    drafts = '{"method": "ngram", "num_speculative_tokens": 3}'
    assert len(values(f"speculative-config=default;{drafts}")) == 2


# ---- shares and amounts ----


@limits(max_examples=60)
@given(low=st.integers(1, 60), span=st.integers(0, 39), step=st.integers(1, 20))
def test_shares_are_exact_decimals(low: int, span: int, step: int) -> None:
    first, last, each = (Decimal(n) / 100 for n in (low, low + span, step))
    expected, at = [], first
    while at <= last:
        expected.append(float(at))
        at += each
    assert values(f"gpu-memory-utilization={first}..{last}:{each}") == expected


@limits(max_examples=60)
@given(low=st.integers(1, 40), span=st.integers(0, 60), step=st.integers(1, 9), ten=st.booleans())
def test_amounts_by_steps_and_by_factors(low: int, span: int, step: int, ten: bool) -> None:
    first, last, each = (Decimal(n) / 10 for n in (low, low + span, step))
    expected, at = [], first
    while at <= last:
        expected.append(float(at))
        at += each
    assert values(f"request-rate={first}..{last}:{each}") == expected
    factor = Decimal("1.5") if not ten else Decimal(10)
    grown, at = [], first
    while at <= last:
        grown.append(float(at))
        at *= factor
    assert values(f"request-rate={first}..{last}*{factor}") == grown


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("request-rate=0.5..0.5:1", [0.5]), ("request-rate=1..2:0.25", [1.0, 1.25, 1.5, 1.75, 2.0]),
        ("price=1..2:0.5", [((None, 1.0),), ((None, 1.5),), ((None, 2.0),)]),
        ("price=1..4*2", [((None, 1.0),), ((None, 2.0),), ((None, 4.0),)]),
        ("ttft=0..1:0.5", None), ("tpot=0.1..0.3", None), ("gpu-memory-utilization=0.5..0.9*2", None),
        ("gpu-memory-utilization=0.5..0.9:0", None), ("request-rate=1..8*1", None), ("request-rate=1..8:0", None),
        ("request-rate=1..8*0.5", None), ("max-model-len=1..9*x", None), ("max-model-len=1..9*1", None),
        ("max-model-len=1..9*0.99999", None), ("max-model-len=1..9*1.00000000000000000001", None),
        ("max-model-len=4..9*1.01", [4, 5, 6, 7, 8]), ("output-tokens=0..2", [0, 1, 2]),
        ("output-tokens=1..4*2", [1, 2, 4]), ("output-tokens=0..4*2", None), ("concurrency=2..1", None),
        ("concurrency=5..5", [5]), ("concurrency=1..9:-1", None), ("request-rate=1..9*.", None),
        ("request-rate=1..9:1.2.3", None),
    ],
)  # fmt: skip
def test_ranges_at_their_edges(text: str, expected: list[Any] | None) -> None:
    if expected is None:
        refused(text)
    else:
        assert values(text) == expected


# ---- switches, names ----


@pytest.mark.parametrize("word", ["true", "on", "1", "True", "ON"])
def test_a_switch_that_is_on(word: str) -> None:
    assert values(f"enforce-eager={word}") == [True]
    assert values(f"no-enable-prefix-caching={word}") == [False]


@pytest.mark.parametrize("word", ["false", "off", "0", "False", "OFF"])
def test_a_switch_that_is_off(word: str) -> None:
    assert values(f"enforce-eager={word}") == [None]
    assert values(f"no-enable-prefix-caching={word}") == [None]


def test_every_flag_can_be_varied_by_each_of_its_names() -> None:
    fixed = {"assume", "hub", "calibration", "from_log"}
    for option in PLAN:
        names = [flag.lstrip("-") for flag in option.flags]
        if not option.is_switch:
            names.append(option.setting)
        for name in names:
            if option.setting in fixed:
                assert "unknown flag to vary" in refused(f"{name}=1").message
            else:
                try:
                    found = axis(f"{name}={'on' if option.is_switch else 'default'}", PLAN)
                except KvplanError as error:  # a name that several flags go by
                    raise AssertionError(name) from error
                assert found.setting == option.setting
                assert list(found.values) == ([option.kind == "true"] if option.is_switch else [None])


def test_models_and_attention_are_varied_by_name() -> None:
    assert (axis("model=a,b").setting, values("model=a,b")) == ("model", ["a", "b"])
    assert values("attention=own,mha,mqa") == ["own", "mha", "mqa"]
    assert "own, mha, mqa" in (refused("attention=gqa").hint or "") + refused("attention=gqa").message


def test_an_axis_once_and_not_beside_its_flag() -> None:
    assert "varied twice" in refused("tp=1", "concurrency=1", "tensor-parallel-size=2").message
    assert "fixed by --max-model-len too" in refused("max_model_len=1", max_model_len=5).message
    assert len(read_axes(["tp=1", "pp=1"], PLAN, {"concurrency": 3})) == 2


# ---- limits ----


def test_as_many_values_as_are_allowed_and_one_more() -> None:
    assert len(axis(f"concurrency=1..{MAX_VALUES}").values) == MAX_VALUES
    assert f"{MAX_VALUES + 1:,} values" in refused(f"concurrency=1..{MAX_VALUES + 1}").message
    assert len(axis(f"concurrency=1..{3 * MAX_VALUES}:3").values) == MAX_VALUES
    assert f"{MAX_VALUES + 1:,} values" in refused(f"concurrency=1..{3 * MAX_VALUES + 1}:3").message
    assert "90,000,001 values" in refused("gpu-memory-utilization=0.1..1:0.00000001").message
    assert "10,000,001 values" in refused("request-rate=1..2:0.0000001").message
    assert "2,008 steps" in refused("max-model-len=1..640000000*1.01015").message
    for text in ("max-model-len=1..1000000*1.0000001", "request-rate=1..2*1.0000001"):  # exact powers grow long
        assert "steps" in refused(text).message


def test_as_many_points_as_are_allowed_and_more() -> None:
    side = 10_000
    assert side * side == MAX_POINTS
    found = read_axes([f"concurrency=1..{side}", f"prompt-tokens=1..{side}"], PLAN, {})
    assert size_of(found) == MAX_POINTS
    said = refused(f"concurrency=1..{side}", f"prompt-tokens=1..{side + 1}")
    assert f"{side * (side + 1):,} points ({side:,} x {side + 1:,})" in said.message
    assert size_of([]) == 1


def test_what_is_shown_of_a_value() -> None:
    assert axis("concurrency=1,2").shown(2) == 2
    assert axis("kv-cache-dtype=default").shown(None) == "default"
    price = axis("price=1..2:0.5")
    assert [price.shown(value) for value in price.values] == [1.0, 1.5, 2.0]
    named = axis("price=h100-sxm=2.5;h100-sxm=3")
    assert [named.shown(value) for value in named.values] == ["h100-sxm=2.5", "h100-sxm=3"]
    assert price.shown(None) == "default"

"""Rules are read, and metric and value have to go together."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvplan.check.metrics import find_metric, known, shown
from kvplan.check.rules import RuleSyntaxError, parse_rule
from kvplan.errors import InputError

GOOD = [
    ("verdict.fits == true", "==", True, False, False),
    ("verdict.fits != false", "!=", False, False, False),
    ("verdict.binding != weights", "!=", "weights", False, False),
    ("verdict.binding == none", "==", None, False, False),
    ("capacity.max_concurrency >= 8", ">=", 8, False, False),
    ("capacity.max_concurrency>=8.5", ">=", 8.5, False, False),
    ("capacity.requests_at(32K) >= 4", ">=", 4, False, False),
    ("capacity.kv_tokens >= 100,000", ">=", 100_000, False, False),
    ("decode.tokens_per_second >= 1,234.5", ">=", 1234.5, False, False),
    ("memory.unused_bytes >= 2 GiB", ">=", 2 << 30, False, False),
    ("memory.unused_bytes >= 2.5GB", ">=", 2_500_000_000, False, False),
    ("memory.unused_bytes > 0 GiB", ">", 0, False, False),
    ("memory.unused_bytes >= 5 %", ">=", 5, True, False),
    ("kv.bytes_per_token <= 327680", "<=", 327_680, False, False),
    ("kv.bytes_per_token <= 320 KiB", "<=", 327_680, False, False),
    ("capacity.kv_tokens >= 32K", ">=", 32_768, False, False),
    ("capacity.kv_tokens >= 32k", ">=", 32_000, False, False),
    ("capacity.min_gpu_memory_utilization <= 90 %", "<=", 0.9, False, False),
    ("decode.seconds_per_step <= 25 ms", "<=", 0.025, False, False),
    ("prefill.seconds < 1.5 s", "<", 1.5, False, False),
    ("cost.per_million_output_tokens <= 0.50 USD", "<=", 0.5, False, False),
    ("capacity.kv_tokens >= baseline", ">=", 0, False, True),
    ("capacity.kv_tokens >= baseline - 5 %", ">=", -5, True, True),
    ("kv.bytes_per_token <= baseline + 1 KiB", "<=", 1024, False, True),
]


@pytest.mark.parametrize(("text", "operator", "value", "percent", "baseline"), GOOD)
def test_a_rule_is_read(text: str, operator: str, value: Any, percent: bool, baseline: bool) -> None:
    found = parse_rule(text)
    assert (found.operator, found.limit.percent, found.limit.baseline) == (operator, percent, baseline)
    assert found.limit.value == pytest.approx(value) if isinstance(value, float) else found.limit.value == value
    assert type(found.limit.value) is not bool or isinstance(value, bool)


BAD = [
    ("", "is no rule", 0),
    ("fits", "is no rule", 0),
    ("verdict.fit == true", "there is no metric 'verdict.fit'", 0),
    ("  capacity.nope >= 1", "there is no metric", 2),
    ("verdict.fits = true", "'=' is no operator", 13),
    ("verdict.fits => true", "'=>' is no operator", 13),
    ("verdict.fits >= true", "cannot compare", 13),
    ("verdict.fits == yes", "is true or false", 16),
    ("capacity.max_concurrency >= many", "is a number, not 'many'", 28),
    ("capacity.max_concurrency >= 1,5", "'1,5' is not a number", 28),
    ("capacity.kv_tokens >= 3,2K", "'3,2K' is not a number", 22),
    ("capacity.max_concurrency >= 8 GiB", "without 'GiB'", 28),
    ("capacity.max_concurrency >= 8 %", "a percentage of what?", 28),
    ("kv.bytes_per_token <= 5 %", "a percentage of what?", 22),
    ("memory.unused_bytes >= 80G", "could be 80GiB or 80GB", 23),
    ("memory.unused_bytes >= 8 gallons", "unknown unit 'gallons'", 23),
    ("decode.seconds_per_step <= 25", "has no unit of time", 27),
    ("capacity.kv_tokens >= 32Q", "is not a token count", 22),
    ("capacity.requests_at >= 4", "needs a length", 0),
    ("capacity.requests_at(soon) >= 4", "is not a token count", 0),
    ("capacity.max_concurrency >=", "the value is missing", 27),
    ("warnings == 0", "there is no metric", 0),
    ("inputs.defaults == x", "there is no metric", 0),
]


@pytest.mark.parametrize(("text", "message", "offset"), BAD)
def test_what_is_no_rule_says_where_and_why(text: str, message: str, offset: int) -> None:
    with pytest.raises(RuleSyntaxError) as caught:
        parse_rule(text)
    assert message in caught.value.message
    assert caught.value.offset == offset
    assert caught.value.hint


@given(st.text(max_size=60))
def test_no_text_breaks_the_reader(text: str) -> None:
    error = None
    try:
        parse_rule(text)
    except RuleSyntaxError as raised:
        error = raised
    assert error is None or 0 <= error.offset <= len(text)
    assert "\n" not in str(error)


@given(st.sampled_from(sorted(known())), st.integers(1, 2**40))
def test_every_number_takes_whole_numbers_or_asks_for_its_unit(name: str, value: int) -> None:
    kind = known()[name]
    try:
        assert parse_rule(f"{name} >= {value}").limit.value == value
        assert kind not in ("switch", "text", "seconds")
    except RuleSyntaxError:
        assert kind in ("switch", "text", "seconds")


@pytest.mark.parametrize(
    ("typed", "first"),
    [
        ("verdict.fit", "verdict.fits"),
        ("capacity.max_concurency", "capacity.max_concurrency"),
        ("fits", "verdict.fits"),
    ],
)
def test_an_unknown_metric_names_those_that_exist_closest_first(typed: str, first: str) -> None:
    with pytest.raises(InputError) as caught:
        find_metric(typed)
    assert (caught.value.hint or "").startswith(f"did you mean {first}")


def test_a_wrong_name_in_a_section_lists_the_section() -> None:
    with pytest.raises(InputError) as caught:
        find_metric("verdict.zzz")
    assert "fits" in (caught.value.hint or "")
    with pytest.raises(InputError) as caught:
        find_metric("kv.zzz")
    assert all(name in (caught.value.hint or "") for name in ("bytes_per_token", "fixed_bytes_per_sequence"))


@pytest.mark.parametrize(
    ("kind", "value", "text"),
    [
        ("bytes", 2 << 30, "2.000 GiB"), ("bytes", 512, "512 B"), ("bytes", 3 << 20, "3.000 MiB"),
        ("tokens", 32768, "32,768 tokens"), ("switch", False, "false"), ("seconds", 0.025, "25 ms"),
        ("seconds", 2.5, "2.5 s"), ("seconds", 2.5e-5, "25 us"), ("number", 3.41625, "3.416"), ("number", 12, "12"),
        ("money", 0.5, "0.5 USD"), ("share", 0.9, "0.9"), ("text", "kv", "kv"), ("bytes", None, "none"),
    ],
)  # fmt: skip
def test_values_are_shown_with_their_unit(kind: str, value: Any, text: str) -> None:
    assert shown(kind, value) == text


def test_a_rate_and_a_share_of_cost_are_no_money() -> None:
    assert find_metric("cost.requests_per_second").kind == "number"
    assert find_metric("cost.prefill_share").kind == "share"
    assert find_metric("cost.per_million_output_tokens").kind == "money"

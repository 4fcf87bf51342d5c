"""Readers of flags: every unit by its meaning, and refusals that name the flag and show a value that works."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from kvplan.engines.options import (
    parse_count,
    parse_engine_bytes,
    parse_max_model_len,
    parse_number,
    parse_per_second,
    parse_prices,
    parse_seconds,
    parse_share,
    parse_texts,
    parse_tokens_or_zero,
)
from kvplan.errors import InputError


@pytest.mark.parametrize(
    ("reader", "text", "value"),
    [
        (parse_count, "8", 8), (parse_count, " 1,024 ", 1024), (parse_count, "1_024", 1024),
        (parse_count, "0000000000000008", 8),
        (parse_share, "0.9", 0.9), (parse_share, "1", 1.0), (parse_share, "1e-3", 0.001),
        (parse_max_model_len, "-1", -1), (parse_max_model_len, "auto", -1), (parse_max_model_len, "8k", 8000),
        (parse_tokens_or_zero, "0", 0), (parse_tokens_or_zero, " 0 ", 0), (parse_tokens_or_zero, "2K", 2048),
        (parse_engine_bytes, "25g", 25 * 10**9), (parse_engine_bytes, "25G", 25 * 2**30),
        (parse_engine_bytes, "2GiB", 2**31), (parse_engine_bytes, "2GB", 2 * 10**9), (parse_engine_bytes, "77", 77),
        (parse_seconds, "0.5", 0.5), (parse_seconds, "2s", 2.0), (parse_seconds, "30ms", 0.03),
        (parse_seconds, "5us", 5e-6),
        (parse_per_second, "5", 5.0), (parse_per_second, "5/s", 5.0), (parse_per_second, "300/min", 5.0),
        (parse_per_second, "3600/h", 1.0),
        (parse_number, "0", 0.0), (parse_number, "0.0", 0.0), (parse_number, "0.8", 0.8), (parse_number, "1e3", 1000.0),
        (parse_texts, "a, b,a", ("a", "b")),
        (parse_prices, "2.5", ((None, 2.5),)),
        (parse_prices, "h100-sxm=$2.5, l4=0.8", (("h100-sxm", 2.5), ("l4", 0.8))),
    ],
)  # fmt: skip
def test_read(reader: Callable[[str, str], Any], text: str, value: Any) -> None:
    assert (
        reader(text, "--flag") == pytest.approx(value) if isinstance(value, float) else reader(text, "--flag") == value
    )


@pytest.mark.parametrize(
    ("reader", "text", "said"),
    [
        (parse_count, "0", "0 is too small"), (parse_count, "-1", "'-1' is not a whole number above 0"),
        (parse_count, "1,8", "'1,8' is not a whole number"), (parse_count, "1,0240", "not a whole number"),
        (parse_count, ",024", "not a whole number"), (parse_count, "1_6", "not a whole number"),
        (parse_count, "1.5", "not a whole number"), (parse_count, "٣", "not a whole number"),
        (parse_count, "9" * 17, "absurdly large"),
        (parse_share, "0", "not a share"), (parse_share, "1.01", "not a share"), (parse_share, "nan", "not a share"),
        (parse_share, "much", "not a share"),
        (parse_engine_bytes, "much", "not a size"),
        (parse_seconds, "0", "is not a time above 0"), (parse_seconds, "3h", "is not a time above 0"),
        (parse_seconds, "-1", "is not a time above 0"), (parse_seconds, "s", "is not a time above 0"),
        (parse_seconds, "1_0", "is not a time above 0"), (parse_seconds, "1e12", "is not a time above 0"),
        (parse_seconds, "nan", "is not a time above 0"), (parse_seconds, "inf", "is not a time above 0"),
        (parse_per_second, "5/day", "is not a rate above 0"), (parse_per_second, "/min", "is not a rate above 0"),
        (parse_number, "-1", "is not a number above 0"), (parse_number, "5s", "is not a number above 0"),
        (parse_texts, "a,,b", "needs a value"), (parse_texts, "", "needs a value"),
        (parse_prices, "=3", "names no GPU"), (parse_prices, "l4=free", "is not a price above 0"),
    ],
)  # fmt: skip
def test_refused(reader: Callable[[str, str], Any], text: str, said: str) -> None:
    with pytest.raises(InputError, match=said) as caught:
        reader(text, "--flag")
    assert caught.value.where == "--flag"
    assert caught.value.hint


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("1.5", "type --flag 1"), ("9.9", "type --flag 1"), ("10", "type 0.1"), ("92", "type 0.92"), ("100", "type 1"),
        ("101", "type a number above 0 and up to 1, such as --flag 0.9"),
        ("-1", "type a number above 0 and up to 1, such as --flag 0.9"),
    ],
)  # fmt: skip
def test_a_percentage_is_answered_with_its_share(text: str, hint: str) -> None:
    with pytest.raises(InputError) as caught:
        parse_share(text, "--flag")
    assert caught.value.hint == hint

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvplan.render.grid import Bar, Segment, clean, fills, limit_at, limit_line, shares, width_of


def bar(values: list[int], total: int) -> Bar:
    return Bar([Segment(str(i), value, str(value)) for i, value in enumerate(values)], total, str(total))


@given(st.lists(st.integers(0, 2**50), min_size=1, max_size=8), st.integers(0, 2**50), st.integers(8, 120))
def test_shares_fill_the_bar_and_show_every_segment(values: list[int], spare: int, cells: int) -> None:
    total = sum(values) + spare
    found = shares(bar(values, total), cells)
    if total == 0:
        assert sum(found) == 0
        return
    shown = sum(value > 0 for value in values)
    assert sum(found) == max(-(-sum(values) * cells // total), shown)
    assert all(count >= 1 for value, count in zip(values, found, strict=True) if value)
    assert all(count == 0 for value, count in zip(values, found, strict=True) if not value)


def test_shares_are_proportional() -> None:
    assert shares(bar([50, 25, 25], 100), 40) == [20, 10, 10]


def test_overfull_bar_marks_where_the_total_ends() -> None:
    over = bar([150, 50], 100)
    assert shares(over, 40) == [30, 10]
    assert limit_at(over, 40) == 20
    assert limit_at(bar([60, 40], 100), 40) is None


def test_label_of_the_limit_stands_on_the_side_that_has_room() -> None:
    assert limit_line(bar([150, 50], 100), 40) == " " * 20 + "▲ 100"
    assert limit_line(bar([105], 100), 40) == " " * 34 + "100 ▲"
    assert limit_line(bar([105], 100), 40, unicode=False) == " " * 34 + "100 ^"
    assert limit_line(bar([60, 40], 100), 40) == ""


def test_neighbouring_fills_differ_and_spare_has_its_own() -> None:
    drawn = fills(Bar([Segment("a", 1, "1"), Segment("b", 1, "1"), Segment("c", 2, "2", spare=True)], 4, "4"), 8)
    assert len({fill.mark for fill in drawn}) == 3
    assert [fill.style for fill in drawn] == ["blue", "cyan", "dim"]
    assert [fill.percent for fill in drawn] == ["25.0%", "25.0%", "50.0%"]
    assert all(fill.mark.isascii() for fill in fills(bar([1, 2], 4), 8, unicode=False))


@pytest.mark.parametrize("hostile", ["\x1b[2J", "a\rb", "a\nb", "\x9b31m", "\u202eabc", "\x07", "\u2028"])
def test_clean_lets_nothing_move_the_cursor(hostile: str) -> None:
    assert clean(hostile).isprintable()


def test_clean_keeps_long_and_foreign_text() -> None:
    assert clean("é漢字" * 500) == "é漢字" * 500


def test_width_counts_wide_and_combining_characters() -> None:
    assert width_of("abc") == 3
    assert width_of("漢字") == 4
    assert width_of("e\u0301") == 1

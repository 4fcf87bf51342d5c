from __future__ import annotations

import re

import pytest

from kvplan.render import text
from kvplan.render.grid import Bar, Column, Document, Grid, KeyValues, Segment

ANSI = re.compile(r"\x1b\[[0-9;]*m")


def test_every_row_is_one_line_without_trailing_blanks(document: Document) -> None:
    lines = text.draw(document).splitlines()
    row = next(line for line in lines if "some-org" in line)
    assert "70.6 B" in row
    assert "seen in a file that somebody published" in row
    assert all(line == line.rstrip() for line in lines)


def test_numbers_end_in_one_column() -> None:
    grid = Grid([Column("id"), Column("n", right=True)], [("a", "7"), ("bb", "1,234")])
    assert text.draw([grid]) == "id      n\na       7\nbb  1,234\n"


def test_remarks_align_and_a_long_value_without_one_does_not_push_them() -> None:
    drawn = text.draw([KeyValues([("a", "1", "x"), ("bb", "22", "y"), ("c", "a long value without a remark")])])
    assert drawn == "a   1   x\nbb  22  y\nc   a long value without a remark\n"


def test_figures_are_right_aligned_where_asked() -> None:
    assert text.draw([KeyValues([("a", "1"), ("b", "100")], right=True)]) == "a    1\nb  100\n"


def test_colour_adds_only_styles(document: Document) -> None:
    plain, colored = text.draw(document), text.draw(document, color=True)
    assert ANSI.sub("", colored) == plain
    assert colored != plain
    assert "\x1b" not in plain


def test_no_input_reaches_the_terminal_raw(document: Document) -> None:
    drawn = text.draw(document)
    assert all(line.isprintable() for line in drawn.split("\n"))
    assert "evil\\x1b[31m" in drawn


def test_ascii_bar(document: Document) -> None:
    drawn = text.draw([part for part in document if isinstance(part, Bar)], unicode=False)
    assert drawn.isascii()
    assert "33.00 GiB" in drawn


@pytest.mark.parametrize("unicode", [True, False])
def test_overfull_bar_says_where_the_device_ends(unicode: bool) -> None:
    bar = Bar([Segment("weights", 100, "100 GiB")], 80, "80 GiB")
    lines = text.draw([bar], unicode=unicode).splitlines()
    mark = lines[1].rindex("▲" if unicode else "^")
    assert mark == 80 * text.BAR_CELLS // 100
    assert "80 GiB" in lines[1]


def test_empty_parts_leave_no_trace() -> None:
    assert text.draw([KeyValues([], title="Nothing"), KeyValues([("a", "b")])]) == "a  b\n"

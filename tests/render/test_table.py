from __future__ import annotations

import re

import pytest

from kvplan.render import table
from kvplan.render.grid import Bar, Column, Document, Grid, Segment, clean, width_of

from .conftest import FIGURES

ANSI = re.compile(r"\x1b\[[0-9;]*m")


@pytest.mark.parametrize("width", [40, 80, 120, 200])
def test_no_line_is_wider_than_the_terminal_and_no_figure_is_cut(document: Document, width: int) -> None:
    drawn = table.draw(document, width=width)
    assert max(map(width_of, drawn.splitlines())) <= width
    folded = " ".join(drawn.split())
    for figure in FIGURES:
        assert figure in folded, figure


def test_optional_columns_go_first_and_are_named(document: Document) -> None:
    grid = [part for part in document if isinstance(part, Grid)]
    narrow, wide = table.draw(grid, width=80), table.draw(grid, width=200)
    assert "some-org" not in narrow
    assert "80 columns have no room for: repository" in " ".join(narrow.split())
    assert "some-org" in wide
    assert "no room" not in wide


def test_a_grid_that_cannot_fit_is_drawn_record_by_record() -> None:
    grid = Grid([Column("identifier"), Column("bytes", right=True)], [("a" * 20, "1" * 20), ("b", "2")])
    lines = table.draw([grid], width=38).splitlines()
    assert lines[0].split() == ["identifier", "a" * 20]
    assert lines[1].split() == ["bytes", "1" * 20]


def test_prose_wraps_inside_its_column() -> None:
    grid = Grid([Column("id"), Column("source", wrap=True)], [("x", "one two three four five six seven eight nine")])
    lines = table.draw([grid], width=30).splitlines()
    assert lines[2].startswith("x   one two")
    assert lines[3].startswith("    ")
    assert " ".join(line[4:] for line in lines[2:]) == "one two three four five six seven eight nine"


def test_colour_adds_only_styles(document: Document) -> None:
    plain, colored = table.draw(document, width=100), table.draw(document, width=100, color=True)
    assert ANSI.sub("", colored) == plain
    assert "\x1b" not in plain
    assert "\x1b[34m" in colored


def test_hostile_names_are_escaped(document: Document) -> None:
    drawn = table.draw(document, width=200)
    assert all(line.isprintable() for line in drawn.split("\n"))
    assert "evil\\x1b[31m|<b>" in drawn


def test_bar_fills_the_width_in_proportion() -> None:
    drawn = table.draw([Bar([Segment("a", 3, "3"), Segment("b", 1, "1", spare=True)], 4, "4")], width=80)
    assert drawn.splitlines()[0] == "█" * 60 + "·" * 20


def test_ascii_terminal_gets_ascii() -> None:
    grid = Grid([Column("a"), Column("b")], [("1", "2")])
    assert table.draw([grid], width=80, unicode=False).isascii()
    assert clean("─") in table.draw([grid], width=80)

from __future__ import annotations

import re

from kvplan.render import markdown
from kvplan.render.grid import Column, Document, Grid, KeyValues, Title, Warnings

from .conftest import FIGURES

CELLS = re.compile(r"(?<!\\)\|")


def test_no_figure_is_lost(document: Document) -> None:
    drawn = markdown.draw(document)
    for figure in FIGURES:
        assert figure in drawn, figure
    assert "some-org/" in drawn


def test_tables_are_tables() -> None:
    grid = Grid([Column("id"), Column("n", right=True)], [("a|b", "1")], title="T", note="in bytes")
    assert markdown.draw([grid]) == "### T\n\n| id | n |\n| --- | --: |\n| a\\|b | 1 |\n\nin bytes\n"


def test_every_row_of_a_table_has_as_many_cells_as_its_head(document: Document) -> None:
    tables = [block for block in markdown.draw(document).split("\n\n") if block.startswith("|")]
    assert len(tables) == 4
    for block in tables:
        assert len({len(CELLS.findall(line)) for line in block.splitlines()}) == 1


def test_no_markup_of_a_name_takes_effect() -> None:
    title = Title("![x](http://e) <img src=x> `a` **b** __init__ a_b #1 & \x1b[0m\n# no")
    drawn = markdown.draw([title])
    assert drawn.startswith("## \\!\\[x\\]".replace("\\!", "!"))
    assert "<img" not in drawn
    assert "\\*\\*b\\*\\*" in drawn
    assert "\\__init__" in drawn
    assert " a_b " in drawn
    assert len(drawn.splitlines()) == 1


def test_second_title_stands_below_the_first() -> None:
    assert markdown.draw([Title("a"), Title("b")]) == "## a\n\n### b\n"


def test_remarks_and_warnings() -> None:
    drawn = markdown.draw([KeyValues([("a", "1", "x"), ("b", "2")]), Warnings(["careful"])])
    assert "| a | 1 | x |" in drawn
    assert "| b | 2 |  |" in drawn
    assert "> **Warning:** careful" in drawn

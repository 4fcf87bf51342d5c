from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvplan.render import table
from kvplan.render.grid import (
    Bar,
    Column,
    Document,
    Grid,
    KeyValues,
    Notes,
    Segment,
    Title,
    Warnings,
    clean,
    width_of,
)

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


@pytest.mark.parametrize("width", [20, 40, 100])
def test_colour_adds_only_styles(document: Document, width: int) -> None:
    plain, colored = table.draw(document, width=width), table.draw(document, width=width, color=True)
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


def test_heads_break_before_prose_is_squeezed() -> None:
    columns = [Column("id"), Column("bytes per token", right=True), Column("source", wrap=True)]
    grid = Grid(columns, [("llama", "128", "a sentence of more than sixteen columns")])
    wide = table.draw([grid], width=5 + 2 + 5 + 2 + 39).splitlines()
    assert wide[:3] == ["       bytes", "         per", "id     token  source"]
    assert wide[4:] == ["llama    128  a sentence of more than sixteen columns"]
    narrow = table.draw([grid], width=5 + 2 + 5 + 2 + 20).splitlines()
    assert narrow[4:] == ["llama    128  a sentence of more", "              than sixteen columns"]


@pytest.mark.parametrize("columns", [1, 2, 3, 6])
def test_figures_that_just_fit_are_whole(columns: int) -> None:
    figures = ["1234567890"] * columns
    width = 12 * columns - 2
    grid = Grid([Column("n", right=True)] * columns, [figures])
    assert table.draw([grid], width=width).splitlines()[2] == "  ".join(figures)
    if columns == 2:
        assert table.draw([KeyValues([("1234567890", "1234567890")], right=True)], width=width).split() == figures


def test_empty_parts_leave_no_trace() -> None:
    assert table.draw([KeyValues([], title="Nothing"), Notes([]), KeyValues([("a", "b")])], width=80) == "a  b\n"


def test_title_breaks_before_its_detail() -> None:
    title = Title("llama-3.1-8b", "bf16 weights")
    assert table.draw([title], width=26) == "llama-3.1-8b  bf16 weights\n"
    assert table.draw([title], width=25) == "llama-3.1-8b\nbf16 weights\n"


def test_nothing_in_a_name_is_markup() -> None:
    name = "[bold]x[/bold] :smile: [link=https://e]y[/link] [/]"
    parts: Document = [
        Title(name, name),
        KeyValues([(name, name, name)], title=name),
        Grid([Column(name)], [(name,)], title=name, note=name),
        Bar([Segment(name, 2, name)], 1, name, title=name),
        Notes([name], title=name),
        Warnings([name]),
    ]
    drawn = table.draw(parts, width=200, color=True)
    assert ANSI.sub("", drawn).count(name) == 17


@pytest.mark.parametrize("name", ["NO_COLOR", "FORCE_COLOR", "COLUMNS", "TERM", "JUPYTER_COLUMNS", "TTY_COMPATIBLE"])
@pytest.mark.parametrize("value", ["1", "dumb"])
def test_the_environment_changes_nothing(
    document: Document, monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    before = [table.draw(document, width=70, color=color) for color in (False, True)]
    monkeypatch.setenv(name, value)
    assert [table.draw(document, width=70, color=color) for color in (False, True)] == before


@st.composite
def documents(draw: st.DrawFn) -> tuple[Document, list[str], list[str]]:
    """A document, the strings in it and its heads; no two strings share a letter."""
    strings: list[str] = []

    def string() -> str:
        at = len(strings)
        letters = [chr(0x1401 + 2 * at), chr(0x1402 + 2 * at), chr(0x4E00 + at), " "]  # the third is two columns wide
        strings.append(draw(st.text(st.sampled_from(letters), max_size=50)))
        return strings[-1]

    def column() -> Column:
        return Column(string(), right=draw(st.booleans()), wrap=draw(st.booleans()))

    columns = draw(st.lists(st.builds(column), min_size=1, max_size=6))
    heads, strings = strings, [""] * len(strings)
    rows = [[string() for _ in columns] for _ in range(draw(st.integers(1, 3)))]
    pairs = [(string(), string()) for _ in range(draw(st.integers(0, 2)))]
    remarks = [(string(), string(), string()) for _ in range(draw(st.integers(0, 2)))]
    parts: Document = [
        Title(string(), string()),
        KeyValues([*pairs, *remarks], title=string() if pairs + remarks else "", right=draw(st.booleans())),
        Grid(columns, rows, title=string(), note=string()),
        Bar([Segment(string(), 5, string()), Segment(string(), 1, string(), spare=True)], 3, string(), title=string()),
        Notes([string(), string()], title=string()),
        Warnings([string()]),
    ]
    return parts, strings, heads


def letters_of(string: str, drawn: str) -> str:
    return "".join(letter for letter in drawn if letter in string and letter != " ")


@given(documents(), st.integers(20, 200), st.booleans())
def test_no_character_is_ever_lost(found: tuple[Document, list[str], list[str]], width: int, color: bool) -> None:
    document, strings, heads = found
    drawn = ANSI.sub("", table.draw(document, width=width, color=color))
    assert max(map(width_of, drawn.splitlines())) <= width
    for string in strings:
        assert letters_of(string, drawn) == string.replace(" ", "")
    for head in heads:
        letters = head.replace(" ", "")
        shown = letters_of(head, drawn)
        assert shown in [letters * times for times in (1, 2, 3)]  # once a row where the grid is drawn row by row


def test_records_have_every_column() -> None:
    """What has room for no table leaves nothing out, and says nothing of it."""
    columns = [Column("a"), Column("b", optional=True), Column("c")]
    drawn = table.draw([Grid(columns, [("x" * 20, "middle", "y" * 20)])], width=30)
    assert "middle" in drawn
    assert "no room" not in drawn

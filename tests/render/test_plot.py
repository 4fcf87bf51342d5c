"""Charts on a terminal."""

from __future__ import annotations

import pytest

from kvplan.render import markdown, table, text
from kvplan.render.plot import plot
from kvplan.render.svg import Axis, Chart, Mark, Picture, Series, Spot

LINE = Chart(
    "Tokens per second",
    Axis("batch", "count", "log2"),
    Axis("tokens per second", "rate"),
    [Series("", [(1.0, 0.0), (256.0, 1000.0)])],
    [Mark("x", 16.0, "ridge: 16"), Mark("y", 900.0, "ceiling")],
    [Spot(4.0, 250.0, "this workload")],
)


def drawn(chart: Chart, width: int, *, unicode: bool = True) -> list[str]:
    return ["".join(run for run, _ in line) for line in plot(chart, width, unicode=unicode)]


@pytest.mark.parametrize("width", [30, 60, 80, 200])
@pytest.mark.parametrize("unicode", [True, False])
def test_a_plot_keeps_to_its_width(width: int, unicode: bool) -> None:
    lines = drawn(LINE, width, unicode=unicode)
    assert max(map(len, lines)) <= width
    assert unicode or all(line.isascii() for line in lines)


def test_a_rising_line_rises() -> None:
    rows = drawn(LINE, 60, unicode=False)[1:9]
    columns = [row.index("*") for row in rows if "*" in row]
    assert columns == sorted(columns, reverse=True)
    assert columns[0] > columns[-1] + 20


def test_marks_stand_where_they_are_and_are_named() -> None:
    lines = drawn(LINE, 60)
    axis = next(line for line in lines if "└" in line)
    start = axis.index("└") + 1
    assert axis.index("a") - start == (len(axis) - start) // 2  # 16 is half way from 1 to 256 by doublings
    assert lines[-1] == "a ridge: 16   b ceiling   ● this workload"
    assert sum("┊" in line for line in lines) >= 6
    assert any("●" in line for line in lines[1:9])
    assert any("b┈" in line for line in lines[1:9])


def test_names_cannot_reach_the_terminal_raw(pictures: dict[str, Picture]) -> None:
    out = table.draw([pictures["cache"]], width=80, color=False)
    assert "\x1b" not in out
    assert "\u202e" not in out
    assert max(map(len, out.splitlines())) <= 80


def test_every_writer_says_the_numbers(picture: Picture, evil: str) -> None:
    for out in (text.draw([picture]), markdown.draw([picture])):
        assert picture.title.split(evil)[0].strip() in out
        assert evil not in out
    assert table.draw([picture], width=100)


def test_lines_are_told_apart_without_colour() -> None:
    """By their dashes, in the legend as in the plot; where there is no Braille, by their signs."""
    points = [(float(x), 100.0) for x in range(33)]
    second = [(float(x), 500.0) for x in range(33)]
    chart = LINE._replace(x=Axis("x"), series=[Series("first", points), Series("second", second)], marks=(), spots=())
    lines = drawn(chart, 60)
    rows = [line.partition("│")[2].rstrip() for line in lines if any(0x2800 < ord(c) <= 0x28FF for c in line[:55])]
    dashed, solid = rows[:2]
    assert "  " not in solid
    assert " " in dashed.strip()
    keys = lines[-1].split("   ")
    assert [key.strip() for key in keys] == ["⠒⠒⠒ first", "⠒⠒ ⠒ second"]
    assert drawn(chart, 60, unicode=False)[-1].split("   ") == ["* first", "+ second"]


def test_a_dashed_line_of_one_point_is_seen() -> None:
    chart = LINE._replace(
        series=[Series("a", [(1.0, 0.0), (9.0, 900.0)]), Series("b", [(5.0, 500.0)])], marks=(), spots=()
    )
    alone = chart._replace(series=[chart.series[0]])
    assert sum(c > "\u2800" for line in drawn(chart, 60)[1:9] for c in line) >= sum(
        c > "\u2800" for line in drawn(alone, 60)[1:9] for c in line
    )
    assert drawn(chart, 60)[1:9] != drawn(alone, 60)[1:9]

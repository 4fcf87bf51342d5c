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

"""Pictures are well-formed, stand alone, say everything in text too, and are the same every time."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvplan.render import svg
from kvplan.render.svg import Axis, Bars, Chart, HeatMap, Mark, Picture, Piece, Series, Stack
from kvplan.render.svg.ticks import spoken

SVG = "{http://www.w3.org/2000/svg}"


def texts(root: ET.Element) -> list[str]:
    return ["".join(e.itertext()) for e in root.iter(f"{SVG}text")]


def places(root: ET.Element) -> Iterator[tuple[float, float]]:
    """Every coordinate of lines, rectangles, circles and paths."""
    for e in root.iter():
        for x, y in (("x", "y"), ("x1", "y1"), ("x2", "y2"), ("cx", "cy")):
            if x in e.attrib and y in e.attrib:
                yield float(e.attrib[x]), float(e.attrib[y])
        for x, y in re.findall(r"[ML](-?[\d.]+) (-?[\d.]+)", e.attrib.get("d", "")):
            yield float(x), float(y)


def test_a_picture_is_well_formed_and_says_what_it_is(picture: Picture) -> None:
    root = ET.fromstring(svg.draw(picture, "figure-7"))
    assert root.tag == f"{SVG}svg"
    assert root.attrib["role"] == "img"
    ids = {e.attrib["id"] for e in root.iter() if "id" in e.attrib}
    assert set(root.attrib["aria-labelledby"].split()) <= ids
    assert all(i.startswith("figure-7-") for i in ids)
    title, desc = root.find(f"{SVG}title"), root.find(f"{SVG}desc")
    assert title is not None
    assert desc is not None
    assert desc.text
    _, _, wide, high = map(float, root.attrib["viewBox"].split())
    # what lies outside of the sheet is not seen; the lines of a plot may, for they are clipped
    assert all(-1 <= x <= wide + 1 for x, _ in places(root))
    assert all(float(e.attrib["y"]) <= high for e in root.iter(f"{SVG}text"))


def test_files_are_well_formed_and_fetch_nothing(pictures: dict[str, Picture], evil: str) -> None:
    file = svg.document(list(pictures.values()), f"all {evil}")
    root = ET.fromstring(file.encode())
    ids = [e.attrib["id"] for e in root.iter() if "id" in e.attrib]
    assert len(ids) == len(set(ids))
    for e in root.iter():
        assert "href" not in " ".join(e.attrib)
        assert e.tag not in (f"{SVG}script", f"{SVG}image", f"{SVG}foreignObject")
    assert set(re.findall(r"url\(([^)]*)\)", file)) <= {f"#{i}" for i in ids}
    assert re.findall(r"\w+://[^\s\"<]+", file) == ["http://www.w3.org/2000/svg"]
    assert "prefers-color-scheme:dark" in file
    assert "\x1b" not in file
    assert "\u202e" not in file
    assert file == svg.document(list(pictures.values()), f"all {evil}")


def test_lines_are_drawn_where_their_numbers_are() -> None:
    chart = Chart("t", Axis("x"), Axis("y"), [Series("", [(0.0, 0.0), (5.0, 10.0), (10.0, 5.0)])])
    root = ET.fromstring(svg.draw(chart, "k"))
    dots = [(float(c.attrib["cx"]), float(c.attrib["cy"])) for c in root.iter(f"{SVG}circle")]
    (x0, y0), (x1, y1), (x2, y2) = dots
    assert x1 - x0 == pytest.approx(x2 - x1, abs=0.02)
    assert y0 - y1 == pytest.approx(2 * (y2 - y1), abs=0.04)
    axis = next(e for e in root.iter(f"{SVG}line") if e.attrib["class"] == "axis")
    assert float(axis.attrib["y1"]) == pytest.approx(y0, abs=0.02)


def test_a_gap_is_a_gap_and_a_step_holds_its_value() -> None:
    def lines(kind: str, points: list[tuple[float, float | None]]) -> list[str]:
        chart = Chart("t", Axis("x"), Axis("y"), [Series("", points, kind)])  # type: ignore[arg-type]
        root = ET.fromstring(svg.draw(chart, "k"))
        return [e.attrib["d"] for e in root.iter(f"{SVG}path") if e.attrib["class"].startswith("line")]

    assert len(lines("line", [(0, 1), (1, 2), (2, None), (3, 1), (4, 2)])) == 2
    (step,) = lines("step", [(0, 1), (1, 2)])
    places = [tuple(map(float, p.split())) for p in step[1:].split("L")]
    assert len(places) == 3
    assert places[0][1] == places[1][1]
    assert places[1][0] == places[2][0]


def test_pieces_are_as_long_as_they_are_large(pictures: dict[str, Picture]) -> None:
    root = ET.fromstring(svg.draw(pictures["memory"], "k"))
    bars = [r for r in root.iter(f"{SVG}rect") if r.attrib["class"].endswith("gap")]
    wide = [float(r.attrib["width"]) for r in bars]
    assert wide[0] / wide[1] == pytest.approx(15 / 55, rel=0.01)
    assert wide[3] / wide[0] == pytest.approx(85 / 15, rel=0.01)  # over the device
    limit = next(e for e in root.iter(f"{SVG}line") if e.attrib["class"] == "end")
    left = float(bars[3].attrib["x"])
    assert (float(limit.attrib["x1"]) - left) / wide[3] == pytest.approx(80 / 85, rel=0.01)


def test_every_number_of_a_chart_is_in_its_table(pictures: dict[str, Picture]) -> None:
    charts = [p for p in pictures.values() if isinstance(p, Chart)]
    assert len(charts) == 3
    for chart in charts:
        cells = {cell for row in svg.numbers(chart).rows for cell in row}
        for series in chart.series:
            for x, y in series.points:
                assert spoken(chart.x.unit, x) in cells
                assert spoken(chart.y.unit, y) in cells
        for mark in chart.marks:
            assert {mark.label, spoken(chart.x.unit if mark.along == "x" else chart.y.unit, mark.at)} <= cells
        for spot in chart.spots:
            assert {spot.label, spoken(chart.x.unit, spot.x), spoken(chart.y.unit, spot.y)} <= cells
        for series in chart.series:
            assert set(series.names) <= cells


def test_every_number_of_bars_and_maps_is_in_its_table(pictures: dict[str, Picture], evil: str) -> None:
    cells = {cell for row in svg.numbers(pictures["memory"]).rows for cell in row}
    assert {"15.00 GiB", "55.00 GiB", "7.00 GiB", "85 GiB", "80.00 GiB", "18.8 %", "rank 0", evil} <= cells
    assert [list(row) for row in svg.numbers(pictures["heat"]).rows] == [
        ["1", "1", "2"],
        ["2", "3", "-"],
        [evil, "5", "6"],
    ]
    for picture in pictures.values():
        grid = svg.numbers(picture)
        assert all(len(row) == len(grid.columns) for row in grid.rows)


def test_a_large_map_leaves_cells_out_and_says_so() -> None:
    rows, columns = [str(i) for i in range(200)], [str(i) for i in range(100)]
    values = [[float(i * j) for j in range(100)] for i in range(200)]
    heat = HeatMap("t", "r", "c", rows, columns, [[f"{v:.0f}" for v in row] for row in values], values)
    root = ET.fromstring(svg.draw(heat, "k"))
    assert len(list(root.iter(f"{SVG}rect"))) == 40 * 48
    assert svg.notes(heat) == "40 of 200 rows and 48 of 100 columns are drawn"
    grid = svg.numbers(heat)
    assert (len(grid.rows), len(grid.columns)) == (40, 49)
    assert grid.rows[-1][-1] == "19701"


def test_labels_do_not_lie_upon_each_other() -> None:
    marks = [Mark("x", at, f"mark at {at:g}") for at in (4.0, 4.1, 4.2, 4.3)]
    chart = Chart("t", Axis("x"), Axis("y"), [Series("", [(0.0, 0.0), (10.0, 1.0)])], marks)
    root = ET.fromstring(svg.draw(chart, "k"))
    found = [float(e.attrib["y"]) for e in root.iter(f"{SVG}text") if "mark at" in (e.text or "")]
    sides = [e.attrib.get("text-anchor") for e in root.iter(f"{SVG}text") if "mark at" in (e.text or "")]
    assert len(set(zip(found, sides, strict=True))) == 4


@pytest.mark.parametrize("at", [1.5, 5.0, 9.0])
@pytest.mark.parametrize("level", [0.2, 0.9])
def test_labels_lie_clear_of_other_marks_lines(at: float, level: float) -> None:
    marks = [Mark("y", level, "a level line"), Mark("x", at, "an upright line")]
    chart = Chart("t", Axis("x"), Axis("y", high=1.0), [Series("", [(0.0, 0.0), (10.0, 0.1)])], marks)
    root = ET.fromstring(svg.draw(chart, "k"))
    lines = [e for e in root.iter(f"{SVG}line") if e.attrib.get("class") == "mark"]
    texts = [e for e in root.iter(f"{SVG}text") if (e.text or "").endswith("line")]
    assert (len(lines), len(texts)) == (2, 2)
    for text in texts:
        x, y = float(text.attrib["x"]), float(text.attrib["y"])
        long = 0.6 * 13 * len(text.text or "")
        left = x - long if text.attrib.get("text-anchor") == "end" else x
        for line in lines:
            x1, x2, y1, y2 = (float(line.attrib[n]) for n in ("x1", "x2", "y1", "y2"))
            across = x1 < left + long and left < x2 if x1 < x2 else left < x1 < left + long
            up = y - 10 < y1 < y if y1 == y2 else True
            assert not (across and up), text.text


SIZES = st.one_of(st.just(0.0), st.floats(1e-12, 1e15))


@given(
    st.lists(st.tuples(SIZES, st.one_of(st.none(), SIZES)), max_size=20),
    st.sampled_from(["linear", "log2", "log10"]),
    st.sampled_from(["linear", "log2", "log10"]),
    st.sampled_from(["line", "step", "area", "dots"]),
    st.text(max_size=30),
)
def test_no_data_breaks_a_chart(
    points: list[tuple[float, float | None]], across: str, up: str, kind: str, label: str
) -> None:
    series = [Series(label, points, kind, names=[label])]  # type: ignore[arg-type]
    chart = Chart(label, Axis(label, scale=across), Axis(label, scale=up), series, [Mark("y", 3.0, label)])  # type: ignore[arg-type]
    root = ET.fromstring(svg.draw(chart, "k"))
    for e in root.iter():
        numbers = [v for k, v in e.attrib.items() if k in ("x", "y", "x1", "x2", "y1", "y2", "cx", "cy", "width", "d")]
        assert all(re.fullmatch(r"[MLZ\d. -]+", number) for number in numbers)
    assert len(svg.numbers(chart).rows) >= 1


@given(st.lists(st.tuples(st.text(max_size=8), SIZES), max_size=8), st.one_of(st.none(), SIZES))
def test_no_data_breaks_bars(pieces: list[tuple[str, float]], total: float | None) -> None:
    bars = Bars("t", [Stack("s", [Piece(name, size) for name, size in pieces])], "bytes", total, "limit")
    root = ET.fromstring(svg.draw(bars, "k"))
    assert all(float(r.attrib["width"]) > 0 for r in root.iter(f"{SVG}rect"))
    assert all(float(r.attrib["x"]) + float(r.attrib["width"]) < 660 for r in root.iter(f"{SVG}rect"))


def places_of(root: ET.Element, names: list[str]) -> list[tuple[float, float, float, float]]:
    """(left, top, right, bottom) of the labels of that text."""
    found = []
    for label in root.iter(f"{SVG}text"):
        if label.text in names:
            x, y, long = float(label.attrib["x"]), float(label.attrib["y"]), 0.55 * 13 * len(label.text)
            left = x - long if label.attrib.get("text-anchor") == "end" else x
            found.append((left, y - 10, left + long, y + 2))
    return found


@pytest.mark.parametrize(
    "steps",
    [
        {"1 x a100-sxm4-80gb, awq": (1.9, 45.0), "1 x h100-sxm, awq": (3.5, 16.0), "1 x gb200, fp8_e4m3": (4.54, 6.05),
         "2 x gb200 tp 2, fp8_e4m3": (9.08, 4.43), "4 x gb200 tp 4, fp8_e4m3": (18.16, 3.35),
         "8 x gb200 tp 4 pp 2, awq": (36.3, 2.75)},
        {"1 x l4, fp8_e4m3": (0.8, 17.0), "2 x l4 pp 2, awq": (1.58, 16.6), "3 x t4, fp8_e4m3": (1.61, 12.9),
         "1 x l40s, fp8_e4m3": (1.86, 6.1), "1 x a100-sxm4-80gb, awq": (1.9, 5.4), "1 x h100-sxm, fp8_e4m3": (3.5, 2.1),
         "1 x gb200, fp8_e4m3": (4.5, 1.1), "2 x gb200 pp 2, awq": (9.1, 0.98)},
        {"one": (1.0, 9.0), "two": (2.0, 8.0), "three": (3.0, 7.0)},
    ],
)  # fmt: skip
def test_names_lie_clear_of_each_other_and_of_the_line_between_points(steps: dict[str, tuple[float, float]]) -> None:
    names, front = list(steps), list(steps.values())
    chart = Chart("t", Axis("x", scale="log10"), Axis("y", scale="log10"), [Series("front", front, "step", 1, names)])
    root = ET.fromstring(svg.draw(chart, "k"))
    boxes = places_of(root, names)
    assert len(boxes) == len(names)
    for i, (left, top, right, bottom) in enumerate(boxes):
        for other in boxes[i + 1 :]:
            assert right < other[0] or other[2] < left or bottom < other[1] or other[3] < top
    (path,) = [e.attrib["d"] for e in root.iter(f"{SVG}path") if "line" in e.attrib.get("class", "")]
    corners = [tuple(map(float, pair.split())) for pair in path.removeprefix("M").split("L")]
    for (x0, y0), (x1, y1) in pairwise(corners):
        for left, top, right, bottom in boxes:
            across = max(min(x0, x1), left) < min(max(x0, x1), right) if x0 != x1 else left < x0 < right
            up = max(min(y0, y1), top) < min(max(y0, y1), bottom) if y0 != y1 else top < y0 < bottom
            assert not (across and up)

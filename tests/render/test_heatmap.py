"""Heat maps: every number as text, the ground by its size."""

from __future__ import annotations

from kvplan.render import svg
from kvplan.render.heatmap import FAR, RAMP, SHADES, HeatMap, draw, evenly
from kvplan.render.sweep_table import sweep_map


def picture(values: list[list[float | None]]) -> HeatMap:
    return HeatMap(
        title="t", row_name="rows", column_name="cols", rows=[f"r{i}" for i in range(len(values))],
        columns=[f"c{i}" for i in range(len(values[0]))],
        texts=[["-" if v is None else f"{v:g}" for v in row] for row in values], values=values, note="n",
    )  # fmt: skip


def test_least_and_most_have_the_ends_of_the_ramp() -> None:
    text = draw(picture([[1.0, 2.0], [3.0, None]]), color=True)
    low, high = text.index(f"48;5;{RAMP[0]};"), text.index(f"48;5;{RAMP[-1]};")
    assert low < high
    assert text.count("48;5;") == 3  # a cell without a figure has no ground
    plain = draw(picture([[1.0, 2.0], [3.0, None]]))
    assert "\x1b" not in plain
    assert SHADES[-1] in plain
    assert plain.splitlines()[-1] == "n"
    for number in ("1", "2", "3", "-"):
        assert number in plain
    assert draw(picture([[1.0, 2.0]]), unicode=False).isascii()


def test_values_far_apart_are_told_apart_by_their_logarithm() -> None:
    near = draw(picture([[1.0, 2.0, FAR - 1.0]]), color=True)
    far = draw(picture([[1.0, 100.0, 10_000.0]]), color=True)
    assert f"48;5;{RAMP[len(RAMP) // 2]};" in far
    assert near.count(f"48;5;{RAMP[0]};") == 2


def test_one_value_and_none_at_all_can_be_drawn() -> None:
    assert "5" in draw(picture([[5.0]]), color=True)
    assert "-" in draw(picture([[None]]), color=True)
    assert "0" in draw(picture([[0.0, 0.0]]))


def test_columns_are_left_out_evenly() -> None:
    assert evenly(5, 9) == [0, 1, 2, 3, 4]
    assert evenly(9, 3) == [0, 4, 8]
    assert evenly(9, 1) == [0]
    drawn = draw(picture([[float(i) for i in range(50)]]), width=40)
    assert max(map(len, drawn.splitlines())) <= 40 + len("left out: --format csv has all")
    assert "c0" in drawn
    assert "c49" in drawn
    assert "of 50 columns left out" in drawn


def test_hostile_labels_are_escaped() -> None:
    text = draw(picture([[1.0]])._replace(rows=["\x1b[31mx"], title="a\nb"))
    assert "\x1b" not in text
    assert text.splitlines()[0] == "a\\nb"


def cells(fits: list[bool | None]) -> list[dict[str, object]]:
    return [
        {"tp": i // 2, "len": i % 2, "speed": float(i + 1), "verdict.fits": fit, "refused": None}
        for i, fit in enumerate(fits)
    ]


def test_plans_that_do_not_fit_are_marked_and_counted() -> None:
    made = sweep_map("t", [[0, 1], [0, 1]], ["tp", "len"], "speed", cells([True, False, None, False]))
    assert made.texts == [["1.00", "2.00!"], ["3.00", "4.00!"]]
    assert made.over == [[False, True], [False, True]]
    assert made.note == "!: 2 of 4 plans do not fit"
    drawn = draw(made)
    assert drawn.count("!") == 3
    assert len({len(line) for line in drawn.splitlines()[3:5]}) == 1
    sheet = svg.draw(made, "k")
    assert sheet.count('class="end"') == 2


def test_a_map_of_what_fits_marks_nothing() -> None:
    made = sweep_map("t", [[0, 1], [0, 1]], ["tp", "len"], "verdict.fits", cells([True, False, True, False]))
    assert made.texts == [["yes", "no"], ["yes", "no"]]
    assert (made.note, made.over) == ("", ())
    assert sweep_map("t", [[0, 1], [0, 1]], ["tp", "len"], "speed", cells([True] * 4)).over == ()
    assert 'class="end"' not in svg.draw(made, "k")

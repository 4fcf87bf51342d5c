"""Rows as text: pieces of any shape side by side, nothing padded, nothing lost."""

from __future__ import annotations

import csv
import io
import json

import numpy
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvplan.render.csvout import CsvRows, cell
from kvplan.render.jsonrows import JsonLines, JsonObject
from kvplan.render.rows import assembled, spelled

words = st.text(st.characters(exclude_characters="\0", exclude_categories=("Cs",)), max_size=12)


def columns() -> list[tuple[object, object]]:
    rows, cols = numpy.arange(3).reshape(3, 1), numpy.arange(4).reshape(1, 4)
    return [
        (rows, False),
        (cols * 1.5, False),
        (rows * 1000 + cols, rows == 1),
        ("x, y", cols > 2),
        (rows > 0, False),
        (None, True),
        (7, False),
        (numpy.asarray(["a", 'b"'])[(rows > 1).astype(int)], rows == 0),
    ]


NAMES = [f"n{i}" for i in range(len(columns()))]


def expected(row: int, col: int) -> list[object]:
    return [
        row, col * 1.5, None if row == 1 else row * 1000 + col, None if col > 2 else "x, y", row > 0, None, 7,
        None if row == 0 else 'b"' if row > 1 else "a",
    ]  # fmt: skip


def test_json_lines_hold_every_cell_in_order() -> None:
    writer = JsonLines(NAMES)
    lines = (writer.head() + writer.rows((3, 4), columns()) + writer.tail()).decode().splitlines()
    found = [list(json.loads(line).values()) for line in lines]
    assert found == [expected(row, col) for row in range(3) for col in range(4)]
    assert list(json.loads(lines[0])) == NAMES


def test_a_json_object_of_blocks_is_json() -> None:
    for blocks in (0, 1, 3):
        writer = JsonObject(NAMES, {"schema": "x", "axes": {"a": [1, 2]}})
        text = writer.head() + b"".join(writer.rows((3, 4), columns()) for _ in range(blocks)) + writer.tail()
        whole = json.loads(text)
        assert whole["axes"] == {"a": [1, 2]}
        assert len(whole["rows"]) == 12 * blocks


def test_csv_holds_every_cell_in_order() -> None:
    writer = CsvRows(NAMES)
    text = (writer.head() + writer.rows((3, 4), columns()) + writer.tail()).decode()
    head, *rows = csv.reader(io.StringIO(text))
    assert head == NAMES
    wanted = [["" if v is None else str(v).lower() if isinstance(v, bool) else str(v) for v in expected(r, c)]
              for r in range(3) for c in range(4)]  # fmt: skip
    assert rows == wanted


def test_constants_alone_make_rows_too() -> None:
    assert assembled((2, 2), [b"a", b"b\n"]) == b"ab\n" * 4
    assert assembled((), [b"a\n"]) == b"a\n"
    assert CsvRows(["a"]).rows((), [(1.25, False)]) == b"1.25\n"


@given(st.lists(words, min_size=1, max_size=6))
def test_text_survives_csv_and_json(texts: list[str]) -> None:
    values = numpy.asarray([t + "." for t in texts])  # NumPy drops what ends in NUL; a reason never does
    lines = JsonLines(["t"]).rows((len(texts),), [(values, False)]).decode()
    assert [json.loads(line)["t"] for line in lines.split("\n")[:-1]] == [t + "." for t in texts]
    assert lines.isascii()
    rows = list(csv.reader(io.StringIO(CsvRows(["t"]).rows((len(texts),), [(values, False)]).decode())))
    assert len(rows) == len(texts)
    assert all(len(row) == 1 for row in rows)
    assert all(c.isprintable() for row in rows for c in row[0])


@given(st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=1, max_size=9))
def test_floats_are_written_in_full(values: list[float]) -> None:
    text = CsvRows(["x"]).rows((len(values),), [(numpy.asarray(values), False)]).decode()
    assert [float(line) for line in text.splitlines()] == values


@given(st.lists(st.integers(-(2**62), 2**62), min_size=1, max_size=9))
def test_integers_are_written_in_full(values: list[int]) -> None:
    text = CsvRows(["x"]).rows((len(values),), [(numpy.asarray(values, dtype=numpy.int64), False)]).decode()
    assert [int(line) for line in text.splitlines()] == values


def test_missing_wins_over_any_value() -> None:
    assert spelled(5, True, cell, "-") == b"-"
    assert spelled(None, False, cell, "-") == b"-"
    found = spelled(5, numpy.array([True, False]), cell, "-")
    assert found.tolist() == [b"-", b"5"]


def test_json_refuses_what_it_has_no_word_for() -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        JsonLines(["x"]).rows((1,), [(numpy.asarray([float("nan")]), False)])

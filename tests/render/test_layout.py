from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from kvplan.render.grid import Column, width_of
from kvplan.render.layout import GAP, fit, wrap

WORDS = st.text(st.sampled_from("abc漢 "), max_size=80)


@given(WORDS, st.integers(2, 40))
def test_wrapped_lines_fit_and_lose_nothing(text: str, width: int) -> None:
    lines = wrap(text, width)
    assert all(width_of(line) <= width for line in lines)
    assert "".join(lines).replace(" ", "") == text.replace(" ", "")


def test_wrap_breaks_at_blanks_and_cuts_only_long_words() -> None:
    assert wrap("one two three", 7) == ["one two", "three"]
    assert wrap("abcdefgh ij", 4) == ["abcd", "efgh", "ij"]
    assert wrap("one two three", None) == ["one two three"]


def test_fit_breaks_heads_before_it_squeezes_prose() -> None:
    columns = [Column("id"), Column("bytes per token", right=True), Column("source", wrap=True)]
    rows = [["llama", "128", "a sentence of more than sixteen columns"]]
    assert fit(columns, rows, None) == ([5, 15, 39], [["id"], ["bytes per token"], ["source"]])
    wide = fit(columns, rows, 5 + 5 + 39 + 2 * GAP)
    assert wide == ([5, 5, 39], [["id"], ["bytes", "per", "token"], ["source"]])
    narrow = fit(columns, rows, 5 + 5 + 20 + 2 * GAP)
    assert narrow is not None
    assert narrow[0] == [5, 5, 20]
    assert fit(columns, rows, 20) is None

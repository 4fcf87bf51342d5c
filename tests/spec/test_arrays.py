"""Searches that need no array: the last number that holds, and the most whose cost is at most what there is."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvplan.spec.arrays import last_true, most


@given(st.integers(0, 1000), st.integers(1, 1000), st.data())
def test_the_last_number_that_holds_is_found_by_few_questions(low: int, span: int, data: st.DataObject) -> None:
    edge = data.draw(st.integers(low, low + span - 1))
    asked: list[int] = []

    def holds(number: int) -> bool:
        asked.append(number)
        return number <= edge

    assert last_true(low, low + span, holds) == edge
    assert all(low < number < low + span for number in asked)
    assert len(asked) <= span.bit_length()


@given(st.integers(0, 10**6), st.integers(1, 1000))
def test_the_most_that_can_be_paid_for(have: int, price: int) -> None:
    assert most(lambda count: price * count, have) == have // price


@pytest.mark.parametrize(("limit", "found"), [(7, None), (8, None), (9, 8)])
def test_a_cost_that_never_reaches_what_there_is_has_no_most(limit: int, found: int | None) -> None:
    assert most(lambda count: count, 8, limit=limit) == found

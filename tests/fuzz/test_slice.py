"""A short slice of what `readers` does for hours: every reader answers in one line, whatever the bytes."""

from __future__ import annotations

import pytest
from readers import READERS, Reader, attempt, failures

from kvplan.errors import SpecError

RUNS = {"config": 400, "spec": 60, "manifest": 300, "line": 300}


@pytest.mark.parametrize("name", READERS)
def test_seeds_are_read(name: str) -> None:
    reader = READERS[name]
    for data in reader.seeds()[:20]:
        assert attempt(reader, data) == ""


@pytest.mark.parametrize("name", READERS)
def test_damaged_inputs_are_one_line(name: str) -> None:
    found = [(why, data) for why, data in failures(name, RUNS.get(name, 2_000), seed=1) if not why.startswith("took")]
    assert found == []


@pytest.mark.parametrize(
    ("raised", "said"),
    [
        (ValueError("x"), "ValueError: x"),
        (SpecError("a\nb"), "unprintable"),
        (SpecError("no", hint="\x1b"), "unprintable"),
    ],
)
def test_what_a_reader_may_not_do_is_a_failure(raised: Exception, said: str) -> None:
    def read(data: bytes) -> object:
        raise raised

    assert said in attempt(Reader(list, read), b"")

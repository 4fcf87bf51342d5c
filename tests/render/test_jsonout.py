from __future__ import annotations

import json
import math

import pytest

from kvplan.render import jsonout


def test_payload_comes_back_as_it_went() -> None:
    payload = {
        "schema": "kvplan.x/1",
        "n": 2**60,
        "f": 0.1,
        "none": None,
        "list": [1, "zwei"],
        "name": "é漢\x1b[31m\x7f\x9b",
    }
    text = jsonout.write(payload)
    assert json.loads(text) == payload
    assert text.endswith("}\n")


def test_nothing_but_printable_ascii_and_newlines() -> None:
    text = jsonout.write({"name": "é漢\x00\x1b[31m\x7f\x9b\u2028\n"})
    assert text.isascii()
    assert text.replace("\n", "").isprintable()


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_numbers_that_json_has_no_word_for_are_refused(value: float) -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        jsonout.write({"n": value})

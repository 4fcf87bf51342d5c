"""Strict JSON: what is refused, where it is said to stand, and in what time."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvplan.errors import SpecError
from kvplan.sources.strict_json import MAX_BYTES, decode, parse, read_json

PLAIN = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


@given(PLAIN, st.sampled_from([None, 2]), st.booleans())
def test_reads_what_json_writes(data: object, indent: int | None, ascii_only: bool) -> None:
    assert parse(json.dumps(data, indent=indent, ensure_ascii=ascii_only), "f") == data


@pytest.mark.parametrize(
    ("text", "line", "word"),
    [
        ('{\n"a": 1,\n"a": 2}', 3, "twice (first on line 2)"),
        ('{"a": 1, "\\u0061": 2}', 1, "twice"),
        ('{\n"a": NaN}', 2, "NaN"),
        ('{\n"a": -Infinity}', 2, "-Infinity"),
        ('{\n\n"hidden_size": Infinity}', 3, "hidden_size is infinite"),
        ('{"a": 1e999}', 1, "infinite"),
        ('{\n"hidden_size": 99999999999999999999}', 2, "hidden_size is absurdly large"),
        ('{\n"a": ' + "9" * 5000 + "}", 2, "thousands of digits"),
        ("\n" + "[" * 40, 2, "deeper than 32"),
        ('{"a": ' * 40, 1, "deeper than 32"),
        ('{"a": 1,\n}', 2, "is not JSON"),
        ('{"a": ', 1, "cut short"),
        ('{"a": "b', 1, "cut short"),
        ("{'a': 1}", 1, "is not JSON"),
        ('{"a": 1} {', 1, "is not JSON"),
        ("hello", 1, "is not JSON"),
    ],
)  # fmt: skip
def test_refuses_with_the_line(text: str, line: int, word: str) -> None:
    with pytest.raises(SpecError) as caught:
        parse(text, "f.json")
    assert caught.value.where == f"f.json:{line}"
    assert word in caught.value.message
    assert "\n" not in str(caught.value)


def test_a_clamp_that_is_off_may_be_infinite() -> None:
    """Mamba-2 files say ``[0.0, Infinity]``; the same anywhere else is refused."""
    assert parse('{"time_step_limit": [0.0, Infinity]}', "f")["time_step_limit"][1] == float("inf")


@pytest.mark.parametrize(
    ("data", "word"),
    [(b"\xff\xfe{\0}\0", "UTF-16"), (b'{"a": "\xff"}', "UTF-8"), (b"PK\x03\x04\0\0", "binary"),
     (b"version https://git-lfs.github.com/spec/v1\noid sha256:1\n", "LFS pointer")],
)  # fmt: skip
def test_what_is_no_text(data: bytes, word: str) -> None:
    with pytest.raises(SpecError, match=word):
        decode(data, "f.json")


def test_byte_order_mark_and_crlf() -> None:
    assert parse(decode(b'\xef\xbb\xbf{\r\n"a": 1\r\n}', "f"), "f") == {"a": 1}


@pytest.mark.parametrize(
    "text",
    ["[" + "1," * 2_000_000 + "1]", '{"a":"' + "\\" * 4_000_000, '"' + '\\"' * 2_000_000, '{"a' * 2_000_000,
     "[" * 8_000_000,
     "9" * 8_000_000, '{"a":' + '{"b":[' * 1_000_000],
    ids=["values", "backslashes", "quotes", "strings", "depth", "digits", "mixed"],
)  # fmt: skip
def test_hostile_text_costs_little(text: str) -> None:
    started = time.process_time()
    with pytest.raises(SpecError):
        parse(text, "f")
    assert time.process_time() - started < 60


def test_files_that_are_no_files(tmp_path: Path) -> None:
    loop, pipe, large = tmp_path / "loop.json", tmp_path / "pipe.json", tmp_path / "large.json"
    loop.symlink_to(loop)
    os.mkfifo(pipe)
    with large.open("wb") as file:
        file.truncate(MAX_BYTES + 1)
    for path, word in ((tmp_path, "folder"), (loop, "symbolic links"), (pipe, "regular"), (large, "at most"),
                       (tmp_path / "none.json", "no such file"), ("a\0b.json", "cannot be read")):  # fmt: skip
        with pytest.raises(SpecError, match=word):
            read_json(str(path))


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_no_permission(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text("{}")
    path.chmod(0)
    with pytest.raises(SpecError, match="permission"):
        read_json(str(path))

"""JSON as programs write it, into plain data: strict, and safe with hostile files.

Every text is bounded before it is parsed (bytes, encoding, depth, number of values), and what JSON
allows and a model file has no use for is refused with its line: a key that stands twice, numbers that
no model has, NaN. The result holds mappings, lists, strings, whole numbers, fractions, booleans, null.
"""

from __future__ import annotations

import json
import re
from typing import Any

from kvplan.errors import SpecError, printable
from kvplan.sources import bounded

MAX_BYTES = 8 << 20
"""Of a configuration: the longest in use list thousands of unquantised modules and take some hundred KiB."""
MAX_DEPTH = 32
MAX_VALUES = 400_000
MAX_INT = 2**63
_UNBOUNDED = ("time_step_limit", "time_step_floor", "time_step_max", "mamba_dt_limit")
"""Keys that real files write as ``[0.0, Infinity]`` (Mamba-2): a clamp that is off."""

_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*+(?:"|\\?\Z)|[{}\[\]:,]|[^\s{}\[\]:,"]+', re.DOTALL)
"""A string (one that never ends reaches to the end), a bracket, or a run of anything else."""
_WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_]{2,}")
_WRONG_FILE = "a config.json is JSON text in UTF-8"


def read_json(path: str) -> tuple[Any, str]:
    """(plain data, text) of a JSON file.

    Raises:
        SpecError: the file cannot be read, is too large, is no text, is no JSON, or holds what a model file
            has no use for.
    """
    name = printable(path)
    text = decode(bounded.read_bytes(path, name, limit=MAX_BYTES, what="config.json"), name)
    return parse(text, name), text


def decode(data: bytes, name: str) -> str:
    """The text of a JSON file; errors as in `kvplan.sources.bounded.decode`."""
    return bounded.decode(data, name, hint=_WRONG_FILE)


def parse(text: str, name: str) -> Any:
    """The data of JSON text; `name` stands for the file in errors.

    Raises:
        SpecError: no JSON, nesting deeper than `MAX_DEPTH`, a key that stands twice in one object, NaN or
            an infinite number, a whole number of 2**63 or more.
    """
    if not text.strip():
        raise SpecError("the file is empty", where=name, hint=_WRONG_FILE)
    _bound(text, name)
    try:
        data = json.loads(text, parse_constant=_constant)
    except json.JSONDecodeError as error:
        raise _syntax_error(error, text, name) from None
    except _NoNumber as error:
        where = f"{name}:{_line(text, re.search(rf'(?<![A-Za-z]){error}', text))}"
        raise SpecError(f"{error} is no number to count with", where=where, hint="write a finite number") from None
    except RecursionError:
        raise SpecError(f"nests deeper than {MAX_DEPTH} levels", where=name) from None
    except ValueError:  # the interpreter's own limit on digits
        where = f"{name}:{_line(text, re.search(r'[0-9]{4000}', text))}"
        raise SpecError("a number with thousands of digits", where=where, hint="check the digits") from None
    _check_numbers(data, "", text, name)
    return data


def with_line(error: SpecError, text: str, name: str) -> SpecError:
    """`error` about the file `name`, with the line of the first key that its message names."""
    if error.where != name:
        return error
    for word in _WORD.findall(error.message):
        found = re.search(rf'"{word}"\s*:', text)
        if found:
            error.where = f"{name}:{_line(text, found)}"
            break
    return error


class _NoNumber(Exception):
    """NaN or -Infinity, which Python's parser would accept."""


def _constant(word: str) -> float:
    if word != "Infinity":
        raise _NoNumber(word)
    return float("inf")


def _line(text: str, found: re.Match[str] | int | None) -> int:
    """The line of a match or a position, from 1."""
    at = found if isinstance(found, int) else found.start() if found else 0
    return text.count("\n", 0, at) + 1


def _bound(text: str, name: str) -> None:
    """Refuse before anything is built: depth, number of values, keys that stand twice."""
    open_: list[dict[str, int] | None] = []  # the keys of every open object, None for a list
    last: tuple[str, int] | None = None
    for values, token in enumerate(_TOKEN.finditer(text)):
        word = token.group()
        if word == ":" and last is not None and open_ and (keys := open_[-1]) is not None:
            key, at = last
            if "\\" in key:
                key = _unescaped(key)
            if key in keys:
                first = _line(text, keys[key])
                raise SpecError(
                    f"{printable(key, 60)} is here twice (first on line {first})",
                    where=f"{name}:{_line(text, at)}", hint="keep one of them",
                )  # fmt: skip
            keys[key] = at
        elif word in ("{", "["):
            open_.append({} if word == "{" else None)
            if len(open_) > MAX_DEPTH:
                where = f"{name}:{_line(text, token)}"
                raise SpecError(f"nests deeper than {MAX_DEPTH} levels", where=where, hint="is it the right file?")
        elif word in ("}", "]") and open_:
            open_.pop()
        last = (word, token.start()) if word[0] == '"' else None
        if values > MAX_VALUES:
            raise SpecError(f"holds more than {MAX_VALUES // 4:,} values", where=name, hint="is it the right file?")


def _unescaped(key: str) -> str:
    """A key with its escapes resolved, so that two spellings of one key are told to be the same."""
    try:
        return json.dumps(json.loads(key), ensure_ascii=False)
    except ValueError:
        return key  # the parser will say what is wrong with it


def _syntax_error(error: json.JSONDecodeError, text: str, name: str) -> SpecError:
    """One line with its place, from what the parser says."""
    where = f"{name}:{error.lineno}"
    rest = text[error.pos : error.pos + 2]
    if not text[error.pos :].strip() or "Unterminated string" in error.msg:
        return SpecError("is not JSON: it is cut short", where=where, hint="copy the file again")
    problem = "trailing comma" if "trailing comma" in error.msg.lower() else printable(error.msg, 80)
    problem = problem[:1].lower() + problem[1:]
    hint = "look at the commas and quotes there"
    if rest[:1] == "'":
        hint = "JSON wants double quotes"
    elif rest[:1] in ("#", "/"):
        hint = "JSON has no comments"
    elif rest[:1] in ("}", "]"):
        hint = "take out the comma before it"
    elif text.lstrip()[:1] not in ("{", "["):
        hint = _WRONG_FILE
    return SpecError(f"is not JSON: {problem}", where=where, hint=hint)


def _check_numbers(value: Any, key: str, text: str, name: str) -> None:
    """Refuse numbers that no model has; `key` is the nearest key around `value`."""
    if isinstance(value, dict):
        for inner, entry in value.items():
            _check_numbers(entry, inner, text, name)
    elif isinstance(value, list):
        for entry in value:
            _check_numbers(entry, key, text, name)
    elif isinstance(value, float | int) and not isinstance(value, bool):
        infinite = value in (float("inf"), float("-inf"))
        huge = isinstance(value, int) and abs(value) >= MAX_INT
        if huge or (infinite and key not in _UNBOUNDED):
            line = _line(text, re.search(re.escape(json.dumps(key)) + r"\s*:", text))
            what = f"{printable(key, 60) or 'a number'} is {'infinite' if infinite else 'absurdly large'}"
            raise SpecError(what, where=f"{name}:{line}", hint="check the digits")

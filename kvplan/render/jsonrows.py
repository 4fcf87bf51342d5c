"""Rows as JSON: one object a line (JSON Lines), or all of them in the ``rows`` of one object."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, BinaryIO

from kvplan.render.rows import TextStream, assembled, spelled


def lines(names: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> str:
    """Finished rows, an object a line."""
    return "".join("{" + ", ".join(f"{word(name)}: {word(row[name])}" for name in names) + "}\n" for row in rows)


def stream(file: BinaryIO, names: Sequence[str], types: Sequence[str], head: Mapping[str, Any]) -> TextStream:
    """Rows as they come, an object a line."""
    return TextStream(file, JsonLines(names))


class JsonLines:
    """Turns blocks of columns into JSON Lines.

    Args:
        names: of the columns, the keys of each object.
    """

    _start, _end = b"{", b"}\n"

    def __init__(self, names: Sequence[str]) -> None:
        self.names = names

    def head(self) -> bytes:
        return b""

    def rows(self, shape: Sequence[int], columns: Sequence[tuple[Any, Any]]) -> bytes:
        """Objects of one block: (values, missing) for each name."""
        pieces: list[Any] = [self._start]
        for name, (values, missing) in zip(self.names, columns, strict=True):
            comma = b"" if len(pieces) == 1 else b", "
            pieces += [comma + json.dumps(name).encode() + b": ", spelled(values, missing, word, "null")]
        return assembled(shape, [*pieces, self._end])

    def tail(self) -> bytes:
        return b""


class JsonObject(JsonLines):
    """One JSON object whose ``rows`` come as they are computed.

    Args:
        outer: what else the object holds; its keys come first.
    """

    _start, _end = b",\n    {", b"}"

    def __init__(self, names: Sequence[str], outer: Mapping[str, Any]) -> None:
        super().__init__(names)
        self.outer = outer
        self._begun = False

    def head(self) -> bytes:
        text = json.dumps(self.outer, indent=2, allow_nan=False)
        return (text[: text.rindex("\n}")] + ',\n  "rows": [').replace("\x7f", "\\u007f").encode()

    def rows(self, shape: Sequence[int], columns: Sequence[tuple[Any, Any]]) -> bytes:
        data = super().rows(shape, columns)
        if data and not self._begun:
            self._begun, data = True, data[1:]
        return data

    def tail(self) -> bytes:
        return b"\n  ]\n}\n"


def word(value: Any) -> str:
    """One value as JSON, in ASCII."""
    return json.dumps(value, allow_nan=False).replace("\x7f", "\\u007f")

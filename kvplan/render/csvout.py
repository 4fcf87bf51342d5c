"""CSV: a line of names, then a line a row; no figure is an empty cell, numbers are written in full."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, BinaryIO

from kvplan.errors import printable
from kvplan.render.rows import TextStream, assembled, spelled


def lines(names: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> str:
    """Finished rows as CSV."""
    found = [",".join(map(cell, names))]
    found += [",".join("" if row[name] is None else cell(row[name]) for name in names) for row in rows]
    return "\n".join(found) + "\n"


def stream(file: BinaryIO, names: Sequence[str], types: Sequence[str], head: Mapping[str, Any]) -> TextStream:
    """Rows as they come."""
    return TextStream(file, CsvRows(names))


class CsvRows:
    """Turns blocks of columns into CSV (RFC 4180, with bare newlines).

    Args:
        names: of the columns.
    """

    def __init__(self, names: Sequence[str]) -> None:
        self.names = names

    def head(self) -> bytes:
        return (",".join(map(cell, self.names)) + "\n").encode()

    def rows(self, shape: Sequence[int], columns: Sequence[tuple[Any, Any]]) -> bytes:
        """Lines of one block: (values, missing) for each name."""
        pieces: list[Any] = []
        for values, missing in columns:
            pieces += [spelled(values, missing, cell, ""), b","]
        pieces[-1] = b"\n"
        return assembled(shape, pieces)

    def tail(self) -> bytes:
        return b""


def cell(value: Any) -> str:
    """One value; text is quoted where it has to be, and carries no control characters."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if not isinstance(value, str):
        return repr(value)
    text = printable(value, len(value))
    return '"' + text.replace('"', '""') + '"' if any(c in text for c in ',"') else text

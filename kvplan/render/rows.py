"""Rows of figures as text, a block at a time and fast: the part that CSV and JSON lines share.

A row is made of pieces: constants, and arrays of strings that broadcast to the shape of the block. Only as many
values are spelled as an array holds, so a figure that depends on one of two axes is spelled once a value. The
pieces are laid side by side in a matrix of bytes, a row of it for each row, and what pads them is squeezed out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any, BinaryIO, Protocol

CELLS = 1 << 19
"""Of a block where the format is best written in large ones."""

Piece = bytes | Any
"""A constant, or an array of byte strings without NULs."""

_PAD = 0


def spelled(values: Any, missing: Any, spell: Callable[[Any], str], blank: str) -> Piece:
    """One column as text.

    Args:
        values: a plain value, or an array of numbers, bools or strings.
        missing: where there is no value: a bool, or an array of them.
        spell: the text of a plain value.
        blank: what stands where there is none.
    """
    if missing is True or values is None:
        return blank.encode()
    if not hasattr(values, "dtype"):
        text: Any = spell(values).encode()
    else:
        text = _spelled_array(values, spell)
    if missing is False:
        return text
    import numpy

    return numpy.where(missing, blank.encode(), text)


def _spelled_array(values: Any, spell: Callable[[Any], str]) -> Any:
    import numpy

    if values.dtype == bool:
        return numpy.where(values, spell(True).encode(), spell(False).encode())
    texts = [spell(value).encode() for value in values.ravel().tolist()]
    return numpy.array(texts).reshape(values.shape)


def assembled(shape: Sequence[int], pieces: Sequence[Piece]) -> bytes:
    """The pieces of every row one after another, rows in order."""
    pieces = _merged(pieces)
    if all(isinstance(piece, bytes) for piece in pieces):
        return b"".join(pieces) * prod(shape)
    import numpy

    widths = [len(piece) if isinstance(piece, bytes) else piece.dtype.itemsize for piece in pieces]
    matrix = numpy.empty((*shape, sum(widths)), numpy.uint8)
    at = 0
    for piece, width in zip(pieces, widths, strict=True):
        if isinstance(piece, bytes):
            matrix[..., at : at + width] = numpy.frombuffer(piece, numpy.uint8)
        else:
            plain = numpy.ascontiguousarray(piece)
            matrix[..., at : at + width] = plain.view(numpy.uint8).reshape((*piece.shape, width))
        at += width
    flat = matrix.ravel()
    return bytes(flat[flat != _PAD].tobytes())


def _merged(pieces: Sequence[Piece]) -> list[Piece]:
    """Neighbouring constants as one."""
    found: list[Piece] = []
    for piece in pieces:
        if isinstance(piece, bytes) and found and isinstance(found[-1], bytes):
            found[-1] += piece
        else:
            found.append(piece)
    return found


class Text(Protocol):
    """A format of rows as text: what comes first, the rows of a block, and what comes last."""

    def head(self) -> bytes: ...

    def rows(self, shape: Sequence[int], columns: Sequence[tuple[Any, Any]]) -> bytes: ...

    def tail(self) -> bytes: ...


class TextStream:
    """Rows written block by block: what the `stream` of a text format returns."""

    cells: int | None = None
    """Cells of a block; None: as many as the sender likes."""

    def __init__(self, file: BinaryIO, text: Text) -> None:
        self._file, self._text = file, text
        file.write(text.head())

    def write(self, shape: Sequence[int], columns: Sequence[tuple[Any, Any]]) -> None:
        """One block: (values, missing) for each name."""
        self._file.write(self._text.rows(shape, columns))

    def close(self) -> None:
        """Write what stands at the end of the file."""
        self._file.write(self._text.tail())

"""Text out of a file line by line, unpacked where it is gzip, without holding the whole."""

from __future__ import annotations

import gzip
import io
import json
import os
import zlib
from collections.abc import Iterator
from typing import Any

from kvplan.errors import InputError, printable

_GZIP = b"\x1f\x8b"
MAX_LINE = 64 << 20
"""Characters of a line beyond which a file is no trace."""
_CHUNK = 1 << 20


class Source:
    """A file that is read as text."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.shown = printable(path)

    def open(self) -> io.TextIOBase:
        """The text; undecodable bytes are replaced, and then fail to parse where they stand.

        Raises:
            InputError: there is no such file, or it is a pipe, which cannot be read twice.
        """
        if os.path.exists(self.path) and not os.path.isfile(self.path) and not os.path.isdir(self.path):
            raise InputError(
                f"{self.shown} is no file but a pipe or a device, and a trace is read more than once", where="--trace",
                hint="save it to a file first, gzip too",
            )  # fmt: skip
        try:
            with open(self.path, "rb") as probe:
                packed = probe.read(2) == _GZIP
            if packed:
                return gzip.open(self.path, "rt", encoding="utf-8-sig", errors="replace", newline="")
            return open(self.path, encoding="utf-8-sig", errors="replace", newline="")
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or str(error)
            raise InputError(
                f"cannot read {self.shown}: {reason}", where="--trace", hint="give a trace: JSON lines or CSV, gzip too"
            ) from None

    def head(self) -> str:
        """The beginning of the text."""
        with self._guarded() as text:
            return str(text.read(1 << 16))

    def lines(self) -> Iterator[tuple[int, str]]:
        """(number, text) of every line that is not blank."""
        with self._guarded() as text:
            number = 0
            while line := text.readline(MAX_LINE):
                number += 1
                if len(line) >= MAX_LINE:
                    raise InputError(f"line {number} never ends", where=self.shown, hint="is it a trace?")
                if line.strip():
                    yield number, line

    def objects(self) -> Iterator[Any]:
        """The elements of a JSON array, one after the other.

        Raises:
            InputError: it is no JSON array.
        """
        decoder = json.JSONDecoder()
        with self._guarded() as text:
            held, ended = str(text.read(_CHUNK)), False
            start = held.find("[") + 1
            while True:
                while start < len(held) and held[start] in " \t\r\n,":
                    start += 1
                if held[start : start + 1] == "]":
                    return
                try:
                    found, start = decoder.raw_decode(held, start)
                except ValueError:
                    more = "" if ended else str(text.read(_CHUNK))
                    ended = not more
                    if ended or len(held) - start > MAX_LINE:
                        raise InputError("is no whole JSON array", where=self.shown, hint="was it cut off?") from None
                    held, start = held[start:] + more, 0
                    continue
                except RecursionError:
                    raise InputError("nests too deeply", where=self.shown, hint="is it a trace?") from None
                yield found

    def _guarded(self) -> _Guarded:
        return _Guarded(self)


class _Guarded:
    """The open text; what goes wrong while it is read is told in one line."""

    def __init__(self, source: Source) -> None:
        self.source = source

    def __enter__(self) -> io.TextIOBase:
        self.text = self.source.open()
        return self.text

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        self.text.close()
        if isinstance(error, EOFError | zlib.error | gzip.BadGzipFile | IsADirectoryError | OSError):
            raise InputError(
                f"cannot read on: {error}", where=self.source.shown, hint="was it cut off? unpack it with gunzip"
            ) from None

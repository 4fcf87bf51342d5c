"""Text out of a file line by line, unpacked where it is gzip, without holding the whole."""

from __future__ import annotations

import codecs
import gzip
import io
import json
import os
import re
import zlib
from collections.abc import Iterator
from typing import Any

from kvplan.errors import InputError, printable

_GZIP = b"\x1f\x8b"
MAX_LINE = 64 << 20
"""Characters of a line beyond which a file is no trace."""
_CHUNK = 1 << 20
_NEAR = 16
"""Characters before the end of what is held, in which an error may come from the cut."""
_DECODER = json.JSONDecoder()
_BETWEEN = re.compile(r"[ \t\r\n,]*")
_NEXT = re.compile(r",\s*(?=\{)")


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
                f"{self.shown} is no file but a pipe or a device, and a trace is read more than once",
                where="the trace", hint="save it to a file first, gzip too",
            )  # fmt: skip
        try:
            with open(self.path, "rb") as probe:
                mark = probe.read(2)
            if mark in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE):
                return open(self.path, encoding="utf-16", errors="replace", newline="")
            if mark == _GZIP:
                return gzip.open(self.path, "rt", encoding="utf-8-sig", errors="replace", newline="")
            return open(self.path, encoding="utf-8-sig", errors="replace", newline="")
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or str(error)
            raise InputError(
                f"cannot read {self.shown}: {reason}", where="the trace",
                hint="give a file: JSON lines or CSV, gzip too",
            ) from None  # fmt: skip

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

    def objects(self, names: frozenset[str]) -> Iterator[Any]:
        """The elements of a JSON array, one after the other; a ``ValueError`` in place of one that is broken.

        Args:
            names: an object that has one of these is an element, by which the one behind a broken one is found.

        Raises:
            InputError: it nests too deeply.
        """
        with self._guarded() as text:
            held = _Held(text, names)
            try:
                found = None
                while held.more():
                    found = held.element()
                    yield found
                if not held.text.startswith("]", held.at) and not isinstance(found, ValueError):
                    yield ValueError("is missing: the array is cut off")
            except RecursionError:
                raise InputError("nests too deeply", where=self.shown, hint="is it a trace?") from None

    def _guarded(self) -> _Guarded:
        return _Guarded(self)


class _Held:
    """The part of a JSON array that is held, and where in it the next element begins."""

    def __init__(self, source: io.TextIOBase, names: frozenset[str]) -> None:
        self.source, self.names = source, names
        self.text = str(source.read(_CHUNK))
        self.at = self.text.find("[") + 1

    def read(self) -> bool:
        """Hold more, and nothing of what is behind; False: the text is at its end, or an element never ends."""
        more = "" if len(self.text) - self.at > MAX_LINE else str(self.source.read(_CHUNK))
        self.text, self.at = self.text[self.at :] + more, 0
        return bool(more)

    def more(self) -> bool:
        """Whether there is another element; goes to where it begins."""
        while True:
            match = _BETWEEN.match(self.text, self.at)
            self.at = match.end() if match else self.at
            if self.at < len(self.text):
                return self.text[self.at] != "]"
            if not self.read():
                return False

    def element(self) -> Any:
        """The next element, or a ``ValueError`` that says why there is none."""
        while True:
            try:
                found, self.at = _DECODER.raw_decode(self.text, self.at)
                return found
            except json.JSONDecodeError as error:
                cut = self._unfinished(error)
                if not (cut and self.read()):
                    whole = self._skip() or self.text.rstrip().endswith("]")
                    return ValueError("is not JSON" if whole else "is cut off")

    def _unfinished(self, error: json.JSONDecodeError) -> bool:
        """Whether more text might put an error right."""
        return error.msg.startswith("Unterminated string") or error.pos >= len(self.text) - _NEAR

    def _skip(self) -> bool:
        """Go to the element behind a broken one; False, and to the end, where there is none."""
        self.at += 1
        while True:
            for match in _NEXT.finditer(self.text, self.at):
                try:
                    found, _ = _DECODER.raw_decode(self.text, match.end())
                except json.JSONDecodeError as error:
                    if self._unfinished(error):
                        break
                    continue
                if isinstance(found, dict) and not self.names.isdisjoint(found):
                    self.at = match.end()
                    return True
            if not self.read():
                self.at = len(self.text)
                return False


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

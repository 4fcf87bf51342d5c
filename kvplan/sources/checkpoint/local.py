"""The files of a model in a folder of this machine."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from kvplan.errors import SpecError, printable
from kvplan.sources.bounded import read_bytes
from kvplan.sources.checkpoint.index import MAX_SHARDS
from kvplan.sources.checkpoint.safetensors import Source

_SET_APART = ("consolidated", "adapter_", "optimizer", "._")
"""Beginnings of file names that are other copies of the weights, or none."""


class Files(Protocol):
    """Where the files of one model lie: a folder, or a repository of the hub."""

    def label(self, name: str) -> str:
        """How errors call a file."""

    def read(self, name: str, limit: int) -> bytes | None:
        """A whole file of at most `limit` bytes; None: there is none."""

    def missing(self, names: list[str]) -> list[str]:
        """Those of `names` that are not there (or only as a pointer to a large file)."""

    def unindexed(self) -> list[str]:
        """The safetensors files that engines load where there is neither an index nor the usual single file."""

    def headers(self, names: list[str]) -> Iterator[tuple[str, Source]]:
        """Every one of these files, opened in turn."""


class _Open:
    """A file that is open on a descriptor."""

    def __init__(self, handle: int, size: int) -> None:
        self.handle = handle
        self.size = size

    def read(self, start: int, length: int) -> bytes:
        os.lseek(self.handle, start, os.SEEK_SET)
        whole = os.read(self.handle, length)
        if len(whole) == length:  # no second copy of it
            return whole
        found = bytearray(whole)
        while len(found) < length and (part := os.read(self.handle, length - len(found))):
            found += part
        return bytes(found)


class Folder:
    """`Files` in a folder. Names that lead out of it are refused, but for the blobs of the hub's own cache."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.real = os.path.realpath(path)

    def label(self, name: str) -> str:
        return printable(os.path.join(self.path, name))

    def read(self, name: str, limit: int) -> bytes | None:
        path = os.path.join(self.path, name)
        if not os.path.lexists(path):
            return None
        return read_bytes(path, printable(path), limit=limit, what=name)

    def missing(self, names: list[str]) -> list[str]:
        return [name for name in names if not self._is_there(name)]

    def _is_there(self, name: str) -> bool:
        path = os.path.join(self.path, name)
        try:
            size = os.stat(path).st_size
        except OSError as error:
            if error.errno == errno.ELOOP:
                raise SpecError(
                    "is a link that leads round in a circle", where=self.label(name), hint="copy the file there"
                ) from None
            return False  # gone, or a dangling link
        except ValueError:
            return False
        if size > 1024:
            return True
        with self._opened(name) as source:
            return not source.read(0, 40).startswith(b"version https://git-lfs")

    def unindexed(self) -> list[str]:
        found = [n for n in os.listdir(self.path) if n.endswith(".safetensors") and not n.startswith(_SET_APART)]
        if len(found) > MAX_SHARDS:
            raise SpecError(
                f"more than {MAX_SHARDS:,} files", where=printable(self.path), hint="is it the right folder?"
            )
        return sorted(found)

    def headers(self, names: list[str]) -> Iterator[tuple[str, Source]]:
        for name in names:
            with self._opened(name) as source:
                yield name, source

    @contextmanager
    def _opened(self, name: str) -> Iterator[Source]:
        path = os.path.join(self.path, name)
        self._refuse_outside(path)
        try:
            handle = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
        except (OSError, ValueError) as error:
            reason = (getattr(error, "strerror", None) or "is not a file name").lower()
            raise SpecError(
                f"cannot be read: {reason}", where=self.label(name), hint="check the path and its permissions"
            ) from None
        try:
            status = os.fstat(handle)
            if not stat.S_ISREG(status.st_mode):
                raise SpecError("is not a regular file", where=self.label(name), hint="is it the right folder?")
            yield _Open(handle, status.st_size)
        finally:
            os.close(handle)

    def _refuse_outside(self, path: str) -> None:
        """Refuse a link to a file elsewhere; the hub's cache keeps files in ``blobs`` beside ``snapshots``."""
        name = os.path.basename(path)
        if not os.path.islink(path) and os.path.join(self.path, name) == path:
            return  # a file of the folder itself
        target = os.path.realpath(path)
        allowed = [self.real]
        if os.path.basename(os.path.dirname(self.real)) == "snapshots":
            allowed.append(os.path.join(os.path.dirname(os.path.dirname(self.real)), "blobs"))
        if not any(target.startswith(base.rstrip(os.sep) + os.sep) for base in allowed):
            raise SpecError(
                "is a link out of its folder", where=printable(path), hint="copy the file there if you trust it"
            )

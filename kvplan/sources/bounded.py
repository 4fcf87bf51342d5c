"""Files that people name, read within bounds: regular ones alone, of so many bytes, as UTF-8 text.

A folder, a device, a pipe without a writer and a file without an end are refused before they cost time or memory.
"""

from __future__ import annotations

import os
import stat

from kvplan.errors import KvplanError, SpecError


def read_bytes(
    path: str | os.PathLike[str], name: str, *, limit: int, what: str, error: type[KvplanError] = SpecError
) -> bytes:
    """The bytes of a regular file of at most `limit` bytes.

    Args:
        name: the file in errors.
        what: such a file, as in "name a YAML file".
        error: what is raised.

    Raises:
        KvplanError: no such file, a folder or a device, no permission, or too large.
    """
    try:
        handle = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
        try:
            status = os.fstat(handle)
            if stat.S_ISDIR(status.st_mode):
                raise error("is a folder", where=name, hint=f"name the {what} in it")
            if not stat.S_ISREG(status.st_mode):
                raise error("is not a regular file", where=name, hint=f"name a {what}")
            data = os.read(handle, min(status.st_size, limit) + 1)
            if len(data) != status.st_size:  # a file that grows, or one without a size
                more = bytearray(data)
                while len(more) <= limit and (part := os.read(handle, limit + 1 - len(more))):
                    more += part
                data = bytes(more)
        finally:
            os.close(handle)
    except (OSError, ValueError) as wrong:
        reason = (getattr(wrong, "strerror", None) or "is not a file name").lower()
        raise error(f"cannot be read: {reason}", where=name, hint="check the path and its permissions") from None
    if len(data) > limit:
        size = f"{status.st_size:,}" if status.st_size > limit else f"over {limit:,}"
        raise error(f"is {size} bytes; a {what} has at most {limit:,}", where=name, hint="is it the right file?")
    return data


def decode(data: bytes, name: str, *, hint: str, error: type[KvplanError] = SpecError) -> str:
    """UTF-8 text, a byte order mark cut off; `name` stands for the file in errors.

    Args:
        hint: what such a file is, for one that is no text.
        error: what is raised.

    Raises:
        KvplanError: another encoding, no text at all, or a pointer to a file that was not fetched.
    """
    if data.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise error("is UTF-16 text", where=name, hint="save it as UTF-8")
    if data.startswith(b"version https://git-lfs"):
        raise error("is a Git LFS pointer, not the file", where=name, hint="fetch it with git lfs pull")
    if b"\0" in data:
        raise error("is a binary file", where=name, hint=hint)
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as wrong:
        line = data.count(b"\n", 0, wrong.start) + 1
        raise error("is not UTF-8 text", where=f"{name}:{line}", hint="save it as UTF-8") from None

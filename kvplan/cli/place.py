"""Files that are written whole or not at all, and the places where none can be."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import BinaryIO

from kvplan.errors import InputError, printable


def check_place(path: str, *, where: str = "-o") -> None:
    """Refuse a place where no file can be, before minutes of work are lost.

    Raises:
        InputError: a folder, in no folder, or in one that may not be written.
    """
    try:
        target = os.path.realpath(path)
        folder = os.path.dirname(target)
        if os.path.isdir(target):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        if not os.path.isdir(folder):
            number = errno.ENOTDIR if os.path.exists(folder) else errno.ENOENT
            raise OSError(number, os.strerror(number))
        if not os.access(folder if os.path.isfile(target) or not os.path.exists(target) else target, os.W_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    except (OSError, ValueError) as error:
        raise _unwritable(path, error, where) from None


def _unwritable(path: str, error: Exception, where: str = "-o") -> InputError:
    reason = getattr(error, "strerror", None) or str(error)
    return InputError(f"cannot write {printable(path)}: {reason}", where=where, hint="name a file that can be written")


def write_file(path: str, text: str) -> None:
    """Write a text file (see `replacing`).

    Raises:
        InputError: it cannot be written; nothing has changed then.
    """
    with replacing(path) as file:
        file.write(text.encode("utf-8", "backslashreplace"))


@contextmanager
def replacing(path: str) -> Iterator[BinaryIO]:
    """A new file beside the one at `path`, which it replaces at the end, so that no file is seen half done.

    Links are followed; what is no regular file (a pipe, a device) is written as it is. An existing file
    keeps its permissions.

    Raises:
        InputError: it cannot be written; nothing has changed then.
    """
    try:
        target = os.path.realpath(path)
        new = f"{target}.{os.getpid()}.new"
        if os.path.exists(target) and not os.path.isfile(target):
            with open(target, "wb") as stream:  # refuses a folder
                yield stream
            return
        handle = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
        try:
            with _swept_away(new), open(handle, "wb") as file:
                yield file
            if os.path.exists(target):
                os.chmod(new, os.stat(target).st_mode & 0o7777)
            os.replace(new, target)
        except BaseException:
            with suppress(FileNotFoundError):  # an interrupt may come when it is in place already
                os.unlink(new)
            raise
    except (OSError, ValueError) as error:
        raise _unwritable(path, error) from None


@contextmanager
def _swept_away(path: str) -> Iterator[None]:
    """A file that is not left behind where the process is told to end, which it then does as ever."""
    import signal

    owner = os.getpid()

    def end(number: int, _: object) -> None:
        if os.getpid() == owner:  # a fork of this process inherits the handler, not the file
            with suppress(OSError):
                os.unlink(path)
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)

    before = {}
    for name in ("SIGTERM", "SIGHUP"):
        number = getattr(signal, name, None)  # Windows has no SIGHUP
        with suppress(ValueError):  # not in the main thread
            if number is not None and signal.getsignal(number) == signal.SIG_DFL:
                before[number] = signal.signal(number, end)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)

"""torch and NVML, imported on use; what is missing is said in one line with the command that installs it."""

from __future__ import annotations

import contextlib
import signal
import sys
from collections.abc import Iterator
from typing import Any

from kvplan.errors import InputError, printable

INSTALL = "pip install 'kvcache-plan[probe]'"


class MissingExtraError(InputError):
    """A library of the extra ``probe`` is not installed, or its driver not there."""


def torch(where: str | None = None) -> Any:
    """The torch module.

    Args:
        where: the flag or verb that needs it, put in front of the message.

    Raises:
        MissingExtraError: not installed, or it cannot be loaded.
    """
    try:
        with contextlib.nullcontext() if "torch" in sys.modules else _uninterrupted():
            import torch as module
    except (ImportError, OSError) as error:  # OSError: one of its libraries, which it opens itself
        raise _missing("torch", error, where) from None
    if not hasattr(module, "version"):  # a folder of that name, or what an installation that was broken off left
        found = printable(str(next(iter(getattr(module, "__path__", ())), "its folder")))
        raise MissingExtraError(f"what is found as torch in {found} is none", where=where, hint=INSTALL)
    return module


@contextlib.contextmanager
def _uninterrupted() -> Iterator[None]:
    """Ctrl-C waits: while torch's libraries are loaded it would raise in their C++, which ends a process by abort()."""
    mask = getattr(signal, "pthread_sigmask", None)  # not on Windows
    if mask is None:
        yield
        return
    before = mask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        mask(signal.SIG_SETMASK, before)


def pynvml(where: str | None = None) -> Any:
    """The pynvml module (of ``nvidia-ml-py``), not yet initialised.

    Raises:
        MissingExtraError: not installed.
    """
    try:
        import pynvml as module
    except ImportError as error:
        raise _missing("nvidia-ml-py", error, where) from None
    return module


def _missing(package: str, error: Exception, where: str | None) -> MissingExtraError:
    if isinstance(error, ModuleNotFoundError) and error.name in ("torch", "pynvml"):
        return MissingExtraError(f"{package} is not installed", where=where, hint=INSTALL)
    return MissingExtraError(f"{package} cannot be loaded: {error}".split("\n")[0], where=where, hint=INSTALL)

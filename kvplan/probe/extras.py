"""torch and NVML, imported on use; what is missing is said in one line with the command that installs it."""

from __future__ import annotations

import contextlib
import signal
import sys
from collections.abc import Iterator
from typing import Any

from kvplan.errors import InputError

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
    except ImportError as error:
        raise _missing("torch", error, where) from None
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


def _missing(package: str, error: ImportError, where: str | None) -> MissingExtraError:
    if isinstance(error, ModuleNotFoundError) and error.name in ("torch", "pynvml"):
        return MissingExtraError(f"{package} is not installed", where=where, hint=INSTALL)
    return MissingExtraError(f"{package} cannot be loaded: {error}".split("\n")[0], where=where, hint=INSTALL)

"""The entry point: runs a command line, and turns whatever goes wrong into one line and a status.

0 answered; 1 answered, and it does not fit; 2 could not answer; 130 interrupted.
"""

from __future__ import annotations

import atexit
import errno
import gc
import os
import sys
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from kvplan.errors import InputError, KvplanError

if TYPE_CHECKING:
    import typer

_SHOWS = frozenset({"--help", "-h", "--version"})
"""Words that print a text whatever stands beside them."""


def main(args: Sequence[str] | None = None) -> int:
    """Run one command line and return its exit status; errors are on stderr by then.

    Args:
        args: the words after ``kvplan``; None: those of this process.
    """
    words = list(sys.argv[1:] if args is None else args)
    # One command is one short life: what it imports stays, and looking through all of it again and
    # again for garbage is a tenth of the start-up time. A long run still collects, less often.
    gc.set_threshold(100_000, 20, 20)
    import typer

    from kvplan.cli.app import app
    from kvplan.cli.output import mute_stdout, report

    try:
        if sys.stdout is None and (not words or not _SHOWS.isdisjoint(words)):
            raise InputError("standard output is closed", hint="leave it open")  # typer would print to nobody
        status = typer.main.get_command(app).main(args=words, prog_name="kvplan", standalone_mode=False)
        return status if isinstance(status, int) else 0
    except (KeyboardInterrupt, typer.Abort):
        return 130
    except BrokenPipeError:
        mute_stdout()
        return 0
    except Exception as error:
        if "--debug" in words:
            import traceback

            traceback.print_exc()
        status, message, hint = _described(error)
        report(message, hint)
        return status


def entry() -> NoReturn:
    """The command ``kvplan``: `main`, and the process ends with its status.

    It ends at once, after exit handlers and the last flush: taking down an interpreter object by object
    costs more than one bare ``python -c pass``, and the system does it for nothing.
    """
    try:
        status = main()
    except KeyboardInterrupt:  # while the command line itself was being loaded
        status = 130
    if threading.active_count() > 1 or sys.gettrace() is not None or sys.getprofile() is not None:
        sys.exit(status)  # somebody else is still at work, or is looking on
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        try:
            if stream is not None:
                stream.flush()
        except (OSError, ValueError):
            continue  # whoever read it is gone; `main` has said what there was to say
    os._exit(status)


def _described(error: Exception) -> tuple[int, str, str | None]:
    """(exit status, message, hint) of whatever a command raised."""
    from typer import TyperException

    if isinstance(error, KvplanError):
        return error.exit_status, str(error), error.hint
    if isinstance(error, TyperException):
        return 2, *_usage(error)
    if isinstance(error, RecursionError):
        return 2, "the input nests too deeply", "flatten it"
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EIO, errno.EBADF):
        return 2, f"cannot write to standard output: {error.strerror}", "write to a file with -o FILE"
    if isinstance(error, MemoryError):
        return 2, "out of memory", "give it a smaller input"
    return 2, f"internal error: {type(error).__name__}: {error}", "this is a bug in kvplan; --debug shows where"


def _usage(error: typer.TyperException) -> tuple[str, str]:
    """A usage error of the parser in kvplan's words: (message, hint)."""
    context: Any = getattr(error, "ctx", None)
    param: Any = getattr(error, "param", None)
    path = context.command_path if context is not None else "kvplan"
    hint = f"`{path} --help` shows what it takes"
    name = ""
    if param is not None:
        long = [opt for opt in param.opts if opt.startswith("--")]
        name = long[0] if long else param.opts[0] if param.param_type_name == "option" else param.human_readable_name
    text = getattr(error, "message", "") or ""
    if param is not None and text:
        return f"{name}: {text.rstrip('.')}", hint
    if param is not None:
        return f"{name} is missing", hint
    text = error.format_message().rstrip(".")
    return (text[:1].lower() + text[1:]) or "the command line cannot be read", hint

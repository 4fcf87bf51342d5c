"""How far a long job is, on a terminal's stderr: one line that is rewritten, and gone at the end."""

from __future__ import annotations

import sys
import time
from types import TracebackType

FIRST_SECONDS, NEXT_SECONDS = 0.5, 0.2
CLEAR = "\r\033[K"


class Progress:
    """A context in which `step` says how much more is done.

    Args:
        total: what there is to do.
        what: in the plural, ``plans``.
        quiet: never say anything; neither does a stderr that is no terminal.
    """

    def __init__(self, total: int, what: str, *, quiet: bool = False) -> None:
        self.total = total
        self.what = what
        self.done = 0
        self.shown = False
        stream = sys.stderr
        self.silent = quiet or stream is None or not stream.isatty()
        self.next = time.monotonic() + FIRST_SECONDS

    def step(self, count: int) -> None:
        """`count` more are done."""
        self.done += count
        if self.silent or time.monotonic() < self.next:
            return
        self.next = time.monotonic() + NEXT_SECONDS
        share = 100 * self.done // max(1, self.total)
        self._say(f"{CLEAR}{self.done:,} of {self.total:,} {self.what}, {share} %")
        self.shown = True

    def _say(self, text: str) -> None:
        self.silent = self.silent or not put(text)

    def __enter__(self) -> Progress:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.shown:
            self._say(CLEAR)


def put(text: str) -> bool:
    """Print on stderr without ending the line; False where nobody reads it any more."""
    try:
        print(text, end="", file=sys.stderr, flush=True)
    except (OSError, ValueError):
        return False
    return True

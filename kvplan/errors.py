"""Every error kvplan raises on purpose.

    KvplanError            could not answer: one line, one hint, exit status 2
    +-- InputError         a flag, a size or a setting that cannot be read
    +-- UnknownNameError   a name nobody knows, with the nearest ones that are known
    +-- SpecError          a model or GPU file that is not what it should be (says file and line)
    +-- UnsupportedError   understood, and not possible under this engine (says which engine could)

A deployment that is legal and does not fit is no error: it is a full report and exit status 1.
"""

from __future__ import annotations


class KvplanError(Exception):
    """What went wrong in one line, where, and what to type next.

    Args:
        message: what is wrong, without a trailing period.
        hint: what to type next; shown on a line of its own.
        where: a flag (``--gpu``) or ``file:line``; put in front of the message.
    """

    exit_status = 2

    def __init__(self, message: str, *, hint: str | None = None, where: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.where = where

    def __str__(self) -> str:
        return f"{self.where}: {self.message}" if self.where else self.message


class InputError(KvplanError):
    """A flag, size or setting that cannot be read or makes no sense."""


class UnsupportedError(KvplanError):
    """Settings that are understood and that no memory budget makes legal."""


class SpecError(KvplanError):
    """A model or GPU description that cannot be used."""


class UnknownNameError(KvplanError):
    """A name that is not known; lists the nearest known ones.

    Args:
        what: the kind of thing that was asked for (``model``, ``GPU``, ``format``, ``engine``).
        name: what was typed.
        known: every name that would have been accepted.
        more: a sentence appended to the hint (another way out).
    """

    def __init__(self, what: str, name: str, known: list[str], *, where: str | None = None, more: str = "") -> None:
        near = nearest(name, known)
        hint = f"did you mean {', '.join(near)}?" if near else ""
        super().__init__(f"unknown {what} '{printable(name)}'", hint=" ".join(filter(None, (hint, more))), where=where)
        self.near = near


def nearest(name: str, known: list[str], limit: int = 5) -> list[str]:
    """The known names closest to `name`, best first; empty where nothing is close."""
    import difflib  # only on the error path

    lower = {k.lower(): k for k in known}
    key = name.lower()
    hits = difflib.get_close_matches(key, list(lower), n=limit, cutoff=0.6)
    hits += [k for k in lower if key and (key in k) and k not in hits]
    return [lower[h] for h in hits[:limit]]


def printable(text: str, limit: int = 200) -> str:
    """`text` with control characters shown as escapes, so that no input reaches the terminal raw."""
    safe = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text[:limit])
    return safe + ("..." if len(text) > limit else "")

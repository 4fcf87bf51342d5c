"""Words on their way out of a file, with a note in place of every value that the file does not give.

Such a *raw* string is plain text in which a note stands, in hexadecimal digits, between three private characters: it
survives being split, joined and put into further strings. `word` makes a `Word` of it at the end.
"""

from __future__ import annotations

import re

from kvplan.engines.command_line import Word
from kvplan.errors import InputError, printable

_OPEN, _MIDDLE, _CLOSE = "\ue000", "\ue001", "\ue002"
_NOTE = re.compile(f"{_OPEN}([0-9a-f]*){_MIDDLE}([0-9a-f]*){_CLOSE}")
_PRIVATE = dict.fromkeys(map(ord, (_OPEN, _MIDDLE, _CLOSE)))
LONGEST = 200_000
"""Characters that a value may grow to."""


def clean(text: str) -> str:
    """Text from outside, without the private characters."""
    return text.translate(_PRIVATE)


def unknown(shown: str, why: str = "is not set here") -> str:
    """The note for a value that is not there; `shown` is how it is written (``$NAME``)."""
    shown = clean(shown)
    parts = (text.encode("utf-8", "surrogatepass").hex() for text in (shown, f"{printable(shown, 40)} {why}"))
    return f"{_OPEN}{_MIDDLE.join(parts)}{_CLOSE}"


def _text(digits: str) -> str:
    return bytes.fromhex(digits).decode("utf-8", "surrogatepass")


def has_unknown(raw: str) -> bool:
    """Whether a value in it is not known."""
    return _OPEN in raw


def plain(raw: str) -> str:
    """The text as it was written."""
    return _NOTE.sub(lambda note: _text(note.group(1)), raw)


def word(raw: str) -> Word:
    """The finished word."""
    notes = list(_NOTE.finditer(raw))
    if not notes:
        return Word(raw)
    end = raw[notes[-1].end() :]
    return Word(plain(raw), _text(notes[0].group(2)), end if "/" in end else "")


def bounded(raw: str) -> str:
    """`raw`, unless it has grown out of all proportion."""
    if len(raw) > LONGEST:
        raise InputError(f"a value grows beyond {LONGEST:,} characters", hint="write the command out")
    return raw

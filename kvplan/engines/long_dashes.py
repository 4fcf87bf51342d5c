"""Flags whose hyphens a web page or a word processor replaced by dashes."""

from __future__ import annotations

from collections.abc import Callable

_DASHES = "\u2010\u2011\u2012\u2013\u2014\u2212"


def meant(word: str, known: Callable[[str], bool]) -> str:
    """The flag that `word` would be with hyphens; empty where it begins with none of these dashes, or is no flag.

    Args:
        known: whether a flag (without its value) is one.
    """
    if word[:1] not in _DASHES or not word:
        return ""
    name = word.lstrip(_DASHES + "-")
    return next((d + name for d in ("--", "-") if name and known(d + name.partition("=")[0])), "")

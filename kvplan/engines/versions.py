"""Comparing version numbers, without a parser of all that a version may be."""

from __future__ import annotations


def version_key(text: str) -> tuple[int, ...]:
    """``4.57.6`` -> (4, 57, 6); what is not a number ends the key (``0.5.6.post1`` -> (0, 5, 6))."""
    key: list[int] = []
    for part in text.split("."):
        digits = part[: len(part) - len(part.lstrip("0123456789"))]
        if not digits:
            break
        key.append(int(digits))
        if digits != part:
            break
    return tuple(key)


def at_least(version: str, since: str) -> bool:
    """Whether `version` is `since` or later."""
    have, need = version_key(version), version_key(since)
    return have + (0,) * (len(need) - len(have)) >= need

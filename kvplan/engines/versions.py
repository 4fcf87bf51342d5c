"""Version numbers of engines whose rules were read at some releases and hold in between."""

from __future__ import annotations

from typing import ClassVar

from kvplan.engines.base import Engine
from kvplan.errors import InputError, printable


def version_key(text: str) -> tuple[int, ...]:
    """``4.57.6`` -> (4, 57, 6); what is not a number ends the key (``0.5.6.post1`` -> (0, 5, 6))."""
    key: list[int] = []
    for part in text.split("."):
        digits = part[: len(part) - len(part.lstrip("0123456789"))]
        if not digits:
            break
        key.append(int(digits[:9]))
        if digits != part:
            break
    return tuple(key)


def at_least(version: str, since: str) -> bool:
    """Whether `version` is `since` or later."""
    have, need = version_key(version), version_key(since)
    return have + (0,) * (len(need) - len(have)) >= need


class VersionedEngine(Engine):
    """An engine whose releases differ. Between two releases that were read, rules with a known start apply."""

    versions: ClassVar[tuple[str, ...]] = ()
    """The releases whose source was read, oldest first."""

    def __init__(self, version: str | None = None) -> None:
        """The engine at `version`; outside of what was read, the nearest release, with a warning.

        Raises:
            InputError: not a version number.
        """
        if not version:
            return
        if not version_key(version) or len(version) > 40:
            raise InputError(
                f"{printable(version, 40)!r} is not a version",
                where="--engine",
                hint=f"type {self.name}@{self.version}",
            )
        oldest, newest = self.versions[0], self.versions[-1]
        self.version = version
        if version in self.versions:
            return
        if not at_least(version, oldest):
            self.version = oldest
        elif at_least(version, newest):
            self.version = newest
        if self.version != version:
            self.warnings = (f"{self.name} {version} was not read; the rules of {self.version} are used",)
        else:
            near = max((v for v in self.versions if at_least(version, v)), key=version_key)
            self.warnings = (
                f"{self.name} {version} was not read; its rules follow from {near} and the releases after it",
            )

"""systemd units (and Quadlet containers): ExecStart, Environment, and an image with its Exec."""

from __future__ import annotations

import re

from kvplan.sources.commands import raw
from kvplan.sources.commands.shell import Scope, split
from kvplan.sources.commands.starts import Finder, Start

_SECTION = re.compile(r"^\s*\[(?:Service|Unit|Container)\]\s*$", re.MULTILINE)
_SPECIFIER = re.compile(r"%(%|[A-Za-z])")


def is_unit(text: str) -> bool:
    """Whether a text has the sections of a unit."""
    return _SECTION.search(text) is not None


def find(text: str, finder: Finder) -> tuple[list[Start], list[str]]:
    """(what the unit starts, nothing to pick from)."""
    scope = Scope()
    commands: list[tuple[int, str]] = []
    container: dict[str, tuple[int, str]] = {}
    for line, section, key, value in _entries(text):
        if key == "Environment":
            for word in split(_specifiers(value), finder.name, line=line):
                name, _, content = word.partition("=")
                scope.assign(name, content)
                scope.exported.add(name)
        elif section == "Service" and key == "ExecStart":
            commands = [*commands, (line, value)] if value else []
        elif section == "Container" and key in ("Image", "Exec", "Entrypoint", "PodmanArgs"):
            container[key] = (line, value)
    found: list[Start] = []
    for line, value in commands:
        words = split(_specifiers(value.lstrip("@-:+!")), finder.name, scope, line=line)
        found += finder.command(words, scope.environment(), line=line)
    if "Image" in container:
        line, _ = container["Image"]
        texts = {k: split(_specifiers(v), finder.name, scope, line=n) for k, (n, v) in container.items()}
        image = (texts["Image"] or [""])[0]
        environment = scope.environment()
        found += finder.image(image, texts.get("Entrypoint"), texts.get("Exec", []), environment, line=line)
    return found, []


def _specifiers(text: str) -> str:
    """``%i`` and its kin, which only systemd knows."""
    return _SPECIFIER.sub(lambda m: "%" if m.group(1) == "%" else raw.unknown(m.group()), text)


def _entries(text: str) -> list[tuple[int, str, str, str]]:
    """(line, section, key, value with its continuation lines joined)."""
    found: list[tuple[int, str, str, str]] = []
    section, pending, begun = "", "", 0
    for number, line in enumerate(text.split("\n"), 1):
        stripped = line.strip()
        if stripped.startswith(("#", ";")) or (not stripped and not pending):
            continue
        begun = begun if pending else number
        pending += line.rstrip("\r\n \t")
        if pending.endswith("\\"):
            pending = pending[:-1] + " "
            continue
        entry, pending = pending.strip(), ""
        if entry.startswith("[") and entry.endswith("]"):
            section = entry[1:-1]
        elif "=" in entry:
            key, _, value = entry.partition("=")
            found.append((begun, section, key.strip(), value.strip()))
    return found

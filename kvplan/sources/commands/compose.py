"""docker-compose files: command, entry point, environment and GPUs of a service."""

from __future__ import annotations

import re
from typing import Any

from kvplan.sources.commands import raw
from kvplan.sources.commands.documents import at, mapping, texts
from kvplan.sources.commands.shell import split
from kvplan.sources.commands.starts import Finder, Start, device_count

_REFERENCE = re.compile(r"\$\$|\$([A-Za-z_][A-Za-z0-9_]*)|\$\{([A-Za-z_][A-Za-z0-9_]*)(?:(:?[-+?])([^{}]*))?\}")


def is_compose(documents: list[Any]) -> bool:
    """Whether this is a file of services."""
    return len(documents) == 1 and isinstance(at(documents[0], "services"), dict)


def find(documents: list[Any], finder: Finder) -> tuple[list[Start], list[str]]:
    """(what the services start, names of all services)."""
    services = mapping(at(documents[0], "services"))
    found: list[Start] = []
    for name, service in services.items():
        if isinstance(service, dict):
            found += [start._replace(name=name) for start in _starts(service, finder)]
    return found, list(services)


def _starts(service: dict[str, Any], finder: Finder) -> list[Start]:
    environment = _environment(service.get("environment"))
    entry = _words(service["entrypoint"], finder.name) if service.get("entrypoint") is not None else None
    words = _words(service.get("command"), finder.name)
    image = service.get("image") if isinstance(service.get("image"), str) else ""
    found = finder.image(interpolate(str(image)), entry, words, environment)
    return [start._replace(gpus=start.gpus or _gpus(service)) for start in found]


def _words(value: Any, name: str) -> list[str]:
    """A command given as a list, or as text that is split like a shell's words."""
    if isinstance(value, str):
        return split(interpolate(value), name)
    return [interpolate(text) for text in texts(value)]


def _environment(value: Any) -> dict[str, str]:
    """``NAME: value`` or ``- NAME=value``."""
    if isinstance(value, dict):
        pairs = [(name, v, isinstance(v, str)) for name, v in value.items()]
    else:
        pairs = [(name, v, bool(has)) for name, has, v in (text.partition("=") for text in texts(value))]
    return {name: interpolate(v) if has else raw.unknown(f"${name}") for name, v, has in pairs}


def interpolate(text: str) -> str:
    """``${NAME:-default}`` as compose replaces it, without an environment: only defaults are known."""

    def value(match: re.Match[str]) -> str:
        plain, name, operator, other = match.groups()
        if match.group() == "$$":
            return "$"
        if operator and operator.endswith("-"):
            return interpolate(other)
        if operator and operator.endswith("+"):
            return ""
        return raw.unknown(f"${plain or name}")

    return raw.bounded(_REFERENCE.sub(value, text))


def _gpus(service: dict[str, Any]) -> tuple[int, str] | None:
    """GPUs that a service reserves; None for all of them, or none."""
    wanted = at(service, "deploy", "resources", "reservations", "devices") or service.get("gpus")
    if isinstance(wanted, str):
        return device_count(interpolate(wanted))
    for device in wanted if isinstance(wanted, list) else []:
        names, count = at(device, "device_ids"), at(device, "count")
        if isinstance(names, list) and names:
            return len(names), f"device_ids: {len(names)}"
        if isinstance(count, str) and count.isdecimal() and len(count) < 6 and int(count):
            return int(count), f"count: {count}"
    return None

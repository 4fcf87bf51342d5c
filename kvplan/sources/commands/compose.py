"""docker-compose files: command, entry point, environment and GPUs of a service."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Any

from kvplan.sources.commands import raw
from kvplan.sources.commands.documents import at, listed, mapping, texts
from kvplan.sources.commands.files import read_text
from kvplan.sources.commands.shell import split
from kvplan.sources.commands.starts import Finder, Start, device_count

_REFERENCE = re.compile(r"\$\$|\$([A-Za-z_][A-Za-z0-9_]*)|\$\{([A-Za-z_][A-Za-z0-9_]*)(?:(:?[-+?])([^{}]*))?\}")


_ASSIGNMENT = re.compile(r"(?:export\s+)?([A-Za-z_][A-Za-z0-9_.]*)\s*[=:]\s*(?:'([^']*)'|\"((?:[^\"\\]|\\.)*)\"|(.*))")
_COMMENT = re.compile(r"(?:^|\s)#.*")


def is_compose(documents: list[Any]) -> bool:
    """Whether this is a file of services."""
    return len(documents) == 1 and isinstance(at(documents[0], "services"), dict)


def find(documents: list[Any], finder: Finder, folder: str) -> tuple[list[Start], list[str]]:
    """(what the services start, names of all services).

    Args:
        folder: of the file; compose replaces variables by what the ``.env`` there says.
    """
    services = mapping(at(documents[0], "services"))
    values = env_file(os.path.join(folder, ".env"))
    found: list[Start] = []
    for name, service in services.items():
        if isinstance(service, dict):
            found += [start._replace(name=name) for start in _starts(service, finder, folder, values)]
    return found, list(services)


def _starts(service: dict[str, Any], finder: Finder, folder: str, values: Mapping[str, str]) -> list[Start]:
    environment = _from_files(service.get("env_file"), folder, values)
    environment |= _environment(service.get("environment"), values)
    entry = _words(service["entrypoint"], finder.name, values) if service.get("entrypoint") is not None else None
    words = _words(service.get("command"), finder.name, values)
    image = service.get("image") if isinstance(service.get("image"), str) else ""
    found = finder.image(interpolate(str(image), values), entry, words, environment)
    return [start._replace(gpus=start.gpus or _gpus(service, values)) for start in found]


def env_file(path: str) -> dict[str, str]:
    """The variables of a file of ``NAME=value`` lines (quotes, comments and ``export`` allowed); none without it.

    Raises:
        InputError: it is there and cannot be read.
    """
    found: dict[str, str] = {}
    for line in read_text(path).split("\n") if os.path.isfile(path) else ():
        match = _ASSIGNMENT.match(line.strip())
        if match is None:
            continue
        name, single, double, plain = match.groups()
        if single is not None:
            found[name] = single
        else:
            found[name] = interpolate(double if double is not None else _COMMENT.sub("", plain).strip(), found)
    return found


def _from_files(value: Any, folder: str, values: Mapping[str, str]) -> dict[str, str]:
    """What the files of ``env_file`` put into the container; those that lie beside or below the compose file."""
    found: dict[str, str] = {}
    entries = [value] if isinstance(value, str | dict) else listed(value)
    for entry in entries[:100]:
        path = at(entry, "path") if isinstance(entry, dict) else entry
        parts = interpolate(path, values).split("/") if isinstance(path, str) else [".."]
        if parts[0] and ".." not in parts:
            found |= env_file(os.path.join(folder, *parts))
    return found


def _words(value: Any, name: str, values: Mapping[str, str]) -> list[str]:
    """A command given as a list, or as text that is split like a shell's words."""
    if isinstance(value, str):
        return split(interpolate(value, values), name)
    return [interpolate(text, values) for text in texts(value)]


def _environment(value: Any, values: Mapping[str, str]) -> dict[str, str]:
    """``NAME: value`` or ``- NAME=value``; a name alone takes the value of the same name outside."""
    if isinstance(value, dict):
        pairs = [(name, v, isinstance(v, str)) for name, v in value.items()]
    else:
        pairs = [(name, v, bool(has)) for name, has, v in (text.partition("=") for text in texts(value))]
    return {name: interpolate(v if has else f"${{{name}}}", values) for name, v, has in pairs}


def interpolate(text: str, values: Mapping[str, str]) -> str:
    """``${NAME:-default}`` as compose replaces it; the variables of whoever runs it are not known."""

    def value(match: re.Match[str]) -> str:
        plain, name, operator, other = match.groups()
        if match.group() == "$$":
            return "$"
        known = values.get(plain or name)
        if operator and operator.startswith(":") and known == "":
            known = None
        if operator and operator.endswith("+"):
            return "" if known is None else interpolate(other, values)
        if known is not None:
            return known
        if operator and operator.endswith("-"):
            return interpolate(other, values)
        return raw.unknown(f"${plain or name}")

    return raw.bounded(_REFERENCE.sub(value, text))


def _gpus(service: dict[str, Any], values: Mapping[str, str]) -> tuple[int, str] | None:
    """GPUs that a service reserves; None for all of them, or none."""
    wanted = at(service, "deploy", "resources", "reservations", "devices") or service.get("gpus")
    if isinstance(wanted, str):
        return device_count(interpolate(wanted, values))
    for device in listed(wanted):
        names, count = at(device, "device_ids"), at(device, "count")
        count = interpolate(count, values) if isinstance(count, str) else None
        if isinstance(names, list) and names:
            return len(names), f"device_ids: {len(names)}"
        if isinstance(count, str) and count.isdecimal() and len(count) < 6 and int(count):
            return int(count), f"count: {count}"
    return None

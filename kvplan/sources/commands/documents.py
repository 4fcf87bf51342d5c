"""YAML that other programs own (manifests, services, chart values), read loosely and within bounds.

Several documents, merge keys and tags are allowed; every scalar is text as it was written, so that ``0644``, ``8K`` and
``yes`` reach the engine's own rules unchanged. Aliases may not multiply what is there.
"""

from __future__ import annotations

from typing import Any

import yaml

from kvplan.errors import InputError, printable
from kvplan.sources.commands import raw

MAX_DEPTH = 64
MAX_NODES = 100_000
MAX_DOCUMENTS = 500

_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_NULL = "tag:yaml.org,2002:null"
_MERGE = "tag:yaml.org,2002:merge"


def read_documents(text: str, name: str) -> list[Any]:
    """The documents of a file: mappings with text keys, lists, text, and None.

    Raises:
        InputError: it is no YAML, or nests or expands beyond all need.
    """
    try:
        _bound(text, name)
        loader = _Loader(text)
        try:
            walk, found = _Walk(name), []
            while loader.check_node():
                found.append(walk.value(loader.get_node(), 0))
            return found
        finally:
            loader.dispose()
    except yaml.YAMLError as error:
        raise _syntax(error, text, name) from None


def _bound(text: str, name: str) -> None:
    """Refuse what is too deep or too much before anything is built of it."""
    loader = _Loader(text)
    depth = nodes = documents = 0
    try:
        while loader.check_event():
            event = loader.get_event()
            documents += isinstance(event, yaml.DocumentStartEvent)
            depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
            nodes += isinstance(event, yaml.NodeEvent)
            if depth > MAX_DEPTH or nodes > MAX_NODES or documents > MAX_DOCUMENTS:
                what = f"nests deeper than {MAX_DEPTH} levels" if depth > MAX_DEPTH else "holds too many values"
                raise InputError(what, where=f"{name}:{event.start_mark.line + 1}", hint="is it the right file?")
    finally:
        loader.dispose()


def _syntax(error: yaml.YAMLError, text: str, name: str) -> InputError:
    mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
    problem = printable(str(getattr(error, "problem", None) or getattr(error, "reason", None) or "cannot be read"), 120)
    hint = "check indentation, colons and quotes there"
    if "{{" in text:
        hint = "render templates first: helm template CHART > manifest.yaml"
    return InputError(f"is not YAML: {problem}", where=f"{name}:{mark.line + 1}" if mark else name, hint=hint)


class _Walk:
    """Nodes into plain data."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.nodes = 0

    def value(self, node: Any, depth: int) -> Any:
        self.nodes += 1
        if depth > MAX_DEPTH or self.nodes > MAX_NODES:
            what = f"nests deeper than {MAX_DEPTH} levels" if depth > MAX_DEPTH else "aliases expand to too many values"
            raise InputError(what, where=f"{self.name}:{node.start_mark.line + 1}", hint="write them out")
        if isinstance(node, yaml.ScalarNode):
            return None if node.tag == _NULL else raw.clean(str(node.value))
        if isinstance(node, yaml.SequenceNode):
            return [self.value(child, depth + 1) for child in node.value]
        found: dict[str, Any] = {}
        merged: dict[str, Any] = {}
        for key, child in node.value:
            if key.tag == _MERGE:
                parts = self.value(child, depth + 1)
                for part in reversed(parts if isinstance(parts, list) else [parts]):
                    merged.update(part if isinstance(part, dict) else {})
            elif isinstance(key, yaml.ScalarNode):
                found[raw.clean(str(key.value))] = self.value(child, depth + 1)
        return merged | found


def texts(value: Any) -> list[str]:
    """The texts of a list, whatever it is; one text counts as a list of one."""
    if isinstance(value, str):
        return [value]
    return [item for item in value if isinstance(item, str)] if isinstance(value, list) else []


def listed(value: Any) -> list[Any]:
    """A list, or an empty one in place of anything else."""
    return value if isinstance(value, list) else []


def mapping(value: Any) -> dict[str, Any]:
    """A mapping, or an empty one in place of anything else."""
    return value if isinstance(value, dict) else {}


def at(value: Any, *keys: str) -> Any:
    """What lies under nested keys; None where there is nothing."""
    for key in keys:
        value = value.get(key) if isinstance(value, dict) else None
    return value

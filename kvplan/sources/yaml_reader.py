"""YAML as people write it, into plain data with line numbers: strict, and safe with hostile files.

Every file is bounded before it is parsed (size, kind, encoding) and while it is (depth, nodes, what
aliases expand to), so no file costs more than a fraction of a second. The result holds only
mappings with string keys, lists, strings, whole numbers, finite fractions, booleans and null.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from typing import Any

import yaml

from kvplan.errors import SpecError, printable
from kvplan.sources import bounded

MAX_BYTES = 1_000_000
MAX_DEPTH = 32
MAX_NODES = 50_000
MAX_ALIASED_NODES = 1_000
MAX_INT = 2**63

Path = tuple[str | int, ...]
Positions = dict[Path, int]
"""Where each key and each list entry stands: path from the root -> line, from 1."""

_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_TAG = "tag:yaml.org,2002:"
_INT = re.compile(r"[-+]?(?:0|[1-9][0-9_]*|0x[0-9a-fA-F_]+)\Z")
_MERGE_KEY = "<<"


def read_yaml(path: str | os.PathLike[str]) -> tuple[Any, Positions]:
    """The plain data of a YAML file and the line of everything in it.

    Raises:
        SpecError: the file cannot be read, is too large, is no text, is no YAML, or holds what a
            spec has no use for (duplicate keys, several documents, tags, merge keys, deep nesting).
    """
    name = printable(os.fspath(path))
    return parse_yaml(read_text(path), name)


def read_text(path: str | os.PathLike[str]) -> str:
    """The text of a regular file of bounded size.

    Raises:
        SpecError: it cannot be read, is too large, or is no UTF-8 text.
    """
    name = printable(os.fspath(path))
    data = bounded.read_bytes(path, name, limit=MAX_BYTES, what="YAML file")
    return bounded.decode(data, name, hint="a spec is YAML text in UTF-8")


def parse_yaml(text: str, name: str) -> tuple[Any, Positions]:
    """The same for text; `name` stands for the file in errors."""
    try:
        node = compose(text, name)
    except yaml.YAMLError as error:
        raise syntax_error(error, text, name) from None
    if node is None:
        raise SpecError("the file is empty", where=name, hint="`kvplan models import ID` prints a spec to start from")
    walk = Walk(name)
    return walk.value(node, (), 0), walk.positions


def compose(text: str, name: str) -> yaml.Node | None:
    """The nodes of one document, within bounds; None for an empty one.

    Raises:
        SpecError: it nests too deeply, holds too much, or a second document begins.
        yaml.YAMLError: it is no YAML (`syntax_error` puts that into words).
    """
    _bound(text, name)
    loader = _Loader(text)
    try:
        found: yaml.Node | None = loader.get_single_node()
        return found
    finally:
        loader.dispose()


def line_of(positions: Positions, path: Path) -> int:
    """The line of `path`, or of the nearest thing around it."""
    for end in range(len(path), 0, -1):
        if path[:end] in positions:
            return positions[path[:end]]
    return positions.get((), 1)


def _bound(text: str, name: str) -> None:
    """Refuse before anything is built: depth, number of nodes, documents."""
    loader = _Loader(text)
    depth = nodes = documents = 0
    try:
        while loader.check_event():
            event = loader.get_event()
            where = f"{name}:{event.start_mark.line + 1}"
            if isinstance(event, yaml.DocumentStartEvent):
                documents += 1
                if documents > 1:
                    raise SpecError(
                        "a second document begins here", where=where, hint="keep one spec in a file; drop the ---"
                    )
            elif isinstance(event, yaml.CollectionStartEvent):
                depth += 1
                if depth > MAX_DEPTH:
                    raise SpecError(f"nests deeper than {MAX_DEPTH} levels", where=where, hint="no spec needs that")
            elif isinstance(event, yaml.CollectionEndEvent):
                depth -= 1
            nodes += isinstance(event, yaml.NodeEvent)
            if nodes > MAX_NODES:
                raise SpecError(f"holds more than {MAX_NODES:,} values", where=where, hint="no spec needs that many")
    finally:
        loader.dispose()


def syntax_error(error: yaml.YAMLError, text: str, name: str) -> SpecError:
    """One line with its place, from what the parser says."""
    mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
    if isinstance(error, yaml.reader.ReaderError):
        line = text.count("\n", 0, int(error.position)) + 1 if isinstance(error.position, int) else 1
        hint = "delete it, or write it as an escape in double quotes"
        return SpecError("a control character that YAML does not allow", where=f"{name}:{line}", hint=hint)
    line = mark.line + 1 if mark else 1
    lines = text.splitlines()
    source = lines[mark.line] if mark and mark.line < len(lines) else ""
    problem = printable(str(getattr(error, "problem", None) or "cannot be parsed"), 120)
    if "\t" in source[: len(source) - len(source.lstrip())] or "'\\t'" in problem:
        return SpecError("a tab in the indentation", where=f"{name}:{line}", hint="indent with spaces")
    if "nesting depth" in problem:  # libyaml looks ahead and has a limit of its own
        return SpecError(f"nests deeper than {MAX_DEPTH} levels", where=f"{name}:{line}", hint="no spec needs that")
    if "undefined alias" in problem:
        return SpecError(problem, where=f"{name}:{line}", hint="define the anchor above it, or quote a leading *")
    return SpecError(
        f"is not YAML: {problem}", where=f"{name}:{line}", hint="check indentation, colons and quotes there"
    )


class Walk:
    """Nodes into plain data, noting where each one stands."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.positions: Positions = {}
        self.seen: set[int] = set()
        self.aliased = 0

    def error(self, node: Any, message: str, hint: str | None = None) -> SpecError:
        return SpecError(message, where=f"{self.name}:{node.start_mark.line + 1}", hint=hint)

    def value(self, node: Any, path: Path, depth: int) -> Any:
        self.positions.setdefault(path, node.start_mark.line + 1)
        if depth > MAX_DEPTH:
            raise self.error(node, f"nests deeper than {MAX_DEPTH} levels", "an alias that contains itself?")
        self.aliased += id(node) in self.seen
        self.seen.add(id(node))
        if self.aliased > MAX_ALIASED_NODES:
            raise self.error(node, f"aliases expand to more than {MAX_ALIASED_NODES:,} values", "write them out")
        if isinstance(node, yaml.ScalarNode):
            return self.scalar(node)
        expected = _TAG + ("seq" if isinstance(node, yaml.SequenceNode) else "map")
        if node.tag != expected:
            raise self.error(node, f"a tag ({printable(node.tag, 60)})", "specs use plain YAML without tags")
        if isinstance(node, yaml.SequenceNode):
            return [self.value(child, (*path, i), depth + 1) for i, child in enumerate(node.value)]
        return dict(self.entries(node, path, depth))

    def entries(self, node: yaml.MappingNode, path: Path, depth: int) -> Iterator[tuple[str, Any]]:
        lines: dict[str, int] = {}
        for key_node, value_node in node.value:
            if isinstance(key_node, yaml.ScalarNode) and key_node.tag == f"{_TAG}merge":
                raise self.error(key_node, f"a merge key ({_MERGE_KEY})", "write the keys out")
            if not isinstance(key_node, yaml.ScalarNode) or key_node.tag != f"{_TAG}str":
                text = (
                    printable(str(key_node.value), 40) if isinstance(key_node, yaml.ScalarNode) else "a list or mapping"
                )
                raise self.error(key_node, f"a key that is no text: {text}", "put it in quotes")
            key = self.text(key_node)
            if key in lines:
                raise self.error(
                    key_node, f"{printable(key, 60)!r} is here twice (first on line {lines[key]})", "keep one of them"
                )
            lines[key] = key_node.start_mark.line + 1
            self.positions.setdefault((*path, key), lines[key])
            yield key, self.value(value_node, (*path, key), depth + 1)

    def text(self, node: yaml.ScalarNode) -> str:
        text = str(node.value)
        if not all(c.isprintable() or c == "\n" for c in text):
            raise self.error(node, f"a control character in {printable(text, 40)!r}", "delete it")
        return text

    def scalar(self, node: yaml.ScalarNode) -> Any:
        kind, text = node.tag.removeprefix(_TAG), self.text(node)
        if kind in ("str", "timestamp"):
            return text
        if kind == "null":
            return None
        if kind == "bool":
            return text.lower() in ("true", "yes", "on")
        if kind == "int":
            return self.integer(node, text)
        if kind == "float":
            return self.fraction(node, text)
        raise self.error(node, f"a tag ({printable(node.tag, 60)})", "specs use plain YAML without tags")

    def integer(self, node: yaml.ScalarNode, text: str) -> int:
        if not _INT.match(text):
            raise self.error(
                node, f"{printable(text, 40)} is no plain whole number (YAML reads octal, base 60 or base 2)",
                "write it in decimal, or in quotes if it is text",
            )  # fmt: skip
        digits = text.replace("_", "")
        value = int(digits, 16 if "x" in digits else 10) if len(digits) < 40 else MAX_INT
        if abs(value) >= MAX_INT:
            raise self.error(node, f"{printable(text, 40)} is absurdly large", "check the digits")
        return value

    def fraction(self, node: yaml.ScalarNode, text: str) -> float:
        try:
            value = float(text.replace("_", ""))
        except ValueError:
            value = float("nan")  # .inf, .nan and base 60
        if value != value or value in (float("inf"), float("-inf")):
            raise self.error(node, f"{printable(text, 40)} is no number to count with", "write a finite decimal number")
        return value

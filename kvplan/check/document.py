"""The YAML of a rule file as a tree in which everything knows its place, and every mistake is collected."""

from __future__ import annotations

from typing import Any, NamedTuple

import yaml

from kvplan.check.problems import Place, Problems
from kvplan.errors import SpecError, printable
from kvplan.sources import yaml_reader


class Node(NamedTuple):
    """A value and where it stands."""

    value: Any
    """A mapping of names to nodes, a list of nodes, or a plain scalar."""
    text: str
    """A scalar as it is written; empty for the others."""
    place: Place
    keys: dict[str, Place] = {}  # noqa: RUF012 - never changed
    """Where the keys of a mapping stand."""
    plain: bool = False
    """A scalar on one line, so that a column in its text is one in the file."""

    @property
    def what(self) -> str:
        """A value as a person would recognise it, short."""
        if isinstance(self.value, dict):
            return "a mapping"
        if isinstance(self.value, list):
            return "a list"
        return "nothing" if self.value is None else repr(printable(self.text, 40))

    def at(self, offset: int) -> Place:
        """The place of a character of a scalar."""
        return self.place._replace(column=self.place.column + offset) if self.plain else self.place


def read_document(path: str, name: str, problems: Problems) -> Node | None:
    """The document of a file; None where it cannot be read at all, which `problems` then says.

    Args:
        name: what the file is called in messages.
    """
    try:
        text = yaml_reader.read_text(path)
    except SpecError as error:
        problems.error(_place_of(error, name), error, where=False)
        return None
    return parse_document(text, name, problems)


def parse_document(text: str, name: str, problems: Problems) -> Node | None:
    """The same for text."""
    try:
        node = yaml_reader.compose(text, name)
        return _Walk(name, problems).node(node, 0) if node is not None else None
    except yaml.YAMLError as error:
        said = yaml_reader.syntax_error(error, text, name)
        mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
        column = mark.column + 1 if mark is not None else 1
        problems.error(_place_of(said, name)._replace(column=column), said, where=False)
    except SpecError as error:
        problems.error(_place_of(error, name), error, where=False)
    return None


def _place_of(error: SpecError, name: str) -> Place:
    """The line that an error of the reader names."""
    line = (error.where or "").rpartition(":")[2]
    return Place(name, int(line) if line.isdigit() else 1, 1)


class _Walk(yaml_reader.Walk):
    """Nodes with their places. What makes one value unusable is a problem; what makes a file dangerous ends it."""

    def __init__(self, name: str, problems: Problems) -> None:
        super().__init__(name)
        self.problems = problems

    def place(self, node: Any) -> Place:
        return Place(self.name, node.start_mark.line + 1, node.start_mark.column + 1)

    def node(self, node: Any, depth: int) -> Node:
        """One node and what is in it."""
        if depth > yaml_reader.MAX_DEPTH:
            deep = f"nests deeper than {yaml_reader.MAX_DEPTH} levels"
            raise self.error(node, deep, "an alias that contains itself?")
        self.aliased += id(node) in self.seen
        self.seen.add(id(node))
        if self.aliased > yaml_reader.MAX_ALIASED_NODES:
            limit = f"{yaml_reader.MAX_ALIASED_NODES:,}"
            raise self.error(node, f"aliases expand to more than {limit} values", "put what is shared under defaults")
        place = self.place(node)
        if isinstance(node, yaml.ScalarNode):
            return self.leaf(node, place)
        kind = "seq" if isinstance(node, yaml.SequenceNode) else "map"
        if node.tag != f"tag:yaml.org,2002:{kind}":
            self.problems.add(place, f"a tag ({printable(node.tag, 60)})", "write plain YAML without tags")
            return Node(None, "", place)
        if kind == "seq":
            return Node([self.node(child, depth + 1) for child in node.value], "", place)
        return self.mapping(node, place, depth)

    def leaf(self, node: yaml.ScalarNode, place: Place) -> Node:
        try:
            value = self.scalar(node)
        except SpecError as error:
            self.problems.error(place, error, where=False)
            value = None
        one_line = node.start_mark.line == node.end_mark.line and node.style not in ("|", ">")
        start = place._replace(column=place.column + (node.style in ("'", '"')))
        return Node(value, str(node.value), start if one_line else place, plain=one_line)

    def mapping(self, node: yaml.MappingNode, place: Place, depth: int) -> Node:
        found: dict[str, Node] = {}
        keys: dict[str, Place] = {}
        for key_node, child in node.value:
            here = self.place(key_node)
            if isinstance(key_node, yaml.ScalarNode) and key_node.tag.endswith(":merge"):
                self.problems.add(here, "a merge key (<<)", "put what is shared under defaults")
                continue
            if not isinstance(key_node, yaml.ScalarNode) or not key_node.tag.endswith(":str"):
                scalar = isinstance(key_node, yaml.ScalarNode)
                text = printable(str(key_node.value), 40) if scalar else "a list or mapping"
                self.problems.add(here, f"a key that is no text: {text}", "put it in quotes")
                continue
            key = printable(str(key_node.value))
            value = self.node(child, depth + 1)
            if key in found:
                self.problems.add(here, f"{key!r} is here twice (first on line {keys[key].line})", "keep one of them")
            else:
                found[key], keys[key] = value, here
        return Node(found, "", place, keys)

"""From a rule file and what it includes to deployments, each with its settings, workloads and rules.

What an included file says holds in the file that includes it, and the other way round: shared defaults lie in a file
that others include, promises for all in the file that includes all. Files that do not include one another do not see
each other. Of defaults, a file's own count most, then those of the files it includes, then those around it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple, TypeVar

from kvplan.check.document import Node, read_document
from kvplan.check.fields import OWN, RULE, SCHEMA, SOURCES, TOP, Environment, Fields, Keys, expect, only
from kvplan.check.problems import Place, Problems
from kvplan.check.rules import BOUNDS, LEVELS, Rule, RuleSyntaxError, parse_rule
from kvplan.engines.options import Option
from kvplan.errors import nearest, printable

NAMES = ("kvplan.yaml", "kvplan.yml")
MAX_FILES = 1_000
MAX_NAME = 120
_BY_NAME = "workloads: {chat: {prompt-tokens: 2K}}"
T = TypeVar("T", bound=str)


class Workload(NamedTuple):
    """One kind of traffic."""

    name: str
    fields: Fields
    rules: tuple[Rule, ...]
    place: Place
    own: bool = False
    """Written at the deployment itself, whose other settings it counts over; a shared one counts under them."""


class Declared(NamedTuple):
    """A deployment as the file has it."""

    name: str
    place: Place
    source: str
    """A key of `SOURCES`."""
    text: str
    text_place: Place
    folder: str
    """That its paths start from."""
    fields: Fields
    defaults: Fields
    workloads: tuple[Workload, ...]
    """At least one; the one without a name has no settings of its own."""
    rules: tuple[Rule, ...]


class RuleFile(NamedTuple):
    """Everything that was read."""

    name: str
    files: tuple[str, ...]
    """All that were read, as they are shown, the first one first."""
    deployments: tuple[Declared, ...]
    environment: dict[str, str]


class _File:
    """One file, and what it says for others."""

    def __init__(self, path: str, name: str, node: Node) -> None:
        self.path, self.name, self.node = path, name, node
        self.includes: list[_File] = []
        self.included_by: list[_File] = []
        self.defaults: Fields = {}
        self.default_workloads: Node | None = None
        self.workloads: dict[str, Workload] = {}
        self.rules: tuple[Rule, ...] = ()

    def around(self) -> list[_File]:
        """The files that this one sees, those whose defaults count most first."""
        found: dict[int, _File] = {id(self): self}
        for side in ("includes", "included_by"):
            queue: list[_File] = list(getattr(self, side))
            while queue:
                file = queue.pop(0)
                if id(file) not in found:
                    found[id(file)] = file
                    queue += getattr(file, side)
        return list(found.values())


def find_file() -> str | None:
    """The rule file of the present folder or of the nearest one above it; None where there is none."""
    folder = os.getcwd()
    while True:
        for name in NAMES:
            path = os.path.join(folder, name)
            if os.path.isfile(path):
                return os.path.relpath(path)
        above = os.path.dirname(folder)
        if above == folder:
            return None
        folder = above


def lock_path(file: str) -> str:
    """The lock file of a rule file: ``kvplan.yaml`` has ``kvplan.lock``."""
    return f"{os.path.splitext(file)[0]}.lock"


def read_rule_file(path: str, options: Sequence[Option], environment: Mapping[str, str]) -> tuple[RuleFile, Problems]:
    """A rule file with all that it includes, and every mistake in them so far.

    Args:
        path: relative to the present folder, as messages show it.
        options: the planning flags.
        environment: the variables of the process; only those that the file names are looked at.
    """
    return _Reader(options, environment).read(path)


class _Reader:
    """Reads files into deployments and collects what is wrong on the way."""

    def __init__(self, options: Sequence[Option], environment: Mapping[str, str]) -> None:
        self.keys = Keys(options)
        self.environment = Environment(environment)
        self.problems = Problems()
        self.files: dict[str, _File] = {}
        self.names: dict[str, Place] = {}

    def read(self, path: str) -> tuple[RuleFile, Problems]:
        name = _shown(path)
        root = self._open(path, name, ())
        files = list(self.files.values())
        for file in files:
            self.environment.name(file.node.value.get("environment"), self.problems)
        for file in files:
            file.node = self.environment.fill(file.node, self.problems)
        for file in files:
            self._shared(file)
        deployments = tuple(found for file in files for found in self._deployments(file))
        if root is not None and not any("deployments" in f.node.value for f in files):
            self.problems.add(root.node.place, "no deployments", "add deployments: {NAME: {model: ..., gpu: ...}}")
        named = dict(sorted(self.environment.named.items()))
        return RuleFile(name, tuple(f.name for f in files), deployments, named), self.problems

    def _open(self, path: str, name: str, above: tuple[str, ...], asked: Place | None = None) -> _File | None:
        """A file and its includes, each read once."""
        real = os.path.realpath(path)
        if real in above:
            assert asked is not None  # something includes it
            circle = " -> ".join(_shown(p) for p in (*above[above.index(real) :], real))
            self.problems.add(asked, f"includes go in a circle: {circle}", "take one of them out")
            return None
        if real in self.files:
            return self.files[real]
        if asked is not None and not os.path.isfile(path):
            self.problems.add(asked, f"includes {name}, which does not exist", "paths start from the including file")
            return None
        if len(self.files) >= MAX_FILES:
            self.problems.add(asked or Place(name, 1, 1), f"more than {MAX_FILES:,} files", "include fewer")
            return None
        node = read_document(path, name, self.problems)
        if node is None:
            if not self.problems:
                self.problems.add(Place(name, 1, 1), "the file is empty", "`kvplan check --init` writes one")
            return None
        if not expect(node, dict, "a rule file is a mapping", self.problems, f"begin it with schema: {SCHEMA}"):
            return None
        if {"apiVersion", "kind"} <= node.value.keys() or "services" in node.value:
            told = f"name it in one (deployments: {{NAME: {{from: {name}}}}}), or `kvplan check --init` writes one"
            self.problems.add(node.place, "a manifest that starts an engine, and no rule file", told)
            return None
        file = self.files[real] = _File(path, name, node)
        self._tag(node)
        only(node, TOP, self.problems)
        for child in self._list(node, "include", "include is a list of files"):
            if not expect(child, str, "include is the path of a file", self.problems):
                continue
            inner = os.path.join(os.path.dirname(path), child.value)
            found = self._open(inner, _shown(inner), (*above, real), child.place)
            if found is not None and found not in file.includes:
                file.includes.append(found)
                found.included_by.append(file)
        return file

    def _tag(self, node: Node) -> None:
        tag = node.value.get("schema")
        if tag is None:
            self.problems.add(node.place, "no schema", f"begin the file with schema: {SCHEMA}")
        elif tag.value != SCHEMA:
            self.problems.add(tag.place, f"schema is {tag.what}", f"write schema: {SCHEMA}")

    def _list(self, node: Node, key: str, what: str) -> list[Node]:
        """The entries of a list under a key; a single text counts as a list of one."""
        child = node.value.get(key)
        if child is None or child.value is None:
            return []
        if isinstance(child.value, str):
            return [child]
        return list(child.value) if expect(child, list, what, self.problems) else []

    def _shared(self, file: _File) -> None:
        """What a file says for all deployments that see it."""
        defaults = file.node.value.get("defaults")
        if defaults is not None and expect(defaults, dict, "defaults is a mapping", self.problems):
            file.defaults = self.keys.read(defaults, ("workloads",), self.problems)
            file.default_workloads = defaults.value.get("workloads")
        file.rules = self._rules(file.node)
        workloads = file.node.value.get("workloads")
        if workloads is not None and expect(workloads, dict, "workloads is a mapping by name", self.problems, _BY_NAME):
            file.workloads = self._named(workloads)

    def _named(self, node: Node) -> dict[str, Workload]:
        """Workloads by name."""
        found = {}
        for name, child in node.value.items():
            if not name.strip() or len(name) > MAX_NAME:
                self.problems.add(node.keys[name], f"the name of a workload has 1 to {MAX_NAME} characters")
            elif expect(child, dict, f"the workload {name} is a mapping", self.problems, "{prompt-tokens: 2K}"):
                fields = self.keys.read(child, ("rules",), self.problems, workload=True)
                found[name] = Workload(name, fields, self._rules(child), node.keys[name])
        return found

    def _rules(self, node: Node) -> tuple[Rule, ...]:
        found = [self._rule(child) for child in self._list(node, "rules", "rules is a list")]
        return tuple(rule for rule in found if rule is not None)

    def _rule(self, node: Node) -> Rule | None:
        """One rule: its text, or a mapping around it."""
        text, level, bound, workloads = node, LEVELS[0], BOUNDS[0], []
        if isinstance(node.value, dict):
            only(node, RULE, self.problems)
            if "rule" not in node.value:
                self.problems.add(node.place, "no rule", "add rule: metric operator value")
                return None
            text = node.value["rule"]
            level = self._choice(node, "level", LEVELS)
            bound = self._choice(node, "bound", BOUNDS)
            workloads = self._list(node, "workloads", "workloads is a list of names")
        if not expect(text, str, "a rule is text", self.problems, "metric operator value, as in verdict.fits == true"):
            return None
        try:
            metric, operator, limit = parse_rule(text.value)
        except RuleSyntaxError as error:
            self.problems.add(text.at(error.offset), error.message, error.hint or "")
            return None
        names = tuple(child.text for child in workloads)
        shown = " ".join(text.value.split())
        return Rule(shown, metric, operator, limit, level, bound, text.place, names)

    def _choice(self, node: Node, key: str, known: Sequence[T]) -> T:
        child = node.value.get(key)
        if child is None:
            return known[0]
        for choice in known:
            if child.value == choice:
                return choice
        self.problems.add(child.place, f"{key} is {child.what}", f"one of {', '.join(known)}")
        return known[0]

    def _deployments(self, file: _File) -> Iterator[Declared]:
        node = file.node.value.get("deployments")
        if node is None or not expect(node, dict, "deployments is a mapping of names", self.problems):
            return
        around = file.around()
        defaults: Fields = {}
        for other in reversed(around):
            defaults.update(other.defaults)
        rules = tuple(rule for other in around for rule in other.rules)
        workloads: dict[str, Workload] = {}
        for other in around:
            for name, workload in other.workloads.items():
                if workloads.setdefault(name, workload) is not workload:
                    self.problems.add(
                        workload.place, f"two workloads are called {name!r} (the other: {workloads[name].place})",
                        "rename one of them",
                    )  # fmt: skip
        for rule in rules:
            self._known(rule.workloads, workloads, rule.place)
        listed = next((f.default_workloads for f in around if f.default_workloads is not None), None)
        for name, child in node.value.items():
            self._first(name, node.keys[name])
            if not name.strip() or len(name) > MAX_NAME:
                self.problems.add(node.keys[name], f"a name has 1 to {MAX_NAME} characters")
            elif expect(child, dict, f"the deployment {name} is a mapping", self.problems, "{model: ..., gpu: ...}"):
                found = self._deployment(name, node.keys[name], child, workloads, listed)
                if found is not None:
                    folder = os.path.dirname(file.path) or "."
                    yield found._replace(folder=folder, defaults=defaults, rules=(*rules, *found.rules))

    def _deployment(
        self, name: str, place: Place, node: Node, shared: Mapping[str, Workload], listed: Node | None
    ) -> Declared | None:
        fields = self.keys.read(node, OWN, self.problems)
        rules = self._rules(node)
        said = [key for key in SOURCES if key in node.value]
        own = node.value.get("workloads")
        workloads = self._workloads(own if own is not None else listed, shared)
        for rule in rules:
            self._known(rule.workloads, {**shared, **{w.name: w for w in workloads}}, rule.place)
        if len(said) != 1:
            what = f"has {' and '.join(said)}" if said else "says no model"
            self.problems.add(place, f"{name} {what}", "give one of model, command, from")
            return None
        source = node.value[said[0]]
        if not expect(source, str, f"{said[0]} is text", self.problems) or not source.value.strip():
            return None
        return Declared(
            name, place, said[0], source.value.strip(), source.place, ".", fields, {}, workloads, rules
        )  # fmt: skip

    def _workloads(self, node: Node | None, shared: Mapping[str, Workload]) -> tuple[Workload, ...]:
        """The workloads of a deployment: names of shared ones, or its own by name."""
        nothing = (Workload("", {}, (), Place("", 0, 0)),)
        if node is None or node.value in (None, []):
            return nothing
        if isinstance(node.value, dict):
            return tuple(found._replace(own=True) for found in self._named(node).values()) or nothing
        names = [node] if isinstance(node.value, str) else node.value
        if not isinstance(names, list):
            self.problems.add(node.place, f"workloads is a list of names, not {node.what}")
            return nothing
        found: dict[str, Workload] = {}
        for child in names:
            if isinstance(child.value, dict | list):
                self.problems.add(
                    child.place, f"a workload is a name, not {child.what}",
                    f"write a mapping by name: {_BY_NAME}",
                )  # fmt: skip
                continue
            self._known((child.text,), shared, child.place)
            if child.text in shared:
                found[child.text] = shared[child.text]
        return tuple(found.values()) or nothing

    def _known(self, names: Sequence[str], known: Mapping[str, Workload], place: Place) -> None:
        for name in names:
            if name not in known:
                near = nearest(name, list(known), 3)
                hint = f"did you mean {', '.join(near)}?" if near else f"known: {', '.join(known) or 'none'}"
                self.problems.add(place, f"there is no workload {printable(name, 60)!r}", hint)

    def _first(self, name: str, place: Place) -> None:
        """Names are unique over all files; within one file the reader of YAML sees to it."""
        other = self.names.setdefault(name, place)
        if other is not place:
            self.problems.add(place, f"two deployments are called {name!r} (the other: {other})", "rename one")


def _shown(path: str) -> str:
    """A path as messages show it: from the present folder, where it lies below or beside it."""
    try:
        return printable(os.path.relpath(path).replace(os.sep, "/"))
    except ValueError:  # another drive
        return printable(path)

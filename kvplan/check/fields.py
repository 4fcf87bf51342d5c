"""The keys of a rule file and their values: planning flags without their dashes, read by the rules of the flags."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from kvplan.check.document import Node
from kvplan.check.problems import Place, Problems
from kvplan.engines.options import Option
from kvplan.engines.other_words import flag_for
from kvplan.errors import KvplanError, nearest, printable

NOT_HERE = frozenset({"hub", "from_log"})
"""Flags that reach out of the repository: what they give differs from run to run."""
SOURCES = ("model", "command", "from")
"""What a deployment can be made of; one of them."""
TOP = ("schema", "include", "environment", "defaults", "workloads", "rules", "deployments")
OWN = (*SOURCES, "workloads", "rules")
"""Keys of a deployment besides the flags."""
RULE = ("rule", "level", "bound", "workloads")
SCHEMA = "kvplan.rules/1"

_VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")


class Given(NamedTuple):
    """A setting and where the file sets it."""

    value: Any
    """None: left out, whatever the defaults say."""
    place: Place


Fields = dict[str, Given]


class Keys:
    """The flags that a rule file may set, by every name they have."""

    def __init__(self, options: Sequence[Option]) -> None:
        self.options = [o for o in options if o.setting not in NOT_HERE]
        self.by_key: dict[str, Option] = {}
        for option in self.options:
            for flag in option.flags:
                self.by_key[flag.lstrip("-")] = option
        for option in self.options:
            if not option.is_switch:
                self.by_key.setdefault(option.setting.replace("_", "-"), option)
        self.workload = {key for key, option in self.by_key.items() if option.panel == "Workload"}

    def read(self, node: Node, also: Sequence[str], problems: Problems, *, workload: bool = False) -> Fields:
        """The settings in a mapping; keys in `also` are somebody else's.

        Args:
            workload: only flags that describe a workload belong here.
        """
        found: Fields = {}
        for name, child in node.value.items():
            if name in also:
                continue
            option = self.by_key.get(name.replace("_", "-"))
            if option is None or (workload and option.panel != "Workload"):
                self._unknown(name, node.keys[name], also, workload, problems)
                continue
            if option.setting in found:
                problems.add(node.keys[name], f"{name!r} sets what another key has set", "keep one of them")
                continue
            try:
                found[option.setting] = Given(_value(option, child), child.place)
            except KvplanError as error:
                problems.add(child.place, f"{name}: {error.message}", _without_flag(error.hint, option, name))
        return found

    def _unknown(self, name: str, place: Place, also: Sequence[str], workload: bool, problems: Problems) -> None:
        known = [*also, *(sorted(self.workload) if workload else self.by_key)]
        meant = flag_for(name, {f"--{key}" for key in known})
        near = [meant[2:]] if meant else nearest(name, known, 3)
        hint = f"did you mean {', '.join(near)}?" if near else "`kvplan check --schema` lists the keys"
        if workload and not near:
            hint = f"a workload has {', '.join(o.flags[0][2:] for o in self.options if o.panel == 'Workload')}"
        problems.add(place, f"unknown key {printable(name, 60)!r}", hint)


def _without_flag(hint: str | None, option: Option, name: str) -> str:
    """A hint in the spelling of the file: ``--max-num-seqs 8`` is ``max-num-seqs: 8``."""
    return (hint or "").replace(f"{option.flags[0]} ", f"{name}: ").replace(f"{option.flags[0]}=", f"{name}: ")


def _value(option: Option, node: Node) -> Any:
    """What a node sets; None where it sets nothing."""
    from kvplan.errors import InputError

    value = node.value
    if value is None:
        return None
    if option.is_switch:
        if not isinstance(value, bool):
            raise InputError(f"{node.what} is neither true nor false", hint="true or false")
        return (option.kind == "true") if value else None
    if isinstance(value, dict):
        if option.is_list:
            return option.read(",".join(f"{key}={child.text}" for key, child in value.items()))
        if option.kind == "text" and option.setting.endswith("config"):
            import json

            return option.read(json.dumps(plain(node)))
        raise InputError("is a mapping", hint="write one value")
    if isinstance(value, list):
        if not option.is_list or any(isinstance(child.value, dict | list) for child in value):
            raise InputError("is a list", hint="write one value")
        return option.read(",".join(child.text for child in value))
    if isinstance(value, bool):
        what = "number" if option.metavar == "N" else option.metavar.lower()
        raise InputError(f"{node.text} is no {what}", hint="put it in quotes if it is a name")
    return option.read(node.text)


def plain(node: Node) -> Any:
    """A tree of nodes as plain data."""
    if isinstance(node.value, dict):
        return {key: plain(child) for key, child in node.value.items()}
    if isinstance(node.value, list):
        return [plain(child) for child in node.value]
    return node.value


def only(node: Node, known: Sequence[str], problems: Problems) -> None:
    """Refuse keys that are not `known`."""
    for name in node.value:
        if name not in known:
            near = nearest(name, list(known), 1)
            hint = f"did you mean {near[0]}?" if near else f"known keys: {', '.join(known)}"
            problems.add(node.keys[name], f"unknown key {printable(name, 60)!r}", hint)


def expect(node: Node, kind: type, what: str, problems: Problems, hint: str = "") -> bool:
    """Whether a node holds `kind`; a problem where not."""
    if isinstance(node.value, kind):
        return True
    problems.add(node.place, f"{what}, not {node.what}", hint)
    return False


class Environment:
    """The variables that a file names, and no others.

    Args:
        outer: the variables of the process.
    """

    def __init__(self, outer: Mapping[str, str]) -> None:
        self.outer = outer
        self.named: dict[str, str] = {}
        """Those that files name -> value."""

    def name(self, node: Node | None, problems: Problems) -> None:
        """Read the ``environment`` of a file: a list of names, or names with defaults."""
        if node is None:
            return
        if isinstance(node.value, dict):
            pairs = [(key, child.text, node.keys[key]) for key, child in node.value.items()]
            defaults = {key: text for key, text, _ in pairs}
        elif isinstance(node.value, list):
            pairs, defaults = [(child.text, "", child.place) for child in node.value], {}
        else:
            problems.add(node.place, f"environment is a list of names, not {node.what}", "environment: [NAME]")
            return
        for key, _, place in pairs:
            value = self.outer.get(key, defaults.get(key))
            if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", key):
                problems.add(place, f"{printable(key, 40)!r} is not the name of a variable")
            elif value is None:
                problems.add(
                    place, f"the variable {key} is not set", f"export {key}, or give a default: {{{key}: VALUE}}"
                )
                self.named[key] = ""
            else:
                self.named[key] = value

    def fill(self, node: Node, problems: Problems, *, command: bool = False) -> Node:
        """The tree with ``${NAME}`` replaced in its texts.

        Args:
            command: other variables are left to the reader of command lines.
        """
        if isinstance(node.value, dict):
            filled = {k: self.fill(v, problems, command=k == "command") for k, v in node.value.items()}
            return node._replace(value=filled)
        if isinstance(node.value, list):
            return node._replace(value=[self.fill(child, problems) for child in node.value])
        if "${" not in node.text:
            return node
        unknown = False
        for match in _VARIABLE.finditer(node.text):
            if match.group(1) not in self.named and not command:
                unknown = True
                problems.add(
                    node.at(match.start()), f"the variable {match.group(1)} is not named in the file",
                    f"add environment: [{match.group(1)}]",
                )  # fmt: skip
        text = _VARIABLE.sub(lambda m: self.named.get(m.group(1), m.group()), node.text)
        if unknown:
            problems.settled.append((node.place, len(node.text)))
        return node._replace(value=text, text=text, plain=False)

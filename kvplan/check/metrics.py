"""What a rule can be about: the dotted keys of ``plan --json``, each with the kind of its value.

The table is made from the named tuples that the plan is made of, so a figure that is added there is a metric here.
A metric that runs through a list (the ranks under ``memory``) stands for each entry; the worst one counts.
"""

from __future__ import annotations

import re
import sys
import types
import typing
from functools import cache
from importlib import import_module
from typing import Any, Literal, NamedTuple

from kvplan.errors import InputError, KvplanError, nearest
from kvplan.units import gib, parse_tokens

Kind = Literal["bytes", "tokens", "seconds", "money", "share", "number", "switch", "text"]

_HOMES = {
    "Allocation": "kvplan.engines.base", "DecodeFigures": "kvplan.planning.speed.figures",
    "PrefillFigures": "kvplan.planning.speed.figures", "CostFigures": "kvplan.planning.cost",
    "ServingFigures": "kvplan.planning.workload",
}  # fmt: skip
"""Class that the plan's annotations name for type checkers alone -> its module; others are looked for."""
_SKIPPED = frozenset({"schema", "inputs", "warnings", "verdict.hints", "verdict.reason", "capacity.at"})
AT = "capacity.requests_at"
"""The metric that takes a length: requests of so many tokens that one replica runs at once."""
_CALL = re.compile(r"([\w.]+)\(([^()]*)\)\Z")


class Metric(NamedTuple):
    """One figure of a plan."""

    name: str
    """As the rule writes it."""
    path: tuple[str, ...]
    kind: Kind
    tokens: int = 0
    """The argument of `AT`."""

    @property
    def section(self) -> str:
        return self.path[0]


@cache
def known() -> dict[str, Kind]:
    """Every metric without an argument -> its kind, in the order of the plan."""
    from kvplan.planning.plan import Plan

    return {**dict(_fields(Plan, "", 0)), **_inputs()}


@cache
def _inputs() -> dict[str, Kind]:
    from kvplan.engines.base import Settings

    found: dict[str, Kind] = {"inputs.model": "text", "inputs.gpu": "text", "inputs.weights_format": "text"}
    for name, hint in typing.get_type_hints(Settings).items():
        kind = _kind(f"inputs.{name}", hint)
        if kind is not None:
            found[f"inputs.{name}"] = kind
    return found


def _fields(cls: Any, prefix: str, depth: int) -> list[tuple[str, Kind]]:
    """The metrics of a named tuple and of those in it."""
    found: list[tuple[str, Kind]] = []
    for field in cls._fields if depth < 5 else ():
        name = f"{prefix}{field}"
        if name in _SKIPPED:
            continue
        hint = _hint(cls, field)
        inner = _tuple_in(hint)
        if inner is not None:
            found += _fields(inner, f"{name}.", depth + 1)
            continue
        kind = _kind(name, hint)
        if kind is not None:
            found.append((name, kind))
    return found


@cache
def _kind_at(name: str) -> Kind | None:
    """The kind of one metric, looking only at the classes on its way; None where there is no such metric."""
    from kvplan.planning.plan import Plan

    if name.startswith("inputs."):
        return _inputs().get(name)
    here: Any = Plan
    steps = name.split(".")
    for i, field in enumerate(steps):
        if field not in getattr(here, "_fields", ()) or ".".join(steps[: i + 1]) in _SKIPPED:
            return None
        hint = _hint(here, field)
        inner = _tuple_in(hint)
        if inner is None:
            return _kind(name, hint) if i == len(steps) - 1 else None
        here = inner
    return None


def _hint(cls: Any, field: str) -> Any:
    """The type of one field; a name that its module imports for type checkers alone is found where it is defined."""
    written = cls.__annotations__[field]
    text = getattr(written, "__forward_arg__", written)
    if not isinstance(text, str):
        return text
    names: dict[str, Any] = {}
    while True:
        try:
            return eval(text, {**vars(sys.modules[cls.__module__]), **names})  # an annotation of this package
        except NameError as error:
            missing = error.name or ""
            if missing in names:
                raise
            names[missing] = getattr(import_module(_home(missing)), missing)


def _home(name: str) -> str:
    """The module of `kvplan.planning` that defines a class."""
    if name in _HOMES:
        return _HOMES[name]
    from importlib.util import find_spec
    from pkgutil import walk_packages

    package = import_module("kvplan.planning")
    for module in walk_packages(package.__path__, "kvplan.planning."):
        spec = find_spec(module.name)
        loader: Any = spec.loader if spec else None
        if loader is not None and f"class {name}(" in (loader.get_source(module.name) or ""):
            return module.name
    raise NameError(name)


def _parts(hint: Any) -> list[Any]:
    """The alternatives of a union, without None."""
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        return [part for part in typing.get_args(hint) if part is not type(None)]
    return [hint]


def _tuple_in(hint: Any) -> Any:
    """The named tuple that a field holds, alone or many times."""
    for part in _parts(hint):
        if hasattr(part, "_fields"):
            return part
        if typing.get_origin(part) in (tuple, list):
            for inner in typing.get_args(part):
                if hasattr(inner, "_fields"):
                    return inner
    return None


def _kind(name: str, hint: Any) -> Kind | None:
    """The kind of a figure, from its type and its name; None for what no rule can be about."""
    parts = _parts(hint)
    if len(parts) > 1 and not set(parts) <= {int, float}:
        return None
    if parts[0] is bool:
        return "switch"
    if parts[0] is str or typing.get_origin(parts[0]) is Literal:
        return "text"
    if parts[0] not in (int, float):
        return None
    return kind_of(name, whole=parts[0] is int)


def kind_of(name: str, *, whole: bool) -> Kind:
    """The kind of a number by the name of its figure, in which its unit stands."""
    section, last = name.partition(".")[0], name.rpartition(".")[2]
    words = last.split("_")
    if words[-1] in ("share", "ratio"):
        return "share"
    if last == "requests_per_second":
        return "number"
    if section == "cost" or {"cost", "price", "usd", "dollars"} & set(words):
        return "money" if not {"tokens", "gpus", "hours"} >= set(words[-1:]) or "per" in words else "number"
    if "bytes" in words:
        return "bytes"
    if "seconds" in words and "per_second" not in last:
        return "seconds"
    if "utilization" in words:
        return "share"
    if whole and {"tokens", "len"} & set(words) and "per_second" not in last:
        return "tokens"
    return "number"


def find_metric(text: str) -> Metric:
    """The metric that a rule names.

    Raises:
        InputError: there is none; the hint names those that exist, the closest first.
    """
    call = _CALL.match(text)
    if call and call.group(1) == AT:
        try:
            tokens = parse_tokens(call.group(2), AT)
        except KvplanError as error:
            raise InputError(f"{AT}: {error.message}", hint=f"{AT}(32K), for example") from None
        return Metric(f"{AT}({call.group(2).strip()})", ("capacity", "requests_at"), "number", tokens)
    kind = _kind_at(text)
    if kind is not None:
        return Metric(text, tuple(text.split(".")), kind)
    if text == AT:
        raise InputError(f"{AT} needs a length", hint=f"write {AT}(32K)")
    raise InputError(f"there is no metric {text!r}", hint=_nearest(text))


def _nearest(text: str) -> str:
    """The metrics that exist, the closest first: all of the section that is meant, or the sections."""
    names = [*known(), f"{AT}(32K)"]
    section, _, last = text.partition(".")
    near = nearest(text, names, 3)
    by_last = {name.rpartition(".")[2]: name for name in reversed(names)}
    near += [by_last[hit] for hit in nearest(last or text, list(by_last), 3) if by_last[hit] not in near]
    sections = list(dict.fromkeys(name.partition(".")[0] for name in names))
    same = [n for n in names if n.startswith(f"{section}.") and n.count(".") == 1 and n not in near]
    said = f"did you mean {', '.join(near[:3])}? " if near else ""
    if same:
        return f"{said}{section} also has {', '.join(n.partition('.')[2] for n in same)}"
    return f"{said}metrics start with {', '.join(sections)}; `kvplan check --metrics` lists them all"


def shown(kind: str, value: Any, *, exact: bool = False) -> str:
    """A value of a `Kind` for people: bytes with their unit, large numbers with separators."""
    if value is None:
        return "none"
    if kind == "switch":
        return "true" if value else "false"
    if kind == "text":
        return str(value)
    if kind == "bytes":
        return f"{value:,.0f} B" if exact or abs(value) < 2**20 else _binary(value)
    if kind == "tokens":
        return f"{value:,.0f} tokens"
    if kind == "seconds":
        return _seconds(value)
    if kind == "share":
        return f"{value:g}"
    text = f"{value:,}" if isinstance(value, int) else f"{value:,.0f}" if abs(value) >= 1e6 else _digits(value, exact)
    return f"{text} USD" if kind == "money" else text


def _digits(value: float, exact: bool) -> str:
    return f"{value:,.12g}" if exact else f"{value:,.4g}" if abs(value) < 1000 else f"{value:,.1f}"


def _binary(value: float) -> str:
    return gib(value, 3) if abs(value) >= 2**28 else f"{value / 2**20:,.3f} MiB"


def _seconds(value: float) -> str:
    if abs(value) >= 1:
        return f"{value:,.4g} s"
    return f"{value * 1e3:.4g} ms" if abs(value) >= 1e-3 or value == 0 else f"{value * 1e6:.4g} us"

"""From what a rule file declares to what can be worked out: names looked up, manifests read, defaults filled in.

Nothing depends on the machine: no variable that the file does not name, no network, paths from the file's folder.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import chdir
from typing import TYPE_CHECKING, Any, NamedTuple

from kvplan.check.figures import Subject
from kvplan.check.problems import Place, Problems
from kvplan.engines import DEFAULT_ENGINE, get_engine
from kvplan.errors import InputError, KvplanError, printable
from kvplan.planning.settings import BESIDE, COMMON, flag_name

if TYPE_CHECKING:
    from kvplan.check.fields import Fields
    from kvplan.check.rulefile import Declared, Workload
    from kvplan.check.rules import Rule
    from kvplan.deployment import Deployment
    from kvplan.sources.commands import Command, Opened
    from kvplan.spec.gpu import GpuSpec
    from kvplan.spec.model import ModelSpec

_NAMING = ("gpu", "gpu_memory", "gpu_bandwidth", "engine", "assume")


class Case(NamedTuple):
    """One deployment under one workload, ready to be worked out."""

    declared: Declared
    workload: Workload
    subject: Subject
    rules: tuple[Rule, ...]
    warnings: tuple[str, ...]
    command: Mapping[str, str]
    """setting -> the words of the command line or manifest that set it."""
    unknown: tuple[str, ...] = ()
    """Its flags that the engine does not have as far as is known."""

    @property
    def name(self) -> str:
        return f"{self.declared.name}/{self.workload.name}" if self.workload.name else self.declared.name


class Lookup:
    """Finds models, GPUs and commands, each once."""

    def __init__(self) -> None:
        self.models: dict[tuple[str, ...], ModelSpec] = {}
        self.gpus: dict[tuple[Any, ...], GpuSpec | None] = {}
        self.started: dict[tuple[str, ...], Deployment] = {}
        self.opened: Opened = {}
        self.commands: dict[tuple[str, str], Command | KvplanError] = {}

    def cases(self, deployments: tuple[Declared, ...], problems: Problems) -> list[Case]:
        """Every deployment under each of its workloads."""
        found: list[Case] = []
        start = os.getcwd()
        for declared in deployments:
            try:
                with chdir(os.path.join(start, declared.folder)):
                    for workload in declared.workloads:
                        found.append(self._case(declared, workload))
            except KvplanError as error:
                say(declared, error, problems)
        return found

    def _case(self, declared: Declared, workload: Workload) -> Case:
        layers: list[Fields] = [declared.fields, workload.fields]
        given = _laid(*layers) if workload.own else _laid(*reversed(layers))
        cancelled = {name for fields in layers for name, item in fields.items() if item.value is None}
        defaults = {n: v for n, v in _laid(declared.defaults).items() if n not in given and n not in cancelled}
        if declared.source == "model":
            model, gpu, engine, settings, warnings = self._of_model(declared.text, given, defaults)
            typed: Mapping[str, str] = {}
            unknown: tuple[str, ...] = ()
        else:
            deployment, typed = self._of_command(declared, given, defaults)
            model, gpu, engine, settings = deployment[:4]
            warnings = list(deployment.warnings)
            unknown = deployment.report.unknown if deployment.report is not None else ()
        rules = tuple(r for r in (*declared.rules, *workload.rules) if not r.workloads or workload.name in r.workloads)
        return Case(declared, workload, Subject(model, gpu, engine, settings), rules, tuple(warnings), typed, unknown)

    def _of_model(
        self, text: str, given: dict[str, Any], defaults: dict[str, Any]
    ) -> tuple[ModelSpec, GpuSpec | None, str, dict[str, Any], list[str]]:
        """A deployment that is given as fields."""
        engine = given.get("engine") or defaults.get("engine") or DEFAULT_ENGINE
        filled, warnings = _fitting(engine, {**defaults, **given}, defaults)
        model = self._model(text, filled.get("assume"))
        gpu = self._gpu(filled)
        return model, gpu, engine, {k: v for k, v in filled.items() if k not in _NAMING}, warnings

    def _model(self, text: str, assume: str | None) -> ModelSpec:
        from kvplan.sources import find_command

        key = (os.getcwd(), text, assume or "")
        if key not in self.models:
            starts = any(c.isspace() for c in text) or "#" in text or find_command(text) is not None
            if starts:
                what = f"{printable(text, 60)!r} starts an engine and is no model"
                raise InputError(what, hint="use command: or from: in place of model:")
        return self._find(text, assume=assume)

    def _find(self, text: str, *, assume: str | None = None) -> ModelSpec:
        """The model of a name or a path, each looked up once."""
        from kvplan.sources import find_model

        key = (os.getcwd(), text, assume or "")
        if key not in self.models:
            self.models[key] = find_model(text, assume=assume)
        return self.models[key]

    def _gpu(self, given: Mapping[str, Any]) -> GpuSpec | None:
        from kvplan.sources import find_gpu, override_gpu

        name = given.get("gpu")
        key = (os.getcwd(), name, given.get("gpu_memory"), given.get("gpu_bandwidth"))
        if key not in self.gpus:
            try:
                self.gpus[key] = override_gpu(find_gpu(name) if name is not None else None, *key[2:])
            except KvplanError as error:
                error.where = error.where or "--gpu"
                raise
        return self.gpus[key]

    def _of_command(
        self, declared: Declared, given: dict[str, Any], defaults: dict[str, Any]
    ) -> tuple[Deployment, Mapping[str, str]]:
        """A deployment of an engine's command line; defaults count where neither it nor the file says anything."""
        from kvplan import deployment
        from kvplan.sources.commands import command as commands

        command = self._command(declared)
        said = {*command.settings, *command.problems, *given}
        same = {name for group in commands.SAME for name in group if said & set(group)}
        rest = {n: v for n, v in defaults.items() if n not in same and n not in said and n != "engine"}
        if command.gpu and deployment._label(command, False)[0] is not None:
            rest.pop("gpu", None)
        filled, warnings = _fitting(given.get("engine") or command.engine, rest, rest)
        key = (os.getcwd(), declared.text, repr(sorted({**filled, **given}.items())))
        if key not in self.started:
            self.started[key] = deployment.of_command(command, {**filled, **given}, self._find)
        found = self.started[key]
        return found._replace(warnings=(*found.warnings, *warnings)), command.typed

    def _command(self, declared: Declared) -> Command:
        from kvplan.sources.commands import read_command
        from kvplan.sources.commands.files import split_name

        key = (os.getcwd(), declared.text)
        if key not in self.commands:
            text = declared.text
            try:
                if declared.source == "command" and not any(c.isspace() for c in text):
                    raise InputError(f"{printable(text, 60)!r} is no command line", hint="from: names a file")
                if declared.source == "from" and not os.path.isfile(split_name(text)[0]):
                    raise InputError(
                        f"{printable(split_name(text)[0])} does not exist", hint="paths start from the rule file"
                    )
                self.commands[key] = read_command(text, self.opened)
            except KvplanError as error:
                self.commands[key] = error
        found = self.commands[key]
        if isinstance(found, KvplanError):
            raise found
        return found


def _laid(*layers: Fields) -> dict[str, Any]:
    """The settings of several layers, later ones over earlier ones, without those that are left out."""
    found = {name: item.value for fields in layers for name, item in fields.items()}
    return {name: value for name, value in found.items() if value is not None}


def _fitting(engine: str, given: dict[str, Any], defaults: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """What is given, without defaults that the engine has no such setting for; and warnings about them."""
    known = COMMON | BESIDE | frozenset(_NAMING) | get_engine(engine.partition("@")[0]).settings
    dropped = [name for name in given if name in defaults and name not in known]
    warnings = [f"the default {name.replace('_', '-')} is left out: {engine} has no such setting" for name in dropped]
    return {name: value for name, value in given.items() if name not in dropped}, warnings


def say(declared: Declared, error: KvplanError, problems: Problems) -> None:
    """Add an error where the file says what it complains about: the setting that it names, else the source."""
    for name, place in _all(declared):
        if error.where == flag_name(name):
            problems.error(place, error, where=False)
            return
    problems.error(declared.text_place, error)


def _all(declared: Declared) -> Iterator[tuple[str, Place]]:
    for fields in (declared.fields, *(w.fields for w in declared.workloads), declared.defaults):
        for name, item in fields.items():
            yield name, item.place

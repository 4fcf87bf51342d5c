"""What a plan is asked about: a model, or a command line that starts one, with the flags over it."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, NamedTuple

from kvplan.engines import DEFAULT_ENGINE

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from kvplan.planning.plan import Plan
    from kvplan.sources.commands import Command, Report
    from kvplan.spec.gpu import GpuSpec
    from kvplan.spec.model import ModelSpec


class Deployment(NamedTuple):
    """Everything a plan needs, looked up."""

    model: ModelSpec
    gpu: GpuSpec | None
    engine: str
    settings: dict[str, Any]
    report: Report | None = None
    """What was taken from an engine's own command line; None: there was none."""
    warnings: tuple[str, ...] = ()
    origins: Mapping[str, str] | None = None
    """setting -> where a log says so, for those that were taken from one."""
    kv_bounds: tuple[int, int] | None = None
    """Low and high of measured bytes of cache that a change moved."""
    again: str = ""
    """The flag of a command line that changes its model's configuration, to stand in the line to paste."""

    def plan(self) -> Plan:
        """The plan, with what was taken from a command line in its inputs and warnings."""
        from kvplan.planning.planner import plan_deployment

        result = plan_deployment(self.model, self.gpu, self.engine, self.settings)
        if self.report is not None:
            result.inputs["command"] = self.report.to_dict()
        result.inputs["defaults"].update(self.origins or {})
        if self.kv_bounds is not None:
            result.inputs["kv_cache_memory_bounds"] = list(self.kv_bounds)
        if self.again:
            notes = [self._with_changes(note) for note in result.verdict.notes]
            result = result._replace(verdict=result.verdict._replace(notes=tuple(notes)))
        said = (*result.warnings, *self.warnings, *self._left_out(result))
        return result._replace(warnings=tuple(dict.fromkeys(said)))

    def _with_changes(self, note: str) -> str:
        line, mark, rest = note.partition("\n")
        return f"{line} {self.again}{mark}{rest}" if note.startswith("to paste: ") else note

    def _left_out(self, result: Plan) -> list[str]:
        """What the line to paste lacks of the command although the engine needs it."""
        if self.again or self.report is None or "max_position_embeddings" not in self.report.settings:
            return []
        pasted = any(note.startswith("to paste: ") for note in result.verdict.notes)
        said = "the line to paste leaves out what changes the model's configuration: add it as it was given"
        return [said] if pasted else []


def find_deployment(text: str, given: dict[str, Any]) -> Deployment:
    """The deployment behind a verb's MODEL and its flags, as `kvplan.cli.flags.read` gives them.

    Raises:
        KvplanError: there is no such model or GPU, or a command line does not say what it has to.
    """
    from kvplan.sources import find_command, find_model

    given = dict(given)
    command = find_command(text)
    if command is not None:
        if "allow_long_max_model_len" not in command.settings:
            _allow_long(given, given.get("engine") or command.engine)
        return of_command(command, given)
    read = {key: given.pop(key) for key in ("assume", "hub") if key in given}
    return of_model(lambda: find_model(text, **read, weights=given.get("weights")), given)


def of_model(model: ModelSpec | Callable[[], ModelSpec], given: dict[str, Any]) -> Deployment:
    """The deployment of a model with the flags alone.

    Args:
        model: itself, or what looks it up once the flags are read.

    Raises:
        KvplanError: there is no such model, GPU or engine.
    """
    given = dict(given)
    engine = given.pop("engine", DEFAULT_ENGINE)
    _allow_long(given, engine)
    gpu = _gpu(given, None)
    return Deployment(model() if callable(model) else model, gpu, engine, given)


def _allow_long(given: dict[str, Any], engine: str) -> None:
    """What vLLM and SGLang read from their environment: a variable lifts the limit of a model's length."""
    variable = _ALLOW_LONG.get(engine.partition("@")[0])
    if variable and os.environ.get(variable, "").lower() in ("1", "true"):
        given.setdefault("allow_long_max_model_len", True)


_ALLOW_LONG = {"vllm": "VLLM_ALLOW_LONG_MAX_MODEL_LEN", "sglang": "SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN"}


def of_log(text: str | None, given: dict[str, Any]) -> Deployment:
    """The deployment of ``--from-log FILE``: the log's settings and bytes, the flags over them.

    Args:
        text: MODEL, where it was given; None: the model that the log names.

    Raises:
        KvplanError: the log cannot be read, or does not say enough.
    """
    from kvplan.planning.log_base import measured_base
    from kvplan.sources import find_model
    from kvplan.sources.logs import read_log

    given = dict(given)
    path = given.pop("from_log")
    log, name = read_log(path), "standard input" if path == "-" else path
    read = {key: given.pop(key) for key in ("assume", "hub") if key in given}
    model = find_model(text, **read, weights=given.get("weights")) if text is not None else None
    gpu, engine = _gpu(given, None), given.pop("engine", None)
    base = measured_base(log, name=name, model=model, gpu=gpu, engine=engine, given=given)
    found = base.found
    assert found.model is not None  # measured_base looked
    warnings = (*log.warnings, *found.warnings)
    return Deployment(found.model, found.gpu, found.engine, found.settings, None, warnings, found.origins, base.bounds)


def _gpu(given: dict[str, Any], otherwise: str | None) -> GpuSpec | None:
    """The accelerator that the flags describe; `otherwise` where they name none."""
    from kvplan.sources import find_gpu, override_gpu

    name, memory, bandwidth = (given.pop(key, None) for key in ("gpu", "gpu_memory", "gpu_bandwidth"))
    if bandwidth is not None and given.get("calibration") is not None:
        from kvplan.errors import InputError

        raise InputError(
            "the calibration has a bandwidth that was measured",
            where="--gpu-bandwidth",
            hint="leave out one of the two",
        )
    name = name or otherwise
    return override_gpu(find_gpu(name) if isinstance(name, str) else name, memory, bandwidth)


def of_command(
    command: Command, given: dict[str, Any], find: Callable[..., ModelSpec] | None = None
) -> Deployment:  # fmt: skip
    """The deployment of an engine's own command line, with kvplan's flags over it.

    Args:
        find: what looks models up; None: `kvplan.sources.find_model`.
    """
    from kvplan.errors import KvplanError
    from kvplan.sources import find_model

    engine, accepted, warnings = _engine(command, given.pop("engine", None))
    label, unclear = _label(command, "gpu" in given)
    gpu = _gpu(given, label)
    read = {key: given.pop(key) for key in ("assume", "hub") if key in given}
    settings, report = command.under(given, accepted)
    try:
        if find is not None:
            model = find(command.model, **read)
        else:
            model = find_model(command.model, **read, weights=settings.get("weights"))
    except KvplanError as error:
        error.where = error.where or command.source
        raise
    model, settings, report, changed = command.meets(model, settings, report, engine)
    said = (*command.warnings, *warnings, *unclear, *report.warnings(), *changed)
    same = command.engine.partition("@")[0] == engine.partition("@")[0]
    again = command.changes.given if same and command.changes is not None else ""
    return Deployment(model, gpu, engine, settings, report, tuple(filter(None, said)), again=again)


def _engine(command: Command, given: str | None) -> tuple[str, frozenset[str] | None, list[str]]:
    """(the engine to plan for, the settings it takes where it is not the command's, warnings).

    That is what was typed, or the command's at the version it says.
    """
    from kvplan.engines import get_engine
    from kvplan.errors import InputError
    from kvplan.planning.settings import COMMON

    name = command.engine.partition("@")[0]
    if given is not None:
        other = get_engine(given)
        return given, None if other.name == name else COMMON | other.settings, []
    try:
        get_engine(command.engine)
    except InputError as error:
        return name, None, [f"{command.source}: {error.message}; the rules of {get_engine(name).version} are used"]
    return command.engine, None, []


def _label(command: Command, given: bool) -> tuple[str | None, list[str]]:
    """(the accelerator that the command's source names, where no flag does; warnings)."""
    from kvplan.catalog import resolve_gpu_name
    from kvplan.errors import KvplanError, printable

    if given or not command.gpu:
        return None, []
    try:
        found, what = resolve_gpu_name(command.gpu), f"no GPU is called {printable(command.gpu, 40)!r}"
    except KvplanError as error:
        found, what = None, error.message
    return found, [] if found else [f"{command.source}: {what}; add --gpu NAME"]

"""One deployment under several engines, or several versions of one."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

from kvplan.engines import DEFAULT_ENGINE, distinct, get_engine
from kvplan.engines.base import Change
from kvplan.engines.versions import version_key
from kvplan.errors import InputError, KvplanError
from kvplan.planning.plan import Plan, to_plain
from kvplan.planning.planner import plan_deployment
from kvplan.planning.settings import COMMON, flag_name

if TYPE_CHECKING:
    from kvplan.engines.base import Engine
    from kvplan.spec.gpu import GpuSpec
    from kvplan.spec.model import ModelSpec

SCHEMA = "kvplan.plans/1"
MOST = 32
"""Engines in one comparison."""


class Refused(NamedTuple):
    """An engine that cannot answer, and why."""

    engine: str
    message: str
    hint: str | None


class Between(NamedTuple):
    """What changed between two versions of one engine."""

    engine: str
    older: str
    newer: str
    changes: tuple[Change, ...]


class SideBySide(NamedTuple):
    """The plans, in the order that was asked for."""

    schema: str
    plans: tuple[Plan, ...]
    refused: tuple[Refused, ...]
    left_out: dict[str, tuple[str, ...]]
    """Engine -> flags that were given and that it does not have."""
    changes: tuple[Between, ...]

    def to_dict(self) -> dict[str, Any]:
        """The JSON object of ``kvplan plan --engine A,B --json``."""
        plain: dict[str, Any] = to_plain(self._replace(plans=()))
        plain["plans"] = [plan.to_dict() for plan in self.plans]
        return plain

    @property
    def status(self) -> int:
        """0: it fits under one of them at least (or nothing says), 1: under none, 2: none could answer."""
        if not self.plans:
            return 2
        return 0 if any(plan.holds for plan in self.plans) else 1


def engine_names(text: str) -> list[str]:
    """``all``, or the engines of a comma list, each once.

    Raises:
        InputError: an empty name, or too many of them; UnknownNameError: no such engine.
    """
    if text.strip().lower() == "all":
        return distinct()
    names = list(dict.fromkeys(part.strip() for part in text.split(",")))
    if "" in names or len(names) > MOST:
        raise InputError(
            "has an empty name" if "" in names else f"more than {MOST} engines", where="--engine",
            hint="--engine vllm,sglang, or --engine all",
        )  # fmt: skip
    for name in names:
        if name.partition("@")[0].strip().lower() == "all":
            raise InputError(
                "all is every engine, and stands alone", where="--engine",
                hint=f"type --engine all, or name those you want: --engine {DEFAULT_ENGINE},sglang",
            )  # fmt: skip
        get_engine(name)
    return names


def side_by_side(model: ModelSpec, gpu: GpuSpec | None, names: list[str], given: dict[str, Any]) -> SideBySide:
    """Plan the same deployment under each engine; what one of them has no setting for is left out for it."""
    plans: list[Plan] = []
    refused: list[Refused] = []
    left_out: dict[str, tuple[str, ...]] = {}
    engines = [get_engine(name) for name in names]
    for name, engine in zip(names, engines, strict=True):
        known = COMMON | engine.settings | {"calibration"}
        own, unfit = _whole_layers(given) if not engine.splits_tensors else (given, ())
        left = tuple(sorted(flag_name(setting) for setting in (*unfit, *(s for s in own if s not in known))))
        if left:
            left_out[name] = left
        try:
            plans.append(plan_deployment(model, gpu, name, {k: v for k, v in own.items() if k in known}))
        except KvplanError as error:
            refused.append(Refused(name, str(error), error.hint))
    return SideBySide(SCHEMA, tuple(plans), tuple(refused), left_out, tuple(_between(engines)))


def _whole_layers(given: dict[str, Any]) -> tuple[dict[str, Any], tuple[str, ...]]:
    """(the settings of an engine that deals whole layers over as many GPUs, what it has no word for)."""
    split = given.get("tensor_parallel_size", 1)
    if split == 1:
        return given, ()
    ranks = split * given.get("pipeline_parallel_size", 1) * given.get("data_parallel_size", 1)
    left = tuple(name for name in ("tensor_parallel_size", "pipeline_parallel_size") if name in given)
    return {"gpus": ranks, **{name: value for name, value in given.items() if name not in left}}, left


def nothing_planned(result: SideBySide) -> InputError:
    """The one error of a comparison in which no engine could answer."""
    first = result.refused[0]
    if len({refused.message for refused in result.refused}) == 1:
        return InputError(first.message, hint=first.hint)
    return InputError(
        f"none of {len(result.refused)} engines can plan this; {first.engine}: {first.message}",
        hint=first.hint or f"--engine {first.engine} says more",
    )


def _between(engines: list[Engine]) -> list[Between]:
    """What changed between neighbouring versions of each engine that is there more than once."""
    found = []
    for name in dict.fromkeys(engine.name for engine in engines):
        same = sorted((e for e in engines if e.name == name), key=lambda e: version_key(e.version))
        for older, newer in pairwise(same):
            low, high = version_key(older.version), version_key(newer.version)
            changes = tuple(c for c in newer.changes() if low < version_key(c.since) <= high)
            if low != high:
                found.append(Between(name, older.version, newer.version, changes))
    return found

"""What becomes of a case before a byte is counted: the settings that an engine makes of it, and its ranks, or why not.

Devices of one generation are mostly told the same, so one of them is asked for all.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

from kvplan.errors import KvplanError
from kvplan.planning.drafts import served_model
from kvplan.planning.evaluate import build_stages
from kvplan.planning.fit.candidates import Layout
from kvplan.planning.settings import resolve
from kvplan.planning.weights import weight_format

if TYPE_CHECKING:
    from kvplan.engines.base import Engine, Settings, Stage
    from kvplan.planning.weights import RoleWeights, WeightFormat
    from kvplan.spec.gpu import GpuSpec
    from kvplan.spec.model import ModelSpec

_TOLD_APART = frozenset({"nvidia", "amd", "custom"})
"""Vendors whose devices these engines know one by one; all others are one kind to them."""


class Case(NamedTuple):
    """What is tried on a GPU."""

    engine: str
    weights: str
    cache: str
    layout: Layout

    def settings(self) -> dict[str, Any]:
        """As `plan_deployment` takes them."""
        formats = {"weights": self.weights, "kv_cache_dtype": self.cache}
        return self.layout.settings() | {name: value for name, value in formats.items() if value != "auto"}


class Structure(NamedTuple):
    """Ranks of a layout with weights in one format."""

    model: ModelSpec
    weights: WeightFormat
    stages: tuple[Stage, ...]
    roles: tuple[tuple[RoleWeights, ...], ...]


class Cases:
    """The cases of a model under one engine.

    Args:
        name: of the engine, with its version as asked for.
        given: what is the same for all cases, as `plan_deployment` takes it.
    """

    def __init__(
        self, model: ModelSpec, name: str, engine: Engine, gpus: Sequence[GpuSpec], given: Mapping[str, Any]
    ) -> None:
        self.model, self.name, self.engine, self.gpus, self.given = model, name, engine, gpus, dict(given)
        self._chosen: dict[Any, Settings | KvplanError] = {}
        self._structures: dict[tuple[str, Layout], Structure | KvplanError] = {}

    @cached_property
    def keys(self) -> list[Any]:
        """Of each GPU, what devices must have in common to be planned alike.

        An engine looks at a device when it chooses settings, and when it counts what it spends: at the link, at
        whose the device is among `_TOLD_APART`, and there at its generation. The rows that are shown are planned anew,
        so that nothing rests on this alone.
        """
        found: list[Any] = list(range(len(self.gpus)))
        if not self.engine.alike_by_generation:
            return found
        for row, (gpu, settings) in enumerate(zip(self.gpus, self._plain, strict=True)):
            if not isinstance(settings, KvplanError):
                vendor = gpu.vendor if gpu.vendor in _TOLD_APART else ""
                generation = (gpu.compute_capability or "").partition(".")[0] if vendor else ""
                link = (gpu.interconnect == "nvlink", gpu.interconnect_bridge)
                found[row] = (link, vendor, generation, settings_key(settings))
        return found

    @cached_property
    def _plain(self) -> list[Settings | KvplanError]:
        """What is said of each GPU alone, with the formats that nobody has to ask for."""
        case = Case(self.name, "auto", "auto", Layout())
        return [self.settings(case, gpu) for gpu in self.gpus]

    @cached_property
    def refused_alike(self) -> dict[int, Any]:
        """Row -> a kind of device that is refused in the same words alone, by the same vendor's same generation.

        What is typed is mostly wrong for all of them, whatever the formats and the layout. A case that the first of a
        kind is not refused is tried on each.
        """
        return {
            row: (gpu.vendor, gpu.compute_capability, str(settings))
            for row, (gpu, settings) in enumerate(zip(self.gpus, self._plain, strict=True))
            if isinstance(settings, KvplanError)
        }

    def _resolved(self, case: Case, gpu: GpuSpec, key: Any) -> Settings:
        """The settings of a case. Engines `alike_by_generation` choose alike for layouts whose ranks keep whole tokens,
        and refuse alike.

        Raises:
            KvplanError: it is refused.
        """
        plain = case.layout.dcp == 1 and not case.layout.expert_parallel
        known = (case.weights, case.cache, key)
        if key is not None and plain and known in self._chosen:
            chosen, (tp, pp, dp, *_) = self._chosen[known], case.layout
            if isinstance(chosen, KvplanError):
                raise chosen
            return replace(
                chosen, tensor_parallel_size=tp, pipeline_parallel_size=pp, data_parallel_size=dp,
                gpus=case.layout.world,
            )  # fmt: skip
        keeps = key is not None and plain and self.engine.alike_by_generation
        one = case.layout.world == 1  # of which no layout can be wrong
        try:
            settings, _ = resolve(self.model, gpu, self.engine, self.given | case.settings())
        except KvplanError as error:
            if keeps and one:
                self._chosen[known] = error
            raise
        if keeps:
            self._chosen[known] = settings
        return settings

    def settings(self, case: Case, gpu: GpuSpec, key: Any = None) -> Settings | KvplanError:
        """The settings of a case, checked; or why it is refused."""
        try:
            settings = self._resolved(case, gpu, key)
            structure = self.structure(case, settings)
            if isinstance(structure, KvplanError):
                return structure
            self.engine.check(structure.model, settings, gpu)
        except KvplanError as error:
            return error
        return settings

    def structure(self, case: Case, settings: Settings) -> Structure | KvplanError:
        key = (case.weights, case.layout)
        if key not in self._structures:
            try:
                model = served_model(self.model, self.engine, settings)
                weights = weight_format(model, settings.weights)
                self._structures[key] = Structure(model, weights, *build_stages(model, self.engine, settings, weights))
            except KvplanError as error:
                self._structures[key] = error
        return self._structures[key]


def settings_key(settings: Settings) -> str:
    """What settings must have in common for pools to be laid out alike."""
    extra = {k: v for k, v in settings.extra.items() if k != "compute_capability"}
    return repr(replace(settings, defaults={}, extra=extra))

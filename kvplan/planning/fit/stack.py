"""Many deployments as one: figures of GPUs and of candidates laid side by side in arrays, for the same formulas."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy

from kvplan.planning.speed.constants import BRIDGED
from kvplan.planning.speed.profile import Profile, StageCost
from kvplan.planning.speed.rates import Rates, ranks_that_meet, rates

if TYPE_CHECKING:
    from kvplan.engines.base import Engine, Settings
    from kvplan.planning.calibration import Calibration
    from kvplan.spec.formats import Format
    from kvplan.spec.gpu import GpuSpec

_PLAIN = ("source", "notes", "softness")
"""Of `Rates`: what is no figure of a device."""
_OPEN = ("step_seconds", "pp", "spread", "chunk")
"""Of `Profile`: what differs between candidates, beside the stages."""
_NUMBERS = tuple(name for name in StageCost._fields if name not in ("experts", "draft"))
_NOTHING = StageCost._make((0.0, (), *(0.0,) * (len(_NUMBERS) - 1), None))


class RatesOf:
    """`Rates` of all GPUs under one engine, one set of arrays for every pair of formats."""

    def __init__(self, engine: Engine, gpus: Sequence[GpuSpec], measured: Mapping[str, Calibration]) -> None:
        self.engine, self.gpus, self.measured = engine, gpus, measured
        self._known: dict[Any, tuple[Rates | None, Any]] = {}
        self._each: dict[Any, Rates | None] = {}

    def stacked(self, weights: Format, cache: Format, settings: Settings) -> tuple[Rates | None, Any]:
        """(rates as arrays, one entry a GPU; where they are known: a time per token and per prompt can be said)."""
        flash = settings.extra.get("flash_attn", "auto") not in ("off", "0", "false")
        apart = ranks_that_meet(settings) > BRIDGED
        key = (weights.name, cache.name, flash, settings.enforce_eager)
        if (key, apart) not in self._known:
            found = [
                self._of(gpu, weights, cache, flash, settings, apart and gpu.interconnect_bridge) for gpu in self.gpus
            ]
            good = [r is not None and r.matmul_flops is not None and r.attention_flops is not None for r in found]
            some = next((r for r, ok in zip(found, good, strict=True) if ok), None)
            filled = [r if ok and r is not None else some for r, ok in zip(found, good, strict=True)]
            self._known[key, apart] = (
                None if some is None else _stacked([r for r in filled if r]),
                numpy.array(good, bool),
            )
        return self._known[key, apart]

    def _of(
        self, gpu: GpuSpec, weights: Format, cache: Format, flash: bool, settings: Settings, apart: bool
    ) -> Rates | None:
        """Those of one GPU.

        Args:
            apart: more of them meet than a bridge joins.
        """
        key = (gpu.id, weights.name, cache.name, flash, settings.enforce_eager, apart)
        if key not in self._each:
            version = getattr(self.engine, "build", "") or settings.engine_version
            self._each[key] = rates(
                gpu, self.engine.name, weights, cache, version=version, flash=flash,
                eager=settings.enforce_eager, calibration=self.measured.get(gpu.id), meeting=ranks_that_meet(settings),
            )  # fmt: skip
        return self._each[key]


def _stacked(found: Sequence[Rates]) -> Rates:
    fields: dict[str, Any] = {}
    found = [  # one line for all sizes is a second one that is no faster
        each if each.short_bandwidth is not None
        else each._replace(short_bandwidth=each.link_bandwidth, short_seconds=each.link_seconds)
        for each in found
    ]  # fmt: skip
    for name, values in zip(Rates._fields, zip(*found, strict=True), strict=True):
        if name in _PLAIN:
            fields[name] = values[0]
        else:  # no cap is one that nothing reaches
            fields[name] = numpy.array([numpy.inf if v is None else v for v in values], dtype=float)
    return Rates(**fields)


def taken(found: Rates, rows: Any) -> Rates:
    """The rates of some GPUs."""
    fields: dict[str, Any] = {n: v[rows] if isinstance(v, numpy.ndarray) else v for n, v in found._asdict().items()}
    return Rates(**fields)


def joined(profiles: Sequence[Profile], sizes: Sequence[int]) -> Profile:
    """Profiles of the same lengths one after another, `sizes` entries each; missing stages and experts take no time."""
    stages = max(len(p.stages) for p in profiles)

    def column(values: Sequence[Any]) -> Any:
        return numpy.concatenate([numpy.zeros(n) + v for v, n in zip(values, sizes, strict=True)])

    def together(parts: Sequence[StageCost | None]) -> StageCost | None:
        if not any(parts):
            return None
        costs = [part or _NOTHING for part in parts]
        pairs = []
        for e in range(max(len(c.experts) for c in costs)):
            known = [c.experts[e] if e < len(c.experts) else (0.5, 0.0) for c in costs]
            pairs.append((column([idle for idle, _ in known]), column([seconds for _, seconds in known])))
        fields = {name: column([getattr(c, name) for c in costs]) for name in _NUMBERS}
        return StageCost(experts=tuple(pairs), draft=together([c.draft for c in costs]), **fields)

    def stage(index: int) -> tuple[Any, StageCost]:
        parts = [p.stages[index] if index < len(p.stages) else (0, None) for p in profiles]
        return column([count for count, _ in parts]), together([cost for _, cost in parts]) or _NOTHING

    rest = {name: column([getattr(p, name) for p in profiles]) for name in _OPEN}
    return profiles[0]._replace(stages=tuple(stage(i) for i in range(stages)), **rest)

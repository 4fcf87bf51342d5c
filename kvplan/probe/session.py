"""What a section of the probe gets, and where it leaves what it found out."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from kvplan.probe.receipt import median

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvplan.cache.bytes import KvFormats
    from kvplan.engines.base import Engine, Settings
    from kvplan.planning.calibration import Calibration, Heads
    from kvplan.planning.evaluate import Outcome
    from kvplan.planning.speed.figures import Setup
    from kvplan.probe.device import ProbeDevice
    from kvplan.probe.layout import RankLayout
    from kvplan.spec.gpu import GpuSpec
    from kvplan.spec.model import ModelSpec


class Limits(NamedTuple):
    """How much the probe may take."""

    max_bytes: int
    """Device bytes held at once, by all tensors of a section together."""
    quick: bool = False
    """Fewer shapes and samples: the whole run in under a minute."""
    deadline: float = float("inf")
    """`time.monotonic` value after which no new shape is begun."""
    slow: bool = False
    """A device without graphs (CPU), whose passes take long: fewer samples."""

    @property
    def samples(self) -> int:
        """Timed repeats of one shape; at least three, so that there is a spread."""
        if self.slow:
            return 3 if self.quick else 9
        return 7 if self.quick else 20

    @property
    def seconds_left(self) -> float:
        """Until the deadline; never below 0."""
        return max(0.0, self.deadline - time.monotonic())


class MeasuredFigure(NamedTuple):
    """A quantity of a calibration: the median of its samples, and what they span."""

    value: float
    low: float
    high: float
    samples: int

    @classmethod
    def of(cls, samples: Sequence[float]) -> MeasuredFigure:
        """Median, smallest and largest of the samples."""
        return cls(median(samples), min(samples), max(samples), len(samples))


class MeasuredLine(NamedTuple):
    """``seconds = bytes / bytes_per_second + latency_seconds`` over several shapes."""

    bytes_per_second: MeasuredFigure
    latency_seconds: MeasuredFigure
    worst_miss: float
    """Largest relative miss of the line over its shapes."""


@dataclass(kw_only=True)
class Figures:
    """What the sections measured for a calibration; keys as in ``docs/speed.md``."""

    read_bytes_per_second: MeasuredFigure | None = None
    """The read ceiling: `bandwidth` sets it, every share is taken of it."""
    read_method: str | None = None
    """The way of reading that is as fast as that."""
    matmul_flops: dict[str, MeasuredFigure] = field(default_factory=dict)
    linear: dict[str, MeasuredLine] = field(default_factory=dict)
    attention: dict[str, MeasuredLine] = field(default_factory=dict)
    """``16``, ``8``, ``4`` -> the line of decode attention of one layer."""
    heads: Heads | None = None
    """The attention that these lines are of."""
    layer_seconds: MeasuredFigure | None = None


@dataclass(kw_only=True)
class Session:
    """One run of the probe over one planned model on one device."""

    device: ProbeDevice
    model: ModelSpec
    """The whole model."""
    layout: RankLayout
    """The cache of one rank: its layers, streams, formats and pages."""
    gpu: GpuSpec
    """The device as the planner sees it: the catalog's entry, or one made from what was read."""
    engine: Engine
    settings: Settings
    outcome: Outcome
    """The plan's evaluation: stages, weights, pool."""
    limits: Limits
    figures: Figures = field(default_factory=Figures)
    exhibits: dict[str, Any] = field(default_factory=dict)
    """What a section shows besides rows (block tables, fitted points): plain data for the receipt."""
    say: Callable[[str], None] = lambda text: None
    """Says on stderr what is being done: ``attention, fp8, 64 x 4096``."""
    seed: int = 0
    lacks: list[str] = field(default_factory=list)
    """What a section left out for want of memory or time, a sentence each; see `lack`."""

    def lack(self, what: str) -> None:
        """Note that something was not measured that should have been: the receipt is then not complete."""
        if what not in self.lacks:
            self.lacks.append(what)

    def speed(
        self, calibration: Calibration | None = None, *, engine: str = "generic", formats: KvFormats | None = None
    ) -> Setup | str:
        """What `kvplan.planning.speed` predicts this model's step from; a sentence where nothing can be said.

        Args:
            calibration: None: the stated constants.
            engine: whose constants; ``generic`` has no overhead of an engine.
            formats: of the cache, in place of the plan's.
        """
        from kvplan.engines import get_engine
        from kvplan.planning.speed.figures import setup

        chosen = self.engine if engine == self.engine.name else get_engine(engine)
        return setup(self.model, self.gpu, chosen, self.outcome, calibration, formats)

    def calibration(self) -> Calibration | None:
        """`figures` as the planner reads them; None while nothing says how fast memory is read."""
        from kvplan.planning.calibration import from_data
        from kvplan.probe.calibrate import calibration_data

        data = calibration_data(self)
        return from_data(data, "this run") if data is not None else None

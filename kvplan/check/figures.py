"""The figures that rules ask for, worked out when they are asked for, and no others.

A plan computes everything it can say; a check of a thousand deployments needs a few figures of each. Both come from
the same functions of `kvplan.planning`. What is modelled has bounds: the memory terms at their high ends give the
least cache, at their low ends the most.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, NamedTuple

from kvplan.check import bounds
from kvplan.engines import get_engine
from kvplan.engines.base import Pool
from kvplan.planning import planner
from kvplan.planning.advice import most_sequences
from kvplan.planning.evaluate import Outcome, Waterfall, build_stages, obstacles, resources, settled
from kvplan.planning.kv import kv_figures
from kvplan.planning.settings import SERVICE
from kvplan.planning.weights import weight_format
from kvplan.spec.arrays import last_true

if TYPE_CHECKING:
    from kvplan.check.metrics import Metric
    from kvplan.check.rules import Bound
    from kvplan.engines.base import Engine, Settings, Stage
    from kvplan.planning.calibration import Calibration
    from kvplan.planning.plan import Plan
    from kvplan.planning.speed.figures import Speed
    from kvplan.planning.weights import RoleWeights, WeightFormat
    from kvplan.planning.workload import ServingFigures
    from kvplan.spec.gpu import GpuSpec
    from kvplan.spec.model import ModelSpec

LIGHT = frozenset(
    {
        "max_model_len", "max_num_seqs", "gpu_memory_utilization", "concurrency", "prompt_tokens", "output_tokens",
        "shared_prefix_tokens",
    }
)  # fmt: skip
"""Settings on which neither weights nor layout depend."""
_RISING = frozenset({("verdict", "fits"), ("memory", "kv_bytes")})
"""Figures beside those of the capacity that more memory for the cache never makes smaller (true counts as more)."""
_OTHERS = frozenset({"min_gpu_memory_utilization", "block_size", "at", "by_shared_prefix"})
"""Figures of the capacity for which that is not so."""
_NO_SUM = ("max_num_seqs_allowed", "block_size")
"""Figures of a pool that are not nothing where there is no pool."""


class Subject(NamedTuple):
    """What is worked out: a deployment under one workload."""

    model: ModelSpec
    gpu: GpuSpec | None
    engine: str
    given: dict[str, Any]
    """As `kvplan.planning.planner.plan_deployment` takes them."""


class Figure:
    """The values of one metric: one for each rank where it has several.

    Args:
        mid: in the middle of what is modelled.
        ends: the values with the least memory left for the cache, and with the most; each worked out when it is
            asked for. None: there are none, or they are `known`.
        known: the values at both ends, where they are there at once.
        rises: whether more memory for the cache never makes it smaller, so that one end is enough to know.
        endless: whether no value stands for one above every limit.
    """

    def __init__(
        self, mid: tuple[Any, ...], ends: tuple[Ends, Ends] | None = None, known: tuple[Any, ...] = (), *,
        rises: bool = False, endless: bool = False,
    ) -> None:  # fmt: skip
        self.mid = mid
        self.rises, self.endless = rises, endless
        self._ends = ends
        self._known: dict[int, tuple[Any, ...]] = {0: known[:1], 1: known[1:]} if known else {}

    def end(self, which: int) -> tuple[Any, ...]:
        """The values at one end: 0 is the least memory, 1 the most."""
        if which not in self._known and self._ends is not None:
            self._known[which] = self._ends[which]()
        return self._known.get(which, ())

    def pick(self, bound: Bound, operator: str, holds: Callable[[Any], bool]) -> Any:
        """The value that a rule is held against; None where there is none."""
        if self.endless and bound != "mid":
            return self._endless(bound == "low" or (bound == "pessimistic" and operator in (">=", ">")))
        if any(value is None for value in self.mid):
            return None
        if not _numbers(self.mid) or operator in ("==", "!="):
            return self._failing(bound, holds)
        least = operator in (">=", ">")
        if bound == "mid":
            return min(self.mid) if least else max(self.mid)
        low = bound == "low" or (bound == "pessimistic" and least)
        values = [*self.mid, *(self.end(0 if low else 1) if self.rises else (*self.end(0), *self.end(1)))]
        if any(value is None for value in values):
            return None
        return min(values) if low else max(values)

    def _endless(self, low: bool) -> Any:
        """The least or the largest value, where none is larger than all."""
        values = (*self.mid, *self.end(0), *self.end(1))
        some = [value for value in values if value is not None]
        if low:
            return min(some, default=None)
        return max(some) if len(some) == len(values) else None

    def _failing(self, bound: Bound, holds: Callable[[Any], bool]) -> Any:
        """The first value that breaks the rule, else the first."""
        some = self.mid
        if bound in ("low", "high"):
            some = self.end(0 if bound == "low" else 1) or self.mid
        elif bound == "pessimistic":
            some = (*self.mid, *self.end(0), *(() if self.rises else self.end(1)))
        return next((value for value in some if not holds(value)), some[0])

    def range(self) -> tuple[Any, Any, Any]:
        """(low, middle, high), of several ranks the middle of the first."""
        first = self.mid[0]
        every = [*self.mid, *self.end(0), *self.end(1)]
        if self.endless and None in every:
            some = [value for value in every if value is not None]
            return min(some, default=None), first, None
        if not _numbers(tuple(every)):
            return first, first, first
        return min(every), first, max(every)


Ends = Callable[[], tuple[Any, ...]]


def _numbers(values: tuple[Any, ...]) -> bool:
    return all(isinstance(value, int | float) and not isinstance(value, bool) for value in values)


class Worked:
    """A subject, evaluated; sections of its plan appear as they are asked for.

    Args:
        near: another one that differs in `LIGHT` settings alone, whose layout is taken over.

    Raises:
        KvplanError: it cannot be planned.
    """

    def __init__(self, subject: Subject, near: Worked | None = None) -> None:
        self.subject = subject
        model, gpu, name, given = subject
        self.gpu = gpu
        self.engine: Engine = near.engine if near is not None else get_engine(name)
        self.model, settings, self.warnings = settled(model, gpu, self.engine, given)
        self.settings = settings
        self.weights: WeightFormat = near.weights if near is not None else weight_format(self.model, settings.weights)
        self.stages: tuple[Stage, ...]
        self.roles: tuple[tuple[RoleWeights, ...], ...]
        if near is not None:
            self.stages, self.roles = near.stages, near.roles
        else:
            self.stages, self.roles = build_stages(self.model, self.engine, settings, self.weights)
        self.falls, self.kv_bytes = resources(self.model, gpu, self.engine, settings, self.stages, self.weights)
        if any(given.get(name) is not None for name in SERVICE):
            self.settings = self._under_traffic()
        self.figures: dict[tuple[str, ...], Figure] = {}
        self._ends: dict[int, Outcome] = {}
        self._served: dict[int, ServingFigures] = {}

    @property
    def said(self) -> list[str]:
        """The warnings of the plan; those about speed where a rule asked for it."""
        speed: Speed | None = self.__dict__.get("speed")
        of_memory = planner.memory_warnings(self.model, self.gpu, self.engine, self.outcome)
        rates: Calibration | None = self.__dict__.get("calibration")
        note = rates.note(self.model) if rates is not None else None
        lines = [note] if note is not None else []
        return [*of_memory, *self.warnings, *lines, *(speed.notes if speed is not None else ())]

    def _under_traffic(self) -> Settings:
        """The settings with as many running requests as the traffic makes."""
        from kvplan.planning.workload import Traffic

        traffic = Traffic(self.model, self.gpu, self.engine, self.calibration, self.subject.given)
        return traffic.running(self._judged(self.falls, self.kv_bytes)).settings

    @cached_property
    def calibration(self) -> Calibration | None:
        return planner.read_calibration(self.subject.given.get("calibration"), self.gpu)

    @cached_property
    def outcome(self) -> Outcome:
        """With every modelled term in its middle."""
        return self._judged(self.falls, self.kv_bytes)

    @cached_property
    def exact(self) -> bool:
        """Whether nothing about the memory is modelled."""
        if self.falls is None or self.kv_bytes is None:
            return True
        return all(t.low_bytes == t.high_bytes for fall in self.falls for t in fall.terms)

    def end(self, which: int) -> Outcome:
        """With the terms at their high ends (0), which leave the cache least, or at their low ends (1)."""
        if self.exact or self.falls is None:
            return self.outcome
        if which not in self._ends:
            self._ends[which] = self._judged(*self._moved(which))
        return self._ends[which]

    def _moved(self, which: int) -> tuple[tuple[Waterfall, ...], tuple[int, ...] | None]:
        """(waterfalls with their terms at one end, bytes of cache then)."""
        moved = tuple(_at(fall, ("high_bytes", "low_bytes")[which]) for fall in self.falls or ())
        asked = self.settings.kv_cache_memory_bytes is not None
        return moved, self.kv_bytes if asked else tuple(f.available_bytes for f in moved)

    def _bare_end(self, which: int) -> Outcome:
        """The same without pool and verdict, where the memory does not depend on them."""
        laid_out = not self.engine.fills_budget or self.settings.num_gpu_blocks_override is not None
        if self.exact or laid_out or which in self._ends:
            return self.end(which)
        head = (self.settings, self.stages, self.roles, self.weights)
        return Outcome(*head, *self._moved(which), None, None, None, "")

    def _judged(self, falls: tuple[Waterfall, ...] | None, kv: tuple[int, ...] | None) -> Outcome:
        head = (self.settings, self.stages, self.roles, self.weights, falls)
        if kv is None:
            return Outcome(*head, None, None, None, None, "no GPU named: the cache's own figures only")
        pool = self.engine.pool(self.stages, self.settings, kv) if min(kv) > 0 else None
        for obstacle in obstacles(self.engine, self.settings, self.stages, falls, kv, pool):
            if obstacle.stands:
                return Outcome(*head, kv, pool, False, obstacle.binding, obstacle.reason())
        return Outcome(*head, kv, pool, True, None, "the weights load, and every request holds")

    @cached_property
    def speed(self) -> Speed | None:
        if self.gpu is None:
            return None
        from kvplan.planning.speed.figures import speed

        return speed(self.model, self.gpu, self.engine, self.outcome, self.calibration)

    @cached_property
    def plan(self) -> Plan:
        """Everything, for what nothing here knows how to work out alone; what it costs at the catalog's price, where
        none is given."""
        given = {"price": (), **self.subject.given} if self.gpu is not None else self.subject.given
        return planner.plan_deployment(*self.subject[:3], given)

    def figure(self, metric: Metric) -> Figure:
        """What a metric comes to."""
        key = (*metric.path, str(metric.tokens))
        if key not in self.figures:
            self.figures[key] = self._figure(metric)
        return self.figures[key]

    def _figure(self, metric: Metric) -> Figure:
        section, rest = metric.section, metric.path[1:]
        if section in ("memory", "capacity", "verdict"):
            mid = self._of_outcome(self.outcome, metric)
            if self.exact:
                return Figure(mid)
            ends = tuple(partial(self._of_end, which, metric) for which in (0, 1))
            return Figure(
                mid,
                (ends[0], ends[1]),
                rises=metric.path in _RISING or (section == "capacity" and rest[0] not in _OTHERS),
            )
        if section == "inputs":
            return Figure((self.inputs()[rest[0]],))
        if section == "kv":
            return Figure(_values(self.kv, rest))
        if section in ("decode", "prefill"):
            found = getattr(self.speed, section) if self.speed is not None else None
            return Figure(_values(found, rest), known=bounds.speed_ends(section, found, rest))
        found = getattr(self.plan, section)
        if section == "serving" and found is not None:
            from kvplan.check import serving

            ends = tuple(partial(self._serving_at, which, rest) for which in (0, 1))
            return Figure(_values(found, rest), (ends[0], ends[1]), endless=serving.endless(rest[0]))
        ends = bounds.named_ends(found, rest) or bounds.priced_ends(found, rest)
        return Figure(_values(found, rest), known=ends)

    @cached_property
    def kv(self) -> Any:
        whole = planner.unsharded_weights(self.model, self.engine, self.settings)
        return kv_figures(self.model, self.engine, self.settings, self.stages, whole)

    def inputs(self) -> dict[str, Any]:
        """Every resolved setting, as the plan's ``inputs``."""
        return planner.plan_inputs(self.model, self.gpu, self.settings, self.outcome)

    def _of_end(self, which: int, metric: Metric) -> tuple[Any, ...]:
        found = self._bare_end(which) if metric.section == "memory" else self.end(which)
        return self._of_outcome(found, metric)

    def _of_outcome(self, outcome: Outcome, metric: Metric) -> tuple[Any, ...]:
        """A figure of memory, capacity or verdict at one end of what is modelled."""
        section, rest = metric.section, metric.path[1:]
        if section == "verdict":
            return (getattr(outcome, rest[0]),)
        if section == "memory":
            rows = planner.memory_rows(self.gpu, self.engine, outcome) if self.gpu and outcome.waterfalls else ()
            return _values(rows, rest)
        if outcome.kv_bytes is None:
            return (None,)
        if metric.tokens:
            return (self._requests_at(outcome, metric.tokens),)
        name = rest[0].removeprefix("total_")
        if name == "max_num_seqs_allowed":
            return (self._most_sequences(outcome),)
        if name in Pool._fields:
            value = getattr(outcome.pool, name) if outcome.pool is not None else None if name in _NO_SUM else 0
            return (value * self.settings.data_parallel_size if name != rest[0] and value is not None else value,)
        if name == "min_gpu_memory_utilization":
            return (planner.smallest_utilization(self.engine, outcome),)
        return _values(self.plan.capacity, rest)

    def _serving_at(self, which: int, rest: tuple[str, ...]) -> tuple[Any, ...]:
        if which not in self._served:
            from kvplan.check import serving

            self._served[which] = serving.at(self, which)
        return _values(self._served[which], rest)

    def _most_sequences(self, outcome: Outcome) -> int | None:
        """The most running sequences that start, with the memory of this outcome."""
        if outcome is self.outcome or outcome.pool is None or outcome.pool.max_num_seqs_allowed is None:
            return most_sequences(self.model, self.gpu, self.engine, outcome)
        if self.engine.sequences_flag != "--max-num-seqs":
            return outcome.pool.max_num_seqs_allowed
        which = 0 if outcome is self._ends.get(0) else 1

        def pool(sequences: int) -> Pool | None:
            asked = self.subject._replace(given={**self.subject.given, "max_num_seqs": sequences})
            return Worked(asked, self).end(which).pool

        few = pool(1)
        if few is None or few.refusal or not few.max_num_seqs_allowed:
            return 0

        def starts(sequences: int) -> bool:
            found = pool(sequences)
            return found is not None and not found.refusal

        return last_true(1, few.max_num_seqs_allowed + 1, starts)

    def _requests_at(self, outcome: Outcome, tokens: int) -> int:
        """Requests of this length that one replica runs at once; none of them where it is over the limit."""
        if outcome.pool is None or outcome.kv_bytes is None or tokens > self.settings.max_model_len:
            return 0
        return self.engine.requests_at(self.stages, self.settings, outcome.kv_bytes, tokens)


def _at(fall: Waterfall, end: str) -> Waterfall:
    """A waterfall with its terms at one end of their range."""
    terms = tuple(t._replace(bytes=getattr(t, end)) for t in fall.terms)
    return fall._replace(terms=terms, available_bytes=fall.budget_bytes - sum(t.bytes for t in terms))


def _values(found: Any, path: Iterable[str]) -> tuple[Any, ...]:
    """What lies under the fields of named tuples; of every entry where a list is in between."""
    here = _entries(found)
    for name in path:
        here = [entry for item in here if item is not None for entry in _entries(getattr(item, name))]
    return tuple(here) or (None,)


def _entries(value: Any) -> list[Any]:
    """A list's entries, or the one value."""
    return list(value) if isinstance(value, tuple) and not _named(value) else [value]


def _named(value: Any) -> bool:
    return hasattr(value, "_fields")

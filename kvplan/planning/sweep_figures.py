"""The figures of a sweep: each is read off the very objects that a plan is made of.

A `Case` holds what a plan holds between its settings and its report. Where settings are arrays, so are
the figures; names are the dotted keys of ``plan --json``, and a few sums over its lists.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

from kvplan.cache.bytes import sequence_bytes
from kvplan.errors import UnknownNameError
from kvplan.planning import prefix
from kvplan.planning.evaluate import build_stages, obstacles, resources
from kvplan.planning.kv import kv_figures
from kvplan.planning.planner import rank_kv_bytes, unsharded_weights
from kvplan.planning.weights import weight_format
from kvplan.spec.arrays import MISSING, choose, is_array, largest, least, smaller

if TYPE_CHECKING:
    from kvplan.engines.base import Engine, Pool, Settings, Stage
    from kvplan.planning.calibration import Calibration
    from kvplan.planning.cost import CostFigures
    from kvplan.planning.evaluate import Waterfall
    from kvplan.planning.plan import KvFigures
    from kvplan.planning.weights import RoleWeights, WeightFormat
    from kvplan.planning.workload import ServingFigures
    from kvplan.spec.gpu import GpuSpec
    from kvplan.spec.model import ModelSpec

BINDINGS: tuple[str | None, ...] = ("", "kv", "weights", "activations", None)
"""What may bind; the last: a limit that is no memory."""


class Column(NamedTuple):
    """The values of one figure over a block of the grid."""

    values: Any
    """A number, a string, or an array that broadcasts to the block's shape."""
    missing: Any = False
    """Where there is no such figure: a bool or an array of them."""


NOTHING = Column(None, True)


class FigureKind(NamedTuple):
    """How a figure is read off a case, what type its values have, and what it counts."""

    read: Callable[[Case], Column]
    type: str
    """``int``, ``float``, ``bool`` or ``text``."""
    text: str


class Prepared(NamedTuple):
    """What does not change while sizes and workload do."""

    model: ModelSpec
    """As it is served."""
    gpu: GpuSpec | None
    engine: Engine
    weights: WeightFormat
    stages: tuple[Stage, ...]
    roles: tuple[tuple[RoleWeights, ...], ...]
    calibration: Calibration | None = None


def prepare(
    model: ModelSpec, gpu: GpuSpec | None, engine: Engine, settings: Settings, calibration: Calibration | None
) -> Prepared:
    """Ranks and weights of a deployment.

    Raises:
        UnsupportedError: the model cannot be divided so.
    """
    weights = weight_format(model, settings.weights)
    stages, roles = build_stages(model, engine, settings, weights)
    return Prepared(model, gpu, engine, weights, stages, roles, calibration)


class Case:
    """A deployment between settings and report.

    Args:
        settings: numbers, or arrays whose shapes broadcast (`Engine.array_settings`).
        one: the same settings with `max_model_len` as a number, for what does not depend on it here.
    """

    serving: ServingFigures | None = None
    """Under traffic or targets; `kvplan.planning.sweep_traffic` sets it, and `cost`."""
    cost: CostFigures | None = None

    def __init__(self, prepared: Prepared, settings: Settings, one: Settings) -> None:
        self.prepared = prepared
        self.settings = settings
        self.one = one
        model, gpu, engine, weights, stages = prepared[:5]
        found = resources(model, gpu, engine, one, stages, weights)
        self.falls: tuple[Waterfall, ...] | None = found[0]
        self.kv_bytes: tuple[Any, ...] | None = found[1]
        self.empty: Any = True if self.kv_bytes is None else least(self.kv_bytes) <= 0
        """Where no byte is left for the cache."""

    @cached_property
    def pool(self) -> Pool | None:
        """None where there is no cache at all; where only parts of an array have none, `empty` says which."""
        if self.kv_bytes is None or self.empty is True:
            return None
        return self.prepared.engine.pool(self.prepared.stages, self.settings, self.kv_bytes)

    @cached_property
    def held(self) -> Any:
        """Requests of prompt + output that the cache of one replica holds, a common prefix once; None: no cache."""
        if self.pool is None or self.kv_bytes is None:
            return None
        return prefix.requests(self.prepared.engine, self.prepared.stages, self.settings, self.kv_bytes)

    @property
    def limited(self) -> Any:
        """Where the cache holds more requests than the engine's own limit lets run."""
        limit = prefix.running_limit(self.settings)
        if limit is None or self.pool is None or self.kv_bytes is None:
            return False
        engine, stages = self.prepared.engine, self.prepared.stages
        return prefix.requests(engine, stages, self.settings, self.kv_bytes, by_cache=True) > limit

    @cached_property
    def kv(self) -> KvFigures:
        """What the cache costs."""
        model, _, engine, _, stages = self.prepared[:5]
        return kv_figures(model, engine, self.settings, stages, unsharded_weights(model, engine, self.one))

    @cached_property
    def binding(self) -> Any:
        """Index into `BINDINGS` of the first obstacle that stands; 0: it fits. None: there is no memory to judge."""
        if self.kv_bytes is None:
            return None
        prepared, found = self.prepared, 0
        for obstacle in obstacles(
            prepared.engine, self.settings, prepared.stages, self.falls, self.kv_bytes, self.pool
        ):
            found = choose((found == 0) & obstacle.stands, BINDINGS.index(obstacle.binding), found)
        return found

    @cached_property
    def speed(self) -> Any:
        """`kvplan.planning.sweep_speed.Pace`; None without a GPU or where nothing can be said."""
        from kvplan.planning.sweep_speed import pace

        return pace(self)


Figure = Callable[[Case], Column]


def _kv(name: str) -> Figure:
    def read(case: Case) -> Column:
        value = getattr(case.kv, name)
        return NOTHING if value is None else Column(value)

    return read


def _pool(name: str, per_replica: bool = True) -> Figure:
    def read(case: Case) -> Column:
        value = getattr(case.pool, name) if case.pool is not None else None
        if value is None:
            return NOTHING
        missing = case.empty | (value == MISSING) if is_array(value) and name == "kv_tokens" else case.empty
        return Column(value if per_replica else value * case.settings.data_parallel_size, missing)

    return read


def _requests(case: Case) -> Column:
    """Requests of prompt + output that one replica runs at once, a common prefix held once, within its own limit."""
    if case.held is None:
        return NOTHING
    limit = prefix.running_limit(case.settings)
    return Column(case.held if limit is None else smaller(case.held, limit), case.empty)


def _thousand(case: Case) -> Column:
    """1,000 tokens of a short sequence, unsharded."""
    return Column(1000 * case.kv.bytes_per_token)


def _request(case: Case) -> Column:
    """One request of prompt + output, unsharded."""
    model, _, engine = case.prepared[:3]
    return Column(
        sequence_bytes(model, case.settings.request_tokens, engine.kv_formats(model, case.settings), drafts=True)
    )


def _request_per_gpu(case: Case) -> Column:
    """The same as reserved on the most loaded rank, pages included."""
    engine, settings = case.prepared.engine, case.settings
    return Column(largest(engine.request_bytes(s, settings, settings.request_tokens) for s in case.prepared.stages))


def _saved(case: Case) -> Column:
    shared = case.kv.shared_prefix
    return NOTHING if shared is None else Column(shared.bytes_saved, case.settings.shared_prefix_tokens == 0)


def _cache_bytes(case: Case) -> Column:
    """Of the rank with the least."""
    if case.kv_bytes is None:
        return NOTHING
    return Column(least(rank_kv_bytes(case.prepared.engine, case.settings, case.pool, case.kv_bytes)))


def _part(name: str) -> Figure:
    """The largest sum of one part of the waterfall over the ranks."""

    def read(case: Case) -> Column:
        return NOTHING if case.falls is None else Column(largest(fall.part(name) for fall in case.falls))

    return read


def _budget(case: Case) -> Column:
    return NOTHING if case.falls is None else Column(case.falls[0].budget_bytes)


def _fits(case: Case) -> Column:
    return NOTHING if case.binding is None else Column(case.binding == 0)


def _binding(case: Case) -> Column:
    if case.binding is None:
        return NOTHING
    if not is_array(case.binding):
        return Column(BINDINGS[case.binding], not BINDINGS[case.binding])
    import numpy

    names = numpy.asarray([name or "" for name in BINDINGS])[case.binding]
    return Column(names, names == "")


def _speed(kind: str, name: str) -> Figure:
    def read(case: Case) -> Column:
        found = getattr(case.speed, kind, None)
        return NOTHING if found is None else Column(getattr(found, name))

    return read


def _served(kind: str, name: str) -> Figure:
    def read(case: Case) -> Column:
        value = getattr(getattr(case, kind), name, None)
        return NOTHING if value is None else Column(value)

    return read


FIGURES: dict[str, FigureKind] = {
    "kv.bytes_per_token": FigureKind(_kv("bytes_per_token"), "int", "unsharded"),
    "kv.bytes_per_token_per_gpu": FigureKind(_kv("bytes_per_token_per_gpu"), "int", "on the most loaded rank"),
    "kv.marginal_bytes_per_token_at_max_len": FigureKind(
        _kv("marginal_bytes_per_token_at_max_len"), "int", "windows full where they are"
    ),
    "kv.fixed_bytes_per_sequence": FigureKind(_kv("fixed_bytes_per_sequence"), "int", "state that does not grow"),
    "kv.bytes_per_sequence": FigureKind(_kv("bytes_per_sequence"), "int", "of max_model_len, unsharded"),
    "kv.bytes_per_sequence_per_gpu": FigureKind(
        _kv("bytes_per_sequence_per_gpu"), "int", "of max_model_len, pages included"
    ),
    "kv.bytes_per_1k_tokens": FigureKind(_thousand, "int", "1,000 tokens of a short sequence, unsharded"),
    "kv.bytes_per_request": FigureKind(_request, "int", "of prompt + output, unsharded"),
    "kv.bytes_per_request_per_gpu": FigureKind(_request_per_gpu, "int", "of prompt + output, pages included"),
    "kv.exceeds_weights_at_tokens": FigureKind(
        _kv("exceeds_weights_at_tokens"), "int", "cached tokens that weigh as much as the weights"
    ),
    "kv.shared_prefix.bytes_saved": FigureKind(_saved, "int", "by sharing the common prefix"),
    "memory.budget_bytes": FigureKind(_budget, "int", "of one GPU"),
    "memory.weights_bytes": FigureKind(_part("weights"), "int", "on the most loaded rank"),
    "memory.activation_bytes": FigureKind(_part("activation"), "int", "on the most loaded rank"),
    "memory.kv_bytes": FigureKind(_cache_bytes, "int", "on the rank with the least"),
    "capacity.block_size": FigureKind(_pool("block_size"), "int", "tokens"),
    "capacity.num_blocks": FigureKind(_pool("num_blocks"), "int", "per replica"),
    "capacity.kv_tokens": FigureKind(_pool("kv_tokens"), "int", "per replica"),
    "capacity.engine_reported_tokens": FigureKind(_pool("engine_reported_tokens"), "int", "per replica"),
    "capacity.max_concurrency": FigureKind(_pool("max_concurrency"), "float", "requests of max_model_len, per replica"),
    "capacity.max_single_request_tokens": FigureKind(_pool("max_single_request_tokens"), "int", "the longest request"),
    "capacity.requests": FigureKind(
        _requests,
        "int",
        "requests of prompt + output at once, by cache and max_num_seqs, a common prefix held once, per replica",
    ),
    "capacity.total_kv_tokens": FigureKind(_pool("kv_tokens", False), "int", "of all replicas"),
    "capacity.total_max_concurrency": FigureKind(_pool("max_concurrency", False), "float", "of all replicas"),
    "decode.seconds_per_step": FigureKind(_speed("decode", "seconds_per_step"), "float", "time per output token"),
    "decode.tokens_per_second": FigureKind(_speed("decode", "tokens_per_second"), "float", "of the deployment"),
    "decode.tokens_per_second_per_request": FigureKind(_speed("decode", "tokens_per_second_per_request"), "float", ""),
    "decode.tokens_per_second_per_gpu": FigureKind(_speed("decode", "tokens_per_second_per_gpu"), "float", ""),
    "prefill.seconds": FigureKind(_speed("prefill", "seconds"), "float", "of one prompt alone: time to first token"),
    "prefill.tokens_per_second": FigureKind(_speed("prefill", "tokens_per_second"), "float", ""),
    "serving.ttft_seconds": FigureKind(_served("serving", "ttft_seconds"), "float", "mean, waits included"),
    "serving.tpot_seconds": FigureKind(_served("serving", "tpot_seconds"), "float", "mean, prompts of others included"),
    "serving.requests_per_second": FigureKind(_served("serving", "requests_per_second"), "float", "completed"),
    "serving.in_flight": FigureKind(_served("serving", "in_flight"), "float", "requests that run, of the deployment"),
    "serving.max_request_rate": FigureKind(
        _served("serving", "max_request_rate"), "float", "requests a second within the targets"
    ),
    "serving.replicas_needed": FigureKind(
        _served("serving", "replicas_needed"), "int", "deployments like this one that carry the rate"
    ),
    "serving.targets_hold": FigureKind(_served("serving", "targets_hold"), "bool", "all of them"),
    "cost.usd_per_hour": FigureKind(_served("cost", "usd_per_hour"), "float", "of all GPUs"),
    "cost.per_million_input_tokens": FigureKind(_served("cost", "per_million_input_tokens"), "float", "US dollars"),
    "cost.per_million_output_tokens": FigureKind(_served("cost", "per_million_output_tokens"), "float", "US dollars"),
    "verdict.fits": FigureKind(_fits, "bool", "weights, one longest request and the workload"),
    "verdict.binding": FigureKind(_binding, "text", "what does not"),
}
"""Every figure by name."""

USUAL = (
    "kv.bytes_per_sequence", "kv.bytes_per_sequence_per_gpu", "memory.kv_bytes", "capacity.num_blocks",
    "capacity.kv_tokens", "capacity.max_concurrency", "capacity.max_single_request_tokens", "capacity.requests",
    "verdict.fits",
)  # fmt: skip
"""Figures that are given where none is asked for."""
SPEED = ("decode.tokens_per_second", "decode.seconds_per_step", "prefill.seconds")
"""And these, where there is a GPU."""
SERVED = (
    "serving.ttft_seconds", "serving.tpot_seconds", "serving.max_request_rate", "serving.targets_hold",
    "cost.usd_per_hour", "cost.per_million_output_tokens",
)  # fmt: skip
"""And these under traffic, targets or a price: what is worked out a cell at a time."""


def figure_names(asked: list[str]) -> list[str]:
    """The figures that were asked for, by full name, last part of the name, or group (``capacity``); ``all``.

    Raises:
        UnknownNameError: no such figure.
    """
    found: list[str] = []
    for name in asked:
        key = name.strip().replace("-", "_")
        hits = [f for f in FIGURES if key in ("all", f, f.split(".")[0]) or f.endswith(f".{key}")]
        if not hits:
            raise UnknownNameError("figure", name, list(FIGURES), where="--figure", more="docs/sweep.md lists them")
        found += [f for f in hits if f not in found]
    return found

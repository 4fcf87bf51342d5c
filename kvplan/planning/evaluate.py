"""One deployment worked through: ranks, waterfall, pool, verdict. No advice, no report.

`evaluate` is what hints, sweeps and searches call again and again with other settings.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple

from kvplan.cache.sharding import shard_model
from kvplan.engines.base import Engine, Pool, Settings, Stage, Term
from kvplan.planning.weights import RoleWeights, WeightFormat, rank_weights, total_bytes, weight_format

if TYPE_CHECKING:
    from kvplan.spec.gpu import GpuSpec
    from kvplan.spec.model import ModelSpec

Binding = Literal["kv", "weights", "activations"]


class Waterfall(NamedTuple):
    """The memory of one rank of a stage, from device bytes down to what the cache gets."""

    total_bytes: int
    budget_bytes: int
    terms: tuple[Term, ...]
    available_bytes: int
    """Budget less all terms; negative where they do not fit."""

    def part(self, name: str) -> int:
        """Sum of the terms of one part."""
        return sum(t.bytes for t in self.terms if t.part == name)


class Outcome(NamedTuple):
    """Everything `evaluate` found out."""

    settings: Settings
    stages: tuple[Stage, ...]
    roles: tuple[tuple[RoleWeights, ...], ...]
    """Weights by role, one entry a stage."""
    weights: WeightFormat
    waterfalls: tuple[Waterfall, ...] | None
    """One a stage; None without a GPU."""
    kv_bytes: tuple[int, ...] | None
    """What the engine gives the cache on each stage; None where nothing says."""
    pool: Pool | None
    fits: bool | None
    """None: there is no GPU to say so."""
    binding: Binding | None
    reason: str


def build_stages(
    model: ModelSpec, engine: Engine, settings: Settings, weights: WeightFormat
) -> tuple[tuple[Stage, ...], tuple[tuple[RoleWeights, ...], ...]]:
    """The most loaded rank of every pipeline stage, with its weights.

    Args:
        model: the model as it is served: its draft layers are those that run (`kvplan.planning.drafts`).

    Raises:
        UnsupportedError: the model cannot be divided so.
    """
    pp, tp = settings.pipeline_parallel_size, settings.tensor_parallel_size
    expert_ranks = tp * settings.data_parallel_size if settings.enable_expert_parallel else 1
    stages: list[Stage] = []
    roles: list[tuple[RoleWeights, ...]] = []
    start = 0
    whole = shard_model(model, tp=tp, expert_ranks=expert_ranks) if pp > 1 else None
    for index, count in enumerate(engine.split_layers(model.num_layers, settings)):
        first, last = index == 0, index == pp - 1
        layers = model.layers[start : start + count] if pp > 1 else None
        rank = shard_model(model, tp=tp, layers=layers, drafts=last, expert_ranks=expert_ranks)
        rows = engine.vocab_rows(model.vocab_size, tp)
        held = rank_weights(
            model, rank, weights, tp=tp, vocab_rows=rows, first=first, last=last, first_layer=start, drafts=True
        )
        stages.append(Stage(index, rank, first, last, total_bytes(held), whole, start))
        roles.append(tuple(held))
        start += count
    return tuple(stages), tuple(roles)


def waterfall(
    model: ModelSpec, engine: Engine, settings: Settings, gpu: GpuSpec, stage: Stage, weights: WeightFormat
) -> Waterfall:
    """Device bytes, budget and every term on one rank of `stage`."""
    size = stage.weights_bytes
    own = Term("weights", "weights", size, size, size, "exact", f"{weights.quantized.name}: {weights.source}")
    terms = (own, *engine.terms(stage, model, settings, gpu))
    budget = engine.budget_bytes(gpu.device_bytes, settings)
    return Waterfall(gpu.device_bytes, budget, terms, budget - sum(t.bytes for t in terms))


def evaluate(model: ModelSpec, gpu: GpuSpec | None, engine: Engine, settings: Settings) -> Outcome:
    """Work one deployment through.

    Raises:
        UnsupportedError: settings that no memory makes legal.
    """
    weights = weight_format(model, settings.weights)
    stages, roles = build_stages(model, engine, settings, weights)
    falls = None
    kv: tuple[int, ...] | None = None
    if gpu is not None:
        falls = tuple(waterfall(model, engine, settings, gpu, stage, weights) for stage in stages)
        kv = tuple(f.available_bytes for f in falls)
    if settings.kv_cache_memory_bytes is not None:
        kv = (settings.kv_cache_memory_bytes,) * len(stages)
    if kv is None:
        return Outcome(
            settings,
            stages,
            roles,
            weights,
            falls,
            None,
            None,
            None,
            None,
            "no GPU named: the cache's own figures only",
        )
    pool = engine.pool(stages, settings, kv) if min(kv) > 0 else None
    fits, binding, reason = _judge(engine, settings, stages, falls, kv, pool)
    return Outcome(settings, stages, roles, weights, falls, kv, pool, fits, binding, reason)


def _judge(
    engine: Engine,
    settings: Settings,
    stages: tuple[Stage, ...],
    falls: tuple[Waterfall, ...] | None,
    kv: tuple[int, ...],
    pool: Pool | None,
) -> tuple[bool, Binding | None, str]:
    """Whether the weights load, one longest request holds, and the workload holds; else what binds."""
    from kvplan.units import gib

    for stage, fall in zip(stages, falls or (), strict=False):
        where = f" on pipeline stage {stage.number}" if len(stages) > 1 else ""
        weights = fall.part("weights")
        if weights > fall.budget_bytes:
            return (
                False,
                "weights",
                f"the weights take {gib(weights)} per GPU{where}, the budget is {gib(fall.budget_bytes)}",
            )
        if settings.kv_cache_memory_bytes is None and fall.available_bytes <= 0:
            rest = fall.budget_bytes - weights
            others = sum(t.bytes for t in fall.terms) - weights
            return (
                False,
                "activations",
                f"beside the weights {gib(rest)} per GPU{where} are left, and {gib(others)} are needed first",
            )
        if settings.kv_cache_memory_bytes is not None:
            asked = settings.kv_cache_memory_bytes + sum(t.bytes for t in fall.terms)
            if asked > fall.total_bytes:
                return (
                    False,
                    "kv",
                    f"with the cache asked for, {gib(asked)} per GPU{where} are needed of {gib(fall.total_bytes)}",
                )
    if pool is not None and pool.refusal:
        return False, "kv", pool.refusal
    if pool is None or not pool.starts:
        need = max(engine.start_bytes(s, settings) for s in stages)
        return (
            False,
            "kv",
            f"one request of {settings.max_model_len:,} tokens needs {gib(need)} of cache per GPU, "
            f"there are {gib(min(kv))}",
        )
    if not engine.holds(stages, settings, kv):
        runs = engine.requests_at(stages, settings, kv, settings.request_tokens) * settings.data_parallel_size
        return (
            False,
            "kv",
            f"{settings.concurrency:,} requests of {settings.request_tokens:,} tokens do not hold at once; {runs:,} do",
        )
    return True, None, "the weights load, the longest request holds, and so does the workload"

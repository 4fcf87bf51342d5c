"""From specs and settings to a `Plan`."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any

from kvplan.engines import get_engine
from kvplan.engines.base import Engine, Pool, Settings
from kvplan.errors import InputError
from kvplan.planning.advice import hints, most_sequences, smallest_thousandth
from kvplan.planning.evaluate import Outcome, evaluate, settled
from kvplan.planning.kv import kv_figures
from kvplan.planning.notes import notes
from kvplan.planning.plan import SCHEMA, AtLength, Capacity, CapacityEnd, ModelFigures, Plan, RankMemory, Verdict
from kvplan.planning.settings import SERVICE
from kvplan.spec.arrays import Number, choose, larger, least

if TYPE_CHECKING:
    from kvplan.planning.calibration import Calibration
    from kvplan.planning.prefix import AtPrefix
    from kvplan.planning.speed.figures import Speed
    from kvplan.spec.gpu import GpuSpec
    from kvplan.spec.model import ModelSpec

LENGTHS = tuple(1024 << i for i in range(0, 12, 2))
"""Lengths in tokens at which the report says how many requests run: 1K, 4K, 16K, ..."""


def plan_deployment(model: ModelSpec, gpu: GpuSpec | None, engine: str, given: dict[str, Any]) -> Plan:
    """What a deployment holds, and whether it fits; `kvplan.plan` is this with names looked up.

    Raises:
        KvplanError: nothing could be answered.
    """
    model, chosen, calibration, outcome, warnings = work_out(model, gpu, engine, given)
    if all(given.get(name) is None for name in SERVICE):
        return _assemble(model, gpu, chosen, outcome, warnings, calibration)
    from kvplan.planning.workload import Traffic, served

    traffic = Traffic(model, gpu, chosen, calibration, given)
    outcome = traffic.running(outcome)
    return served(_assemble(model, gpu, chosen, outcome, warnings, calibration), traffic, outcome)


def work_out(
    model: ModelSpec, gpu: GpuSpec | None, engine: str, given: dict[str, Any]
) -> tuple[ModelSpec, Engine, Calibration | None, Outcome, list[str]]:
    """(the model as it is served, its engine, measured rates, what `evaluate` finds, warnings).

    Raises:
        KvplanError: nothing could be answered.
    """
    chosen = get_engine(engine)
    calibration = read_calibration(given.get("calibration"), gpu)
    note = calibration.note(model) if calibration is not None else None
    model, settings, warnings = settled(model, gpu, chosen, given)
    if note is not None:
        warnings.append(note)
    return model, chosen, calibration, evaluate(model, gpu, chosen, settings), warnings


def read_calibration(path: str | None, gpu: GpuSpec | None) -> Calibration | None:
    """The measured rates to plan with; None: no file was named."""
    if path is None:
        return None
    from kvplan.planning.calibration import FLAG, load_calibration

    if gpu is None:
        raise InputError("says how fast a GPU is, and none is named", where=FLAG, hint="add --gpu NAME")
    return load_calibration(path, gpu.id)


def _assemble(
    model: ModelSpec,
    gpu: GpuSpec | None,
    engine: Engine,
    outcome: Outcome,
    warnings: list[str],
    calibration: Calibration | None = None,
) -> Plan:
    settings = outcome.settings
    kv = kv_figures(model, engine, settings, outcome.stages, unsharded_weights(model, engine, settings))
    figures = ModelFigures(
        model.id, model.name, model.architecture, model.num_layers, model.max_position_embeddings,
        _parameters(model), model.active_parameters, model.confidence,
    )  # fmt: skip
    memory = memory_rows(gpu, engine, outcome) if gpu is not None and outcome.waterfalls is not None else None
    most = most_sequences(model, gpu, engine, outcome)
    capacity = _capacity(model, engine, outcome, most) if outcome.kv_bytes is not None else None
    found, said = hints(model, gpu, engine, outcome), notes(model, gpu, engine, outcome, most)
    verdict = Verdict(outcome.fits, outcome.reason, outcome.binding, found, said)
    pace = _speed(model, gpu, engine, outcome, calibration)
    all_warnings = (
        *memory_warnings(model, gpu, engine, outcome),
        *warnings,
        *(pace.notes if pace else ()),
    )
    inputs, allocation = plan_inputs(model, gpu, settings, outcome), engine.allocation(model, settings)
    if calibration is not None:
        inputs["calibration"] = calibration.source
    decode, prefill = (pace.decode, pace.prefill) if pace else (None, None)
    return Plan(SCHEMA, inputs, figures, kv, memory, capacity, allocation, decode, prefill, verdict, all_warnings)


def _speed(
    model: ModelSpec, gpu: GpuSpec | None, engine: Engine, outcome: Outcome, calibration: Calibration | None
) -> Speed | None:
    """Decode and prefill; None without a GPU."""
    if gpu is None:
        return None
    from kvplan.planning.speed.figures import speed

    return speed(model, gpu, engine, outcome, calibration)


def _parameters(model: ModelSpec) -> int:
    """Parameters in the files where their headers were read, else those of the specification."""
    if model.checkpoint is None or not model.checkpoint.stored:
        return model.parameters
    from kvplan.spec.stored import main_parameters

    return main_parameters(model) or model.parameters


def unsharded_weights(model: ModelSpec, engine: Engine, settings: Settings) -> int:
    """Bytes of the whole model's weights on one imaginary device."""
    alone = replace(
        settings, tensor_parallel_size=1, pipeline_parallel_size=1, data_parallel_size=1,
        decode_context_parallel_size=1, enable_expert_parallel=False, kv_cache_memory_bytes=None,
    )  # fmt: skip
    return evaluate(model, None, engine, alone).stages[0].weights_bytes


def plan_inputs(model: ModelSpec, gpu: GpuSpec | None, settings: Settings, outcome: Outcome) -> dict[str, Any]:
    """Every resolved setting, and where each default comes from."""
    found: dict[str, Any] = {"model": model.id, "gpu": gpu.id if gpu else None}
    for item in fields(settings):
        if item.name not in ("defaults", "extra"):
            found[item.name] = getattr(settings, item.name)
    found.update(settings.extra)
    found["weights_format"] = outcome.weights.quantized.name
    found["defaults"] = dict(settings.defaults)
    return found


def memory_rows(gpu: GpuSpec, engine: Engine, outcome: Outcome) -> tuple[RankMemory, ...]:
    """A row per rank, data-parallel replica by replica, stage by stage."""
    settings = outcome.settings
    assert outcome.waterfalls is not None  # the caller checked
    assert outcome.kv_bytes is not None  # a waterfall says
    held = rank_kv_bytes(engine, settings, outcome.pool, outcome.kv_bytes)
    rows: list[RankMemory] = []
    for _ in range(settings.data_parallel_size):
        for stage, fall, roles in zip(outcome.stages, outcome.waterfalls, outcome.roles, strict=True):
            kv = held[stage.number]
            spent = sum(t.bytes for t in fall.terms)
            by_role = {r.role: r.num_bytes for r in roles}
            row = RankMemory(
                rank=0, gpu=gpu.id, total_bytes=fall.total_bytes, budget_bytes=fall.budget_bytes,
                weights_bytes=fall.part("weights"), activation_bytes=fall.part("activation"),
                cuda_graph_bytes=fall.part("cuda_graph"), runtime_bytes=fall.part("runtime"), kv_bytes=kv,
                unused_bytes=fall.total_bytes - spent - kv, terms=fall.terms, weights_by_role=by_role,
                replicated_bytes=sum(r.replicated_bytes for r in roles), pipeline_stage=stage.number,
            )  # fmt: skip
            rows += [row._replace(rank=len(rows) + i) for i in range(settings.tensor_parallel_size)]
    return tuple(rows)


def rank_kv_bytes(engine: Engine, settings: Settings, pool: Pool | None, kv_bytes: tuple[Number, ...]) -> list[Number]:
    """Bytes of cache on a rank of each stage: what the budget leaves, what was asked for or laid out; never below 0."""
    left = [larger(0, have) for have in kv_bytes]
    laid_out = not engine.fills_budget or settings.num_gpu_blocks_override is not None
    if pool is None or not laid_out:
        return left
    empty = least(kv_bytes) <= 0
    return [choose(empty, have, used) for have, used in zip(left, pool.used_bytes, strict=True)]


def _capacity(model: ModelSpec, engine: Engine, outcome: Outcome, most: int | None) -> Capacity:
    settings, pool, kv = outcome.settings, outcome.pool, outcome.kv_bytes
    smallest = smallest_utilization(engine, outcome)
    if pool is None or kv is None:
        return Capacity(None, None, None, None, None, None, (), None, smallest, None, None)
    lengths = sorted(
        {n for n in (*LENGTHS, settings.request_tokens, settings.max_model_len) if n <= settings.max_model_len}
    )
    at = tuple(AtLength(n, engine.requests_at(outcome.stages, settings, kv, n)) for n in lengths)
    dp = settings.data_parallel_size
    total = pool.kv_tokens * dp if pool.kv_tokens is not None else None
    prefixes: tuple[AtPrefix, ...] = ()
    if settings.shared_prefix_tokens:
        from kvplan.planning.prefix import by_prefix

        prefixes = by_prefix(model, engine, outcome.stages, settings, kv)
    return Capacity(
        block_size=pool.block_size, num_blocks=pool.num_blocks, kv_tokens=pool.kv_tokens,
        engine_reported_tokens=pool.engine_reported_tokens, max_concurrency=pool.max_concurrency,
        max_single_request_tokens=pool.max_single_request_tokens, at=at,
        max_num_seqs_allowed=most,
        min_gpu_memory_utilization=smallest, total_kv_tokens=total, total_max_concurrency=pool.max_concurrency * dp,
        by_shared_prefix=prefixes, low=_capacity_at(engine, outcome, -1), high=_capacity_at(engine, outcome, 1),
    )  # fmt: skip


def _capacity_at(engine: Engine, outcome: Outcome, side: int) -> CapacityEnd | None:
    """What is held at the end of the terms' ranges that leaves the cache least (-1) or most (1)."""
    falls, settings = outcome.waterfalls or (), outcome.settings
    if settings.kv_cache_memory_bytes is not None or all(t.low_bytes == t.high_bytes for f in falls for t in f.terms):
        return None
    ends = (sum(t.high_bytes if side < 0 else t.low_bytes for t in f.terms) for f in falls)
    kv = tuple(f.budget_bytes - spent for f, spent in zip(falls, ends, strict=True))
    pool = engine.pool(outcome.stages, settings, kv) if min(kv) > 0 else None
    if pool is None:
        return CapacityEnd(0, 0.0, 0)
    return CapacityEnd(pool.kv_tokens, pool.max_concurrency, pool.max_single_request_tokens)


def smallest_utilization(engine: Engine, outcome: Outcome) -> float | None:
    """The smallest utilisation, in thousandths, with which the engine starts; None where none does."""
    settings = outcome.settings
    if (
        outcome.waterfalls is None
        or settings.kv_cache_memory_bytes is not None
        or "gpu_memory_utilization" not in engine.settings
    ):
        return None

    def starts(thousandths: int) -> bool:
        tried = replace(settings, gpu_memory_utilization=thousandths / 1000)
        falls = outcome.waterfalls or ()
        left = tuple(engine.budget_bytes(f.total_bytes, tried) - f.budget_bytes + f.available_bytes for f in falls)
        if any(have < engine.start_bytes(s, tried) for s, have in zip(outcome.stages, left, strict=True)):
            return False
        return bool(engine.pool(outcome.stages, tried, left).starts)

    return smallest_thousandth(starts)


def memory_warnings(model: ModelSpec, gpu: GpuSpec | None, engine: Engine, outcome: Outcome) -> tuple[str, ...]:
    """What to know about a model, a GPU and a pool before their figures are trusted."""
    return (*_model_warnings(model, engine, outcome.settings), *_gpu_warnings(gpu), *_short_pool(engine, outcome))


def _model_warnings(model: ModelSpec, engine: Engine, settings: Settings) -> list[str]:
    found = list(model.file_warnings)
    if model.checkpoint is not None and model.checkpoint.stored:
        from kvplan.spec.stored import stored_warnings

        found += stored_warnings(model)
    if model.confidence == "recalled":
        found.append(f"the shape of {model.id} is recalled, not read from its configuration")
    limit = engine.longest_context(model)
    if limit and settings.max_model_len > limit and not settings.allow_long_max_model_len:
        found.append(
            f"max_model_len {settings.max_model_len:,} is above the model's maximum of {limit:,} ({rope_rule(model)})"
        )
    return found


def _short_pool(engine: Engine, outcome: Outcome) -> list[str]:
    """An engine that starts although its pool is shorter than a request may be."""
    pool, length = outcome.pool, outcome.settings.max_model_len
    if pool is None or not pool.starts or not 0 < pool.max_single_request_tokens < length:
        return []
    return [
        f"the pool holds {pool.max_single_request_tokens:,} tokens of one request, less than the limit of "
        f"{length:,}: {engine.name} starts, and longer requests do not run"
    ]


def rope_rule(model: ModelSpec) -> str:
    """How the model's positions work, in a few words."""
    if model.position_embeddings:
        return f"a learned table of {model.position_embeddings:,} positions, which ends there"
    if not model.rope:
        return "no rope scaling in its configuration"
    kind = model.rope.get("rope_type") or model.rope.get("type") or "rope"
    factor = model.rope.get("factor")
    return f"rope scaling {kind}" + (
        f", factor {factor:g}, already in that maximum" if isinstance(factor, int | float) else ""
    )


def _gpu_warnings(gpu: GpuSpec | None) -> list[str]:
    if gpu is None:
        return []
    found = []
    if "recalled" in gpu.confidence and "seen" not in gpu.confidence:
        found.append(f"the figures of {gpu.id} are recalled, not read from a source")
    basis, source = gpu.device_bytes_basis
    if basis != "measured":
        found.append(f"device memory of {gpu.id} is not measured: {source}")
    if gpu.unified_memory:
        found.append(f"{gpu.id} shares its memory with the CPU: what other programs hold is not available")
    return found

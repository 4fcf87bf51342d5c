"""Decode and prefill as parts of a plan: from an outcome of `evaluate` to the figures that are printed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from kvplan.planning.speed import decode, prefill
from kvplan.planning.speed import work as of
from kvplan.planning.speed.decode import Layout
from kvplan.planning.speed.rates import Rates, ranks_that_meet, rates
from kvplan.spec.arrays import smaller

if TYPE_CHECKING:
    from kvplan.cache.bytes import KvFormats
    from kvplan.engines.base import Engine, Settings
    from kvplan.planning.calibration import Calibration
    from kvplan.planning.evaluate import Outcome
    from kvplan.planning.speed.work import StageWork
    from kvplan.spec.gpu import GpuSpec
    from kvplan.spec.model import ModelSpec


class Parts(NamedTuple):
    """Where the seconds of a decode step go; memory and compute overlap, so the sum is more than the step."""

    memory: float
    compute: float | None
    latency: float
    communication: float


class DecodeFigures(NamedTuple):
    """One decode step at the workload's batch and mean context."""

    batch: int
    """Sequences that the most loaded replica decodes together."""
    context: int
    """Tokens cached by each: prompt and half of the output."""
    seconds_per_step: float
    """Time per output token of a request (TPOT)."""
    tokens_per_second: float
    """Of the deployment."""
    tokens_per_second_per_request: float
    tokens_per_second_per_gpu: float
    weight_bytes: int
    """Read per step on the most loaded rank."""
    kv_bytes: int
    """The same of the cache, states read and written included."""
    arithmetic_intensity: float
    """FLOPs per byte of a step on the rank that reads most."""
    ridge_batch: int | None
    """Batch of a replica at which multiplying the weights takes as long as reading them; None: no FLOPs figure."""
    saturation_batch: int | None
    """Batch of a replica that brings half of the ceiling at this context."""
    bound: str | None
    ceiling_tokens_per_second: float | None
    """Of the deployment, however large the batch (`kvplan.planning.speed.decode.ceiling`)."""
    low: float
    """Tokens a second of the deployment, within which the reports behind the constants lie."""
    high: float
    parts: Parts
    source: str


class PrefillFigures(NamedTuple):
    """One prompt alone on its replica, nothing cached before: its seconds are the time to first token."""

    tokens: int
    seconds: float
    flops: int
    """Of the most loaded rank of every stage, added up."""
    arithmetic_intensity: float
    bound: str
    tokens_per_second: float
    chunk_tokens: int
    """Tokens that one step takes at most."""
    low_seconds: float
    high_seconds: float


class Speed(NamedTuple):
    """Both, and why one is missing."""

    decode: DecodeFigures | None
    prefill: PrefillFigures | None
    notes: tuple[str, ...]


class Setup(NamedTuple):
    """A deployment as the formulas of `decode` and `prefill` take it; batches and lengths stay open."""

    works: tuple[StageWork, ...]
    rates: Rates
    layout: Layout
    chunk: int


def setup(
    model: ModelSpec, gpu: GpuSpec, engine: Engine, outcome: Outcome, calibration: Calibration | None = None,
    formats: KvFormats | None = None,
) -> Setup | str:  # fmt: skip
    """What speed depends on besides batch and lengths; a sentence where nothing can be said.

    Args:
        formats: of the cache, in place of those that the engine chose.
    """
    settings, weights = outcome.settings, outcome.weights
    used = settings.extra.get("n_gpu_layers_used")
    if isinstance(used, int) and used < model.num_layers:
        return "no speed is given for layers in host memory"
    formats = formats or engine.kv_formats(model, settings)
    works = tuple(
        of.stage_work(model, stage, roles, formats, settings)
        for stage, roles in zip(outcome.stages, outcome.roles, strict=True)
    )
    flash = settings.extra.get("flash_attn", "auto") not in ("off", "0", "false")
    body = weights.of("routed_experts" if any(w.experts for w in works) else "dense_ffn")
    version = getattr(engine, "build", "") or settings.engine_version
    found = rates(
        gpu, engine.name, body, formats.k, version=version, flash=flash, eager=settings.enforce_eager,
        calibration=calibration, meeting=ranks_that_meet(settings),
    )  # fmt: skip
    if found is None:
        return f"the memory bandwidth of {gpu.id} is not known: no speed is given (--gpu-bandwidth RATE sets it)"
    layout = Layout(
        settings.tensor_parallel_size, settings.pipeline_parallel_size, settings.data_parallel_size,
        settings.enable_expert_parallel,
    )  # fmt: skip
    return Setup(works, found, layout, chunk_tokens(settings))


def chunk_tokens(settings: Settings) -> int:
    """Prompt tokens that one step takes at most, by the engine's own setting; else the whole prompt."""
    for value in (
        settings.max_num_batched_tokens,
        *(settings.extra.get(n) for n in ("ubatch_size", "chunked_prefill_size")),
    ):
        if isinstance(value, int) and value > 0:
            return value
    return 1 << 40


def speed(
    model: ModelSpec, gpu: GpuSpec, engine: Engine, outcome: Outcome, calibration: Calibration | None = None
) -> Speed:
    """The figures of a plan: decode and prefill of its workload."""
    found = setup(model, gpu, engine, outcome, calibration)
    if isinstance(found, str):
        return Speed(None, None, (found,))
    notes = list(found.rates.notes) if outcome.settings.world_size > 1 else []
    if found.rates.matmul_flops is None:
        notes.append(f"no FLOPs figure for {gpu.id}: decode is memory alone, and prefill is left out")
    spoken, decoded = engine.speculation(outcome.settings), _decode(found, outcome.settings)
    if spoken is not None:
        from kvplan.planning.speed.speculation import break_even

        drafts = spoken.tokens or len(model.draft_layers) or 1
        pays = break_even(found, decoded.batch, decoded.context, drafts)
        notes.append(
            f"speed is without speculative decoding: with {drafts} drafts a step takes {pays:.2f} times as long, "
            f"so it pays from {pays:.2f} tokens a step on"
        )
    return Speed(decoded, _prefill(found, outcome.settings), tuple(notes))


class Load(NamedTuple):
    """What the workload asks of a decode step: numbers, or arrays where settings are arrays."""

    batch: Any
    """Sequences that the most loaded replica decodes together."""
    running: Any
    """Sequences of the deployment."""
    context: Any
    """Tokens cached by each."""


def load(settings: Settings) -> Load:
    """The workload, as far as the engine runs it at once."""
    most = settings.max_num_seqs
    running, batch = settings.concurrency, settings.concurrency_per_replica
    if most:
        running, batch = smaller(running, most * settings.data_parallel_size), smaller(batch, most)
    return Load(batch, running, settings.prompt_tokens + settings.output_tokens // 2)


def _decode(found: Setup, settings: Settings) -> DecodeFigures:
    works, made, layout, _ = found
    batch, running, context = load(settings)
    parts = decode.step(works, made, layout, batch, context)
    seconds = float(parts.seconds)
    micro = -(-batch // layout.pp)
    weights, cache = max(
        ((of.weight_bytes(w, micro), micro * of.kv_bytes(w, context)) for w in works),
        key=lambda pair: pair[0] + pair[1],
    )
    flops = max(micro * (2 * of.token_parameters(w) + of.attention_flops(w, context)) for w in works)
    rate = running / seconds
    return DecodeFigures(
        batch=batch, context=context, seconds_per_step=seconds, tokens_per_second=rate,
        tokens_per_second_per_request=1 / seconds, tokens_per_second_per_gpu=rate / settings.world_size,
        weight_bytes=weights, kv_bytes=cache, arithmetic_intensity=flops / (weights + cache),
        ridge_batch=decode.ridge_batch(works, made, layout), 
        bound=decode.bound(parts, decode.memory_seconds(works, made, layout, batch, context)),
        saturation_batch=decode.saturation_batch(works, made, layout, context),
        ceiling_tokens_per_second=decode.ceiling(works, made, layout, context), low=rate * made.low,
        high=rate * made.high, source=made.source,
        parts=Parts(
            float(parts.memory), None if parts.compute is None else float(parts.compute), float(parts.latency),
            float(parts.communication),
        ),
    )  # fmt: skip


def _prefill(found: Setup, settings: Settings) -> PrefillFigures | None:
    tokens, made = settings.prompt_tokens, found.rates
    chunk = min(found.chunk, tokens)
    parts = prefill.prompt(found.works, made, found.layout, tokens, chunk)
    if parts is None:
        return None
    seconds = float(parts.seconds)
    return PrefillFigures(
        tokens=tokens, seconds=seconds, flops=int(parts.flops),
        arithmetic_intensity=float(parts.flops / parts.num_bytes), bound=prefill.bound(parts),
        tokens_per_second=tokens / seconds, chunk_tokens=chunk, low_seconds=seconds / made.prefill_high,
        high_seconds=seconds / made.prefill_low,
    )  # fmt: skip

"""One deployment worked through: ranks, waterfall, pool, verdict. No advice, no report.

`evaluate` is what hints and searches call again and again with other settings; sweeps call its parts
(`build_stages`, `resources`, `obstacles`) on whole grids.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from kvplan.cache.sharding import shard_model
from kvplan.engines.base import Engine, Pool, Settings, Stage, Term
from kvplan.errors import InputError
from kvplan.planning.drafts import served_model
from kvplan.planning.settings import BESIDE, FIT, FITTED, resolve, with_length
from kvplan.planning.weights import RoleWeights, WeightFormat, draft_weights, rank_weights, total_bytes, weight_format
from kvplan.spec.arrays import last_true, opposite
from kvplan.spec.formats import Format, get_format
from kvplan.spec.model import ENCODERS_APART
from kvplan.units import gib

if TYPE_CHECKING:
    from kvplan.spec.gpu import GpuSpec
    from kvplan.spec.model import ModelSpec

_SMALL = 10 << 20
"""Bytes below which two decimals of a GiB say nothing."""
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
    cut = engine.expert_tensor_ranks(settings)
    stages: list[Stage] = []
    roles: list[tuple[RoleWeights, ...]] = []
    start = 0
    whole = shard_model(model, tp=tp, expert_ranks=expert_ranks, expert_tp=cut) if pp > 1 else None
    for index, count in enumerate(engine.split_layers(model.num_layers, settings)):
        first, last = index == 0, index == pp - 1
        layers = model.layers[start : start + count] if pp > 1 else None
        rank = shard_model(model, tp=tp, layers=layers, drafts=last, expert_ranks=expert_ranks, expert_tp=cut)
        rows = engine.vocab_rows(model.vocab_size, tp)
        held = rank_weights(
            model, rank, weights, tp=tp, vocab_rows=rows, first=first, last=last, first_layer=start, drafts=True
        )
        if last and model.draft_model is not None:
            drafts = draft_weights(model, tp, engine.vocab_rows(model.draft_model.vocab_size, tp))
            held += [drafts] if drafts else []
        stages.append(Stage(index, rank, first, last, total_bytes(held), whole, start))
        roles.append(tuple(held))
        start += count
    return tuple(stages), tuple(roles)


def waterfall(
    model: ModelSpec, engine: Engine, settings: Settings, gpu: GpuSpec, stage: Stage, weights: WeightFormat
) -> Waterfall:
    """Device bytes, budget and every term on one rank of `stage`."""
    own = weights_term(stage.weights_bytes, weights)
    if any(said.startswith(ENCODERS_APART) for said in model.file_warnings):
        own = own._replace(basis="modelled")
    terms = (own, *engine.terms(stage, model, settings, gpu))
    budget = engine.budget_bytes(gpu.device_bytes, settings)
    return Waterfall(gpu.device_bytes, budget, terms, budget - sum(t.bytes for t in terms))


def weights_term(size: int, weights: WeightFormat) -> Term:
    """The weights of a rank: exact, but for GGUF file types, whose mix is known by rule or only in range."""
    source = f"{weights.quantized.name}: {weights.source}"
    if not weights.quantized.mix:
        return Term("weights", "weights", size, size, size, "exact", source)
    low, high = mix_range(weights.quantized)
    note = "a publisher's own mix" if low < 100 - MIX_PER_CENT else "the rule of the quantizer; converters differ"
    return Term("weights", "weights", size, size * low // 100, size * high // 100, "modelled", f"{source} ({note})")


MIX_PER_CENT = 4
"""How far a published file of a known type may lie from the rule: fused projections, tensors kept apart."""


def mix_range(fmt: Format) -> tuple[int, int]:
    """(low, high) of a file type's size in per cent of the figure that is used."""
    from kvplan.spec.gguf_mix import mix_bounds

    bounds = mix_bounds(fmt.mix or "")
    if bounds is None:
        return 100 - MIX_PER_CENT, 100 + MIX_PER_CENT
    low, high = (get_format(name).mean_bits(1, 256) for name in bounds)
    middle = (low + high) / 2
    return int(100 * low / middle), int(100 * high / middle) + 1


def resources(
    model: ModelSpec,
    gpu: GpuSpec | None,
    engine: Engine,
    settings: Settings,
    stages: tuple[Stage, ...],
    weights: WeightFormat,
) -> tuple[tuple[Waterfall, ...] | None, tuple[int, ...] | None]:
    """(memory of a rank of each stage, bytes of cache there); None where nothing says."""
    falls = None
    if gpu is not None:
        falls = tuple(waterfall(model, engine, settings, gpu, stage, weights) for stage in stages)
    if settings.kv_cache_memory_bytes is not None:
        return falls, (settings.kv_cache_memory_bytes,) * len(stages)
    return falls, tuple(f.available_bytes for f in falls) if falls is not None else None


def evaluate(model: ModelSpec, gpu: GpuSpec | None, engine: Engine, settings: Settings) -> Outcome:
    """Work one deployment through.

    Raises:
        UnsupportedError: settings that no memory makes legal.
    """
    weights = weight_format(model, settings.weights)
    stages, roles = build_stages(model, engine, settings, weights)
    falls, kv = resources(model, gpu, engine, settings, stages, weights)
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
    fits, binding, reason = _judge(obstacles(engine, settings, stages, falls, kv, pool))
    if fits and pool is not None and pool.max_single_request_tokens < settings.max_model_len:
        single = pool.max_single_request_tokens
        reason = f"the weights load and the workload holds; requests above {single:,} tokens do not run"
    return Outcome(settings, stages, roles, weights, falls, kv, pool, fits, binding, reason)


def settled(
    model: ModelSpec, gpu: GpuSpec | None, engine: Engine, given: dict[str, Any]
) -> tuple[ModelSpec, Settings, list[str]]:
    """(the model as it is served, every setting, warnings): what `evaluate` takes, once the engine has checked it.

    Args:
        given: what the user set; what is no setting (`BESIDE`) is passed over.

    Raises:
        KvplanError: it cannot be planned, or the engine refuses it.
    """
    settings, warnings = resolve(model, gpu, engine, {k: v for k, v in given.items() if k not in BESIDE})
    model = served_model(model, engine, settings)
    if settings.max_model_len == FIT:
        settings = fit_length(model, gpu, engine, settings)
    if gpu is not None and not engine.takes(gpu):
        from kvplan.engines.devices import no_backend

        warnings = [no_backend(engine, gpu), *warnings]
    return model, settings, [*warnings, *engine.warnings, *engine.check(model, settings, gpu)]


def fit_length(model: ModelSpec, gpu: GpuSpec | None, engine: Engine, settings: Settings) -> Settings:
    """``--max-model-len -1``: the model's maximum, or what the memory allows of it."""
    limit = engine.default_context(model)
    if limit is None:
        raise InputError(
            f"-1 fits the length up to the model's maximum, which {model.id} does not say",
            where="--max-model-len",
            hint="type a number of tokens",
        )
    sources = {**settings.defaults, "max_model_len": FITTED}
    tried = replace(with_length(settings, limit), defaults=sources)
    outcome = evaluate(model, gpu, engine, tried)
    if outcome.kv_bytes is None:
        raise InputError(
            "-1 fits the length to the memory, and no memory is given", where="--max-model-len", hint="add --gpu NAME"
        )
    longest = outcome.pool.max_single_request_tokens if outcome.pool else 0
    return with_length(tried, min(limit, max(engine.least_fitted_tokens, longest)))


def running_at_once(engine: Engine, stages: tuple[Stage, ...], settings: Settings, kv: tuple[int, ...]) -> int:
    """The most requests of the workload, up to its concurrency, that hold at once, the prefix shared."""
    return last_true(
        0, settings.concurrency + 1, lambda n: bool(engine.holds(stages, replace(settings, concurrency=n), kv))
    )


def over_length(settings: Settings) -> str:
    """Why the engine turns a request of the workload away."""
    return (
        f"a request of {settings.request_tokens:,} tokens ({settings.prompt_tokens:,} prompt + "
        f"{settings.output_tokens:,} output) is longer than max_model_len {settings.max_model_len:,}"
    )


class Obstacle(NamedTuple):
    """One reason why a deployment may not fit."""

    stands: Any
    """Whether it does: a bool, or an array of them where settings are arrays."""
    binding: Binding | None
    """None: a limit that no memory moves."""
    reason: Callable[[], str]
    """The sentence, worked out only when it is wanted (and only for numbers)."""


def obstacles(
    engine: Engine,
    settings: Settings,
    stages: tuple[Stage, ...],
    falls: tuple[Waterfall, ...] | None,
    kv: tuple[int, ...],
    pool: Pool | None,
) -> Iterator[Obstacle]:
    """What can keep a deployment from fitting, in the order in which it is met; the first that stands binds.

    The weights must load, one longest request must hold, and so must the workload.
    """
    for stage, fall in zip(stages, falls or (), strict=False):
        yield from _on_rank(settings, fall, f" on pipeline stage {stage.number}" if len(stages) > 1 else "")

    def too_long() -> str:
        need = max(engine.start_bytes(s, settings) for s in stages)
        have = max(0, min(kv))
        one = max(engine.request_bytes(s, settings, settings.max_model_len) for s in stages)
        what = f"one request of {settings.max_model_len:,} tokens needs"
        if need < one:  # the engine starts with less, and shortens requests
            what = "the smallest cache that starts needs"
        elif one < need and (one <= have or not engine.fills_budget):
            what = engine.start_words(settings)
        if gib(need) == gib(have) or need < _SMALL:
            return f"{what} {need:,} bytes of cache per GPU, there are {have:,}"
        return f"{what} {gib(need)} of cache per GPU, there are {gib(have)}"

    def too_many() -> str:
        if settings.concurrency == 1:
            return f"one request of {settings.request_tokens:,} tokens does not hold"
        wanted = f"{settings.concurrency:,} requests of {settings.request_tokens:,} tokens do not hold at once"
        if not engine.lays_out_pool:  # fewer of them leave more for the cache: advice says how many do
            return wanted
        return f"{wanted}; {running_at_once(engine, stages, settings, kv):,} do"

    if pool is None:
        yield Obstacle(True, "kv", too_long)
        return
    for fall, used in zip(falls or (), pool.used_bytes, strict=False):
        if settings.num_gpu_blocks_override is not None:
            yield _override(fall, used)
    yield Obstacle(bool(pool.refusal), "kv", lambda: pool.refusal)
    yield Obstacle(opposite(pool.starts), "kv", too_long)
    yield Obstacle(settings.request_tokens > settings.max_model_len, None, lambda: over_length(settings))
    yield Obstacle(opposite(engine.holds(stages, settings, kv)), "kv", too_many)


def _on_rank(settings: Settings, fall: Waterfall, where: str) -> Iterator[Obstacle]:
    """The obstacles of one rank's memory."""
    weights, terms = fall.part("weights"), sum(t.bytes for t in fall.terms)
    asked = settings.kv_cache_memory_bytes
    yield Obstacle(
        weights > fall.budget_bytes, "weights",
        lambda: f"the weights take {gib(weights)} per GPU{where}, the budget is {gib(fall.budget_bytes)}",
    )  # fmt: skip
    if asked is None:
        yield Obstacle(
            fall.available_bytes <= 0, "activations",
            lambda: f"beside the weights {gib(fall.budget_bytes - weights)} per GPU{where} are left, "
            f"and {gib(terms - weights)} are needed first",
        )  # fmt: skip
        return
    needed = asked + terms
    yield Obstacle(
        needed > fall.total_bytes, "kv",
        lambda: f"with the cache asked for, {gib(needed)} per GPU{where} are needed of {gib(fall.total_bytes)}",
    )  # fmt: skip


def _override(fall: Waterfall, used: int) -> Obstacle:
    """Blocks that the user asked for, whatever the memory."""
    room = fall.total_bytes - sum(t.bytes for t in fall.terms)
    return Obstacle(
        used > room,
        "kv",
        lambda: f"the blocks asked for take {gib(used)} per GPU, of which {gib(room)} are there",
    )


def _judge(found: Iterator[Obstacle]) -> tuple[bool, Binding | None, str]:
    """Whether nothing stands in the way; else what binds, and why."""
    for obstacle in found:
        if obstacle.stands:
            return False, obstacle.binding, obstacle.reason()
    return True, None, "the weights load, the longest request holds, and so does the workload"

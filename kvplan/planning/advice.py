"""What to change where a deployment does not fit: each piece of advice is computed, not guessed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from kvplan.cache.sharding import legal_sizes
from kvplan.errors import KvplanError
from kvplan.planning.evaluate import Outcome, evaluate, fit_length, running_at_once
from kvplan.planning.plan import Hint
from kvplan.planning.settings import FIT, FITTED, resolve
from kvplan.spec.arrays import last_true
from kvplan.units import gib

if TYPE_CHECKING:
    from kvplan.engines.base import Engine, Settings
    from kvplan.spec.gpu import GpuSpec
    from kvplan.spec.model import ModelSpec

MAX_GPUS = 8
"""Ranks that share a layer in any advice: those of one host, whose link is the one that is modelled."""
MAX_STAGES = 8
"""Pipeline stages in any advice: each more makes every request wait for one more hop."""
_NOT_TYPED = frozenset({"engine", "engine_version", "extra", "defaults"})
"""Fields of `Settings` that are no setting of their own."""
Try = Callable[..., Outcome | None]


def hints(model: ModelSpec, gpu: GpuSpec | None, engine: Engine, outcome: Outcome) -> tuple[Hint, ...]:
    """Single changes that help a deployment that does not fit, each tried; empty where it fits."""
    if outcome.fits is not False:
        return ()
    attempt = attempts(model, gpu, engine, outcome.settings)
    return tuple(hint for advise in ADVISERS for hint in advise(model, engine, outcome, attempt))


def attempts(model: ModelSpec, gpu: GpuSpec | None, engine: Engine, settings: Settings) -> Try:
    """What becomes of the same flags with some changed: settings that nobody typed follow, as they do for a user."""
    typed = typed_settings(settings)

    def attempt(**changes: Any) -> Outcome | None:
        given = {**typed, **changes}
        try:
            changed, _ = resolve(model, gpu, engine, {k: v for k, v in given.items() if v is not None})
            if changed.max_model_len == FIT:
                changed = fit_length(model, gpu, engine, changed)
            engine.check(model, changed, gpu)
            return evaluate(model, gpu, engine, changed)
        except KvplanError:
            return None

    return attempt


def typed_settings(settings: Settings) -> dict[str, Any]:
    """The settings that somebody gave, by name; a length that was fitted counts as one."""
    found = {name: getattr(settings, name) for name in type(settings).__dataclass_fields__ if name not in _NOT_TYPED}
    found = {name: value for name, value in {**found, **settings.extra}.items() if name not in settings.defaults}
    if settings.defaults.get("max_model_len") == FITTED and not settings.extra.get("fit"):
        found["max_model_len"] = FIT
    return found


def most_sequences(model: ModelSpec, gpu: GpuSpec | None, engine: Engine, outcome: Outcome) -> int | None:
    """The most running sequences that start, where each needs a place for its state; None: nothing limits them.

    The pool itself moves with them where they have buffers of their own, so the figure is searched.
    """
    pool, settings = outcome.pool, outcome.settings
    if pool is None or pool.max_num_seqs_allowed is None:
        return None
    if engine.sequences_flag != "--max-num-seqs":
        return pool.max_num_seqs_allowed
    attempt = attempts(model, gpu, engine, settings)

    def spare(sequences: int) -> int:
        """Places less sequences; below 0 where it does not start."""
        tried = attempt(max_num_seqs=sequences)
        if tried is None or tried.pool is None or tried.pool.max_num_seqs_allowed is None:
            return -sequences
        return tried.pool.max_num_seqs_allowed - sequences

    low, over = 1, spare(1)
    if over < 0:
        return 0
    high = low + over + 1
    if settings.max_num_batched_tokens and "max_num_batched_tokens" not in settings.defaults:
        high = min(high, settings.max_num_batched_tokens + 1)
    under = spare(high)
    if under >= 0:
        return high
    for step in range(64):
        if high - low < 2:
            break
        near = (low + high) // 2
        if step < 6:  # places fall nearly evenly as sequences are added
            near = min(high - 1, max(low + 1, low + (high - low) * over // (over - under)))
        found = spare(near)
        if found >= 0:
            low, over = near, found
        else:
            high, under = near, found
    return low


def _fewer_sequences(model: ModelSpec, engine: Engine, outcome: Outcome, attempt: Try) -> Iterator[Hint]:
    """The most running sequences that start, where the pool's states limit them."""
    pool, asked = outcome.pool, outcome.settings.max_num_seqs
    if pool is None or not pool.refusal or not asked or not pool.max_num_seqs_allowed:
        return

    def fits(sequences: int) -> bool:
        tried = attempt(max_num_seqs=sequences)
        return tried is not None and bool(tried.fits)

    most = last_true(0, asked, fits)
    if most:
        yield Hint("--max-num-seqs", str(most), "the most sequences for which the blocks hold a state each")


def _longest(outcome: Outcome, good: Callable[[int], bool]) -> int:
    """The largest max_model_len below the present one for which `good` holds; 0 where none does."""
    return last_true(0, outcome.settings.max_model_len, good)


def _shorter(model: ModelSpec, engine: Engine, outcome: Outcome, attempt: Try) -> Iterator[Hint]:
    settings = outcome.settings
    if outcome.pool is not None and (
        outcome.pool.starts or outcome.pool.max_single_request_tokens >= settings.max_model_len
    ):
        return  # the length is not what binds

    def at(length: int) -> Outcome | None:
        return attempt(**engine.length_flag(settings, length)[2])

    def fits(length: int) -> bool:
        tried = at(length)
        return tried is not None and bool(tried.fits)

    def starts(length: int) -> bool:
        tried = at(length)
        return tried is not None and tried.pool is not None and tried.pool.starts

    length = _longest(outcome, fits)
    if length >= settings.request_tokens:
        flag, value, _ = engine.length_flag(settings, length)
        yield Hint(flag, value, f"the longest request that holds: {length:,} tokens")
        return
    length = _longest(outcome, starts)
    tried = at(length) if length else None
    if tried is None or tried.kv_bytes is None:
        return
    runs = running_at_once(engine, tried.stages, tried.settings, tried.kv_bytes)
    wanted = f"{settings.concurrency:,} requests of {settings.request_tokens:,} tokens"
    effect = f"it starts; {runs:,} of the {wanted} hold at once"
    flag, value, _ = engine.length_flag(settings, length)
    yield Hint(flag, value, effect)


def _within_limit(model: ModelSpec, engine: Engine, outcome: Outcome, attempt: Try) -> Iterator[Hint]:
    """A longer limit, or a shorter prompt, where a request of the workload is over the limit."""
    settings = outcome.settings
    asked = settings.request_tokens
    if asked <= settings.max_model_len:
        return
    flag, value, changes = engine.length_flag(settings, asked)
    tried = attempt(**changes)
    if tried is not None and tried.fits:
        yield Hint(flag, value, f"requests of {asked:,} tokens are taken")
    prompt = settings.max_model_len - settings.output_tokens
    if prompt > 0 and (tried := attempt(prompt_tokens=prompt)) is not None and tried.fits:
        yield Hint("--prompt-tokens", str(prompt), "the longest prompt beside this output that the limit takes")


def _fewer_requests(model: ModelSpec, engine: Engine, outcome: Outcome, attempt: Try) -> Iterator[Hint]:
    settings = outcome.settings
    if engine.lays_out_pool:
        if outcome.pool is None or not outcome.pool.starts or outcome.kv_bytes is None:
            return
        runs = running_at_once(engine, outcome.stages, settings, outcome.kv_bytes)
    else:  # fewer requests leave more for the cache

        def fits(concurrency: int) -> bool:
            tried = attempt(concurrency=concurrency)
            return tried is not None and bool(tried.fits)

        runs = last_true(0, settings.concurrency, fits)
    if 0 < runs < settings.concurrency:
        yield Hint("--concurrency", str(runs), f"{runs:,} requests of {settings.request_tokens:,} tokens hold at once")


def _smaller_format(model: ModelSpec, engine: Engine, outcome: Outcome, attempt: Try) -> Iterator[Hint]:
    if outcome.binding != "kv":
        return
    now = max(engine.request_bytes(s, outcome.settings, outcome.settings.max_model_len) for s in outcome.stages)
    for flag, value, changes in engine.smaller_caches(outcome.settings):
        tried = attempt(**changes)
        if tried is not None and tried.fits:
            then = max(engine.request_bytes(s, tried.settings, tried.settings.max_model_len) for s in tried.stages)
            yield Hint(
                flag,
                value,
                f"a request of the maximum length takes {gib(then)} per GPU instead of {gib(now)}",
            )
            return


def _smaller_weights(model: ModelSpec, engine: Engine, outcome: Outcome, attempt: Try) -> Iterator[Hint]:
    if outcome.binding == "kv" or outcome.settings.weights != "auto":
        return
    now = max(stage.weights_bytes for stage in outcome.stages)
    for name in engine.smaller_weights:
        tried = attempt(weights=name)
        if tried is not None and tried.fits:
            then = max(stage.weights_bytes for stage in tried.stages)
            yield Hint("--weights", name, f"a checkpoint in {name} takes {gib(then)} per GPU instead of {gib(now)}")
            return


def _more_gpus(model: ModelSpec, engine: Engine, outcome: Outcome, attempt: Try) -> Iterator[Hint]:
    settings = outcome.settings
    tp = settings.tensor_parallel_size
    for size in legal_sizes(model, MAX_GPUS) if engine.splits_tensors else ():
        if size == tp:
            continue
        tried = attempt(
            tensor_parallel_size=size, gpus=size * settings.pipeline_parallel_size * settings.data_parallel_size
        )
        if tried is not None and tried.fits:
            value = str(size) + _of_gpus(settings, tried)
            yield Hint("--tensor-parallel-size", value, f"fits on {tried.settings.gpus} GPUs (tp {size})")
            return
    per_node = max(legal_sizes(model, MAX_GPUS)) if engine.splits_tensors else tp
    for stages in range(settings.pipeline_parallel_size + 1, min(MAX_STAGES, model.num_layers) + 1):
        tried = attempt(
            tensor_parallel_size=per_node,
            pipeline_parallel_size=stages,
            gpus=per_node * stages * settings.data_parallel_size,
        )
        if tried is not None and tried.fits:
            on = f"fits on {tried.settings.gpus} GPUs"
            more = _of_gpus(settings, tried)
            if not engine.splits_tensors:
                typed = "pipeline_parallel_size" in typed_settings(settings)
                layers = f" --pipeline-parallel-size {stages}" if typed else ""
                yield Hint("--gpus", f"{tried.settings.gpus}{layers}", f"{on}, whole layers on each")
            elif per_node == tp:
                yield Hint("--pipeline-parallel-size", f"{stages}{more}", f"{on} (tp {tp}, pp {stages})")
            else:
                value = f"{per_node} --pipeline-parallel-size {stages}{more}"
                yield Hint("--tensor-parallel-size", value, f"{on} (tp {per_node}, pp {stages})")
            return


def _of_gpus(settings: Settings, tried: Outcome) -> str:
    """The number of GPUs again, where one was typed."""
    return "" if "gpus" in settings.defaults else f" --gpus {tried.settings.gpus}"


def _fewer_gpu_layers(model: ModelSpec, engine: Engine, outcome: Outcome, attempt: Try) -> Iterator[Hint]:
    """The most layers on the GPU, where an engine can keep the others in host memory."""
    if "n_gpu_layers" not in engine.settings:
        return

    def fits(layers: int) -> bool:
        tried = attempt(n_gpu_layers=str(layers))
        return tried is not None and bool(tried.fits)

    most = last_true(0, outcome.settings.extra.get("n_gpu_layers_used", model.num_layers + 1), fits)
    if most:
        yield Hint("--n-gpu-layers", str(most), f"{most} layers on the GPU, the others in host memory, which is slower")


def _utilization(model: ModelSpec, engine: Engine, outcome: Outcome, attempt: Try) -> Iterator[Hint]:
    if "gpu_memory_utilization" not in engine.settings or outcome.settings.kv_cache_memory_bytes is not None:
        return
    highest = engine.highest_utilization
    if outcome.settings.gpu_memory_utilization >= highest:
        return

    def fits(thousandths: int) -> bool:
        tried = attempt(gpu_memory_utilization=thousandths / 1000)
        return tried is not None and bool(tried.fits)

    if fits(round(highest * 1000)) and (smallest := smallest_thousandth(fits)) is not None:
        yield Hint("--gpu-memory-utilization", f"{smallest:g}", "the smallest share of the device with which it fits")


def smallest_thousandth(good: Callable[[int], bool]) -> float | None:
    """The smallest share, in thousandths of 1, for which `good` holds; None where not even 1 does.

    `good` takes thousandths and must stay true once it is.
    """
    return (last_true(0, 1000, lambda thousandths: not good(thousandths)) + 1) / 1000 if good(1000) else None


ADVISERS = (
    _fewer_sequences, _within_limit, _shorter, _fewer_requests, _smaller_format, _smaller_weights, _fewer_gpu_layers,
    _more_gpus, _utilization,
)  # fmt: skip
"""In the order in which their advice is printed."""

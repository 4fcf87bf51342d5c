"""What to change where a deployment does not fit: each piece of advice is computed, not guessed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from kvplan.cache.sharding import legal_sizes
from kvplan.errors import KvplanError
from kvplan.planning.evaluate import Outcome, evaluate, running_at_once
from kvplan.planning.plan import Hint
from kvplan.units import gib

if TYPE_CHECKING:
    from kvplan.engines.base import Engine
    from kvplan.spec.gpu import GpuSpec
    from kvplan.spec.model import ModelSpec

MAX_GPUS = 64
LITTLE = 0.8
"""A format that leaves more than this of a request's bytes is not worth its loss of precision."""
Try = Callable[..., Outcome | None]


def hints(model: ModelSpec, gpu: GpuSpec | None, engine: Engine, outcome: Outcome) -> tuple[Hint, ...]:
    """Single changes that help a deployment that does not fit, each tried; empty where it fits."""
    if outcome.fits is not False:
        return ()
    settings = outcome.settings

    def attempt(**changes: Any) -> Outcome | None:
        changed = replace(settings, **changes)
        try:
            engine.check(model, changed, gpu)
            return evaluate(model, gpu, engine, changed)
        except KvplanError:
            return None

    found: list[Hint] = []
    for advise in (
        _fewer_sequences,
        _shorter,
        _fewer_requests,
        _smaller_format,
        _smaller_weights,
        _more_gpus,
        _utilization,
    ):
        found += advise(model, engine, outcome, attempt)
    return tuple(found)


def _fewer_sequences(model: ModelSpec, engine: Engine, outcome: Outcome, attempt: Try) -> Iterator[Hint]:
    """The most running sequences that start, where the pool's states limit them."""
    pool, asked = outcome.pool, outcome.settings.max_num_seqs
    if pool is None or not pool.refusal or not asked or not pool.max_num_seqs_allowed:
        return

    def fits(sequences: int) -> bool:
        tried = attempt(max_num_seqs=sequences)
        return tried is not None and bool(tried.fits)

    low, high = min(pool.max_num_seqs_allowed, asked - 1), asked
    if not fits(low):
        return
    while high - low > 1:
        middle = (low + high) // 2
        if fits(middle):
            low = middle
        else:
            high = middle
    yield Hint("--max-num-seqs", str(low), "the most sequences for which the blocks hold a state each")


def _longest(outcome: Outcome, good: Callable[[int], bool]) -> int:
    """The largest max_model_len below the present one for which `good` holds; 0 where none does."""
    low, high = 0, outcome.settings.max_model_len
    while high - low > 1:
        middle = (low + high) // 2
        if good(middle):
            low = middle
        else:
            high = middle
    return low


def _shorter(model: ModelSpec, engine: Engine, outcome: Outcome, attempt: Try) -> Iterator[Hint]:
    settings = outcome.settings
    if outcome.pool is not None and (
        outcome.pool.starts or outcome.pool.max_single_request_tokens >= settings.max_model_len
    ):
        return  # the length is not what binds

    def fits(length: int) -> bool:
        tried = attempt(max_model_len=length)
        return tried is not None and bool(tried.fits)

    def starts(length: int) -> bool:
        tried = attempt(max_model_len=length)
        return tried is not None and tried.pool is not None and tried.pool.starts

    length = _longest(outcome, fits)
    if length >= settings.request_tokens:
        yield Hint("--max-model-len", str(length), f"the longest request that holds: {length:,} tokens")
        return
    length = _longest(outcome, starts)
    tried = attempt(max_model_len=length) if length else None
    if tried is None or tried.kv_bytes is None:
        return
    runs = running_at_once(engine, tried.stages, tried.settings, tried.kv_bytes)
    wanted = f"{settings.concurrency:,} requests of {settings.request_tokens:,} tokens"
    effect = f"it starts; {runs:,} of the {wanted} hold at once"
    yield Hint("--max-model-len", str(length), effect)


def _fewer_requests(model: ModelSpec, engine: Engine, outcome: Outcome, attempt: Try) -> Iterator[Hint]:
    settings = outcome.settings
    if outcome.pool is None or not outcome.pool.starts or outcome.kv_bytes is None:
        return
    runs = running_at_once(engine, outcome.stages, settings, outcome.kv_bytes)
    if 0 < runs < settings.concurrency:
        yield Hint("--concurrency", str(runs), f"{runs:,} requests of {settings.request_tokens:,} tokens hold at once")


def _smaller_format(model: ModelSpec, engine: Engine, outcome: Outcome, attempt: Try) -> Iterator[Hint]:
    if outcome.binding != "kv":
        return
    now = max(engine.request_bytes(s, outcome.settings, outcome.settings.max_model_len) for s in outcome.stages)
    for name in engine.smaller_kv_formats:
        tried = attempt(kv_cache_dtype=name)
        if tried is not None and tried.fits:
            then = max(engine.request_bytes(s, tried.settings, tried.settings.max_model_len) for s in tried.stages)
            yield Hint(
                "--kv-cache-dtype",
                name,
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
            yield Hint("--tensor-parallel-size", str(size), f"fits on {tried.settings.gpus} GPUs (tp {size})")
            return
    per_node = max(legal_sizes(model, 8)) if engine.splits_tensors else tp
    for stages in range(settings.pipeline_parallel_size + 1, min(8, model.num_layers) + 1):
        tried = attempt(
            tensor_parallel_size=per_node,
            pipeline_parallel_size=stages,
            gpus=per_node * stages * settings.data_parallel_size,
        )
        if tried is not None and tried.fits:
            on = f"fits on {tried.settings.gpus} GPUs"
            if not engine.splits_tensors:
                yield Hint("--gpus", str(tried.settings.gpus), f"{on}, whole layers on each")
            elif per_node == tp:
                yield Hint("--pipeline-parallel-size", str(stages), f"{on} (tp {tp}, pp {stages})")
            else:
                value = f"{per_node} --pipeline-parallel-size {stages}"
                yield Hint("--tensor-parallel-size", value, f"{on} (tp {per_node}, pp {stages})")
            return


def _utilization(model: ModelSpec, engine: Engine, outcome: Outcome, attempt: Try) -> Iterator[Hint]:
    if "gpu_memory_utilization" not in engine.settings or outcome.settings.kv_cache_memory_bytes is not None:
        return
    highest = engine.highest_utilization
    if outcome.settings.gpu_memory_utilization >= highest:
        return

    def fits(thousandths: int) -> bool:
        tried = attempt(gpu_memory_utilization=thousandths / 1000)
        return tried is not None and bool(tried.fits)

    if fits(round(highest * 1000)):
        smallest = smallest_thousandth(fits)
        yield Hint("--gpu-memory-utilization", f"{smallest:g}", "the smallest share of the device with which it fits")


def smallest_thousandth(good: Callable[[int], bool]) -> float | None:
    """The smallest share, in thousandths of 1, for which `good` holds; None where not even 1 does.

    `good` takes thousandths and must stay true once it is.
    """
    low, high = 0, 1000
    if not good(high):
        return None
    while high - low > 1:
        middle = (low + high) // 2
        if good(middle):
            high = middle
        else:
            low = middle
    return high / 1000


def notes(model: ModelSpec, gpu: GpuSpec | None, engine: Engine, outcome: Outcome) -> tuple[str, ...]:
    """What the layout and the settings do to the cache that nobody sees at first sight; each is computed."""
    found: list[str] = []
    for look in (
        _to_paste,
        _breaks_first,
        _most_sequences,
        _short_pool,
        _same_cache_everywhere,
        _format_without_effect,
    ):
        found += look(model, gpu, engine, outcome)
    return tuple(found)


def _to_paste(model: ModelSpec, gpu: GpuSpec | None, engine: Engine, outcome: Outcome) -> Iterator[str]:
    """The command that starts this deployment, and what it leaves beyond what the start needs."""
    if not outcome.fits or outcome.kv_bytes is None:
        return
    from kvplan.engines.paste import command

    line = command(model, outcome.settings)
    if line is None:
        return
    spare = [
        have - engine.start_bytes(s, outcome.settings) for s, have in zip(outcome.stages, outcome.kv_bytes, strict=True)
    ]
    weights = outcome.settings.weights
    stored = f" (a checkpoint in {weights})" if weights != "auto" and "--quantization" not in line else ""
    text = f"to paste: {line}{stored}"
    if outcome.waterfalls is None or outcome.settings.kv_cache_memory_bytes is not None:
        yield text
        return
    worst = min(
        left - sum(t.high_bytes - t.bytes for t in f.terms) for left, f in zip(spare, outcome.waterfalls, strict=True)
    )
    beyond = "its caches" if not engine.fills_budget else "one request of the limit"
    least = (
        f"{gib(worst)} if every modelled term is at its upper bound"
        if worst >= 0
        else (f"{gib(-worst)} short if every modelled term is at its upper bound")
    )
    yield f"{text}; leaves {gib(min(spare))} per GPU beyond {beyond} ({least})"


def _breaks_first(model: ModelSpec, gpu: GpuSpec | None, engine: Engine, outcome: Outcome) -> Iterator[str]:
    """What ends first as requests are added: the cache, or the engine's own limit on running sequences."""
    settings = outcome.settings
    if not outcome.fits or outcome.pool is None or outcome.kv_bytes is None or not engine.fills_budget:
        return
    limit, tokens = settings.max_num_seqs or settings.extra.get("max_running_requests"), settings.request_tokens
    holds = engine.requests_at(outcome.stages, settings, outcome.kv_bytes, tokens)
    each = " per replica" if settings.data_parallel_size > 1 else ""
    if limit and limit < holds:
        yield (
            f"breaks first as requests are added: max_num_seqs {limit:,}{each}; the cache would hold {holds:,} "
            f"requests of {tokens:,} tokens"
        )
    elif holds:
        than = f", before max_num_seqs {limit:,}" if limit else ""
        yield (
            f"breaks first as requests are added: the cache, full with {holds:,} requests of {tokens:,} tokens"
            f"{each}{than}"
        )


def _most_sequences(model: ModelSpec, gpu: GpuSpec | None, engine: Engine, outcome: Outcome) -> Iterator[str]:
    """The largest max_num_seqs of a hybrid, whose every running sequence needs a block for its state."""
    allowed = outcome.pool.max_num_seqs_allowed if outcome.pool is not None and outcome.fits else None
    if allowed is not None:
        yield f"--max-num-seqs is {allowed:,} at most with this memory: every running sequence needs a block of its own"


def _short_pool(model: ModelSpec, gpu: GpuSpec | None, engine: Engine, outcome: Outcome) -> Iterator[str]:
    """An engine that starts although its pool is shorter than a request may be."""
    pool, length = outcome.pool, outcome.settings.max_model_len
    if pool is not None and pool.starts and 0 < pool.max_single_request_tokens < length:
        yield (
            f"the pool holds {pool.max_single_request_tokens:,} tokens of one request, less than the limit of "
            f"{length:,}: {engine.name} starts, and longer requests do not run"
        )


def _same_cache_everywhere(model: ModelSpec, gpu: GpuSpec | None, engine: Engine, outcome: Outcome) -> Iterator[str]:
    """Ranks that hold copies of one cache (latent rows, fewer KV heads than ranks), and layouts that do not."""
    settings, pool = outcome.settings, outcome.pool
    copies = _copies(model, settings.tensor_parallel_size) // settings.decode_context_parallel_size
    if copies < 2 or pool is None or settings.extra.get("attn_dp_size", 1) > 1:
        return
    now = _tokens(outcome)
    parts = []
    for flags, changes in engine.sharing_layouts(settings, copies):
        changed = replace(settings, **changes)
        try:
            engine.check(model, changed, gpu)
            tried = evaluate(model, gpu, engine, changed)
        except KvplanError:
            continue
        if tried.pool is None:
            parts.append(f"{flags} does not fit")
        elif now:
            parts.append(f"{flags} holds {_tokens(tried):,} ({_tokens(tried) / now:.1f} x)")
    if parts:
        yield (
            f"{copies} ranks hold the same cache, {now:,} tokens in all, no more than one of them would; "
            f"of the same GPUs {', '.join(parts)}"
        )


def _copies(model: ModelSpec, tp: int) -> int:
    """Ranks of a tensor parallel group that hold the same cache, in the layers where they are fewest."""
    heads = [1 if m.kind == "mla" else s.heads for _, m in model.mixers() for s in m.streams() if s.role in ("k", "v")]
    if tp < 2 or not heads:
        return 1
    return max(1, tp // max(heads))


def _tokens(outcome: Outcome) -> int:
    """Tokens of cache over all replicas; by requests of the limit where the pool has no common measure."""
    pool, settings = outcome.pool, outcome.settings
    if pool is None:
        return 0
    each = pool.kv_tokens if pool.kv_tokens is not None else int(pool.max_concurrency * settings.max_model_len)
    groups = settings.extra.get("attn_dp_size", 1) if pool.kv_tokens is not None else 1
    return each * settings.data_parallel_size * groups


def _format_without_effect(model: ModelSpec, gpu: GpuSpec | None, engine: Engine, outcome: Outcome) -> Iterator[str]:
    """A smaller cache format that saves next to nothing, since the size of a page is that of a state."""
    settings = outcome.settings
    if not engine.smaller_kv_formats or not any(m.states() for _, m in model.mixers()):
        return
    if not any(m.streams() for _, m in model.mixers()):
        return
    small = settings.kv_cache_dtype if settings.kv_cache_dtype != "auto" else engine.smaller_kv_formats[0]
    if small in ("bf16", "fp16", "f16", "bfloat16", "float16"):
        return
    lengths = sorted({n for n in (settings.request_tokens, settings.max_model_len) if n <= settings.max_model_len})
    try:
        pair = [replace(settings, kv_cache_dtype=name) for name in ("auto", small)]
        for each in pair:
            engine.check(model, each, gpu)
        sizes = [[max(engine.request_bytes(s, each, n) for s in outcome.stages) for n in lengths] for each in pair]
    except KvplanError:
        return
    for tokens, plain, packed in zip(lengths, *sizes, strict=True):
        if packed > plain * LITTLE:
            saved = f"only {1 - packed / plain:.0%}" if packed < plain else "nothing"
            yield (
                f"a cache in {small} saves {saved} for requests of {tokens:,} tokens: {gib(packed, 3)} per GPU are "
                f"reserved, {gib(plain, 3)} in the model's dtype; the size of a page is that of a state"
            )


ADVISERS = (
    _fewer_sequences, _shorter, _fewer_requests, _smaller_format, _smaller_weights, _more_gpus, _utilization,
)  # fmt: skip
"""In the order in which their advice is printed."""

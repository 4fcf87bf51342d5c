"""What the layout and the settings of a deployment do to its cache that nobody sees at first sight."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from kvplan.errors import KvplanError
from kvplan.planning.advice import smallest_thousandth
from kvplan.planning.evaluate import Outcome, evaluate
from kvplan.spec.arrays import last_true
from kvplan.units import gib

if TYPE_CHECKING:
    from kvplan.engines.base import Engine, Settings
    from kvplan.spec.gpu import GpuSpec
    from kvplan.spec.model import ModelSpec

WORTHLESS_SHARE = 0.8
"""A format that leaves more than this of a request's bytes is not worth its loss of precision."""


def notes(
    model: ModelSpec, gpu: GpuSpec | None, engine: Engine, outcome: Outcome, most: int | None = None
) -> tuple[str, ...]:
    """What the layout and the settings do to the cache that nobody sees at first sight; each is computed.

    Args:
        most: running sequences at most (`kvplan.planning.advice.most_sequences`).
    """
    found: list[str] = []
    for look in (
        _to_paste,
        _breaks_first,
        _same_cache_everywhere,
        _format_without_effect,
    ):
        found += look(model, gpu, engine, outcome)
    if most and outcome.fits:
        found.append(f"{engine.sequences_flag} is {most:,} at most with this memory: {engine.sequence_needs}")
    return tuple(found)


def _to_paste(model: ModelSpec, gpu: GpuSpec | None, engine: Engine, outcome: Outcome) -> Iterator[str]:
    """The command that starts this deployment, and what it leaves beyond what the start needs."""
    if not outcome.fits or outcome.kv_bytes is None:
        return
    from kvplan.engines.paste import command

    typed = _typed(model, gpu, engine, outcome)
    pasted = command(model, typed) if typed is not None else None
    if pasted is None:
        return
    line = pasted.line
    needs, beyond = _start(engine, outcome)
    spare = [have - need for need, have in zip(needs, outcome.kv_bytes, strict=True)]
    weights = outcome.settings.weights
    stored = f"a checkpoint in {weights}" if weights != "auto" and "--quantization" not in line else ""
    beside = [said for said in (stored, pasted.beside) if said]
    text = f"to paste: {line}"  # alone on its line: a shell would run what stands behind it
    if outcome.waterfalls is None or outcome.settings.kv_cache_memory_bytes is not None:
        yield "\n".join((text, *filter(None, ("; ".join(beside),))))
        return
    worst = min(
        left - sum(t.high_bytes - t.bytes for t in f.terms) for left, f in zip(spare, outcome.waterfalls, strict=True)
    )
    least = (
        f"{gib(worst)} if every modelled term is at its upper bound"
        if worst >= 0
        else (f"{gib(-worst)} short if every modelled term is at its upper bound")
    )
    beside.append(f"leaves {gib(min(spare))} per GPU beyond {beyond} ({least})")
    yield f"{text}\n{'; '.join(beside)}"


def _start(engine: Engine, outcome: Outcome) -> tuple[list[int], str]:
    """(bytes of a rank of each stage without which it is of no use, what they are of).

    An engine that starts with a page alone still has to hold a request of the limit, if it holds one at all.
    """
    settings, pool = outcome.settings, outcome.pool
    needs = [engine.start_bytes(s, settings) for s in outcome.stages]
    if not engine.fills_budget:
        return needs, "its caches"
    if pool is not None and pool.max_single_request_tokens < settings.max_model_len:
        return needs, "the smallest cache that starts"
    one = [engine.request_bytes(s, settings, settings.max_model_len) for s in outcome.stages]
    return [max(pair) for pair in zip(needs, one, strict=True)], "one request of the limit"


def _typed(model: ModelSpec, gpu: GpuSpec | None, engine: Engine, outcome: Outcome) -> Settings | None:
    """The settings in the engine's own words; None: none of them make the same pool.

    An engine that takes a limit in place of bytes may need a larger share of the device to reach it.
    """
    settings, pool = outcome.settings, outcome.pool
    assert pool is not None  # it fits
    typed = engine.typed(settings, pool)
    if typed is settings or gpu is None or "mem_fraction_static" not in typed.extra:
        return typed
    own = typed.extra["mem_fraction_static"]

    def reaches(thousandths: int) -> bool:
        tried = replace(typed, extra={**typed.extra, "mem_fraction_static": thousandths / 1000})
        found = evaluate(model, gpu, engine, tried).pool
        return found is not None and found.kv_tokens == pool.kv_tokens and found.state_slots == pool.state_slots

    if reaches(round(own * 1000)):
        return typed
    least = smallest_thousandth(reaches)
    return replace(typed, extra={**typed.extra, "mem_fraction_static": least}) if least is not None else None


def _breaks_first(model: ModelSpec, gpu: GpuSpec | None, engine: Engine, outcome: Outcome) -> Iterator[str]:
    """What ends first as requests are added: the cache, or the engine's own limit on running sequences."""
    settings = outcome.settings
    if not outcome.fits or outcome.pool is None or outcome.kv_bytes is None or not engine.fills_budget:
        return
    from kvplan.planning.prefix import requests, running_limit

    tokens, shared = settings.request_tokens, ""
    holds = int(requests(engine, outcome.stages, settings, outcome.kv_bytes, by_cache=True))
    if not engine.lays_out_pool:  # what they take beside the cache grows as they come

        def together(count: int) -> bool:
            running = replace(settings, concurrency=count * settings.data_parallel_size)
            return bool(evaluate(model, gpu, engine, running).fits)

        holds = last_true(0, holds + 1, together)
    if once := engine.shared_prefix_tokens(model, settings) if settings.shared_prefix_tokens else 0:
        shared = f", {once:,} of them held once for all"
    limit, name = running_limit(settings), engine.sequences_flag.removeprefix("--").replace("-", "_")
    default = limit is None
    if default and (runs := int(requests(engine, outcome.stages, settings, outcome.kv_bytes))) < holds:
        limit = runs
    each = " per replica" if settings.data_parallel_size > 1 else ""
    if limit and limit < holds:
        yield (
            f"breaks first as requests are added: {name} {limit:,}{' by default' if default else ''}{each}; the cache "
            f"would hold {holds:,} requests of {tokens:,} tokens{shared}"
        )
    elif holds:
        than = f", before {name} {limit:,}" if limit else ""
        yield (
            f"breaks first as requests are added: the cache, full with {holds:,} requests of {tokens:,} tokens"
            f"{shared}{each}{than}"
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
    heads = [s.heads for _, m in model.mixers() for s in m.streams() if s.role in ("k", "v")]
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
    if not engine.pages_cover_states or not any(m.states() for _, m in model.mixers()):
        return
    if not any(m.streams() for _, m in model.mixers()):
        return
    small = settings.kv_cache_dtype if settings.kv_cache_dtype != "auto" else engine.smaller_kv_formats[0]
    if small in ("bf16", "fp16", "f16", "bfloat16", "float16", "half"):
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
        if packed > plain * WORTHLESS_SHARE:
            saved = f"only {1 - packed / plain:.0%}" if packed < plain else "nothing"
            yield (
                f"a cache in {small} saves {saved} for requests of {tokens:,} tokens: {gib(packed, 3)} per GPU are "
                f"reserved, {gib(plain, 3)} in the model's dtype; the size of a page is that of a state"
            )

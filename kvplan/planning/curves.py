"""What a plan's pictures draw: its figures again at other lengths and other batches, by the functions of the plan.

Nothing here is a formula of its own: cache bytes come from the engine's pages and from `kvplan.cache.bytes`, speed
from `kvplan.planning.speed.figures.speed`, capacity from `Engine.requests_at` and `kvplan.planning.prefix`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from kvplan.cache.bytes import sequence_bytes
from kvplan.planning import prefix
from kvplan.planning.plan import to_plain
from kvplan.planning.planner import work_out

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvplan.engines.base import Engine
    from kvplan.planning.calibration import Calibration
    from kvplan.planning.evaluate import Outcome
    from kvplan.planning.speed.figures import Speed
    from kvplan.spec.gpu import GpuSpec
    from kvplan.spec.model import ModelSpec

_SHORTEST = 64
"""Tokens at which the curve over lengths begins."""
_MOST_BATCH = 1 << 16


class AtTokens(NamedTuple):
    """The cache of one request of one length."""

    tokens: int
    bytes: int
    """Over all layers, unsharded."""
    bytes_per_gpu: int
    """Reserved on the most loaded rank, pages included."""


class Knee(NamedTuple):
    """A length at which the growth changes."""

    tokens: int
    layers: int
    """So many layers have a full window from there on."""


class AtBatch(NamedTuple):
    """Decode at one number of running requests."""

    requests: int
    """Of the deployment."""
    tokens_per_second: float
    """Of the deployment."""
    tokens_per_second_per_request: float
    seconds_per_step: float
    bound: str | None
    holds: bool | None
    """Whether the cache holds so many requests of prompt + output; None: nothing says."""


class Roof(NamedTuple):
    """What one GPU reaches at most."""

    bytes_per_second: float
    """Reading weights."""
    flops_per_second: float
    """Multiplying them."""


class Work(NamedTuple):
    """What one GPU reaches in one phase."""

    name: str
    intensity: float
    """FLOPs per byte."""
    flops_per_second: float


class Curves(NamedTuple):
    """All of them; what cannot be said is empty, or None."""

    lengths: tuple[AtTokens, ...]
    knees: tuple[Knee, ...]
    cache_bytes_per_gpu: int | None
    """What one GPU has for the cache."""
    batches: tuple[AtBatch, ...]
    context: int | None
    """Tokens cached by each request of `batches`."""
    most_requests: int | None
    """Of prompt + output that the cache of the deployment holds at once, a common prefix held once."""
    max_num_seqs: int | None
    """The engine's own limit, of the deployment."""
    ridge_requests: int | None
    """From so many on multiplying the weights takes longer than reading them."""
    ceiling_tokens_per_second: float | None
    roof: Roof | None
    works: tuple[Work, ...]

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        plain: dict[str, Any] = to_plain(self)
        return plain


def curves(model: ModelSpec, gpu: GpuSpec | None, engine: str, given: dict[str, Any]) -> Curves:
    """The curves of the deployment that `kvplan.planning.planner.plan_deployment` plans with the same arguments.

    Raises:
        KvplanError: as there.
    """
    model, chosen, calibration, outcome, _ = work_out(model, gpu, engine, given)
    lengths, knees = _lengths(model, chosen, outcome)
    settings, kv = outcome.settings, outcome.kv_bytes
    found = Curves(
        lengths, knees, min(kv) if kv is not None and min(kv) > 0 else None, (), None, _most(chosen, outcome),
        settings.max_num_seqs * settings.data_parallel_size if settings.max_num_seqs else None, None, None, None, (),
    )  # fmt: skip
    return found if gpu is None else _with_speed(found, model, gpu, chosen, outcome, calibration)


def _lengths(model: ModelSpec, engine: Engine, outcome: Outcome) -> tuple[tuple[AtTokens, ...], tuple[Knee, ...]]:
    settings = outcome.settings
    formats, longest = engine.kv_formats(model, settings), settings.max_model_len
    knees: dict[int, int] = {}
    for layers, mixer in model.mixers():
        for window in {s.window for s in mixer.streams() if s.window and s.window < longest}:
            knees[window] = knees.get(window, 0) + layers
    at = {longest, *knees}
    tokens = _SHORTEST
    while tokens < longest:
        at.add(tokens)
        tokens *= 2
    found = []
    for n in sorted(at):
        whole = int(sequence_bytes(model, n, formats, drafts=True))
        each = max(int(engine.request_bytes(s, settings, n)) for s in outcome.stages)
        found.append(AtTokens(n, whole, each))
    return tuple(found), tuple(Knee(n, layers) for n, layers in sorted(knees.items()))


def _most(engine: Engine, outcome: Outcome) -> int | None:
    if outcome.kv_bytes is None:
        return None
    if outcome.pool is None:
        return 0
    one = int(prefix.requests(engine, outcome.stages, outcome.settings, outcome.kv_bytes))
    return one * outcome.settings.data_parallel_size


def _with_speed(
    found: Curves, model: ModelSpec, gpu: GpuSpec, engine: Engine, outcome: Outcome, calibration: Calibration | None
) -> Curves:
    from kvplan.planning.speed import decode
    from kvplan.planning.speed.figures import setup, speed

    made = setup(model, gpu, engine, outcome, calibration)
    if isinstance(made, str):
        return found
    dp = outcome.settings.data_parallel_size

    def at(batch: int) -> Speed:
        """Decode and prefill with so many sequences on each replica."""
        settings = replace(outcome.settings, concurrency=batch * dp, max_num_seqs=None)
        return speed(model, gpu, engine, outcome._replace(settings=settings), calibration)

    asked = at(outcome.settings.concurrency_per_replica)
    if asked.decode is None:
        return found
    ridge, context, most = asked.decode.ridge_batch, asked.decode.context, found.most_requests
    counts = _counts([outcome.settings.concurrency_per_replica, ridge, most and most // dp])
    batches = []
    for count in counts:
        parts = decode.step(made.works, made.rates, made.layout, count, context)
        memory = decode.memory_seconds(made.works, made.rates, made.layout, count, context)
        seconds, holds = float(parts.seconds), None if most is None else count * dp <= most
        batches.append(
            AtBatch(count * dp, count * dp / seconds, 1 / seconds, seconds, decode.bound(parts, memory), holds)
        )
    rates = made.rates
    return found._replace(
        batches=tuple(batches), context=asked.decode.context, ridge_requests=ridge * dp if ridge is not None else None,
        ceiling_tokens_per_second=asked.decode.ceiling_tokens_per_second,
        roof=Roof(rates.weight_bandwidth, rates.decode_flops) if rates.matmul_flops else None,
        works=_works(asked, at, ridge, outcome.settings.pipeline_parallel_size),
    )  # fmt: skip


def _counts(known: list[int | None]) -> list[int]:
    """Powers of two that go beyond what is marked, and what is marked itself."""
    marked = [n for n in known if n and n <= _MOST_BATCH]
    top = min(4 * max(marked, default=64), _MOST_BATCH)
    powers = {1 << i for i in range(top.bit_length())}
    return sorted(powers | set(marked))


def _works(asked: Speed, at: Callable[[int], Speed], ridge: int | None, pp: int) -> tuple[Work, ...]:
    """Decode at a few batches, and prefill, as points under the roof of one GPU."""
    assert asked.decode is not None  # the caller looked
    counts = sorted({1, asked.decode.batch, *([ridge] if ridge else [])})
    found = []
    for count in counts:
        one = at(count).decode
        if one is not None:
            flops = one.arithmetic_intensity * (one.weight_bytes + one.kv_bytes)
            found.append(Work(f"decode, batch {count:,}", one.arithmetic_intensity, flops / one.seconds_per_step))
    if asked.prefill is not None:
        one_gpu = asked.prefill.flops / pp / asked.prefill.seconds
        name = f"prefill of {asked.prefill.tokens:,}"
        found.append(Work(name, asked.prefill.arithmetic_intensity, one_gpu))
    return tuple(found)

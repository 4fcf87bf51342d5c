"""Which target a deployment misses, in words, and single changes with which all of them hold; each is tried."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import ceil
from typing import TYPE_CHECKING, Any

from kvplan.cache.sharding import legal_sizes
from kvplan.errors import KvplanError
from kvplan.planning.advice import MAX_GPUS
from kvplan.planning.evaluate import evaluate
from kvplan.planning.plan import Hint
from kvplan.spec.arrays import last_true

if TYPE_CHECKING:
    from kvplan.planning.evaluate import Outcome
    from kvplan.planning.workload import ServingFigures, Target, Traffic

_MOST_REPLICAS = 256


def missed(target: Target) -> str:
    """By how much a target is missed."""
    value, flag = target.predicted, target.flag
    if target.name == "request_rate":
        if not value:
            return "not even a single request meets the targets"
        return f"{value:.3g} requests/s are carried, {flag} asks for {target.target:g}"
    if target.name == "concurrency":
        return f"{value:,.1f} requests are in flight (Little's law), {flag} allows {target.target:,g}"
    what = "time to first token" if target.name == "ttft" else "time per output token"
    said = "grows without end" if value is None else f"{seconds(value)}"
    return f"{what} {said}, {flag} asks for {seconds(target.target)}"


def seconds(value: float, digits: int = 3) -> str:
    """``1.2 s`` or ``31.4 ms``."""
    return f"{value:.{digits}g} s" if value >= 1 else f"{value * 1e3:.{digits}g} ms"


class _Attempts:
    """The deployment with other settings."""

    def __init__(self, traffic: Traffic, outcome: Outcome) -> None:
        self.traffic, self.outcome = traffic, outcome

    def serving(self, **changes: Any) -> ServingFigures | None:
        """What it serves after `changes`; None where it is refused or does not fit."""
        traffic, settings = self.traffic, self.outcome.settings
        idle = settings.gpus - settings.world_size
        changed = replace(settings, **changes)
        changed = replace(changed, gpus=changed.world_size + idle)
        if traffic.rate is not None and traffic.concurrency is None:
            changed = replace(changed, concurrency=changed.data_parallel_size)
        try:
            traffic.engine.check(traffic.model, changed, traffic.gpu)
            outcome = traffic.running(evaluate(traffic.model, traffic.gpu, traffic.engine, changed))
            return traffic.figures(outcome)[0] if outcome.fits else None
        except KvplanError:
            return None

    def holds(self, **changes: Any) -> bool:
        found = self.serving(**changes)
        return found is not None and found.targets_hold is True


def target_hints(traffic: Traffic, outcome: Outcome, serving: ServingFigures) -> Iterator[Hint]:
    """Single changes with which the targets hold."""
    attempts = _Attempts(traffic, outcome)
    yield from _less_traffic(traffic, outcome, serving, attempts)
    yield from _more_under_way(traffic, outcome, serving)
    yield from _more_replicas(traffic, outcome, serving, attempts)
    yield from _wider(traffic, outcome, attempts)
    yield from _smaller(traffic, outcome, attempts)


def _less_traffic(traffic: Traffic, outcome: Outcome, serving: ServingFigures, attempts: _Attempts) -> Iterator[Hint]:
    if traffic.rate is not None:
        if serving.max_request_rate:
            text = _rounded_down(serving.max_request_rate)
            yield Hint("--request-rate", text, "requests a second that this deployment carries within the targets")
        return
    most = _most_running(outcome.settings.concurrency, attempts)
    if most:
        yield Hint("--concurrency", str(most), "the most running requests with which the targets hold")


def _more_under_way(traffic: Traffic, outcome: Outcome, serving: ServingFigures) -> Iterator[Hint]:
    """A higher limit on the requests under way, where that alone is missed."""
    target = next((t for t in serving.targets if t.name == "concurrency" and not t.holds), None)
    if target is None or target.predicted is None:
        return
    count = ceil(target.predicted)
    if _Attempts(traffic.at_most(count), outcome).holds(concurrency=count):
        yield Hint("--concurrency", str(count), "requests under way at this rate (Little's law)")


def _most_running(asked: int, attempts: _Attempts) -> int:
    """The most running requests below `asked` with which the targets hold; 0: not even one."""
    return last_true(0, asked, lambda running: attempts.holds(concurrency=running))


def _rounded_down(value: float) -> str:
    """Three digits that are not above `value`."""
    text = f"{value:.3g}"
    while float(text) > value:
        text = f"{value * (1 - 2e-3):.3g}"
        value *= 1 - 1e-3
    return f"{float(text):g}"


def _more_replicas(traffic: Traffic, outcome: Outcome, serving: ServingFigures, attempts: _Attempts) -> Iterator[Hint]:
    """The fewest data-parallel replicas that hold the targets, found upwards from what the rate takes."""
    dp = outcome.settings.data_parallel_size
    first = dp + 1
    if serving.replicas_needed:
        first = max(first, dp * (serving.replicas_needed - 1) + 1)
    elif traffic.rate is not None:
        return  # no number of replicas makes one request faster
    low = first
    while low <= _MOST_REPLICAS and not attempts.holds(data_parallel_size=low):
        low += ceil(low / 8)
    if low <= _MOST_REPLICAS:
        yield Hint("--data-parallel-size", str(low), "replicas that share the traffic")


def _wider(traffic: Traffic, outcome: Outcome, attempts: _Attempts) -> Iterator[Hint]:
    tp = outcome.settings.tensor_parallel_size
    for size in legal_sizes(traffic.model, MAX_GPUS) if traffic.engine.splits_tensors else ():
        if size > tp and attempts.holds(tensor_parallel_size=size):
            yield Hint("--tensor-parallel-size", str(size), "GPUs that share every layer, so that each step is shorter")
            return


def _smaller(traffic: Traffic, outcome: Outcome, attempts: _Attempts) -> Iterator[Hint]:
    settings = outcome.settings
    if settings.kv_cache_dtype == "auto":
        for name in traffic.engine.smaller_kv_formats:
            if attempts.holds(kv_cache_dtype=name):
                yield Hint("--kv-cache-dtype", name, "a smaller cache is read faster, and more requests hold")
                break
    if settings.weights == "auto":
        for name in traffic.engine.smaller_weights:
            if attempts.holds(weights=name):
                yield Hint("--weights", name, f"a checkpoint in {name} is read and multiplied faster")
                break

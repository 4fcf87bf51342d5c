"""What a deployment makes of traffic: waits, time to first token and per token, whether targets hold, and its cost.

Requests come at random at ``request_rate`` a second, or `concurrency` of them are always under way. The queueing
model is that of `kvplan.planning.speed.batching`; data-parallel replicas get equal parts of the traffic.
"""

from __future__ import annotations

from copy import copy
from dataclasses import replace
from math import ceil
from typing import TYPE_CHECKING, Any, NamedTuple

from kvplan.errors import InputError
from kvplan.planning.cost import CostFigures, cost_figures, price_of, read_prices, throughput_bounds
from kvplan.planning.speed import load
from kvplan.planning.speed.batching import Steady, prefill_share
from kvplan.planning.speed.load import Limits
from kvplan.planning.speed.profile import Lengths, Profile, profile
from kvplan.planning.speed.speculation import speculated
from kvplan.spec.arrays import last_true

if TYPE_CHECKING:
    from kvplan.engines.base import Engine, Settings
    from kvplan.planning.calibration import Calibration
    from kvplan.planning.evaluate import Outcome
    from kvplan.planning.plan import Plan
    from kvplan.planning.speed.figures import Setup
    from kvplan.spec.gpu import GpuSpec
    from kvplan.spec.model import ModelSpec

LITTLES_LAW = "Little's law"
_SLACK = 1 + 1e-9
"""What rounding may add to a figure that meets its target exactly."""
QUEUEING = (
    "requests at random (Poisson), dealt evenly over the replicas; prompts wait as in M/G/1, requests for a slot as in "
    "M/G/c; the decode batch by Little's law"
)
LOOP = "each request that ends is followed by another; prompts wait for each other as mean value analysis has it"


class Target(NamedTuple):
    """One thing that was asked for."""

    name: str
    """``ttft``, ``tpot``, ``request_rate`` or ``concurrency``."""
    flag: str
    target: float
    predicted: float | None
    """None: waits grow without end."""
    holds: bool


class ServingFigures(NamedTuple):
    """A deployment under its workload. Seconds are means over requests; None: it does not start, or nothing says."""

    ttft_seconds: float | None
    """Time to first token: `slot_seconds` + `queue_seconds` + `prefill_seconds`."""
    tpot_seconds: float | None
    """Time per output token, prompts of others in the same steps included."""
    request_seconds: float | None
    """From a request's arrival to its last token."""
    slot_seconds: float | None
    """Waiting for a place among the running requests."""
    queue_seconds: float | None
    """Waiting for prompts ahead, and for the step that is under way."""
    prefill_seconds: float | None
    request_rate: float | None
    """As asked for; None: a fixed number of requests is always under way."""
    requests_per_second: float | None
    """Completed, of the deployment."""
    output_tokens_per_second: float | None
    in_flight: float | None
    """Requests that are running, of the deployment, on average."""
    decode_batch: float | None
    """Sequences that get a token in a step of one replica, on average."""
    tokens_per_step: float | None
    """Of one of them: 1, or more where drafts of speculative decoding are kept (``--acceptance-rate``)."""
    slots: int | None
    """Requests of prompt + output that one replica runs at once, by its cache and its settings."""
    prefill_utilization: float | None
    """Share of the prompt tokens that fit into steps; at 1 waits grow without end."""
    max_request_rate: float | None
    """Of the deployment, requests at random: within the targets, or where there are none, while waits end."""
    saturation_request_rate: float | None
    """The latter, whatever the targets."""
    replicas_needed: int | None
    """Deployments like this one that carry the rate within the targets; None: no rate, or none does."""
    targets: tuple[Target, ...]
    targets_hold: bool | None
    """None: there are none."""
    queueing: str


class Traffic:
    """One deployment under its workload.

    Args:
        given: `settings.SERVICE` as the user set them.

    Raises:
        InputError: there is no GPU, or targets contradict each other.
    """

    def __init__(
        self, model: ModelSpec, gpu: GpuSpec | None, engine: Engine, calibration: Calibration | None,
        given: dict[str, Any],
    ) -> None:  # fmt: skip
        name = next(
            (n for n in ("ttft", "tpot", "request_rate", "acceptance_rate", "price") if given.get(n) is not None), None
        )
        if gpu is None:
            flag = f"--{(name or 'prompt_cv').replace('_', '-')}"
            raise InputError("is about a GPU, and none is named", where=flag, hint="add --gpu NAME")
        self.model, self.gpu, self.engine, self.calibration = model, gpu, engine, calibration
        self.prices = read_prices(given.get("price") or ())
        self.rate, self.ttft, self.tpot = (given.get(n) for n in ("request_rate", "ttft", "tpot"))
        self.concurrency: int | None = given.get("concurrency")
        self.asked = name
        self._known: tuple[tuple[Profile, float, int], Steady] | None = None
        """The last state at a rate, which does not depend on the concurrency that it makes."""

    def limits(self, settings: Settings) -> Limits:
        """What one replica may not exceed: the targets, and its part of the requests under way beside a rate."""
        beside = self.concurrency is not None and self.rate is not None
        return Limits(
            self.ttft, self.tpot, flying=(self.concurrency or 0) / settings.data_parallel_size if beside else None
        )

    def running(self, outcome: Outcome) -> Outcome:
        """The outcome with as many running requests as the rate makes, where only the rate was given."""
        from kvplan.planning.evaluate import evaluate

        settings = outcome.settings
        check_targets(settings, self.rate, self.concurrency, self.ttft, self.tpot)
        found = self.setup(outcome) if self.rate is not None and self.concurrency is None else None
        slots = self.slots(outcome)
        if self.rate is None or found is None or not slots:
            return outcome
        dp = settings.data_parallel_size
        state = self._at_rate(profile(found, self.lengths(settings)), self.rate / dp, slots)
        count = max(1, min(ceil(float(state.in_flight)) * dp, slots * dp))
        each = float(state.in_flight / state.requests_per_second)
        source = f"{LITTLES_LAW}: {self.rate:g} requests/s, {each:.3g} s each"
        if not self._carried(state, dp, slots):
            source = f"as many as run at once: {self.rate:g} requests/s are more than are carried"
        settings = replace(settings, concurrency=count, defaults={**settings.defaults, "concurrency": source})
        return evaluate(self.model, self.gpu, self.engine, settings)

    def at_most(self, concurrency: int) -> Traffic:
        """The same traffic with another limit of requests under way."""
        other = copy(self)
        other.concurrency = concurrency
        return other

    def setup(self, outcome: Outcome) -> Setup | None:
        """What the formulas of speed take; None where there is no pool, or only a price was asked for.

        Raises:
            InputError: nothing says how fast the deployment is, and something was asked that depends on it.
        """
        from kvplan.planning.speed.figures import setup

        found = setup(self.model, self.gpu, self.engine, outcome, self.calibration)
        why = found if isinstance(found, str) else None
        if not isinstance(found, str):
            if found.rates.matmul_flops is not None and found.rates.attention_flops is not None:
                return found
            why = f"no FLOPs figure for {self.gpu.id}: how long a prompt takes is not known"
        if self.asked in (None, "price"):
            return None
        raise InputError(
            why or "", where=f"--{(self.asked or '').replace('_', '-')}", hint="leave it out, or name another GPU"
        )

    def lengths(self, settings: Settings) -> Lengths:
        """The requests of the workload, their common prefix as the engine finds it."""
        shared = self.engine.shared_prefix_tokens(self.model, settings) if settings.shared_prefix_tokens else 0
        prompt_cv, output_cv = (float(settings.extra.get(n) or 0.0) for n in ("prompt_cv", "output_cv"))
        found = Lengths(settings.prompt_tokens, settings.output_tokens, int(shared), prompt_cv, output_cv)
        return speculated(found, self.model, self.engine, settings)

    def slots(self, outcome: Outcome) -> int:
        """Requests that one replica runs at once; 0 where it does not start."""
        settings, kv, pool = outcome.settings, outcome.kv_bytes, outcome.pool
        if (
            kv is None
            or pool is None
            or pool.starts is False
            or pool.refusal
            or outcome.binding in ("weights", "activations")
        ):
            return 0
        return slots_of(self.engine, outcome.stages, settings, kv)

    def figures(self, outcome: Outcome) -> tuple[ServingFigures, CostFigures]:
        """Serving and cost of the workload."""
        settings, slots, found = outcome.settings, self.slots(outcome), self.setup(outcome)
        price = price_of(self.gpu, self.prices)
        lengths, dp = self.lengths(settings), settings.data_parallel_size
        if found is None or not slots:
            cost = cost_figures(
                price, settings.gpus, prompt=lengths.prompt, output=lengths.output, rate=None, share=None
            )
            return self._nothing(), cost
        made = profile(found, lengths)
        state, rate = self._state(made, settings, slots)
        free = most = load.carried(made, slots).requests_per_second * dp
        limits = self.limits(settings)
        if any(limit is not None for limit in limits):
            most = load.carried(made, slots, limits).requests_per_second * dp
        served, speed = free if rate is None else rate, (1.0, 1.0)
        share = float(prefill_share(made, state))
        if self.rate is None or rate is None:  # as many as the speed makes
            of = found.rates
            speed = throughput_bounds(share, (of.low, of.high), (of.prefill_low, of.prefill_high))
        cost = cost_figures(
            price, settings.gpus, prompt=lengths.prompt, output=lengths.output, rate=float(served), share=share,
            speed=speed,
        )  # fmt: skip
        serving = self._serving(state, rate, settings, lengths, slots, float(most), float(free))
        return serving, cost

    def _state(self, made: Profile, settings: Settings, slots: int) -> tuple[Steady, float | None]:
        """The steady state, and the requests a second of the deployment; None where more come than it can carry."""
        dp = settings.data_parallel_size
        if self.rate is None:
            running = settings.concurrency_per_replica
            state = load.in_loop(made, running, slots)
            return state, float(state.requests_per_second) * settings.concurrency / running
        state = self._at_rate(made, self.rate / dp, slots)
        return state, self.rate if self._carried(state, dp, slots) else None

    def _at_rate(self, made: Profile, rate: float, slots: int) -> Steady:
        if self._known is None or self._known[0] != (made, rate, slots):
            self._known = (made, rate, slots), load.at_rate(made, rate, slots)
        return self._known[1]

    def _carried(self, state: Steady, dp: int, slots: int) -> bool:
        """Whether waits end at the rate."""
        stable = state.prefill_utilization < 1 and state.in_flight < slots
        return bool(stable and state.requests_per_second * dp >= (self.rate or 0.0) * (1 - 1e-9))

    def _serving(
        self, state: Steady, rate: float | None, settings: Settings, lengths: Lengths, slots: int, most: float,
        free: float,
    ) -> ServingFigures:  # fmt: skip
        dp, waits = settings.data_parallel_size, rate is not None
        ttft = float(state.seconds_to_first_token) if waits else None
        tpot = float(state.seconds_per_step) / lengths.tokens_per_step if waits and lengths.steps else None
        served = rate if rate is not None else free
        flying = float(state.in_flight) * dp * (served / dp / float(state.requests_per_second))
        flying = min(flying, float(slots * dp))  # those beyond wait, however long a load is that is not carried
        whole = None if ttft is None else ttft + max(0, lengths.output - 1) * (tpot or 0.0)
        targets = self._targets(ttft, tpot, most, None if whole is None else served * whole)
        needed = None
        if self.rate is not None and most > 0:
            needed = max(1, ceil(self.rate / most - 1e-9))
        return ServingFigures(
            ttft_seconds=ttft, tpot_seconds=tpot,
            request_seconds=whole,
            slot_seconds=float(state.slot_seconds) if waits else None,
            queue_seconds=float(state.queue_seconds) if waits else None, prefill_seconds=float(state.prefill_seconds),
            request_rate=self.rate, requests_per_second=served, output_tokens_per_second=served * lengths.output,
            in_flight=flying, decode_batch=float(state.decoding), slots=slots,
            tokens_per_step=lengths.tokens_per_step,
            prefill_utilization=float(state.prefill_utilization), max_request_rate=most, saturation_request_rate=free,
            replicas_needed=needed, targets=targets, targets_hold=all(t.holds for t in targets) if targets else None,
            queueing=LOOP if self.rate is None else QUEUEING,
        )  # fmt: skip

    def _targets(self, ttft: float | None, tpot: float | None, most: float, flying: float | None) -> tuple[Target, ...]:
        found = []
        if self.rate is not None:
            found.append(Target("request_rate", "--request-rate", self.rate, most, self.rate <= most * _SLACK))
            if self.concurrency is not None and flying is not None:
                held = flying <= self.concurrency * _SLACK
                found.append(Target("concurrency", "--concurrency", self.concurrency, flying, held))
        for name, target, value in (("ttft", self.ttft, ttft), ("tpot", self.tpot, tpot)):
            if target is not None:
                met = value is not None and value <= target * _SLACK
                if name == "tpot" and value is None and ttft is not None:
                    met = True  # there is one output token, or none
                found.append(Target(name, f"--{name}", target, value, met))
        return tuple(found)

    def _nothing(self) -> ServingFigures:
        """Where it does not start."""
        targets = tuple(t._replace(predicted=None, holds=False) for t in self._targets(None, None, 0.0, None))
        fields: dict[str, Any] = dict.fromkeys(ServingFigures._fields)
        fields |= {"request_rate": self.rate, "targets": targets, "queueing": LOOP if self.rate is None else QUEUEING}
        return ServingFigures(**fields | {"targets_hold": False if targets else None})


def slots_of(engine: Engine, stages: Any, settings: Settings, kv: tuple[Any, ...]) -> int:
    """Requests of the workload that one replica runs at once, a common prefix held once, and by max_num_seqs."""
    from kvplan.planning.prefix import MOST, running_limit

    most = running_limit(settings) or MOST
    if not settings.shared_prefix_tokens:
        return min(most, int(engine.requests_at(stages, settings, kv, settings.request_tokens)))
    dp = settings.data_parallel_size
    return last_true(0, most + 1, lambda n: bool(engine.holds(stages, replace(settings, concurrency=n * dp), kv)))


def check_targets(
    settings: Settings, rate: float | None, concurrency: int | None, ttft: float | None, tpot: float | None
) -> None:
    """Refuse targets of which no hardware meets both.

    Raises:
        InputError: which pair contradicts, and by what.
    """
    if rate is None or concurrency is None or ttft is None or tpot is None:
        return
    longest = ttft + max(0, settings.output_tokens - 1) * tpot
    if concurrency > rate * longest * _SLACK:
        raise InputError(
            f"{concurrency:,} requests in flight at {rate:g} a second last {concurrency / rate:.4g} s each "
            f"({LITTLES_LAW}), and --ttft {ttft:g} with --tpot {tpot:g} allows {longest:.4g} s",
            where="--concurrency", hint=f"leave it out, or at most --concurrency {max(1, int(rate * longest))}",
        )  # fmt: skip


def served(plan: Plan, traffic: Traffic, outcome: Outcome) -> Plan:
    """The plan with what it serves and costs; its verdict says which target is missed, and what would help."""
    serving, cost = traffic.figures(outcome)
    verdict = plan.verdict
    if verdict.fits and serving.targets_hold is not None:
        from kvplan.planning.workload_advice import missed, target_hints

        wrong = [missed(t) for t in serving.targets if not t.holds]
        if wrong:
            hints = (*verdict.hints, *target_hints(traffic, outcome, serving))
            verdict = verdict._replace(reason=f"the memory fits; {'; '.join(wrong)}", hints=hints)
        else:
            flags = ", ".join(t.flag for t in serving.targets)
            verb = "holds" if len(serving.targets) == 1 else "hold"
            verdict = verdict._replace(reason=f"{verdict.reason}; {flags} {verb}")
    return plan._replace(verdict=verdict, cost=cost, serving=serving)

"""What a deployment makes of its traffic at the ends of what is modelled.

The slow end has the least memory for the cache and every rate at its low bound, the fast end the most and the high
one: the bounds of ``decode`` for what decode steps are made of, those of ``prefill`` for the FLOPs of prompts.
Whatever depends on both moves with both.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kvplan.planning.workload import ServingFigures, Traffic

if TYPE_CHECKING:
    from kvplan.check.figures import Worked
    from kvplan.check.rules import Bound
    from kvplan.planning.evaluate import Outcome
    from kvplan.planning.speed.figures import Setup
    from kvplan.planning.speed.rates import Rates

SLOW, FAST = 0, 1
TARGETS = frozenset({"targets_hold", "targets"})
"""Figures that only a workload with targets has."""
_OF_A_RATE = frozenset({"request_rate", "replicas_needed"})
_ENDLESS = frozenset({"ttft_seconds", "tpot_seconds", "request_seconds", "slot_seconds", "queue_seconds"})
"""Figures that grow without end, and so have no value, where more requests come than are carried."""


class _AtEnd(Traffic):
    """Traffic on a deployment all of whose rates are at one end."""

    end = SLOW

    def setup(self, outcome: Outcome) -> Setup | None:
        found = super().setup(outcome)
        return found._replace(rates=at_end(found.rates, self.end)) if found is not None else None


def at_end(rates: Rates, end: int) -> Rates:
    """Rates with which a decode step and the FLOPs of a prompt take what their bound at this end says.

    Attention has one rate for both, which counts in prompts: a decode step reads its cache far longer.
    """
    of_decode, of_prefill = (rates.low, rates.prefill_low) if end == SLOW else (rates.high, rates.prefill_high)

    def by(value: float | None, factor: float) -> float | None:
        return value * factor if value is not None else None

    return rates._replace(
        weight_bandwidth=rates.weight_bandwidth * of_decode, attention_bandwidth=rates.attention_bandwidth * of_decode,
        matmul_flops=by(rates.matmul_flops, of_decode), attention_flops=by(rates.attention_flops, of_prefill),
        linear_seconds=rates.linear_seconds / of_decode, attention_seconds=rates.attention_seconds / of_decode,
        layer_seconds=rates.layer_seconds / of_decode, routing_seconds=rates.routing_seconds / of_decode,
        step_seconds=rates.step_seconds / of_decode, link_bandwidth=rates.link_bandwidth * of_decode,
        link_seconds=rates.link_seconds / of_decode, prefill_share=rates.prefill_share * of_prefill / of_decode,
        prefill_cap=by(rates.prefill_cap, of_prefill),
        short_bandwidth=by(rates.short_bandwidth, of_decode), short_seconds=rates.short_seconds / of_decode,
    )  # fmt: skip


def at(worked: Worked, end: int) -> ServingFigures:
    """The serving figures of a deployment at one end."""
    given = worked.subject.given if "price" in worked.subject.given else {"price": (), **worked.subject.given}
    traffic = _AtEnd(worked.model, worked.gpu, worked.engine, worked.calibration, given)
    traffic.end = end
    return traffic.figures(worked.end(end))[0]


def applies(name: str, given: dict[str, Any]) -> bool:
    """Whether a figure is about a deployment at all: targets and a rate are there only where they are given."""
    rate = given.get("request_rate") is not None
    if name in TARGETS:
        return rate or any(given.get(target) is not None for target in ("ttft", "tpot"))
    return rate or name not in _OF_A_RATE


def endless(name: str) -> bool:
    """Whether a figure without a value is above every limit."""
    return name in _ENDLESS


def misses(worked: Worked) -> str:
    """The targets that are missed, in the middle or else at the slow end."""
    from kvplan.planning.workload_advice import missed

    for figures in (worked.plan.serving, at(worked, SLOW), at(worked, FAST)):
        said = [missed(t) for t in figures.targets if not t.holds] if figures is not None else []
        if said:
            return "; ".join(said)
    return ""


def unserved(worked: Worked, bound: Bound) -> str:
    """Why a figure has no value: what comes is more than is carried, or nothing runs.

    Args:
        bound: of the rule; the pessimistic one is missed at the slow end too.
    """
    middle = worked.plan.serving
    ends = [middle] if bound in ("mid", "high") else [middle, at(worked, SLOW)]
    for figures in ends:
        rate = figures.request_rate if figures is not None else None
        if figures is None or rate is None or not figures.slots:
            continue
        most = figures.saturation_request_rate or 0.0
        if figures.tpot_seconds is None and figures.ttft_seconds is None:
            return f"{rate:.4g} requests come a second, more than the {most:.4g} that it carries"
    if middle is not None and not middle.slots:
        return "no request of this workload runs"
    return "it does not apply to this deployment"

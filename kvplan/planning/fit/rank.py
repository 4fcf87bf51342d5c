"""Orders of candidates: by cost, the best of each GPU, and the front of cost against latency."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kvplan.planning.fit.search import Candidate


_WORTH = 0.02
"""The gain in seconds for which a dearer candidate is worth a line."""


def ordered(found: Iterable[Candidate]) -> list[Candidate]:
    """By dollars an hour; the unpriced after them, by GPUs, then by memory. Ties: fewer GPUs, less memory, formats of
    the checkpoint before smaller ones, the faster one."""
    return sorted(found, key=_key)


def _key(each: Candidate) -> tuple[object, ...]:
    memory = each.gpus * each.gpu.device_bytes
    packed = (each.case.weights != "auto") + (each.case.cache != "auto")
    rest = (each.gpus, memory, packed, each.request_seconds, each.gpu.id, str(each.case))
    if each.price is None:
        return (1, 0.0, *rest)
    return (0, each.gpus * each.price.usd_per_hour, *rest)


def best_of_each(order: Sequence[Candidate]) -> list[Candidate]:
    """The first of each GPU."""
    seen: dict[str, Candidate] = {}
    for each in order:
        seen.setdefault(each.gpu.id, each)
    return list(seen.values())


def front(found: Sequence[Candidate]) -> list[Candidate]:
    """Candidates that no other beats in both cost and seconds of a request, cheapest first.

    Cost is dollars an hour; where nothing has a price, GPUs.
    """
    priced = [each for each in found if each.price is not None]
    best: list[Candidate] = []
    for each in sorted(priced or found, key=_cost):
        if not best or each.request_seconds < best[-1].request_seconds * (1 - _WORTH):
            best.append(each)
    return best


def _cost(each: Candidate) -> tuple[float, float, int]:
    cost = each.gpus * each.price.usd_per_hour if each.price is not None else float(each.gpus)
    return cost, each.request_seconds, each.gpus

"""Decode and prefill over a block of a sweep, by the functions that give a plan its speed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from kvplan.planning.evaluate import Outcome
from kvplan.planning.speed import decode, prefill
from kvplan.planning.speed.figures import Setup, load, setup
from kvplan.spec.arrays import is_array, smaller

if TYPE_CHECKING:
    from kvplan.engines.base import Settings
    from kvplan.planning.sweep_figures import Case

_WIDE = 1 << 62
"""The largest number of FLOPs that int64 counts with room to spare."""


class DecodePace(NamedTuple):
    """Rates of decode at the workload's batch and mean context."""

    seconds_per_step: Any
    tokens_per_second: Any
    tokens_per_second_per_request: Any
    tokens_per_second_per_gpu: Any


class PrefillPace(NamedTuple):
    """One prompt alone on its replica."""

    seconds: Any
    tokens_per_second: Any


class Pace(NamedTuple):
    """Both; None where nothing can be said."""

    decode: DecodePace | None
    prefill: PrefillPace | None


def pace(case: Case) -> Pace | None:
    """Speed of the workloads of a case."""
    prepared = case.prepared
    if prepared.gpu is None:
        return None
    outcome = Outcome(
        case.one, prepared.stages, prepared.roles, prepared.weights, case.falls, case.kv_bytes, None, None, None, ""
    )
    found = setup(prepared.model, prepared.gpu, prepared.engine, outcome, prepared.calibration)
    if isinstance(found, str):
        return None
    return Pace(_decode(found, case.settings), _prefill(found, case.settings.prompt_tokens))


def _decode(found: Setup, settings: Settings) -> DecodePace:
    batch, running, context = load(settings)
    seconds = decode.step(found.works, found.rates, found.layout, batch, context).seconds
    rate = running / seconds
    return DecodePace(seconds, rate, 1 / seconds, rate / settings.world_size)


def _prefill(found: Setup, tokens: Any) -> PrefillPace | None:
    if is_array(tokens):
        longest = int(tokens.max())
        most = prefill.prompt(found.works, found.rates, found.layout, longest, min(found.chunk, longest))
        if most is not None and most.flops > _WIDE:
            tokens = tokens.astype("float64")
    parts = prefill.prompt(found.works, found.rates, found.layout, tokens, smaller(found.chunk, tokens))
    return None if parts is None else PrefillPace(parts.seconds, tokens / parts.seconds)

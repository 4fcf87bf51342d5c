"""Traffic, targets and prices in the cells of a sweep, by `kvplan.planning.workload`, a cell at a time."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from kvplan.planning.evaluate import evaluate
from kvplan.planning.settings import SERVICE
from kvplan.planning.sweep_figures import Case
from kvplan.planning.workload import Traffic

if TYPE_CHECKING:
    from kvplan.engines.base import Settings
    from kvplan.planning.sweep_figures import Prepared


def is_served(names: Iterable[str]) -> bool:
    """Whether any of these settings is about traffic, targets or prices."""
    return not SERVICE.isdisjoint(names)


def case_of(prepared: Prepared, settings: Settings, given: Mapping[str, Any]) -> Case:
    """A cell under its traffic; where only a rate was given it runs as many requests as that makes.

    Args:
        given: what the user set, `settings.SERVICE` among it.

    Raises:
        InputError: there is no GPU, or targets contradict each other.
    """
    model, gpu, engine = prepared[:3]
    traffic = Traffic(model, gpu, engine, prepared.calibration, dict(given))
    outcome = traffic.running(evaluate(model, gpu, engine, settings))
    case = Case(prepared, outcome.settings, outcome.settings)
    case.serving, case.cost = traffic.figures(outcome)
    return case

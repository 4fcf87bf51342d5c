"""Rules held against figures: what holds, what is broken, by how much, and in which words."""

from __future__ import annotations

import operator as operators
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from kvplan.check.metrics import shown

if TYPE_CHECKING:
    from kvplan.check.figures import Figure, Worked
    from kvplan.check.fixes import Fix
    from kvplan.check.lookup import Case
    from kvplan.check.rules import Rule

Status = Literal["held", "broken", "skipped", "inapplicable", "new", "absent"]
"""``skipped``: it is about a baseline, and none is given; ``inapplicable``: the deployment has no targets that the rule
could be about; ``new``: the baseline does not have the deployment; ``absent``: it has it, but not this figure."""
COMPARE: dict[str, Callable[[Any, Any], bool]] = {
    "<=": operators.le, ">=": operators.ge, "==": operators.eq, "!=": operators.ne, "<": operators.lt,
    ">": operators.gt,
}  # fmt: skip
_MISSES = {"<=": "above the limit of", "<": "not below", ">=": "below the limit of", ">": "not above"}

Baseline = Mapping[tuple[str, str, str], tuple[Any, Any, Any]]
"""(deployment, workload, metric) -> (low, middle, high) in the earlier result."""


class Finding(NamedTuple):
    """One rule held against one deployment under one workload."""

    case: Case
    rule: Rule
    status: Status
    value: Any
    limit: Any
    by: float | None
    """How far the value misses the limit, in its unit; below zero: how far it is from missing it."""
    message: str
    baseline: Any = None
    fix: Fix | None = None
    """The smallest change that passes."""


def _side(rule: Rule) -> int:
    """Which of low, middle and high a rule looks at."""
    least = rule.operator in (">=", ">")
    return {"low": 0, "mid": 1, "high": 2}.get(rule.bound, 1 if rule.operator in ("==", "!=") else 0 if least else 2)


def limit_of(rule: Rule, worked: Worked, old: Any) -> Any:
    """What the value is compared with; None where there is nothing."""
    limit = rule.limit
    if limit.baseline:
        if old is None:
            return None
        if limit.value is None or not limit.value:
            return old
        return old * (1 + limit.value / 100) if limit.percent else old + limit.value
    if limit.percent:
        return worked.gpu.device_bytes * limit.value / 100 if worked.gpu is not None else None
    return limit.value


def value_of(rule: Rule, figure: Figure, limit: Any) -> Any:
    """The value of a figure that the rule's bound chooses."""
    return figure.pick(rule.bound, rule.operator, lambda value: value_holds(rule, value, limit))


def value_holds(rule: Rule, value: Any, limit: Any) -> bool:
    if rule.metric.kind == "text":
        return COMPARE[rule.operator](value, limit)
    return value is not None and limit is not None and COMPARE[rule.operator](value, limit)


def judge(case: Case, worked: Worked, rule: Rule, baseline: Baseline | None) -> Finding:
    """The finding of one rule."""
    old = None
    if rule.limit.baseline:
        if baseline is None:
            return Finding(case, rule, "skipped", None, None, None, f"{rule.text}: no baseline is given")
        key = (case.declared.name, case.workload.name, rule.metric.name)
        old = baseline[key][_side(rule)] if key in baseline else None
    figure = worked.figure(rule.metric)
    if rule.metric.section == "serving" and worked.gpu is not None and figure.mid == (None,):
        from kvplan.check.serving import applies

        if not applies(rule.metric.path[1], case.subject.given):
            said = f"{rule.text}: {case.name} has no such target, so it does not apply"
            return Finding(case, rule, "inapplicable", None, None, None, said)
    limit = limit_of(rule, worked, old)
    value = value_of(rule, figure, limit)
    if rule.limit.baseline and old is None:
        said = f"{rule.metric.name} is {shown(rule.metric.kind, value)}, and the baseline does not have it"
        there = any(key[:2] == (case.declared.name, case.workload.name) for key in baseline or ())
        return Finding(case, rule, "absent" if there else "new", value, None, None, said)
    held = value_holds(rule, value, limit)
    by = _by(rule, value, limit)
    said = _said(rule, worked, figure, value, limit, by, held)
    return Finding(case, rule, "held" if held else "broken", value, limit, by, said, old)


def _by(rule: Rule, value: Any, limit: Any) -> float | None:
    if rule.operator in ("==", "!=") or value is None or limit is None:
        return None
    gap: float = limit - value if rule.operator in (">=", ">") else value - limit
    return gap


def _said(
    rule: Rule, worked: Worked, figure: Figure, value: Any, limit: Any, by: float | None, held: bool
) -> str:  # fmt: skip
    """The finding as a sentence without its end."""
    kind, name = rule.metric.kind, rule.metric.name
    if value is None and kind != "text":
        return f"{name} has no value{_at(worked, rule, figure)}: {_why(worked, rule)}"
    where = _end(rule, figure, value)
    if by is None:
        wanted = "must be" if rule.operator == "==" else "must not be"
        why = f": {_reason(worked, rule, value)}" if name == "verdict.fits" and not held and value is False else ""
        if name == "serving.targets_hold" and not held and value is False:
            from kvplan.check.serving import misses

            why = f": {misses(worked)}"
        return f"{name} is {shown(kind, value)}{where}" + ("" if held else f", {wanted} {shown(kind, limit)}{why}")
    exact = shown(kind, value) == shown(kind, limit) and value != limit
    values = [shown(kind, v, exact=exact) for v in (value, limit, abs(by))]
    of = _of(rule, limit)
    if held:
        return f"{name} is {values[0]}{where}, within the limit of {values[1]}{of}"
    share = f" ({abs(by) / abs(limit):.1%})" if limit and kind != "share" else ""
    if not by:
        return f"{name} is {values[0]}{where}, {_MISSES[rule.operator]} {values[1]}{of}"
    return f"{name} is {values[0]}{where}, {values[2]}{share} {_MISSES[rule.operator]} {values[1]}{of}"


def _of(rule: Rule, limit: Any) -> str:
    """Where a limit comes from that the rule does not spell out."""
    if rule.limit.percent and not rule.limit.baseline:
        return f" ({rule.limit.value:g} % of the GPU)"
    return f" ({rule.text.partition(rule.operator)[2].strip()})" if rule.limit.baseline else ""


def _end(rule: Rule, figure: Figure, value: Any) -> str:
    """Which end of its range a value is."""
    middle = figure.mid[0]
    if value in figure.mid:
        return ""
    bound = {"pessimistic": "at worst", "low": "at least", "high": "at most"}.get(rule.bound, "")
    return f" {bound} ({shown(rule.metric.kind, middle)} in the middle)"


def _reason(worked: Worked, rule: Rule, value: Any) -> str:
    """Why a deployment does not fit, where it first does not."""
    outcome = worked.outcome
    if rule.bound in ("pessimistic", "low") and worked.end(0).fits is value:
        worst = worked.end(0)  # the end that a change has to mend too
        return worst.reason if worst.reason == outcome.reason else f"{worst.reason}, at worst"
    if rule.bound != "mid" and outcome.fits is not value:
        outcome = worked.end(1)
    return outcome.reason


def _at(worked: Worked, rule: Rule, figure: Figure) -> str:
    """At which end of what is modelled a value is missing that is there in the middle."""
    if None in figure.mid or not figure.endless:
        return ""
    return f" at worst ({shown(rule.metric.kind, figure.mid[0])} in the middle)"


def _why(worked: Worked, rule: Rule) -> str:
    if worked.gpu is None and rule.metric.section not in ("kv", "model", "inputs"):
        return "no GPU is named"
    if rule.metric.section == "serving":
        from kvplan.check.serving import unserved

        return unserved(worked, rule.bound)
    return "it does not apply to this deployment"

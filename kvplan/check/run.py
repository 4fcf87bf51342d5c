"""A check from its file to its result: everything is read and type-checked first, then worked out once each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from kvplan.check.figures import Worked
from kvplan.check.judge import Baseline, Finding, judge, limit_of, value_holds, value_of
from kvplan.check.lookup import Case, Lookup, say
from kvplan.check.rulefile import RuleFile, read_rule_file
from kvplan.errors import KvplanError

if TYPE_CHECKING:
    from kvplan.check.fixes import Fix
    from kvplan.check.problems import Problems
    from kvplan.engines.options import Option

MAX_FIXES = 50
"""Broken rules for which a change is looked for; a count, so that the result is the same on any machine."""
_WORKLOAD = frozenset({"concurrency", "prompt_tokens", "output_tokens", "shared_prefix_tokens"})


class Checked(NamedTuple):
    """A rule file and what became of it."""

    file: RuleFile
    cases: tuple[Case, ...]
    worked: tuple[Worked, ...]
    """One for each case; the same object where two ask the same."""
    findings: tuple[tuple[Finding, ...], ...]
    """Those of each case, in the order of its rules."""
    mends: dict[str, str]
    """Deployment of which several rules are broken -> the one change with which all of them hold."""


def check(
    path: str, options: Sequence[Option], *, environment: Mapping[str, str], baseline: Baseline | None = None
) -> Checked:
    """Hold every rule of a file against its deployments.

    Args:
        path: the rule file, relative to the present folder.
        options: the planning flags, whose names are the keys of the file.
        environment: variables; only those that the file names are looked at.
        baseline: figures of an earlier result.

    Raises:
        RuleFileError: the file, or something that it names, cannot be used; it lists everything that is wrong.
    """
    file, problems = read_rule_file(path, options, environment)
    cases = Lookup().cases(file.deployments, problems)
    worked = _work(cases, problems)
    findings = [
        tuple(judge(case, w, rule, baseline) for rule in case.rules) for case, w in zip(cases, worked, strict=True)
    ]
    groups: dict[str, list[int]] = {}
    for number, case in enumerate(cases):
        groups.setdefault(case.declared.name, []).append(number)
    fixed = tuple(_with_fixes(cases, worked, findings, groups))
    mends = {name: _mend([(cases[i], worked[i], fixed[i]) for i in group]) for name, group in groups.items()}
    found = {name: text for name, text in mends.items() if text is not None}
    return Checked(file, tuple(cases), tuple(worked), fixed, found)


def _work(cases: Sequence[Case], problems: Problems) -> list[Worked]:
    """Every case evaluated, those that ask the same once.

    Raises:
        RuleFileError: something is wrong, here or before.
    """
    shared: dict[tuple[Any, ...], Worked | KvplanError] = {}
    found: list[Worked] = []
    for case in cases:
        key = _key(case)
        try:
            if key not in shared:
                shared[key] = Worked(case.subject)
            result = shared[key]
            if isinstance(result, KvplanError):
                raise result
            for rule in case.rules if not problems else ():
                result.figure(rule.metric)
            found.append(result)
        except KvplanError as error:
            shared[key] = error
            say(case.declared, error, problems)
    problems.settle()
    return found


def _key(case: Case) -> tuple[Any, ...]:
    """What two cases must have in common to be worked out once."""
    model, gpu, engine, given = case.subject
    return id(model), id(gpu), engine, repr(sorted(given.items()))


def _with_fixes(
    cases: Sequence[Case],
    worked: Sequence[Worked],
    findings: Sequence[tuple[Finding, ...]],
    groups: Mapping[str, list[int]],
) -> Iterator[tuple[Finding, ...]]:
    """The findings, those that are broken with the smallest change that passes."""
    left = MAX_FIXES
    known: dict[tuple[Any, ...], Fix | None] = {}
    for number, (case, found) in enumerate(zip(cases, findings, strict=True)):
        done: list[Finding] = []
        for finding in found:
            if finding.status != "broken" or left <= 0:
                done.append(finding)
                continue
            group = groups[case.declared.name]
            others = [(cases[i], worked[i], findings[i]) for i in group]
            key = (
                group.index(number), finding.rule.text, finding.rule.bound, finding.limit,
                *((_key(c), *((f.rule.text, f.rule.bound, f.status) for f in fs)) for c, _, fs in others),
            )  # fmt: skip
            if key not in known:
                left -= 1
                known[key] = _fix(finding, worked[number], others)
            done.append(finding._replace(fix=known[key]))
        yield tuple(done)


Group = Sequence[tuple[Case, Worked, tuple[Finding, ...]]]


def _mend(group: Group) -> str | None:
    """The first of the changes that were found with which every rule of the deployment holds, where several do not."""
    broken = [f for _, _, findings in group for f in findings if f.status == "broken" and f.rule.level == "error"]
    if len({finding.rule.text for finding in broken}) < 2 or any(finding.fix is None for finding in broken):
        return None
    for fix in dict.fromkeys(finding.fix for finding in broken):
        assert fix is not None  # looked at above
        changes = {fix.setting: fix.value}
        if not set(changes) & _WORKLOAD and all(_all_hold(changes, *other, ("held", "broken")) for other in group):
            return fix.text
    return None


def _fix(finding: Finding, worked: Worked, group: Group) -> Fix | None:
    """The change of one setting that makes a broken rule hold and breaks no other of the deployment."""
    rule, case = finding.rule, finding.case
    old = finding.baseline

    def passes(tried: Worked) -> bool:
        return _keeps(tried, finding, old)

    def keeps(changes: dict[str, Any]) -> bool:
        alone = set(changes) <= _WORKLOAD
        return all(_all_hold(changes, *other) for other in group if not alone or other[0] is case)

    from kvplan.check.fixes import Search

    least = max(w.settings.request_tokens for _, w, _ in group)
    found = Search(case, worked, passes, keeps, least).run()
    return found if rule.metric.kind != "text" else None


def _keeps(tried: Worked, finding: Finding, old: Any) -> bool:
    """Whether the rule of a finding holds for a changed deployment."""
    rule = finding.rule
    figure, limit = tried.figure(rule.metric), limit_of(rule, tried, old)
    return value_holds(rule, value_of(rule, figure, limit), limit)


def _all_hold(
    changes: dict[str, Any], case: Case, worked: Worked, findings: tuple[Finding, ...],
    which: tuple[str, ...] = ("held",),
) -> bool:  # fmt: skip
    """Whether the rules of these statuses hold with some settings changed, and it still fits if it does now."""
    from kvplan.check.fixes import changed_subject

    try:
        tried = Worked(changed_subject(case.subject, changes))
        if worked.outcome.fits and tried.outcome.fits is False:
            return False
        return all(_keeps(tried, found, found.baseline) for found in findings if found.status in which)
    except KvplanError:
        return False

"""The result of a check as plain data (schema ``kvplan.check/1``): what every output is drawn from.

It holds no date, no path of the machine and no variable that the file does not name, so the same file gives the same
bytes wherever it is checked.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from kvplan._version import __version__
from kvplan.catalog._names import GPUS, MODELS, VERSION

if TYPE_CHECKING:
    from kvplan.check.figures import Worked
    from kvplan.check.judge import Finding
    from kvplan.check.lookup import Case
    from kvplan.check.run import Checked

SCHEMA = "kvplan.check/1"
WORKLOAD = (
    "concurrency", "prompt_tokens", "output_tokens", "shared_prefix_tokens", "request_rate", "ttft", "tpot",
    "prompt_cv", "output_cv", "acceptance_rate",
)  # fmt: skip
"""Settings that describe a workload and no deployment."""


def catalog() -> dict[str, Any]:
    """What the catalog is: its version, and how much is in it."""
    return {"version": VERSION, "models": len(MODELS), "gpus": len(GPUS)}


class Hashes:
    """Hashes of specs, each worked out once."""

    def __init__(self) -> None:
        self.known: dict[int, str] = {}

    def of(self, spec: Any) -> str | None:
        if spec is None:
            return None
        if id(spec) not in self.known:
            from kvplan.check.hashes import spec_hash

            self.known[id(spec)] = spec_hash(spec)
        return self.known[id(spec)]


def to_dict(
    checked: Checked, *, baseline: Mapping[str, Any] | None = None, strict: bool = False,
    lock: Sequence[Mapping[str, Any]] = (), whole: bool = True,
) -> dict[str, Any]:  # fmt: skip
    """The result.

    Args:
        baseline: the earlier result that was compared with.
        strict: whether warnings fail.
        lock: what differs from the lock file (`kvplan.check.lock`).
        whole: whether figures with their ranges and hashes are in it, which take time and which nothing drawn shows.
    """
    hashes = Hashes() if whole else None
    groups: dict[str, list[int]] = {}
    for number, case in enumerate(checked.cases):
        groups.setdefault(case.declared.name, []).append(number)
    deployments = [
        _deployment([(checked.cases[i], checked.worked[i], checked.findings[i]) for i in group], hashes)
        | {"fix": checked.mends.get(name)}
        for name, group in groups.items()
    ]
    removed = [d["name"] for d in baseline["deployments"] if d["name"] not in groups] if baseline else []
    return {
        "schema": SCHEMA,
        "kvplan": __version__,
        "catalog": catalog(),
        "file": checked.file.name,
        "files": list(checked.file.files),
        "environment": dict(checked.file.environment),
        "strict": strict,
        "baseline": {k: baseline[k] for k in ("kvplan", "catalog")} if baseline else None,
        "deployments": deployments,
        "removed": removed,
        "lock": [dict(item) for item in lock],
        "summary": _summary(deployments, removed, lock),
    }


def _deployment(
    group: Sequence[tuple[Case, Worked, tuple[Finding, ...]]], hashes: Hashes | None
) -> dict[str, Any]:  # fmt: skip
    """One deployment under all of its workloads."""
    case, worked, _ = group[0]
    declared, subject = case.declared, case.subject
    inputs = worked.inputs()
    defaults = inputs.pop("defaults")
    warnings = dict.fromkeys(text for c, w, _ in group for text in (*c.warnings, *w.said, *_unread(c), *_unasked(c, w)))
    return {
        "name": declared.name,
        "file": declared.place.file,
        "line": declared.place.line,
        declared.source: declared.text,
        "model_id": subject.model.id,
        "model_sha256": hashes.of(subject.model) if hashes else None,
        "gpu_id": subject.gpu.id if subject.gpu is not None else None,
        "gpu_sha256": hashes.of(subject.gpu) if hashes else None,
        "settings": {k: v for k, v in inputs.items() if k not in (*WORKLOAD, "model", "gpu")},
        "defaults": {k: v for k, v in defaults.items() if k not in WORKLOAD},
        "workloads": [_workload(c, w) for c, w, _ in group],
        "warnings": list(warnings),
        "unknown_flags": list(dict.fromkeys(flag for c, _, _ in group for flag in c.unknown)),
        "figures": [figure for c, w, _ in group for figure in _figures(c, w)] if hashes else [],
        "findings": [_finding(f) for _, _, findings in group for f in findings],
    }


def _unread(case: Case) -> Iterable[str]:
    """A word about targets that bind nothing, because no rule is about what they come to."""
    flags = [f"--{name}" for name in ("ttft", "tpot") if case.subject.given.get(name) is not None]
    read = any(r.metric.section == "serving" for r in case.rules)
    if flags and not read:
        what = f"the workload {case.workload.name}" if case.workload.name else "it"
        keys = " and ".join(flag[2:] for flag in flags)
        yield f"{what} has a target for {keys} that no rule holds it to: add serving.targets_hold == true"


def _unasked(case: Case, worked: Worked) -> Iterable[str]:
    """A word about a deployment that does not start or hold its requests while no rule asks whether it does."""
    outcome = worked.outcome
    if case.rules and outcome.fits is False and not any(r.metric.section == "verdict" for r in case.rules):
        under = f" under the workload {case.workload.name}" if case.workload.name else ""
        yield f"it does not fit{under}: {outcome.reason}; no rule is about that: add verdict.fits == true"


def _workload(case: Case, worked: Worked) -> dict[str, Any]:
    inputs = worked.inputs()
    given = case.subject.given
    settings = {name: inputs.get(name, given.get(name)) for name in WORKLOAD}
    return {
        "name": case.workload.name or None,
        **{name: value for name, value in settings.items() if value is not None},
        "defaults": {k: v for k, v in inputs["defaults"].items() if k in WORKLOAD},
    }


def _figures(case: Case, worked: Worked) -> Iterable[dict[str, Any]]:
    """The figures that the rules are about, each with its range."""
    for metric in {rule.metric.name: rule.metric for rule in case.rules}.values():
        low, middle, high = worked.figure(metric).range()
        yield {
            "workload": case.workload.name or None, "metric": metric.name, "kind": metric.kind, "low": low,
            "value": middle, "high": high,
        }  # fmt: skip


def _finding(found: Finding) -> dict[str, Any]:
    rule = found.rule
    return {
        "workload": found.case.workload.name or None,
        "rule": rule.text,
        "level": rule.level,
        "metric": rule.metric.name,
        "kind": rule.metric.kind,
        "bound": rule.bound,
        "value": found.value,
        "limit": found.limit,
        "by": found.by,
        "baseline": found.baseline,
        "pass": found.status != "broken",
        "status": found.status,
        "file": rule.place.file,
        "line": rule.place.line,
        "column": rule.place.column,
        "message": found.message,
        "fix": found.fix.text if found.fix is not None else None,
    }


def _summary(
    deployments: Sequence[Mapping[str, Any]], removed: Sequence[str], lock: Sequence[Mapping[str, Any]]
) -> dict[str, int]:
    findings = [f for d in deployments for f in d["findings"]]
    broken = [f for f in findings if not f["pass"]]
    return {
        "deployments": len(deployments),
        "rules": len(findings),
        "errors": sum(f["level"] == "error" for f in broken) + len(lock),
        "warnings": sum(f["level"] == "warn" for f in broken) + sum(len(d["unknown_flags"]) for d in deployments),
        "passed": sum(f["status"] == "held" for f in findings),
        "skipped": sum(f["status"] == "skipped" for f in findings),
        "inapplicable": sum(f["status"] == "inapplicable" for f in findings),
        "new": sum(f["status"] == "new" for f in findings),
        "absent": sum(f["status"] == "absent" for f in findings),
        "removed": len(removed),
    }


def failed(result: Mapping[str, Any]) -> bool:
    """Whether a result breaks a promise."""
    summary = result["summary"]
    return bool(summary["errors"] or (result["strict"] and summary["warnings"]))

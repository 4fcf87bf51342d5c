"""The lock file: the hash of every model and GPU a result rests on, so that a new catalog changes no verdict unseen."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from kvplan._version import __version__
from kvplan.check.result import Hashes, catalog
from kvplan.errors import InputError, printable

if TYPE_CHECKING:
    from kvplan.check.run import Checked

SCHEMA = "kvplan.lock/1"
MAX_BYTES = 64 << 20


def to_dict(checked: Checked) -> dict[str, Any]:
    """What a lock file records."""
    return {"schema": SCHEMA, "kvplan": __version__, "catalog": catalog(), "deployments": _entries(checked)}


def _entries(checked: Checked) -> dict[str, dict[str, Any]]:
    """Deployment -> what its figures rest on besides its settings."""
    hashes = Hashes()
    found: dict[str, dict[str, Any]] = {}
    for case, worked in zip(checked.cases, checked.worked, strict=True):
        model, gpu = case.subject.model, case.subject.gpu
        found[case.declared.name] = {
            "model": {"id": model.id, "sha256": hashes.of(model)},
            "gpu": {"id": gpu.id, "sha256": hashes.of(gpu)} if gpu is not None else None,
            "engine": f"{worked.settings.engine}@{worked.settings.engine_version}",
        }
    return dict(sorted(found.items()))


def read_lock(path: str) -> dict[str, Any]:
    """The lock beside a rule file.

    Raises:
        InputError: it cannot be used.
    """
    from kvplan.errors import SpecError
    from kvplan.sources.bounded import decode, read_bytes

    name, hint = printable(path), "`kvplan check --lock` writes it again"
    try:
        data = json.loads(decode(read_bytes(path, name, limit=MAX_BYTES, what="lock file"), name, hint=hint))
    except SpecError as error:
        raise InputError(error.message, where=error.where, hint=hint) from None
    except (ValueError, RecursionError):
        raise InputError("is no JSON", where=name, hint=hint) from None
    entries = data.get("deployments") if isinstance(data, dict) and data.get("schema") == SCHEMA else None
    if not isinstance(entries, dict) or not all(isinstance(e, dict) for e in entries.values()):
        raise InputError("is no lock file of kvplan check", where=name, hint=hint)
    return dict(data)


def differences(checked: Checked, lock: Mapping[str, Any], path: str) -> list[dict[str, Any]]:
    """What is not as the lock file has it: one entry for each thing, at the first deployment that has it."""
    places = {case.declared.name: case.declared.place for case in checked.cases}
    found: dict[str, list[str]] = {}
    for name, now in _entries(checked).items():
        for said in _said(lock["deployments"].get(name), now):
            found.setdefault(said, []).append(name)
    entries = []
    for said, names in found.items():
        first = min(names, key=lambda name: places[name])
        more = f" and {len(names) - 1:,} more" if len(names) > 1 else ""
        hint = f"look at what that changes, then write {printable(path)} again with --lock"
        place = places[first]
        entries.append({
            "name": first, "deployments": len(names), "file": place.file, "line": place.line, "column": place.column,
            "message": f"{first}{more}: {said}; {hint}",
        })  # fmt: skip
    return entries


def _said(was: Any, now: Mapping[str, Any]) -> Sequence[str]:
    """What differs, in words."""
    if not isinstance(was, dict):
        return ["not in the lock file"]
    found = []
    for key in ("model", "gpu"):
        old, new = was.get(key), now[key]
        if old == new:
            continue
        if not isinstance(old, dict) or new is None or old.get("id") != new["id"]:
            first = old.get("id") if isinstance(old, dict) else "none"
            found.append(f"the {key} is {new['id'] if new else 'none'}, locked is {printable(str(first), 60)}")
        else:
            hashes = f"{str(old.get('sha256'))[:12]} -> {new['sha256'][:12]}"
            found.append(f"the {key} {new['id']} is not as it was locked ({hashes})")
    if was.get("engine") != now["engine"]:
        found.append(f"planned by {now['engine']}, locked is {printable(str(was.get('engine')), 40)}")
    return found

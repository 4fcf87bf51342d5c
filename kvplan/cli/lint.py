"""What ``kvplan models lint`` and ``kvplan gpus lint`` share: files in, findings out."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from kvplan.cli import output
from kvplan.errors import InputError, printable
from kvplan.render.check_common import plural
from kvplan.render.grid import Notes

if TYPE_CHECKING:
    from kvplan.sources.yaml_file import Finding


def lint(
    ctx: Any, schema: str, paths: Sequence[str], check: Callable[[str], list[Finding]],
    others: Callable[[str], bool] = lambda path: False,
) -> int:  # fmt: skip
    """Check every file, say everything that is wrong, and return the exit status: 1 where there is an error.

    Args:
        others: whether a file or folder that is no YAML file is to be checked too.

    Raises:
        InputError: a path that does not exist, or a folder with nothing to check.
    """
    files = [path for start in paths for path in _files(start, others)]
    findings = [finding for path in files for finding in check(path)]
    errors = sum(finding.level == "error" for finding in findings)
    warnings = len(findings) - errors
    payload = {
        "schema": schema,
        "files": len(files),
        "errors": errors,
        "warnings": warnings,
        "findings": [finding._asdict() for finding in findings],
    }
    lines = [f"{f.file}:{f.line}: {f.level}: {f.message}" + (f" ({f.hint})" if f.hint else "") for f in findings] or [
        "nothing to say"
    ]
    out = output.of(ctx)
    out.emit([Notes(lines)], payload)
    out.note(f"{plural(len(files), 'file')}, {plural(errors, 'error')}, {plural(warnings, 'warning')}")
    return 1 if errors else 0


def _files(start: str, others: Callable[[str], bool]) -> Iterator[str]:
    """The files to check at or below a path, in order of name."""
    if not os.path.isdir(start):
        if not os.path.lexists(start):
            raise InputError(f"{printable(start)}: no such file or folder", hint="name a YAML file or a folder of them")
        yield start
        return
    if others(start):
        yield start
        return
    found: list[str] = []
    for folder, inner, names in os.walk(start):
        whole = [name for name in inner if others(os.path.join(folder, name))]
        inner[:] = [name for name in inner if name not in whole]
        files = [
            name for name in names if name.lower().endswith((".yaml", ".yml")) or others(os.path.join(folder, name))
        ]
        found += [os.path.join(folder, name) for name in (*whole, *files)]
    if not found:
        raise InputError(f"{printable(start)}: nothing to check in it", hint="name a YAML file or a folder of them")
    yield from sorted(found)

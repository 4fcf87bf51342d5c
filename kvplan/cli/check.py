"""``kvplan check [FILE]``: sizing rules, held against the deployments of a repository."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kvplan.cli import flags, output, place
from kvplan.cli.app import SETTINGS, Verb
from kvplan.cli.output import FORMATS, Output
from kvplan.engines.options import Option
from kvplan.errors import InputError, UnknownNameError, printable

if TYPE_CHECKING:
    from kvplan.check.judge import Baseline
    from kvplan.check.problems import Problem
    from kvplan.check.run import Checked

app = typer.Typer(**SETTINGS)

LONG = Option(
    "allow_long_max_model_len", ("--allow-long-max-model-len",), "true", "",
    "vLLM: a max-model-len above the model's maximum, as VLLM_ALLOW_LONG_MAX_MODEL_LEN=1 before a command allows it",
    "",
)  # fmt: skip
"""A key alone: on a command line vLLM's own variable says it, and a file does not depend on variables."""
OPTIONS = (*flags.PLAN, *flags.SERVICE, LONG)
"""The planning flags, which are the keys of a rule file."""
CI = ("github", "junit", "sarif", "gitlab")
"""Formats that services of continuous integration read."""
MAX_SAID = 100
"""Mistakes of a file that are listed; more are counted."""
MAX_WARNINGS = 20


class CheckVerb(Verb):
    """The common options, and the formats that continuous integration reads."""

    formats = (*FORMATS, *CI)


_REPORTS = tuple(name for name in CheckVerb.formats if name != "table")
"""Formats of a file beside the result that is shown."""


@app.command(cls=CheckVerb)
def check(
    ctx: typer.Context,
    file: Annotated[
        str | None, typer.Argument(metavar="FILE", help="the rule file; default: kvplan.yaml here or in a folder above")
    ] = None,
    baseline: Annotated[
        str | None, typer.Option("--baseline", metavar="FILE", help="an earlier result that rules compare with")
    ] = None,
    write_baseline: Annotated[
        str | None, typer.Option("--write-baseline", metavar="FILE", help="write this result for later checks")
    ] = None,
    lock: Annotated[
        bool, typer.Option("--lock", help="record the hashes of models and GPUs in kvplan.lock beside FILE")
    ] = False,
    strict: Annotated[bool, typer.Option("--strict", help="warnings fail too")] = False,
    exit_zero: Annotated[bool, typer.Option("--exit-zero", help="report broken rules, and exit with 0")] = False,
    report: Annotated[
        list[str] | None,
        typer.Option("--report", metavar="FORMAT=FILE", help="write the result in another format too; repeatable"),
    ] = None,
    init: Annotated[bool, typer.Option("--init", help="write a first rule file from what is here")] = False,
    schema: Annotated[bool, typer.Option("--schema", help="print the JSON Schema of rule files")] = False,
    metrics: Annotated[bool, typer.Option("--metrics", help="list what a rule can be about")] = False,
) -> int:
    """Sizing rules, held against deployments: exit 0 all hold, 1 one is broken, 2 it cannot be said."""
    out = output.of(ctx)
    if schema or metrics:
        return _describe(out, schema)
    if init:
        return _init(out, file)
    from kvplan.check.problems import RuleFileError
    from kvplan.check.run import check as run

    extra = _reports(report or ())
    _once([*filter(None, (out.file, write_baseline)), *(name for _, name in extra)])
    path = _found(file)
    old, before = _baseline(baseline)
    try:
        checked = run(path, OPTIONS, environment=os.environ, baseline=before)
    except RuleFileError as error:
        return _refuse(out, error.problems, extra)
    whole = out.format == "json" or write_baseline is not None or any(name == "json" for name, _ in extra)
    result = _result(checked, path, old, strict, lock, whole)
    _write(out, result, extra, write_baseline)
    if lock:
        _lock(out, checked, path)
    return _status(out, result, exit_zero)


def _baseline(path: str | None) -> tuple[dict[str, Any] | None, Baseline | None]:
    """(the earlier result, its figures)."""
    if path is None:
        return None, None
    from kvplan.check.baseline import figures_of, read_result

    old = read_result(path, "--baseline")
    return old, figures_of(old)


def _found(file: str | None) -> str:
    """The rule file that is meant.

    Raises:
        InputError: there is none.
    """
    from kvplan.check.rulefile import NAMES, find_file

    if file is None:
        found = find_file()
        if found is None:
            raise InputError(
                f"no {NAMES[0]} here or in a folder above", hint="`kvplan check --init` writes one; or name a file"
            )
        return found
    if os.path.isdir(file):
        inside = next((p for name in NAMES if os.path.isfile(p := os.path.join(file, name))), None)
        if inside is None:
            raise InputError(f"{printable(file)}: no {NAMES[0]} in it", hint="name the rule file")
        return inside
    if not os.path.lexists(file):
        raise InputError(f"{printable(file)}: no such file", hint="`kvplan check --init` writes one")
    return file


def _result(
    checked: Checked, path: str, old: Mapping[str, Any] | None, strict: bool, locking: bool, whole: bool
) -> dict[str, Any]:  # fmt: skip
    from kvplan.check.result import to_dict
    from kvplan.check.rulefile import lock_path

    differing: list[dict[str, Any]] = []
    if not locking and os.path.lexists(lock_path(path)):
        from kvplan.check.lock import differences, read_lock

        differing = differences(checked, read_lock(lock_path(path)), lock_path(path))
    return to_dict(checked, baseline=old, strict=strict, lock=differing, whole=whole)


def _refuse(out: Output, problems: Sequence[Problem], extra: Sequence[tuple[str, str]]) -> int:
    """Every mistake of a file on a line of its own; where annotations go to a stream, one for each there.

    Args:
        extra: (format, file) of further reports. Regular files are not touched: there is no result.
    """
    files = [file for name, file in ((out.format, out.file or "-"), *extra) if name == "github"]
    streams = [file for file in files if file == "-" or (os.path.exists(file) and not os.path.isfile(file))]
    if streams:
        from kvplan.render.check_github import mistakes

        rows = [(*problem.place, str(problem).removeprefix(f"{problem.place}: ")) for problem in problems[:MAX_SAID]]
        output.Output(file=streams[0], quiet=True).write(mistakes(rows, _base()))
    for problem in problems[:MAX_SAID]:
        output.report(str(problem), None)
    if len(problems) > MAX_SAID:
        output.report(f"and {len(problems) - MAX_SAID:,} mistakes more", None)
    return 2


def _reports(texts: Sequence[str]) -> list[tuple[str, str]]:
    """(format, file) of each ``--report``."""
    found = []
    for text in texts:
        name, equals, file = text.partition("=")
        if not equals or not file:
            raise InputError(
                f"{printable(text, 60)!r} names no file",
                where="--report",
                hint=f"--report {name if name in _REPORTS else 'sarif'}=FILE",
            )
        if name not in _REPORTS:
            known = f"known: {', '.join(_REPORTS)}"
            raise UnknownNameError("format", name, list(_REPORTS), where="--report", more=known)
        found.append((name, file))
    return found


def _once(files: Sequence[str]) -> None:
    """Refuse to write one file twice.

    Raises:
        InputError: two outputs have one file.
    """
    seen: set[str] = set()
    for file in files:
        real = os.path.realpath(file) if "\0" not in file else file  # the writer says what is wrong with that one
        if real in seen and not (os.path.exists(real) and not os.path.isfile(real)):
            raise InputError(f"{printable(file)} would be written twice", hint="name a file for each output")
        seen.add(real)


def _write(out: Output, result: Mapping[str, Any], extra: Sequence[tuple[str, str]], baseline: str | None) -> None:
    """Put the result out; everything is drawn before anything is written."""
    drawn = [(file, _text(out, name, result)) for name, file in extra]
    if baseline is not None:
        drawn.append((baseline, _text(out, "json", result)))
    main = _text(out, out.format, result)
    with ExitStack() as files:  # replaced together, once all are there
        for at, (file, text) in enumerate(drawn):
            with _told("--report" if at < len(extra) else "--write-baseline"):
                files.enter_context(place.replacing(file)).write(text.encode("utf-8", "backslashreplace"))
        if out.file is not None:
            files.enter_context(place.replacing(out.file)).write(main.encode("utf-8", "backslashreplace"))
    for file, _ in drawn:
        out.note(f"wrote {printable(file)}")
    if out.file is None:
        out.write(main)


@contextmanager
def _told(flag: str) -> Iterator[None]:
    """An error about a file says the flag that names it."""
    try:
        yield
    except InputError as error:
        error.where = flag
        raise


def _text(out: Output, name: str, result: Mapping[str, Any]) -> str:
    """The result in one format."""
    if name == "json":
        from kvplan.render.jsonout import write

        return write(result)
    if name in CI:
        text: str = output.writer(name).draw(result, _base())
        return text
    from kvplan.check.metrics import shown
    from kvplan.render.check_report import check_report

    document = check_report(result, shown)
    return out.drawn(document) if name == out.format else output.draw(name, document)


def _base() -> str:
    """The present folder within its repository, which services put in front of the paths of a report."""
    here = folder = os.getcwd()
    while not os.path.exists(os.path.join(folder, ".git")):
        above = os.path.dirname(folder)
        if above == folder:
            return ""
        folder = above
    base = os.path.relpath(here, folder).replace(os.sep, "/")
    return "" if base == "." else base


def _lock(out: Output, checked: Checked, path: str) -> None:
    from kvplan.check.lock import to_dict
    from kvplan.check.rulefile import lock_path
    from kvplan.render.jsonout import write

    place.write_file(lock_path(path), write(to_dict(checked)))
    out.note(f"wrote {printable(lock_path(path))}")


def _status(out: Output, result: Mapping[str, Any], exit_zero: bool) -> int:
    """Say on stderr what the result itself does not, and the exit status."""
    from kvplan.check.result import failed
    from kvplan.render.check_common import headline

    said = [f"{d['name']}: {text}" for d in result["deployments"] for text in d["warnings"]]
    for text in said[:MAX_WARNINGS]:
        out.warn(text)
    if len(said) > MAX_WARNINGS:
        out.warn(f"{len(said) - MAX_WARNINGS:,} warnings more; --json has all")
    if not result["deployments"]:
        out.warn("the file has no deployments: nothing is checked")
    elif not result["summary"]["rules"]:
        out.warn("no deployment has a rule: nothing is promised")
    if result["summary"]["skipped"]:
        out.note(f"{result['summary']['skipped']:,} rules compare with a baseline: --baseline FILE gives one")
    if out.format in ("json", *CI) or out.file is not None:
        out.note(headline(result))
    return 1 if failed(result) and not exit_zero else 0


def _describe(out: Output, schema: bool) -> int:
    """The schema of rule files, or the metrics.

    Raises:
        InputError: a format that has nothing but results.
    """
    if out.format in CI:
        raise InputError(
            "holds the results of a check, and nothing is checked here", where=f"--format {out.format}",
            hint=f"one of {', '.join(FORMATS)}",
        )  # fmt: skip
    if schema:
        from kvplan.check.schema import json_schema

        out.emit_json(json_schema(OPTIONS))
        return 0
    from kvplan.check.metrics import AT, known
    from kvplan.render.grid import Column, Grid

    kinds = {**known(), f"{AT}(TOKENS)": "number"}
    payload = {"schema": "kvplan.metrics/1", "metrics": [{"name": n, "kind": k} for n, k in kinds.items()]}
    out.emit([Grid([Column("metric"), Column("kind")], list(kinds.items()), "What a rule can be about")], payload)
    return 0


def _init(out: Output, file: str | None) -> int:
    import shlex

    from kvplan.check.discover import find_starts, starter
    from kvplan.check.rulefile import NAMES, find_file

    path = file or NAMES[0]
    place.check_place(path)
    if os.path.lexists(path):
        raise InputError(f"{printable(path)} is there already", where="--init", hint="name another file, or delete it")
    found = find_starts(os.path.dirname(path) or ".")
    place.write_file(path, starter(found))
    fits = sum(not item.problem for item in found)
    said = f"{fits:,} deployment{'s' * (fits > 1)} from this folder" if fits else "an example"
    found_alone = find_file()
    plain = found_alone is not None and os.path.samefile(found_alone, path)
    command = "kvplan check" if plain else f"kvplan check {shlex.quote(path)}"
    out.note(f"wrote {printable(path)} with {said}; `{printable(command)}` holds it")
    for item in found:
        if item.problem:
            out.warn(f"{item.path} is a comment there: {item.problem}")
    return 0

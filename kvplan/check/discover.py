"""A first rule file, from what a repository starts engines with: ``kvplan check --init``."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from typing import NamedTuple

from kvplan.check.fields import SCHEMA
from kvplan.check.figures import Subject, Worked
from kvplan.errors import KvplanError, printable
from kvplan.sources.commands import files

MAX_FILES = 20_000
MAX_FOUND = 200
_SKIPPED = frozenset({"node_modules", "__pycache__", "venv", "site-packages", "dist", "build", "target", "vendor"})
_GPUS = ("h100-sxm", "h200-sxm", "b200-sxm")
"""What a file that names no GPU is tried on, in turn."""


class Found(NamedTuple):
    """A place that starts an engine."""

    path: str
    """``FILE`` or ``FILE#NAME``, from the folder of the rule file."""
    gpu: str | None
    """None: the file names it itself."""
    problem: str
    """Why it cannot be planned as it stands; empty: it can, and fits."""
    engine: str = ""


def find_starts(folder: str) -> list[Found]:
    """Everything below a folder that starts an engine, in order of name."""
    found: list[Found] = []
    for path in _files(folder):
        shown = os.path.relpath(path, folder).replace(os.sep, "/")
        for name in _names(path):
            if len(found) < MAX_FOUND:
                found.append(_tried(path, f"{shown}#{name}" if name else shown, name))
    return found


def _files(folder: str) -> Iterator[str]:
    """Files that may hold a command line of an engine."""
    seen = 0
    for here, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith(".") and name not in _SKIPPED)
        for name in sorted(names):
            seen += 1
            if seen > MAX_FILES:
                return
            path = os.path.join(here, name)
            likely = name.lower().endswith((*files.SUFFIXES, *files.YAML)) or files.NAMES.match(name)
            if likely and os.path.isfile(path) and os.path.getsize(path) <= files.MAX_BYTES:
                with open(path, "rb") as file:
                    text = file.read().decode("utf-8", "replace")
                if files.ENGINE.search(text) and SCHEMA not in text:
                    yield path


def _names(path: str) -> list[str]:
    """What starts an engine in a file: names to pick, or one empty name where there is but one start."""
    from kvplan.sources import commands
    from kvplan.sources.commands.starts import Finder

    try:
        if not files.holds_command(path):
            return []
        starts, _ = commands.starts_in(files.read_text(path), path, Finder(path), "")
    except KvplanError:
        return []
    names = list(dict.fromkeys(start.name for start in starts))
    return names if len(names) > 1 else [""] * bool(names)


def _tried(path: str, shown: str, name: str) -> Found:
    """Whether it can be planned, and on which GPU it fits."""
    from kvplan.deployment import find_deployment
    from kvplan.sources.commands import read_command

    text = f"{path}#{name}" if name else path
    try:
        command = read_command(text)
        if command.gpu and (found := find_deployment(text, {})).gpu is not None:
            worked = Worked(Subject(*found[:4]))
            return Found(shown, None, "" if _fits(worked) else worked.outcome.reason, worked.engine.name)
        reason = engine = ""
        for gpu in _GPUS:
            worked = Worked(Subject(*find_deployment(text, {"gpu": gpu})[:4]))
            reason, engine = worked.outcome.reason, worked.engine.name
            if _fits(worked):
                return Found(shown, gpu, "", engine)
        return Found(shown, _GPUS[-1], reason, engine)
    except KvplanError as error:
        return Found(shown, None, str(error))


def _fits(worked: Worked) -> bool:
    return bool(worked.outcome.fits and worked.end(0).fits)


_HEAD = f"""\
# Sizing rules, held by `kvplan check`. Every key is described by `kvplan check --schema`.
schema: {SCHEMA}

# Settings of every deployment that says nothing else; any planning flag without its dashes.
# defaults:
#   gpu: h100-sxm

# Kinds of traffic; a deployment names those it serves.
workloads:
  # With targets, as in ttft: 0.5 and tpot: 0.05 (seconds), serving.targets_hold below holds it to them.
  chat: {{prompt-tokens: 1K, output-tokens: 256, concurrency: 1}}

# Promises of every deployment: metric operator value [unit]. `kvplan check --metrics` lists the metrics.
rules:
  - verdict.fits == true
  - serving.targets_hold == true # of workloads with targets; does not apply to others
  - {{rule: capacity.max_concurrency >= 1, level: warn}}

deployments:
"""
_EXAMPLE = """\
  # One example, since nothing here starts an engine: replace it with yours.
  example:
    model: llama-3.1-8b # or command: an engine's command line, or from: a manifest
    gpu: h100-sxm
    max-model-len: 32K
    workloads: chat
    rules:
      - capacity.requests_at(32K) >= 4
"""


def starter(found: list[Found]) -> str:
    """The text of a first rule file; what cannot be promised as it stands is a comment."""
    lines, names = [], set[str]()
    for item in found:
        name = _unique(item.path, names)
        fits = not item.problem
        mark = "" if fits else "# "
        if not fits:
            lines.append(f"  # {printable(item.path)}: {printable(' '.join(item.problem.split()), 300)}")
        lines.append(f"  {mark}{name}:")
        lines.append(f"  {mark}  from: {_quoted(item.path)}")
        if item.gpu is not None:
            lines.append(f"  {mark}  gpu: {item.gpu} # the file names none: put yours here")
        lines.append(f"  {mark}  workloads: chat")
    text = "".join(f"{line}\n" for line in lines)
    return _HEAD + text + ("" if any(not item.problem for item in found) else _EXAMPLE)


def _unique(path: str, names: set[str]) -> str:
    """A name made of a path, unlike those there are."""
    file, _, picked = path.partition("#")
    stem = os.path.basename(file).partition(".")[0] or "deployment"
    said = f"{stem}-{picked}" if picked.isdigit() else picked or stem
    base = re.sub(r"[^A-Za-z0-9-]+", "-", said).strip("-").lower() or "deployment"
    name, number = base, 2
    while name in names or name in ("null", "true", "false", "yes", "no", "on", "off", "y", "n") or name.isdigit():
        name, number = f"{base}-{number}", number + 1
    names.add(name)
    return name


def _quoted(text: str) -> str:
    """A path as a YAML scalar: a ``#`` inside a word needs no quotes, much else does."""
    if re.fullmatch(r"[A-Za-z0-9_./][\w./#@+-]*", text):
        return text
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'

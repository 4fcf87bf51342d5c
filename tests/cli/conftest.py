"""The command line, run inside this process or as a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from typing import NamedTuple

import pytest

from kvplan.cli.main import main


class Done(NamedTuple):
    """How one command ended."""

    status: int
    out: str
    err: str


Run = Callable[..., Done]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs a command line in this process: ``run("plan", "x", "--json")``."""
    for name in ("NO_COLOR", "FORCE_COLOR", "COLUMNS"):
        monkeypatch.delenv(name, raising=False)

    def call(*words: str) -> Done:
        capsys.readouterr()
        status = main(words)
        seen = capsys.readouterr()
        return Done(status, seen.out, seen.err)

    return call


@pytest.fixture
def spawn() -> Run:
    """Runs ``python -m kvplan`` or, with `code`, ``python -c``; keywords go to `subprocess.run`."""

    def call(*words: str, code: str | None = None, env: dict[str, str] | None = None, **settings: object) -> Done:
        command = [sys.executable, *(["-c", code] if code is not None else ["-m", "kvplan"]), *words]
        settings = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "stdin": subprocess.DEVNULL, **settings}
        done = subprocess.run(command, text=True, timeout=60, env={**os.environ, **(env or {})}, **settings)  # type: ignore[call-overload]
        return Done(done.returncode, done.stdout or "", done.stderr or "")

    return call


def one_line_error(done: Done) -> tuple[str, str]:
    """(message, hint) of a command that failed as all should: status 2, nothing on stdout, two lines at most."""
    assert done.status == 2, done
    assert done.out == ""
    lines = done.err.splitlines()
    assert 1 <= len(lines) <= 2, done.err
    assert lines[0].startswith("error: ")
    assert len(lines) == 1 or lines[1].startswith("hint: ")
    assert all(line.isprintable() for line in lines)
    assert "Traceback" not in done.err
    return lines[0].removeprefix("error: "), lines[1].removeprefix("hint: ") if len(lines) > 1 else ""

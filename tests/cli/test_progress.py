"""Progress is for a terminal that is watched, and leaves nothing behind."""

from __future__ import annotations

import io
import sys

import pytest

from kvplan.cli import progress
from kvplan.cli.progress import Progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "FIRST_SECONDS", 0.0)
    monkeypatch.setattr(progress, "NEXT_SECONDS", 0.0)


@pytest.mark.usefixtures("at_once")
def test_a_terminal_sees_how_far_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", Terminal())
    with Progress(2000, "plans") as shown:
        shown.step(500)
        shown.step(1000)
    text = sys.stderr.getvalue()  # type: ignore[union-attr]
    assert "500 of 2,000 plans, 25 %" in text
    assert "1,500 of 2,000 plans, 75 %" in text
    assert text.endswith("\r\x1b[K")


@pytest.mark.usefixtures("at_once")
@pytest.mark.parametrize(("stream", "quiet"), [(io.StringIO(), False), (Terminal(), True), (None, False)])
def test_nobody_else_does(monkeypatch: pytest.MonkeyPatch, stream: io.StringIO | None, quiet: bool) -> None:
    monkeypatch.setattr(sys, "stderr", stream)
    with Progress(2, "plans", quiet=quiet) as shown:
        shown.step(1)
    assert stream is None or stream.getvalue() == ""


def test_a_short_job_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", Terminal())
    with Progress(2, "plans") as shown:
        shown.step(2)
    assert sys.stderr.getvalue() == ""  # type: ignore[union-attr]

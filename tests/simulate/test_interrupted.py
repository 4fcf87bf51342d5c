"""What an interrupt leaves on the command line: whole files of what is done, and nothing where nothing is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kvplan.cli.main import main
from kvplan.simulate import run as running
from kvplan.simulate import vary

SIMULATE = ("simulate", "llama-3.2-1b", "--gpu", "h100-sxm", "--synthetic", "requests=600,prompt=100,output=5,rate=50")


def test_before_anything_is_served_nothing_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(*_: Any, **__: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(running.Router, "choose", interrupted)
    kept = tmp_path / "requests.csv"
    kept.write_text("as it was")
    status = main([*SIMULATE, "--json", "-o", str(tmp_path / "out.json"), "--requests", str(kept)])
    assert status == 130
    assert "before any of 600 requests was done: nothing is written" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["requests.csv"]
    assert kept.read_text() == "as it was"


def test_what_is_served_is_written_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real, count = running.Router.choose, []

    def later(self: Any, request: Any) -> Any:
        count.append(request)
        if len(count) == 400:
            raise KeyboardInterrupt
        return real(self, request)

    monkeypatch.setattr(running.Router, "choose", later)
    path = tmp_path / "requests.csv"
    assert main([*SIMULATE, "--json", "-o", str(tmp_path / "out.json"), "--requests", str(path)]) == 130
    rows = path.read_text().splitlines()
    assert len(rows) == 401
    assert sum(row.endswith(",done") for row in rows) > 300


@pytest.mark.parametrize("done", [0, 2])
def test_rows_of_a_study_that_are_done_are_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], done: int
) -> None:
    real, count = vary.simulate_point, []

    def later(point: vary.Point) -> dict[str, Any]:
        count.append(point)
        if len(count) > done:
            raise KeyboardInterrupt
        return real(point)

    monkeypatch.setattr(vary, "simulate_point", later)
    path = tmp_path / "study.csv"
    vary_ = ("--vary", "max-num-seqs=4,8,16", "--workers", "1", "--format", "csv")
    assert main([*SIMULATE, *vary_, "-o", str(path)]) == 130
    said = capsys.readouterr().err
    if done:
        assert len(path.read_text().splitlines()) == 1 + done
        assert "2 of 3 simulations are done" in said
    else:
        assert not path.exists()
        assert "before any of 3 simulations was done: nothing is written" in said


def test_an_interrupt_while_the_trace_is_read_is_told(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(*_: Any, **__: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr("kvplan.simulate.taking.take_trace", interrupted)
    assert main([*SIMULATE]) == 130
    assert "interrupted: nothing is written" in capsys.readouterr().err


def test_an_interrupted_sweep_says_that_it_wrote_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(*_: Any, **__: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr("kvplan.planning.sweep.Sweep.blocks", interrupted)
    path = tmp_path / "grid.csv"
    words = ("sweep", "llama-3.2-1b", "--vary", "concurrency=1,2", "--format", "csv", "-o", str(path))
    assert main([*words]) == 130
    assert "interrupted: nothing is written" in capsys.readouterr().err
    assert not path.exists()

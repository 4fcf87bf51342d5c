"""Command lines that once broke something, each in the words that were typed."""

from __future__ import annotations

from pathlib import Path

import pytest
from command_lines import _alone, _run, fault

TRACE = str(Path(__file__).parents[1] / "data" / "traces" / "azure_59.csv")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["log", "-"], "standard input"),
        (["log", "/dev/zero"], "a device, which may never end"),
        (["log", "/dev/urandom"], "a device, which may never end"),
        (["explain", "llama-3.1-8b", "--max-model-len", "1", "--no-cache"], "no token is generated"),
        (["completion", "zsh", "--json"], "is no data"),
        (["completion", "bash", "-o", "none/out"], "cannot write none/out"),
        (["plan", "qwen3-32b", "--engine", "sglang", "--gpu-memory", "1B"], "1 B is too little"),
        (["plan", "qwen3-8b", "--gpu", "l40s", "--calibration", "a\0b"], "is not a file name"),
        (["simulate", "qwen3-8b", "--gpu", "l40s", "--trace", TRACE, "--requests", "\0"], "cannot write"),
        (["simulate", "vllm serve Qwen/Qwen3-8B -tp 2", "--trace", TRACE], "--gpu"),
    ],
)
def test_it_is_refused_in_one_line(words: list[str], said: str) -> None:
    with _alone():
        ran = _run(words)
    assert fault(words, ran) == ""
    assert ran.status == 2
    assert said in ran.err.splitlines()[0]


def test_lengths_that_no_trace_has_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    path.write_text('[{"conversations": [{"value": "hello"}, {"value": "good day"}]}]', encoding="utf-8")
    with _alone():
        ran = _run(["trace", "describe", str(path), "--chars-per-token", "1e-300"])
    assert ran.status == 2
    assert "is not a number from 1e-09 to 1e+12" in ran.err


def test_an_interpreters_script_is_written_to_the_file_that_was_named(tmp_path: Path) -> None:
    with _alone():
        ran = _run(["completion", "bash", "-o", str(tmp_path / "kvplan.bash")])
    assert (ran.status, ran.out) == (0, b"")
    assert "_KVPLAN_COMPLETE" in (tmp_path / "kvplan.bash").read_text(encoding="utf-8")

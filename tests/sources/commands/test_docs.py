"""The examples of docs/command-lines.md work as they stand."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from kvplan.cli.main import main
from kvplan.engines.command_line import grammars

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "command-lines.md").read_text(encoding="utf-8")
EXAMPLES = [line for block in re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL) for line in block.splitlines()]


@pytest.mark.parametrize("line", EXAMPLES)
def test_examples(line: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(ROOT)
    program, *words = shlex.split(line)
    assert program == "kvplan"
    assert main([*words, "--format", "text"]) in (0, 1)
    assert "verdict" in capsys.readouterr().out


def test_there_is_an_example_and_a_row_for_every_engine() -> None:
    for grammar in grammars():
        programs = [*grammar.programs, *grammar.modules]
        assert any(program in line for line in EXAMPLES for program in programs), grammar.engine
        assert any(f"`{program} " in PAGE or f"`{program}`" in PAGE for program in grammar.programs), grammar.engine
        assert all(f"`{name}`" in PAGE for name in grammar.environment if name.startswith(("VLLM", "OLLAMA")))

"""Flags under names that other tools give them: refused, and the hint names ours."""

from __future__ import annotations

import pytest

from kvplan.cli.app import VERBS
from kvplan.cli.main import main
from kvplan.engines import ENGINES, get_engine
from kvplan.engines.other_words import OTHERS, flag_for
from kvplan.planning.settings import _COUNTERPARTS, COMMON


def refused(capsys: pytest.CaptureFixture[str], *words: str) -> list[str]:
    assert main(["plan", "llama-3.1-8b", "--gpu", "l40s", *words]) == 2
    return capsys.readouterr().err.splitlines()


@pytest.mark.parametrize(
    ("typed", "meant"),
    [("--context-length", "--max-model-len"), ("--tp", "--tensor-parallel-size"), ("--quantization", "--weights"),
     ("--KV-DTYPE", "--kv-cache-dtype"), ("--qps", "--request-rate")],
)  # fmt: skip
def test_the_hint_names_the_flag_that_was_meant(typed: str, meant: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert refused(capsys, typed, "8")[1].startswith(f"hint: it is called {meant} here;")


def test_every_flag_with_other_words_exists_and_no_word_is_a_flag(capsys: pytest.CaptureFixture[str]) -> None:
    assert "plan" in VERBS
    assert main(["plan", "--help"]) == 0
    shown = capsys.readouterr().out.split()
    flags = {word.strip(",") for word in shown if word.startswith("-")}
    assert set(OTHERS) <= flags
    assert not flags & {f"--{word}" for words in OTHERS.values() for word in words.split()}
    words = [word for words in OTHERS.values() for word in words.split()]
    assert len(words) == len(set(words))


def test_a_command_without_the_flag_is_not_offered_it() -> None:
    assert flag_for("--tp", {"--gpu"}) is None
    assert flag_for("--nonsense", set(OTHERS)) is None


@pytest.mark.parametrize(
    ("words", "error", "hint"),
    [(("-c", "64k"), "--ctx-size: vllm has no such setting (llama.cpp, ollama, lmstudio have)",
      "type --max-model-len instead, or add --engine llama.cpp"),
     (("--mem-fraction-static", "0.8"), "--mem-fraction-static: vllm has no such setting (sglang has)",
      "type --gpu-memory-utilization instead, or add --engine sglang"),
     (("--engine", "llama.cpp", "--max-num-seqs", "3"),
      "--max-num-seqs: llama.cpp has no such setting (vllm, tensorrt-llm, exllamav3 have)",
      "type --parallel instead, or add --engine vllm")],
)  # fmt: skip
def test_another_engines_flag_says_whose_it_is(
    words: tuple[str, ...], error: str, hint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert refused(capsys, *words) == [f"error: {error}", f"hint: {hint}"]


def test_counterparts_are_settings_of_engines() -> None:
    every = COMMON.union(*(get_engine(name).settings for name in ENGINES))
    assert set(_COUNTERPARTS) <= every
    assert {other for others in _COUNTERPARTS.values() for other in others} <= every

"""A length above the model's maximum: what the refusal says can be typed, everywhere."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from kvplan import plan

from .conftest import Run, one_line_error


@pytest.mark.parametrize("version", ["0.11.0", "0.12.0", "0.29.0", "0.30.0", "0.33.0"])
@pytest.mark.parametrize(("length", "factor"), [("64K", 2), ("128K", 4)])
def test_the_command_in_the_hint_plans_that_length(run: Run, version: str, length: str, factor: int) -> None:
    words = ("plan", "qwen3-32b", "--max-model-len", length, "--gpu", "h100-sxm", "-tp", "2")
    _, hint = one_line_error(run(*words, "--engine", f"vllm@{version}"))
    program, *typed = shlex.split(hint.rpartition("has it, ")[2])
    assert program == "kvplan"
    done = run(*typed, "--json")
    assert done.status == 0
    assert f'"max_model_len": {int(length[:-1]) * 1024},' in done.out
    assert f"yarn x {factor}" in done.err
    assert version in done.out


def test_a_length_past_what_the_documentation_covers_has_no_ready_rule(run: Run) -> None:
    _, hint = one_line_error(run("plan", "qwen3-32b", "--max-model-len", "132K"))
    assert "JSON" in hint
    assert "yarn" not in hint


def test_the_variable_counts_for_a_command_line_too(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    line = "vllm serve Qwen/Qwen3-32B --max-model-len 65536"
    assert run("plan", line).status == 2
    monkeypatch.setenv("VLLM_ALLOW_LONG_MAX_MODEL_LEN", "1")
    assert run("plan", line).status == 0
    assert run("plan", line, "--engine", "generic").status == 0


def test_a_rule_file_and_python_have_a_word_for_it(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert plan("qwen3-32b", max_model_len=65536, allow_long_max_model_len=True).verdict.fits is None
    monkeypatch.chdir(tmp_path)
    text = "schema: kvplan.rules/1\ndeployments:\n  a:\n    model: qwen3-32b\n    gpu: h200-sxm\n"
    text += "    max-model-len: 64K\n    rules: verdict.fits == true\n"
    Path("kvplan.yaml").write_text(text, encoding="utf-8")
    done = run("check")
    assert done.status == 2
    assert "allow-long-max-model-len: true" in done.out + done.err
    Path("kvplan.yaml").write_text(f"{text}    allow-long-max-model-len: true\n", encoding="utf-8")
    assert run("check").status == 0


def test_the_line_to_paste_stands_alone_whole_and_unbroken(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    keys = '{"rope_parameters": {"rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": 32768}, '
    flag = f"--hf-overrides '{keys}\"max_position_embeddings\": 65536}}'"
    monkeypatch.setenv("COLUMNS", "80")
    for form in ("text", "table", "markdown"):
        out = run("plan", f"vllm serve Qwen/Qwen3-32B -tp 2 {flag}", "--gpu", "h100-sxm", "--format", form).out
        (line,) = [line.strip() for line in out.splitlines() if "vllm serve" in line]
        assert line.startswith("vllm serve Qwen/Qwen3-32B --tensor-parallel-size 2 ")
        assert line.endswith(flag)
        assert run("plan", line, "--gpu", "h100-sxm").status == 0

"""Completion as a shell asks for it: the words typed so far in, candidates out."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from kvplan.catalog import gpu_ids, model_ids
from kvplan.cli.app import VERBS

ROOT = Path(__file__).parent.parent.parent


def candidates(line: str) -> list[str]:
    words = line.split(" ")
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "_KVPLAN_COMPLETE": "complete_bash"}
    environment |= {"COMP_WORDS": line, "COMP_CWORD": str(len(words) - 1)}
    done = subprocess.run(
        [sys.executable, "-m", "kvplan"], env=environment, capture_output=True, text=True, check=False, timeout=60
    )
    assert done.stderr == ""
    return done.stdout.split()


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("kvplan pla", ["plan"]),
        ("kvplan plan llama-3.1-", [m for m in model_ids() if m.startswith("llama-3.1-")]),
        ("kvplan plan llama-3.1-8b --gpu h200", [g for g in gpu_ids() if g.startswith("h200")]),
        ("kvplan plan llama-3.1-8b --engine tensor", ["tensorrt-llm"]),
        ("kvplan plan llama-3.1-8b --engine vllm,tensor", ["vllm,tensorrt-llm"]),
        ("kvplan plan llama-3.1-8b --kv-cache-dtype nvfp", ["nvfp4", "nvfp4_ds_mla"]),
        ("kvplan plan llama-3.1-8b --format js", ["json"]),
        ("kvplan plan llama-3.1-8b --max-model", ["--max-model-len"]),
        ("kvplan gpus show mi300", [g for g in gpu_ids() if g.startswith("mi300")]),
        ("kvplan models show no-such", []),
        ("kvplan no-such-verb ", list(VERBS)),
        ("kvplan plan llama-3.1-8b --no-such x --gpu h200", [g for g in gpu_ids() if g.startswith("h200")]),
    ],
)  # fmt: skip
def test_candidates(line: str, expected: list[str]) -> None:
    assert candidates(line) == expected


def test_all_verbs_are_offered() -> None:
    assert candidates("kvplan ") == list(VERBS)


@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash here")
def test_the_script_works_in_bash(tmp_path: Path) -> None:
    command = tmp_path / "kvplan"
    command.write_text(f'#!/bin/sh\nPYTHONPATH="{ROOT}" exec "{sys.executable}" -m kvplan "$@"\n', encoding="utf-8")
    command.chmod(0o755)
    script = (
        f'PATH="{tmp_path}:$PATH"; eval "$(kvplan completion bash)"; COMP_WORDS=(kvplan plan llama-3.3); COMP_CWORD=2; '
        '$(complete -p kvplan | sed "s/.*-F \\([^ ]*\\) .*/\\1/") kvplan; echo "${COMPREPLY[@]}"'
    )
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.split() == [m for m in model_ids() if m.startswith("llama-3.3")]


@pytest.mark.skipif(shutil.which("zsh") is None, reason="no zsh here")
def test_the_script_works_in_zsh(tmp_path: Path) -> None:
    """As a file of $fpath, at the first press of the key."""
    command = tmp_path / "kvplan"
    command.write_text(f'#!/bin/sh\nPYTHONPATH="{ROOT}" exec "{sys.executable}" -m kvplan "$@"\n', encoding="utf-8")
    command.chmod(0o755)
    (tmp_path / "functions").mkdir()
    script = f"""
PATH="{tmp_path}:$PATH"; kvplan completion zsh > {tmp_path}/functions/_kvplan
zmodload zsh/zpty; zpty z "zsh -f -i"
zpty -w z 'fpath=({tmp_path}/functions $fpath); autoload -U compinit; compinit -u -D; print READ''Y'
zpty -r z out '*READY*'
zpty -w -n z $'print [ ; kvplan plan llama-3.1-8b --gpu h100-nv\t'
zpty -r z more '*h100-nvl*' && print found
"""
    done = subprocess.run(["zsh", "-f", "-c", script], capture_output=True, text=True, timeout=60)
    assert done.stdout.strip().endswith("found"), done.stdout + done.stderr


@pytest.mark.skipif(shutil.which("fish") is None, reason="no fish here")
def test_the_script_works_in_fish(tmp_path: Path) -> None:
    command = tmp_path / "kvplan"
    command.write_text(f'#!/bin/sh\nPYTHONPATH="{ROOT}" exec "{sys.executable}" -m kvplan "$@"\n', encoding="utf-8")
    command.chmod(0o755)
    script = f'set -x PATH {tmp_path} $PATH; kvplan completion fish | source; complete -C "kvplan plan x --gpu h100-nv"'
    done = subprocess.run(["fish", "-N", "-c", script], capture_output=True, text=True, timeout=60)
    assert done.stdout.split() == ["h100-nvl"], done.stderr

"""``models lint`` of what other programs write: configurations, model folders, GGUF files."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from kvplan.sources.model_lint import is_model, lint_model

Folder = Callable[..., Path]


def test_a_sound_folder_and_its_configuration_have_nothing_to_say(llama_folder: Folder) -> None:
    folder = llama_folder()
    assert lint_model(str(folder)) == lint_model(str(folder / "config.json")) == []


def test_what_a_plan_would_warn_of_is_a_finding(llama_folder: Folder) -> None:
    folder = llama_folder(
        more=[("model.layers.5.mlp.up_proj.weight", "BF16", (400, 400))], max_position_embeddings=None
    )
    found = lint_model(str(folder))
    assert {finding.level for finding in found} == {"warning"}
    assert [finding.message for finding in found if "the checkpoint holds" in finding.message]
    assert [finding.message for finding in found if "how long a context" in finding.message]


def test_why_a_file_cannot_be_read_is_an_error_with_its_line(llama_folder: Folder, tmp_path: Path) -> None:
    path = llama_folder(num_key_value_heads=3) / "config.json"
    (error,) = lint_model(str(path))
    assert (error.level, error.file) == ("error", str(path))
    assert "is not a multiple of kv_heads" in error.message
    (tmp_path / "m.gguf").write_bytes(b"GGUF")
    assert [(f.level, f.message) for f in lint_model(str(tmp_path / "m.gguf"))] == [("error", "is not a GGUF file")]
    text = path.read_text().replace('"hidden_size": 64', '"hidden_size": "64"')
    path.write_text(text)
    (error,) = lint_model(str(path))
    assert json.dumps("hidden_size") in text.splitlines()[error.line - 1]


def test_what_below_a_folder_is_a_model(llama_folder: Folder, tmp_path: Path) -> None:
    assert is_model(str(llama_folder()))
    assert not is_model(str(tmp_path))
    for name, whole in (("a.gguf", True), ("a-00001-of-00003.gguf", True), ("a-00002-of-00003.gguf", False)):
        assert is_model(name) is whole


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes here")
@pytest.mark.parametrize("name", ["pipe.json", "pipe.gguf", "pipe"])
def test_a_pipe_that_nobody_writes_to_keeps_nobody_waiting(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    os.mkfifo(path)
    command = [sys.executable, "-m", "kvplan", "plan", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 2

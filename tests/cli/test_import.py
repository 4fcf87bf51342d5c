"""``kvplan models import``, folders and files as MODEL, ``--assume`` and ``--hub``, from the command line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kvplan.sources import find_model

from ..sources.conftest import LLAMA, llama_tensors, write_checkpoint
from .conftest import Run, one_line_error

ODD = LLAMA | {"model_type": "rocket", "ring_window": 7}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_checkpoint(tmp_path / "tiny-llama", LLAMA, llama_tensors(LLAMA), shards=2)


def config(path: Path, data: Any) -> str:
    path.write_text(json.dumps(data), encoding="utf-8")
    return str(path)


def test_plan_of_a_folder(run: Run, folder: Path) -> None:
    done = run("plan", str(folder), "--gpu", "h100-sxm", "--json")
    assert done.status == 0
    plain = json.loads(done.out)
    row = plain["memory"][0]
    assert sum(row["weights_by_role"].values()) == 2 * plain["model"]["parameters"]
    assert plain["model"]["id"] == "tiny-llama"
    assert plain["warnings"] == []


def test_folder_name_without_a_slash(run: Run, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder.parent)
    assert run("plan", "tiny-llama", "--json").status == 0
    assert run("explain", "tiny-llama/config.json").status == 0
    assert run("models", "show", "tiny-llama").status == 0


@pytest.mark.parametrize("verb", [("plan",), ("explain",), ("models", "show"), ("models", "import")])
def test_assume_everywhere(run: Run, tmp_path: Path, verb: tuple[str, ...]) -> None:
    path = config(tmp_path / "odd.json", ODD)
    message, hint = one_line_error(run(*verb, path))
    assert "ring_window" in message
    assert "--assume llama-like" in hint
    done = run(*verb, path, "--assume", "llama-like")
    assert done.status == 0
    assert "warning: read as plain attention" in done.err
    message, hint = one_line_error(run(*verb, path, "--assume", "magic"))
    assert "llama-like" in hint


@pytest.mark.parametrize("verb", [("plan",), ("explain",), ("models", "show"), ("models", "import")])
def test_hub_names(run: Run, spawn: Run, verb: tuple[str, ...]) -> None:
    _, hint = one_line_error(run(*verb, "acme/Rocket-7B"))
    assert "--hub" in hint
    message, hint = one_line_error(spawn(*verb, "acme/Rocket-7B", "--hub", env={"HF_HUB_OFFLINE": "1"}))
    assert "HF_HUB_OFFLINE" in message
    assert "config.json" in hint


def test_nothing_but_the_flag_loads_the_hub(spawn: Run, folder: Path) -> None:
    code = """
import sys
from kvplan.cli.main import main
main(sys.argv[1:])
sys.stdout.flush()
network = ("huggingface_hub", "http", "ssl", "urllib.request", "requests")
print(*(m for m in sys.modules if m.startswith(network)), file=sys.stderr)
"""
    for words in (("plan", str(folder), "--json"), ("plan", "acme/Rocket-7B"), ("models", "import", str(folder))):
        assert spawn(*words, code=code).err.splitlines()[-1] == ""


def test_import_to_stdout_and_to_a_file(run: Run, folder: Path, tmp_path: Path) -> None:
    shown = run("models", "import", str(folder))
    assert shown.status == 0
    path = tmp_path / "out.yaml"
    done = run("models", "import", str(folder), "-o", str(path))
    assert done.status == 0
    assert done.out == ""
    assert path.read_text(encoding="utf-8") == shown.out
    assert shown.out.startswith("# Written by kvplan")
    assert find_model(str(path)) == find_model(str(folder))
    assert run("models", "lint", str(path)).status == 0


def test_import_as_json(run: Run, folder: Path) -> None:
    plain = json.loads(run("models", "import", str(folder), "--json").out)
    assert plain["schema"] == "kvplan.models/1"
    assert plain["fields"]["hidden_size"] == 64
    assert "schema: kvplan.model/1" in plain["yaml"]


def test_the_sheet_of_a_folder_shows_its_files(run: Run, folder: Path) -> None:
    stored = json.loads(run("models", "show", str(folder), "--json").out)["models"][0]["checkpoint"]
    assert stored["stored"]["embedding"] == {"BF16": 2 * 512 * 64}
    assert stored["stored_parameters"]["embedding"] == 512 * 64
    assert "In the files" in run("models", "show", str(folder), "--format", "text").out


def test_import_writes_the_whole_file_or_nothing(run: Run, tmp_path: Path, folder: Path) -> None:
    path = tmp_path / "out.yaml"
    path.write_text("mine", encoding="utf-8")
    one_line_error(run("models", "import", config(tmp_path / "odd.json", ODD), "-o", str(path)))
    assert path.read_text(encoding="utf-8") == "mine"
    one_line_error(run("models", "import", str(folder), "-o", str(tmp_path / "none" / "out.yaml")))


def test_import_of_a_catalog_model(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "copy.yaml"
    assert run("models", "import", "gemma-3-27b", "-o", str(path)).status == 0
    assert find_model(str(path)) == find_model("gemma-3-27b")


@pytest.mark.parametrize(
    ("name", "data", "word"),
    [
        ("cut.json", b'{"model_type": "llama", "hidden', "cut short"), ("binary.json", b"PK\x03\x04\0", "binary"),
        ("utf16.json", '{"a": 1}'.encode("utf-16"), "UTF-16"), ("latin.json", b'{"a": "\xe9"}', "UTF-8"),
        ("nan.json", b'{"hidden_size": NaN}', "NaN"), ("twice.json", b'{"a": 1, "a": 2}', "twice"),
        ("deep.json", b"[" * 100_000, "deeper"), ("empty.json", b"", "empty"), ("list.json", b"[]", "object"),
        ("model.safetensors", b"\0" * 20, "no configuration"), ("model.safetensors.index.json", b"{}", "index"),
        ("escape.json", b'{"model_type": "\\u001b[31mred", "hidden_size": 1}', "model_type"),
    ],
)  # fmt: skip
def test_bad_files_are_one_line(run: Run, tmp_path: Path, name: str, data: bytes, word: str) -> None:
    path = tmp_path / name
    path.write_bytes(data)
    message, _ = one_line_error(run("plan", str(path)))
    assert word in message
    assert str(path) in message

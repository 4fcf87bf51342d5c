"""Checkpoint folders that are damaged, incomplete or hostile."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from kvplan import plan
from kvplan.errors import SpecError
from kvplan.sources import find_model

Folder = Callable[..., Path]


# ---- checkpoints that are damaged, incomplete or hostile ----


def test_missing_shards_are_said_and_weights_computed(llama_folder: Folder) -> None:
    folder = llama_folder(shards=3)
    whole = plan(str(folder), gpu="h100-sxm", engine="generic")
    (folder / "model-00002-of-00003.safetensors").unlink()
    (folder / "model-00003-of-00003.safetensors").write_text(
        "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n"
    )
    made = plan(str(folder), gpu="h100-sxm", engine="generic")
    assert any("2 of 3 files" in warning for warning in made.warnings)
    assert made.memory is not None
    assert whole.memory is not None
    assert made.memory[0].weights_bytes == whole.memory[0].weights_bytes
    assert made.kv == whole.kv


def test_files_without_an_index(llama_folder: Folder) -> None:
    """All of them count, as engines load them; a number that is missing is missed."""
    folder = llama_folder(shards=3)
    expected = find_model(str(folder))
    (folder / "model.safetensors.index.json").unlink()
    (folder / "consolidated.safetensors").write_bytes(b"another copy")
    assert find_model(str(folder)).checkpoint == expected.checkpoint
    (folder / "model-00002-of-00003.safetensors").unlink()
    model = find_model(str(folder))
    assert model.checkpoint is None
    assert "1 of 3 files" in model.file_warnings[0]


def test_a_truncated_shard_is_refused(llama_folder: Folder) -> None:
    folder = llama_folder(shards=2)
    shard = folder / "model-00002-of-00002.safetensors"
    os.truncate(shard, shard.stat().st_size - 1)
    with pytest.raises(SpecError, match="cut short") as caught:
        find_model(str(folder))
    assert caught.value.where == str(shard)


def test_links_out_of_the_folder(llama_folder: Folder, tmp_path: Path) -> None:
    folder = llama_folder(shards=2)
    shard = folder / "model-00002-of-00002.safetensors"
    shard.rename(tmp_path / "elsewhere.safetensors")
    shard.symlink_to(tmp_path / "elsewhere.safetensors")
    with pytest.raises(SpecError, match="link out of its folder"):
        find_model(str(folder))
    shard.unlink()
    shard.symlink_to("model-00001-of-00002.safetensors")  # stays inside: a file like any other
    assert find_model(str(folder)).file_warnings
    shard.unlink()
    shard.symlink_to(shard)
    with pytest.raises(SpecError, match="leads round in a circle"):
        find_model(str(folder))
    shard.unlink()
    shard.symlink_to("gone.safetensors")
    assert "1 of 2 files" in find_model(str(folder)).file_warnings[0]


def test_the_cache_of_the_hub_is_made_of_links(llama_folder: Folder, tmp_path: Path) -> None:
    folder = llama_folder("models--acme--Rocket/snapshots/" + "cd" * 20)
    blobs = tmp_path / "models--acme--Rocket" / "blobs"
    blobs.mkdir()
    for file in list(folder.iterdir()):
        file.rename(blobs / f"blob-{file.name}")
        file.symlink_to(Path("../../blobs") / f"blob-{file.name}")
    model = find_model(str(folder))
    assert model.checkpoint is not None
    assert model.checkpoint.stored


def test_a_folder_in_place_of_a_shard(llama_folder: Folder) -> None:
    folder = llama_folder()
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors").mkdir()
    with pytest.raises(SpecError):
        find_model(str(folder))


def test_an_index_that_disagrees_is_said(llama_folder: Folder) -> None:
    folder = llama_folder(shards=2)
    path = folder / "model.safetensors.index.json"
    index = json.loads(path.read_text())
    index["metadata"]["total_size"] += 10_000
    path.write_text(json.dumps(index))
    assert "the index says" in find_model(str(folder)).file_warnings[0]


def test_other_weights_in_the_folder_are_left_alone(llama_folder: Folder) -> None:
    """A second copy under another name (Mistral's ``consolidated``) is not in the index."""
    folder = llama_folder(shards=2)
    before = find_model(str(folder))
    (folder / "consolidated.safetensors").write_bytes(b"not even a header")
    assert find_model(str(folder)) == before

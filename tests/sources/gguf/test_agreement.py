"""Files whose keys and tensors tell of two different models, which llama.cpp does not load."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from files import BASE, number_pair, raw_file, string_pair, tensor

from kvplan.errors import SpecError, UnknownNameError
from kvplan.sources import find_model
from kvplan.sources.gguf.metadata import read_metadata


def made(
    path: Path, *, architecture: str = "llama", layers: int = 4, width: int = 256, rows: int = 300, k_rows: int = 64,
    **keys: int,
) -> Path:  # fmt: skip
    """A file whose tensors are of `layers` layers, and whose keys are `BASE` with some replaced."""
    pairs = [string_pair("general.architecture", architecture), string_pair("general.name", "Test")]
    held = {**BASE, "vocab_size": 300, **{key.replace("__", "."): value for key, value in keys.items()}}
    pairs += [number_pair(f"{architecture}.{key}", value) for key, value in held.items()]
    tensors = [tensor("token_embd.weight", (width, rows))]
    tensors += [tensor(f"blk.{il}.attn_k.weight", (256, k_rows)) for il in range(layers)]
    path.write_bytes(raw_file(pairs, tensors))
    return path


def test_a_file_at_one_with_itself_is_read(tmp_path: Path) -> None:
    assert find_model(str(made(tmp_path / "m.gguf"))).num_layers == 4


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"layers": 3}, "block_count is 4, and there is no tensor blk.3.*"),
        ({"block_count": 5}, "block_count is 5, and there is no tensor blk.4.*"),
        ({"block_count": 2}, "block_count is 2, and there is a tensor blk.2.attn_k.weight"),
        ({"embedding_length": 512}, "embedding_length is 512, token_embd.weight has rows of 256"),
        ({"width": 128}, "embedding_length is 256, token_embd.weight has rows of 128"),
        ({"rows": 400}, "the vocabulary has 300 tokens, token_embd.weight 400 rows"),
        ({"k_rows": 128}, "blk.0.attn_k.weight has 128 rows, not 64"),
        ({"attention__head_count_kv": 4}, "attention.head_count_kv is 4 of 32 in layer 0"),
        ({"attention__head_count": 0}, "attention.head_count is 0 in every layer"),
        ({"attention__head_count_kv": 0}, "attention.head_count_kv is 0 in every layer"),
        ({"context_length": 0}, "context_length is 0"),
    ],
)
def test_contradictions_are_refused_by_name(tmp_path: Path, changed: dict[str, Any], said: str) -> None:
    with pytest.raises(SpecError) as error:
        find_model(str(made(tmp_path / "m.gguf", **changed)))
    assert said in error.value.message
    assert error.value.hint


@pytest.mark.parametrize("entries", [3, 5, 512])
def test_a_list_with_another_number_of_entries_than_layers_is_refused(entries: int) -> None:
    with pytest.raises(SpecError, match=f"has {entries} entries for 4 layers"):
        read_metadata("llama", {**BASE, "vocab_size": 300, "attention.head_count_kv": [2] * entries})


def test_a_file_without_heads_is_refused() -> None:
    keys = {key: value for key, value in BASE.items() if "head_count" not in key}
    with pytest.raises(SpecError, match=r"does not say its llama\.attention\.head_count"):
        read_metadata("llama", {**keys, "vocab_size": 300})


def test_an_unknown_architecture_has_the_way_past_that_its_hint_names(tmp_path: Path) -> None:
    path = str(made(tmp_path / "m.gguf", architecture="quite_new"))
    with pytest.raises(UnknownNameError) as error:
        find_model(path)
    assert "--assume llama-like" in (error.value.hint or "")
    model = find_model(path, assume="llama-like")
    assert [(n, m.kind) for n, m in model.mixers()] == [(4, "full")]
    assert model.confidence == "derived"
    assert "quite_new is not known" in model.file_warnings[0]
    with pytest.raises(UnknownNameError):
        find_model(path, assume="bert-like")


def test_a_blob_without_a_name_that_tells_is_known_by_its_first_bytes(tmp_path: Path) -> None:
    blob = made(tmp_path / "m.gguf").rename(tmp_path / "sha256-0123")
    assert find_model(str(blob)).num_layers == 4
    (tmp_path / "sha256-4567").write_bytes(b"GGU")
    with pytest.raises(SpecError, match="is no file that kvplan reads"):
        find_model(str(tmp_path / "sha256-4567"))

"""Files made to cost time or memory, links in a circle, folders of loose configurations."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import pytest

from kvplan.errors import SpecError
from kvplan.sources import find_model
from kvplan.sources.checkpoint import safetensors
from kvplan.sources.model_lint import is_model

LLAMA = {
    "model_type": "llama", "num_hidden_layers": 2, "hidden_size": 64, "intermediate_size": 96, "vocab_size": 32,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 128,
}  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    return tmp_path


def test_a_file_of_too_many_tensors(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are counted in the bytes of the header, before anything is made of them."""
    entry = b'"t%d":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}'
    header = b"{" + b",".join(entry % i for i in range(101)) + b"}"
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header)
    monkeypatch.setattr(safetensors, "MAX_FILE_TENSORS", 100)
    monkeypatch.setattr(safetensors, "_all_columns", None)
    with pytest.raises(SpecError, match="more than 100 tensors"):
        find_model(str(folder))


def test_a_link_to_itself(folder: Path) -> None:
    (folder / "model.safetensors").symlink_to("model.safetensors")
    with pytest.raises(SpecError, match="leads round in a circle"):
        find_model(str(folder))


def test_loose_configurations_are_models(tmp_path: Path) -> None:
    for name, data in (("a.json", LLAMA), ("tokenizer.json", {"model": {}}), ("x.index.json", {"weight_map": {}})):
        (tmp_path / name).write_text(json.dumps(data))
    assert [is_model(str(path)) for path in sorted(tmp_path.iterdir())] == [True, False, False]


@pytest.mark.parametrize(
    "kind", ["qwen2_5_omni_text", "qwen3_omni_moe_text", "gemma4_unified_text", "cohere_compass_text"]
)
def test_texts_of_larger_models(kind: str) -> None:
    from kvplan.sources.hf.read import read_config

    nested = {"model_type": "outer", "thinker_config": {"text_config": {**LLAMA, "model_type": kind}}}
    assert read_config(nested).num_layers == 2


def test_bloom_says_no_context() -> None:
    from kvplan.sources.hf.read import read_config

    bloom = {"model_type": "bloom", "n_layer": 2, "n_head": 4, "hidden_size": 64, "vocab_size": 32}
    assert read_config(bloom).max_position_embeddings == 2048
    assert read_config({**bloom, "seq_length": 4096}).max_position_embeddings == 4096

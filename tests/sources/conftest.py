"""Checkpoints as published ones are laid out, with sparse files in place of their data."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # `published`: test folders are no packages

Tensor = tuple[str, str, tuple[int, ...]]
"""Name, dtype, shape."""
BYTES = {
    "I16": 2,
    "BF16": 2,
    "F16": 2,
    "F32": 4,
    "F64": 8,
    "F8_E4M3": 1,
    "F8_E8M0": 1,
    "U8": 1,
    "I8": 1,
    "I32": 4,
    "I64": 8,
}

LLAMA: dict[str, Any] = {
    "model_type": "llama", "architectures": ["LlamaForCausalLM"], "num_hidden_layers": 2, "hidden_size": 64,
    "num_attention_heads": 8, "num_key_value_heads": 4, "intermediate_size": 160, "vocab_size": 512,
    "max_position_embeddings": 2048, "tie_word_embeddings": False, "torch_dtype": "bfloat16",
}  # fmt: skip


def header(
    tensors: Sequence[Tensor], metadata: dict[str, str] | None = None, **json_settings: Any
) -> tuple[bytes, int]:
    """(the header of these tensors with its length, bytes of their data)."""
    entries: dict[str, Any] = {} if metadata is None else {"__metadata__": metadata}
    at = 0
    for name, dtype, shape in tensors:
        size = BYTES[dtype] * math.prod(shape)
        entries[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [at, at + size]}
        at += size
    raw = json.dumps(entries, **({"separators": (",", ":")} | json_settings)).encode()
    raw += b" " * (-len(raw) % 8)
    return len(raw).to_bytes(8, "little") + raw, at


def write_safetensors(path: Path, tensors: Sequence[Tensor], metadata: dict[str, str] | None = None) -> int:
    """Write a file with holes for data; returns the bytes of its tensors."""
    head, size = header(tensors, metadata)
    with path.open("wb") as file:
        file.write(head)
        file.truncate(len(head) + size)
    return size


def llama_tensors(config: dict[str, Any], dtype: str = "BF16") -> list[Tensor]:
    """Every tensor of a Llama-like checkpoint."""
    width, wide, vocab = config["hidden_size"], config["intermediate_size"], config["vocab_size"]
    heads = config["num_attention_heads"]
    dim = config.get("head_dim", width // heads)
    q, kv = heads * dim, config["num_key_value_heads"] * dim
    found: list[Tensor] = [("model.embed_tokens.weight", dtype, (vocab, width))]
    for i in range(config["num_hidden_layers"]):
        layer = f"model.layers.{i}."
        found += [
            (layer + "self_attn.q_proj.weight", dtype, (q, width)), (layer + "self_attn.k_proj.weight", dtype, (kv,
            width)),
            (layer + "self_attn.v_proj.weight", dtype, (kv, width)), (layer + "self_attn.o_proj.weight", dtype,
            (width, q)),
            (layer + "mlp.gate_proj.weight", dtype, (wide, width)), (layer + "mlp.up_proj.weight", dtype, (wide,
            width)),
            (layer + "mlp.down_proj.weight", dtype, (width, wide)), (layer + "input_layernorm.weight", dtype, (width,)),
            (layer + "post_attention_layernorm.weight", dtype, (width,)),
        ]  # fmt: skip
    return [*found, ("model.norm.weight", dtype, (width,)), ("lm_head.weight", dtype, (vocab, width))]


def write_checkpoint(folder: Path, config: dict[str, Any], tensors: Sequence[Tensor], shards: int = 1) -> Path:
    """A folder with a configuration and the files of its tensors, indexed where there are several."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config, indent=2), encoding="utf-8")
    if shards == 1:
        write_safetensors(folder / "model.safetensors", tensors, {"format": "pt"})
        return folder
    each, total, places = -(-len(tensors) // shards), 0, {}
    for i in range(shards):
        name, part = f"model-{i + 1:05d}-of-{shards:05d}.safetensors", tensors[i * each : (i + 1) * each]
        total += write_safetensors(folder / name, part, {"format": "pt"})
        places.update({tensor[0]: name for tensor in part})
    index = {"metadata": {"total_size": total}, "weight_map": places}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=2), encoding="utf-8")
    return folder


class Checkpoints:
    """What tests need of this module, as one fixture (test folders are no packages)."""

    LLAMA = LLAMA
    header = staticmethod(header)
    write_safetensors = staticmethod(write_safetensors)
    llama_tensors = staticmethod(llama_tensors)
    write = staticmethod(write_checkpoint)


@pytest.fixture
def checkpoints() -> type[Checkpoints]:
    return Checkpoints


@pytest.fixture
def llama_folder(tmp_path: Path) -> Callable[..., Path]:
    """Writes a small Llama-like checkpoint: ``llama_folder(shards=3, torch_dtype=None, ...)``."""

    def write(
        name: str = "tiny-llama", *, shards: int = 1, dtype: str = "BF16", more: Sequence[Tensor] = (), **changes: Any
    ) -> Path:
        config = {key: value for key, value in (LLAMA | changes).items() if value is not None}
        tensors = [*llama_tensors({**LLAMA, **config}, dtype), *more]
        return write_checkpoint(tmp_path / name, config, tensors, shards)

    return write

"""GGUF files for tests: written by the `gguf` package, or byte by byte where it would not."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import gguf
import numpy as np

BASE: dict[str, Any] = {
    "context_length": 8192, "embedding_length": 256, "block_count": 4, "feed_forward_length": 512,
    "attention.head_count": 8, "attention.head_count_kv": 2, "attention.key_length": 32, "attention.value_length": 32,
}  # fmt: skip
_MOE = {"expert_count": 8, "expert_used_count": 2, "expert_feed_forward_length": 128}
_MLA = {
    "attention.head_count_kv": 1, "attention.key_length": 96, "attention.value_length": 64,
    "attention.kv_lora_rank": 64, "attention.q_lora_rank": 64, "attention.key_length_mla": 48,
    "attention.value_length_mla": 32,
}  # fmt: skip
_SSM = {"ssm.conv_kernel": 4, "ssm.inner_size": 512, "ssm.state_size": 32, "ssm.time_step_rank": 16}
_GROUPS = {**_SSM, "ssm.group_count": 8}
_DSA = {**_MLA, "attention.indexer.key_length": 32, "attention.indexer.head_count": 4, "attention.indexer.top_k": 64}
_MIXED = {"attention.head_count_kv": [0, 2, 0, 2]}
_WINDOW = {"attention.sliding_window": 512}
_PATTERN = {**_WINDOW, "attention.sliding_window_pattern": [True, True, True, False]}

ARCHITECTURES: dict[str, dict[str, Any]] = {
    **{
        name: {}
        for name in (
            "llama", "qwen2", "qwen3", "gemma", "phi2", "phi3", "falcon", "gpt2", "gptneox", "mpt", "bloom",
            "starcoder2", "stablelm", "internlm2", "command-r", "olmo", "chatglm", "glm4", "granite", "exaone",
            "nemotron", "minicpm", "smollm3", "seed_oss", "ernie4_5", "baichuan",
        )
    },
    "qwen3moe": _MOE, "dbrx": _MOE, "olmoe": _MOE, "minimax-m2": _MOE,
    "gemma2": _WINDOW, "gemma3": _WINDOW, "gemma3n": {**_WINDOW, "block_count": 30}, "cohere2": _WINDOW,
    "gpt-oss": {**_WINDOW, **_MOE}, "llama4": _MOE, "step35": {**_PATTERN, **_MOE}, "mimo2": {**_PATTERN, **_MOE},
    "gemma4": {
        **_PATTERN, "attention.shared_kv_layers": 1, "attention.key_length_swa": 16, "attention.value_length_swa": 16,
    },
    "deepseek2": {**_MLA, **_MOE}, "deepseek32": {**_DSA, **_MOE}, "glm-dsa": {**_DSA, **_MOE},
    "mamba": {**_SSM, "attention.head_count": 0, "attention.head_count_kv": 0},
    "mamba2": {**_GROUPS, "attention.head_count": 0, "attention.head_count_kv": 0},
    "jamba": {**_SSM, **_MIXED}, "granitehybrid": {**_GROUPS, **_MIXED}, "falcon-h1": _GROUPS,
    "nemotron_h": {**_GROUPS, **_MIXED, "feed_forward_length": [0, 0, 512, 0]},
    "qwen3next": {**_GROUPS, "full_attention_interval": 4}, "qwen35": {**_GROUPS, "full_attention_interval": 4},
    "lfm2": {**_MIXED, "shortconv.l_cache": 3},
    "kimi-linear": {**_MLA, "attention.head_count_kv": [0, 1, 0, 1], "kda.head_dim": 32, "ssm.conv_kernel": 4},
    "rwkv7": {"wkv.head_size": 64, "attention.head_count": 0, "token_shift_count": 2},
    "rwkv6": {"wkv.head_size": 64, "attention.head_count": 0},
    "minimax-01": {"attention.head_count_kv": 8, "full_attention_interval": 4},
    "minimax-m3": {"attention.indexer.key_length": 32, "leading_dense_block_count": 1},
}  # fmt: skip
"""architecture -> keys that differ from `BASE`: small, and whole enough to be read."""


def metadata_of(architecture: str) -> dict[str, Any]:
    return {**BASE, **ARCHITECTURES[architecture]}


def write(path: Path, architecture: str, keys: dict[str, Any], *, big: bool = False, shards: int = 0) -> Path:
    """A file with those keys, a vocabulary, and a few tensors of several types."""
    order = gguf.GGUFEndian.BIG if big else gguf.GGUFEndian.LITTLE
    writer = gguf.GGUFWriter(path, architecture, endianess=order, split_max_tensors=shards)
    writer.add_name(f"Test {architecture}")
    writer.add_file_type(15)
    for key, value in keys.items():
        _add(writer, f"{architecture}.{key}", value)
    writer.add_token_list([f"token {i}" for i in range(300)])
    writer.add_token_scores([0.5] * 5000)
    rows = np.zeros((300, 256), dtype=np.float16)
    writer.add_tensor("token_embd.weight", rows)
    for layer in range(int(keys["block_count"])):
        writer.add_tensor(f"blk.{layer}.attn_norm.weight", np.zeros(256, dtype=np.float32))
        packed = gguf.quants.quantize(np.zeros((64, 256), dtype=np.float32), gguf.GGMLQuantizationType.Q8_0)
        writer.add_tensor(f"blk.{layer}.attn_q.weight", packed, raw_dtype=gguf.GGMLQuantizationType.Q8_0)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _add(writer: gguf.GGUFWriter, key: str, value: Any) -> None:
    if isinstance(value, list):
        writer.add_array(key, value)
    elif isinstance(value, bool):
        writer.add_bool(key, value)
    elif isinstance(value, int):
        writer.add_uint32(key, value)
    else:
        writer.add_float32(key, value)


def text(value: str, width: str = "Q") -> bytes:
    raw = value.encode()
    return struct.pack("<" + width, len(raw)) + raw


def raw_file(
    pairs: Iterable[bytes] = (), tensors: Iterable[bytes] = (), *, version: int = 3, keys: int | None = None,
    count: int | None = None, width: str = "Q", data: int = 0,
) -> bytes:  # fmt: skip
    """A header put together by hand: the counts may lie."""
    held, table = list(pairs), list(tensors)
    sizes = struct.pack("<" + 2 * width, len(table) if count is None else count, len(held) if keys is None else keys)
    head = b"GGUF" + struct.pack("<I", version) + sizes + b"".join(held) + b"".join(table)
    return head + bytes(-len(head) % 32 + data) if data else head


def string_pair(key: str, value: str, width: str = "Q") -> bytes:
    return text(key, width) + struct.pack("<I", 8) + text(value, width)


def number_pair(key: str, value: int, width: str = "Q") -> bytes:
    return text(key, width) + struct.pack("<II", 4, value)


def tensor(name: str, shape: tuple[int, ...], kind: int = 0, offset: int = 0) -> bytes:
    return text(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, kind, offset)

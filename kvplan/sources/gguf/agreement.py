"""Whether a file's metadata and its tensors tell of one model: llama.cpp loads nothing else.

Source: libllama 0.5.0 ``src/llama-model.cpp`` (``load_tensors``: each tensor with the shape that the keys give) and
``src/llama-model-loader.cpp`` (``get_key_or_arr``: an array has an entry per layer; ``done_getting_tensors``).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from kvplan.errors import printable
from kvplan.sources.gguf.header import Counted, TensorInfo
from kvplan.sources.gguf.keys import Keys
from kvplan.sources.gguf.mixers import Shape
from kvplan.spec.kind import CacheKind

LAYER = re.compile(r"blk\.([0-9]{1,4})\.")
_HINT = "the file is damaged, or its keys were edited"
_TOGETHER = ("full", "sliding", "chunked")
"""Kinds whose keys are `kv_heads` heads of `head_dim`."""


def check(
    keys: Keys, shape: Shape, tensors: Sequence[TensorInfo], metadata: Mapping[str, Any],
    mixers: Sequence[tuple[CacheKind, ...]],
) -> None:  # fmt: skip
    """Refuse a file whose keys and tensors contradict each other.

    Args:
        tensors: of all parts of the file; none: there is nothing to compare.
        mixers: what each layer caches, by the keys.

    Raises:
        SpecError: names the key and the tensor.
    """
    if not tensors:
        return
    by_name = {t.name: t for t in tensors}
    _layers(keys, shape, tensors)
    _embedding(keys, shape, by_name, metadata)
    for il, kinds in enumerate(mixers[: shape.layers]):
        _heads(keys, il, kinds, by_name)


def _layers(keys: Keys, shape: Shape, tensors: Sequence[TensorInfo]) -> None:
    there: dict[int, str] = {}
    for tensor in tensors:
        match = LAYER.match(tensor.name)
        if match:
            there.setdefault(int(match.group(1)), tensor.name)
    stored = keys.get("block_count", 0)
    missing = next((il for il in range(shape.trunk) if il not in there), None)
    if missing is not None:
        keys.fail(f"block_count is {stored}, and there is no tensor blk.{missing}.*", _HINT)
    beyond = next((name for il, name in sorted(there.items()) if il >= stored), None)
    if beyond is not None:
        keys.fail(f"block_count is {stored}, and there is a tensor {printable(beyond, 60)}", _HINT)


def _embedding(keys: Keys, shape: Shape, by_name: Mapping[str, TensorInfo], metadata: Mapping[str, Any]) -> None:
    table = by_name.get("token_embd.weight")
    if table is None or len(table.shape) != 2:
        return
    width, rows = table.shape
    if width != shape.hidden:
        keys.fail(f"embedding_length is {shape.hidden:,}, token_embd.weight has rows of {width:,}", _HINT)
    tokens = metadata.get("tokenizer.ggml.tokens")
    held = tokens.length if isinstance(tokens, Counted) else len(tokens) if isinstance(tokens, list) else None
    known = {n for n in (held, keys.get("vocab_size", 0) or None) if n}
    if known and rows not in known:
        said = " and ".join(f"{n:,}" for n in sorted(known))
        keys.fail(f"the vocabulary has {said} tokens, token_embd.weight {rows:,} rows", _HINT)


def _heads(keys: Keys, il: int, kinds: tuple[CacheKind, ...], by_name: Mapping[str, TensorInfo]) -> None:
    tensor = by_name.get(f"blk.{il}.attn_k.weight")
    kind: Any = next((k for k in kinds if k.kind in _TOGETHER), None)
    if kind is None or tensor is None or len(tensor.shape) != 2:
        return
    wide = kind.kv_heads * kind.head_dim
    if tensor.shape[1] != wide:
        keys.fail(
            f"attention.head_count_kv is {kind.kv_heads} of {kind.head_dim} in layer {il}, {tensor.name} has "
            f"{tensor.shape[1]:,} rows, not {wide:,}",
            _HINT,
        )

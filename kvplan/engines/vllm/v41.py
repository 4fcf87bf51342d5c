"""DeepSeek-V4.1's caches: a window in every layer, compressed entries and index keys in the layers that others read.

Sources: vLLM 0.30.0 to 0.33.0 ``vllm/models/deepseek_v41/attention.py``, ``compressor.py``, ``sparse_mla.py`` and
``nvidia/model.py`` (``_select_dsv4_attn_cls``).
"""

from __future__ import annotations

from math import lcm
from typing import TYPE_CHECKING

from kvplan.cache.bytes import stream_rows
from kvplan.engines.vllm.specs import CacheLayer
from kvplan.engines.vllm.versions import Rules
from kvplan.errors import UnsupportedError

if TYPE_CHECKING:
    from kvplan.engines.base import Settings
    from kvplan.engines.vllm.layers import Inputs
    from kvplan.spec.kind import CacheKind

WINDOW_BLOCK = 32
PLAIN_ROW, PLAIN_ALIGN = 584, 576
"""Bytes of an entry with its rotary part in bf16, and what pages are multiples of: every device but compute
capability 10."""
PACKED_ROW, PACKED_ALIGN = 528, 512
"""The same on compute capability 10: 512 values in fp8 and a scale of one byte for 32 of them."""
NVFP4_ROW = 288
"""A compressed entry under FlashMLA's fused kernel: 512 values of 4 bits and a scale of one byte for 16 of them."""
_GROUP = 8
"""Query heads of an output group on a rank, which the fused kernel needs."""
_RING = 8
"""The fewest rows of a compressor's ring."""


def block_size(capability: str) -> int:
    """Tokens of a block: what the sparse kernels and their indexer take."""
    return 64 if capability.startswith("9.") else 128


def given_block(settings: Settings, capability: str) -> int:
    """The block size of a deployment.

    Raises:
        UnsupportedError: one that the kernels do not take.
    """
    step, asked = block_size(capability), settings.block_size
    if "block_size" in settings.defaults or not asked:
        return step
    if asked % step:
        raise UnsupportedError(
            f"vLLM takes blocks of a multiple of {step} tokens here, not {asked}", where="--block-size",
            hint=f"type --block-size {max(step, asked // step * step)}",
        )  # fmt: skip
    return asked


def row_bytes(capability: str) -> int:
    """Bytes of an entry of the window."""
    return PACKED_ROW if capability.startswith("10.") else PLAIN_ROW


def entry_bytes(mixer: CacheKind, capability: str, rules: Rules) -> int:
    """Bytes of a compressed entry; `mixer` is as the rank holds it."""
    heads, groups = mixer.query_heads, mixer.o_groups  # type: ignore[attr-defined]
    fused = rules.has("v41_fused_attention") and groups and heads % _GROUP == 0 and heads // groups == _GROUP
    return NVFP4_ROW if fused and capability.startswith("10.") else row_bytes(capability)


def caches(mixer: CacheKind, inputs: Inputs) -> list[CacheLayer]:
    """The caches of one layer, in the order in which vLLM registers them."""
    capability = inputs.capability
    packed = capability.startswith("10.")
    align = PACKED_ALIGN if packed else PLAIN_ALIGN
    row, entry = row_bytes(capability), entry_bytes(mixer, capability, inputs.rules)
    stride = lcm(row, entry) if packed and inputs.rules.has("v41_record_strides") else 1
    found: list[CacheLayer] = []
    rows = {s.name: (s, size) for s, size, _ in stream_rows(mixer, inputs.formats)}
    if "compressed" in rows:
        ratio = rows["compressed"][0].ratio
        found.append(CacheLayer("mla", inputs.block_size, entry, ratio=ratio, shape=("compressed",), alignment=align))
        if "index" in rows:
            size = rows["index"][1]
            found.append(CacheLayer("mla", inputs.block_size, size, ratio=ratio, shape=("index",), alignment=align))
        if ratio > 1:
            rounds = max(_RING, 1 << (inputs.draft_tokens + 1).bit_length())
            head = rows["compressed"][0].head_dim
            found.append(CacheLayer("ring", rounds, 4 * 2 * head, shape=("compressor", head)))
    window = rows["window"][0].window
    found.append(
        CacheLayer("sliding_mla", WINDOW_BLOCK, row, window=window, shape=("window",), alignment=align, stride=stride)
    )
    return found

"""Attention that looks back over a bounded number of tokens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from kvplan.cache.attention import Attention
from kvplan.spec.kind import Stream


@dataclass(frozen=True, kw_only=True)
class SlidingAttention(Attention):
    """The last `window` tokens: ``min(tokens, window)`` entries of K and V.

    Source: Mistral 7B paper (arXiv 2310.06825), section 2.
    """

    reference: ClassVar[str] = "sliding window attention, arXiv 2310.06825, section 2"

    window: int
    kind: Literal["sliding"] = "sliding"

    def streams(self) -> tuple[Stream, ...]:
        return self.kv_streams(window=self.window)


@dataclass(frozen=True, kw_only=True)
class ChunkedAttention(Attention):
    """Local chunks of `window` tokens (Llama 4): at most one chunk is live.

    Source: transformers 5.24.0 ``models/llama4/configuration_llama4.py``, ``attention_chunk_size``.
    """

    reference: ClassVar[str] = "chunked attention, transformers 5.24.0 models/llama4/configuration_llama4.py"

    window: int
    kind: Literal["chunked"] = "chunked"

    def streams(self) -> tuple[Stream, ...]:
        return self.kv_streams(window=self.window, chunked=True)

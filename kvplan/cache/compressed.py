"""Compressed latent attention (DeepSeek-V4): a short window plus one entry per `ratio` tokens."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Literal

from kvplan.spec.kind import CacheKind, Read, Stream, Tensor, divide


@dataclass(frozen=True, kw_only=True)
class CompressedAttention(CacheKind):
    """One vector serves as K and V: `window` recent ones, and ``floor(tokens / ratio)`` compressed.

    Source: DeepSeek-V4 configuration (``compress_ratios``, one entry a layer) and its handling in
    llama.cpp (libllama 0.5.0) and vLLM 0.33.0 ``vllm/v1/kv_cache_interface.py``.
    """

    reference: ClassVar[str] = "compressed latent attention, DeepSeek-V4 configuration and vLLM 0.33.0"

    query_heads: int
    head_dim: int
    window: int
    ratio: int | None = None
    """Tokens per compressed entry that this layer stores; None: only the window is kept."""
    index_head_dim: int | None = None
    """Size of the index key stored beside each compressed entry."""
    index_heads: int | None = None
    index_topk: int | None = None
    q_lora_rank: int | None = None
    o_lora_rank: int | None = None
    o_groups: int | None = None
    compressor: bool = False
    """Whether the layer carries the weights that compress (a layer may read another's entries)."""
    kind: Literal["compressed"] = "compressed"

    def streams(self) -> tuple[Stream, ...]:
        found = [Stream("window", 1, self.head_dim, "k", self.window)]
        if self.ratio:
            found.append(Stream("compressed", 1, self.head_dim, "k", ratio=self.ratio))
            if self.index_head_dim:
                found.append(Stream("index", 1, self.index_head_dim, "index", ratio=self.ratio))
        return tuple(found)

    linear_kernels: ClassVar[int] = 5
    """Queries and entry down, queries up, the compressor, the output's two halves."""

    def reads(self) -> tuple[Read, ...]:
        """The window, and of the compressed entries at most `index_topk`; the indexer looks at every key."""
        both = 4 * self.query_heads * self.head_dim  # one vector serves as K and as V
        index = 2 * (self.index_heads or 1) * (self.index_head_dim or 0)
        found = []
        for stream in self.streams():
            flops = index if stream.role == "index" else both
            limit = self.index_topk if stream.name == "compressed" else None
            found.append(Read(stream, flops, flops, limit))
        return tuple(found)

    def tensors(self, hidden_size: int) -> tuple[Tensor, ...]:
        heads, dim = self.query_heads, self.head_dim
        found: list[Tensor] = []
        if self.q_lora_rank:
            found.append(Tensor("attn_q_a", "attention", (self.q_lora_rank, hidden_size)))
            found.append(Tensor("attn_q_a_norm", "norm", (self.q_lora_rank,)))
        found.append(Tensor("attn_q_b", "attention", (heads * dim, self.q_lora_rank or hidden_size)))
        found.append(Tensor("attn_kv", "attention", (dim, hidden_size)))
        found.append(Tensor("attn_kv_norm", "norm", (dim,)))
        if self.o_lora_rank and self.o_groups:
            group_in = heads * dim // self.o_groups
            found.append(Tensor("attn_output_a", "attention", (self.o_lora_rank, group_in), self.o_groups))
            found.append(Tensor("attn_output_b", "attention", (hidden_size, self.o_groups * self.o_lora_rank)))
        else:
            found.append(Tensor("attn_output", "attention", (hidden_size, heads * dim)))
        found.append(Tensor("attn_sinks", "norm", (heads,)))
        if self.compressor:
            # an entry and its gate are projected per token; overlapping windows double both
            overlap = 2 if self.index_head_dim else 1
            found.append(Tensor("compressor", "attention", (2 * overlap * dim, hidden_size)))
        if self.index_head_dim and self.index_heads:
            reads = self.q_lora_rank or hidden_size
            found.append(Tensor("indexer_q", "attention", (self.index_heads * self.index_head_dim, reads)))
            found.append(Tensor("indexer_weights", "attention", (self.index_heads, hidden_size)))
            if self.compressor:
                found.append(Tensor("indexer_compressor", "attention", (4 * self.index_head_dim, hidden_size)))
        return tuple(found)

    def shard(self, tp: int) -> CompressedAttention:
        """Query heads and output groups divided; every cache whole on every rank.

        Source: vLLM 0.33.0 ``vllm/models/deepseek_v4/attention.py``: heads per group are those of a rank over the
        groups of a rank.
        """
        heads = divide("query_heads", self.query_heads, tp)
        groups = divide("output groups", self.o_groups, tp) if self.o_groups else None
        return replace(self, query_heads=heads, o_groups=groups)

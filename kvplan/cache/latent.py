"""Multi-head latent attention (MLA), with the optional sparse-attention indexer (DSA)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Literal

from kvplan.spec.kind import CacheKind, Read, Stream, Tensor, divide


@dataclass(frozen=True, kw_only=True)
class LatentAttention(CacheKind):
    """One latent row of ``kv_lora_rank + qk_rope_head_dim`` elements a token, no V, one copy per rank.

    K and V are both rebuilt from the row, so nothing is multiplied by heads and nothing is divided
    by tensor parallelism. Sources: DeepSeek-V2 paper (arXiv 2405.04434), section 2.1; indexer:
    DeepSeek-V3.2 report, section 2.1; replication: vLLM 0.33.0 ``vllm/v1/kv_cache_interface.py``,
    ``MLAAttentionSpec`` (one KV head on every rank).
    """

    reference: ClassVar[str] = "multi-head latent attention, arXiv 2405.04434, section 2.1"
    may_be_zero: ClassVar[frozenset[str]] = frozenset({"qk_rope_head_dim"})

    query_heads: int
    kv_lora_rank: int
    qk_rope_head_dim: int
    qk_nope_head_dim: int
    v_head_dim: int
    q_lora_rank: int | None = None
    output_gate: bool = False
    """A full-rank projection gates the output (Kimi K3)."""
    index_head_dim: int | None = None
    """DSA: size of the index key this layer stores per token; None: it stores none."""
    index_heads: int | None = None
    index_topk: int | None = None
    """DSA: cached tokens that a query reads at most."""
    index_pool: int | None = None
    """DSA: tokens whose index keys are pooled into one before it is stored; None: each token's own is."""
    kind: Literal["mla"] = "mla"

    @property
    def row_dim(self) -> int:
        """Elements of the latent row: compressed KV beside the rotary key."""
        return self.kv_lora_rank + self.qk_rope_head_dim

    def streams(self) -> tuple[Stream, ...]:
        latent = Stream("latent", 1, self.row_dim, "k")
        if self.index_head_dim is None:
            return (latent,)
        return (latent, Stream("index", 1, self.index_head_dim, "index", ratio=self.index_pool or 1))

    linear_kernels: ClassVar[int] = 5
    """Queries and latent down, queries up, the two halves of kv_b around the attention, the output."""

    def reads(self) -> tuple[Read, ...]:
        """Decode works on the latent row itself (kv_b absorbed), prefill on K and V rebuilt from it.

        Source: DeepSeek-V2 paper (arXiv 2405.04434), section 2.1.2; at most `index_topk` rows with DSA
        (DeepSeek-V3.2 report, section 2.1), whose indexer looks at every key. Tokens that have more rows than that
        before them work on the row itself in prefill too: each reads rows of its own, and nothing is rebuilt for all.
        Source: vLLM 0.33.0 ``vllm/v1/attention/backends/mla/flashmla_sparse.py``, ``forward_mqa``, and
        ``vllm/model_executor/layers/attention/sparse_mla_attention.py``, ``_use_dense_mha_prefill``.
        """
        heads, qk = self.query_heads, self.qk_nope_head_dim + self.qk_rope_head_dim
        latent, *index = self.streams()
        absorbed, rebuilt = 2 * heads * (self.row_dim + self.kv_lora_rank), 2 * heads * (qk + self.v_head_dim)
        found = [Read(latent, absorbed, rebuilt, self.index_topk, absorbed if self.index_topk else None)]
        for stream in index:
            flops = 2 * (self.index_heads or 1) * stream.head_dim
            found.append(Read(stream, flops, flops))
        return tuple(found)

    def tensors(self, hidden_size: int) -> tuple[Tensor, ...]:
        heads, qk = self.query_heads, self.qk_nope_head_dim + self.qk_rope_head_dim
        found: list[Tensor] = []
        if self.q_lora_rank:
            found.append(Tensor("attn_q_a", "attention", (self.q_lora_rank, hidden_size)))
            found.append(Tensor("attn_q_a_norm", "norm", (self.q_lora_rank,)))
            found.append(Tensor("attn_q_b", "attention", (heads * qk, self.q_lora_rank)))
        else:
            found.append(Tensor("attn_q", "attention", (heads * qk, hidden_size)))
        found.append(Tensor("attn_kv_a_mqa", "attention", (self.row_dim, hidden_size)))
        found.append(Tensor("attn_kv_a_norm", "norm", (self.kv_lora_rank,)))
        kv_out = heads * (self.qk_nope_head_dim + self.v_head_dim)
        found.append(Tensor("attn_kv_b", "attention", (kv_out, self.kv_lora_rank)))
        found.append(Tensor("attn_output", "attention", (hidden_size, heads * self.v_head_dim)))
        if self.output_gate:
            found.append(Tensor("attn_gate", "attention", (heads * self.v_head_dim, hidden_size)))
        if self.index_head_dim and self.index_heads:
            reads = self.q_lora_rank or hidden_size
            found.append(Tensor("indexer_q", "attention", (self.index_heads * self.index_head_dim, reads)))
            found.append(Tensor("indexer_k", "attention", (self.index_head_dim, hidden_size)))
            found.append(Tensor("indexer_weights", "attention", (self.index_heads, hidden_size)))
            found.append(Tensor("indexer_norm", "norm", (2 * self.index_head_dim,)))
        return tuple(found)

    def as_mha(self) -> CacheKind:
        """K and V rebuilt for every query head and cached as such."""
        from kvplan.cache.attention import FullAttention

        qk = self.qk_nope_head_dim + self.qk_rope_head_dim
        heads = self.query_heads
        return FullAttention(query_heads=heads, kv_heads=heads, head_dim=qk, head_dim_v=self.v_head_dim)

    def shard(self, tp: int) -> LatentAttention:
        """Query heads divided; the latent row and the index key whole on every rank."""
        return replace(self, query_heads=divide("query_heads", self.query_heads, tp))

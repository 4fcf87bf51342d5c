"""Full attention: MHA, MQA and GQA are one kind, told apart by the number of KV heads."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Literal, TypeVar

from kvplan.spec.kind import CacheKind, Read, Stream, Tensor, divide

A = TypeVar("A", bound="Attention")


@dataclass(frozen=True, kw_only=True, repr=False)
class Attention(CacheKind):
    """Heads, head sizes and projections shared by every softmax attention over K and V.

    Bytes of one sequence in one layer: ``kv_heads x (head_dim + head_dim_v) x entries x bytes``.
    Source: GQA paper (arXiv 2305.13245), section 2.
    """

    reference: ClassVar[str] = "grouped-query attention, arXiv 2305.13245, section 2"

    query_heads: int
    kv_heads: int
    """1 is MQA, `query_heads` is MHA, between them GQA."""
    head_dim: int
    """Elements of one key vector (and one value vector, unless `head_dim_v` says otherwise)."""
    head_dim_v: int | None = None
    query_dim: int | None = None
    """Width of the attention output where it is not query_heads x head_dim_v."""
    input_size: int | None = None
    """Width of what the projections read, where it is not the hidden size."""
    q_lora_rank: int | None = None
    """Queries go through a projection this narrow, with a norm (Step-3)."""
    qkv_bias: bool = False
    output_bias: bool = False
    qk_norm: Literal["head", "heads", "full"] | None = None
    """A norm over each q and k head (one vector), per head (a vector each), or over all heads."""
    output_gate: bool = False
    """The query projection is twice as wide: its second half gates the output."""
    gate_per_head: bool = False
    """A separate projection gives one gate value per query head."""
    shared_kv_projection: bool = False
    """V is projected by K's weights (the cache still holds both)."""
    sinks: bool = False
    """A learned logit per head; no cache."""
    index_head_dim: int | None = None
    """Sparse attention over K and V: one index key of this size per token besides."""
    index_heads: int | None = None
    index_topk: int | None = None
    """Entries that a query reads of K and V at most; the indexer looks at every key."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.query_heads % self.kv_heads:
            raise ValueError(f"query_heads ({self.query_heads}) is not a multiple of kv_heads ({self.kv_heads})")

    @property
    def dim_v(self) -> int:
        return self.head_dim if self.head_dim_v is None else self.head_dim_v

    def streams(self) -> tuple[Stream, ...]:
        return self.kv_streams()

    def kv_streams(
        self, *, window: int | None = None, fixed_entries: int | None = None, chunked: bool = False
    ) -> tuple[Stream, ...]:
        """K and V (and the index key), all holding the same entries."""
        k = Stream("k", self.kv_heads, self.head_dim, "k", window, 1, fixed_entries, chunked)
        v = Stream("v", self.kv_heads, self.dim_v, "v", window, 1, fixed_entries, chunked)
        if self.index_head_dim is None:
            return (k, v)
        return (k, v, Stream("index", 1, self.index_head_dim, "index", window, 1, fixed_entries, chunked))

    def reads(self) -> tuple[Read, ...]:
        return self.kv_reads(self.streams())

    def kv_reads(self, streams: tuple[Stream, ...]) -> tuple[Read, ...]:
        """Every query head meets every entry, or the `index_topk` that the indexer picks: a product with K, a product
        with V, the indexer's product."""
        heads = {"index": self.index_heads or 1}
        flops = [2 * heads.get(s.role, self.query_heads) * s.head_dim for s in streams]
        limits = {"index": None}
        return tuple(
            Read(s, each, each, limits.get(s.role, self.index_topk)) for s, each in zip(streams, flops, strict=True)
        )

    def tensors(self, hidden_size: int) -> tuple[Tensor, ...]:
        return self.projections(hidden_size)

    def projections(self, hidden_size: int, *, own_kv: bool = True) -> tuple[Tensor, ...]:
        """q, k, v and output projections with their biases and norms."""
        width = self.input_size or hidden_size
        q_out = self.query_heads * self.head_dim * (2 if self.output_gate else 1)
        k_out, v_out = self.kv_heads * self.head_dim, self.kv_heads * self.dim_v
        o_in = self.query_dim or self.query_heads * self.dim_v
        found = [Tensor("attn_q", "attention", (q_out, self.q_lora_rank or width))]
        if self.q_lora_rank:
            found.append(Tensor("attn_q_a", "attention", (self.q_lora_rank, width)))
            found.append(Tensor("attn_q_a_norm", "norm", (self.q_lora_rank,)))
        if own_kv:
            found.append(Tensor("attn_k", "attention", (k_out, width)))
            if not self.shared_kv_projection:
                found.append(Tensor("attn_v", "attention", (v_out, width)))
        found.append(Tensor("attn_output", "attention", (hidden_size, o_in)))
        if self.gate_per_head:
            found.append(Tensor("attn_gate", "attention", (self.query_heads, width)))
        if self.qkv_bias:
            found.append(Tensor("attn_qkv_bias", "norm", (q_out + ((k_out + v_out) if own_kv else 0),)))
        if self.output_bias:
            found.append(Tensor("attn_output_bias", "norm", (hidden_size,)))
        if self.qk_norm:
            found.append(Tensor("attn_qk_norm", "norm", (self._qk_norm_size(own_kv),)))
        if self.sinks:
            found.append(Tensor("attn_sinks", "norm", (self.query_heads,)))
        if self.index_head_dim:
            heads = self.index_heads or 1
            found.append(Tensor("indexer_q", "attention", (heads * self.index_head_dim, hidden_size)))
            found.append(Tensor("indexer_k", "attention", (self.index_head_dim, hidden_size)))
            found.append(Tensor("indexer_norm", "norm", (2 * self.index_head_dim,)))
        return tuple(found)

    def _qk_norm_size(self, own_kv: bool) -> int:
        if self.qk_norm == "head":
            return self.head_dim * (2 if own_kv else 1)
        heads = self.query_heads + (self.kv_heads if own_kv else 0)
        return heads * self.head_dim

    def as_mha(self: A) -> A:
        return replace(self, kv_heads=self.query_heads)

    def as_mqa(self: A) -> A:
        return replace(self, kv_heads=1)

    def shard(self: A, tp: int) -> A:
        """Query heads divided; KV heads divided, or one whole head per rank once `tp` exceeds them.

        Source: vLLM 0.33.0 ``vllm/config/model.py`` ``get_num_kv_heads``.
        """
        query = divide("query_heads", self.query_heads, tp)
        if self.kv_heads >= tp:
            kv = divide("kv_heads", self.kv_heads, tp)
        elif tp % self.kv_heads:
            raise ValueError(f"kv_heads ({self.kv_heads}) neither divides nor is divided by tensor parallel size {tp}")
        else:
            kv = 1
        query_dim = divide("attention output width", self.query_dim, tp) if self.query_dim else None
        return replace(self, query_heads=query, kv_heads=kv, query_dim=query_dim)


@dataclass(frozen=True, kw_only=True, repr=False)
class FullAttention(Attention):
    """Every token stays: ``2 x kv_heads x head_dim`` elements a token."""

    nominal_window: int | None = None
    """A window longer than any context of the model: it bounds nothing, and an engine may page such layers by it."""
    kind: Literal["full"] = "full"

"""Lightning linear attention (MiniMax-Text-01)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Literal

from kvplan.spec.kind import CacheKind, State, Tensor, divide


@dataclass(frozen=True, kw_only=True)
class LightningAttention(CacheKind):
    """A ``head_dim x head_dim`` matrix per head, no convolution.

    Source: MiniMax-01 report (arXiv 2501.08313); vLLM 0.20.0
    ``vllm/model_executor/layers/mamba/mamba_utils.py``, ``linear_attention_state_shape``.
    """

    heads: int
    head_dim: int
    reference: ClassVar[str] = "lightning attention, arXiv 2501.08313"
    kind: Literal["lightning"] = "lightning"

    def states(self) -> tuple[State, ...]:
        return (State("recurrent", self.heads * self.head_dim, self.head_dim),)

    def tensors(self, hidden_size: int) -> tuple[Tensor, ...]:
        width = self.heads * self.head_dim
        return (
            Tensor("attn_qkv", "attention", (3 * width, hidden_size)),
            Tensor("attn_gate", "attention", (width, hidden_size)),
            Tensor("attn_norm_inner", "norm", (width,)),
            Tensor("attn_output", "attention", (hidden_size, width)),
        )

    def shard(self, tp: int) -> LightningAttention:
        return replace(self, heads=divide("linear heads", self.heads, tp))

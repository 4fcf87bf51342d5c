"""Matrix memory of an LSTM (xLSTM)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Literal

from kvplan.spec.kind import CacheKind, State, Tensor, divide


@dataclass(frozen=True, kw_only=True)
class Mlstm(CacheKind):
    """Per head a ``qk_head_dim x v_head_dim`` matrix, the sum of keys that normalises it, and the largest gate.

    Source: xLSTM paper (arXiv 2405.04517), section 2.3; transformers 5.24.0
    ``models/xlstm/modeling_xlstm.py``, ``xLSTMCache``.
    """

    heads: int
    qk_head_dim: int
    v_head_dim: int
    reference: ClassVar[str] = "mLSTM, arXiv 2405.04517"
    kind: Literal["mlstm"] = "mlstm"

    def states(self) -> tuple[State, ...]:
        return (State("recurrent", self.heads * (self.qk_head_dim * (self.v_head_dim + 1) + 1), 1),)

    def tensors(self, hidden_size: int) -> tuple[Tensor, ...]:
        qk, v = self.heads * self.qk_head_dim, self.heads * self.v_head_dim
        return (
            Tensor("attn_qkv", "attention", (2 * qk + v, hidden_size)),
            Tensor("attn_gate", "attention", (v, hidden_size)),
            Tensor("mlstm_gates", "attention", (2 * self.heads, hidden_size)),
            Tensor("mlstm_gates_bias", "norm", (2 * self.heads,)),
            Tensor("attn_norm_inner", "norm", (v,)),
            Tensor("attn_output", "attention", (hidden_size, v)),
        )

    def shard(self, tp: int) -> Mlstm:
        return replace(self, heads=divide("linear heads", self.heads, tp))

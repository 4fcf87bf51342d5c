"""Linear attention by the delta rule: gated delta net and Kimi delta attention."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Literal

from kvplan.spec.kind import CacheKind, State, Tensor, divide


@dataclass(frozen=True, kw_only=True)
class GatedDeltaNet(CacheKind):
    """A ``value_head_dim x key_head_dim`` matrix per value head; a convolution over q, k and v.

    Source: Gated DeltaNet paper (arXiv 2412.06464); vLLM 0.33.0
    ``vllm/model_executor/layers/mamba/mamba_utils.py``, ``gated_delta_net_state_shape``.
    """

    key_heads: int
    value_heads: int
    key_head_dim: int
    value_head_dim: int
    conv_kernel: int
    reference: ClassVar[str] = "gated delta net, arXiv 2412.06464"
    kind: Literal["gated_delta_net"] = "gated_delta_net"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.value_heads % self.key_heads:
            raise ValueError(f"value_heads ({self.value_heads}) is not a multiple of key_heads ({self.key_heads})")

    @property
    def conv_channels(self) -> int:
        return 2 * self.key_heads * self.key_head_dim + self.value_heads * self.value_head_dim

    def states(self) -> tuple[State, ...]:
        return (
            State("conv", self.conv_channels, self.conv_kernel - 1),
            State("recurrent", self.value_heads * self.value_head_dim, self.key_head_dim),
        )

    @property
    def state_products(self) -> int:
        """Decay, a readout by the key, whose error is what the rank-one update adds, and the readout by the query.

        Source: vLLM 0.33.0 ``vllm/third_party/flash_linear_attention/ops/fused_recurrent.py``.
        """
        return 4

    def tensors(self, hidden_size: int) -> tuple[Tensor, ...]:
        value = self.value_heads * self.value_head_dim
        return (
            Tensor("attn_qkv", "attention", (self.conv_channels, hidden_size)),
            Tensor("attn_gate", "attention", (value, hidden_size)),
            Tensor("ssm_beta_alpha", "attention", (2 * self.value_heads, hidden_size)),
            Tensor("ssm_conv1d", "norm", (self.conv_channels, self.conv_kernel)),
            Tensor("ssm_a_dt_bias", "norm", (self.value_heads, 2)),
            Tensor("ssm_norm", "norm", (self.value_head_dim,)),
            Tensor("ssm_out", "attention", (hidden_size, value)),
        )

    def shard(self, tp: int) -> GatedDeltaNet:
        return replace(
            self,
            key_heads=divide("linear key heads", self.key_heads, tp),
            value_heads=divide("linear value heads", self.value_heads, tp),
        )


@dataclass(frozen=True, kw_only=True)
class KimiDeltaAttention(CacheKind):
    """A ``head_dim x head_dim`` matrix per head; three convolutions (q, k, v).

    Source: Kimi Linear report (arXiv 2510.26692); vLLM 0.33.0
    ``vllm/model_executor/layers/mamba/mamba_utils.py``, ``kda_state_shape``.
    """

    heads: int
    head_dim: int
    conv_kernel: int
    full_rank_gate: bool = False
    """The output gate is one square projection instead of a low-rank pair."""
    full_rank_decay: bool = False
    """So is the decay."""
    reference: ClassVar[str] = "Kimi delta attention, arXiv 2510.26692"
    kind: Literal["kda"] = "kda"

    @property
    def width(self) -> int:
        return self.heads * self.head_dim

    def states(self) -> tuple[State, ...]:
        return (
            State("conv", 3 * self.width, self.conv_kernel - 1),
            State("recurrent", self.width, self.head_dim),
        )

    @property
    def state_products(self) -> int:
        """As for `GatedDeltaNet`; the decay is a vector."""
        return 4

    def tensors(self, hidden_size: int) -> tuple[Tensor, ...]:
        width, dim = self.width, self.head_dim
        found = [
            Tensor("attn_q", "attention", (width, hidden_size)),
            Tensor("attn_k", "attention", (width, hidden_size)),
            Tensor("attn_v", "attention", (width, hidden_size)),
            Tensor("ssm_conv1d", "norm", (3 * width, self.conv_kernel)),
            Tensor("ssm_beta", "attention", (self.heads, hidden_size)),
            Tensor("ssm_a_dt_bias", "norm", (self.heads + width,)),
            Tensor("ssm_norm", "norm", (dim,)),
            Tensor("attn_output", "attention", (hidden_size, width)),
        ]
        for name, whole in (("ssm_f", self.full_rank_decay), ("ssm_g", self.full_rank_gate)):
            if whole:
                found.append(Tensor(name, "attention", (width, hidden_size)))
            else:
                found.append(Tensor(f"{name}_a", "attention", (dim, hidden_size)))
                found.append(Tensor(f"{name}_b", "attention", (width, dim)))
        return tuple(found)

    def shard(self, tp: int) -> KimiDeltaAttention:
        return replace(self, heads=divide("linear heads", self.heads, tp))

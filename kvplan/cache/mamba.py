"""Selective state-space layers: Mamba 1 and Mamba 2."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Literal

from kvplan.spec.kind import CacheKind, State, Tensor, divide


@dataclass(frozen=True, kw_only=True)
class Mamba1(CacheKind):
    """State of ``inner x state`` elements and a convolution over `inner` channels.

    Source: Mamba paper (arXiv 2312.00752); vLLM 0.33.0
    ``vllm/model_executor/layers/mamba/mamba_utils.py``, ``mamba1_state_shape``.
    """

    inner_size: int
    state_size: int
    conv_kernel: int
    dt_rank: int
    decay_heads: int | None = None
    """Decay, skip and time step per head of ``inner_size / decay_heads`` channels; None: per channel."""
    bias: bool = False
    conv_bias: bool = True
    norms: bool = False
    """Norms with weights on the time step, B and C."""
    reference: ClassVar[str] = "selective state space, arXiv 2312.00752"
    kind: Literal["mamba1"] = "mamba1"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.decay_heads and self.inner_size % self.decay_heads:
            raise ValueError(f"decay_heads ({self.decay_heads}) do not divide inner_size ({self.inner_size})")

    def states(self) -> tuple[State, ...]:
        return (
            State("conv", self.inner_size, self.conv_kernel - 1),
            State("recurrent", self.inner_size, self.state_size),
        )

    def tensors(self, hidden_size: int) -> tuple[Tensor, ...]:
        inner, state, rank = self.inner_size, self.state_size, self.dt_rank
        decays = (self.decay_heads, 3) if self.decay_heads else (inner, state + 2)
        found = [
            Tensor("ssm_in", "attention", (2 * inner, hidden_size)),
            Tensor("ssm_conv1d", "norm", (inner, self.conv_kernel + int(self.conv_bias))),
            Tensor("ssm_x", "attention", (rank + 2 * state, inner)),
            Tensor("ssm_dt", "attention", (self.decay_heads or inner, rank)),
            Tensor("ssm_a_d_dt_bias", "norm", decays),
            Tensor("ssm_out", "attention", (hidden_size, inner)),
        ]
        if self.norms:
            found.append(Tensor("ssm_norm", "norm", (rank + 2 * state,)))
        if self.bias:
            found.append(Tensor("ssm_bias", "norm", (2 * inner + hidden_size,)))
        return tuple(found)

    def shard(self, tp: int) -> Mamba1:
        heads = divide("mamba heads", self.decay_heads, tp) if self.decay_heads else None
        return replace(self, inner_size=divide("mamba inner size", self.inner_size, tp), decay_heads=heads)


@dataclass(frozen=True, kw_only=True)
class Mamba2(CacheKind):
    """State of ``heads x head_dim x state`` elements; a convolution over x, B and C.

    Source: Mamba-2 paper (arXiv 2405.21060); vLLM 0.33.0
    ``vllm/model_executor/layers/mamba/mamba_utils.py``, ``mamba2_state_shape`` and
    ``extra_groups_for_head_shards``.
    """

    heads: int
    head_dim: int
    state_size: int
    groups: int
    conv_kernel: int
    bias: bool = False
    """Of the input projection, and of the output projection unless `output_bias` says otherwise."""
    output_bias: bool | None = None
    conv_bias: bool = True
    norm: bool = True
    """A gated RMS norm over the inner width."""
    chunk_size: int | None = None
    """Tokens that the kernel scans at once; it changes no bytes, but some engines keep states at its multiples."""
    reference: ClassVar[str] = "state space duality, arXiv 2405.21060"
    kind: Literal["mamba2"] = "mamba2"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.heads % self.groups:
            raise ValueError(f"mamba heads ({self.heads}) are not a multiple of groups ({self.groups})")

    @property
    def inner_size(self) -> int:
        return self.heads * self.head_dim

    @property
    def conv_channels(self) -> int:
        return self.inner_size + 2 * self.groups * self.state_size

    def states(self) -> tuple[State, ...]:
        return (
            State("conv", self.conv_channels, self.conv_kernel - 1),
            State("recurrent", self.inner_size, self.state_size),
        )

    def tensors(self, hidden_size: int) -> tuple[Tensor, ...]:
        inner, projected = self.inner_size, self.inner_size + self.conv_channels + self.heads
        found = [
            Tensor("ssm_in", "attention", (projected, hidden_size)),
            Tensor("ssm_conv1d", "norm", (self.conv_channels, self.conv_kernel + int(self.conv_bias))),
            Tensor("ssm_a_d_dt_bias", "norm", (self.heads, 3)),
            Tensor("ssm_out", "attention", (hidden_size, inner)),
        ]
        if self.norm:
            found.append(Tensor("ssm_norm", "norm", (inner,)))
        if self.bias:
            found.append(Tensor("ssm_in_bias", "norm", (projected,)))
        if self.bias if self.output_bias is None else self.output_bias:
            found.append(Tensor("ssm_out_bias", "norm", (hidden_size,)))
        return tuple(found)

    def shard(self, tp: int) -> Mamba2:
        """Heads divided; groups too, or one group a rank where they do not divide."""
        groups = self.groups // tp if self.groups % tp == 0 else 1
        return replace(self, heads=divide("mamba heads", self.heads, tp), groups=groups)

"""Gated short convolution (LFM2)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Literal

from kvplan.spec.kind import CacheKind, State, Tensor, divide


@dataclass(frozen=True, kw_only=True)
class ShortConv(CacheKind):
    """The last ``conv_kernel - 1`` columns of `channels` channels.

    Source: transformers 5.24.0 ``models/lfm2/modeling_lfm2.py``, ``Lfm2ShortConv``.
    """

    channels: int
    conv_kernel: int
    bias: bool = False
    """Of both projections and of the convolution."""
    reference: ClassVar[str] = "short convolution, transformers 5.24.0 models/lfm2/modeling_lfm2.py"
    kind: Literal["short_conv"] = "short_conv"

    def states(self) -> tuple[State, ...]:
        return (State("conv", self.channels, self.conv_kernel - 1),)

    def tensors(self, hidden_size: int) -> tuple[Tensor, ...]:
        found = (
            Tensor("shortconv_in", "attention", (3 * self.channels, hidden_size)),
            Tensor("shortconv_conv", "norm", (self.channels, self.conv_kernel)),
            Tensor("shortconv_out", "attention", (hidden_size, self.channels)),
        )
        if not self.bias:
            return found
        return (*found, Tensor("shortconv_bias", "norm", (4 * self.channels + hidden_size,)))

    def shard(self, tp: int) -> ShortConv:
        return replace(self, channels=divide("convolution channels", self.channels, tp))

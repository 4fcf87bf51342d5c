"""Real-gated linear recurrent unit (RecurrentGemma / Griffin)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Literal

from kvplan.spec.kind import CacheKind, State, Tensor, divide


@dataclass(frozen=True, kw_only=True)
class RgLru(CacheKind):
    """One value per channel and a short convolution over the channels.

    Source: Griffin paper (arXiv 2402.19427); transformers 5.24.0
    ``models/recurrent_gemma/modeling_recurrent_gemma.py``.
    """

    width: int
    heads: int
    """Blocks of the two gate matrices."""
    conv_kernel: int
    reference: ClassVar[str] = "RG-LRU, arXiv 2402.19427"
    kind: Literal["rg_lru"] = "rg_lru"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.width % self.heads:
            raise ValueError(f"heads ({self.heads}) do not divide the recurrent width ({self.width})")

    def states(self) -> tuple[State, ...]:
        return (State("conv", self.width, self.conv_kernel - 1), State("recurrent", self.width, 1))

    def tensors(self, hidden_size: int) -> tuple[Tensor, ...]:
        block = self.width // self.heads
        return (
            Tensor("linear_x_y", "attention", (2 * self.width, hidden_size)),
            Tensor("conv1d", "norm", (self.width, self.conv_kernel + 1)),
            Tensor("rg_lru_gates", "attention", (block, block), 2 * self.heads),
            Tensor("rg_lru_vectors", "norm", (5, self.width)),
            Tensor("linear_out", "attention", (hidden_size, self.width)),
            Tensor("linear_out_bias", "norm", (hidden_size,)),
        )

    def shard(self, tp: int) -> RgLru:
        return replace(
            self, width=divide("recurrent width", self.width, tp), heads=divide("gate blocks", self.heads, tp)
        )

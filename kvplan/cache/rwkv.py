"""RWKV time mixing and channel mixing (versions 5, 6 and 7)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Literal

from kvplan.spec.kind import CacheKind, State, Tensor, divide

VECTORS = {5: 8, 6: 10, 7: 14}
"""Vectors of time mixing by version: token mixing (4, 6, 6), decay, bonus and the like (2, 2, 6), norm (2)."""


@dataclass(frozen=True, kw_only=True)
class Rwkv(CacheKind):
    """A ``head_dim x head_dim`` matrix per head and the previous token of each mixing half.

    Source: RWKV-5/6 paper (arXiv 2404.05892), RWKV-7 paper (arXiv 2503.14456); weights: RWKV-LM.
    """

    heads: int
    head_dim: int
    token_shifts: int = 2
    """Hidden vectors of the previous token that are kept (time mixing and channel mixing)."""
    hidden_size: int
    """Width of a kept hidden vector (not divided by tensor parallelism)."""
    version: Literal[5, 6, 7]
    low_rank: int = 0
    """Total rank of the small data-dependent projections (decay, gate, mixing)."""
    may_be_zero: ClassVar[frozenset[str]] = frozenset({"low_rank"})
    reference: ClassVar[str] = "RWKV, arXiv 2404.05892 and 2503.14456"
    kind: Literal["rwkv"] = "rwkv"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.version not in VECTORS:
            raise ValueError(f"no RWKV version {self.version}; known: {', '.join(map(str, VECTORS))}")

    def states(self) -> tuple[State, ...]:
        return (
            State("shift", self.hidden_size, self.token_shifts),
            State("recurrent", self.heads * self.head_dim, self.head_dim),
        )

    @property
    def state_products(self) -> int:
        """Version 7 multiplies the state by a diagonal and a rank-one matrix: a readout and an update more.

        Source: RWKV-7 paper (arXiv 2503.14456), the evolution of its state.
        """
        return 5 if self.version == 7 else 3

    def tensors(self, hidden_size: int) -> tuple[Tensor, ...]:
        width = self.heads * self.head_dim
        square = 4 if self.version == 7 else 5  # receptance, key, value, output; a gate before version 7
        found = [Tensor("time_mix", "attention", (width, hidden_size), square)]
        if self.low_rank:
            found.append(Tensor("time_mix_lora", "attention", (self.low_rank, 2 * hidden_size)))
        return (*found, Tensor("time_mix_vectors", "norm", (VECTORS[self.version], width)))

    def shard(self, tp: int) -> Rwkv:
        return replace(self, heads=divide("heads", self.heads, tp))

"""A layer without any cache."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from kvplan.spec.kind import CacheKind, Tensor


@dataclass(frozen=True, kw_only=True)
class NoCache(CacheKind):
    """No token mixing, or a plain linear layer in attention's place (Nemotron-NAS)."""

    linear: bool = False
    kind: Literal["none"] = "none"

    linear_kernels: ClassVar[int] = 0

    def tensors(self, hidden_size: int) -> tuple[Tensor, ...]:
        return (Tensor("attn_linear", "attention", (hidden_size, hidden_size)),) if self.linear else ()

    def shard(self, tp: int) -> NoCache:
        return self

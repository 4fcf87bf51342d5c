"""A layer that reads the cache of an earlier layer and keeps none of its own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from kvplan.cache.attention import Attention
from kvplan.spec.kind import Read, Stream, Tensor


@dataclass(frozen=True, kw_only=True)
class SharedAttention(Attention):
    """Attention over the K and V of the last earlier layer built from block `source`.

    Source: transformers 5.24.0 ``models/gemma3n/modeling_gemma3n.py``, ``num_kv_shared_layers``.
    """

    source: str
    """Name of the block whose cache is read."""
    window: int | None = None
    """The window of the layer that is read, if it slides."""
    own_kv_weights: bool = True
    """Whether the checkpoint still carries this layer's k and v projections."""
    reference: ClassVar[str] = "shared cache, transformers 5.24.0 models/gemma3n/modeling_gemma3n.py"
    kind: Literal["shared"] = "shared"

    def streams(self) -> tuple[Stream, ...]:
        return ()

    def reads(self) -> tuple[Read, ...]:
        """The streams of the layer whose cache is read, through its window."""
        return self.kv_reads(self.kv_streams(window=self.window))

    def tensors(self, hidden_size: int) -> tuple[Tensor, ...]:
        return self.projections(hidden_size, own_kv=self.own_kv_weights)

"""Cross attention over the output of an encoder."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from kvplan.cache.attention import Attention
from kvplan.spec.kind import Stream, Tensor


@dataclass(frozen=True, kw_only=True)
class CrossAttention(Attention):
    """K and V of `encoder_tokens` encoder positions: fixed per sequence, whatever the text length.

    Source: transformers 5.24.0 ``models/whisper/modeling_whisper.py`` and
    ``models/mllama/modeling_mllama.py`` (cross-attention layers cache the image tokens).
    """

    reference: ClassVar[str] = "cross attention, transformers 5.24.0 models/whisper/modeling_whisper.py"

    encoder_tokens: int
    gated: bool = False
    """Two learned gates and q/k norms around the block (Llama 3.2 Vision)."""
    kind: Literal["cross"] = "cross"

    def streams(self) -> tuple[Stream, ...]:
        return self.kv_streams(fixed_entries=self.encoder_tokens)

    def tensors(self, hidden_size: int) -> tuple[Tensor, ...]:
        found = self.projections(hidden_size)
        return (*found, Tensor("cross_gates", "norm", (2,))) if self.gated else found

    def step_tensors(self, hidden_size: int) -> tuple[Tensor, ...]:
        """Without the projections of K and V, which an encoder's output goes through once."""
        return tuple(t for t in self.tensors(hidden_size) if t.name not in ("attn_k", "attn_v"))

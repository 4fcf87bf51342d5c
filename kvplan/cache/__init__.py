"""The cache kinds: one small class each, found by the ``kind`` a spec names.

A kind is imported when a spec first uses it, so a plan for a plain model loads one module.
To add a kind: write its class here and add a line to `KINDS`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kvplan.spec.kind import CacheKind

KINDS: dict[str, tuple[str, str]] = {
    "full": ("attention", "FullAttention"),
    "sliding": ("sliding", "SlidingAttention"),
    "chunked": ("sliding", "ChunkedAttention"),
    "cross": ("cross", "CrossAttention"),
    "shared": ("shared", "SharedAttention"),
    "mla": ("latent", "LatentAttention"),
    "compressed": ("compressed", "CompressedAttention"),
    "mamba1": ("mamba", "Mamba1"),
    "mamba2": ("mamba", "Mamba2"),
    "gated_delta_net": ("delta", "GatedDeltaNet"),
    "kda": ("delta", "KimiDeltaAttention"),
    "lightning": ("lightning", "LightningAttention"),
    "mlstm": ("mlstm", "Mlstm"),
    "short_conv": ("short_conv", "ShortConv"),
    "rwkv": ("rwkv", "Rwkv"),
    "rg_lru": ("rg_lru", "RgLru"),
    "none": ("none", "NoCache"),
}
"""kind -> (module in this package, class)."""


def kind_class(kind: str) -> type[CacheKind]:
    """The class of a kind.

    Raises:
        ValueError: no such kind; lists those that exist.
    """
    try:
        module, name = KINDS[kind]
    except KeyError:
        raise ValueError(f"unknown cache kind {kind!r}; known: {', '.join(KINDS)}") from None
    found: type[CacheKind] = getattr(import_module(f"kvplan.cache.{module}"), name)
    return found

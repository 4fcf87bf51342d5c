"""Which parts of a block read a cache in a decode step, as the kernels take them, and how many entries each reads."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from kvplan.planning.speed import work as of
from kvplan.probe.kernels.store import HeadShape

if TYPE_CHECKING:
    from kvplan.planning.speed.work import StageWork
    from kvplan.spec.kind import CacheKind, Read
    from kvplan.spec.model import ModelSpec

_STREAMS = ("k", "v", "latent")
"""What the kernels read; index keys and compressed entries they do not."""


class Reader(NamedTuple):
    """One attention of a layer."""

    mixer: int
    """Which of the layer's mixers it is."""
    head: HeadShape
    kind: CacheKind

    @property
    def fixed(self) -> bool:
        """Whether what it reads does not grow with the context."""
        return any(read.stream.fixed_entries is not None for read in _served(self.kind))

    def entries(self, context: int) -> int:
        """Entries that it reads of a sequence of `context` tokens: a window's, an encoder's, the best of an index."""
        return max(int(read.entries(context)) for read in _served(self.kind))


def readers(spec: ModelSpec, name: str) -> list[Reader]:
    """Every attention of a block over a cache, its own or an earlier layer's."""
    found = ((index, head_shape(mixer), mixer) for index, mixer in enumerate(spec.blocks[name].mixers))
    return [Reader(index, head, mixer) for index, head, mixer in found if head is not None]


def head_shape(mixer: CacheKind) -> HeadShape | None:
    """The attention of a mixer as the kernels take it; None: it reads no K and V or latent rows."""
    heads, streams = getattr(mixer, "query_heads", None), {r.stream.name: r.stream for r in mixer.reads()}
    if heads is None:
        return None
    if "latent" in streams:
        rank, rope = getattr(mixer, "kv_lora_rank", 0), getattr(mixer, "qk_rope_head_dim", 0)
        score = getattr(mixer, "qk_nope_head_dim", 0) + rope
        return HeadShape(heads, 1, streams["latent"].head_dim, rank, True, score)
    if "k" in streams and "v" in streams and streams["k"].ratio == 1:
        return HeadShape(heads, streams["k"].heads, streams["k"].head_dim, streams["v"].head_dim)
    return None


def reads_all(mixer: CacheKind) -> bool:
    """Whether a token reads every token before it."""
    return all(r.stream.window is None and r.limit is None and r.stream.fixed_entries is None for r in _served(mixer))


def left_unread(works: tuple[StageWork, ...], context: int) -> float:
    """Share of a step's cache bytes in what the kernels do not read: index keys, compressed entries."""
    planned = missing = 0
    for work in works:
        beside = [(layers, tuple(r for r in m.reads() if r not in _served(m))) for layers, m in work.mixers]
        missing += of.reads_bytes(work, beside, context)
        planned += of.kv_bytes(work, context)
    return missing / planned if planned else 0.0


def _served(mixer: CacheKind) -> list[Read]:
    if head_shape(mixer) is None:
        return []
    return [read for read in mixer.reads() if read.stream.name in _STREAMS]

"""What vLLM's cache manager sees of a layer: a page of so many bytes for so many tokens.

Source of the rules: vLLM 0.33.0 ``vllm/v1/kv_cache_interface.py`` (page sizes, blocks per request)
and ``vllm/v1/core/kv_cache_utils.py`` (the check at start, the printed token count).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from kvplan.cache.bytes import KvFormats, stream_rows

if TYPE_CHECKING:
    from kvplan.engines.base import Settings
    from kvplan.spec.kind import CacheKind
    from kvplan.spec.model import ModelSpec

INDEXER_ROW_BYTES = 132
"""A sparse-attention index key: 128 values in fp8 and one fp32 scale, whatever the KV dtype
(vLLM 0.33.0 ``vllm/model_executor/models/deepseek_v2.py``, ``DeepseekV32IndexerCache``)."""


class PageKind(NamedTuple):
    """Layers with one of these belong to one group; layers with different ones may not."""

    family: str
    """``full`` (everything stays: full attention, latent rows, index keys), ``sliding``, ``chunked``,
    ``cross`` or ``state``."""
    window: int | None


def page_kind(mixer: CacheKind) -> PageKind | None:
    """How vLLM files a mixer's cache; None: it keeps none."""
    if mixer.states():
        return PageKind("state", None)
    streams = mixer.streams()
    if not streams:
        return None
    first = streams[0]
    if first.fixed_entries is not None:
        return PageKind("cross", first.fixed_entries)
    if any(s.ratio > 1 for s in streams):
        return PageKind("compressed", first.window)
    if first.window is not None:
        return PageKind("chunked" if first.chunked else "sliding", first.window)
    return PageKind("full", None)


def page_kinds(model: ModelSpec) -> list[PageKind]:
    """The distinct kinds of a model, in layer order."""
    found: dict[PageKind, None] = {}
    for name in model.layer_counts:
        for mixer in model.blocks[name].mixers:
            kind = page_kind(mixer)
            if kind is not None:
                found[kind] = None
    return list(found)


def bytes_per_block(model: ModelSpec, formats: KvFormats, block_size: int, *, drafts: bool = False) -> int:
    """Bytes of one block over all the layers a rank holds, for a model with one group."""
    total = 0
    for layers, mixer in model.mixers(drafts=drafts):
        for stream, size, _ in stream_rows(mixer, formats):
            row = INDEXER_ROW_BYTES if stream.name == "index" else size
            total += layers * block_size * row
    return total


def in_flight_tokens(settings: Settings) -> int:
    """Tokens scheduled and not yet done, which a window must keep besides itself.

    Two batches run at once under asynchronous scheduling without pipeline stages, pp + 1 with them.
    Source: vLLM 0.33.0 ``vllm/config/vllm.py``, ``max_in_flight_tokens``.
    """
    batches = settings.pipeline_parallel_size + 1
    return batches * (settings.max_num_batched_tokens or 0)


def blocks_per_request(kind: PageKind, tokens: int, settings: Settings) -> int:
    """Blocks that a request of `tokens` reserves in a group of `kind`."""
    size = settings.block_size
    if kind.family == "sliding" and kind.window is not None:
        live = min(kind.window - 1 + in_flight_tokens(settings), tokens)
        return -(-live // size) + 1
    per_rank = -(-tokens // settings.decode_context_parallel_size)
    return -(-per_rank // size)

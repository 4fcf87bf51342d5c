"""The caches of DeepSeek-V4 in transformers: a window, compressed entries, and tokens that wait for their entry.

A layer that compresses keeps, for its entries and again for its index:

* one entry for every `ratio` tokens;
* the projections of the ``tokens % ratio`` newest ones, each a value and a gate;
* where windows overlap (layers with an index), value and gate of the last whole window, and projections twice as wide.

K and V of its short window are one tensor. A layer that does not compress has a plain sliding cache instead.

Source: transformers 5.24.0 ``models/deepseek_v4/modeling_deepseek_v4.py``, ``DeepseekV4HCACache`` and
``DeepseekV4CSACache``; the same since 5.8.0, the first release with the model.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvplan.engines.base import CachePool
from kvplan.engines.rows import Rows

if TYPE_CHECKING:
    from kvplan.cache.compressed import CompressedAttention

KIND = "compressed"
ARCHITECTURE = "deepseekv4"
"""As `architecture_key` spells it; transformers 5.24.0 has no class for DeepSeek-V4.1."""
SINCE = "5.8"
"""No release before has the model."""


def row(mixer: CompressedAttention, layers: int) -> Rows:
    """What `layers` such layers cache; ``index_pool`` is the ratio."""
    dim, window = mixer.head_dim, mixer.window
    if mixer.ratio is None:
        return Rows("sliding", layers, dim, dim, 0, dim, window, None, 0, 0, 0, 0)
    return Rows(KIND, layers, dim, 0, mixer.index_head_dim or 0, dim, window, None, 0, 0, 0, 0, mixer.ratio)


def pools(row: Rows, size: int, batch: int, tokens: int, *, kept: int, projected: int | None = None) -> list[CachePool]:
    """The caches of a row of layers after `tokens` tokens of each of `batch` sequences.

    Args:
        size: bytes per element.
        kept: tokens of the window that are held.
        projected: tokens whose projections are alive; None: those that wait.
    """
    ratio, both, many = row.index_pool, row.k + row.index_key, row.layers * batch * size
    overlaps = row.index_key > 0
    entries = tokens // ratio
    waiting = (tokens % ratio if projected is None else projected) * (2 if overlaps else 1)
    last = ratio if overlaps and entries else 0
    found = [
        CachePool("sliding", kept, None, many * kept * row.k, many * kept * row.k, 0),
        CachePool(KIND, entries, None, many * entries * row.k, many * entries * row.k, 0),
        CachePool("index", entries, None, many * entries * row.index_key, many * entries * row.index_key, 0),
        CachePool("compressor", None, None, 2 * many * (waiting + last) * both, *(many * (waiting + last) * both,) * 2),
    ]
    return [pool for pool in found if pool.bytes]

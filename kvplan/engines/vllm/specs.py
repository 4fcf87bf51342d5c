"""What vLLM's cache manager sees: of a layer a page of so many bytes for so many tokens, and layers in groups.

Source: vLLM 0.33.0 ``vllm/v1/kv_cache_interface.py``, ``AttentionSpec``, ``MambaSpec`` and their kin.
"""

from __future__ import annotations

from typing import NamedTuple

WHOLE = ("full", "mla", "sink")
"""Families of which every token stays: vLLM's ``FullAttentionSpec`` and its subclasses."""
WINDOWED = ("sliding", "sliding_mla")


def up(amount: int, unit: int) -> int:
    """How many `unit` hold `amount`: the quotient, rounded up."""
    return -(-amount // unit)


class CacheLayer(NamedTuple):
    """One cache of one layer on a rank. Layers that are equal may share a group."""

    family: str
    """``full``, ``mla`` (latent rows, index keys), ``sink``, ``sliding``, ``sliding_mla``, ``chunked``,
    ``cross``, ``ring`` (one block a request, written over and over) or ``mamba`` (any fixed state)."""
    block_size: int
    """Tokens of one block of this cache."""
    row_bytes: int = 0
    """Bytes of one stored entry, all heads of the rank, scales included."""
    state_bytes: int = 0
    """``mamba``: bytes of the state, which fills a page whatever its block size."""
    padded_bytes: int = 0
    """Bytes that the page is padded to; 0: not padded."""
    window: int | None = None
    """Tokens of the window, or of the chunk."""
    ratio: int = 1
    """Tokens per stored entry."""
    shape: tuple[object, ...] = ()
    """Whatever else keeps layers apart: heads, head sizes, format, role."""
    draft_blocks: int = 0
    """``mamba``: blocks more per request, one for each draft token."""
    checkpoint_blocks: int = 0
    """``mamba``: blocks more per request for a checkpoint exported from inside a prefill."""
    alignment: int = 1
    """The page is a multiple of so many bytes."""
    stride: int = 1
    """Where pages lie side by side, the block is a multiple of so many bytes."""

    @property
    def data_bytes(self) -> int:
        """Bytes of a page before padding."""
        if self.family == "mamba":
            return self.state_bytes
        return self.block_size // self.ratio * self.row_bytes

    @property
    def page_bytes(self) -> int:
        """Bytes of one block of this layer."""
        data = -(-self.data_bytes // self.alignment) * self.alignment
        return max(data, self.padded_bytes)

    def promoted(self, block_size: int | None = None) -> CacheLayer:
        """The same layer as the manager sees it once windows are ignored: all tokens stay."""
        family = {"sliding": "full", "chunked": "full", "sliding_mla": "mla"}.get(self.family)
        if family is None:
            return self
        size = block_size or self.block_size
        padded = max(self.padded_bytes, self.data_bytes * size // self.block_size) if self.padded_bytes else 0
        return self._replace(family=family, block_size=size, padded_bytes=padded)


def mergeable(a: CacheLayer, b: CacheLayer) -> bool:
    """Whether two layers make one spec: equal, or full attention that differs in having a window.

    Source: vLLM 0.33.0 ``FullAttentionSpec.merge``.
    """
    if a == b:
        return True
    if a.family != "full" or b.family != "full":
        return False
    windows = {w for w in (a.window, b.window) if w is not None}
    return len(windows) <= 1 and a._replace(window=None) == b._replace(window=None)


def all_mergeable(layers: list[CacheLayer]) -> bool:
    """Whether all layers make one spec."""
    distinct = list(dict.fromkeys(layers))
    if not all(mergeable(distinct[0], other) for other in distinct[1:]):
        return False
    return len({layer.window for layer in distinct if layer.window is not None}) <= 1


def one_type(layers: list[CacheLayer]) -> bool:
    """Whether all layers need the same number of token slots, whatever their pages weigh.

    Source: vLLM 0.33.0 ``UniformTypeKVCacheSpecs.is_uniform_type``.
    """
    distinct = list(dict.fromkeys(layers))
    first = distinct[0]
    if len({layer.block_size for layer in distinct}) > 1:
        return False
    if first.family in WHOLE:
        return all(layer.family in WHOLE for layer in distinct)
    if first.family == "sliding":
        return all(layer.family in WINDOWED and layer.window == first.window for layer in distinct)
    if first.family == "mamba":
        same = [(m.draft_blocks, m.checkpoint_blocks, m.page_bytes) for m in distinct]
        return all(layer.family == "mamba" for layer in distinct) and len(set(same)) == 1
    if first.family == "ring":
        return all(layer.family == "ring" for layer in distinct)
    return all(layer.family == first.family and layer.window == first.window for layer in distinct)


class Group(NamedTuple):
    """Layers that share a block table: a block of the group holds a page of each of them."""

    members: tuple[int, ...]
    """Indices into the list of layers, in order."""
    layers: tuple[CacheLayer, ...]
    """The members as the manager sees them, after page sizes were made equal."""
    mixed: bool = False
    """The members' pages may differ; a block is their sum."""
    slots: str = ""
    """How pages of several groups share the bytes of a block: ``""`` the largest group decides; ``tuple`` and
    ``page``: `kvplan.engines.vllm.tuples`."""

    @property
    def first(self) -> CacheLayer:
        return self.layers[0]

    @property
    def page_bytes(self) -> int:
        """Bytes of one block over the members."""
        return sum(layer.page_bytes for layer in self.layers)


def least_padding(counts: list[int], least: int) -> int:
    """The chunk that wastes the fewest layers when every count is rounded up to it; ties take the larger."""
    best = max(1, least)
    padding = None
    for size in range(max(1, least), max(counts) + 1):
        waste = sum(-count % size for count in counts)
        if padding is None or waste <= padding:
            best, padding = size, waste
    return best

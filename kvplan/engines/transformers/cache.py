"""How many bytes the caches of transformers hold, and the most that exists while they grow.

Read in transformers 5.24.0 and 4.57.6 ``src/transformers/cache_utils.py``: `DynamicLayer` and its sliding
sibling, `StaticLayer`, `QuantizedLayer` (quanto, hqq), `Fp8QuantizedLayer`, `LinearAttentionLayer`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from kvplan.engines.base import CachePool
from kvplan.engines.transformers import compressed

if TYPE_CHECKING:
    from kvplan.engines.rows import Rows

OUTSIDE = frozenset({"rg_lru", "lightning", "rwkv", "mlstm"})
"""Recurrent layers whose state is kept beside the cache object: on the modules (RecurrentGemma), in a list of
its own (MiniMax), in a separate argument (RWKV), in a class of its own (xLSTM)."""
SPEC_COLUMNS = frozenset({"rg_lru"})
"""Recurrent layers that keep kernel - 1 columns of their convolution; the others keep kernel."""
SCALE_BYTES = 4
"""The fp8 backend keeps one float32 scale per tensor."""


class Layout(NamedTuple):
    """What decides the bytes, out of the settings."""

    implementation: str
    """``dynamic``, ``dynamic_noconfig``, ``static`` or ``quantized``."""
    element_bytes: int
    state_bytes: int
    """Bytes per element of a recurrent state of the cache object."""
    static_tokens: int
    """Cells of a static cache."""
    backend: str = "quanto"
    nbits: int = 4
    group: int = 64
    residual: int = 128

    def stored(self, elements: int) -> int:
        """Bytes of `elements` in the quantised store, scale and zero point of each group included."""
        if self.backend == "fp8":
            return elements
        return elements * self.nbits // 8 + elements // self.group * 2 * self.element_bytes

    def split(self, prompt: int, tokens: int) -> tuple[int, int]:
        """(quantised tokens, tokens still in full precision).

        The whole prompt is quantised at once; later tokens wait until `residual` of them are there, and then
        everything is quantised anew.
        """
        if self.backend == "fp8":
            return tokens, 0
        steps = max(0, tokens - prompt)
        length = max(1, self.residual)
        return tokens - steps % length, steps % length


def entries(row: Rows, layout: Layout, tokens: int) -> int:
    """Tokens that a layer keeps of each sequence: one less than the window, which the next token completes."""
    if row.fixed_entries is not None:
        return row.fixed_entries
    if layout.implementation == "static":
        return layout.static_tokens if row.window is None else min(layout.static_tokens, row.window)
    if row.window is None or layout.implementation == "dynamic_noconfig":
        return tokens
    return min(tokens, row.window - 1)


def pools(
    rows: list[Rows], layout: Layout, batch: int, prompt: int, tokens: int, *, projected: int | None = None
) -> tuple[CachePool, ...]:
    """The cache after `tokens` tokens of each of `batch` sequences, layers of one kind together.

    Args:
        projected: as for `compressed.pools`.
    """
    found: dict[str, CachePool] = {}

    def add(kind: str, cells: int | None, k: int, v: int) -> None:
        if not k and not v:
            return
        have = found.get(kind, CachePool(kind, cells, None, 0, 0, 0))
        cells = max(filter(None, (have.cells, cells)), default=None)
        found[kind] = CachePool(kind, cells, None, have.bytes + k + v, have.k_bytes + k, have.v_bytes + v)

    for row in rows:
        n = entries(row, layout, tokens)
        if row.kind == compressed.KIND:
            for p in compressed.pools(row, layout.element_bytes, batch, tokens, kept=n, projected=projected):
                add(p.kind, p.cells, p.k_bytes, p.v_bytes)
            continue
        kind = "full" if row.kind in ("mla", "shared") else row.kind
        if row.k or row.v:
            k, v = (_attention(row, layout, batch, prompt, tokens, n, e) for e in (row.k, row.v))
            add(kind if not row.has_state else "full", n, row.layers * k, row.layers * v)
        if row.index_key:
            add("index", n, row.layers * batch * n * index_elements(row) * layout.element_bytes, 0)
        if row.has_state:
            kind = "recurrent outside the cache" if row.kind in OUTSIDE else "recurrent"
            add(kind, None, *(row.layers * batch * size for size in state_sizes(row, layout)))
    return tuple(found.values())


def index_elements(row: Rows) -> int:
    """Elements of one token's index entry. Keys that are pooled are kept whole, with their gates and a mark of padding.

    Source: transformers 5.24.0 ``models/glm5_next/modeling_glm5_next.py``, ``packed_states``.
    """
    return row.index_key if row.index_pool == 1 else 2 * row.index_key + 1


def _attention(row: Rows, layout: Layout, batch: int, prompt: int, tokens: int, n: int, elements: int) -> int:
    """Bytes of K or of V of one layer."""
    if layout.implementation != "quantized" or row.fixed_entries is not None:
        return batch * n * elements * layout.element_bytes
    quantised, residual = layout.split(prompt, tokens)
    scale = SCALE_BYTES if layout.backend == "fp8" and elements else 0
    return layout.stored(batch * quantised * elements) + batch * residual * elements * layout.element_bytes + scale


def state_sizes(row: Rows, layout: Layout) -> tuple[int, int]:
    """(convolution bytes, recurrent bytes) of one layer and sequence.

    The cache keeps `kernel` columns of a convolution, one more than are needed to go on.
    """
    columns = row.conv_columns + (row.kind not in SPEC_COLUMNS)
    conv = (row.conv_channels * columns + row.shift) * layout.element_bytes
    wide = layout.element_bytes if row.kind == "lightning" else layout.state_bytes
    return conv, row.recurrent * (4 if row.kind in ("rg_lru", "rwkv") else wide)


def peak_bytes(rows: list[Rows], layout: Layout, batch: int, prompt: int, tokens: int) -> int:
    """The most bytes of cache that exist at once from the first token to the last.

    * Growing concatenates: old and new K (then V) of one layer coexist.
    * After the prompt, the tensors of sliding layers are views into those of the whole prompt, which live until
      the next token: the prompt costs every layer as if it were full attention.
    * A quantised layer is rebuilt in full precision at every token, and concatenated with the newest.
    * A static sliding layer that is full is rolled: a copy of its K and V.
    """
    held = sum(p.bytes for p in pools(rows, layout, batch, prompt, tokens))
    growing = [r for r in rows if (r.k or r.v) and r.fixed_entries is None]
    if not growing:
        return held
    if layout.implementation == "static":
        rolled = [r for r in growing if r.window is not None and tokens > min(r.window, layout.static_tokens)]
        return held + max(
            (batch * entries(r, layout, 0) * (r.k + r.v) * layout.element_bytes for r in rolled), default=0
        )
    if layout.implementation == "quantized":
        before, _ = layout.split(prompt, tokens - 1)
        copies = (before if tokens > prompt else 0) + tokens
        if layout.backend == "fp8":
            copies = tokens
        return held + max(batch * copies * (r.k + r.v) for r in growing) * layout.element_bytes
    peak = (
        storage_bytes(rows, layout, batch, prompt)
        + max(batch * prompt * max(r.k, r.v) for r in growing) * layout.element_bytes
    )
    if tokens > prompt:
        old = max(
            batch
            * min(tokens - 1, r.window - 1 if r.window and layout.implementation == "dynamic" else tokens)
            * max(r.k, r.v)
            for r in growing
        )
        views = sum(r.layers * batch * (r.k + r.v) for r in growing if sliced(r, layout, tokens)) * layout.element_bytes
        peak = max(peak, held + views + old * layout.element_bytes)
    return peak


def sliced(row: Rows, layout: Layout, tokens: int) -> bool:
    """Whether a layer has let go of tokens, so that its tensors are views one token longer than they look."""
    return row.window is not None and layout.implementation == "dynamic" and tokens > row.window - 1


def storage_bytes(rows: list[Rows], layout: Layout, batch: int, prompt: int) -> int:
    """Bytes alive right after the prompt: sliding layers still hold all of it."""
    whole = layout._replace(implementation="dynamic_noconfig")
    return sum(p.bytes for p in pools(rows, whole, batch, prompt, prompt, projected=prompt))

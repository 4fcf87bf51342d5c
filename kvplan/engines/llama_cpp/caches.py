"""The caches that llama.cpp lays out for a model, each as it prints them.

A layer's mixers become rows of elements in named caches (`rows`), caches get their cells from the
`Geometry`, and the recurrent state is float32 whatever the cache types say. Nothing grows later.

Source: libllama 0.5.0 ``src/llama-kv-cache.cpp`` (constructor: widths, padding without flash
attention, no V for latent attention), ``llama-kv-cache-{iswa,dsa,msa,dsv4}.cpp``,
``llama-memory-recurrent.cpp`` and ``llama-hparams.cpp`` (``n_embd_r``, ``n_embd_s``).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

from kvplan.engines.base import PLAIN_KINDS, CachePool
from kvplan.engines.llama_cpp.architectures import CHUNK, Facts
from kvplan.engines.llama_cpp.geometry import Geometry, pad
from kvplan.errors import UnsupportedError

if TYPE_CHECKING:
    from kvplan.cache.bytes import KvFormats
    from kvplan.spec.formats import Format
    from kvplan.spec.kind import CacheKind
    from kvplan.spec.model import Block, ModelSpec

STATE_BYTES = 4
"""Bytes of an element of a recurrent, convolution or compressor state: always float32."""

_RECURRENT = frozenset({"mamba1", "mamba2", "gated_delta_net", "kda", "lightning", "short_conv", "rwkv"})
_NO_CACHE = frozenset({"shared", "none"})
_REFUSED = {"cross": "cache for cross attention", "rg_lru": "RG-LRU", "mlstm": "mLSTM", "rwkv": "RWKV before version 6"}
KNOWN_KINDS = PLAIN_KINDS | _RECURRENT | _NO_CACHE | {"mla", "compressed"} | frozenset(_REFUSED)
"""Kinds of which it is known what llama.cpp makes of them; `rows` says which it has no cache for."""
_ORDER = ("full", "sliding", "chunked", "compressed", "index", "recurrent", "compressor")


class Row(NamedTuple):
    """What one layer puts into one cache: elements of a K row and of a V row per cell."""

    cache: str
    k: int
    v: int
    window: int | None = None
    ratio: int = 1
    """Tokens per cell."""
    per_sequence: bool = False
    """A stream per slot even where the context is unified."""


class State(NamedTuple):
    """What one layer keeps per slot: elements of the two recurrent rows (R and S)."""

    cache: str
    r: int
    s: int


def _unsupported(model: ModelSpec, what: str) -> UnsupportedError:
    return UnsupportedError(
        f"llama.cpp has no {what}, which {model.id} needs", where="--engine", hint="--engine generic gives its bytes"
    )


def rows(model: ModelSpec, facts: Facts, mixer: CacheKind) -> list[Row]:
    """The cache rows of one mixer, before any padding of V.

    Raises:
        UnsupportedError: llama.cpp has no such cache.
    """
    kind: Any = mixer
    if mixer.kind in ("full", "sliding", "chunked"):
        heads, k, v = kind.kv_heads, kind.head_dim, kind.dim_v
        window = None
        if mixer.kind != "full" and facts.windowed:
            window = CHUNK if mixer.kind == "chunked" else kind.window
        found = [Row("full" if window is None else mixer.kind, heads * k, heads * v, window)]
        if kind.index_head_dim:
            found.append(Row("index", kind.index_head_dim * facts.index_rows, v if facts.index_v else 0))
        return found
    if mixer.kind == "mla":
        if facts.uncompressed_latent:
            heads, qk = kind.query_heads, kind.qk_nope_head_dim + kind.qk_rope_head_dim
            return [Row("full", heads * qk, heads * kind.v_head_dim)]
        found = [Row("full", kind.row_dim, 0)]
        if kind.index_head_dim:
            found.append(Row("index", kind.index_head_dim * facts.index_rows, 0))
        return found
    if mixer.kind == "compressed":
        return _compressed(model, facts, kind)
    if mixer.kind in _NO_CACHE or (mixer.kind in _RECURRENT and (mixer.kind != "rwkv" or kind.version >= 6)):
        return []  # states are `states`
    raise _unsupported(model, _REFUSED.get(mixer.kind, f"cache of {mixer.kind} layers"))


def _compressed(model: ModelSpec, facts: Facts, kind: Any) -> list[Row]:
    """DeepSeek-V4: the window in every layer, compressed rows by ratio, index rows beside ratio 4."""
    alone = not facts.shared_streams
    found = [Row("sliding", kind.head_dim, 0, kind.window, 1, alone)]
    if kind.ratio is None:
        return found
    if kind.ratio not in (4, 128):
        raise _unsupported(model, f"compressed attention of ratio {kind.ratio}")
    found.append(Row("compressed", kind.head_dim, 0, None, kind.ratio, alone))
    if kind.index_head_dim:
        found.append(Row("index", kind.index_head_dim, 0, None, kind.ratio, alone))
    return found


def states(mixer: CacheKind) -> list[State]:
    """The float32 state that one slot holds in one mixer."""
    kind: Any = mixer
    if mixer.kind in _RECURRENT:
        parts = mixer.states()
        r = sum(p.elements for p in parts if p.name != "recurrent")
        return [State("recurrent", r, sum(p.elements for p in parts if p.name == "recurrent"))]
    if mixer.kind == "compressed" and kind.ratio in (4, 128):
        # entry and score of the tokens that are not compressed yet; ratio 4 overlaps, so twice as many, twice as wide
        wide, tokens = (2, 2 * kind.ratio) if kind.ratio == 4 else (1, kind.ratio)
        size = tokens * wide * (kind.head_dim + (kind.index_head_dim or 0))
        return [State("compressor", size, size)]
    return []


def is_latent(model: ModelSpec, facts: Facts) -> bool:
    """Whether the file is one of latent attention: K and V types must agree, and V is not stored."""
    return any(m.kind == "compressed" or (m.kind == "mla" and not facts.uncompressed_latent) for _, m in model.mixers())


def _owned(model: ModelSpec, facts: Facts, block: Block) -> list[Row]:
    return [row for mixer in block.mixers for row in rows(model, facts, mixer)]


def widest_v(model: ModelSpec, facts: Facts) -> int:
    """The widest V row of any layer: what every V row is padded to without flash attention."""
    main = ("full", "sliding", "chunked")
    return max((r.v for b in model.blocks.values() for r in _owned(model, facts, b) if r.cache in main), default=0)


def layer_rows(model: ModelSpec, facts: Facts, block: Block, *, flash: bool) -> list[Row]:
    """The cache rows of one layer, V padded where it is stored transposed (no flash attention).

    A layer without KV heads in a model without recurrent layers keeps its place in the cache: an
    empty K row, and without flash attention a V row of the common width.
    """
    found = _owned(model, facts, block)
    if flash or is_latent(model, facts):
        return found
    width = widest_v(model, facts)
    if any(m.kind == "none" for m in block.mixers) and not any(m.kind in _RECURRENT for _, m in model.mixers()):
        found.append(Row("full", 0, 0))
    return [row._replace(v=width) if row.cache in ("full", "sliding", "chunked") else row for row in found]


def row_bytes(fmt: Format, elements: int) -> int:
    """Bytes of a row of `elements`, blocks running over all heads."""
    return -(-elements // fmt.block_elements) * fmt.block_bytes


def pools(
    model: ModelSpec, facts: Facts, shape: Geometry, formats: KvFormats, layers: Iterable[str]
) -> list[CachePool]:
    """The caches of the layers named `layers` (block names), in the order in which they are printed."""
    counts: dict[str, int] = {}
    for name in layers:
        counts[name] = counts.get(name, 0) + 1
    sums: dict[tuple[str, int, int], list[int]] = {}
    snapshots = shape.n_rs_seq if facts.rollback else 0
    for name, times in counts.items():
        block = model.blocks[name]
        for row in layer_rows(model, facts, block, flash=shape.flash):
            own = shape._replace(unified=False) if row.per_sequence else shape
            cells = own.cells(row.window) if row.ratio == 1 else pad(-(-shape.n_ctx_seq // row.ratio))
            cells *= own.streams
            total = sums.setdefault((row.cache, row.ratio, cells), [0, 0])
            total[0] += times * cells * row_bytes(formats.k, row.k)
            total[1] += times * cells * row_bytes(formats.v, row.v)
        for state in (s for mixer in block.mixers for s in states(mixer)):
            held = shape.slots * (1 + snapshots) * STATE_BYTES
            total = sums.setdefault((state.cache, 0, shape.slots), [0, 0])
            total[0] += times * held * state.r
            total[1] += times * held * state.s
    ordered = sorted(sums.items(), key=lambda item: (_ORDER.index(item[0][0]), item[0][1]))
    return [CachePool(cache, cells, None, k + v, k, v) for (cache, _, cells), (k, v) in ordered if k + v]

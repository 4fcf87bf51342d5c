"""What each layer of a planned model holds, as tensors: shapes and element types instead of one count of bytes.

The planner counts bytes (`kvplan.cache.bytes`); here the same entries are spelled out as the tensors in which they
are stored. The two are derived apart from the same specification, so that allocating one tests the other.
Nothing here needs torch: element types are names of torch dtypes.
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, NamedTuple

from kvplan.cache.bytes import KvFormats, edge_surplus, rows_of
from kvplan.spec.formats import Format, get_format

if TYPE_CHECKING:
    from kvplan.engines.base import Engine, Settings
    from kvplan.planning.evaluate import Outcome
    from kvplan.spec.kind import CacheKind, Stream
    from kvplan.spec.model import ModelSpec

DTYPE_BYTES = {
    "float64": 8, "float32": 4, "bfloat16": 2, "float16": 2, "float8_e4m3fn": 1, "float8_e5m2": 1, "int8": 1,
    "uint8": 1, "int32": 4,
}  # fmt: skip
"""torch dtype -> bytes of an element."""

DEFAULT_BLOCK = 16
"""Tokens per page where the engine has no pages."""


class Part(NamedTuple):
    """One tensor's share of an entry (one token's row of one stream in one layer)."""

    name: str
    """``data``, ``scale`` or ``pad``."""
    dtype: str
    """A key of `DTYPE_BYTES`."""
    shape: tuple[int, ...]
    """Of one entry, heads first."""

    @property
    def num_bytes(self) -> int:
        """Bytes of one entry's share."""
        return prod(self.shape) * DTYPE_BYTES[self.dtype]


class StreamCache(NamedTuple):
    """One growing part of one layer, on one rank."""

    name: str
    """``k``, ``v``, ``latent``, ``index``, ``window``, ``compressed``."""
    role: str
    """``k``, ``v`` or ``index``."""
    heads: int
    """KV heads on this rank."""
    head_dim: int
    format: Format
    parts: tuple[Part, ...]
    """The tensors that an entry is stored in."""
    entry_bytes: int
    """The planner's count for one entry; equals the sum of the parts' bytes."""
    window: int | None
    ratio: int
    """Tokens per entry."""
    fixed_entries: int | None
    stream: Stream

    def entries(self, tokens: int) -> int:
        """Entries that a sequence of `tokens` holds."""
        return int(self.stream.entries(tokens))

    def slots(self, block_size: int) -> int:
        """Entries of one page of `block_size` tokens (compressed entries: at least one)."""
        return max(1, block_size // self.ratio)

    def blocks(self, tokens: int, block_size: int) -> int:
        """Pages that hold the entries of one sequence of `tokens`, the last one partly filled."""
        return -(-self.entries(tokens) // self.slots(block_size))


class StateCache(NamedTuple):
    """One fixed state of one layer for one sequence."""

    name: str
    """``conv``, ``recurrent`` or ``shift``."""
    dtype: str
    shape: tuple[int, int]
    """Channels and columns."""

    @property
    def num_bytes(self) -> int:
        """Bytes for one sequence."""
        return prod(self.shape) * DTYPE_BYTES[self.dtype]


class LayerCache(NamedTuple):
    """Everything one layer holds."""

    layer: int
    """Index on this rank, counted over the layers of its stage."""
    kind: str
    """The cache kind's tag: ``full``, ``sliding``, ``mla``, ``mamba2``, ..."""
    query_heads: int | None
    """On this rank; None where the kind has none."""
    streams: tuple[StreamCache, ...]
    states: tuple[StateCache, ...]

    @property
    def entry_bytes(self) -> int:
        """Bytes that one token adds while every window is open and entries are not compressed."""
        return sum(s.entry_bytes for s in self.streams if s.ratio == 1 and s.fixed_entries is None)

    def page_bytes(self, block_size: int) -> int:
        """Bytes of one page over the streams that grow."""
        return sum(s.slots(block_size) * s.entry_bytes for s in self.streams if s.fixed_entries is None)


class RankLayout(NamedTuple):
    """The cache of one rank of one stage."""

    layers: tuple[LayerCache, ...]
    """Layers that hold something, in order."""
    block_size: int
    """Tokens per page."""
    tp: int
    formats: KvFormats
    spec: ModelSpec
    """The model as this rank sees it."""

    def sequence_bytes(self, tokens: int) -> int:
        """Bytes of one sequence, entry by entry and without page rounding; the planner's `sequence_bytes`."""
        from kvplan.cache.bytes import sequence_bytes

        return int(sequence_bytes(self.spec, tokens, self.formats))

    def kinds(self) -> tuple[LayerCache, ...]:
        """One layer of every kind and shape, in order of first appearance."""
        seen: dict[tuple[object, ...], LayerCache] = {}
        for layer in self.layers:
            seen.setdefault(_shape(layer), layer)
        return tuple(seen.values())

    def alike(self, layer: LayerCache) -> int:
        """How many layers hold the same as this one."""
        return sum(_shape(other) == _shape(layer) for other in self.layers)


def _shape(layer: LayerCache) -> tuple[object, ...]:
    streams = tuple((s.name, s.parts, s.window, s.ratio, s.fixed_entries) for s in layer.streams)
    return layer.kind, streams, layer.states


def entry_parts(fmt: Format, heads: int, head_dim: int, *, v: bool = False, k_dim: int | None = None) -> list[Part]:
    """The tensors in which one entry of `heads` vectors of `head_dim` elements is stored.

    Args:
        v: the entry is a value; K and V may be packed differently.
        k_dim: elements of the key beside it, where the two are padded to a common size.
    """
    elements, size = fmt.v_block if v and fmt.v_block else (fmt.block_elements, fmt.block_bytes)
    if elements == 1:
        parts = [Part("data", _plain_dtype(fmt.name, size), (heads, head_dim))]
    elif head_dim % elements and heads * head_dim % elements == 0:
        parts = [Part("data", "uint8", (heads * head_dim // elements, size))]
    else:
        parts = [Part("data", "uint8", (heads, -(-head_dim // elements), size))]
    scales = fmt.v_scale_bytes if v and fmt.v_scale_bytes is not None else fmt.scale_bytes
    if scales and fmt.scale in ("token", "token_head"):
        rows = heads if fmt.scale == "token_head" else 1
        width, dtype = (scales // 4, "float32") if scales % 4 == 0 else (scales // 2, "float16")
        parts.append(Part("scale", dtype, (rows, width)))
    if v and k_dim is not None and fmt.align_bytes > 1:
        pair = sum(p.num_bytes for p in (*entry_parts(fmt, 1, k_dim), *entry_parts(fmt, 1, head_dim, v=True)))
        if pad := -pair % fmt.align_bytes:
            parts.append(Part("pad", "uint8", (heads, pad)))
    return parts


def _plain_dtype(name: str, size: int) -> str:
    """The torch dtype of a format that stores elements one by one."""
    if size == 4:
        return "float32"
    if size == 2:
        return "float16" if name in ("fp16",) else "bfloat16"
    if name.startswith("fp8"):
        return "float8_e5m2" if "e5m2" in name else "float8_e4m3fn"
    return "int8" if name.startswith("int8") else "uint8"


_STATE_DTYPES = {8: "float64", 4: "float32", 2: "bfloat16", 1: "int8"}


def layer_cache(index: int, mixer: CacheKind, formats: KvFormats) -> LayerCache:
    """One layer's mixer, spelled out."""
    streams: list[StreamCache] = []
    key: Stream | None = None
    for stream, size, fmt in rows_of(mixer.streams(), formats):
        is_value = stream.role == "v"
        paired = key.head_dim if is_value and key is not None and formats.k == formats.v else None
        parts = entry_parts(fmt, stream.heads, stream.head_dim, v=is_value, k_dim=paired)
        if stream.role == "k":
            key = stream
        streams.append(
            StreamCache(
                stream.name, stream.role, stream.heads, stream.head_dim, fmt, tuple(parts), size, stream.window,
                stream.ratio, stream.fixed_entries, stream,
            )
        )  # fmt: skip
    short = formats.short_convolutions
    kept = int(short is not None and mixer.kind not in short)  # these keep kernel columns, not kernel - 1
    states = tuple(
        StateCache(
            s.name, _STATE_DTYPES[formats.recurrent_bytes if s.name == "recurrent" else formats.conv_bytes],
            (s.channels, s.columns + (kept if s.name == "conv" else 0)),
        )
        for s in mixer.states()
    )  # fmt: skip
    return LayerCache(index, mixer.kind, getattr(mixer, "query_heads", None), tuple(streams), states)


def model_layout(spec: ModelSpec, formats: KvFormats, *, block_size: int, tp: int = 1) -> RankLayout:
    """The layout of a model (or of a rank's share of one) under given formats.

    Args:
        spec: the model as the rank sees it.
        block_size: tokens per page.
    """
    edge = formats.k.edge_layers if edge_surplus(spec, formats) else 0
    wide = get_format("bf16")
    plain = formats._replace(k=wide, v=wide, index_key=wide)
    layers: list[LayerCache] = []
    for index, name in enumerate(spec.layers):
        outer = edge and (index < edge or index >= max(edge, len(spec.layers) - edge))
        for mixer in spec.blocks[name].mixers:
            found = layer_cache(index, mixer, plain if outer else formats)
            if found.streams or found.states:
                layers.append(found)
    return RankLayout(tuple(layers), block_size, tp, formats, spec)


def plan_layout(engine: Engine, settings: Settings, outcome: Outcome, model: ModelSpec) -> RankLayout:
    """The layout of a plan's first stage, on its most loaded rank."""
    size = settings.block_size if settings.block_size > 1 else DEFAULT_BLOCK
    return model_layout(
        outcome.stages[0].spec, engine.kv_formats(model, settings), block_size=size, tp=settings.tensor_parallel_size
    )


PROBE_FORMATS = ("bf16", "fp8_e4m3", "int8_per_token_head", "int4_g32")
"""One format per attention kernel of the probe: 16 bits, 8-bit float, 8-bit integers with an fp32 scale per token and
head, and 4-bit integers with an fp16 scale per 32 elements (72 bytes for 128 elements)."""


def uniform_formats(name: str, base: KvFormats) -> KvFormats:
    """K, V and index key all in format `name`; states as they are."""
    fmt = get_format(name, use="cache")
    return base._replace(k=fmt, v=fmt, index_key=fmt)

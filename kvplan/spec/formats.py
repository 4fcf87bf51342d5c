"""Storage formats of caches and weights: integers, never a float of bits.

A format is a pair (elements per block, bytes per block) plus where its scales live. Scales inside
the block are already in the pair: q8_0 keeps 32 elements in 34 bytes. Scales outside it follow
`scale`: one per token and head, one per token, or so few that they do not count. The rows are in
`kvplan.spec.format_table`; to add a format, add a row there.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from kvplan.errors import InputError, UnknownNameError
from kvplan.spec.format_table import FORMAT_ALIASES, FORMATS, MATRICES
from kvplan.spec.shown import Shown


@dataclass(frozen=True, kw_only=True, repr=False)
class Format(Shown):
    """One way to store numbers: `row_bytes` and `pair_bytes` for a cache, `tensor_bytes` for weights."""

    name: str
    block_elements: int
    """Elements stored together."""
    block_bytes: int
    """Bytes of such a block, its own scales and minima included."""
    group_elements: int | None = None
    """Elements that share one scale, where a block packs the scales of several groups to whole bytes."""
    scale: str = "none"
    """``none``, ``tensor`` (too few to count), ``token`` or ``token_head``."""
    scale_bytes: int = 0
    """Bytes of the scales of one token, or of one token and head, in one stream."""
    v_scale_bytes: int | None = None
    """The same for V where it differs from K's."""
    v_block: tuple[int, int] | None = None
    """(elements, bytes) of a V block where it differs from K's."""
    align_bytes: int = 1
    """K and V of one token and head together are rounded up to this."""
    residual_tokens: int = 0
    """The newest tokens of a sequence that stay in 16 bits, at most (KIVI)."""
    edge_layers: int = 0
    """First and last layers, each this many, that stay in 16 bits (TurboQuant in vLLM)."""
    tile: tuple[int, int] | None = None
    """Weights: (rows, columns) of a tile that shares one scale kept beside the matrix."""
    tile_bytes: int = 0
    """Weights: bytes of the scale of one tile."""
    row_scale_bytes: int = 0
    """Weights: bytes of the scale of one output row."""
    use: str = "both"
    """``cache``, ``weights`` or ``both``."""
    aliases: tuple[str, ...] = ()
    weight_roles: tuple[str, ...] = MATRICES
    """Weights: the roles (`kvplan.spec.kind.ROLES`) stored in it unless a checkpoint says otherwise."""
    rest_format: str | None = None
    """Weights: how the other roles are stored; None: in the model's own dtype."""
    units: str = "16"
    """Matrix units that multiply what is stored so: ``fp8``, ``int8``, ``fp4``, or ``16``, once it is unpacked."""
    mix: str | None = None
    """Weights: the rule of `kvplan.spec.gguf_mix` by which a whole model in this format is stored."""
    source: str = ""

    def row_bytes(self, heads: int, head_dim: int, *, v: bool = False) -> int:
        """Bytes of one entry of `heads` vectors of `head_dim` elements, scales included.

        Blocks run along one head's vector, or over all heads where only that comes out whole; a
        last, partial block is stored whole. K and V of one token go through `pair_bytes`, which
        also knows the alignment of the two together.
        """
        elements, size = self.v_block if v and self.v_block else (self.block_elements, self.block_bytes)
        if elements == 1:
            data = heads * head_dim * size
        elif head_dim % elements and (heads * head_dim) % elements == 0:
            data = heads * head_dim // elements * size
        else:
            data = heads * -(-head_dim // elements) * size
        scales = self.v_scale_bytes if v and self.v_scale_bytes is not None else self.scale_bytes
        if self.scale == "token_head":
            data += heads * scales
        elif self.scale == "token":
            data += scales
        return data

    def pair_bytes(self, heads: int, dim_k: int, dim_v: int) -> tuple[int, int]:
        """(K bytes, V bytes) of one token in one layer: `heads` vectors of `dim_k` and of `dim_v`.

        K and V of one head are rounded up together to `align_bytes`; what that adds is counted
        with V.
        """
        k = self.row_bytes(heads, dim_k)
        v = self.row_bytes(heads, dim_v, v=True)
        if self.align_bytes > 1:
            one_head = self.row_bytes(1, dim_k) + self.row_bytes(1, dim_v, v=True)
            v += heads * (-one_head % self.align_bytes)
        return k, v

    def tensor_bytes(self, elements: int, row_elements: int) -> int:
        """Bytes of a weight tensor of `elements` in rows of `row_elements`; partial groups are whole."""
        rows = elements // row_elements if row_elements else 0
        if self.block_elements == 1:
            data = elements * self.block_bytes
        else:
            group = self.group_elements or self.block_elements
            groups = rows * -(-row_elements // group) if rows else 0
            data = -(-groups * group * self.block_bytes // self.block_elements)
        if self.tile and rows:
            data += -(-rows // self.tile[0]) * -(-row_elements // self.tile[1]) * self.tile_bytes
        return data + rows * self.row_scale_bytes

    def mean_bits(self, heads: int = 8, head_dim: int = 128) -> float:
        """Bits per element of K and V at these shapes, scales included; for people to read."""
        if heads * head_dim % self.block_elements:
            return 8 * self.block_bytes / self.block_elements
        return 8 * sum(self.pair_bytes(heads, head_dim, head_dim)) / (2 * heads * head_dim)


def format_names(use: str | None = None) -> list[str]:
    """Canonical names, in table order; with `use` (``cache`` or ``weights``) those that serve it."""
    return [name for name in FORMATS if _serves(name, use)]


def element_bytes(name: str, where: str) -> int:
    """Bytes of one element of a state stored as `name`.

    Raises:
        UnknownNameError: no such format.
        InputError: a format in blocks or with scales; states are stored plain.
    """
    found = get_format(name, use="cache", where=where)
    if found.block_elements != 1 or found.scale not in ("none", "tensor"):
        raise InputError(
            f"states are not stored in {found.name}", where=where, hint=f"type {where} float32 or bfloat16"
        )
    return found.block_bytes


@lru_cache(maxsize=1024)
def get_format(name: str, *, use: str | None = None, where: str | None = None) -> Format:
    """The format of that name or alias, whatever its case.

    Raises:
        UnknownNameError: no such format, or none that serves `use`.
    """
    key = name.lower()
    spellings = (key, key.replace("-", "_"))
    canonical = next((n for n in (*spellings, *map(FORMAT_ALIASES.get, spellings)) if n in FORMATS), None)
    if canonical is None or not _serves(canonical, use):
        known = [n for n in FORMATS if _serves(n, use)] + [a for a, n in FORMAT_ALIASES.items() if _serves(n, use)]
        more = "`kvplan formats` lists them"
        if canonical is not None:
            more = f"{canonical} is a format for {FORMATS[canonical]['use']} only; {more}"
        elif key == "auto":
            more = f"leave the flag out to take what the checkpoint says; {more}"
        raise UnknownNameError(f"{use or 'storage'} format", name, known, where=where, more=more)
    return Format(name=canonical, **FORMATS[canonical])


def _serves(name: str, use: str | None) -> bool:
    return use is None or FORMATS[name].get("use", "both") in ("both", use)

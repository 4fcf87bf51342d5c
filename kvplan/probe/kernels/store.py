"""Pages of K and V as the probe's kernels read them, filled with random numbers and read back in float64.

The layout is the probe's own: ``[block, kv head, slot, element]``, and V of 8 and 4 bits transposed in its page,
``[block, kv head, element, slot]``, so that a product over tokens reads whole words. Scales are beside the data,
``[block, kv head, slot]`` in fp32 for int8 and ``[block, kv head, group, slot]`` in fp16 for int4 (groups of 32
elements of one token). It takes the same bytes a token as the planner's format of the same name.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch

from kvplan.errors import UnsupportedError

FORMATS = ("bf16", "fp16", "fp8_e4m3", "int8_per_token_head", "int4_g32")
"""Formats that have pages here."""
INT4_GROUP = 32
_DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp8_e4m3": torch.float8_e4m3fn,
           "int8_per_token_head": torch.int8, "int4_g32": torch.uint8}  # fmt: skip
_ENCODING_BYTES = 24
"""Of an element while it is drawn and encoded: fp32 and the steps to what is stored."""
_WIDE_BYTES, _NARROW_BYTES = 8, 16
"""Of an element while operators read it: gathered and laid out by heads, in 16 bits or widened to fp32."""
_CHUNK_ELEMENTS = 1 << 26
"""Random numbers drawn at once while filling."""
_CPU_ELEMENTS, _LEAST_PAGES = 1 << 20, 8
"""The same on a CPU, where the rest repeats them; and pages that differ at least."""


class HeadShape(NamedTuple):
    """The attention of one layer on one rank."""

    query_heads: int
    kv_heads: int
    head_dim: int
    """Elements of K; of the whole row for latent attention."""
    head_dim_v: int
    """Elements of V; the first ones of the row for latent attention."""
    latent: bool = False
    """One row is K and V (`kv_heads` is 1)."""
    score_dim: int | None = None
    """Scores are divided by this one's square root; None: `head_dim`'s (latent attention divides by less)."""

    @property
    def group(self) -> int:
        """Query heads that share a KV head."""
        return self.query_heads // self.kv_heads

    @property
    def scale(self) -> float:
        """Factor of the scores."""
        return float((self.score_dim or self.head_dim) ** -0.5)


def row_bytes(shape: HeadShape, fmt: str) -> int:
    """Bytes that one token takes in one layer, scales included; what a decode step reads of it."""
    widths = [shape.head_dim] if shape.latent else [shape.head_dim, shape.head_dim_v]
    return sum(shape.kv_heads * _vector_bytes(width, fmt) for width in widths)


def _vector_bytes(width: int, fmt: str) -> int:
    if fmt == "int4_g32":
        return -(-width // INT4_GROUP) * (INT4_GROUP // 2 + 2)
    if fmt == "int8_per_token_head":
        return width + 4
    return width * int(_DTYPES[fmt].itemsize)


@dataclass(frozen=True, kw_only=True)
class PagedKv:
    """A pool of pages of one layer shape."""

    shape: HeadShape
    format: str
    page: int
    """Tokens per page."""
    k: torch.Tensor
    v: torch.Tensor | None
    """None for latent rows."""
    k_scale: torch.Tensor | None
    v_scale: torch.Tensor | None
    transposed: bool
    """V lies with its slots last."""

    @property
    def blocks(self) -> int:
        """Pages in the pool."""
        return int(self.k.shape[0])

    @property
    def num_bytes(self) -> int:
        """Of all tensors."""
        tensors = (self.k, self.v, self.k_scale, self.v_scale)
        return sum(t.numel() * t.element_size() for t in tensors if t is not None)


def workspace_bytes(shape: HeadShape, fmt: str) -> int:
    """Bytes a cached token takes besides its pages where torch operators gather and widen it."""
    width = shape.kv_heads * (shape.head_dim + (0 if shape.latent else shape.head_dim_v))
    return width * (_WIDE_BYTES if fmt in ("bf16", "fp16") else _NARROW_BYTES)


def v_transposed(fmt: str) -> bool:
    """Whether V of this format lies transposed in its page."""
    return fmt in ("fp8_e4m3", "int8_per_token_head", "int4_g32")


def unserved(shape: HeadShape, fmt: str) -> str | None:
    """Why there are no pages of such heads in a format; None: there are."""
    dims = (shape.head_dim, shape.head_dim_v)
    if fmt == "int4_g32" and any(d % (2 * INT4_GROUP) for d in dims):
        return f"int4 pages hold heads of a multiple of {2 * INT4_GROUP} elements, not {dims}"
    return None


def allocate(
    shape: HeadShape, fmt: str, blocks: int, page: int, device: Any, *, transposed: bool | None = None
) -> PagedKv:
    """An empty pool (zeros: every slot must hold finite numbers, as tiles are read whole).

    Args:
        transposed: V with its slots last; None: as the Triton kernels want it for the format.

    Raises:
        UnsupportedError: no pages in this format or for these head sizes.
    """
    if fmt not in FORMATS:
        raise UnsupportedError(f"the probe has no pages in {fmt}", hint=f"measure with {', '.join(FORMATS)}")
    if (reason := unserved(shape, fmt)) is not None:
        raise UnsupportedError(reason)
    turned = (v_transposed(fmt) if transposed is None else transposed) and not shape.latent
    dtype, per_byte = _DTYPES[fmt], 2 if fmt == "int4_g32" else 1

    def data(width: int, slots_last: bool) -> torch.Tensor:
        inner = (width // per_byte, page) if slots_last else (page, width // per_byte)
        return torch.zeros((blocks, shape.kv_heads, *inner), dtype=dtype, device=device)

    def scales(width: int) -> torch.Tensor | None:
        if fmt == "int8_per_token_head":
            return torch.zeros((blocks, shape.kv_heads, page), dtype=torch.float32, device=device)
        if fmt == "int4_g32":
            groups = width // INT4_GROUP
            return torch.zeros((blocks, shape.kv_heads, groups, page), dtype=torch.float16, device=device)
        return None

    return PagedKv(
        shape=shape, format=fmt, page=page, k=data(shape.head_dim, False),
        v=None if shape.latent else data(shape.head_dim_v, turned), k_scale=scales(shape.head_dim),
        v_scale=None if shape.latent else scales(shape.head_dim_v), transposed=turned,
    )  # fmt: skip


def fill_random(pool: PagedKv, seed: int = 0) -> None:
    """Standard normal K and V, stored as the format stores them.

    On a CPU, where drawing takes longer than reading, the first pages are repeated: there are many of them, so that
    a wrong page still shows.
    """
    device, shape = pool.k.device, pool.shape
    generator = torch.Generator(device=device).manual_seed(seed)
    elements = min(_CHUNK_ELEMENTS, pool.num_bytes // _ENCODING_BYTES // 4)  # a quarter of the pool besides it
    on_cpu = device.type == "cpu"
    if on_cpu:
        elements = min(elements, _CPU_ELEMENTS)
    each = shape.kv_heads * pool.page * max(shape.head_dim, 1)
    step = max(1, elements // each)
    drawn = min(pool.blocks, max(step, _LEAST_PAGES)) if on_cpu else pool.blocks
    for start in range(0, drawn, step):
        chosen = slice(start, min(start + step, drawn))
        count = chosen.stop - chosen.start
        for is_value, data, scale in ((False, pool.k, pool.k_scale), (True, pool.v, pool.v_scale)):
            if data is None:
                continue
            size = (count, shape.kv_heads, pool.page, shape.head_dim_v if is_value else shape.head_dim)
            values = torch.randn(size, generator=generator, device=device, dtype=torch.float32)
            packed, scales = encode(values, pool.format)
            data[chosen] = packed.transpose(-1, -2) if is_value and pool.transposed else packed
            if scale is not None and scales is not None:
                scale[chosen] = scales
    for start in range(drawn, pool.blocks, max(drawn, 1)):
        count = min(drawn, pool.blocks - start)
        for data in (pool.k, pool.v, pool.k_scale, pool.v_scale):
            if data is not None:
                data[start : start + count] = data[:count]


def encode(values: torch.Tensor, fmt: str) -> tuple[torch.Tensor, torch.Tensor | None]:
    """(stored numbers [..., slot, width or bytes], scales or None) of float32 `values` [..., slot, width].

    int8 and int4 are symmetric: the largest magnitude of a vector (of a group of 32) maps to 127 (7). Group 2h of
    int4 is in the low nibbles of bytes 32h to 32h + 31, group 2h + 1 in their high nibbles, offset by 8.
    """
    if fmt == "int8_per_token_head":
        scale = (values.abs().amax(-1) / 127).clamp_min(1e-12)
        return (values / scale[..., None]).round().clamp(-127, 127).to(torch.int8), scale
    if fmt == "int4_g32":
        grouped = values.unflatten(-1, (-1, INT4_GROUP))
        scale = (grouped.abs().amax(-1) / 7).clamp_min(1e-6).to(torch.float16)
        codes = ((grouped / scale[..., None].float()).round().clamp(-7, 7) + 8).to(torch.uint8)
        pairs = codes.unflatten(-2, (-1, 2))
        packed = pairs[..., 0, :] | (pairs[..., 1, :] << 4)
        return packed.flatten(-2), scale.transpose(-1, -2)
    return values.to(_DTYPES[fmt]), None


def decode(packed: torch.Tensor, scale: torch.Tensor | None, fmt: str, dtype: torch.dtype) -> torch.Tensor:
    """The numbers that `encode` stored, in `dtype`."""
    if fmt == "int8_per_token_head" and scale is not None:
        return packed.to(dtype).mul_(scale[..., None].to(dtype))
    if fmt == "int4_g32" and scale is not None:
        bytes_ = packed.unflatten(-1, (-1, INT4_GROUP))
        codes = torch.stack((bytes_ & 15, bytes_ >> 4), -2).flatten(-3, -2).to(dtype).sub_(8)
        return codes.mul_(scale.transpose(-1, -2)[..., None].to(dtype)).flatten(-2)
    if fmt == "fp8_e4m3" and packed.device.type == "cpu":
        known = torch.arange(256, dtype=torch.uint8).view(packed.dtype).to(dtype)  # six times as fast as converting
        return known.index_select(0, packed.contiguous().view(torch.uint8).flatten().int()).view(packed.shape)
    return packed.to(dtype)


def gather(pool: PagedKv, table: torch.Tensor, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """K and V of the pages in `table` [..., pages] as [..., kv head, pages x slots, width] in `dtype`."""
    found = []
    for is_value, data, scale in ((False, pool.k, pool.k_scale), (True, pool.v, pool.v_scale)):
        if data is None:
            continue
        pages = data[table.long()]
        if is_value and pool.transposed:
            pages = pages.transpose(-1, -2)
        pages = pages.transpose(-4, -3).contiguous()  # as stored: laid out by heads while it is narrow
        scales = None if scale is None else scale[table.long()].transpose(1 - scale.dim(), -scale.dim())
        found.append(decode(pages, scales, pool.format, dtype).flatten(-3, -2))
    k = found[0]
    return k, found[1] if len(found) > 1 else k[..., : pool.shape.head_dim_v]


def some_heads(pool: PagedKv, first: int, last: int) -> PagedKv:
    """The same pages, as if KV heads `first` to `last` were all there are."""
    shape = pool.shape
    cut = (None if x is None else x[:, first:last] for x in (pool.v, pool.k_scale, pool.v_scale))
    v, k_scale, v_scale = cut
    own = shape._replace(kv_heads=last - first, query_heads=(last - first) * shape.group)
    return replace(pool, shape=own, k=pool.k[:, first:last], v=v, k_scale=k_scale, v_scale=v_scale)


def random_tables(pool: PagedKv, copies: int, batch: int, context: int, seed: int = 0, start: int = 0) -> torch.Tensor:
    """[copies, batch, pages] int32: distinct pages in random order, as an engine hands them out after a while.

    Args:
        start: pages of that order that others have already taken.
    """
    pages = -(-context // pool.page)
    wanted = copies * batch * pages
    if start + wanted > pool.blocks:
        raise ValueError(f"{copies} x {batch} x {pages} pages after {start} of a pool of {pool.blocks}")
    generator = torch.Generator().manual_seed(seed)
    order = torch.randperm(pool.blocks, generator=generator, dtype=torch.int32)[start : start + wanted]
    return order.reshape(copies, batch, pages).to(pool.k.device)

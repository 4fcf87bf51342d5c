"""Pieces that the Triton kernels share: where a tile lies, how stored numbers become 16-bit floats, the reduction.

Integers are widened by byte permutation: a byte under the byte 0x64 is the fp16 number 1024 + byte, and a nibble
under zeros the subnormal number nibble x 2^-24; both are exact and need no conversion instruction (one in four
multiprocessor cycles). Where inline assembly does not run (the interpreter, AMD) plain conversions do.
"""

from __future__ import annotations

import triton
import triton.language as tl

WIDE = tl.constexpr(0)
FP8 = tl.constexpr(1)
INT8 = tl.constexpr(2)

LOW_UNIT = tl.constexpr(2.0**24)
"""`nibbles` returns low nibbles in units of 2^-24 ..."""
HIGH_UNIT = tl.constexpr(2.0**20)
"""... and high ones in units of 2^-20."""


@triton.jit
def widen(x, FORMAT: tl.constexpr, ASM: tl.constexpr):
    """A tile as its product takes it: bf16 and fp16 as they are, e4m3 and int8 as fp16 (both exact)."""
    if FORMAT == 2:
        if ASM:
            return tl.inline_asm_elementwise(
                """{
                .reg .b32 t, c;
                xor.b32 t, $2, 0x80808080;
                mov.b32 c, 0x64806480;
                prmt.b32 $0, t, 0x64646464, 0x4140;
                prmt.b32 $1, t, 0x64646464, 0x4342;
                sub.rn.f16x2 $0, $0, c;
                sub.rn.f16x2 $1, $1, c;
                }""",
                "=&r,=&r,r", [x], dtype=tl.float16, is_pure=True, pack=4,
            )  # fmt: skip
        else:  # branches on constants need an else: a plain return would be compiled as a second type
            return x.to(tl.float16)
    elif FORMAT == 1:
        return x.to(tl.float16)
    else:
        return x


@triton.jit
def nibbles(x, ASM: tl.constexpr):
    """(low, high) nibbles of bytes, unsigned, as fp16 in units of 2^-24 and 2^-20."""
    if ASM:
        return tl.inline_asm_elementwise(
            """{
            .reg .b32 a, b;
            prmt.b32 a, $4, 0, 0x4140;
            prmt.b32 b, $4, 0, 0x4342;
            and.b32 $0, a, 0x000f000f;
            and.b32 $1, b, 0x000f000f;
            and.b32 $2, a, 0x00f000f0;
            and.b32 $3, b, 0x00f000f0;
            }""",
            "=&r,=&r,=&r,=&r,r", [x], dtype=(tl.float16, tl.float16), is_pure=True, pack=4,
        )  # fmt: skip
    else:
        low = (x & 15).to(tl.float32) / 16777216.0
        high = (x >> 4).to(tl.float32) / 1048576.0
        return low.to(tl.float16), high.to(tl.float16)


@triton.jit
def signed_nibbles(x, ASM: tl.constexpr):
    """(low - 8, 16 x (high - 8)) of bytes as fp16: their sums stay small, however many tokens are summed."""
    if ASM:
        return tl.inline_asm_elementwise(
            """{
            .reg .b32 a, b, c, d;
            prmt.b32 a, $4, 0, 0x4140;
            prmt.b32 b, $4, 0, 0x4342;
            mov.b32 c, 0x64086408;
            mov.b32 d, 0x64806480;
            lop3.b32 $0, a, 0x000f000f, 0x64006400, 0xea;
            lop3.b32 $1, b, 0x000f000f, 0x64006400, 0xea;
            lop3.b32 $2, a, 0x00f000f0, 0x64006400, 0xea;
            lop3.b32 $3, b, 0x00f000f0, 0x64006400, 0xea;
            sub.rn.f16x2 $0, $0, c;
            sub.rn.f16x2 $1, $1, c;
            sub.rn.f16x2 $2, $2, d;
            sub.rn.f16x2 $3, $3, d;
            }""",
            "=&r,=&r,=&r,=&r,r", [x], dtype=(tl.float16, tl.float16), is_pure=True, pack=4,
        )  # fmt: skip
    else:
        low = (x & 15).to(tl.float16) - 8.0
        high = ((x >> 4).to(tl.float16) - 8.0) * 16.0
        return low, high


@triton.jit
def let_next_start():
    """The grid launched after this one may start once every program here got so far (Hopper and later)."""
    tl.inline_asm_elementwise(
        "griddepcontrol.launch_dependents; // $0", "=r", [], dtype=tl.int32, is_pure=False, pack=1
    )


@triton.jit
def await_previous():
    """Wait until the grid before this one is done and what it wrote can be seen (Hopper and later)."""
    tl.inline_asm_elementwise("griddepcontrol.wait; // $0", "=r", [], dtype=tl.int32, is_pure=False, pack=1)


@triton.jit
def place(table_ptr, tile, offsets, head, HEADS: tl.constexpr, PAGE: tl.constexpr, BN: tl.constexpr):
    """(index of the page and head, slot in the page) of the tokens of a tile.

    Args:
        table_ptr: this sequence's row of the block table.
        tile: number of the tile of `BN` tokens.
        offsets: ``arange(BN)``. One page holds a whole tile, or a tile covers whole pages.
    """
    if PAGE >= BN:
        page = tl.load(table_ptr + tile // (PAGE // BN))
        rows = page.to(tl.int64) * HEADS + head + tl.zeros_like(offsets)
        return rows, (tile % (PAGE // BN)) * BN + offsets
    else:
        pages = tl.load(table_ptr + tile * (BN // PAGE) + offsets // PAGE)
        return pages.to(tl.int64) * HEADS + head, offsets % PAGE


@triton.jit
def split_bounds(length, split, splits, BN: tl.constexpr):
    """First tile of a split and the one after its last."""
    tiles = tl.cdiv(length, BN)
    each = tl.cdiv(tiles, splits)
    first = split * each
    return first, tl.minimum(first + each, tiles)


@triton.jit(do_not_specialize=["splits"])
def reduce_splits(part_ptr, lse_ptr, out_ptr, splits, SPLITS_PAD: tl.constexpr, DV: tl.constexpr, DIMS: tl.constexpr):
    """`DIMS` elements of one row of the output from the rows of its splits, weighted by their log2 sums."""
    row = tl.program_id(0).to(tl.int64)
    lanes, dims = tl.arange(0, SPLITS_PAD), tl.program_id(1) * DIMS + tl.arange(0, DIMS)
    lse = tl.load(lse_ptr + row * splits + lanes, mask=lanes < splits, other=float("-inf"))
    weight = tl.exp2(lse - tl.max(lse, 0))
    inside = (lanes < splits)[:, None] & (dims < DV)[None, :]
    part = tl.load(part_ptr + (row * splits + lanes)[:, None] * DV + dims[None, :], mask=inside, other=0.0)
    total = tl.sum(part * weight[:, None], 0) / tl.sum(weight, 0)
    tl.store(out_ptr + row * DV + dims, total.to(out_ptr.dtype.element_ty), mask=dims < DV)


@triton.jit
def finish(acc, peak, total, rows, dims, keep, split, part_ptr, lse_ptr, out_ptr, DV: tl.constexpr,
           splits, SPLIT: tl.constexpr):  # fmt: skip
    """Write `acc` (heads x dims, or dims x heads by the shape of `rows` and `dims`): the output, or a split's part.

    Args:
        peak, total, rows, keep: one entry per head, in the orientation of `acc`.
    """
    safe = tl.where(total > 0, total, 1.0)
    value = acc / safe
    if not SPLIT:
        tl.store(out_ptr + rows * DV + dims, value.to(out_ptr.dtype.element_ty), mask=keep & (dims < DV))
    else:
        tl.store(part_ptr + (rows * splits + split) * DV + dims, value, mask=keep & (dims < DV))

"""What stands between matrix products and attention in a layer, one kernel each, as engines fuse it."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def add_norm(x_ptr, rest_ptr, weight_ptr, out_ptr, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    """rest += x; out = rest / rms(rest) * weight, a row a program (arXiv 1910.07467)."""
    row = tl.program_id(0).to(tl.int64) * WIDTH
    dims = tl.arange(0, BLOCK)
    inside = dims < WIDTH
    total = tl.load(x_ptr + row + dims, mask=inside, other=0.0).to(tl.float32)
    total += tl.load(rest_ptr + row + dims, mask=inside, other=0.0).to(tl.float32)
    tl.store(rest_ptr + row + dims, total.to(rest_ptr.dtype.element_ty), mask=inside)
    scale = tl.rsqrt(tl.sum(total * total, 0) / WIDTH + 1e-6)
    weight = tl.load(weight_ptr + dims, mask=inside, other=0.0).to(tl.float32)
    tl.store(out_ptr + row + dims, (total * scale * weight).to(out_ptr.dtype.element_ty), mask=inside)


@triton.jit
def rotate(
    y_ptr, turn_ptr, out_ptr, stride, HEADS: tl.constexpr, DIM: tl.constexpr, HALF: tl.constexpr, TURN: tl.constexpr
):  # fmt: skip
    """Rotary positions, a head a program: `y` [rows, stride], `turn` [2, TURN] (cos, sin), of which DIM / 2 count."""
    pid = tl.program_id(0).to(tl.int64)
    row, head = pid // HEADS, pid % HEADS
    half = tl.arange(0, HALF)
    inside = half < DIM // 2
    at = y_ptr + row * stride + head * DIM
    low = tl.load(at + half, mask=inside, other=0.0).to(tl.float32)
    high = tl.load(at + DIM // 2 + half, mask=inside, other=0.0).to(tl.float32)
    cos = tl.load(turn_ptr + half, mask=inside, other=1.0)
    sin = tl.load(turn_ptr + TURN + half, mask=inside, other=0.0)
    to = out_ptr + pid * DIM
    tl.store(to + half, (low * cos - high * sin).to(out_ptr.dtype.element_ty), mask=inside)
    tl.store(to + DIM // 2 + half, (high * cos + low * sin).to(out_ptr.dtype.element_ty), mask=inside)


@triton.jit
def gate(y_ptr, out_ptr, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    """out = silu(y[:WIDTH]) * y[WIDTH:] of every row (arXiv 2002.05202)."""
    row, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    dims = part * BLOCK + tl.arange(0, BLOCK)
    inside = dims < WIDTH
    first = tl.load(y_ptr + row * 2 * WIDTH + dims, mask=inside, other=0.0).to(tl.float32)
    second = tl.load(y_ptr + row * 2 * WIDTH + WIDTH + dims, mask=inside, other=0.0).to(tl.float32)
    value = first * tl.sigmoid(first) * second
    tl.store(out_ptr + row * WIDTH + dims, value.to(out_ptr.dtype.element_ty), mask=inside)

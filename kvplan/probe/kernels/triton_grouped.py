"""Decode attention over int4 pages with an fp16 scale per token and 32 elements.

A page keeps two groups of 32 elements in 32 bytes, one in the low and one in the high nibbles, so each product
covers exactly one group: K's scales multiply 16 x 64 scores instead of 64 x 128 elements. K's nibbles enter as
subnormals and their offset of 8 through the accumulator; V's are made signed first, as its sums run over the
whole context and an offset would drown them.
"""

from __future__ import annotations

import triton
import triton.language as tl

from kvplan.probe.kernels.triton_common import finish, nibbles, place, signed_nibbles, split_bounds

_GROUP = tl.constexpr(32)


@triton.jit
def _query(q_ptr, rows, keep, group, D: tl.constexpr, COLUMNS: tl.constexpr):
    """(fp16 queries of one group, minus 8 times their sums in the unit of low nibbles)."""
    dims = group * 32 + tl.arange(0, 32)
    if COLUMNS:
        q = tl.load(q_ptr + rows[None, :] * D + dims[:, None], mask=keep[None, :], other=0.0).to(tl.float16)
        return q, tl.sum(q.to(tl.float32), 0) * (-8.0 / 16777216.0)
    else:
        q = tl.load(q_ptr + rows[:, None] * D + dims[None, :], mask=keep[:, None], other=0.0).to(tl.float16)
        return q, tl.sum(q.to(tl.float32), 1) * (-8.0 / 16777216.0)


@triton.jit
def _score(k_at, ks_at, stride: tl.constexpr, q0, o0, q1, o1, COLUMNS: tl.constexpr, ASM: tl.constexpr):
    """The scores of two groups: bytes [tokens, 32], scales [tokens] of the first and `stride` further of the second."""
    low, high = nibbles(tl.load(k_at), ASM)
    ks0 = tl.load(ks_at).to(tl.float32) * 16777216.0
    ks1 = tl.load(ks_at + stride).to(tl.float32) * 1048576.0
    if COLUMNS:
        s0 = tl.dot(low, q0) + o0[None, :]
        s1 = tl.dot(high, q1) + (o1 * 16.0)[None, :]
        return s0 * ks0[:, None] + s1 * ks1[:, None]
    else:
        s0 = tl.dot(q0, tl.trans(low)) + o0[:, None]
        s1 = tl.dot(q1, tl.trans(high)) + (o1 * 16.0)[:, None]
        return s0 * ks0[None, :] + s1 * ks1[None, :]


@triton.jit
def _add(v_at, vs_at, stride: tl.constexpr, p, a0, a1, shrink, COLUMNS: tl.constexpr, SCALE_V: tl.constexpr,
         ASM: tl.constexpr):  # fmt: skip
    """`a0` and `a1` (16 x the second group) after one tile: bytes [32, tokens], weights `p`."""
    low, high = signed_nibbles(tl.load(v_at), ASM)
    vs0, vs1 = tl.load(vs_at), tl.load(vs_at + stride)
    if SCALE_V:
        low, high = low * vs0[None, :], high * vs1[None, :]
        p0, p1 = p.to(tl.float16), p.to(tl.float16)
    else:
        vs0, vs1 = vs0.to(tl.float32), vs1.to(tl.float32)
        p0 = (p * (vs0[:, None] if COLUMNS else vs0[None, :])).to(tl.float16)
        p1 = (p * (vs1[:, None] if COLUMNS else vs1[None, :])).to(tl.float16)
    if COLUMNS:
        a0 = tl.dot(low, p0, a0 * shrink[None, :])
        a1 = tl.dot(high, p1, a1 * shrink[None, :])
    else:
        a0 = tl.dot(p0, tl.trans(low), a0 * shrink[:, None])
        a1 = tl.dot(p1, tl.trans(high), a1 * shrink[:, None])
    return a0, a1


@triton.jit(do_not_specialize=["table_stride", "splits"])
def grouped(
    q_ptr, k_ptr, v_ptr, ks_ptr, vs_ptr, table_ptr, lens_ptr, out_ptr, part_ptr, lse_ptr, scale, table_stride, splits,
    HEADS: tl.constexpr, GROUP: tl.constexpr, GROUP_PAD: tl.constexpr, D: tl.constexpr, PAGE: tl.constexpr,
    BN: tl.constexpr, SPLIT: tl.constexpr, COLUMNS: tl.constexpr, SCALE_V: tl.constexpr, ASM: tl.constexpr,
):  # fmt: skip
    """Decode attention for heads of 64, 128 or 256 elements; `COLUMNS`: tokens as rows, heads as columns."""
    pid = tl.program_id(0)
    head, split, seq = pid % HEADS, pid // HEADS % splits, pid // (HEADS * splits)
    # first of all: which pages are read hangs on it
    length = tl.load(lens_ptr + seq)
    first, last = split_bounds(length, split, splits, BN)
    heads, tokens, byte = tl.arange(0, GROUP_PAD), tl.arange(0, BN), tl.arange(0, 32)
    rows = (seq * HEADS + head) * GROUP + heads
    keep = heads < GROUP
    groups: tl.constexpr = D // 32
    q0, o0 = _query(q_ptr, rows, keep, 0, D, COLUMNS)
    q1, o1 = _query(q_ptr, rows, keep, 1, D, COLUMNS)
    if groups >= 4:
        q2, o2 = _query(q_ptr, rows, keep, 2, D, COLUMNS)
        q3, o3 = _query(q_ptr, rows, keep, 3, D, COLUMNS)
    if groups == 8:
        q4, o4 = _query(q_ptr, rows, keep, 4, D, COLUMNS)
        q5, o5 = _query(q_ptr, rows, keep, 5, D, COLUMNS)
        q6, o6 = _query(q_ptr, rows, keep, 6, D, COLUMNS)
        q7, o7 = _query(q_ptr, rows, keep, 7, D, COLUMNS)
    peak = tl.full([GROUP_PAD], float("-inf"), tl.float32)
    total = tl.zeros([GROUP_PAD], tl.float32)
    a0 = tl.zeros([32, GROUP_PAD] if COLUMNS else [GROUP_PAD, 32], tl.float32)
    a1, a2, a3, a4, a5, a6, a7 = a0, a0, a0, a0, a0, a0, a0
    for tile in range(first, last):
        at, slot = place(table_ptr + seq.to(tl.int64) * table_stride, tile, tokens, head, HEADS, PAGE, BN)
        k_at = k_ptr + at[:, None] * (PAGE * D // 2) + slot[:, None] * (D // 2) + byte[None, :]
        v_at = v_ptr + at[None, :] * (PAGE * D // 2) + slot[None, :] + byte[:, None] * PAGE
        scales = at * (groups * PAGE) + slot
        s = _score(k_at, ks_ptr + scales, PAGE, q0, o0, q1, o1, COLUMNS, ASM)
        if groups >= 4:
            s += _score(k_at + 32, ks_ptr + scales + 2 * PAGE, PAGE, q2, o2, q3, o3, COLUMNS, ASM)
        if groups == 8:
            s += _score(k_at + 64, ks_ptr + scales + 4 * PAGE, PAGE, q4, o4, q5, o5, COLUMNS, ASM)
            s += _score(k_at + 96, ks_ptr + scales + 6 * PAGE, PAGE, q6, o6, q7, o7, COLUMNS, ASM)
        inside = tile * BN + tokens < length
        s = tl.where(inside[:, None] if COLUMNS else inside[None, :], s * scale, float("-inf"))
        top = tl.maximum(peak, tl.max(s, 0 if COLUMNS else 1))
        p = tl.exp2(s - (top[None, :] if COLUMNS else top[:, None]))
        shrink = tl.exp2(peak - top)
        total = total * shrink + tl.sum(p, 0 if COLUMNS else 1)
        peak = top
        a0, a1 = _add(v_at, vs_ptr + scales, PAGE, p, a0, a1, shrink, COLUMNS, SCALE_V, ASM)
        if groups >= 4:
            a2, a3 = _add(v_at + 32 * PAGE, vs_ptr + scales + 2 * PAGE, PAGE, p, a2, a3, shrink, COLUMNS, SCALE_V, ASM)
        if groups == 8:
            a4, a5 = _add(v_at + 64 * PAGE, vs_ptr + scales + 4 * PAGE, PAGE, p, a4, a5, shrink, COLUMNS, SCALE_V, ASM)
            a6, a7 = _add(v_at + 96 * PAGE, vs_ptr + scales + 6 * PAGE, PAGE, p, a6, a7, shrink, COLUMNS, SCALE_V, ASM)
    if SPLIT:
        tl.store(lse_ptr + rows * splits + split, peak + tl.log2(total), mask=keep)
    _finish(a0, a1, 0, total, rows, keep, split, part_ptr, lse_ptr, out_ptr, D, splits, SPLIT, COLUMNS)
    if groups >= 4:
        _finish(a2, a3, 64, total, rows, keep, split, part_ptr, lse_ptr, out_ptr, D, splits, SPLIT, COLUMNS)
    if groups == 8:
        _finish(a4, a5, 128, total, rows, keep, split, part_ptr, lse_ptr, out_ptr, D, splits, SPLIT, COLUMNS)
        _finish(a6, a7, 192, total, rows, keep, split, part_ptr, lse_ptr, out_ptr, D, splits, SPLIT, COLUMNS)


@triton.jit
def _finish(a0, a1, start, total, rows, keep, split, part_ptr, lse_ptr, out_ptr, D: tl.constexpr, splits,
            SPLIT: tl.constexpr, COLUMNS: tl.constexpr):  # fmt: skip
    dims = start + tl.arange(0, 32)
    if COLUMNS:
        finish(a0, total[None, :], total[None, :], rows[None, :], dims[:, None], keep[None, :], split, part_ptr,
               lse_ptr, out_ptr, D, splits, SPLIT)  # fmt: skip
        finish(a1 * 0.0625, total[None, :], total[None, :], rows[None, :], (dims + 32)[:, None], keep[None, :], split,
               part_ptr, lse_ptr, out_ptr, D, splits, SPLIT)  # fmt: skip
    else:
        finish(a0, total[:, None], total[:, None], rows[:, None], dims[None, :], keep[:, None], split, part_ptr,
               lse_ptr, out_ptr, D, splits, SPLIT)  # fmt: skip
        finish(a1 * 0.0625, total[:, None], total[:, None], rows[:, None], (dims + 32)[None, :], keep[:, None], split,
               part_ptr, lse_ptr, out_ptr, D, splits, SPLIT)  # fmt: skip

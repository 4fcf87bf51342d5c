"""Decode attention in Triton: 16-bit, e4m3 and int8 caches; query heads that share a KV head work together.

Each program takes one KV head of one sequence and one split of its context (flash-decoding: Dao et al.,
"Flash-Decoding for long-context inference", 2023), with the softmax kept online (arXiv 2205.14135, section 3.1).
Two orientations: heads as rows, which suits V as it is usually laid out, and tokens as rows, which lets 8-bit V,
stored transposed in its page, be read by whole words and pads the heads to 8 only.
"""

from __future__ import annotations

import triton
import triton.language as tl

from kvplan.probe.kernels.triton_common import await_previous, finish, let_next_start, place, split_bounds, widen


@triton.jit(do_not_specialize=["table_stride", "splits"])
def heads_as_rows(
    q_ptr, k_ptr, v_ptr, ks_ptr, vs_ptr, table_ptr, lens_ptr, out_ptr, part_ptr, lse_ptr, scale, v_scale, table_stride,
    splits, FORMAT: tl.constexpr, TRANSPOSED: tl.constexpr, HEADS: tl.constexpr, GROUP: tl.constexpr,
    GROUP_PAD: tl.constexpr, D: tl.constexpr, D_PAD: tl.constexpr, DV: tl.constexpr, DV_PAD: tl.constexpr,
    PAGE: tl.constexpr, BN: tl.constexpr, SPLIT: tl.constexpr, ASM: tl.constexpr,
):  # fmt: skip
    """Scores as [heads, tokens]. Shapes: q [seq, kv head x GROUP, D]; pages as `store.PagedKv` lays them out."""
    pid = tl.program_id(0)
    head, split, seq = pid % HEADS, pid // HEADS % splits, pid // (HEADS * splits)
    # first of all: which pages are read hangs on it
    length = tl.load(lens_ptr + seq)
    first, last = split_bounds(length, split, splits, BN)
    heads, tokens = tl.arange(0, GROUP_PAD), tl.arange(0, BN)
    dims, vdims = tl.arange(0, D_PAD), tl.arange(0, DV_PAD)
    rows = (seq * HEADS + head) * GROUP + heads
    keep = heads < GROUP
    q = tl.load(q_ptr + rows[:, None] * D + dims[None, :], mask=keep[:, None] & (dims < D)[None, :], other=0.0)
    kind = q.dtype if FORMAT == 0 else tl.float16
    q = q.to(kind)
    peak = tl.full([GROUP_PAD], float("-inf"), tl.float32)
    total = tl.zeros([GROUP_PAD], tl.float32)
    acc = tl.zeros([GROUP_PAD, DV_PAD], tl.float32)
    for tile in range(first, last):
        at, slot = place(table_ptr + seq.to(tl.int64) * table_stride, tile, tokens, head, HEADS, PAGE, BN)
        k_at = k_ptr + at[:, None] * (PAGE * D) + slot[:, None] * D + dims[None, :]
        k = tl.load(k_at) if D == D_PAD else tl.load(k_at, mask=(dims < D)[None, :], other=0.0)
        s = tl.dot(q, tl.trans(widen(k, FORMAT, ASM))) * scale
        if FORMAT == 2:
            s *= tl.load(ks_ptr + at * PAGE + slot)[None, :]
        s = tl.where((tile * BN + tokens < length)[None, :], s, float("-inf"))
        top = tl.maximum(peak, tl.max(s, 1))
        p = tl.exp2(s - top[:, None])
        shrink = tl.exp2(peak - top)
        total = total * shrink + tl.sum(p, 1)
        peak = top
        if FORMAT == 2:
            p *= tl.load(vs_ptr + at * PAGE + slot)[None, :]
        if TRANSPOSED:
            v_at = v_ptr + at[None, :] * (PAGE * DV) + slot[None, :] + vdims[:, None] * PAGE
            v = tl.load(v_at) if DV == DV_PAD else tl.load(v_at, mask=(vdims < DV)[:, None], other=0.0)
            v = tl.trans(widen(v, FORMAT, ASM))
        else:
            v_at = v_ptr + at[:, None] * (PAGE * DV) + slot[:, None] * DV + vdims[None, :]
            v = tl.load(v_at) if DV == DV_PAD else tl.load(v_at, mask=(vdims < DV)[None, :], other=0.0)
            v = widen(v, FORMAT, ASM)
        acc = tl.dot(p.to(kind), v, acc * shrink[:, None])
    if SPLIT:
        tl.store(lse_ptr + rows * splits + split, peak + tl.log2(total), mask=keep)
    finish(acc * v_scale, peak[:, None], total[:, None], rows[:, None], vdims[None, :], keep[:, None], split, part_ptr,
           lse_ptr, out_ptr, DV, splits, SPLIT)  # fmt: skip


@triton.jit(do_not_specialize=["table_stride", "splits"])
def tokens_as_rows(
    q_ptr, k_ptr, v_ptr, ks_ptr, vs_ptr, table_ptr, lens_ptr, out_ptr, part_ptr, lse_ptr, scale, v_scale, table_stride,
    splits, FORMAT: tl.constexpr, TRANSPOSED: tl.constexpr, HEADS: tl.constexpr, GROUP: tl.constexpr,
    GROUP_PAD: tl.constexpr, D: tl.constexpr, D_PAD: tl.constexpr, DV: tl.constexpr, DV_PAD: tl.constexpr,
    PAGE: tl.constexpr, BN: tl.constexpr, SPLIT: tl.constexpr, ASM: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """Scores as [tokens, heads]; arguments as in `heads_as_rows`.

    EARLY: programs come up while the last ones of the kernel before still run (programmatic dependent launch). Only
    lengths are read meanwhile, which that kernel must not write; queries, tables and pages once it is done.
    """
    pid = tl.program_id(0)
    head, split, seq = pid % HEADS, pid // HEADS % splits, pid // (HEADS * splits)
    if EARLY:
        let_next_start()
    # first of all: which pages are read hangs on it
    length = tl.load(lens_ptr + seq)
    first, last = split_bounds(length, split, splits, BN)
    heads, tokens = tl.arange(0, GROUP_PAD), tl.arange(0, BN)
    dims, vdims = tl.arange(0, D_PAD), tl.arange(0, DV_PAD)
    rows = (seq * HEADS + head) * GROUP + heads
    keep = heads < GROUP
    if EARLY:
        await_previous()
    q = tl.load(q_ptr + rows[None, :] * D + dims[:, None], mask=keep[None, :] & (dims < D)[:, None], other=0.0)
    kind = q.dtype if FORMAT == 0 else tl.float16
    q = q.to(kind)
    peak = tl.full([GROUP_PAD], float("-inf"), tl.float32)
    total = tl.zeros([GROUP_PAD], tl.float32)
    acc = tl.zeros([DV_PAD, GROUP_PAD], tl.float32)
    for tile in range(first, last):
        at, slot = place(table_ptr + seq.to(tl.int64) * table_stride, tile, tokens, head, HEADS, PAGE, BN)
        k_at = k_ptr + at[:, None] * (PAGE * D) + slot[:, None] * D + dims[None, :]
        k = tl.load(k_at) if D == D_PAD else tl.load(k_at, mask=(dims < D)[None, :], other=0.0)
        s = tl.dot(widen(k, FORMAT, ASM), q) * scale
        if FORMAT == 2:
            s *= tl.load(ks_ptr + at * PAGE + slot)[:, None]
        s = tl.where((tile * BN + tokens < length)[:, None], s, float("-inf"))
        top = tl.maximum(peak, tl.max(s, 0))
        p = tl.exp2(s - top[None, :])
        shrink = tl.exp2(peak - top)
        total = total * shrink + tl.sum(p, 0)
        peak = top
        if FORMAT == 2:
            p *= tl.load(vs_ptr + at * PAGE + slot)[:, None]
        if TRANSPOSED:
            v_at = v_ptr + at[None, :] * (PAGE * DV) + slot[None, :] + vdims[:, None] * PAGE
            v = tl.load(v_at) if DV == DV_PAD else tl.load(v_at, mask=(vdims < DV)[:, None], other=0.0)
            v = widen(v, FORMAT, ASM)
        else:
            v_at = v_ptr + at[:, None] * (PAGE * DV) + slot[:, None] * DV + vdims[None, :]
            v = tl.load(v_at) if DV == DV_PAD else tl.load(v_at, mask=(vdims < DV)[None, :], other=0.0)
            v = tl.trans(widen(v, FORMAT, ASM))
        acc = tl.dot(v, p.to(kind), acc * shrink[None, :])
    if SPLIT:
        tl.store(lse_ptr + rows * splits + split, peak + tl.log2(total), mask=keep)
    finish(acc * v_scale, peak[None, :], total[None, :], rows[None, :], vdims[:, None], keep[None, :], split, part_ptr,
           lse_ptr, out_ptr, DV, splits, SPLIT)  # fmt: skip

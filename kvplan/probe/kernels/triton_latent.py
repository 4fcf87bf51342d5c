"""Decode attention over latent rows (MLA, kv_b absorbed): one row a token serves every query head, K and V at once.

Source: DeepSeek-V2 paper (arXiv 2405.04434), section 2.1.2. The row is read once; its first `LORA` elements are
also the value.
"""

from __future__ import annotations

import triton
import triton.language as tl

from kvplan.probe.kernels.triton_common import finish, place, signed_nibbles, split_bounds, widen


@triton.jit(do_not_specialize=["table_stride", "splits"])
def latent(
    q_ptr, k_ptr, ks_ptr, table_ptr, lens_ptr, out_ptr, part_ptr, lse_ptr, scale, v_scale, table_stride, splits,
    FORMAT: tl.constexpr, GROUP: tl.constexpr, GROUP_PAD: tl.constexpr, LORA: tl.constexpr, ROPE: tl.constexpr,
    ROPE_PAD: tl.constexpr, PAGE: tl.constexpr, BN: tl.constexpr, SPLIT: tl.constexpr, ASM: tl.constexpr,
):  # fmt: skip
    """q: [seq, GROUP, LORA + ROPE]; pages: [block, 1, slot, LORA + ROPE]; programs take `GROUP_PAD` heads each."""
    blocks: tl.constexpr = (GROUP + GROUP_PAD - 1) // GROUP_PAD
    pid = tl.program_id(0)
    block, split, seq = pid % blocks, pid // blocks % splits, pid // (blocks * splits)
    # first of all: which pages are read hangs on it
    length = tl.load(lens_ptr + seq)
    first, last = split_bounds(length, split, splits, BN)
    width: tl.constexpr = LORA + ROPE
    heads, tokens = block * GROUP_PAD + tl.arange(0, GROUP_PAD), tl.arange(0, BN)
    dims, turns = tl.arange(0, LORA), LORA + tl.arange(0, ROPE_PAD)
    rows, keep = seq * GROUP + heads, heads < GROUP
    q = tl.load(q_ptr + rows[:, None] * width + dims[None, :], mask=keep[:, None], other=0.0)
    inside = keep[:, None] & (turns < width)[None, :]
    qr = tl.load(q_ptr + rows[:, None] * width + turns[None, :], mask=inside, other=0.0)
    kind = q.dtype if FORMAT == 0 else tl.float16
    q, qr = q.to(kind), qr.to(kind)
    peak = tl.full([GROUP_PAD], float("-inf"), tl.float32)
    total = tl.zeros([GROUP_PAD], tl.float32)
    acc = tl.zeros([GROUP_PAD, LORA], tl.float32)
    for tile in range(first, last):
        at, slot = place(table_ptr + seq.to(tl.int64) * table_stride, tile, tokens, 0, 1, PAGE, BN)
        base = k_ptr + at[:, None] * (PAGE * width) + slot[:, None] * width
        row = widen(tl.load(base + dims[None, :]), FORMAT, ASM)
        turned = base + turns[None, :]
        rope = tl.load(turned) if ROPE == ROPE_PAD else tl.load(turned, mask=(turns < width)[None, :], other=0.0)
        s = tl.dot(q, tl.trans(row))
        s = tl.dot(qr, tl.trans(widen(rope, FORMAT, ASM)), s) * scale
        if FORMAT == 2:
            s *= tl.load(ks_ptr + at * PAGE + slot)[None, :]
        s = tl.where((tile * BN + tokens < length)[None, :], s, float("-inf"))
        top = tl.maximum(peak, tl.max(s, 1))
        p = tl.exp2(s - top[:, None])
        shrink = tl.exp2(peak - top)
        total = total * shrink + tl.sum(p, 1)
        peak = top
        if FORMAT == 2:
            p *= tl.load(ks_ptr + at * PAGE + slot)[None, :]
        acc = tl.dot(p.to(kind), row, acc * shrink[:, None])
    if SPLIT:
        tl.store(lse_ptr + rows * splits + split, peak + tl.log2(total), mask=keep)
    finish(acc * v_scale, peak[:, None], total[:, None], rows[:, None], dims[None, :], keep[:, None], split, part_ptr,
           lse_ptr, out_ptr, LORA, splits, SPLIT)  # fmt: skip


@triton.jit
def _unpacked(data_at, scale_at, STEP: tl.constexpr, ASM: tl.constexpr):
    """(low, high) elements of bytes [tokens, n] as fp16, scales applied; `STEP` lies between scales of two groups."""
    low, high = signed_nibbles(tl.load(data_at), ASM)
    return low * tl.load(scale_at), high * (tl.load(scale_at + STEP) * 0.0625)


@triton.jit(do_not_specialize=["table_stride", "splits"])
def latent_grouped(
    q_ptr, k_ptr, ks_ptr, table_ptr, lens_ptr, out_ptr, part_ptr, lse_ptr, scale, table_stride, splits,
    GROUP: tl.constexpr, GROUP_PAD: tl.constexpr, LORA: tl.constexpr, PAGE: tl.constexpr, BN: tl.constexpr,
    SPLIT: tl.constexpr, ASM: tl.constexpr,
):  # fmt: skip
    """The same over int4 rows with fp16 scales for 32 elements; the rotary part has 64 elements."""
    blocks: tl.constexpr = (GROUP + GROUP_PAD - 1) // GROUP_PAD
    pid = tl.program_id(0)
    block, split, seq = pid % blocks, pid // blocks % splits, pid // (blocks * splits)
    # first of all: which pages are read hangs on it
    length = tl.load(lens_ptr + seq)
    first, last = split_bounds(length, split, splits, BN)
    width: tl.constexpr = LORA + 64
    heads, tokens = block * GROUP_PAD + tl.arange(0, GROUP_PAD), tl.arange(0, BN)
    bytes_, turns = tl.arange(0, LORA // 2), tl.arange(0, 32)
    dims = bytes_ // 32 * 64 + bytes_ % 32
    rows, keep = seq * GROUP + heads, heads < GROUP
    at_q = q_ptr + rows[:, None] * width
    q0 = tl.load(at_q + dims[None, :], mask=keep[:, None], other=0.0).to(tl.float16)
    q1 = tl.load(at_q + dims[None, :] + 32, mask=keep[:, None], other=0.0).to(tl.float16)
    r0 = tl.load(at_q + LORA + turns[None, :], mask=keep[:, None], other=0.0).to(tl.float16)
    r1 = tl.load(at_q + LORA + 32 + turns[None, :], mask=keep[:, None], other=0.0).to(tl.float16)
    peak = tl.full([GROUP_PAD], float("-inf"), tl.float32)
    total = tl.zeros([GROUP_PAD], tl.float32)
    a0 = tl.zeros([GROUP_PAD, LORA // 2], tl.float32)
    a1 = tl.zeros([GROUP_PAD, LORA // 2], tl.float32)
    for tile in range(first, last):
        at, slot = place(table_ptr + seq.to(tl.int64) * table_stride, tile, tokens, 0, 1, PAGE, BN)
        base = k_ptr + at[:, None] * (PAGE * width // 2) + slot[:, None] * (width // 2)
        scales = ks_ptr + at[:, None] * (PAGE * width // 32) + slot[:, None]
        low, high = _unpacked(base + bytes_[None, :], scales + (bytes_ // 32 * 2)[None, :] * PAGE, PAGE, ASM)
        turned = scales + (LORA // 32) * PAGE + turns[None, :] * 0
        t0, t1 = _unpacked(base + LORA // 2 + turns[None, :], turned, PAGE, ASM)
        s = tl.dot(q1, tl.trans(high), tl.dot(q0, tl.trans(low)))
        s = tl.dot(r1, tl.trans(t1), tl.dot(r0, tl.trans(t0), s)) * scale
        s = tl.where((tile * BN + tokens < length)[None, :], s, float("-inf"))
        top = tl.maximum(peak, tl.max(s, 1))
        p = tl.exp2(s - top[:, None])
        shrink = tl.exp2(peak - top)
        total = total * shrink + tl.sum(p, 1)
        peak = top
        a0 = tl.dot(p.to(tl.float16), low, a0 * shrink[:, None])
        a1 = tl.dot(p.to(tl.float16), high, a1 * shrink[:, None])
    if SPLIT:
        tl.store(lse_ptr + rows * splits + split, peak + tl.log2(total), mask=keep)
    finish(a0, peak[:, None], total[:, None], rows[:, None], dims[None, :], keep[:, None], split, part_ptr, lse_ptr,
           out_ptr, LORA, splits, SPLIT)  # fmt: skip
    finish(a1, peak[:, None], total[:, None], rows[:, None], dims[None, :] + 32, keep[:, None], split, part_ptr,
           lse_ptr, out_ptr, LORA, splits, SPLIT)  # fmt: skip

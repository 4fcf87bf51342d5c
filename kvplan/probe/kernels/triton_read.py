"""A kernel that only reads: every program sums its share of a buffer, so that no load can be left out."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def read_sum(data_ptr, out_ptr, BLOCK: tl.constexpr, LOOPS: tl.constexpr):
    """Sum `LOOPS` blocks of `BLOCK` int32; the buffer is a whole number of programs long."""
    pid = tl.program_id(0).to(tl.int64)
    offsets = tl.arange(0, BLOCK)
    total = tl.zeros([BLOCK], tl.int32)
    for step in tl.static_range(LOOPS):
        total += tl.load(data_ptr + (pid * LOOPS + step) * BLOCK + offsets)
    tl.store(out_ptr + pid, tl.sum(total, 0))

"""Norms, rotary positions and gates: Triton on a GPU, torch operators elsewhere. All write given outputs."""

from __future__ import annotations

from importlib.util import find_spec

import torch
import torch.nn.functional as F


def _fused(x: torch.Tensor) -> bool:
    return x.device.type == "cuda" and find_spec("triton") is not None


def add_norm(x: torch.Tensor, rest: torch.Tensor, weight: torch.Tensor, out: torch.Tensor) -> None:
    """rest += x; out = RMS norm of it. Shapes: [rows, width], weight [width]."""
    width = x.shape[1]
    if _fused(x):
        from kvplan.probe.kernels.triton_step import add_norm as kernel

        block = 1 << (width - 1).bit_length()
        kernel[(x.shape[0],)](x, rest, weight, out, WIDTH=width, BLOCK=block, num_warps=8 if block >= 2048 else 4)
        return
    rest.add_(x)
    out.copy_(F.rms_norm(rest, (width,), weight, 1e-6))


def rotate(y: torch.Tensor, turn: torch.Tensor, out: torch.Tensor) -> None:
    """Rotary positions on the first ``heads x dim`` columns of `y` into `out` [rows, heads, dim]; turn [2, dim / 2]."""
    rows, heads, dim = out.shape
    if _fused(y):
        from kvplan.probe.kernels.triton_step import rotate as kernel

        half = max(16, 1 << (dim // 2 - 1).bit_length())
        kernel[(rows * heads,)](y, turn, out, y.stride(0), HEADS=heads, DIM=dim, HALF=half, num_warps=1)
        return
    low, high = y[:, : heads * dim].unflatten(1, (heads, dim)).chunk(2, -1)
    cos, sin = turn.to(y.dtype)
    torch.cat((low * cos - high * sin, high * cos + low * sin), -1, out=out)


def gate(y: torch.Tensor, out: torch.Tensor) -> None:
    """silu of the first half of the columns times the second half."""
    rows, width = out.shape
    if _fused(y):
        from kvplan.probe.kernels.triton_step import gate as kernel

        kernel[(rows, -(-width // 1024))](y, out, WIDTH=width, BLOCK=1024, num_warps=4)
        return
    first, second = y.chunk(2, -1)
    torch.mul(F.silu(first), second, out=out)

"""Norms, rotary positions and gates: Triton on a GPU, torch operators elsewhere. All write given outputs.

A kernel that Triton cannot compile or launch here (it needs a C compiler, which a machine may lack) is tried once; from
then on torch's operators do its work. The first call of each comes before any recording into a CUDA graph: whatever is
recorded has run before, to warm up.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec

import torch
import torch.nn.functional as F

from kvplan.probe.memory import out_of_memory
from kvplan.probe.receipt import said

_broken: dict[str, str] = {}
"""Kernel -> why it does not run here."""


def _fused(x: torch.Tensor) -> bool:
    return x.device.type == "cuda" and find_spec("triton") is not None


def unfused() -> list[str]:
    """A sentence a kernel that was tried in this process and does not run, for which torch's operators stand in."""
    return [f"{name} by torch operators, slower than a kernel: Triton's does not run here: {why}"
            for name, why in _broken.items()]  # fmt: skip


def _launched(name: str, x: torch.Tensor, launch: Callable[[], object]) -> bool:
    """Whether the kernel was launched; a failed one has written nothing."""
    if name in _broken or not _fused(x):
        return False
    try:
        launch()
    except Exception as error:
        if out_of_memory(error) or (x.is_cuda and torch.cuda.is_current_stream_capturing()):
            raise
        _broken[name] = said(error)
        return False
    return True


def add_norm(x: torch.Tensor, rest: torch.Tensor, weight: torch.Tensor, out: torch.Tensor) -> None:
    """rest += x; out = RMS norm of it. Shapes: [rows, width], weight [width]."""
    width = x.shape[1]

    def launch() -> None:
        from kvplan.probe.kernels.triton_step import add_norm as kernel

        block = 1 << (width - 1).bit_length()
        kernel[(x.shape[0],)](x, rest, weight, out, WIDTH=width, BLOCK=block, num_warps=8 if block >= 2048 else 4)

    if not _launched("norms", x, launch):
        rest.add_(x)
        out.copy_(F.rms_norm(rest, (width,), weight, 1e-6))


def rotate(y: torch.Tensor, turn: torch.Tensor, out: torch.Tensor) -> None:
    """Rotary positions on the first ``heads x dim`` columns of `y` into `out` [rows, heads, dim].

    `turn` is [2, dim / 2] or wider, where other layers have wider heads; the last element of an odd head stays.
    """
    rows, heads, dim = out.shape

    def launch() -> None:
        from kvplan.probe.kernels.triton_step import rotate as kernel

        half = max(16, 1 << (dim // 2 - 1).bit_length())
        kernel[(rows * heads,)](
            y, turn, out, y.stride(0), HEADS=heads, DIM=dim, HALF=half, TURN=turn.stride(0), num_warps=1
        )

    if _launched("rotary positions", y, launch):
        return
    half = dim // 2
    low, high, rest = y[:, : heads * dim].unflatten(1, (heads, dim)).split((half, half, dim % 2), -1)
    cos, sin = turn[:, :half].to(y.dtype)
    torch.cat((low * cos - high * sin, high * cos + low * sin, rest), -1, out=out)


def gate(y: torch.Tensor, out: torch.Tensor) -> None:
    """silu of the first half of the columns times the second half."""
    rows, width = out.shape

    def launch() -> None:
        from kvplan.probe.kernels.triton_step import gate as kernel

        kernel[(rows, -(-width // 1024))](y, out, WIDTH=width, BLOCK=1024, num_warps=4)

    if not _launched("gates", y, launch):
        first, second = y.chunk(2, -1)
        torch.mul(F.silu(first), second, out=out)

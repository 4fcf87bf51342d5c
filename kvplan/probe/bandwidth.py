"""How fast the device reads: several methods, the best one named, against bus width times clock."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from kvplan.probe import extras, timing
from kvplan.probe.kernels.choose import triton_runs
from kvplan.probe.receipt import Row, median, row
from kvplan.probe.session import MeasuredFigure

if TYPE_CHECKING:
    from kvplan.probe.session import Session

LEAST_SHARE = 0.95
"""Of bus width x clock that plain reads reach on an HBM card (H200: 0.955 to 0.958)."""
_GPU_BYTES, _CPU_BYTES = 8 << 30, 512 << 20
_MIN_BYTES, _CPU_MIN_BYTES = 32 << 20, 8 << 20
_KERNELS = ((4096, 4, 8), (16384, 2, 8), (4096, 1, 4), (8192, 4, 8))
"""(int32 per block, blocks per program, warps) of the read kernel."""


class Method(NamedTuple):
    """One way to touch every byte."""

    name: str
    run: Callable[[], Any]
    moved: float
    """Bytes read and written over the buffer's bytes."""
    reads: bool
    """Only reads: may be the ceiling."""
    graph: bool = True
    """Timed in a CUDA graph; there a copy is done by the copy engine, which is slower."""


def measure(session: Session) -> list[Row]:
    """One row a method, and the ceiling against theory; sets ``figures.read_bytes_per_second``."""
    torch, device = extras.torch(), session.device
    size = buffer_bytes(session)
    floats = torch.empty(size // 4, dtype=torch.float32, device=device.torch_device).uniform_(0.5, 1.0)
    data = floats.view(torch.int32)  # the same bytes: fp32 that are no subnormals, which some processors read slowly
    rows: list[Row] = []
    best: tuple[float, str, list[float]] | None = None
    for method in _methods(session, data):
        session.say(f"bandwidth, {method.name}")
        rates = [method.moved * size / s for s in _seconds(session, method)]
        middle = median(rates)
        if method.reads and (best is None or middle > best[0]):
            best = (middle, method.name, rates)
        note = "bytes read and written" if method.moved == 2 else "bytes read" if method.reads else "bytes written"
        rows.append(row("bandwidth", method.name, predicted=None, measured=rates, unit="bytes/s", note=note))
    if best is None:
        return rows
    session.figures.read_bytes_per_second = MeasuredFigure.of(best[2])
    theory = device.theoretical_bandwidth
    where = "in a CUDA graph" if device.is_cuda else "by the processor's clock"
    rows.append(
        row(
            "bandwidth", "read ceiling", predicted=theory, measured=best[2], unit="bytes/s",
            tolerance=1 - LEAST_SHARE if theory and device.is_cuda else None, sense="at_least",
            note=f"{best[1]}, {size / 2**30:.3g} GiB {where}; predicted: {device.bandwidth_source or 'not known'}",
        )
    )  # fmt: skip
    return rows


def _seconds(session: Session, method: Method) -> list[float]:
    return timing.sample(session.device, method.run, samples=session.limits.samples, graph=method.graph)


def buffer_bytes(session: Session) -> int:
    """Many times the last-level cache, within the limits; whole programs of every read kernel."""
    wanted = _GPU_BYTES if session.device.is_cuda else _CPU_BYTES
    if session.device.kind == "cpu" and session.limits.quick:
        wanted //= 4
    size = min(wanted, int(session.limits.max_bytes * 0.45))  # copies need two
    least = _MIN_BYTES if session.device.is_cuda else _CPU_MIN_BYTES
    return max(least, size // least * least)


def _methods(session: Session, data: Any) -> Iterator[Method]:
    torch = extras.torch()
    if session.device.is_cuda and triton_runs(session.device, "bf16"):
        from kvplan.probe.kernels.triton_read import read_sum

        for block, loops, warps in _KERNELS[: 2 if session.limits.quick else None]:
            count = data.numel() // (block * loops)
            sums = torch.empty(count, dtype=torch.int32, device=data.device)

            def run(block: int = block, loops: int = loops, warps: int = warps, sums: Any = sums) -> None:
                read_sum[(sums.numel(),)](data, sums, BLOCK=block, LOOPS=loops, num_warps=warps)

            yield Method(f"Triton read kernel, {loops} x {block} words, {warps} warps", run, 1, True)
    yield Method("amax of int32", data.amax, 1, True)
    floats = data.view(torch.float32)
    yield Method("sum of fp32", floats.sum, 1, True)
    kind = torch.bfloat16 if session.device.is_cuda else torch.float32
    matrix = floats.view(kind).view(-1, 4096)
    vector = torch.ones(4096, dtype=kind, device=data.device)
    yield Method(
        f"matrix times vector, {'bf16' if session.device.is_cuda else 'fp32'}", lambda: matrix @ vector, 1, True
    )
    target = torch.empty_like(data)
    yield Method("copy", lambda: target.copy_(data), 2, False, graph=False)
    yield Method("fill", target.zero_, 1, False)

"""How fast the device reads: several methods, the best one named, against bus width times clock."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from kvplan.probe import extras, timing
from kvplan.probe.device import SHEET
from kvplan.probe.kernels.choose import triton_runs
from kvplan.probe.memory import out_of_memory
from kvplan.probe.receipt import Row, Sense, median, row, said
from kvplan.probe.session import MeasuredFigure
from kvplan.units import human_bytes

if TYPE_CHECKING:
    from kvplan.probe.device import ProbeDevice
    from kvplan.probe.session import Session

LEAST_SHARE = 0.95
"""Of bus width x clock that plain reads reach on an HBM card (H200: 0.955 to 0.958); as much above it is a cache's."""
HBM_BITS = 1024
"""Of a bus: one stack of HBM has as many, and a card with GDDR at most 512."""
_GPU_BYTES, _CPU_BYTES = 8 << 30, 512 << 20
_MIN_BYTES, _CPU_MIN_BYTES = 32 << 20, 8 << 20
ROW = 4096 * 4
"""Bytes of a row of fp32 as matrix times vector takes them; every buffer has whole ones."""
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
    trouble: Exception | None = None
    _lack_size(session, size)
    for method in _methods(session, data):
        session.say(f"bandwidth, {method.name}")
        try:
            rates = [method.moved * size / s for s in _seconds(session, method)]
        except Exception as error:  # a kernel that nothing here can compile; the others read as well
            if out_of_memory(error):
                raise
            trouble, note = error, f"does not run here: {said(error)}"
            rows.append(row("bandwidth", method.name, predicted=None, measured=None, unit="bytes/s", note=note))
            continue
        middle = median(rates)
        if method.reads and (best is None or middle > best[0]):
            best = (middle, method.name, rates)
        note = "bytes read and written" if method.moved == 2 else "bytes read" if method.reads else "bytes written"
        rows.append(row("bandwidth", method.name, predicted=None, measured=rates, unit="bytes/s", note=note))
    if best is None:
        if trouble is not None:
            raise trouble
        return rows
    session.figures.read_bytes_per_second, session.figures.read_method = MeasuredFigure.of(best[2]), best[1]
    rows.append(_ceiling(device, size, best[1], best[2]))
    return rows


def _ceiling(device: ProbeDevice, size: int, name: str, rates: list[float]) -> Row:
    """The read ceiling against theory: of HBM from both sides; other memory may fall short of it, and never exceeds it.

    Reads faster than the bus come from a cache. Where theory itself is doubtful the row informs.
    """
    theory, tolerance = device.theoretical_bandwidth, None
    sense: Sense = "equal"
    where = "in a CUDA graph" if device.is_cuda else "by the processor's clock"
    note = f"{name}, {size / 2**30:.3g} GiB {where}; predicted: {device.bandwidth_source or 'not known'}"
    if theory and device.kind == "cuda" and device.bus_width_bits and not device.bandwidth_source.startswith(SHEET):
        tolerance = 1 - LEAST_SHARE
        if device.bus_width_bits < HBM_BITS:
            sense = "at_most"
            note += f"; {median(rates) / theory:.1%} of it, which is no HBM: how much less is not judged"
    elif theory and device.is_cuda:
        note += "; not judged: no bus and clock that were held against a measurement"
    return row(
        "bandwidth", "read ceiling", predicted=theory, measured=rates, unit="bytes/s", tolerance=tolerance,
        sense=sense, note=note,
    )  # fmt: skip


def _lack_size(session: Session, size: int) -> None:
    """Note where the buffer is so small that some of it stays in the last-level cache."""
    cache = session.device.l2_bytes if session.device.is_cuda else None
    if cache and size < timing.CACHES_OVER * cache:
        session.lack(
            f"bandwidth: {human_bytes(size)} are read, {size / cache:.1f} times the last-level cache, and "
            f"{timing.CACHES_OVER} times are needed to defeat it: --max-memory is small"
        )


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


def best_reader(session: Session, data: Any) -> Method:
    """The way of reading that gave the ceiling, over other data; the first of those there are, where nothing did.

    Args:
        data: int32, of whole rows of `ROW` bytes.
    """
    reading = (method for method in _methods(session, data) if method.reads)
    first = next(reading)
    wanted = session.figures.read_method
    return next((method for method in (first, *reading) if method.name == wanted), first)


def _methods(session: Session, data: Any) -> Iterator[Method]:
    torch = extras.torch()
    if session.device.is_cuda and triton_runs(session.device, "bf16"):
        for block, loops, warps in _KERNELS[: 2 if session.limits.quick else None]:
            count = data.numel() // (block * loops)
            sums = torch.empty(count, dtype=torch.int32, device=data.device)

            def run(block: int = block, loops: int = loops, warps: int = warps, sums: Any = sums) -> None:
                from kvplan.probe.kernels.triton_read import read_sum  # at each call: to import it may fail as well

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

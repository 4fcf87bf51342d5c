"""Times of device work: inside a CUDA graph between events, or by the processor's clock on a CPU.

A graph holds one pass over several different caches (or weights), together larger than the last-level cache, so
that no pass finds its data there; a sample is one replay divided by what it holds. Launch costs are those of a
graph, which is how engines decode. Method: warm up, then the median of the samples counts.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from kvplan.probe import extras

if TYPE_CHECKING:
    from kvplan.probe.device import ProbeDevice

CACHES_OVER = 36
"""Data of one pass, in last-level caches: what is left of the last pass is at most a thirtieth of it."""
LEAST_COPIES = 3
"""Different caches of one pass, at least."""
_short: list[float] = []
"""Bytes of passes over those of the last-level cache, where they were fewer than `CACHES_OVER` caches."""
_CPU_CACHE = 32 << 20
"""Data of one pass on a CPU: about its last-level cache; its operators are slower than its memory anyway."""
_CPU_SAMPLES = 7
"""Samples on a CPU at most."""
_CPU_SAMPLE_SECONDS = 0.005
"""A sample on the CPU repeats its work at least this long."""
_THREAD_ELEMENTS, _THREAD_ROUNDS = 1 << 20, 12
"""Of fp32 that are summed to see how many threads are quickest, and how often; the third quartile counts."""
_WARM_SECONDS = 0.03
"""Of replays before the first sample: an H200 that idled for a moment runs 12 % slower for its first 6 ms."""


def copies_for(device: ProbeDevice, bytes_each: int, max_bytes: int) -> int:
    """Different buffers of `bytes_each` that one pass goes over, so that the cache is defeated.

    Returns:
        At least `LEAST_COPIES`, or what `max_bytes` holds.
    """
    target = CACHES_OVER * device.l2_bytes if device.is_cuda and device.l2_bytes else _CPU_CACHE
    wanted = max(LEAST_COPIES, -(-target // max(bytes_each, 1)))
    copies = max(1, min(wanted, max_bytes // max(bytes_each, 1)))
    if device.is_cuda and device.l2_bytes and copies * bytes_each < target:
        _short.append(copies * bytes_each / device.l2_bytes)
    return copies


def cache_shortfall() -> str | None:
    """Whether copies since the last call were too few to defeat the cache, in a sentence; None: they were not."""
    if not _short:
        return None
    least = min(_short)
    _short.clear()
    return f"one pass goes over {least:.1f} times the last-level cache, and {CACHES_OVER} times are needed to defeat it"


@contextmanager
def quickest_threads(device: ProbeDevice) -> Iterator[int | None]:
    """On a CPU, as many threads as are quickest now, which are said; elsewhere None.

    Operators wait for the last of their threads. Where others keep the cores busy, that one may not run for tens of
    milliseconds, in which a single thread would have been done long ago.
    """
    if device.kind != "cpu":
        yield None
        return
    torch = extras.torch()
    before = torch.get_num_threads()
    buffer = torch.ones(_THREAD_ELEMENTS)
    choices = list(dict.fromkeys(n for n in (before, before // 2, 1) if n))
    taken: dict[int, list[float]] = {n: [] for n in choices}
    try:
        for number in range(_THREAD_ROUNDS + 1):
            for count in choices:
                torch.set_num_threads(count)
                began = time.perf_counter()
                buffer.sum()
                if number:  # the first starts the threads
                    taken[count].append(time.perf_counter() - began)
        best = min(choices, key=lambda n: sorted(taken[n])[_THREAD_ROUNDS * 3 // 4])
        torch.set_num_threads(best)
        yield best
    finally:
        torch.set_num_threads(before)


def core_seconds() -> tuple[float, float]:
    """Seconds that this thread ran so far, and that it waited for a core; zeros where the system does not say.

    Source: Linux, ``Documentation/scheduler/sched-stats.rst``, ``/proc/<pid>/schedstat``.
    """
    try:
        with open("/proc/thread-self/schedstat", encoding="ascii") as file:
            ran, waited = (int(word) / 1e9 for word in file.read().split()[:2])
    except (OSError, ValueError):
        return 0.0, 0.0
    return ran, waited


def waited_share(since: tuple[float, float]) -> float:
    """Of the time since `core_seconds` was `since` that this thread waited for a core: others had it."""
    ran, waited = (now - before for now, before in zip(core_seconds(), since, strict=True))
    return waited / (ran + waited) if ran + waited > 0 else 0.0


def sample(
    device: ProbeDevice, work: Callable[[], Any], *, samples: int, per: int = 1, graph: bool = True,
    warm: int = 2, replays: int | None = None,
) -> list[float]:  # fmt: skip
    """Seconds of one part of `work`, which holds `per` equal parts; one figure a sample.

    Args:
        work: queues everything of one pass; called again and again, it must do the same each time.
        graph: record `work` into a CUDA graph and time replays (CUDA and ROCm only).
        warm: passes before anything is recorded or timed (compilation, workspaces).
        replays: passes that warm the device up; None: as many as take `_WARM_SECONDS` here. Ranks that talk to
            each other need one number, since each of them measures another time.
    """
    if not device.is_cuda:
        return _by_clock(device, work, min(samples, _CPU_SAMPLES), per, 1)
    torch = extras.torch()
    play = record(device, work, warm=warm) if graph else work
    began, done = time.perf_counter(), 0
    while done < replays if replays is not None else not done or time.perf_counter() - began <= _WARM_SECONDS:
        play()
        device.synchronize()
        done += 1
    marks = []
    for _ in range(samples):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        play()
        end.record()
        marks.append((start, end))
    device.synchronize()
    return [start.elapsed_time(end) / 1e3 / per for start, end in marks]


def record(device: ProbeDevice, work: Callable[[], Any], *, warm: int = 2) -> Callable[[], None]:
    """A replay of `work` as a CUDA graph; its memory lives as long as the replay does."""
    torch = extras.torch()
    side = torch.cuda.Stream(device.index)
    side.wait_stream(torch.cuda.current_stream(device.index))
    with torch.cuda.stream(side):
        for _ in range(warm):
            work()
    torch.cuda.current_stream(device.index).wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        work()
    device.synchronize()
    replay: Callable[[], None] = graph.replay
    return replay


def _by_clock(device: ProbeDevice, work: Callable[[], Any], samples: int, per: int, warm: int) -> list[float]:
    """The same with the processor's clock; short work is repeated within a sample."""
    once = 0.0
    for _ in range(max(warm, 1)):
        start = time.perf_counter()
        work()
        device.synchronize()
        once = time.perf_counter() - start
    repeats = max(1, min(1000, int(_CPU_SAMPLE_SECONDS / max(once, 1e-9))))
    found = []
    for _ in range(samples):
        start = time.perf_counter()
        for _ in range(repeats):
            work()
        device.synchronize()
        found.append((time.perf_counter() - start) / repeats / per)
    return found

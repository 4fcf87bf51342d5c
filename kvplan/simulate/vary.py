"""Many simulations: one a combination of values, over processes or over a Ray cluster, in the order of the grid.

Every simulation is a function of its `Point` alone, and reads its trace itself; so it does not matter where it runs:
the rows of a serial run, of processes and of a cluster are the same.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from itertools import islice, product
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from kvplan.errors import InputError, KvplanError
from kvplan.simulate.results import figures
from kvplan.simulate.run import Options, simulate
from kvplan.simulate.site import plain, prepare

if TYPE_CHECKING:
    from kvplan.planning.sweep_axes import Axis
    from kvplan.simulate.trace import Trace

ROW = (
    "memory.pool_bytes", "memory.mean_utilisation", "memory.waste.reserved", "memory.waste.internal",
    "memory.waste.external", "cache.hit_rate", "cache.evictions", "scheduling.preemptions", "scheduling.rejected",
    "scheduling.mean_batch", "scheduling.peak_batch", "latency.ttft.p50", "latency.ttft.p99", "latency.tpot.p50",
    "latency.tpot.p99", "latency.e2e.p99", "throughput.requests_per_second", "throughput.tokens_per_second",
)  # fmt: skip
"""Figures of each simulation, by their places in `kvplan.simulate.results.figures`."""
_FLYING = 1000
"""Simulations that a Ray cluster is given at a time."""

Rows: TypeAlias = Generator[tuple[int, dict[str, Any]], None, None]
"""(place in the grid, row) of each simulation, as they end."""


class Point(NamedTuple):
    """One simulation, as it is sent to a worker: names and plain values only."""

    model: str
    deployment: dict[str, Any]
    """Planning flags."""
    trace_path: str | None
    trace_flags: dict[str, Any]
    options: dict[str, Any]


def points(
    base: Point, axes: Sequence[Axis], *, of_trace: Sequence[str], of_options: Sequence[str]
) -> Iterator[tuple[dict[str, Any], Point]]:
    """(values of the axes, point) for every combination, the last axis running fastest."""
    for values in product(*(axis.values for axis in axes)):
        chosen = {axis.setting: value for axis, value in zip(axes, values, strict=True)}
        parts: tuple[dict[str, Any], ...] = (dict(base.deployment), dict(base.trace_flags), dict(base.options))
        model = base.model
        for name, value in chosen.items():
            if name == "model":
                model = value
                continue
            into = parts[1] if name in of_trace else parts[2] if name in of_options else parts[0]
            if value is not None:
                into[name] = value
        yield chosen, base._replace(model=model, deployment=parts[0], trace_flags=parts[1], options=parts[2])


@lru_cache(maxsize=4)
def _trace(path: str | None, flags: tuple[tuple[str, Any], ...]) -> Trace:
    from kvplan.simulate.taking import take_trace

    return take_trace(path, dict(flags))


def simulate_point(point: Point) -> dict[str, Any]:
    """The row of one simulation; ``refused`` says why where there is none."""
    from kvplan.deployment import find_deployment

    row: dict[str, Any] = dict.fromkeys(ROW)
    try:
        site = prepare(find_deployment(point.model, dict(point.deployment)))
        options = Options(**point.options)
        if options.allocator != "paged":
            site = plain(site)
        trace = _trace(point.trace_path, tuple(sorted(point.trace_flags.items())))
        run = simulate(site, trace, options)
    except KvplanError as error:
        return {**row, "refused": str(error)}
    if run.interrupted:
        raise KeyboardInterrupt
    made = figures(run)
    for name in ROW:
        found: Any = made
        for key in name.split("."):
            found = getattr(found, key)
        row[name] = found
    return {**row, "refused": None}


class Study(NamedTuple):
    """The rows that were finished."""

    rows: list[dict[str, Any]]
    interrupted: bool


def run_study(
    todo: Sequence[tuple[Mapping[str, Any], Point]], *, workers: int | None = None, ray: str | None = None,
    told: Callable[[int], None] | None = None,
) -> Study:  # fmt: skip
    """Run all simulations; rows in the order of `todo`. A KeyboardInterrupt leaves those that are finished.

    Args:
        workers: processes; None: one a core, as far as there is work; 1: in this process.
        ray: the address of a Ray cluster, or ``local`` to start one here; None: no Ray.
        told: is called with how many more are done.
    """
    found: dict[int, dict[str, Any]] = {}
    count = min(workers or os.cpu_count() or 1, len(todo))
    spread = _ray(todo, ray, workers) if ray is not None else _serial(todo) if count <= 1 else _processes(todo, count)
    interrupted = False
    try:
        for place, row in spread:
            found[place] = {**todo[place][0], **row}
            if told is not None:
                told(1)
    except KeyboardInterrupt:
        spread.close()
        interrupted = True
    return Study([found[place] for place in sorted(found)], interrupted)


def _serial(todo: Sequence[tuple[Mapping[str, Any], Point]]) -> Rows:
    for place, (_, point) in enumerate(todo):
        yield place, simulate_point(point)


def _processes(todo: Sequence[tuple[Mapping[str, Any], Point]], count: int) -> Rows:
    from concurrent.futures import ProcessPoolExecutor, as_completed
    from multiprocessing import active_children, get_context

    others = set(active_children())
    with ProcessPoolExecutor(count, mp_context=get_context("spawn"), initializer=_quiet) as pool:
        try:
            places = {pool.submit(simulate_point, point): place for place, (_, point) in enumerate(todo)}
            for future in as_completed(places):
                yield places[future], future.result()
        except BaseException:
            # the pool waits for its workers, here or at exit, and what they compute is for nobody
            for worker in set(active_children()) - others:
                worker.kill()
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _quiet() -> None:
    """Workers leave an interrupt to their parent."""
    import signal

    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _ray(todo: Sequence[tuple[Mapping[str, Any], Point]], address: str, workers: int | None) -> Rows:
    try:
        import ray
    except ImportError:
        raise InputError(
            "Ray is not installed", where="--ray", hint="pip install 'kvcache-plan[ray]', or leave --ray out"
        ) from None
    started = not ray.is_initialized()
    if started:
        local = address == "local"
        try:
            ray.init(
                address=None if local else address, num_cpus=workers if local else None, log_to_driver=False,
                logging_level="error", include_dashboard=False if local else None,
            )  # fmt: skip
        except (ConnectionError, RuntimeError, ValueError) as error:
            reason = str(error).partition("\n")[0]
            raise InputError(f"no cluster: {reason}", where="--ray", hint="--ray local starts one here") from None
    task, points, flying = ray.remote(simulate_point), enumerate(todo), dict[Any, int]()
    try:
        flying.update({task.remote(point): place for place, (_, point) in islice(points, _FLYING)})
        while flying:
            (ready,), _ = ray.wait(list(flying), num_returns=1)
            yield flying.pop(ready), ray.get(ready)
            flying.update({task.remote(point): place for place, (_, point) in islice(points, 1)})
    except KeyboardInterrupt:
        for ready in ray.wait(list(flying), num_returns=len(flying), timeout=0)[0] if flying else ():
            with suppress(ray.exceptions.RayError):  # its worker was interrupted too
                yield flying[ready], ray.get(ready)
        raise
    except ray.exceptions.RayError as error:
        reason = str(error).strip().rpartition("\n")[2]
        raise InputError(f"the cluster lost a simulation: {reason}", where="--ray", hint="leave --ray out") from None
    finally:
        if started:
            ray.shutdown()

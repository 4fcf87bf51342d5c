"""One simulation: a deployment, a trace and options in; figures out."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from kvplan.errors import InputError, UnknownNameError
from kvplan.simulate.allocators.contiguous import RESERVATIONS, ContiguousMemory
from kvplan.simulate.allocators.paged import PagedMemory
from kvplan.simulate.allocators.shape import spans_of
from kvplan.simulate.recorder import Rows
from kvplan.simulate.request import Request
from kvplan.simulate.routing import POLICIES, Router
from kvplan.simulate.scheduler import Limits, Replica
from kvplan.simulate.site import Site, plain
from kvplan.simulate.static import StaticReplica
from kvplan.simulate.timing import StepTimer

if TYPE_CHECKING:
    from kvplan.simulate.trace import Trace

ALLOCATORS = ("paged", *RESERVATIONS)
SCHEDULERS = ("continuous", "static")
PREEMPTIONS = ("recompute", "swap")


class Options(NamedTuple):
    """How requests are served, besides the engine's own settings."""

    allocator: str = "paged"
    scheduler: str = "continuous"
    preemption: str = "recompute"
    routing: str = "round-robin"
    samples: int | None = None
    """Sequences of every request; None: as the trace says."""
    chunked_prefill: bool = True

    def check(self) -> None:
        """Refuse names that do not exist, and what does not go together.

        Raises:
            UnknownNameError, InputError.
        """
        for flag, value, known in (
            ("--allocator", self.allocator, ALLOCATORS), ("--scheduler", self.scheduler, SCHEDULERS),
            ("--preemption", self.preemption, PREEMPTIONS), ("--routing", self.routing, POLICIES),
        ):  # fmt: skip
            if value not in known:
                what = flag.removeprefix("--")
                raise UnknownNameError(what, value, list(known), where=flag, more=f"known: {', '.join(known)}")
        if self.scheduler == "static" and self.allocator not in ("paged", "max"):
            raise InputError(
                "static batches reserve the maximum length", where="--allocator", hint="leave --allocator out"
            )


DEFAULT = Options()


class Run(NamedTuple):
    """What a simulation leaves behind."""

    site: Site
    trace: Trace
    options: Options
    rows: Rows
    replicas: list[Replica | StaticReplica]
    served: int
    """Requests of the trace that were submitted: fewer than all where it was interrupted."""
    interrupted: bool


def simulate(
    site: Site, trace: Trace, options: Options = DEFAULT, *, progress: Callable[[int], None] | None = None
) -> Run:
    """Send the requests of a trace through a deployment.

    Args:
        progress: is told now and then how many more requests are through. A KeyboardInterrupt ends the run early,
            with what there is.

    Raises:
        KvplanError: options that do not go together, or a pool that has no tokens.
    """
    options.check()
    rows = Rows(len(trace), progress)
    timer = StepTimer(site.setup, site.longest)
    replicas = [_replica(n, site, options, timer, rows) for n in range(site.settings.data_parallel_size)]
    router = Router(replicas, options.routing)  # type: ignore[arg-type]
    span = site.shape.span if options.allocator == "paged" and options.scheduler == "continuous" else 0
    arrivals, prompts, outputs = trace.arrivals.tolist(), trace.prompts.tolist(), trace.outputs.tolist()
    samples, tails = trace.samples.tolist(), trace.tails.tolist()
    index = 0
    interrupted = False
    try:
        for index, arrival in enumerate(arrivals):
            request = Request(index, arrival, prompts[index], outputs[index], options.samples or samples[index])
            if span:
                chain = trace.chain(index)
                request.spans, request.tail = spans_of(chain, request.prompt, tails[index], index, span)
            refused = router.choose(request).submit(request)
            if refused:
                rows.rejected[index] = refused
                rows.count()
        for replica in replicas:
            replica.run(float("inf"))
    except KeyboardInterrupt:
        interrupted = True
    return Run(site, trace, options, rows, replicas, index + 1, interrupted)


def _replica(number: int, site: Site, options: Options, timer: StepTimer, rows: Rows) -> Replica | StaticReplica:
    swap = site.swap_seconds_per_block if options.preemption == "swap" else None
    limits = Limits(site.tokens_per_step, site.sequences, site.longest, swap, not options.chunked_prefill)
    if options.scheduler == "static":
        return StaticReplica(number, plain(site).kv_tokens, timer, limits, rows)
    if options.allocator == "paged":
        return Replica(number, PagedMemory(site.num_blocks, site.shape), timer, limits, rows)
    memory = ContiguousMemory(plain(site).kv_tokens, options.allocator, site.longest)
    return Replica(number, memory, timer, limits, rows)

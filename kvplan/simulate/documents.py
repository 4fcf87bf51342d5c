"""What ``trace describe`` and ``simulate`` print as JSON; ``docs/schemas`` is made from these classes."""

from __future__ import annotations

from typing import Any, NamedTuple

TRACE_SCHEMA = "kvplan.trace/1"
SCHEMA = "kvplan.simulation/1"
STUDY_SCHEMA = "kvplan.simulations/1"


class Spread(NamedTuple):
    """How numbers of tokens are distributed; percentiles by linear interpolation."""

    mean: float
    min: int
    p50: float
    p90: float
    p99: float
    max: int


class TraceLengths(NamedTuple):
    """Tokens of prompts and of answers."""

    input: Spread
    output: Spread


class Arrivals(NamedTuple):
    """When requests arrive."""

    seconds: float
    """From the first arrival to the last."""
    requests_per_second: float | None
    busiest_minute_requests: int | None
    gap_variation: float | None
    """Standard deviation over mean of the gaps: 1 where arrivals are independent (Poisson), 0 where they are even."""


class Ceiling(NamedTuple):
    """Strict prefix reuse without bound: a block is a hit where it and all before it were seen in an earlier prompt.

    Whole prompts in order of arrival, no timing; the last block of a trace's own ids counts even when it is partial.
    Where the trace says that an answer is a part of the next prompt (`Trace.tails`), answers count as seen too.
    """

    block_tokens: int | None
    """Tokens of a block: the trace's own; null: it does not say what prompts share."""
    blocks: int
    hit_blocks: int
    tokens: int
    hit_tokens: int


class Bounded(NamedTuple):
    """The same with a cache of so many blocks, the least recently used leaving first, a prompt's deepest first."""

    cache_blocks: int
    hit_blocks: int
    hit_tokens: int


class Broken(NamedTuple):
    """Lines that could not be used."""

    lines: int
    first: tuple[str, ...]
    """The first of them: ``line 17: output_length -3 is not above 0``."""


class Description(NamedTuple):
    """What is in a trace."""

    schema: str
    name: str
    format: str
    requests: int
    input_tokens: int
    output_tokens: int
    samples: int
    """Sequences generated from one prompt, at most."""
    percentiles: TraceLengths
    arrivals: Arrivals | None
    """Null: the trace has no times."""
    prefix_ceiling: Ceiling
    lru: tuple[Bounded, ...]
    broken: Broken
    notes: tuple[str, ...]


class TraceFigures(NamedTuple):
    """The trace that was simulated."""

    name: str
    format: str
    requests: int
    input_tokens: int
    output_tokens: int
    broken_lines: int
    seconds: float
    """From the first arrival to the last."""


class CacheFigures(NamedTuple):
    """The prefix cache: first look-ups only; what preempted requests find again is not counted."""

    hit_tokens: int
    hit_blocks: int
    evictions: int
    """Blocks of prefixes that had to make room."""
    hit_rate: float
    """Of the tokens of prompts that were admitted."""
    looked_up_blocks: int
    """Whole blocks of prompts that were admitted."""
    hit_block_rate: float
    """Of `looked_up_blocks`."""
    ceiling_tokens: int
    """What any cache could share (`Ceiling`)."""
    ceiling_rate: float
    ceiling_blocks: int
    """In the trace's blocks where it has some, and a prompt's last one though partial: `hit_blocks` are the engine's,
    and whole."""
    ceiling_block_tokens: int | None
    """Tokens of one of `ceiling_blocks`; null: the trace does not say what prompts share."""
    ceiling_block_rate: float
    """`ceiling_blocks` of all blocks of the prompts, partial ones too."""


class Waste(NamedTuple):
    """Shares of the memory that is taken: used, or free and of no use to who waits first."""

    reserved: float
    """Taken for tokens that come later."""
    internal: float
    """Taken and never filled."""
    external: float
    """Free, but not in a run that is long enough, or too little for the request that waits first."""


class MemoryFigures(NamedTuple):
    """The cache of one replica; means over the time in which a replica works."""

    pool_blocks: int
    """That can be handed out: vLLM keeps one block of its pool for itself."""
    unit: str
    """``blocks``, or ``tokens`` with contiguous reservations: of `pool_blocks` and `peak_blocks`."""
    pool_bytes: int
    """Per GPU, the most loaded rank."""
    peak_blocks: int
    mean_utilisation: float
    """In use by requests."""
    mean_cached: float
    """Idle prefixes that wait to be found again."""
    stored_share: float
    """Of the memory that is taken, filled with the states of tokens; with `waste` it adds up to 1."""
    waste: Waste


class Percentiles(NamedTuple):
    """Seconds; null where there is no request."""

    p50: float | None
    p90: float | None
    p99: float | None
    mean: float | None


class SchedulingFigures(NamedTuple):
    """Who ran when."""

    finished: int
    rejected: int
    rejected_for: dict[str, int]
    """Reason -> requests."""
    preemptions: int
    recomputed_tokens: int
    """Computed again after preemptions."""
    swapped_tokens: int
    steps: int
    mean_batch: float
    """Requests that run at once in a replica, while it works."""
    peak_batch: int
    queue_seconds: Percentiles
    """From arrival to admission."""


class Latency(NamedTuple):
    """What finished requests waited for."""

    ttft: Percentiles
    """To the first token."""
    tpot: Percentiles
    """Per token after the first."""
    e2e: Percentiles
    """To the last token."""


class Throughput(NamedTuple):
    """Of the deployment, from the first arrival to the last token."""

    seconds: float
    requests_per_second: float
    tokens_per_second: float
    """Output."""
    input_tokens_per_second: float


class Moment(NamedTuple):
    """Means over a part of the timeline, all replicas together."""

    seconds: float
    """When it begins."""
    used: float
    """Share of the pools."""
    stored: float
    """Share of the pools that the states of tokens fill."""
    cached: float
    """Share of the pools that idle prefixes fill."""
    running: float
    waiting: float
    tokens_per_second: float
    """Computed: of prompts and of outputs."""


class Smallest(NamedTuple):
    """The smallest pool that meets the targets, as far as the bisection goes."""

    targets: tuple[str, ...]
    met: bool
    blocks: int | None
    bytes: int | None
    """Per GPU."""
    tokens: int | None
    """Null: windows or states share the pool, and how many tokens fit depends on who runs."""
    share_of_pool: float | None
    """Of the deployment's own pool; above 1: that is too small."""
    runs: int
    """Simulations."""
    finer_than: int | None
    """The largest pool that was tried and does not meet the targets is so many blocks smaller."""
    interrupted: bool
    """The search was: this is what it knew then."""


class Simulations(NamedTuple):
    """Many simulations: a row for every combination of what was varied."""

    schema: str
    axes: tuple[str, ...]
    """Settings that were varied."""
    figures: tuple[str, ...]
    """Places of the figures in `kvplan.simulation/1`."""
    rows: tuple[dict[str, Any], ...]
    """Values of axes and figures, and ``refused``: why there are none, or null."""


class Simulation(NamedTuple):
    """One simulation."""

    schema: str
    inputs: dict[str, Any]
    trace: TraceFigures
    cache: CacheFigures
    memory: MemoryFigures
    scheduling: SchedulingFigures
    latency: Latency
    throughput: Throughput
    timeline: tuple[Moment, ...]
    smallest_pool: Smallest | None
    """Null: no target was given."""
    interrupted: bool
    """The figures are those of the requests that were served until then."""

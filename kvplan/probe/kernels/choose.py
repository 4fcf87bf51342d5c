"""Candidates for one attention shape, checked against float64 and timed; the fastest correct one is picked."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from kvplan.probe import timing
from kvplan.probe.kernels import launch, reference, store
from kvplan.probe.kernels.launch import Config
from kvplan.probe.receipt import median

if TYPE_CHECKING:
    from kvplan.probe.device import ProbeDevice
    from kvplan.probe.kernels.store import HeadShape, PagedKv

TOLERANCE = 6e-3
"""Largest relative error of any one sequence against float64: 16-bit outputs and weights of 8 or 11 bits."""
_CHECK_BYTES = 1 << 34
"""Data of the float64 check at most where nothing says less; longer batches are checked on evenly spread sequences."""
_TRIAL_SAMPLES = 5
OPERATORS = "torch operators"
"""The name of the path that no kernel is written for: right everywhere, and slow."""

_WIDE = (Config(False, 64, 2, 3, 4), Config(False, 32, 1, 5, 4), Config(False, 64, 4, 2, 4))
_BYTE = (
    Config(True, 64, 2, 5, 4),
    Config(True, 64, 1, 5, 4),
    Config(True, 64, 2, 3, 4),
    Config(True, 64, 2, 2, 4),
    Config(True, 64, 2, 2, 4, early=True),
)
_CONFIGS: dict[str, tuple[Config, ...]] = {
    "bf16": _WIDE,
    "fp16": _WIDE,
    "fp8_e4m3": _BYTE,
    "int8_per_token_head": _BYTE,
    "int4_g32": (Config(True, 64, 1, 5, 4), Config(True, 64, 1, 5, 4, True), Config(True, 64, 1, 7, 4)),
}
"""First the one that is taken where only one is tried. Found by ``benchmarks/probe_tune.py`` on one H200: one or two
warps a program for every format; with four, integers are 20 to 40 % slower. An early start wins 0.8 % where 8-bit
programs outnumber what the card holds at once (256 x 1024) and loses where they do not."""
_LATENT = (Config(False, 32, 4, 2, 2), Config(False, 64, 4, 2, 2), Config(False, 32, 8, 2, 2))
_LATENT_WIDE = (Config(False, 64, 8, 2, 2, False, 64), Config(False, 64, 4, 2, 2))
_PER_SM, _PER_SM_INT4 = (4, 2, 8), (8, 4, 2, 16, 32)
"""Programs per multiprocessor that contexts are split for; int4 programs are of one warp, so there are more,
and those of latent attention are large."""


class Path(NamedTuple):
    """One way to compute a shape."""

    name: str
    run: Callable[[int], None]
    """Queues the attention over cache number i, into the workload's `out`."""
    paged: bool
    """By block table; else over contiguous caches."""


class Picked(NamedTuple):
    """What was chosen."""

    path: Path
    seconds: tuple[float, ...]
    """Of one layer, a figure a sample."""
    error: float
    """Of the worst sequence."""
    rejected: tuple[str, ...]
    """Candidates that were wrong or did not run, and why."""


@dataclass(kw_only=True)
class Workload:
    """One shape with its caches: `copies` different ones in one pool, so that none is cached when its turn comes."""

    device: ProbeDevice
    pool: PagedKv
    tables: torch.Tensor
    """[copies, batch, pages]"""
    lens: torch.Tensor
    q: torch.Tensor
    out: torch.Tensor
    batch: int
    context: int
    check_bytes: int = _CHECK_BYTES
    """Data of the float64 check at most, but for one sequence, which is checked whatever it takes."""
    rejected: tuple[str, ...] = ()
    """Candidates that did not serve, where none did."""
    wrong: tuple[tuple[str, float], ...] = ()
    """(name, error) of candidates that ran and lay further from float64 than `TOLERANCE`, whether or not one served."""

    @property
    def copies(self) -> int:
        """Different caches."""
        return int(self.tables.shape[0])

    @property
    def num_bytes(self) -> int:
        """Cache bytes that one call reads."""
        return self.batch * self.context * store.row_bytes(self.pool.shape, self.pool.format)

    @property
    def slots(self) -> int:
        """Multiprocessors, or 1."""
        return self.device.multiprocessors or 1


def triton_runs(device: ProbeDevice, fmt: str) -> bool:
    """Whether the Triton kernels can serve a format on a device (e4m3 conversions need compute capability 8.9)."""
    if find_spec("triton") is None:
        return False
    if not device.is_cuda:
        return launch.interpreted()
    if fmt != "fp8_e4m3" or device.compute_capability is None:
        return True
    major, _, minor = device.compute_capability.partition(".")
    return (int(major), int(minor)) >= (8, 9)


def workload(
    device: ProbeDevice, shape: HeadShape, fmt: str, batch: int, context: int, *, page: int, max_bytes: int,
    pool: PagedKv | None = None, seed: int = 0,
) -> Workload:  # fmt: skip
    """Allocate, fill and lay out a shape; a `pool` that is large enough is used again."""
    pages = -(-context // page)
    copies = timing.copies_for(device, batch * pages * store.row_bytes(shape, fmt) * page, max_bytes)
    if pool is None or pool.blocks < copies * batch * pages:
        pool = store.allocate(
            shape, fmt, copies * batch * pages, page, device.torch_device, transposed=transposed(device, fmt)
        )
        store.fill_random(pool, seed)
    return over_pool(device, pool, copies, batch, context, seed)


def transposed(device: ProbeDevice, fmt: str) -> bool:
    """Whether V of a format lies transposed: where the Triton kernels read it."""
    return store.v_transposed(fmt) and triton_runs(device, fmt)


def over_pool(
    device: ProbeDevice, pool: PagedKv, copies: int, batch: int, context: int, seed: int = 0, start: int = 0
) -> Workload:
    """`copies` caches of `batch` sequences in a filled pool, with random block tables and queries.

    Args:
        start: pages of the random order that others have already taken.
    """
    where, shape = device.torch_device, pool.shape
    dtype = torch.float16 if pool.format == "fp16" or launch_interpreted(device) else torch.bfloat16
    generator = torch.Generator(device=where).manual_seed(seed + 1)
    q = torch.randn((batch, shape.query_heads, shape.head_dim), generator=generator, device=where).to(dtype)
    return Workload(
        device=device, pool=pool, tables=store.random_tables(pool, copies, batch, context, seed, start),
        lens=torch.full((batch,), context, dtype=torch.int32, device=where), q=q,
        out=torch.empty((batch, shape.query_heads, shape.head_dim_v), dtype=dtype, device=where), batch=batch,
        context=context,
    )  # fmt: skip


def launch_interpreted(device: ProbeDevice) -> bool:
    """Whether Triton's interpreter would run (it has no bf16 products, so queries are fp16 there)."""
    return not device.is_cuda and find_spec("triton") is not None and launch.interpreted()


def kernels_serve(device: ProbeDevice, shape: HeadShape, fmt: str) -> bool:
    """Whether the Triton kernels are there for such heads in a format on a device."""
    if not triton_runs(device, fmt):
        return False
    if shape.latent:
        odd = shape.head_dim_v & (shape.head_dim_v - 1) or shape.head_dim_v < 64
        return not odd and (fmt != "int4_g32" or shape.head_dim - shape.head_dim_v == 64)
    return fmt != "int4_g32" or shape.head_dim in (64, 128, 256)


def paths(work: Workload, *, several: bool = True, operators: bool = True) -> Iterator[Path]:
    """The candidates for a workload that read it by block table.

    Args:
        several: every configuration, not only the first.
        operators: torch operators beside kernels, for which they need room; without kernels they come anyway.
    """
    pool = work.pool
    tried = _tried(work, several) if kernels_serve(work.device, pool.shape, pool.format) else []
    for config, per_sm in tried:
        yield Path(f"Triton, {config.name}", _prepared(work, config, per_sm), True)
    if (several and operators) or not tried:
        yield Path(
            OPERATORS,
            lambda i: reference.paged_operators(work.q, pool, work.tables[i], work.lens, work.out),
            True,
        )


def _prepared(work: Workload, config: Config, per_sm: int) -> Callable[[int], None]:
    """A kernel that is set up at its first call, where `pick` survives what this Triton or card cannot do."""
    made: list[Callable[[torch.Tensor], None]] = []

    def run(i: int) -> None:
        if not made:
            slots = per_sm * work.slots
            made.append(
                launch.prepare(work.q, work.pool, work.lens, work.out, config, longest=work.context, slots=slots)
            )
        made[0](work.tables[i])

    return run


def _tried(work: Workload, several: bool) -> list[tuple[Config, int]]:
    shape = work.pool.shape
    configs = _CONFIGS[work.pool.format]
    if shape.latent:
        wide = shape.query_heads > 64 and work.pool.format != "int4_g32"  # unpacked rows take too much shared memory
        configs = _LATENT_WIDE if wide else _LATENT
    if shape.head_dim > 128 and not shape.latent:  # tiles of wide heads take less shared memory with fewer stages
        configs = tuple(c._replace(stages=min(c.stages, 3), tile=32) for c in configs)
    if not launch.starts_early(work.q):
        configs = tuple(c for c in configs if not c.early)
    chosen = configs if several else configs[:1]
    aims: tuple[int, ...] = _PER_SM_INT4 if work.pool.format == "int4_g32" else _PER_SM
    aims = (1, *_PER_SM) if shape.latent else aims
    aims = aims if several else aims[:1]
    found: dict[tuple[Config, int], tuple[Config, int]] = {}
    for config in chosen:
        for per_sm in aims:
            blocks = -(-shape.query_heads // config.block) if shape.latent else shape.kv_heads
            tiles = -(-work.context // config.tile)
            splits = launch.splits_for(work.batch * blocks, tiles, per_sm * work.slots)
            found.setdefault((config, splits), (config, per_sm))
    return list(found.values())


def contiguous(work: Workload, max_bytes: int) -> Path | None:
    """torch's attention on contiguous copies of the same caches; None where they do not fit or the format has none."""
    pool = work.pool
    if pool.format not in ("bf16", "fp16") or pool.shape.latent:
        return None
    if work.copies * work.num_bytes > max_bytes or pool.k.dtype != work.q.dtype:
        return None
    copied = [store.gather(pool, work.tables[i], pool.k.dtype) for i in range(work.copies)]
    k, v = zip(*((a[:, :, : work.context].contiguous(), b[:, :, : work.context].contiguous()) for a, b in copied),
               strict=True)  # fmt: skip
    copied.clear()

    def run(i: int) -> None:
        work.out.copy_(reference.contiguous_sdpa(work.q, k[i], v[i], pool.shape))

    return Path("scaled_dot_product_attention, contiguous", run, False)


def error_of(path: Path, work: Workload, truth: torch.Tensor, rows: torch.Tensor) -> float:
    """Worst error of a path on cache 0; outputs are poisoned first, so that none is left unwritten."""
    work.out.fill_(float("nan"))
    path.run(0)
    found = reference.worst_error(work.out[rows], truth)
    return math.inf if math.isnan(found) else found


def check_bytes(shape: HeadShape) -> int:
    """Data of the float64 check for each token of a sequence: K and V in float64, and the steps to them."""
    return shape.kv_heads * shape.head_dim * 8 * 4


def checked_rows(work: Workload) -> torch.Tensor:
    """The sequences that are held against float64."""
    each = work.context * check_bytes(work.pool.shape)
    count = max(1, min(work.batch, work.check_bytes // max(each, 1)))
    return torch.linspace(0, work.batch - 1, count).round().long().unique().to(work.q.device)


def pick(work: Workload, candidates: Iterable[Path], *, samples: int, check: bool = True) -> Picked | None:
    """The fastest correct candidate, timed again with all `samples`; None where none is right.

    What cannot be built, launched, recorded or timed here is no candidate, and is named among the rejected.

    Args:
        check: hold every candidate against float64 first; else they are only run (its error is then 0).
    """
    rows = checked_rows(work)
    truth = work.out[:0]
    if check:
        truth = reference.truth(work.q[rows], work.pool, work.tables[0][rows], work.lens[rows])
    rejected: list[str] = []
    wrong: list[tuple[str, float]] = []
    correct: list[tuple[Path, float]] = []
    for path in candidates:
        try:
            if not check:
                path.run(0)
            error = error_of(path, work, truth, rows) if check else 0.0
        except Exception as problem:
            rejected.append(_rejection(path, problem))
            continue
        if error <= TOLERANCE:
            correct.append((path, error))
        else:
            rejected.append(f"{path.name}: error {error:.1e}")
            wrong.append((path.name, error))
    work.wrong = tuple(wrong)
    trials: list[tuple[float, Path, float]] = []
    for path, error in correct if len(correct) > 1 else ():
        try:
            trials.append((median(_time(work, path, min(samples, _TRIAL_SAMPLES))), path, error))
        except Exception as problem:
            rejected.append(_rejection(path, problem))
    ordered = [(p, e) for _, p, e in sorted(trials, key=lambda trial: trial[0])] if len(correct) > 1 else correct
    for path, error in ordered:
        try:
            return Picked(path, tuple(_time(work, path, samples)), error, tuple(rejected))
        except Exception as problem:
            rejected.append(_rejection(path, problem))
    work.rejected = tuple(rejected)
    return None


def serve(work: Workload, *, several: bool, operators: bool, samples: int) -> Picked | None:
    """`pick` of `paths`; where the one configuration that is tried does not serve, the others and operators are tried.

    A card may have too little shared memory for it, or a machine no compiler for Triton.
    """
    found = pick(work, paths(work, several=several, operators=operators), samples=samples)
    if found is not None or several or not kernels_serve(work.device, work.pool.shape, work.pool.format):
        return found
    wrong = work.wrong
    found = pick(work, paths(work, several=True, operators=operators), samples=samples)
    work.wrong = tuple(dict.fromkeys((*wrong, *work.wrong)))
    return found


def _rejection(path: Path, problem: Exception) -> str:
    """A candidate that did not run, and why."""
    return f"{path.name}: {type(problem).__name__}"


def _time(work: Workload, path: Path, samples: int) -> list[float]:
    def once() -> Any:
        for index in range(work.copies):
            path.run(index)

    return timing.sample(work.device, once, samples=samples, per=work.copies)

"""Decode attention over paged caches: time by batch, context and format, as a line in bytes, beside float64."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from kvplan.planning.calibration import Heads
from kvplan.probe import timing
from kvplan.probe.fit import measured_line, shown
from kvplan.probe.kernels import choose, reference, store
from kvplan.probe.layout import PROBE_FORMATS
from kvplan.probe.readers import head_shape, reads_all
from kvplan.probe.receipt import Row, median, row

if TYPE_CHECKING:
    from kvplan.probe.kernels.choose import Picked
    from kvplan.probe.kernels.store import HeadShape, PagedKv
    from kvplan.probe.session import MeasuredLine, Session

PAGE = 64
"""Tokens per page of the kernels (the planner's pages may differ; bytes a token do not depend on it)."""
GPU_GRID = ((1, 4096), (1, 32768), (8, 2048), (8, 8192), (64, 1024), (64, 4096), (256, 1024))
GPU_QUICK = ((1, 8192), (1, 32768), (8, 2048), (8, 8192), (64, 1024), (64, 4096))
CPU_GRID = ((1, 1024), (1, 2048), (2, 1024), (2, 2048), (4, 2048), (8, 1024))
CPU_QUICK = ((1, 256), (1, 512), (2, 512), (4, 512))
LINE_MISS, ROUGH_LINE_MISS = 0.06, 0.12
"""Of a line over the shapes of a format, at its worst shape: as it should be, and where only one configuration of the
kernels is tried or a layer has so few KV heads that the programs of some shapes do not fill the card."""
_MEMORY_SHARE = 0.5
"""Of the read ceiling that a line must reach for memory to bind attention: beyond it, as with 71 query heads on one KV
head, products do, and their time is no line over bytes."""
_WIDE_LAYER = 2048
"""Elements of K and V of one token from which on a layer fills the card."""
_BITS = {"bf16": "16", "fp16": "16", "fp8_e4m3": "8", "int8_per_token_head": "8", "int4_g32": "4"}
_TIME_SHARE = 0.5
"""Of the time left that may go to attention; on a CPU `kvplan.probe.run` gives it a share of its own."""
_POOL_SHARE = 0.3
"""Of what a section may hold that goes to the pages; contiguous copies take as much again."""
_CHECK_SHARE = 0.3
"""Of the same: what is left for the check in float64."""


class Timed(NamedTuple):
    """One shape of one format."""

    fmt: str
    batch: int
    context: int
    num_bytes: int
    paged: Picked
    beside: Picked | None
    """torch's attention on contiguous caches."""


class Refused(NamedTuple):
    """A shape at which candidates did not serve."""

    batch: int
    context: int
    why: tuple[str, ...]
    """Of all candidates where none served, else empty."""
    wrong: tuple[tuple[str, float], ...]
    """(name, error) of those whose result lies too far from float64."""


def measure(session: Session) -> list[Row]:
    """Rows by format and shape, their lines, errors and speed-ups; sets ``figures.attention``."""
    found = main_shape(session)
    if found is None:
        note = "no layer of this model reads a cache of K and V or latent rows"
        return [row("attention", "decode attention", predicted=None, measured=None, unit="s", note=note)]
    session.figures.heads = Heads(found.query_heads, found.kv_heads, found.head_dim, found.head_dim_v)
    rows: list[Row] = []
    timed: dict[str, list[Timed]] = {}
    for index, fmt in enumerate(PROBE_FORMATS):
        share = session.limits.seconds_left / (len(PROBE_FORMATS) - index)
        share *= 1 if session.limits.slow else _TIME_SHARE
        refused: list[Refused] = []
        timed[fmt] = time_format(session, found, fmt, until=time.monotonic() + share, refused=refused)
        for one in timed[fmt]:
            rows += _shape_rows(session, found, one)
        rows += _format_rows(session, found, fmt, timed[fmt], refused)
        session.device.release()
    if session.device.is_cuda:
        for bits in sorted({_BITS[fmt] for fmt, found in timed.items() if found} - set(session.figures.attention)):
            session.lack(f"calibration, attention, {bits}: no line of a kernel to write into it")
    return rows + _speed_ups(timed)


def main_shape(session: Session) -> HeadShape | None:
    """The attention that most layers share, full attention first."""
    counted: dict[HeadShape, tuple[bool, int]] = {}
    for layers, mixer in session.layout.spec.mixers():
        shape = head_shape(mixer)
        if shape is not None:
            full = reads_all(mixer)
            before = counted.get(shape, (False, 0))
            counted[shape] = (before[0] or full, before[1] + layers)
    return max(counted, key=lambda shape: counted[shape]) if counted else None


def grid(session: Session) -> tuple[tuple[int, int], ...]:
    """(batch, context) of the shapes that are measured."""
    if session.device.is_cuda:
        return GPU_QUICK if session.limits.quick else GPU_GRID
    return CPU_QUICK if session.limits.quick else CPU_GRID


def time_format(
    session: Session, shape: HeadShape, fmt: str, *, until: float = float("inf"), refused: list[Refused] | None = None
) -> list[Timed]:
    """Every shape of the grid that fits, over one pool of pages; none begun after `until`.

    On a CPU, where one call may take long, passes go over fewer caches instead, so that all shapes are measured.

    Args:
        refused: gets the shapes at which candidates were wrong, or none served.
    """
    if (reason := store.unserved(shape, fmt)) is not None:
        if fmt == session.layout.formats.k.name:
            session.lack(f"attention, {fmt}: {reason}")
        return []
    limits, device = session.limits, session.device
    shapes, share = _fitting(session, shape, fmt), int(limits.max_bytes * _POOL_SHARE)
    wanted = len(grid(session))
    if len(shapes) < wanted:
        session.lack(f"attention, {fmt}: {wanted - len(shapes)} of {wanted} shapes do not fit into --max-memory")
    pool, found = None, []
    for number, (batch, context) in enumerate(shapes):
        if limits.seconds_left <= 0 or (not limits.slow and time.monotonic() > until):
            session.lack(f"attention, {fmt}: the time was up after {number} of {wanted} shapes")
            break
        session.say(f"attention, {fmt}, {batch} x {context}")
        if pool is None:
            pool = _pool(session, shape, fmt, shapes, share)
        work = choose.workload(
            device, shape, fmt, batch, context, page=PAGE, max_bytes=share, pool=pool, seed=session.seed
        )
        if limits.slow:
            _lighten(session, work, (until - time.monotonic()) / (len(shapes) - number))
        else:
            work.check_bytes = min(work.check_bytes, int(limits.max_bytes * _CHECK_SHARE))
        contiguous = 0 if limits.quick and device.is_cuda else share
        room = batch * context * store.workspace_bytes(shape, fmt) <= limits.max_bytes * _POOL_SHARE
        several = device.is_cuda and not limits.quick
        paged = choose.serve(work, several=several, operators=room, samples=limits.samples)
        why = "; ".join(work.rejected) or "no candidate"
        if refused is not None and (paged is None or work.wrong):
            refused.append(Refused(batch, context, work.rejected if paged is None else (), work.wrong))
        beside = None
        other = choose.contiguous(work, contiguous)
        if other is not None:
            beside = choose.pick(work, iter([other]), samples=limits.samples)
        del other
        if paged is not None:
            found.append(Timed(fmt, batch, context, work.num_bytes, _freed(paged), beside and _freed(beside)))
        else:
            session.lack(f"attention, {fmt}, {batch} x {context}: nothing serves it ({why})")
    return sorted(found, key=lambda one: one.num_bytes)


def _fitting(session: Session, shape: HeadShape, fmt: str) -> list[tuple[int, int]]:
    """Shapes of the grid that the limit holds: the largest first, on a CPU the quickest.

    Room for torch operators is kept only where no kernel serves.
    """
    most, slow = session.limits.max_bytes, session.limits.slow
    each = store.row_bytes(shape, fmt)
    if not slow and not choose.kernels_serve(session.device, shape, fmt):
        each = max(each, store.workspace_bytes(shape, fmt))

    def checked(context: int) -> int:
        return reference.truth_bytes(shape, context) if slow else context * choose.check_bytes(shape)

    fits = [
        (batch, context) for batch, context in grid(session)
        if batch * context * each <= most * _POOL_SHARE and checked(context) <= most * _CHECK_SHARE
    ]  # fmt: skip
    return sorted(fits, key=lambda s: s[0] * s[1] * (1 if slow else -1))


def _pool(session: Session, shape: HeadShape, fmt: str, shapes: list[tuple[int, int]], share: int) -> PagedKv:
    """Filled pages for the shape that takes the most, so that no second pool is ever held beside the first."""
    device, each = session.device, store.row_bytes(shape, fmt) * PAGE
    pages = [batch * -(-context // PAGE) for batch, context in shapes]
    blocks = max(timing.copies_for(device, n * each, share) * n for n in pages)
    pool = store.allocate(shape, fmt, blocks, PAGE, device.torch_device, transposed=choose.transposed(device, fmt))
    store.fill_random(pool, session.seed)
    return pool


def _lighten(session: Session, work: choose.Workload, seconds: float) -> None:
    """Leave as many caches in a pass as `seconds` allow for all its samples, by the time of one call."""
    path = next(choose.paths(work, several=False))
    began = time.monotonic()
    with suppress(Exception):  # what is wrong with it, `pick` says
        path.run(0)
    calls = seconds / (2 * session.limits.samples + 2) / max(time.monotonic() - began, 1e-9)
    work.tables = work.tables[: max(timing.LEAST_COPIES, int(min(calls, work.copies)))]


def _freed(picked: Picked) -> Picked:
    """Without the function that runs it, which holds its caches."""
    return picked._replace(path=picked.path._replace(run=lambda i: None))


def stated_seconds(session: Session, shape: HeadShape, fmt: str) -> Callable[[int, int], float] | None:
    """The planner's time of one layer's attention by (batch, context), without a calibration; None: no bandwidth."""
    from kvplan.planning.speed.rates import join, rates
    from kvplan.spec.formats import get_format

    made = rates(session.gpu, "generic", get_format("bf16"), get_format(fmt))
    if made is None:
        return None
    each = store.row_bytes(shape, fmt)
    flops = 2 * shape.query_heads * (shape.head_dim + shape.head_dim_v)

    def seconds(batch: int, context: int) -> float:
        memory = batch * context * each / made.attention_bandwidth
        if made.attention_flops is None:
            return memory + made.attention_seconds
        compute = batch * context * flops / made.attention_flops
        return float(join(memory, compute, made.softness)) + made.attention_seconds

    return seconds


def _shape_rows(session: Session, shape: HeadShape, one: Timed) -> list[Row]:
    stated = stated_seconds(session, shape, one.fmt)
    name = f"{one.fmt}, {one.batch} x {one.context}"
    ceiling = session.figures.read_bytes_per_second
    rates = [one.num_bytes / s for s in one.paged.seconds]
    share = f"{median(rates) / ceiling.value:.1%} of the read ceiling; " if ceiling else ""
    predicted = one.num_bytes / stated(one.batch, one.context) if stated else None
    rows = [
        row(
            "attention", name, predicted=predicted, measured=rates, unit="bytes/s", sense="at_least",
            note=f"{share}{median(one.paged.seconds) * 1e6:.1f} us a layer; {one.paged.path.name}{skipped(one.paged)}",
        )
    ]  # fmt: skip
    if one.beside is not None:
        theirs = [one.num_bytes / s for s in one.beside.seconds]
        faster = "slower than" if median(theirs) < median(rates) else "faster than"
        note = f"{faster} the paged kernel; error {one.beside.error:.1e}"
        label = f"{name}: {one.beside.path.name}"
        rows.append(row("attention", label, predicted=None, measured=theirs, unit="bytes/s", note=note))
    return rows


def skipped(picked: Picked) -> str:
    """The end of a note: the candidates that this device could not run, or that were wrong."""
    return f"; skipped {', '.join(picked.rejected)}" if picked.rejected else ""


def _format_rows(
    session: Session, shape: HeadShape, fmt: str, timed: list[Timed], refused: Sequence[Refused]
) -> list[Row]:
    """The line of a format and its worst error; the line goes to the calibration.

    Lines of latent rows are not judged: products bind them as much as bytes do.
    """
    rows = _error_rows(session, fmt, timed, refused)
    if not timed:
        note = store.unserved(shape, fmt) or next(
            (f"nothing serves {x.batch} x {x.context}: {'; '.join(x.why) or 'no candidate'}" for x in refused),
            next((x.partition(": ")[2] for x in session.lacks if x.startswith(f"attention, {fmt}: ")), "nothing fits"),
        )
        return [*rows, row("attention", f"{fmt}: line", predicted=None, measured=None, unit="ratio", note=note)]
    on_gpu = session.device.is_cuda
    line = measured_line(
        [(one.num_bytes, median(one.paged.seconds)) for one in timed], session.figures.read_bytes_per_second
    )
    if line is None:
        return rows
    by_kernel = all(one.paged.path.name != choose.OPERATORS for one in timed)
    kept = by_kernel or not on_gpu
    if kept:
        _keep(session, fmt, line)
    rate, start = line.bytes_per_second.value, line.latency_seconds.value
    bound_here = _reaches(session, line)
    enough = on_gpu and not shape.latent and len(timed) >= 6 and bound_here
    wide = shape.kv_heads * (shape.head_dim + shape.head_dim_v) >= _WIDE_LAYER
    bound = LINE_MISS if wide and not session.limits.quick else ROUGH_LINE_MISS
    rows.append(
        row(
            "attention", f"{fmt}: worst miss of the line", predicted=bound, measured=line.worst_miss,
            unit="ratio", tolerance=0.0 if enough else None, sense="at_most",
            note=f"{shown(rate, start)}, {len(timed)} shapes; predicted is the bound"
            f"{'' if bound_here else '; not judged, as memory does not bind it'}"
            f"{'' if kept else '; torch operators are no kernel to plan with: not in the calibration'}",
        )
    )  # fmt: skip
    return rows


def _reaches(session: Session, line: MeasuredLine) -> bool:
    """Whether memory binds what a line describes; True where no ceiling was measured."""
    read = session.figures.read_bytes_per_second
    return read is None or line.bytes_per_second.value >= _MEMORY_SHARE * read.value


def bound_by_memory(session: Session, fmt: str) -> bool:
    """Whether memory binds attention over a cache of this format, as far as it was measured."""
    line = session.figures.attention.get(_BITS[fmt])
    return line is None or _reaches(session, line)


def _keep(session: Session, fmt: str, line: MeasuredLine) -> None:
    """Take a line into the calibration: for its bits the plan's own format, else the fastest."""
    bits, own = _BITS[fmt], session.layout.formats.k.name
    known = session.figures.attention.get(bits)
    faster = known is not None and line.bytes_per_second.value > known.bytes_per_second.value
    if known is None or fmt == own or (faster and _BITS.get(own) != bits):
        session.figures.attention[bits] = line


def _error_rows(session: Session, fmt: str, timed: Sequence[Timed], refused: Sequence[Refused]) -> list[Row]:
    """The worst error of any path that ran, picked or rejected for it; nothing where none ran."""
    found = [(one.paged.error, one.paged.path.name, one.batch, one.context) for one in timed]
    found += [(error, name, one.batch, one.context) for one in refused for name, error in one.wrong]
    if not found:
        return []
    error, path, batch, context = max(found)
    return [
        row(
            "attention", f"{fmt}: worst error of a sequence", predicted=choose.TOLERANCE, measured=error,
            unit="ratio", tolerance=0.0, sense="at_most",
            note=f"against float64 on the stored numbers, {batch} x {context}, {path}; predicted is the bound; "
            f"storing alone costs {format_error(session, fmt):.1e}",
        )
    ]  # fmt: skip


def format_error(session: Session, fmt: str) -> float:
    """Relative error of standard normal numbers after storing, by vectors of 128."""
    import torch

    values = torch.randn((4096, 1, 128), generator=torch.Generator().manual_seed(session.seed))
    packed, scale = store.encode(values, fmt)
    back = store.decode(packed, scale, fmt, torch.float64)
    return float((back - values.double()).norm() / values.double().norm())


def _speed_ups(timed: dict[str, list[Timed]]) -> list[Row]:
    """Each format over the first, beside the ratio of bytes, at the largest shape that both have."""
    base, *others = PROBE_FORMATS
    rows = []
    for fmt in others:
        mine = {(one.batch, one.context): one for one in timed.get(fmt, [])}
        shared = [one for one in timed.get(base, []) if (one.batch, one.context) in mine]
        if not shared:
            continue
        wide = max(shared, key=lambda one: one.num_bytes)
        narrow = mine[wide.batch, wide.context]
        ratio = median(wide.paged.seconds) / median(narrow.paged.seconds)
        rows.append(
            row(
                "attention", f"{fmt} over {base}, {wide.batch} x {wide.context}",
                predicted=wide.num_bytes / narrow.num_bytes, measured=ratio, unit="ratio",
                note="times as fast; predicted is the ratio of the bytes",
            )
        )  # fmt: skip
    return rows

"""Several GPUs under ``torchrun``: what each rank holds, what messages cost, and a tensor-parallel decode step.

NCCL on GPUs, gloo on CPUs. Every rank measures; the first one puts the rows together. Times are those of the slowest
rank: a collective is done when all are.
"""

from __future__ import annotations

import datetime
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from kvplan.errors import InputError, KvplanError
from kvplan.probe import extras, fit
from kvplan.probe.allocator import expandable_segments, reserve, unmodelled
from kvplan.probe.layout import RankLayout, model_layout
from kvplan.probe.memory import Shape, allocated, out_of_memory, page_shapes, planned_bytes
from kvplan.probe.receipt import Row, median, row, said
from kvplan.probe.timing import sample
from kvplan.units import KIB, MIB, human_bytes

if TYPE_CHECKING:
    from kvplan.probe.session import Session

STEP_TOLERANCE = 0.08
"""Of the planner's tensor-parallel step with the line of the all-reduce; on a CPU, which ranks share, it informs."""
GPU_POINT, CPU_POINT = (16, 4096), (2, 128)
"""(batch, context) of the step."""
INNER = 10
"""Collectives in one timed run."""
READ_BYTES = 64 * MIB
"""Read by every rank at once where nothing states how fast the device reads (CPU)."""
WARM_REPLAYS = 100
"""Before a timed run on a GPU: the same number on every rank, or one of them would wait for a message for ever."""

Line = tuple[float, float, float]
"""(bytes a second, seconds of latency, worst miss), as `kvplan.probe.fit` gives it."""


class Group(NamedTuple):
    """This process among the others."""

    rank: int
    size: int


def measure(session: Session) -> list[Row]:
    """All three parts; an empty list without ``torchrun``.

    Raises:
        InputError: tensor parallel size and number of processes differ.
    """
    from kvplan.probe.run import world_size

    size = world_size()
    if size < 2:
        return []
    if session.settings.tensor_parallel_size != size:
        raise InputError(
            f"{size} processes, and a tensor parallel size of {session.settings.tensor_parallel_size}",
            where="--tensor-parallel-size", hint=f"type -tp {size}, or leave it out",
        )  # fmt: skip
    group = _join(session)
    rows: list[Row] = []
    failed: list[Row] = []
    try:
        # one figure for all: ranks that sized their work by their own free memory would send different messages
        agreed = min(_gathered(session.limits.max_bytes, group))
        session.limits = session.limits._replace(max_bytes=agreed)
        if any(layer.streams for layer in session.layout.layers):
            _held(session, group, rows)
            _replicated(session, group, rows)
        else:
            note = "no layer of this model caches entries: states alone, which the memory section allocates"
            rows.append(row("distributed", "cache", predicted=None, measured=None, unit="bytes", note=note))
        line = _messages(session, group, rows)
        rows += _step(session, group, line)
    except KvplanError:
        raise
    except Exception as error:
        if not rows:
            raise  # a section that fails, as others do
        failed = [_failed(session, error)]
    finally:
        with suppress(RuntimeError):  # one that has lost another rank may not part in order
            extras.torch().distributed.destroy_process_group()
    return (rows if group.rank == 0 else [r._replace(passed=None) for r in rows]) + failed


def _failed(session: Session, error: Exception) -> Row:
    """The row behind what was measured before a part failed; nothing after it is measured."""
    failed = row("distributed", "distributed failed", predicted=None, measured=None, unit="count", note=said(error))
    if out_of_memory(error):
        note = f"out of memory within {human_bytes(session.limits.max_bytes)}; free some, or lower --max-memory"
        failed = failed._replace(name="out of memory", unit="bytes", note=note)
    elif any(sign in failed.note.lower() for sign in ("by peer", "timed out")):
        failed = failed._replace(
            note="another rank stopped or went silent; it says why on stderr, or its launcher does"
        )
    session.lack(f"distributed: not all was measured: {failed.note}")
    return failed if failed.name == "out of memory" else failed._replace(passed=False)


def _join(session: Session) -> Group:
    torch = extras.torch()
    dist, device = torch.distributed, session.device
    if device.is_cuda:
        torch.cuda.set_device(device.index)
    if not dist.is_initialized():
        settings = {"device_id": device.torch_device} if device.is_cuda else {}
        try:
            dist.init_process_group(
                "nccl" if device.is_cuda else "gloo", timeout=datetime.timedelta(seconds=120), **settings
            )
        except (ValueError, RuntimeError) as error:
            said = next(iter(str(error).splitlines()), type(error).__name__)[:200]
            raise InputError(
                f"the processes do not find each other: {said}", where="torchrun",
                hint="start them all with torchrun --nproc-per-node 2 -m kvplan validate ...",
            ) from None  # fmt: skip
    return Group(dist.get_rank(), dist.get_world_size())


def _gathered(value: Any, group: Group) -> list[Any]:
    """`value` of every rank."""
    found: list[Any] = [None] * group.size
    extras.torch().distributed.all_gather_object(found, value)
    return found


def _agreed(session: Session, group: Group, make: Callable[[], Any], what: str) -> Any:
    """What `make` gives on this rank, once all ranks have theirs; None, noted as missing, where one of them failed.

    A rank that ran out of memory alone would leave the others waiting for its messages.
    """
    made, trouble = None, None
    try:
        made = make()
    except Exception as error:  # whatever it is: the others have to hear of it
        known = "out of memory" if out_of_memory(error) else error.message if isinstance(error, KvplanError) else None
        trouble = known or said(error)
    for rank, why in enumerate(_gathered(trouble, group)):
        if why is not None:
            session.lack(f"distributed, {what}: rank {rank}: {why}")
            made = None
    return made


def _blocks(session: Session, layout: RankLayout) -> int:
    page = sum(layer.page_bytes(layout.block_size) for layer in layout.layers)
    return max(1, min(session.limits.max_bytes // 4, (64 if session.device.kind == "cpu" else 1024) * MIB) // page)


def _held(session: Session, group: Group, rows: list[Row]) -> None:
    """Each rank's shard of the cache, allocated: bytes of its tensors, and on a GPU what the allocator counts."""
    session.say("distributed, caches")
    layout, device = session.layout, session.device
    blocks = _blocks(session, layout)
    shapes = page_shapes(layout, blocks)
    with allocated(device, shapes) as held:
        mine = (None, None) if isinstance(held, str) else (held.storage_bytes, held.allocated_bytes)
    note = f"{blocks:,} blocks of {layout.block_size} tokens; {_heads(layout)} KV heads a layer"
    counted = reserve((s.num_bytes for s in shapes), expandable=expandable_segments()).allocated_bytes
    setting = unmodelled()
    for rank, (storage, given) in enumerate(_gathered(mine, group)):
        for what, predicted, measured in (
            ("", planned_bytes(layout, blocks), storage), (": allocated", counted, given),
        ):  # fmt: skip
            if not what or device.is_cuda:
                rows.append(
                    row(
                        "distributed", f"cache on rank {rank}{what}", predicted=predicted, measured=measured,
                        unit="bytes", tolerance=None if what and setting else 0.0,
                        note=note + (f"; not judged: {setting} is set" if what and setting else ""),
                    )
                )  # fmt: skip


def _heads(layout: RankLayout) -> int:
    return max((s.heads for layer in layout.layers for s in layer.streams), default=0)


def _replicated(session: Session, group: Group, rows: list[Row]) -> None:
    """All ranks' bytes over the model's: 1 while KV heads are divided, more once they are copied.

    The model as it is, and the same one with a single KV head, which every rank has to hold.
    """
    from kvplan.cache.sharding import shard_model

    model = session.model
    single = replace(
        model,
        blocks={name: replace(b, mixers=tuple(m.as_mqa() for m in b.mixers)) for name, b in model.blocks.items()},
    )
    for name, spec in (("as it is", model), ("with one KV head", single)):
        whole = model_layout(spec, session.layout.formats, block_size=session.layout.block_size)
        part = model_layout(
            shard_model(spec, tp=group.size, drafts=False), session.layout.formats, block_size=whole.block_size,
            tp=group.size,
        )  # fmt: skip
        shapes = [Shape(s.dtype, s.shape) for s in page_shapes(part, 1)]
        mine = _agreed(session, group, partial(_stored, session, shapes), f"copies of the cache, {name}")
        if mine is None:
            continue
        together = sum(_gathered(mine, group))
        everything = sum(s.num_bytes for s in page_shapes(whole, 1))
        predicted = group.size * planned_bytes(part, 1) / planned_bytes(whole, 1)
        rows.append(
            row(
                "distributed", f"copies of the cache, {name}", predicted=predicted, measured=together / everything,
                unit="ratio", tolerance=1e-9,
                note=f"bytes of {group.size} ranks over those of the whole; {_heads(whole)} KV heads",
            )
        )  # fmt: skip


def _stored(session: Session, shapes: list[Shape]) -> int:
    """Bytes of the tensors' storages.

    Raises:
        MemoryError: they cannot be allocated.
    """
    with allocated(session.device, shapes) as held:
        if isinstance(held, str):
            raise MemoryError(held)
        return held.storage_bytes


def _messages(session: Session, group: Group, rows: list[Row]) -> Line | None:
    """All-reduce and all-to-all by size; the line of the all-reduce."""
    torch = extras.torch()
    dist = torch.distributed
    sizes = [8 * KIB, 64 * KIB, 512 * KIB, 4 * MIB] + ([] if session.device.kind == "cpu" else [32 * MIB, 256 * MIB])
    if session.limits.quick:
        sizes = sizes[:5]
    stated = session.speed()
    line = None
    operations: tuple[tuple[str, Callable[[Any, Any], Any], float], ...] = (
        ("all-reduce", lambda send, receive: dist.all_reduce(send), 2 * (group.size - 1) / group.size),
        ("all-to-all", lambda send, receive: dist.all_to_all_single(receive, send), (group.size - 1) / group.size),
    )
    for name, call, moved in operations:
        points = []
        for size in sizes:
            session.say(f"distributed, {name} of {human_bytes(size)}")
            elements = size // 4 // group.size * group.size  # every rank sends every other an equal share
            pair = _agreed(session, group, _buffers(session, elements), f"{name} of {human_bytes(size)}")
            if pair is None:
                continue
            send, receive = pair
            work = _repeated(call, send, receive)
            mine = _agreed(session, group, partial(_samples, session, work, INNER), f"{name} of {human_bytes(size)}")
            if mine is None:
                continue
            samples = [max(values) for values in zip(*_gathered(mine, group), strict=True)]
            carried = moved * 4 * elements
            points.append((carried, median(samples)))
            predicted = None
            if not isinstance(stated, str) and session.device.is_cuda:
                predicted = stated.rates.message_seconds(carried)
            rate = carried / points[-1][1] / 1e9
            rows.append(
                row(
                    "distributed", f"{name}, {human_bytes(size)}", predicted=predicted, measured=samples, unit="s",
                    note=f"{rate:,.2f} GB/s over each link",
                )
            )  # fmt: skip
        if len(points) < 2:
            continue
        fitted = fit.line(points)
        if name == "all-reduce":
            line = fitted
        rows += _line_rows(name, fitted)
    return line


def _buffers(session: Session, elements: int) -> Callable[[], Any]:
    torch, where = extras.torch(), session.device.torch_device
    return lambda: tuple(torch.zeros(elements, dtype=torch.float32, device=where) for _ in "ab")


def _repeated(call: Callable[[Any, Any], Any], send: Any, receive: Any) -> Callable[[], Any]:
    return lambda: [call(send, receive) for _ in range(INNER)]


def _line_rows(name: str, line: Line) -> list[Row]:
    rate, latency, miss = line
    note = f"of seconds = bytes / B + c over all sizes; worst miss {miss:.0%}"
    return [
        row("distributed", f"{name}: B", predicted=None, measured=rate, unit="bytes/s", note=note),
        row("distributed", f"{name}: c", predicted=None, measured=latency, unit="s", note=note),
    ]


def _samples(session: Session, work: Callable[[], Any], per: int = 1) -> list[float]:
    """Seconds of a part of `work` on this rank; every rank does it equally often, or a collective would hang."""
    dist, device = extras.torch().distributed, session.device
    if device.is_cuda:
        return sample(device, work, samples=session.limits.samples, per=per, replays=WARM_REPLAYS)
    work()
    found = []
    for _ in range(session.limits.samples):
        dist.barrier()
        began = time.perf_counter()
        work()
        found.append((time.perf_counter() - began) / per)
    return found


def _step(session: Session, group: Group, line: Line | None) -> list[Row]:
    """The decode step of this rank's layers against the planner's, and what messages add to it."""
    if line is None:
        return []
    from kvplan.planning.speed.work import count_reduces
    from kvplan.probe import held as part_of
    from kvplan.probe import step
    from kvplan.probe.shapes import unfit_weights
    from kvplan.probe.step_rows import ranks_seconds

    session.say("distributed, tensor-parallel step")
    batch, context = GPU_POINT if session.device.is_cuda else CPU_POINT
    name = f"{batch} x {context:,}"

    def make() -> tuple[part_of.Held, part_of.RunLayers, list[str]]:
        if (reason := unfit_weights(session)) is not None:
            raise KvplanError(reason)
        held = part_of.hold(session, with_head=False)
        if isinstance(held, str):
            raise KvplanError(held)
        if not step.fits(session, held, batch, context):
            raise KvplanError(f"the caches of {name} do not fit into --max-memory")
        layers, _, paths = step.prepare(session, held, batch, context)
        return held, layers, paths

    rows = _read(session, group)
    made = _agreed(session, group, make, f"step, {name}")
    if made is None:
        return rows
    held, layers, paths = made
    reduce = extras.torch().distributed.all_reduce
    spec, everything = session.layout.spec, range(len(held.layers))
    if _agreed(session, group, lambda: layers(None, everything) or True, f"step, {name}") is None:
        return rows  # what it allocates, it gets
    taken = []
    for one in (None, reduce):
        timed = partial(held.sampled, spec, layers, partial(_samples, session), one)
        mine = _agreed(session, group, timed, f"step, {name}")
        if mine is None:
            return rows
        taken.append(_gathered(mine, group))
    alone, together = taken
    setup = session.speed(formats=part_of.formats_run(session, held.fmt))
    predicted = ranks_seconds(setup, line[0], line[1], batch, context)
    how = "predicted by the plan with the line of the all-reduce"
    if predicted is None:
        how = f"not predicted: {setup}"
    tolerance = STEP_TOLERANCE if session.device.is_cuda else None
    message = batch * session.layout.spec.hidden_size * 2
    reduces = count_reduces(spec)
    moved = 2 * (group.size - 1) / group.size * message
    part = f"{held.told(spec) or f'{spec.num_layers} layers'}, no head"
    for rank, (own, messages) in enumerate(zip(alone, together, strict=True)):
        rows.append(
            row(
                "distributed", f"step on rank {rank}, {name}", predicted=predicted, measured=messages, unit="s",
                tolerance=tolerance, note=f"{part}; {how}; "
                f"{', '.join(dict.fromkeys(paths)) or 'no attention'}",
            )
        )  # fmt: skip
        rows.append(
            row(
                "distributed", f"step on rank {rank}, {name}: messages",
                predicted=median(own) + reduces * (line[1] + moved / line[0]), measured=messages, unit="s",
                note=f"{median(own) * 1e6:,.0f} us without messages, and {reduces} all-reduces of "
                f"{human_bytes(message)} by their line",
            )
        )  # fmt: skip
    return rows


def _read(session: Session, group: Group) -> list[Row]:
    """How fast all ranks read at once, where nothing states it: the plan of their step takes it for the bandwidth."""
    if session.gpu.bandwidth_bytes_per_second is not None:
        return []
    size = min(READ_BYTES, session.limits.max_bytes // 4)
    buffer = _agreed(session, group, lambda: _buffers(session, size // 4)()[0], "read rate")
    if buffer is None:
        return []
    rates = [min(size / s for s in each) for each in zip(*_gathered(_samples(session, buffer.sum), group), strict=True)]
    session.gpu = replace(session.gpu, bandwidth_bytes_per_second=int(median(rates)))
    note = "of the slowest rank while all read; predicted steps take it for the bandwidth"
    return [row("distributed", "read rate", predicted=None, measured=rates, unit="bytes/s", note=note)]

"""Several GPUs under ``torchrun``: what each rank holds, what messages cost, and a tensor-parallel decode step.

NCCL on GPUs, gloo on CPUs. Every rank measures; the first one puts the rows together. Times are those of the slowest
rank: a collective is done when all are.
"""

from __future__ import annotations

import datetime
import time
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from kvplan.errors import InputError
from kvplan.probe import extras, fit
from kvplan.probe.allocator import expandable_segments, reserve
from kvplan.probe.layout import RankLayout, model_layout
from kvplan.probe.memory import Shape, allocated, page_shapes, planned_bytes
from kvplan.probe.receipt import Row, median, row
from kvplan.probe.tensor_parallel import Stack, StackShape
from kvplan.probe.timing import sample
from kvplan.units import KIB, MIB, human_bytes

if TYPE_CHECKING:
    from kvplan.probe.session import Session

STEP_TOLERANCE = 0.08
"""Of the tensor-parallel step, predicted from the same step without messages and the line of the all-reduce."""
CPU_STEP_TOLERANCE = 1.0
"""On a CPU the ranks share cores and memory: the step is shown, within a factor of two."""
INNER = 10
"""Collectives in one timed run."""
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
    try:
        # one figure for all: ranks that sized their work by their own free memory would send different messages
        agreed = min(_gathered(session.limits.max_bytes, group))
        session.limits = session.limits._replace(max_bytes=agreed)
        rows = _held(session, group)
        rows += _replicated(session, group)
        found, line = _messages(session, group)
        rows += found
        rows += _step(session, group, line)
    finally:
        extras.torch().distributed.destroy_process_group()
    return rows if group.rank == 0 else [r._replace(passed=None) for r in rows]


def _join(session: Session) -> Group:
    torch = extras.torch()
    dist, device = torch.distributed, session.device
    if device.is_cuda:
        torch.cuda.set_device(device.index)
    if not dist.is_initialized():
        settings = {"device_id": device.torch_device} if device.is_cuda else {}
        dist.init_process_group(
            "nccl" if device.is_cuda else "gloo", timeout=datetime.timedelta(seconds=120), **settings
        )
    return Group(dist.get_rank(), dist.get_world_size())


def _gathered(value: Any, group: Group) -> list[Any]:
    """`value` of every rank."""
    found: list[Any] = [None] * group.size
    extras.torch().distributed.all_gather_object(found, value)
    return found


def _blocks(session: Session, layout: RankLayout) -> int:
    page = sum(layer.page_bytes(layout.block_size) for layer in layout.layers)
    return max(1, min(session.limits.max_bytes // 4, (64 if session.device.kind == "cpu" else 1024) * MIB) // page)


def _held(session: Session, group: Group) -> list[Row]:
    """Each rank's shard of the cache, allocated: bytes of its tensors, and on a GPU what the allocator counts."""
    session.say("distributed, caches")
    layout, device = session.layout, session.device
    blocks = _blocks(session, layout)
    shapes = page_shapes(layout, blocks)
    with allocated(device, shapes) as held:
        mine = (None, None) if isinstance(held, str) else (held.storage_bytes, held.allocated_bytes)
    note = f"{blocks:,} blocks of {layout.block_size} tokens; {_heads(layout)} KV heads a layer"
    counted = reserve((s.num_bytes for s in shapes), expandable=expandable_segments()).allocated_bytes
    rows = []
    for rank, (storage, given) in enumerate(_gathered(mine, group)):
        for what, predicted, measured in (
            ("", planned_bytes(layout, blocks), storage), (": allocated", counted, given),
        ):  # fmt: skip
            if not what or device.is_cuda:
                rows.append(
                    row(
                        "distributed", f"cache on rank {rank}{what}", predicted=predicted, measured=measured,
                        unit="bytes", tolerance=0.0, note=note,
                    )
                )  # fmt: skip
    return rows


def _heads(layout: RankLayout) -> int:
    return max((s.heads for layer in layout.layers for s in layer.streams), default=0)


def _replicated(session: Session, group: Group) -> list[Row]:
    """All ranks' bytes over the model's: 1 while KV heads are divided, more once they are copied.

    The model as it is, and the same one with a single KV head, which every rank has to hold.
    """
    from kvplan.cache.sharding import shard_model

    model = session.model
    single = replace(
        model,
        blocks={name: replace(b, mixers=tuple(m.as_mqa() for m in b.mixers)) for name, b in model.blocks.items()},
    )
    rows = []
    for name, spec in (("as it is", model), ("with one KV head", single)):
        whole = model_layout(spec, session.layout.formats, block_size=session.layout.block_size)
        part = model_layout(
            shard_model(spec, tp=group.size, drafts=False), session.layout.formats, block_size=whole.block_size,
            tp=group.size,
        )  # fmt: skip
        shapes = [Shape(s.dtype, s.shape) for s in page_shapes(part, 1)]
        with allocated(session.device, shapes) as held:
            mine = 0 if isinstance(held, str) else held.storage_bytes
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
    return rows


def _messages(session: Session, group: Group) -> tuple[list[Row], Line | None]:
    """All-reduce and all-to-all by size; the line of the all-reduce."""
    torch = extras.torch()
    dist = torch.distributed
    sizes = [8 * KIB, 64 * KIB, 512 * KIB, 4 * MIB] + ([] if session.device.kind == "cpu" else [32 * MIB, 256 * MIB])
    if session.limits.quick:
        sizes = sizes[:5]
    stated = session.speed()
    rows: list[Row] = []
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
            send = torch.zeros(elements, dtype=torch.float32, device=session.device.torch_device)
            receive = torch.empty_like(send)
            mine = _samples(session, _repeated(call, send, receive), INNER)
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
        fitted = fit.line(points)
        if name == "all-reduce":
            line = fitted
        rows += _line_rows(name, fitted)
    return rows, line


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
    """The decode step of this rank's share, without messages and with them."""
    shape = StackShape.of(session)
    if shape is None or line is None:
        return []
    session.say("distributed, tensor-parallel step")
    dist = extras.torch().distributed
    stack = Stack(shape, session.device.torch_device, session.seed)
    alone = _gathered(_samples(session, lambda: stack.step(None)), group)
    together = _gathered(_samples(session, lambda: stack.step(dist.all_reduce)), group)
    size = shape.message_bytes
    moved = 2 * (group.size - 1) / group.size * size
    rate, latency, _ = line
    one = latency + moved / rate
    rows = []
    tolerance = STEP_TOLERANCE if session.device.is_cuda else CPU_STEP_TOLERANCE
    for rank, (own, messages) in enumerate(zip(alone, together, strict=True)):
        predicted = median(own) + 2 * shape.layers * one
        rows.append(
            row(
                "distributed", f"step on rank {rank}, {shape.batch} x {shape.context:,}", predicted=predicted,
                measured=messages, unit="s", tolerance=tolerance,
                note=f"{shape.layers} of {session.layout.spec.num_layers} layers; {median(own) * 1e6:,.0f} us without "
                f"messages, {2 * shape.layers} all-reduces of {human_bytes(size)}",
            )
        )  # fmt: skip
    return rows

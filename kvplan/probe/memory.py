"""The planner's layout, allocated: bytes that were predicted beside bytes that the device holds.

Three ways of storing the same cache: one tensor a layer (how engines that page do it), one tensor a layer with an odd
number of blocks, and a tensor for every part (K, V, scales apart). The first two have the planner's bytes; what the
allocator rounds up is predicted by `kvplan.probe.allocator`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple

from kvplan.probe import extras, nvml
from kvplan.probe.allocator import expandable_segments, reserve, unmodelled
from kvplan.probe.layout import DTYPE_BYTES, PROBE_FORMATS, LayerCache, RankLayout, model_layout, uniform_formats
from kvplan.probe.receipt import Row, row
from kvplan.units import GIB, MIB, human_bytes

if TYPE_CHECKING:
    from kvplan.probe.device import ProbeDevice
    from kvplan.probe.session import Session

RSS_TOLERANCE = 0.02
"""Of the resident set on a CPU: pages of 4 KiB or 2 MiB, and what the interpreter allocates meanwhile."""
DRIVER_TOLERANCE = 0.002
"""Of NVML's difference: page tables of the driver, and what other processes do meanwhile."""


class Shape(NamedTuple):
    """One tensor to allocate."""

    dtype: str
    shape: tuple[int, ...]

    @property
    def num_bytes(self) -> int:
        return prod(self.shape) * DTYPE_BYTES[self.dtype]


class Held(NamedTuple):
    """What a device says before and after, as differences."""

    storage_bytes: int
    """Sum over the tensors' storages."""
    allocated_bytes: int | None
    reserved_bytes: int | None
    driver_bytes: int | None
    """Less free memory, as the driver counts (NVML; ``mem_get_info`` on ROCm); on a CPU the resident set."""


def measure(session: Session) -> list[Row]:
    """Every kind and format of the model, allocated and counted."""
    from kvplan.probe import sequences

    rows: list[Row] = []
    for label, layout in _layouts(session):
        session.say(f"memory, {label}")
        rows += _of_layout(session, label, layout)
    rows += _states(session)
    rows += sequences.measure(session)
    rows += _pool(session)
    return rows


def _layouts(session: Session) -> Iterator[tuple[str, RankLayout]]:
    """(format, layout) of the plan's own formats, and of the probe's where every stream takes them."""
    base = session.layout
    if not any(layer.streams for layer in base.layers):
        return
    own = base.formats.k.name if base.formats.k == base.formats.v else f"{base.formats.k.name},{base.formats.v.name}"
    yield own, base
    for name in PROBE_FORMATS:
        if name != own:
            formats = uniform_formats(name, base.formats)
            yield name, model_layout(base.spec, formats, block_size=base.block_size, tp=base.tp)


def _target(session: Session) -> int:
    """Bytes to allocate at once: enough that a wrong byte per token shows, no more than is allowed."""
    quick = session.limits.quick
    wanted = (GIB if quick else 8 * GIB) if session.device.is_cuda else (64 if quick else 256) * MIB
    return min(wanted, session.limits.max_bytes // 2)


def page_shapes(layout: RankLayout, blocks: int) -> list[Shape]:
    """One tensor a layer: ``[blocks, bytes of a page]``, every part of an entry inside the page."""
    size = layout.block_size
    found = []
    for layer in layout.layers:
        page = sum(s.slots(size) * sum(p.num_bytes for p in s.parts) for s in layer.streams if s.fixed_entries is None)
        if page:
            found.append(Shape("uint8", (blocks, page)))
    return found


def part_shapes(layout: RankLayout, blocks: int) -> list[Shape]:
    """A tensor for every part of every stream of every layer: ``[blocks, slots, *shape of an entry]``."""
    size = layout.block_size
    return [
        Shape(part.dtype, (blocks, stream.slots(size), *part.shape))
        for layer in layout.layers
        for stream in layer.streams
        if stream.fixed_entries is None
        for part in stream.parts
    ]


def planned_bytes(layout: RankLayout, blocks: int) -> int:
    """The planner's count for `blocks` pages of every layer, through its own bytes of an entry."""
    return blocks * sum(layer.page_bytes(layout.block_size) for layer in layout.layers)


def even_blocks(layout: RankLayout, target: int) -> tuple[int, int]:
    """(blocks whose tensors are multiples of 2 MiB in every layer where that is possible, an odd number near it)."""
    pages = {layer.page_bytes(layout.block_size) for layer in layout.layers} - {0}
    most = max(1, target // max(1, sum(p.page_bytes(layout.block_size) for p in layout.layers)))
    step = 1
    for page in pages:
        low_bit = page & -page  # the largest power of two in it
        step = max(step, 2 * MIB // min(low_bit, 2 * MIB))
    even = most // step * step or most
    return even, max(1, most - 1 if most % 2 == 0 else most)


def _of_layout(session: Session, label: str, layout: RankLayout) -> list[Row]:
    even, odd = even_blocks(layout, _target(session))
    rows = []
    for what, shapes, blocks in (
        ("a tensor a layer", page_shapes(layout, even), even),
        ("a tensor a layer, odd", page_shapes(layout, odd), odd),
        ("a tensor a part", part_shapes(layout, odd), odd),
    ):
        if not shapes or (what.endswith("odd") and odd == even):
            continue
        predicted = planned_bytes(layout, blocks)
        name = f"{label}, {what}"
        detail = f"{len(shapes)} tensors, {blocks:,} blocks of {layout.block_size} tokens"
        rows += compare(session, name, shapes, predicted, detail)
    return rows


def compare(session: Session, name: str, shapes: list[Shape], predicted: int, detail: str) -> list[Row]:
    """Rows of one allocation: bytes of the tensors, of the allocator, and of the driver or the process."""
    device = session.device
    with allocated(device, shapes) as held:
        if isinstance(held, str):
            session.lack(f"memory, {name}: {held}")
            return [row("memory", name, predicted=predicted, measured=None, unit="bytes", note=held)]
    rows = [
        row(
            "memory", f"{name}: tensors", predicted=predicted, measured=held.storage_bytes, unit="bytes", tolerance=0.0,
            note=detail,
        )
    ]  # fmt: skip
    if device.kind == "cpu":
        if held.driver_bytes is not None and predicted >= 16 * MIB:
            rows.append(
                row(
                    "memory", f"{name}: resident set", predicted=predicted, measured=held.driver_bytes, unit="bytes",
                    tolerance=RSS_TOLERANCE, note="of this process, every page written",
                )
            )  # fmt: skip
        return rows
    model = reserve((s.num_bytes for s in shapes), expandable=expandable_segments())
    rounding = f"rounding {human_bytes(model.reserved_bytes - predicted)} in {model.segments} segments"
    if (setting := unmodelled()) is not None:
        rounding += f"; not judged: {setting} is set"
    for what, expected, found, tolerance in (
        ("allocated", model.allocated_bytes, held.allocated_bytes, 0.0),
        ("reserved", model.reserved_bytes, held.reserved_bytes, 0.0),
        ("driver", model.reserved_bytes, held.driver_bytes, DRIVER_TOLERANCE),
    ):
        if found is not None:
            rows.append(
                row(
                    "memory", f"{name}: {what}", predicted=expected, measured=found, unit="bytes",
                    tolerance=tolerance if setting is None else None, note=rounding,
                )
            )  # fmt: skip
    return rows


@contextmanager
def allocated(device: ProbeDevice, shapes: list[Shape]) -> Iterator[Held | str]:
    """The tensors, held while the context lasts, and what changed; a sentence where memory ran out."""
    device.release()
    before = state(device)
    tensors: list[Any] = []
    try:
        trouble = _fill(device, shapes, tensors)
        if trouble:
            yield trouble
            return
        after = state(device)
        storage = sum(t.untyped_storage().nbytes() for t in tensors)
        yield Held(storage, *(None if a is None or b is None else b - a for a, b in zip(before, after, strict=True)))
    finally:
        tensors.clear()
        device.release()


def _fill(device: ProbeDevice, shapes: list[Shape], tensors: list[Any]) -> str | None:
    """Append the tensors; a sentence where memory ran out. On a CPU every page is written, or it would not be there."""
    torch = extras.torch()
    try:
        for item in shapes:
            tensors.append(torch.empty(item.shape, dtype=getattr(torch, item.dtype), device=device.torch_device))
            if device.kind == "cpu":
                tensors[-1].view(torch.uint8).fill_(1)
        device.synchronize()
    except (RuntimeError, MemoryError) as error:
        if not out_of_memory(error):
            raise
        return f"out of memory after {len(tensors)} of {len(shapes)} tensors"
    return None


def out_of_memory(error: BaseException) -> bool:
    """Whether an error is a device or a machine saying that it has no memory left."""
    if isinstance(error, MemoryError):
        return True
    torch = extras.torch()
    kind = getattr(torch, "OutOfMemoryError", None) or torch.cuda.OutOfMemoryError
    text = str(error).lower()
    return isinstance(error, kind) or "out of memory" in text or "can't allocate memory" in text


def state(device: ProbeDevice) -> tuple[int | None, int | None, int | None]:
    """(allocated, reserved, used as the driver counts) right now."""
    torch = extras.torch()
    if device.is_cuda:
        index = device.index
        used = nvml.used_bytes(device.nvml.number) if device.nvml is not None else None
        if used is None:
            free, total = torch.cuda.mem_get_info(index)
            used = int(total - free)
        return torch.cuda.memory_allocated(index), torch.cuda.memory_reserved(index), used
    if device.kind == "mps":
        return torch.mps.current_allocated_memory(), None, torch.mps.driver_allocated_memory()
    return None, None, resident_bytes()


def resident_bytes() -> int | None:
    """Anonymous memory of this process that is in RAM; None where the system does not say."""
    try:
        with open("/proc/self/status", encoding="ascii", errors="replace") as file:
            for line in file:
                if line.startswith("RssAnon:"):
                    return int(line.split()[1]) * 1024
    except (OSError, ValueError):
        return None
    return None


def _states(session: Session) -> list[Row]:
    """Fixed states of recurrent layers, for as many sequences as fit, and encoder rows of cross attention."""
    layers: list[LayerCache] = [layer for layer in session.layout.layers if _fixed(layer)]
    if not layers:
        return []
    from kvplan.cache.bytes import fixed_bytes

    one = sum(_fixed(layer) for layer in layers)
    sequences = max(1, min(64, _target(session) // one))
    shapes = [
        Shape(state.dtype, (sequences, *state.shape)) for layer in layers for state in layer.states
    ] + [
        Shape(part.dtype, (sequences, stream.fixed_entries, *part.shape))
        for layer in layers for stream in layer.streams if stream.fixed_entries is not None for part in stream.parts
    ]  # fmt: skip
    if sum(s.num_bytes for s in shapes) > session.limits.max_bytes:
        note = f"{human_bytes(one)} of one sequence do not fit into --max-memory at once; its layers are held below"
        return [row("memory", "states", predicted=None, measured=None, unit="bytes", note=note)]
    session.say("memory, states")
    predicted = sequences * fixed_bytes(session.layout.spec, session.layout.formats)
    return compare(session, "states", shapes, predicted, f"{len(shapes)} tensors for {sequences} sequences")


def _fixed(layer: LayerCache) -> int:
    rows = sum(s.fixed_entries * sum(p.num_bytes for p in s.parts) for s in layer.streams if s.fixed_entries)
    return rows + sum(state.num_bytes for state in layer.states)


def _pool(session: Session) -> list[Row]:
    """The engine's own pool of some bytes: its blocks, allocated as tensors of this layout.

    Only for models whose layers all cache alike: where they differ, engines share and pad pages between groups.
    """
    layout, given = session.layout, _target(session)
    if len(layout.kinds()) != 1 or layout.layers[0].states or session.settings.pipeline_parallel_size > 1:
        return []
    pool = session.engine.pool(session.outcome.stages, session.settings, (given,))
    if not pool.num_blocks or pool.block_size != layout.block_size or any(
        s.window or s.ratio > 1 or s.fixed_entries for s in layout.layers[0].streams
    ):  # fmt: skip
        return []
    session.say(f"memory, pool of {session.engine.name}")
    shapes = page_shapes(layout, pool.num_blocks)
    name = f"pool of {session.engine.name} for {human_bytes(given)}"
    detail = f"{pool.num_blocks:,} blocks of {pool.block_size} tokens"
    return compare(session, name, shapes, pool.used_bytes[0], detail)

"""A whole decode step, measured and predicted: every layer's weights and caches in a CUDA graph.

Before it, what a calibration takes besides attention: the line of linear layers, the plateau of matrix products,
and what stands between the kernels of a layer. The same step is predicted twice: from the constants of the package
and from what was measured.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import torch

from kvplan.planning.speed.constants import ROUTING_SECONDS
from kvplan.probe import linear, stack, timing
from kvplan.probe.attention import PAGE, skipped
from kvplan.probe.held import Held, RunLayers, hold
from kvplan.probe.kernels import between, choose, store
from kvplan.probe.readers import Reader, head_shape
from kvplan.probe.receipt import Row, median, row
from kvplan.probe.shapes import unfit_weights
from kvplan.probe.step_rows import Point, point_rows, wrong_rows

if TYPE_CHECKING:
    from kvplan.probe.kernels.store import HeadShape, PagedKv
    from kvplan.probe.session import Session

GPU_GRID = ((1, 1024), (1, 16384), (8, 4096), (32, 4096), (64, 1024), (64, 4096), (128, 1024), (256, 1024))
GPU_QUICK = ((1, 1024), (8, 4096), (64, 1024), (64, 4096))
CPU_GRID = ((1, 256), (2, 256), (2, 512), (4, 512))
CPU_QUICK = ((1, 256), (2, 256))
_CPU_POOL_SHARE, _POOL_SHARE, _CHECK_SHARE = 0.2, 0.3, 0.02
"""Of what a section may hold that goes to caches, and to holding attention against float64."""


class Unserved(RuntimeError):
    """No attention that is right runs here over some layer's cache: a step without it would be no step."""


def measure(session: Session) -> list[Row]:
    """Rows of single kernels, of the grid, and how far predictions lie off; sets ``figures`` but for attention."""
    if (reason := _unfit(session)) is not None:
        session.lack(f"decode step: {reason}")
        return [row("decode", "decode step", predicted=None, measured=None, unit="s", note=reason)]
    held = hold(session)
    if isinstance(held, str):
        session.lack(f"decode step: {held}")
        return [row("decode", "decode step", predicted=None, measured=None, unit="s", note=held)]
    assert held.head is not None  # asked for
    rows = linear.measure(session, held.layers, held.head)
    rows.append(_between(session, held))
    points: list[Point] = []
    grid = _grid(session, held)
    for batch, context in grid:
        if session.limits.seconds_left <= 0:
            session.lack(f"decode, steps: the time was up after {len(points)} of {len(grid)} points")
            break
        session.say(f"decode step, {batch} x {context}")
        try:
            points.append(time_step(session, held, batch, context))
        except Unserved as problem:
            session.lack(f"decode, step {batch} x {context}: {problem}")
    rows += wrong_rows(held) + point_rows(session, held, points)
    held.layers.clear()
    held.pools.clear()
    return rows


def _unfit(session: Session) -> str | None:
    """Why no step is measured; None: it is."""
    if (reason := unfit_weights(session)) is not None:
        return reason
    if session.settings.pipeline_parallel_size > 1 or session.settings.tensor_parallel_size > 1:
        return "a step over several GPUs is measured under torchrun"
    return None


def _grid(session: Session, held: Held) -> list[tuple[int, int]]:
    """Points whose caches fit; the largest first, so that its pages serve the others."""
    quick = session.limits.quick
    wanted: tuple[tuple[int, int], ...] = CPU_QUICK if quick else CPU_GRID
    if session.device.is_cuda:
        wanted = GPU_QUICK if quick else GPU_GRID
    longest = session.model.max_position_embeddings or 1 << 20
    possible = list(dict.fromkeys((b, min(c, longest)) for b, c in wanted))
    fitting = [point for point in possible if fits(session, held, *point)]
    if len(fitting) < len(possible):
        left = len(possible) - len(fitting)
        session.lack(f"decode, steps: the caches of {left} of {len(possible)} points do not fit into --max-memory")
    return sorted(fitting, key=lambda point: -_cache_bytes(session, held, *point))


def fits(session: Session, held: Held, batch: int, context: int, *, operators: bool = False) -> bool:
    """Whether the caches of a point fit beside the layers.

    Args:
        operators: with the room that torch operators take although a kernel serves.
    """
    share = _POOL_SHARE if session.device.is_cuda else _CPU_POOL_SHARE
    return _cache_bytes(session, held, batch, context, operators=operators) <= session.limits.max_bytes * share


def _cache_bytes(session: Session, held: Held, batch: int, context: int, *, operators: bool = False) -> int:
    """Pages and states of all layers that are held, and what operators take to read one layer's.

    Args:
        operators: count them although a kernel serves.
    """
    total = work = 0
    for layer in held.layers:
        for reader in layer.readers:
            cached = batch * -(-reader.entries(context) // PAGE) * PAGE
            total += cached * store.row_bytes(reader.head, held.fmt)
            if operators or not choose.kernels_serve(session.device, reader.head, held.fmt):
                work = max(work, cached * store.workspace_bytes(reader.head, held.fmt))
        total += batch * layer.state_elements * 2
    return total + work


def time_step(session: Session, held: Held, batch: int, context: int) -> Point:
    """Seconds of the whole model's step; layers that are not held count as those of their block that are."""
    device, spec = session.device, session.layout.spec
    layers, scratch, names = prepare(session, held, batch, context)
    everything = range(len(held.layers))

    def head() -> Any:
        assert held.head is not None
        between.add_norm(scratch.x, scratch.rest, held.layers[0].norm, scratch.normed)
        return scratch.normed @ held.head.t()

    def whole() -> Any:
        layers(None, everything)
        return head()

    samples = session.limits.samples

    def sample(work: Callable[[], Any]) -> list[float]:
        return timing.sample(device, work, samples=samples)

    if held.whole(spec):
        seconds = sample(whole)
    else:
        parts = zip(held.sampled(spec, layers, sample), sample(head), strict=True)
        seconds = [inside + last for inside, last in parts]
    return Point(batch, context, tuple(seconds), ", ".join(dict.fromkeys(names)) or "no attention")


def prepare(session: Session, held: Held, batch: int, context: int) -> tuple[RunLayers, stack.Scratch, list[str]]:
    """(some layers of a step, run with the sum over ranks that it is given; activations; paths of attention).

    Raises:
        Unserved: no attention runs over some layer's cache.
    """
    device, spec = session.device, session.layout.spec
    dims = [reader.head.head_dim for layer in held.layers for reader in layer.readers]
    scratch = stack.Scratch.of(batch, spec.hidden_size, max(dims, default=2), device.torch_device)
    attends, names = _attends(session, held, scratch, batch, context)
    states = [
        torch.ones((batch, layer.state_elements), dtype=stack.DTYPE, device=device.torch_device)
        if layer.state_elements else None
        for layer in held.layers
    ]  # fmt: skip

    def layers(reduce: stack.Reduce | None, chosen: Iterable[int]) -> None:
        for index in chosen:
            stack.run_layer(held.layers[index], scratch, attends[index], states[index], reduce)

    return layers, scratch, names


def _attends(
    session: Session, held: Held, scratch: stack.Scratch, batch: int, context: int
) -> tuple[list[dict[int, stack.Attend]], list[str]]:
    """(of every layer: mixer -> its attention, names of the paths that were picked)."""
    found: list[dict[int, stack.Attend]] = [{} for _ in held.layers]
    names = []
    groups: dict[tuple[HeadShape, int], list[tuple[int, Reader]]] = {}
    for index, layer in enumerate(held.layers):
        for reader in layer.readers:
            groups.setdefault((reader.head, reader.entries(context)), []).append((index, reader))
    pages = {(shape, length): batch * -(-length // PAGE) * len(some) for (shape, length), some in groups.items()}
    begun: Counter[HeadShape] = Counter()
    for (shape, length), some in groups.items():
        pool = _pool(session, held, shape, sum(count for (other, _), count in pages.items() if other == shape))
        start, begun[shape] = begun[shape], begun[shape] + pages[shape, length]
        work = choose.over_pool(session.device, pool, len(some), batch, length, session.seed, start)
        several = session.device.is_cuda and not session.limits.quick
        work.check_bytes = min(work.check_bytes, int(session.limits.max_bytes * _CHECK_SHARE))
        room = fits(session, held, batch, context, operators=True)
        picked = choose.serve(work, several=several, operators=room, samples=3)
        held.wrong += work.wrong
        if picked is None:
            raise Unserved(f"no attention serves {held.fmt} ({'; '.join(work.rejected) or 'no candidate'})")
        names.append(picked.path.name + skipped(picked))
        for copy, (index, reader) in enumerate(some):
            found[index][reader.mixer] = _bound(work, picked.path.run, copy, scratch)
    return found, names


def _pool(session: Session, held: Held, shape: HeadShape, pages: int) -> PagedKv:
    """At least so many filled pages of a shape: no two attentions read the same ones, or a cache would serve one."""
    pool = held.pools.get(shape)
    if pool is None or pool.blocks < pages:
        pool = None
        held.pools.pop(shape, None)
        where, turned = session.device.torch_device, choose.transposed(session.device, held.fmt)
        pool = store.allocate(shape, held.fmt, pages, PAGE, where, transposed=turned)
        store.fill_random(pool, session.seed)
        held.pools[shape] = pool
    return pool


def _bound(work: choose.Workload, run: Callable[[int], None], copy: int, scratch: stack.Scratch) -> stack.Attend:
    def attend(y: torch.Tensor) -> torch.Tensor:
        width = work.q.shape[1] * work.q.shape[2]
        if y.shape[1] >= width:
            between.rotate(y, scratch.turn, work.q)
        run(copy)
        return work.out.flatten(1)

    return attend


def _between(session: Session, held: Held) -> Row:
    """Norms, rotary positions and gate of one layer; sets ``layer_seconds``."""
    from kvplan.probe.session import MeasuredFigure

    in_place = session.device.is_cuda and not any(x.state_elements for x in held.layers)
    batches = _BETWEEN if session.device.is_cuda else _BETWEEN[:1]
    session.say("between the kernels of a layer")
    found = [_in_place(session, held, b) if in_place else _alone(session, b) for b in batches]
    middle = found[len(found) // 2]
    session.figures.layer_seconds = MeasuredFigure.of(middle)
    stated = session.speed()
    predicted = None if isinstance(stated, str) else stated.rates.layer_seconds
    how = "layers without attention, less their products alone" if in_place else "on their own"
    if in_place and any(layer.experts for layer in held.layers):
        how += f" and {ROUTING_SECONDS * 1e6:.0f} us that plans count for routing"
    by = ", ".join(f"{b}: {median(one) * 1e6:.1f} us" for b, one in zip(batches, found, strict=True))
    return row(
        "decode", "between the kernels of a layer", predicted=predicted, measured=middle, unit="s",
        note=f"two norms with residuals, rotary positions, gate; {how}; by batch {by}; predicted is what the package "
        "states for engines",
    )  # fmt: skip


_BETWEEN = (1, 8, 64)
"""Batches of which the middle one counts."""


def _in_place(session: Session, held: Held, batch: int) -> list[float]:
    """What a layer takes besides its products, its attention and what the planner counts for routing.

    Products go over more weights than the last-level cache holds, so residuals, norms and positions come from memory
    again: on one H200 that makes these kernels half as slow again as on activations that stay in the cache.
    """
    device, hidden = session.device, session.layout.spec.hidden_size
    dims = [reader.head.head_dim for layer in held.layers for reader in layer.readers]
    scratch = stack.Scratch.of(batch, hidden, max(dims, default=2), device.torch_device)
    skips: dict[HeadShape, stack.Attend] = {}
    for shape in {reader.head for layer in held.layers for reader in layer.readers}:
        q = torch.empty((batch, shape.query_heads, shape.head_dim), dtype=stack.DTYPE, device=device.torch_device)
        out = torch.randn((batch, shape.query_heads * shape.head_dim_v), device=device.torch_device).to(stack.DTYPE)
        skips[shape] = _skipping(q, out, scratch)

    def layers() -> None:
        for layer in held.layers:
            stack.run_layer(layer, scratch, {reader.mixer: skips[reader.head] for reader in layer.readers})

    samples = max(3, session.limits.samples // 2)
    alone = median(linear.layer_products(session, held.layers, batch))
    alone += ROUTING_SECONDS * sum(layer.experts is not None for layer in held.layers)
    return [max(0.0, t - alone) / len(held.layers) for t in timing.sample(device, layers, samples=samples)]


def _skipping(q: torch.Tensor, out: torch.Tensor, scratch: stack.Scratch) -> stack.Attend:
    """An attention that only turns its queries, where it does."""

    def attend(y: torch.Tensor) -> torch.Tensor:
        if y.shape[1] >= q.shape[1] * q.shape[2]:
            between.rotate(y, scratch.turn, q)
        return out

    return attend


def _alone(session: Session, batch: int) -> list[float]:
    """The same kernels on activations that stay in the cache."""
    device, spec = session.device, session.layout.spec
    shape = next((s for _, m in spec.mixers() if (s := head_shape(m)) is not None), None)
    dim, heads = (shape.head_dim, shape.query_heads) if shape else (128, max(1, spec.hidden_size // 128))
    ffns = [getattr(f, "intermediate_size", 0) for b in spec.blocks.values() for f in b.ffns]
    wide = max(ffns, default=spec.hidden_size)
    chains = 8 if device.is_cuda else 1
    scratch = stack.Scratch.of(batch, spec.hidden_size, dim, device.torch_device)
    norm = torch.ones(spec.hidden_size, dtype=stack.DTYPE, device=device.torch_device)
    y = torch.randn((batch, max(2 * wide, heads * dim)), device=device.torch_device).to(stack.DTYPE)
    q = torch.empty((batch, heads, dim), dtype=stack.DTYPE, device=device.torch_device)
    out = torch.empty((batch, wide), dtype=stack.DTYPE, device=device.torch_device)

    def work() -> None:
        for _ in range(chains):
            between.add_norm(scratch.x, scratch.rest, norm, scratch.normed)
            between.rotate(y, scratch.turn, q)
            between.add_norm(scratch.x, scratch.rest, norm, scratch.normed)
            between.gate(y[:, : 2 * wide].contiguous() if y.shape[1] > 2 * wide else y, out)

    return timing.sample(device, work, samples=max(3, session.limits.samples // 2), per=chains)

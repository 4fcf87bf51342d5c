"""Decode in RAM: layers of the model in float32 on a CPU, whose steps read weights and cache at the memory's rate.

Processors without 16-bit units convert every number first, and then arithmetic binds. In float32 a step is as bound
by memory as it is on a GPU, so that the planner's rule (bytes over the read rate) can be held against it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from kvplan.probe import bandwidth, extras
from kvplan.probe.receipt import Row, median, row, spread
from kvplan.probe.tensor_parallel import Stack, StackShape

if TYPE_CHECKING:
    from kvplan.probe.session import Session

POINTS = ((1, 128), (1, 2048), (4, 2048))
"""(batch, context): weights alone, then more and more cache; a quick run takes the first and the last."""
TOLERANCE = 3.0
"""A step may take four times what its bytes take at the rate that is read between the steps (1.6 to 2.9 times as long,
measured on two shared cores): operators cost calls besides."""
LEAST_BYTES = 16 << 20
"""Of a step that is judged: calls of operators, and not memory, bind smaller ones."""
STEADY = 0.25
"""Spread of rates and of steps up to which a row is judged."""
ROUNDS = 5
"""Steps and reads in turn: quartiles of fewer say nothing."""
_LEAST_READ, _MOST_READ = 8 << 20, 128 << 20
"""Bytes of one read."""
_BYTES, _QUICK_BYTES = 1 << 30, 3 << 27
"""Of weights and cache together, or one layer where that is more in a quick run: many times the last-level cache that
a core has to itself."""
_DRAWN = 1 << 20
"""Random numbers that weights and caches repeat: drawing takes longer than all steps."""


def measure(session: Session) -> list[Row]:
    """A row a point, on a CPU alone; needs the read rate."""
    read = session.figures.read_bytes_per_second
    points = POINTS[:: 2 if session.limits.quick else 1]
    shape = StackShape.of(session, max(context for _, context in points))
    if session.device.kind != "cpu" or read is None:
        return []
    if shape is None:
        note = "only models of plain attention to every entry and gated, dense FFNs of one width are run in float32"
        return [row("decode", "float32 step in RAM", predicted=None, measured=None, unit="s", note=note)]
    rows: list[Row] = []
    for batch, context in points:
        one = shape._replace(layers=1, batch=batch, context=context)
        every = session.layout.spec.num_layers
        layers = min(every, min(_BYTES, session.limits.max_bytes // 2) // one.layer_bytes)
        if session.limits.quick:
            layers = min(layers, max(1, _QUICK_BYTES // one.layer_bytes))
        if layers < 1:
            session.lack(f"decode, float32 step, {batch} x {context:,}: one layer does not fit into --max-memory")
            continue
        point = one._replace(layers=int(layers))
        session.say(f"decode in RAM, {batch} x {context}")
        stack = filled(point, session.seed)
        rates, samples = _beside(session, stack)
        del stack
        size, rate = point.layers * point.layer_bytes, median(rates)
        unsteady = max(spread(rates) or 0.0, spread(samples) or 0.0)
        small = size < LEAST_BYTES
        judged = TOLERANCE if unsteady <= STEADY and not small else None
        why = "" if judged else f"; spread {unsteady:.0%}: others are at work, not judged"
        if small:
            why = "; not judged: calls of operators bind so few bytes"
        rows.append(
            row(
                "decode", f"float32 step in RAM, {batch} x {context:,}", predicted=size / rate, measured=samples,
                unit="s", tolerance=judged, sense="at_most",
                note=f"{point.layers} of {every} layers, {size / 1e6:,.0f} MB of weights and cache at {rate / 1e9:.2f} "
                f"GB/s, read between the steps{why}",
            )
        )  # fmt: skip
    return rows


def filled(shape: StackShape, seed: int) -> Stack:
    """The layers with weights of variance 1 / inputs and normal caches, a million numbers over and over."""
    torch = extras.torch()
    stack = Stack(shape, "meta", seed)
    drawn = torch.randn(_DRAWN, generator=torch.Generator().manual_seed(seed))

    def real(like: Any) -> Any:
        found = torch.empty(like.shape, dtype=like.dtype)
        some = (drawn * like.shape[-1] ** -0.5).to(like.dtype)
        for part in found.view(-1).split(_DRAWN):
            part.copy_(some[: part.numel()])
        return found

    stack.layers = [{name: real(tensor) for name, tensor in layer.items()} for layer in stack.layers]
    stack.x = real(stack.x)
    return stack


def _beside(session: Session, stack: Stack) -> tuple[list[float], list[float]]:
    """(read rates, seconds of steps), in turn: whatever else the machine does meets both alike.

    Read as the ceiling was: a slower way would make steps seem faster than their bytes allow.
    """
    torch = extras.torch()
    size = max(_LEAST_READ, min(_MOST_READ, session.limits.max_bytes // 8)) // bandwidth.ROW * bandwidth.ROW
    buffer = torch.ones(size // 4, dtype=torch.float32, device=session.device.torch_device)
    reader = bandwidth.best_reader(session, buffer.view(torch.int32))
    read, steps = [], []
    reader.run()
    stack.step()
    for _ in range(ROUNDS):
        read.append(_once(reader.run))
        steps.append(_once(stack.step))
    return [size / seconds for seconds in read], steps


def _once(work: Callable[[], Any]) -> float:
    """Seconds of one run."""
    began = time.perf_counter()
    work()
    return time.perf_counter() - began

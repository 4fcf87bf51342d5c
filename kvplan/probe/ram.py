"""Decode in RAM: layers of the model in float32 on a CPU, whose steps read weights and cache at the memory's rate.

Processors without 16-bit units convert every number first, and then arithmetic binds. In float32 a step is as bound
by memory as it is on a GPU, so that the planner's rule (bytes over the read rate) can be held against it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvplan.probe import timing
from kvplan.probe.receipt import Row, row
from kvplan.probe.tensor_parallel import Stack, StackShape

if TYPE_CHECKING:
    from kvplan.probe.session import Session

POINTS = ((1, 128), (1, 2048), (4, 2048))
"""(batch, context): weights alone, then more and more cache."""
TOLERANCE = 3.0
"""A step may take four times what its bytes take at the read rate (1.6 to 2.9 times as long, measured on two shared
cores): operators cost calls besides, and others read the same memory."""
_BYTES = 1 << 30
"""Of weights and cache together: many times the last-level cache that a core has to itself."""


def measure(session: Session) -> list[Row]:
    """A row a point, on a CPU alone; needs the read rate."""
    read = session.figures.read_bytes_per_second
    shape = StackShape.of(session)
    if session.device.kind != "cpu" or read is None or shape is None:
        return []
    rows: list[Row] = []
    for batch, context in POINTS:
        one = shape._replace(layers=1, batch=batch, context=context)
        layers = min(session.layout.spec.num_layers, min(_BYTES, session.limits.max_bytes // 2) // one.layer_bytes)
        if layers < 1:
            continue
        point = one._replace(layers=int(layers))
        session.say(f"decode in RAM, {batch} x {context}")
        stack = Stack(point, session.device.torch_device, session.seed)
        samples = timing.sample(session.device, lambda s=stack: s.step(None), samples=session.limits.samples)  # type: ignore[misc]
        del stack
        size = point.layers * point.layer_bytes
        rows.append(
            row(
                "decode", f"float32 step in RAM, {batch} x {context:,}", predicted=size / read.value, measured=samples,
                unit="s", tolerance=TOLERANCE, sense="at_most",
                note=f"{point.layers} layers, {size / 1e6:,.0f} MB of weights and cache at the read rate",
            )
        )  # fmt: skip
    return rows

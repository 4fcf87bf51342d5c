"""Linear layers of a model's shapes: their line below the crossing, and the batch at which products take over."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any

from kvplan.planning.speed import decode
from kvplan.probe import prefill, timing
from kvplan.probe.fit import measured_line, shown
from kvplan.probe.receipt import Row, median, row

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import torch

    from kvplan.probe.session import Session
    from kvplan.probe.stack import Experts, Layer

_SMALL = (1, 8, 32)
"""Batches below the crossing."""
_CROSSING_MISS = 0.15
_LADDER = (1, 16, 32, 64, 96, 128, 160, 192, 224, 256, 320, 384, 512)
_MOST_LATENCY = 0.25
"""Share of latency in a layer's products at batch 1 above which they are too short to tell where weights and products
cross: on an H200 19 % in llama-3.1-8b, and 39 % in llama-3.2-1b, whose matrices do not fill the card."""


def measure(session: Session, layers: Sequence[Layer], head: torch.Tensor) -> list[Row]:
    """The line, the plateau and the crossing; sets ``figures.linear`` and ``figures.matmul_flops``."""
    rows = prefill.measure_plateau(session)
    shapes = _alike(layers, head)
    points, shares = [], []
    for number, ((out, inner), matrices) in enumerate(shapes.items()):
        if session.limits.seconds_left <= 0:
            session.lack(f"decode, linear layers: the time was up after {number} of {len(shapes)} shapes")
            break
        session.say(f"linear layers, {out} x {inner}")
        batches = _SMALL if session.device.is_cuda else _SMALL[:1]
        times = [median(time_products(session, matrices, batch)) for batch in batches]
        points.append((2.0 * out * inner, median(times)))
        shares.append(len(matrices) * median(times))
        note = f"{out} x {inner}, batch {', '.join(map(str, batches))}; {2 * out * inner / 1e6:.1f} MB"
        rates = [2 * out * inner / t for t in times]
        rows.append(
            row("decode", f"linear layer, {out} x {inner}", predicted=None, measured=rates, unit="bytes/s", note=note)
        )
    routed = [layer.experts for layer in layers if layer.experts is not None]
    if routed:
        found, more = _experts(session, routed[-1])
        points += found
        shares += [len(routed) * seconds for _, seconds in found]
        rows += more
    line = measured_line(points, session.figures.read_bytes_per_second, shares)
    if line is not None:
        session.figures.linear["16"] = line
        rate, start = line.bytes_per_second.value, line.latency_seconds.value
        rows.append(
            row(
                "decode", "linear layers: worst miss of the line", predicted=None, measured=line.worst_miss,
                unit="ratio", note=f"{shown(rate, start)} over {len(points)} shapes, each weighed by its time in a "
                "step; not judged, as steps judge the line",
            )
        )  # fmt: skip
    if session.device.is_cuda and not any(layer.experts for layer in layers):
        rows += _crossing(session, layers)
    return rows


def _alike(layers: Sequence[Layer], head: torch.Tensor) -> dict[tuple[int, int], list[torch.Tensor]]:
    """Matrices by shape; different ones of a shape are gone over in turn."""
    found: dict[tuple[int, int], list[torch.Tensor]] = {}
    for matrix in (*(m for layer in layers for m in layer.matrices), head):
        found.setdefault((matrix.shape[0], matrix.shape[1]), []).append(matrix)
    return found


def time_products(session: Session, matrices: Sequence[torch.Tensor], batch: int) -> list[float]:
    """Seconds of one product with `batch` rows, a figure a sample, over different matrices of one shape."""
    import torch

    x = torch.randn((batch, matrices[0].shape[1]), device=matrices[0].device).to(matrices[0].dtype)
    size = matrices[0].numel() * matrices[0].element_size()
    chosen = matrices[: timing.copies_for(session.device, size, 1 << 62)]
    passes = max(1, timing.LEAST_COPIES // len(chosen)) if session.device.is_cuda else 1

    def work() -> Any:
        for _ in range(passes):
            for matrix in chosen:
                x @ matrix.t()

    samples = max(3, session.limits.samples // 2) if session.device.is_cuda else 3
    return timing.sample(session.device, work, samples=samples, per=len(chosen) * passes)


_EXPERT_ROWS = (1, 4, 16)
"""Tokens of one expert in decode steps of usual batches."""


def _experts(session: Session, experts: Experts) -> tuple[list[tuple[float, float]], list[Row]]:
    """((bytes, seconds) of the products of all routed experts, a few rows each; the same as rows of the report)."""
    import torch

    cuda, samples = session.device.is_cuda, max(3, session.limits.samples // 2)
    counts = _EXPERT_ROWS if cuda else _EXPERT_ROWS[:1]
    passes = timing.LEAST_COPIES if cuda else 1  # on a CPU one takes seconds
    points, rows = [], []
    for weights in (experts.up, experts.down):
        size, shape = weights.numel() * weights.element_size(), " x ".join(map(str, weights.shape))
        session.say(f"experts, {shape}")
        times: list[float] = []
        for tokens in counts:
            if session.limits.seconds_left <= 0:
                left = f"{len(times)} of {len(counts)} counts of tokens"
                session.lack(f"decode, experts, {shape}: the time was up after {left}")
                break
            x = torch.randn((weights.shape[0], tokens, weights.shape[2]), device=weights.device).to(weights.dtype)
            work = _batched(x, weights, passes)
            times.append(median(timing.sample(session.device, work, samples=samples, per=passes)))
        if not times:
            continue
        points.append((float(size), median(times)))
        note = f"{shape}, tokens an expert: {', '.join(map(str, counts[: len(times)]))}; {size / 1e6:.1f} MB"
        rates = [size / t for t in times]
        rows.append(row("decode", f"experts, {shape}", predicted=None, measured=rates, unit="bytes/s", note=note))
    return points, rows


def _batched(x: torch.Tensor, weights: torch.Tensor, passes: int) -> Callable[[], Any]:
    import torch

    return lambda: [torch.bmm(x, weights.transpose(1, 2)) for _ in range(passes)]


def _crossing(session: Session, layers: Sequence[Layer]) -> list[Row]:
    """The batch at which a layer's products take as long as its weights.

    Predicted where the planner's two terms are equal. There the soft join makes a step the cube root of 2 as long
    as either, so it is measured as the batch at which the products of a layer, less their latency, take that many
    times as long as at batch 1. Layers that are mostly latency inform.
    """
    setup = session.speed()
    predicted = None if isinstance(setup, str) else decode.ridge_batch(setup.works, setup.rates, setup.layout)
    line = session.figures.linear.get("16")
    used = [layer for layer in layers if layer.dense][: 4 if session.limits.quick else 8]
    if line is None or predicted is None or isinstance(setup, str) or not used:
        return []
    kernels = sum(len(layer.matrices) for layer in used)
    late = kernels * line.latency_seconds.value
    session.say("crossing of weights and products")
    times = [(batch, median(layer_products(session, used, batch)) - late) for batch in _LADDER]
    latency = late / (times[0][1] + late)
    goal = times[0][1] * 2 ** (1 / setup.rates.softness)
    found = None
    for (low, before), (high, after) in pairwise(times):
        if before < goal <= after:
            found = low + (high - low) * (goal - before) / (after - before)
            break
    curve = ", ".join(f"{batch}: {seconds / times[0][1]:.2f}" for batch, seconds in times[1:])
    beyond = found is None and predicted * (1 + _CROSSING_MISS) > _LADDER[-1]
    return [
        row(
            "decode", "crossing batch", predicted=predicted, measured=found, unit="count",
            tolerance=None if beyond or latency > _MOST_LATENCY else _CROSSING_MISS,
            note=f"products of a layer are 2^(1/3) times as long as at batch 1; latency is {latency:.0%} of that; by "
            f"batch: {curve}{f'; beyond {_LADDER[-1]}, the largest that is tried: not judged' if beyond else ''}",
        )
    ]  # fmt: skip


def layer_products(session: Session, layers: Sequence[Layer], batch: int) -> list[float]:
    """Seconds of the products of all `layers`, one after the other, on `batch` rows; a figure a sample.

    Of routed experts those that a step of so many tokens uses.
    """
    import torch

    widths = {m.shape[1] for layer in layers for m in layer.matrices}
    first = layers[0].norm
    assert first is not None
    inputs = {w: torch.randn((batch, w), device=first.device).to(first.dtype) for w in widths}
    routed = [pair for layer in layers if layer.experts for pair in _routed(layer.experts, batch)]

    def work() -> Any:
        for layer in layers:
            for matrix in layer.matrices:
                inputs[matrix.shape[1]] @ matrix.t()
        for x, weights in routed:
            torch.bmm(x, weights)

    return timing.sample(session.device, work, samples=max(3, session.limits.samples // 3))


def _routed(experts: Experts, batch: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """(inputs, weights) of the two batched products over the experts that a step of `batch` tokens uses."""
    import torch

    from kvplan.probe.stack import even_shares

    used, each = even_shares(experts, batch)
    found = []
    for weights in (experts.up, experts.down):
        x = torch.randn((used, each, weights.shape[2]), device=weights.device).to(weights.dtype)
        found.append((x, weights[:used].transpose(1, 2)))
    return found

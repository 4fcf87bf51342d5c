"""Prefill against the throughput of matrix products: their plateau, and layers over whole prompts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F

from kvplan.planning.speed import prefill as planned
from kvplan.planning.speed.constants import MATMUL_SHARE
from kvplan.planning.speed.rates import dense_flops
from kvplan.probe import stack, timing
from kvplan.probe.readers import Reader, readers
from kvplan.probe.receipt import Row, median, row
from kvplan.probe.session import MeasuredFigure
from kvplan.probe.shapes import unfit_weights
from kvplan.units import human_bytes

if TYPE_CHECKING:
    from kvplan.probe.session import Session

_GPU_SIZES, _CPU_SIZES = ((8192, 8192, 8192), (4096, 14336, 4096)), ((512, 1024, 1024),)
"""(rows, columns, inner) of products at their plateau."""
_GPU_TOKENS, _GPU_QUICK, _CPU_TOKENS = (512, 2048, 8192), (2048,), (128,)
STATED_MISS = 0.25
"""Of the planner's prefill: attention and products together, from the constants of the package."""
_LAYERS = 4
_WEIGHT_SHARE, _PLATEAU_SHARE = 0.4, 0.1
"""Of what a section may hold: layers of a prompt, and matrices of the plateau (layers are held beside them)."""


def measure_plateau(session: Session) -> list[Row]:
    """The highest rate of products in 16 bits; sets ``figures.matmul_flops`` (once a session)."""
    if "16" in session.figures.matmul_flops:
        return []
    device = session.device
    best: tuple[list[float], str] | None = None
    rows = []
    for m, n, k in _plateau_sizes(session):
        session.say(f"matrix products, {m} x {n} x {k}")
        a = torch.randn((m, k), device=device.torch_device).to(stack.DTYPE)
        b = torch.randn((n, k), device=device.torch_device).to(stack.DTYPE)
        repeats = 4 if device.is_cuda else 1

        def work(a: torch.Tensor = a, b: torch.Tensor = b, repeats: int = repeats) -> Any:
            for _ in range(repeats):
                a @ b.t()

        rates = [2 * m * n * k / s for s in timing.sample(device, work, samples=session.limits.samples, per=repeats)]
        if best is None or median(rates) > median(best[0]):
            best = (rates, f"{m} x {n} x {k}")
    assert best is not None
    session.figures.matmul_flops["16"] = MeasuredFigure.of(best[0])
    flops = dense_flops(session.gpu, "16")
    stated = flops[0] * MATMUL_SHARE["16"] if flops else None
    rows.append(
        row(
            "prefill", "matrix products, bf16", predicted=stated, measured=best[0], unit="flop/s",
            tolerance=0.15 if stated and device.is_cuda else None, sense="at_least", note=f"plateau at {best[1]}",
        )
    )  # fmt: skip
    return rows


def _plateau_sizes(session: Session) -> list[tuple[int, int, int]]:
    """Products whose three matrices fit; halved on every side until they do."""
    found = []
    for m, n, k in _GPU_SIZES if session.device.is_cuda else _CPU_SIZES:
        while 2 * (m * k + n * k + m * n) > session.limits.max_bytes * _PLATEAU_SHARE and min(m, n, k) > 1:
            m, n, k = m // 2, n // 2, k // 2
        found.append((m, n, k))
    return list(dict.fromkeys(found))


def measure(session: Session) -> list[Row]:
    """The plateau, and prompts of several lengths through layers of the model."""
    rows = measure_plateau(session)
    spec = session.layout.spec
    name = next((n for n in spec.layers if any(map(_cached_as_computed, readers(spec, n)))), None)
    if (note := _unfit(session, name)) is not None or name is None:
        return [*rows, row("prefill", "prompt", predicted=None, measured=None, unit="s", note=note or "")]
    limit = session.limits
    each = stack.layer_bytes(spec, name)
    count = min(_LAYERS, spec.num_layers, int(limit.max_bytes * _WEIGHT_SHARE // each))
    if not count:
        most = human_bytes(int(limit.max_bytes * _WEIGHT_SHARE))
        note = (
            f"one layer takes {human_bytes(each)}, which does not fit into --max-memory "
            f"({human_bytes(limit.max_bytes)}, of which weights may take {most})"
        )
        session.lack(f"prefill: {note}")
        return [*rows, row("prefill", "prompt", predicted=None, measured=None, unit="s", note=note)]
    layers = stack.build(spec, [name] * count, lambda mixer: 0, session.device.torch_device, session.seed)
    sizes: tuple[int, ...] = _CPU_TOKENS
    if session.device.is_cuda:
        sizes = _GPU_QUICK if limit.quick else _GPU_TOKENS
    longest = session.model.max_position_embeddings or sizes[-1]
    sizes = tuple(dict.fromkeys(min(n, longest) for n in sizes))
    wide = 6 * spec.hidden_size + max((m.shape[0] for layer in layers for m in layer.matrices), default=0) * 4
    fitting = tuple(n for n in sizes if 2 * n * wide <= limit.max_bytes * (1 - _WEIGHT_SHARE))
    if len(fitting) < len(sizes):
        left = len(sizes) - len(fitting)
        session.lack(f"prefill: activations of {left} of {len(sizes)} prompts do not fit into --max-memory")
    sizes = fitting
    others = [n for n in spec.layer_counts if n != name]
    for number, tokens in enumerate(sizes):
        if limit.seconds_left <= 0:
            session.lack(f"prefill: the time was up after {number} of {len(sizes)} prompts")
            break
        session.say(f"prefill, {tokens} tokens")
        seconds = [s / count * spec.num_layers for s in _time_layers(session, layers, tokens)]
        rows.append(_prompt_row(session, tokens, seconds, layers, name if others else ""))
    return rows


def _unfit(session: Session, name: str | None) -> str | None:
    """Why no prompt is measured; None: it is."""
    if session.settings.tensor_parallel_size > 1:
        return "prompts are not measured over several GPUs"
    found = [one for block in session.layout.spec.layer_counts for one in readers(session.layout.spec, block)]
    if not found:
        return "no layer of this model has K and V to prefill"
    reason = unfit_weights(session)
    if reason is None and name is None:
        dims = next((f"{x.head.head_dim} and {x.head.head_dim_v}" for x in found if not x.head.latent), None)
        reason = "latent rows, whose prompts rebuild K and V" if dims is None else f"K and V of {dims} elements"
        reason += " are not prefilled here"
    if reason is not None:
        session.lack(f"prefill: {reason}")
    return reason


def _cached_as_computed(reader: Reader) -> bool:
    """Whether a prompt goes through this attention as it is cached, with K and V."""
    return not reader.head.latent and reader.head.head_dim == reader.head.head_dim_v


def _time_layers(session: Session, layers: list[stack.Layer], tokens: int) -> list[float]:
    device = session.device.torch_device
    some = [reader for reader in layers[0].readers if _cached_as_computed(reader)]
    scratch = stack.Scratch.of(tokens, session.layout.spec.hidden_size, some[0].head.head_dim, device)
    attends = {reader.mixer: _attend(reader, tokens, device) for reader in some}

    def work() -> Any:
        for layer in layers:
            stack.run_layer(layer, scratch, attends)

    return timing.sample(session.device, work, samples=max(3, session.limits.samples // 2))


def _attend(reader: Reader, tokens: int, device: Any) -> stack.Attend:
    """Attention of a prompt over itself; over the rows of an encoder, which are there already."""
    shape, fixed = reader.head, reader.fixed
    q_width, kv_width = shape.query_heads * shape.head_dim, shape.kv_heads * shape.head_dim
    rows = (1, shape.kv_heads, reader.entries(tokens) if fixed else 0, shape.head_dim)
    encoded = torch.randn(rows, device=device).to(stack.DTYPE)

    def heads(part: torch.Tensor) -> torch.Tensor:
        return part.unflatten(1, (-1, shape.head_dim)).transpose(0, 1)[None]

    def attend(y: torch.Tensor) -> torch.Tensor:
        if fixed:
            q, k, v = heads(stack.take(y, q_width)), encoded, encoded
        else:
            parts = stack.take(y, q_width + 2 * kv_width).split((q_width, kv_width, kv_width), 1)
            q, k, v = (heads(part) for part in parts)
        found = F.scaled_dot_product_attention(
            q, k, v, is_causal=not fixed, scale=shape.scale, enable_gqa=shape.group > 1
        )
        return found[0].transpose(0, 1).flatten(1)

    return attend


def _prompt_row(session: Session, tokens: int, seconds: list[float], layers: list[stack.Layer], block: str) -> Row:
    """A prompt's row.

    Args:
        block: that of the layers, where the model has others; the plan's prompt, which has them all, is then another.
    """
    count, routed = len(layers), any(layer.experts for layer in layers)
    note = f"{count} layers times {session.layout.spec.num_layers / count:g}, without the head"
    if block:
        note += f"; as if all layers were {block}, so nothing is predicted"
    if routed:
        note += "; experts as batched products over even shares"
    predicted = None
    setup = session.speed()
    if isinstance(setup, str) and (made := session.calibration()) is not None:
        setup = session.speed(made)
    if not isinstance(setup, str) and not block:
        works = tuple(w._replace(head_bytes=0, head_parameters=0, vocab_rows=0) for w in setup.works)
        parts = planned.prompt(works, setup.rates, setup.layout, tokens, tokens)
        if parts is not None:
            predicted = float(parts.seconds)
            note += f"; {float(parts.flops) / median(seconds) / 1e12:.4g} TFLOP/s, bound by {planned.bound(parts)}"
    judged = STATED_MISS if session.device.is_cuda and not block and not routed else None
    return row(
        "prefill", f"prompt of {tokens} tokens", predicted=predicted, measured=seconds, unit="s", tolerance=judged,
        note=note,
    )  # fmt: skip

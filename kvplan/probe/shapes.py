"""Which matrix products a model's decode step has, and how often: no torch."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from kvplan.spec.ffn import DenseFfn, MoeFfn

if TYPE_CHECKING:
    from kvplan.probe.session import Session
    from kvplan.spec.kind import LayerPart, Tensor
    from kvplan.spec.model import ModelSpec


def layer_shapes(part: LayerPart, hidden: int) -> list[tuple[int, int]]:
    """(out, in) of a mixer's products after fusion; the output projection last."""
    plain = [t for t in part.step_tensors(hidden) if t.role == "attention" and len(t.shape) == 2]
    back = [t for t in plain if t.shape[0] == hidden]
    last = [t for t in back if "out" in t.name][-1:] or back[-1:]
    first = [t for t in plain if t.shape[1] == hidden and t not in last]
    rest = [t for t in plain if t not in first and t not in last]
    shapes = [(sum(_rows(t) for t in first), hidden)] if first else []
    return shapes + [(_rows(t), t.shape[1]) for t in (*rest, *last)]


def ffn_shapes(part: LayerPart, hidden: int) -> list[tuple[int, int]]:
    """(out, in) of the two products of a dense FFN or of shared experts; none where there are only routed ones."""
    if isinstance(part, DenseFfn):
        wide, gated = part.intermediate_size, part.gated
    elif isinstance(part, MoeFfn) and part.shared_intermediate_size:
        wide, gated = part.shared_intermediate_size, part.gated
    else:
        return []
    return [(wide * (1 + gated), hidden), (hidden, wide)]


def unfit_weights(session: Session) -> str | None:
    """Why products of these weights are not measured; None: they are."""
    for role in sorted({t.role for _, t in session.layout.spec.tensors_by_block()} - {"norm", "router"}):
        body = session.outcome.weights.of(role)
        if body.units != "16" or body.block_elements != 1:
            return f"weights in {body.name} are not multiplied here; --weights bf16 measures the step in 16 bits"
    return None


def product_shapes(spec: ModelSpec) -> Counter[tuple[int, int]]:
    """(out, in) of every product that each token goes through, and how often a step has it; the head left out."""
    found: Counter[tuple[int, int]] = Counter()
    for name, layers in spec.layer_counts.items():
        block = spec.blocks[name]
        shapes = [s for part in block.mixers for s in layer_shapes(part, spec.hidden_size)]
        shapes += [s for part in block.ffns for s in ffn_shapes(part, spec.hidden_size)]
        for shape in shapes:
            found[shape] += layers
    return found


def left_out(spec: ModelSpec) -> float:
    """Share of a step's products, by weights, in matrices beside mixers and FFNs, which the probe does not multiply."""
    blocks = ((t, layers) for name, layers in spec.layer_counts.items() for t in spec.blocks[name].tensors)
    beside = [*blocks, *((t, 1) for t in spec.tensors)]
    others = sum(
        times * t.count * t.shape[0] * t.shape[1]
        for t, times in beside
        if len(t.shape) == 2 and t.role not in ("norm", "embedding")
    )
    own = sum(out * inner * times for (out, inner), times in product_shapes(spec).items())
    return others / (own + others) if others else 0.0


def _rows(tensor: Tensor) -> int:
    return tensor.shape[0] * tensor.copies

"""A model as one rank sees it: fewer layers, fewer heads, narrower FFNs.

A sharded model is again a `ModelSpec`, so every formula works on it unchanged.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from kvplan.errors import UnsupportedError
from kvplan.spec.ffn import MoeFfn

if TYPE_CHECKING:
    from kvplan.spec.kind import LayerPart
    from kvplan.spec.model import Block, ModelSpec


def shard_model(
    model: ModelSpec,
    *,
    tp: int,
    layers: tuple[str, ...] | None = None,
    drafts: bool = True,
    expert_ranks: int = 1,
    expert_tp: int | None = None,
) -> ModelSpec:
    """The model as a tensor-parallel rank of one pipeline stage holds it.

    Args:
        tp: ranks that share every layer.
        layers: block names of this stage's layers, in order; None: all.
        drafts: whether draft layers sit on this stage.
        expert_ranks: above 1, routed experts are dealt whole over so many ranks.
        expert_tp: ranks that cut every routed expert where they are not dealt; None: `tp`.

    Raises:
        UnsupportedError: `tp` does not divide what must be divided; the hint lists sizes that work.
    """
    kept = model.layers if layers is None else layers
    used = set(kept) | set(model.draft_layers if drafts else ())
    try:
        blocks = {
            name: _shard_block(block, tp, expert_ranks, expert_tp or tp) if name in used else block
            for name, block in model.blocks.items()
        }
    except ValueError as error:
        raise UnsupportedError(
            f"{model.id}: {error}",
            where="--tensor-parallel-size",
            hint=f"sizes that work: {', '.join(map(str, legal_sizes(model)))}",
        ) from None
    return replace(model, blocks=blocks, layers=kept, draft_layers=model.draft_layers if drafts else ())


def _shard_block(block: Block, tp: int, expert_ranks: int, expert_tp: int) -> Block:
    if tp == expert_ranks == expert_tp == 1:
        return block

    def ffn(part: LayerPart) -> LayerPart:
        if not isinstance(part, MoeFfn):
            return part.shard(tp)
        return part.shard_experts(expert_ranks, tp) if expert_ranks > 1 else part.cut(expert_tp, tp)

    return replace(
        block,
        mixers=tuple(m.shard(tp) for m in block.mixers),
        ffns=tuple(ffn(part) for part in block.ffns),
    )


def legal_sizes(model: ModelSpec, limit: int = 128) -> list[int]:
    """Tensor parallel sizes up to `limit` that divide every layer of the model."""
    return [tp for tp in range(1, limit + 1) if _divides(model, tp)]


def _divides(model: ModelSpec, tp: int) -> bool:
    try:
        for name in model.layer_counts:
            _shard_block(model.blocks[name], tp, 1, tp)
    except ValueError:
        return False
    return True

"""A model with another checkpoint that drafts for it, by speculative decoding."""

from __future__ import annotations

from dataclasses import dataclass, fields

from kvplan.spec.model import ModelSpec


@dataclass(frozen=True, kw_only=True, repr=False)
class DraftedModel(ModelSpec):
    """A model as it is served beside its draft.

    The draft's layers cache beside the model's own, so they stand in `blocks` and `draft_layers`. What they weigh
    follows from the draft's own widths, which `draft` has.
    """

    draft: ModelSpec
    """The other checkpoint, whole."""
    shares_ends: bool
    """Whether it takes the embedding and the head of the model and loads none of its own."""

    @property
    def draft_model(self) -> ModelSpec:
        return self.draft


def drafted(model: ModelSpec, draft: ModelSpec, *, blocks: dict[str, str], shares_ends: bool) -> DraftedModel:
    """`model`, whose drafts come from `draft`.

    Args:
        blocks: name of a block of `draft` -> what it is called beside the model's blocks.
    """
    own = {f.name: getattr(model, f.name) for f in fields(ModelSpec)}
    own["blocks"] = {**model.blocks, **{blocks[name]: block for name, block in draft.blocks.items()}}
    own["draft_layers"], own["draft_tensors"] = tuple(blocks[name] for name in draft.layers), ()
    return DraftedModel(**own, draft=draft, shares_ends=shares_ends)

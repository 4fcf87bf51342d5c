"""The model as it is served: without its draft layers, with them, or with those of another checkpoint."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from kvplan.errors import InputError

if TYPE_CHECKING:
    from kvplan.engines.base import Engine, Settings
    from kvplan.spec.model import ModelSpec

_PREFIX = "draft: "


def served_model(model: ModelSpec, engine: Engine, settings: Settings) -> ModelSpec:
    """The model with exactly the draft layers that run under these settings, in the dtype it is served in.

    Raises:
        KvplanError: a draft that cannot be found, that the model does not have, or that ranks do not divide; layers
            of which it is not known what the engine makes of them.
    """
    found = _served(model, engine, settings)
    engine.check_kinds(found)
    return found


def _served(model: ModelSpec, engine: Engine, settings: Settings) -> ModelSpec:
    if (dtype := engine.served_dtype(model, settings)) != model.dtype:
        model = replace(model, dtype=dtype)
    spoken = engine.speculation(settings)
    if spoken is None or not spoken.caches:
        return replace(model, draft_layers=(), draft_tensors=()) if model.draft_layers or model.draft_tensors else model
    if spoken.model is None:
        own = engine.own_draft_layers(model)
        return model if own == model.draft_layers else replace(model, draft_layers=own)
    from kvplan.cache.sharding import shard_model
    from kvplan.spec.drafted import drafted

    draft = replace(_find(spoken.model), dtype=model.dtype, draft_layers=(), draft_tensors=())
    shard_model(draft, tp=settings.tensor_parallel_size)  # refused by its own name
    same = (draft.vocab_size, draft.embedding_width) == (model.vocab_size, model.embedding_width)
    names = {name: _PREFIX + name for name in draft.blocks}
    found = drafted(model, draft, blocks=names, shares_ends=spoken.shares_ends and same)
    if model.checkpoint is None or "draft" not in model.checkpoint.stored:
        return found
    stored = {role: sizes for role, sizes in model.checkpoint.stored.items() if role != "draft"}
    return replace(found, checkpoint=replace(model.checkpoint, stored=stored))  # its own drafts do not run


def _find(draft: Any) -> ModelSpec:
    """The draft's spec, from a spec, a name or a path."""
    from kvplan.spec.model import ModelSpec

    if isinstance(draft, ModelSpec):
        return draft
    if not isinstance(draft, str):
        raise InputError("the draft's model is neither a name nor a path", where="--speculative-config")
    from kvplan.sources import find_model

    return find_model(draft)

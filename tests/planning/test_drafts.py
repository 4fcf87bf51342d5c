"""Drafts of another checkpoint: which ends they share, and how they may be given."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from kvplan import load_model
from kvplan.engines import get_engine
from kvplan.errors import InputError
from kvplan.planning.drafts import served_model
from kvplan.planning.settings import resolve
from kvplan.spec.model import ModelSpec


def served(model: ModelSpec, draft: Any) -> ModelSpec:
    engine = get_engine("vllm")
    config = {"method": "eagle3", "model": draft, "num_speculative_tokens": 3}
    settings, _ = resolve(model, None, engine, {"max_model_len": 2048, "speculative_config": config})
    return served_model(model, engine, settings)


@pytest.mark.parametrize(
    ("model_width", "draft_width", "vocabulary", "shared"),
    [
        (None, None, 0, False),  # rows of 4096 and 2048
        (None, 4096, 0, True),
        (2048, None, 0, True),
        (2048, 4096, 0, False),
        (None, 4096, 1, False),
    ],
)
def test_ends_are_shared_where_rows_of_the_embedding_are_as_wide(
    model_width: int | None, draft_width: int | None, vocabulary: int, shared: bool
) -> None:
    """Rows as the embeddings have them, not as wide as the layers; and as many of them."""
    model, small = load_model("llama-3.1-8b"), load_model("llama-3.2-1b")
    draft = replace(small, embedding_size=draft_width, vocab_size=small.vocab_size + vocabulary)
    found = served(replace(model, embedding_size=model_width), draft)
    assert found.draft_model == draft
    assert getattr(found, "shares_ends", None) is shared


@pytest.mark.parametrize(("narrow", "width"), [(None, 4096), (512, 512)])
def test_an_embedding_is_as_wide_as_it_is_said_to_be(narrow: int | None, width: int) -> None:
    model = replace(load_model("llama-3.1-8b"), embedding_size=narrow)
    assert model.embedding_width == width
    ends = {t.role: t.shape for t in model.tensors_outside_layers() if t.role in ("embedding", "head")}
    assert ends == {"embedding": (128_256, width), "head": (128_256, width)}


def test_a_draft_is_a_spec_a_name_or_a_path() -> None:
    model, draft = load_model("llama-3.1-8b"), load_model("llama-3.2-1b")
    assert served(model, draft) == served(model, "llama-3.2-1b")
    with pytest.raises(InputError, match="neither a name nor a path") as refused:
        served(model, 7)
    assert refused.value.where == "--speculative-config"

"""Drafts of another checkpoint: which ends they share, and how they may be given."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from kvplan import load_gpu, load_model
from kvplan.catalog import model_ids
from kvplan.engines import get_engine
from kvplan.errors import InputError
from kvplan.planning.drafts import served_model
from kvplan.planning.evaluate import build_stages
from kvplan.planning.settings import resolve
from kvplan.planning.speed import work as of
from kvplan.planning.speed.work import stage_work
from kvplan.planning.weights import weight_format
from kvplan.spec.ffn import MoeFfn
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


@pytest.mark.parametrize("name", [name for name in model_ids() if load_model(name).draft_layers])
def test_a_proposal_runs_one_module(name: str) -> None:
    """Its layers, the projection before them and the model's head: the kernels, and the bytes of one of the modules."""
    spec, device, engine = load_model(name), load_gpu("b200"), get_engine("generic")
    drafts = '{"method": "mtp", "num_speculative_tokens": 1}'
    settings, _ = resolve(spec, device, get_engine("vllm"), {"max_model_len": 4096, "speculative_config": drafts})
    spec = served_model(spec, get_engine("vllm"), settings)
    weights = weight_format(spec, "auto")
    stages, roles = build_stages(spec, engine, settings, weights)
    target = stage_work(spec, stages[-1], roles[-1], engine.kv_formats(spec, settings), settings)
    work, (held,) = target.draft, [role for role in roles[-1] if role.role == "draft"]
    assert work is not None
    layers = spec.draft_layers
    modules = next(m for m in range(len(layers), 0, -1) if layers == layers[: len(layers) // m] * m)
    linear, attention, routed, reduces = 1 + 1, 0, 0, 0  # the head, and the projection
    for layer in layers[: len(layers) // modules]:
        for mixer in spec.blocks[layer].mixers:
            index = sum(read.stream.role == "index" for read in mixer.reads()) > 0
            linear += mixer.linear_kernels + 2 * index
            attention += 1 + index
        reduces += len(spec.blocks[layer].mixers) + len(spec.blocks[layer].ffns)
        for ffn in spec.blocks[layer].ffns:
            if isinstance(ffn, MoeFfn):
                linear, routed = linear + 3 + 2 * bool(ffn.shared_intermediate_size), routed + 1
            else:
                linear += 2
    assert tuple(work.kernels) == (linear, attention, len(layers) // modules, reduces, routed)
    read = work.weight_bytes + sum(each.num_bytes for each in work.experts)
    assert read == pytest.approx(held.num_bytes / modules + target.head_bytes, rel=1e-3)
    assert (work.head_bytes, work.head_parameters) == (target.head_bytes, target.head_parameters)
    assert work.edge_bytes == 0
    assert of.token_parameters(work) < held.parameters / modules + target.head_parameters + 1

"""What a measured step reads of caches, held against what plans say that a token reads."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

pytest.importorskip("torch", reason="the probe's extra is not installed")

from kvplan.cache.cross import CrossAttention
from kvplan.catalog import load_model, model_ids
from kvplan.engines import get_engine
from kvplan.engines.base import Stage
from kvplan.planning.settings import resolve
from kvplan.planning.speed import work as of
from kvplan.planning.weights import rank_weights, weight_format
from kvplan.probe import prefill, readers, step
from kvplan.probe.held import Held, hold
from kvplan.probe.kernels import choose, store
from kvplan.spec.model import ModelSpec

from .test_step import session_of, small

CONTEXTS = (1, 300, 4096, 20_000)
LEFT_OUT = {"index"}, {"compressed"}
"""Streams, and kinds, that the probe's kernels do not read."""


def work_of(spec: ModelSpec) -> of.StageWork:
    """Of one step on one GPU, everything in 16 bits."""
    engine = get_engine("generic")
    settings, _ = resolve(spec, None, engine, {"max_model_len": 1024, "kv_cache_dtype": "bf16"})
    roles = rank_weights(spec, spec, weight_format(spec, "bf16"), tp=1, vocab_rows=spec.vocab_size)
    stage = Stage(0, spec, True, True, sum(role.num_bytes for role in roles))
    return of.stage_work(spec, stage, tuple(roles), engine.kv_formats(spec, settings), settings)


@pytest.mark.parametrize("name", model_ids())
def test_a_step_reads_what_the_plan_counts(name: str) -> None:
    """Over all layers and readers, entries by bytes of a row; the rest is states and what `left_unread` says."""
    spec = load_model(name)
    work = work_of(spec)
    for context in CONTEXTS:
        read = sum(
            layers * one.entries(context) * store.row_bytes(one.head, "bf16")
            for block, layers in spec.layer_counts.items()
            for one in readers.readers(spec, block)
        )
        planned = of.kv_bytes(work, context) - 2 * work.state_bytes - work.edge_bytes * context
        missing = readers.left_unread((work,), context) * of.kv_bytes(work, context)
        assert read + missing == pytest.approx(planned, abs=0.5)
    kinds = {m.kind for _, m in spec.mixers()}
    streams = {r.stream.name for _, m in spec.mixers() for r in m.reads()}
    assert (missing > 0) == bool(streams & LEFT_OUT[0] or kinds & LEFT_OUT[1])


def entries(name: str, block: str, context: int) -> list[int]:
    return [one.entries(context) for one in readers.readers(load_model(name), block)]


def test_a_layer_may_read_twice_or_what_is_not_its_own() -> None:
    """An encoder's 1,500 rows beside its own; a window of an earlier layer; a chunk's rest; the best 2,048."""
    whisper, gemma = load_model("whisper-large-v3"), load_model("gemma-3n-e2b")
    assert entries("whisper-large-v3", whisper.layers[0], 448) == [448, 1500]
    assert [one.fixed for one in readers.readers(whisper, whisper.layers[0])] == [False, True]
    (shared,) = (n for n, b in gemma.blocks.items() if getattr(b.mixers[0], "source", None) and b.mixers[0].window)
    assert entries("gemma-3n-e2b", shared, 4096) == [512]
    chunked = next(n for n, b in load_model("llama-4-scout").blocks.items() if b.mixers[0].kind == "chunked")
    assert entries("llama-4-scout", chunked, 10_000) == [10_000 - 8192]
    assert entries("deepseek-v3.2", load_model("deepseek-v3.2").layers[0], 10_000) == [2048]
    assert not readers.reads_all(load_model("deepseek-v3.2").blocks[load_model("deepseek-v3.2").layers[0]].mixers[0])
    assert readers.reads_all(load_model("llama-3.1-8b").blocks["layer"].mixers[0])


def twice() -> ModelSpec:
    """Two layers that read their own 64 entries and those of an encoder, 100, alike."""
    spec = small()
    cross = load_model("whisper-large-v3").blocks[load_model("whisper-large-v3").layers[0]].mixers[1]
    own = spec.blocks[spec.layers[0]].mixers[0]
    heads = {key: getattr(own, key) for key in ("query_heads", "kv_heads", "head_dim")}
    second = replace(cross, **heads, head_dim_v=None, encoder_tokens=100)
    blocks = {name: replace(block, mixers=(*block.mixers, second)) for name, block in spec.blocks.items()}
    return replace(spec, blocks=blocks)


def test_every_attention_of_a_step_runs_over_pages_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    session = session_of(twice(), megabytes=2048)
    held = hold(session)
    assert isinstance(held, Held)
    works: list[choose.Workload] = []
    ran: list[tuple[int, int]] = []
    before = choose.serve

    def served(work: choose.Workload, **how: Any) -> Any:
        works.append(work)
        found = before(work, **how)
        assert found is not None

        def run(copy: int) -> None:
            ran.append((work.context, copy))
            found.path.run(copy)

        return found._replace(path=found.path._replace(run=run))

    monkeypatch.setattr(choose, "serve", served)
    layers, _, _ = step.prepare(session, held, 3, 64)
    ran.clear()
    layers(None, range(2))
    assert ran == [(64, 0), (100, 0), (64, 1), (100, 1)]
    assert [work.context for work in works] == [64, 100]
    assert works[0].pool is works[1].pool
    pages = [set(work.tables.flatten().tolist()) for work in works]
    assert [len(some) for some in pages] == [work.tables.numel() for work in works]
    assert not pages[0] & pages[1]


def test_a_prompt_runs_over_itself_and_over_an_encoder(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[bool, int, int]] = []
    before = prefill.F.scaled_dot_product_attention

    def attention(q: Any, k: Any, v: Any, **how: Any) -> Any:
        seen.append((how["is_causal"], q.shape[2], k.shape[2]))
        return before(q, k, v, **how)

    monkeypatch.setattr(prefill.F, "scaled_dot_product_attention", attention)
    rows = {row.name: row for row in prefill.measure(session_of(twice(), megabytes=2048))}
    assert rows["prompt of 128 tokens"].measured > 0
    assert seen[:2] == [(True, 128, 128), (False, 128, 100)]


def test_pages_that_others_took_are_not_given_again() -> None:
    session = session_of(small())
    shape = readers.head_shape(session.layout.spec.blocks[session.layout.spec.layers[0]].mixers[0])
    assert shape is not None
    pool = store.allocate(shape, "bf16", 12, 64, "cpu")
    first, second = store.random_tables(pool, 1, 2, 256), store.random_tables(pool, 1, 2, 128, 0, 8)
    assert sorted([*first.flatten().tolist(), *second.flatten().tolist()]) == list(range(12))
    with pytest.raises(ValueError, match="after 9 of a pool of 12"):
        store.random_tables(pool, 1, 2, 128, 0, 9)


def test_projections_of_an_encoder_are_not_read_in_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """whisper-large-v3: K and V of 32 layers, 1,280 x 1,280 each, in 16 bits."""
    spec = load_model("whisper-large-v3")
    stepped = work_of(spec)
    monkeypatch.setattr(CrossAttention, "step_tensors", CrossAttention.tensors)
    every = work_of(spec)
    assert every.weight_bytes - stepped.weight_bytes == 32 * 2 * 1280 * 1280 * 2
    assert every.parameters - stepped.parameters == 32 * 2 * 1280 * 1280

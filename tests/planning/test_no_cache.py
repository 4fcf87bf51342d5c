"""The work that a cache saves."""

from __future__ import annotations

from typing import Any

import pytest

from kvplan import load_model
from kvplan.cache.sharding import shard_model
from kvplan.planning import no_cache as module
from kvplan.planning.explain import explain
from kvplan.planning.no_cache import NoCache
from kvplan.planning.speed.work import encoded_work
from kvplan.planning.weights import rank_weights, weight_format


def saved(name: str = "llama-3.1-8b", **given: Any) -> NoCache:
    found = explain(load_model(name), {"max_model_len": 8192, **given}, saved=True).no_cache
    assert found is not None
    return found


def test_one_step_costs_a_prefill_without_the_cache_and_a_token_with_it() -> None:
    spec = load_model("llama-3.1-8b")
    one = saved(prompt_tokens=99, output_tokens=1)
    table = spec.vocab_size * spec.hidden_size
    body = spec.parameters - 2 * table
    assert one.with_cache.matrix_flops == 2 * (body + table)
    assert one.without.matrix_flops == 2 * (100 * body + table)
    assert one.with_cache.attention_flops == 32 * 4 * 32 * 128 * 100
    assert one.without.attention_flops == 32 * 4 * 32 * 128 * 100 * 101 // 2
    assert one.with_cache.bytes_read == 2 * (body + table) + 100 * 131_072
    assert one.without.bytes_read == 2 * (body + table) + 2 * 100 * 131_072
    assert one.cache_bytes == 100 * 131_072


def test_an_encoders_rows_are_projected_once_with_the_cache_and_at_each_step_without() -> None:
    """Whisper's decoder: 32 layers of 1,280; K and V of 1,500 rows of the encoder are two square matrices a layer."""
    spec = load_model("whisper-large-v3")
    projections = 32 * 2 * 1280 * 1280
    assert (spec.idle_parameters, spec.active_parameters) == (projections, 801_664_000)
    made = saved("whisper-large-v3", max_model_len=448, prompt_tokens=100, output_tokens=2)
    table, positions = 51_866 * 1280, 448 * 1280
    token = 801_664_000 - table - positions  # neither table is multiplied; the head is the first of them again
    once = 2 * projections * 1500
    assert made.with_cache.matrix_flops == 2 * 2 * (token + table)
    assert made.without.matrix_flops == 2 * token * (101 + 102) + 2 * 2 * table + 2 * once
    scores = 32 * (4 * 1280 * (100 * 101 // 2) + 4 * 1280 * 1500 * 100)
    assert made.prefill_flops == 2 * (100 * token + table) + scores + once
    kv = 163_840
    assert made.with_cache.bytes_read == 2 * 2 * (token + table) + (101 + 102 + 2 * 1500) * kv
    assert made.without.bytes_read == 2 * 2 * (token + table + projections) + 2 * (101 + 102 + 2 * 1500) * kv


@pytest.mark.parametrize("ranks", [2, 4])
def test_a_rank_projects_its_share_of_an_encoders_rows(ranks: int) -> None:
    spec = load_model("whisper-large-v3")
    rank = shard_model(spec, tp=ranks)
    roles = rank_weights(spec, rank, weight_format(spec, "auto"), tp=ranks, vocab_rows=spec.vocab_size)
    projections = 32 * 2 * 1280 * 1280 // ranks
    assert tuple(encoded_work(rank, roles)) == (2 * projections * 1500, 2 * projections)


def test_work_grows_by_one_power_less() -> None:
    short, long = saved(prompt_tokens=1, output_tokens=1000), saved(prompt_tokens=1, output_tokens=2000)
    assert long.with_cache.matrix_flops / short.with_cache.matrix_flops == pytest.approx(2)
    assert long.without.matrix_flops / short.without.matrix_flops == pytest.approx(4, rel=0.05)
    assert long.with_cache.attention_flops / short.with_cache.attention_flops == pytest.approx(4, rel=0.01)
    assert long.without.attention_flops / short.without.attention_flops == pytest.approx(8, rel=0.01)
    assert long.flops_ratio > short.flops_ratio > 100


def test_long_sums_are_those_of_every_step(monkeypatch: pytest.MonkeyPatch) -> None:
    exact = saved("gemma-3-27b", prompt_tokens=100, output_tokens=3000)
    monkeypatch.setattr(module, "_EXACT", 512)
    close = saved("gemma-3-27b", prompt_tokens=100, output_tokens=3000)
    for mine, theirs in ((close.with_cache, exact.with_cache), (close.without, exact.without)):
        assert list(mine) == pytest.approx(list(theirs), rel=1e-5)


def test_it_is_shown_only_when_asked_for() -> None:
    spec = load_model("llama-3.1-8b")
    assert explain(spec, {"max_model_len": 8192}).to_dict()["no_cache"] is None
    assert explain(spec, {"max_model_len": 8192}, saved=True).to_dict()["no_cache"]["prompt_tokens"] == 1024


@pytest.mark.parametrize(
    ("name", "cached", "anew"),
    [
        ("llama-3.1-8b", "O(d^2 + n d)", "O(n d^2 + n^2 d)"), ("rwkv-7-g1-7.2b", "O(d^2)", "O(n d^2)"),
        ("gemma-3-27b", "O(d^2 + n d + w d)", "O(n d^2 + n^2 d + n w d)"),
    ],
)  # fmt: skip
def test_a_step_grows_as_the_kinds_of_layers_do(name: str, cached: str, anew: str) -> None:
    saved = explain(load_model(name), {"max_model_len": 8192}, saved=True).no_cache
    assert saved is not None
    assert saved.growth_with == f"a step: {cached}"
    assert saved.growth_without == f"a step: {anew}"

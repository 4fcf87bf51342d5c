"""The work that a cache saves."""

from __future__ import annotations

from typing import Any

import pytest

from kvplan import load_model
from kvplan.planning import no_cache as module
from kvplan.planning.explain import explain
from kvplan.planning.no_cache import NoCache


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

"""Rules of engines asked directly, at the edge where they begin: lists that are cut, factors left out, empty pools."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kvplan.catalog import load_gpu, load_model
from kvplan.engines import devices, distinct, get_engine
from kvplan.engines.base import Settings
from kvplan.engines.model_changes import unmodelled
from kvplan.engines.vllm import speculation
from kvplan.errors import InputError


@pytest.mark.parametrize(("count", "shown"), [(1, 1), (6, 6), (7, 6), (20, 6)])
def test_at_most_six_keys_are_named(count: int, shown: int) -> None:
    said = unmodelled("--hf-overrides", [f"key{n}" for n in range(count)])
    assert (
        said
        == f"--hf-overrides {', '.join(f'key{n}' for n in range(shown))}: changes what the memory holds, not modelled"
    )


@pytest.mark.parametrize(
    ("rope", "length"),
    [(None, 4096), ({"type": "linear"}, 4096), ({"type": "linear", "factor": 4.0}, 16384),
     ({"type": "yarn", "factor": 4.0}, 4096), ({"factor": 2.5}, 10240)],
)  # fmt: skip
def test_tensorrt_llm_takes_the_factor_of_a_rule_that_has_one(rope: dict[str, object] | None, length: int) -> None:
    model = replace(load_model("llama-3.1-8b"), rope=rope, stated_positions=4096, max_position_embeddings=8192)
    assert get_engine("tensorrt-llm").longest_context(model) == length


def test_tensorrt_llm_has_no_blocks_where_nothing_is_left() -> None:
    engine, model = get_engine("tensorrt-llm"), load_model("llama-3.1-8b")
    settings = Settings(engine=engine.name, engine_version=engine.version)
    for have in (-(1 << 40), -1, 0):
        assert [blocks for _, blocks in engine._blocks(model, settings, have)] == [0]
    assert [blocks for _, blocks in engine._blocks(model, settings, 131_072 * 32)] == [1]
    assert [blocks for _, blocks in engine._blocks(model, settings, 131_072 * 32 - 1)] == [0]


@pytest.mark.parametrize("tokens", [0, -1, (1 << 16) + 1, True, "4", 2.0])
def test_tokens_of_a_proposal_are_a_whole_number_that_a_step_can_hold(tokens: object) -> None:
    with pytest.raises(InputError, match="num_speculative_tokens must be a whole number above 0"):
        speculation.parse({"method": "ngram", "num_speculative_tokens": tokens})


@pytest.mark.parametrize("tokens", [1, 1 << 16])
def test_the_least_and_the_most_tokens_of_a_proposal(tokens: int) -> None:
    found = speculation.parse({"method": "ngram", "num_speculative_tokens": tokens})
    assert found is not None
    assert found.tokens == tokens


@pytest.mark.parametrize(
    ("layers", "tokens", "ahead"), [(0, None, 1), (1, None, 1), (3, None, 3), (3, 2, 2), (0, 5, 5)]
)
def test_multi_token_prediction_drafts_one_for_each_layer(layers: int, tokens: int | None, ahead: int) -> None:
    found = speculation.parse({"method": "mtp"} | ({} if tokens is None else {"num_speculative_tokens": tokens}))
    assert speculation.tokens_ahead(found, layers) == ahead
    assert speculation.tokens_ahead(None, layers) == 0


@pytest.mark.parametrize(
    ("given", "origin"),
    [({}, "OLLAMA_NUM_PARALLEL is 1"), ({"num_parallel": 1}, "OLLAMA_NUM_PARALLEL"),
     ({"num_parallel": 3}, "OLLAMA_NUM_PARALLEL")],
)  # fmt: skip
def test_slots_of_ollama_come_from_where_they_were_set(given: dict[str, int], origin: str) -> None:
    slots, said = get_engine("ollama")._slots(load_model("llama-3.1-8b"), given)
    assert slots == given.get("num_parallel", 1)
    assert said.endswith(origin)
    assert said.startswith("OLLAMA") is bool(given)


def test_every_engine_that_takes_a_device_is_named() -> None:
    gpu = load_gpu("apple-m2-ultra")
    able = [name for name in distinct() if get_engine(name).runs_on is not None and get_engine(name).takes(gpu)]
    assert len(able) > 2
    assert devices._others(gpu) == f"type --engine {able[0]} (or {', '.join(able[1:])})"

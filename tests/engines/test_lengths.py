"""The longest context that an engine derives from a configuration, by version."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from kvplan import load_model, plan
from kvplan.engines import get_engine
from kvplan.errors import UnsupportedError

YARN = {"type": "yarn", "factor": 4, "original_max_position_embeddings": 32768}


def model(rope: dict[str, Any] | None, **lengths: Any) -> Any:
    return replace(load_model("qwen3-8b"), rope=rope, **lengths)


@pytest.mark.parametrize(
    ("version", "longest"), [("0.11.0", 131072), ("0.29.0", 131072), ("0.30.0", 32768), ("0.33.0", 32768)]
)
def test_yarn_over_a_stated_length_counts_up_to_029(version: str, longest: int) -> None:
    """A file that states the length before stretching: from 0.30 on its factor no longer multiplies."""
    asked = model(YARN, stated_positions=32768, max_position_embeddings=131072)
    engine = get_engine(f"vllm@{version}")
    assert engine.longest_context(asked) == longest
    assert plan(asked, engine=f"vllm@{version}").inputs["max_model_len"] == longest
    if longest < 131072:
        with pytest.raises(UnsupportedError, match="32,768"):
            plan(asked, engine=f"vllm@{version}", max_model_len=131072)


@pytest.mark.parametrize(("version", "longest"), [("0.29.0", 131072), ("0.30.0", 262144)])
def test_before_030_yarn_replaces_the_stated_length_even_where_it_is_longer(version: str, longest: int) -> None:
    asked = model(YARN, max_position_embeddings=262144)
    assert get_engine(f"vllm@{version}").longest_context(asked) == longest


@pytest.mark.parametrize("kind", ["linear", "dynamic"])
def test_other_factors_multiply_in_every_release(kind: str) -> None:
    asked = model({"type": kind, "factor": 2}, max_position_embeddings=32768)
    for version in ("0.11.0", "0.33.0"):
        assert get_engine(f"vllm@{version}").longest_context(asked) == 65536
    assert get_engine("sglang").longest_context(asked) == 65536
    assert get_engine("tensorrt-llm").longest_context(asked) == 65536


def test_gemma3_is_never_multiplied() -> None:
    assert get_engine("vllm").longest_context(load_model("gemma-3-27b")) == 131072


@pytest.mark.parametrize(("version", "length"), [("0.11.0", 131072), ("0.12.0", 4096), ("0.33.0", 4096)])
def test_longrope_starts_short_and_goes_far(version: str, length: int) -> None:
    """Phi-3: without --max-model-len the length before stretching, since 0.12; asked for, the whole."""
    assert plan("phi-3-mini-128k", engine=f"vllm@{version}").inputs["max_model_len"] == length
    asked = plan("phi-3-mini-128k", engine=f"vllm@{version}", max_model_len=131072)
    assert asked.inputs["max_model_len"] == 131072


def test_sglang_counts_the_factor_only_where_the_rule_names_no_original_length() -> None:
    stated = model(YARN, stated_positions=32768, max_position_embeddings=131072)
    assert get_engine("sglang").longest_context(stated) == 32768
    bare = model({"type": "yarn", "factor": 4}, stated_positions=32768, max_position_embeddings=131072)
    assert get_engine("sglang").longest_context(bare) == 131072


def test_a_changed_rule_of_a_command_line_is_not_multiplied_twice() -> None:
    for rule, length in (('{"rope_type":"linear","factor":2}', 81920), ('{"rope_type":"dynamic","factor":4}', 163840)):
        made = plan(f"vllm serve Qwen/Qwen3-8B --hf-overrides '{{\"rope_scaling\":{rule}}}'")
        assert made.inputs["max_model_len"] == length


def test_float32_on_devices_without_bfloat16_for_models_that_refuse_float16() -> None:
    """Gemma 2 and 3 and GLM-4 on a T4: twice the bytes of weights and cache; others run in float16."""
    for name, times in (("gemma-2-2b", 2), ("gemma-3-1b", 2), ("qwen3-4b", 1)):
        old, new = (plan(name, gpu=gpu, max_model_len=2048) for gpu in ("t4", "l4"))
        assert old.kv.bytes_per_token == times * new.kv.bytes_per_token
        assert old.memory is not None
        assert new.memory is not None
        weights = [sum(t.bytes for t in m[0].terms if t.name == "weights") for m in (old.memory, new.memory)]
        assert weights[0] == times * weights[1]

"""Ranges of settings, to the last value that is taken."""

from __future__ import annotations

from typing import Any

import pytest

from kvplan import load_gpu, load_model, plan
from kvplan.engines import get_engine
from kvplan.engines.base import Settings
from kvplan.errors import InputError, KvplanError
from kvplan.planning.settings import resolve


def resolved(**given: Any) -> Settings:
    engine = get_engine(given.pop("engine", "generic"))
    return resolve(load_model("llama-3.1-8b"), load_gpu("h200-sxm"), engine, given)[0]


LARGEST = {
    "tensor_parallel_size": 2**16, "pipeline_parallel_size": 2**16, "data_parallel_size": 2**16,
    "decode_context_parallel_size": 2**16, "gpus": 2**20, "kv_cache_memory_bytes": 2**60, "concurrency": 2**40,
    "prompt_tokens": 2**40, "output_tokens": 2**40,
}  # fmt: skip
"""What is not yet taken for a slip of the hand."""


@pytest.mark.parametrize("name", sorted(LARGEST))
def test_absurd_counts_are_named_as_such(name: str) -> None:
    def said(value: int) -> str:
        try:
            resolved(**{name: value})
        except KvplanError as error:
            return str(error)
        return ""

    flag = "--" + name.replace("_", "-")
    assert said(LARGEST[name] + 1) == f"{flag}: {LARGEST[name] + 1:,} is absurdly large"
    assert "absurdly" not in said(LARGEST[name])


@pytest.mark.parametrize("name", ["prompt_cv", "output_cv"])
def test_a_spread_may_be_none(name: str) -> None:
    for value in (0, 0.5, 100):
        resolved(**{name: value})
    for value in (-0.1, 100.1, float("nan"), True, "1"):
        with pytest.raises(InputError, match="out of range"):
            resolved(**{name: value})


@pytest.mark.parametrize(("name", "largest"), [("request_rate", 1e9), ("ttft", 1e6), ("tpot", 1e6)])
def test_amounts_are_above_zero(name: str, largest: float) -> None:
    resolved(**{name: largest})
    for value in (0, -1, largest * 1.01, float("nan"), False, "1"):
        with pytest.raises(InputError, match="out of range"):
            resolved(**{name: value})


def test_what_may_be_zero_and_what_may_not() -> None:
    assert resolved(output_tokens=0, prompt_tokens=1).output_tokens == 0
    assert resolved(shared_prefix_tokens=0).shared_prefix_tokens == 0
    for name in ("output_tokens", "shared_prefix_tokens"):
        with pytest.raises(InputError, match="-1 is too small"):
            resolved(**{name: -1})
    with pytest.raises(InputError, match="0 is too small"):
        resolved(prompt_tokens=0)
    with pytest.raises(InputError, match="0 is too small"):
        resolved(max_model_len=0)
    with pytest.raises(InputError, match="-2 is too small"):
        resolved(max_model_len=-2)


def test_each_rank_has_its_number() -> None:
    found = plan(
        "llama-3.1-8b", gpu="h200-sxm", engine="generic", max_model_len=1024, tensor_parallel_size=2,
        pipeline_parallel_size=2, data_parallel_size=2,
    )  # fmt: skip
    assert found.memory is not None
    assert [row.rank for row in found.memory] == list(range(8))
    assert [row.pipeline_stage for row in found.memory] == [0, 0, 1, 1, 0, 0, 1, 1]

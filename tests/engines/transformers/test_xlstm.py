"""xLSTM as transformers 5.24.0 builds it: parameters of its class, and bytes of `xLSTMCache` for three sequences."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kvplan import plan
from kvplan.errors import SpecError, UnsupportedError
from kvplan.sources.hf.read import read_config
from kvplan.spec.model import ModelSpec

CASES = [json.loads(line) for line in Path("tests/data/cases/xlstm.jsonl").read_text().splitlines()]
"""The published 7B and random sizes."""


def read(config: dict[str, Any]) -> ModelSpec:
    return read_config(config)


@pytest.mark.parametrize("case", CASES, ids=[str(n) for n in range(len(CASES))])
def test_it_weighs_and_keeps_what_the_class_does(case: dict[str, Any]) -> None:
    model = read(case["config"])
    assert model.parameters == case["parameters"]
    settings = {"max_model_len": 512, "prompt_tokens": 100, "output_tokens": 28, "concurrency": case["batch"]}
    found = plan(model, gpu="h200-sxm", engine="transformers", **settings)
    assert found.allocation is not None
    assert found.allocation.bytes == case["cache_bytes"]
    assert found.kv.fixed_bytes_per_sequence * case["batch"] == case["cache_bytes"]


def test_it_grows_by_nothing_and_other_engines_do_not_run_it() -> None:
    model = read(CASES[0]["config"])
    found = plan(model, gpu="h200-sxm", engine="generic", max_model_len=4096)
    assert found.kv.bytes_per_token == 0
    assert found.kv.fixed_bytes_per_sequence > 0
    for engine in ("vllm", "sglang", "llama.cpp", "mlx", "exllamav3", "tensorrt-llm"):
        with pytest.raises(UnsupportedError, match=r"(?i)mlstm"):
            plan(model, gpu="h200-sxm", engine=engine, max_model_len=4096)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"use_bias": True}, "use_bias"),
        ({"num_heads": 7}, r"num_heads \(7\) do not divide the qk width \(2048\)"),
        ({"qk_dim_factor": -1}, "qk_dim_factor should be a number above 0"),
        ({"ffn_proj_factor": "2"}, "ffn_proj_factor should be a number above 0"),
    ],
)
def test_sizes_that_do_not_fit_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(SpecError, match=message):
        read(CASES[0]["config"] | changes)

"""What vLLM's own planner gave for many deployments, release by release: 0.17.0 to 0.33.0.

Each release's configuration, model classes and planner ran without a device on the settings of a case (kernels taken to
be there, devices by their capability and memory). Half of the deployments are random, half are the same for every
release, so that a rule which begins one release early or late shows. What the engine refuses is refused here too; what
it has too little memory for does not fit, with the longest request that it names.
"""

from __future__ import annotations

import json
import lzma
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest
from planner_groups import DEVICES, groups

from kvplan.catalog import load_gpu
from kvplan.errors import KvplanError
from kvplan.planning.plan import Plan
from kvplan.planning.planner import plan_deployment
from kvplan.sources.hf.read import read_config
from kvplan.spec.model import ModelSpec

FILE = Path(__file__).parents[2] / "data" / "cases" / "vllm_planner.jsonl.xz"
CONFIGS, *CASES = [json.loads(line) for line in lzma.decompress(FILE.read_bytes()).decode().splitlines()]


@lru_cache(maxsize=64)
def model_of(name: str) -> ModelSpec:
    return read_config(CONFIGS["configs"][name], name=name.split("-")[0] if name.startswith("d-") else "")


def given_of(case: dict[str, Any]) -> dict[str, Any]:
    have = case["available"]
    given = {**case["given"], "kv_cache_memory_bytes": have if isinstance(have, int) else min(have)}
    if "draft" in case:
        given["speculative_config"] = {**given["speculative_config"], "model": model_of(case["draft"])}
    return given


def planned(case: dict[str, Any]) -> Plan:
    gpu = load_gpu(DEVICES[case["capability"]])
    return plan_deployment(model_of(case["model"]), gpu, f"vllm@{case['vllm']}", given_of(case))


def groups_of(case: dict[str, Any], length: int) -> list[list[Any]]:
    given = {**given_of(case), "max_model_len": length}
    return groups(case["vllm"], model_of(case["model"]), case["capability"], given)


def name_of(number: int, case: dict[str, Any]) -> str:
    return f"{number}-{case['vllm']}-{case['capability']}-{case['model']}"


@pytest.mark.parametrize("case", CASES, ids=[name_of(n, case) for n, case in enumerate(CASES)])
def test_as_the_engine_planned(case: dict[str, Any]) -> None:
    if "refused" in case:
        with pytest.raises(KvplanError):
            planned(case)
        return
    made = planned(case)
    assert made.capacity is not None
    if "too_little" in case:
        assert made.verdict.fits is False
        assert case["too_little"] in (None, made.capacity.max_single_request_tokens)
        return
    want = dict(case["result"])
    capacity = made.capacity
    assert (capacity.block_size or 0) == want.pop("block_size", capacity.block_size)
    assert capacity.num_blocks == want.pop("num_blocks")
    assert capacity.engine_reported_tokens == want.pop("tokens")
    assert capacity.max_concurrency == pytest.approx(want.pop("concurrency"), rel=1e-12)
    if "groups" in want:
        assert groups_of(case, want["max_model_len"]) == want.pop("groups")
    assert {name: made.inputs[name] for name in want} == want


def test_the_corpus_is_wide() -> None:
    kinds = [kind for kind in ("result", "refused", "too_little") for case in CASES if kind in case]
    assert len({case["vllm"] for case in CASES}) >= 15
    assert len({case["model"] for case in CASES}) > 25
    assert min(kinds.count("result") / 20, kinds.count("refused"), 5 * kinds.count("too_little")) > 20

"""What vLLM's own planner gave for the same deployments in every release, 0.11.0 to 0.33.0.

Small models of every kind of cache, with settings drawn at random over what the rules of a release look at: blocks,
formats, prefix caching, ranks, stages, batches, drafts, states, windows, devices, and memory near what one request
needs. A rule that begins one release early or late changes an answer. As in ``test_planner_wide.py`` each release's own
configuration, model classes and planner ran without a device, every kernel (FlashInfer's too) taken to be there; the
check that workers make of context ranks ran too, and the one that the engine core makes of blocks in 0.17 to 0.26 was
made of the blocks that came out.

Left out, since that cannot be trusted to answer for the engine: models that a release does not have or whose class of
configuration the installed transformers did not have yet; Nemotron-H before 0.20 where its state's dtype is the default
of a class (transformers 5 says fp32, the checkpoints of the time fp16); stages without any attention layer; mamba cache
mode ``all`` since 0.32, which the command line no longer takes; TurboQuant beside FlashInfer on compute capability 10,
whose layouts differ, beside windows held whole in 0.25, and asked of MiMo-V2, whose layers differ; kernels of
attention sinks, which depend on a version that was not there; DeepSeek-V4 without fp8 before 0.30, which kvplan plans
with a warning. Where 0.14 and earlier turn prefix caching off by themselves, the setting is not compared. The longest
request that 0.18 and earlier name is not compared: they count the first group of layers alone, or windows as they are
before groups are made. The printed block size is not compared where the first rank's own is not that of a group.
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
from kvplan.engines.vllm.versions import RELEASES
from kvplan.errors import KvplanError
from kvplan.planning.plan import Plan
from kvplan.planning.planner import plan_deployment
from kvplan.sources.hf.read import read_config
from kvplan.spec.model import ModelSpec

FILE = Path(__file__).parents[2] / "data" / "cases" / "vllm_planner_releases.jsonl.xz"
CONFIGS, *DEPLOYMENTS = [json.loads(line) for line in lzma.decompress(FILE.read_bytes()).decode().splitlines()]
Answer = dict[str, Any]


def answers(deployment: dict[str, Any]) -> dict[str, Answer]:
    """Release -> what it answered; ``"same"`` is the answer of the release before."""
    found: dict[str, Answer] = {}
    before: Answer = {}
    for release, answer in deployment["releases"].items():
        before = found[release] = before if answer == "same" else answer
    return found


CASES = [(n, release, a) for n, d in enumerate(DEPLOYMENTS) for release, a in answers(d).items()]


@lru_cache(maxsize=512)
def model_of(name: str) -> ModelSpec:
    return read_config(CONFIGS["configs"][name], name=name.split("-")[0] if name.startswith("d-") else "")


def given_of(deployment: dict[str, Any]) -> dict[str, Any]:
    given = {**deployment["given"], "kv_cache_memory_bytes": deployment["available"]}
    if "draft" in deployment:
        given["speculative_config"] = {**given["speculative_config"], "model": model_of(deployment["draft"])}
    return given


def planned(deployment: dict[str, Any], release: str) -> Plan:
    gpu = load_gpu(DEVICES[deployment["capability"]])
    return plan_deployment(model_of(deployment["model"]), gpu, f"vllm@{release}", given_of(deployment))


def groups_of(deployment: dict[str, Any], release: str, length: int) -> list[list[Any]]:
    given = {**given_of(deployment), "max_model_len": length}
    return groups(release, model_of(deployment["model"]), deployment["capability"], given)


@pytest.mark.parametrize(
    ("number", "release", "answer"), CASES, ids=[f"{DEPLOYMENTS[n]['id']}-{release}" for n, release, _ in CASES]
)
def test_as_the_release_planned(number: int, release: str, answer: Answer) -> None:
    deployment = DEPLOYMENTS[number]
    if "refused" in answer:
        with pytest.raises(KvplanError):
            planned(deployment, release)
        return
    made = planned(deployment, release)
    capacity = made.capacity
    assert capacity is not None
    if "too_little" in answer:
        assert made.verdict.fits is False
        assert answer["too_little"] in (None, capacity.max_single_request_tokens)
        return
    want = dict(answer["result"])
    assert capacity.block_size == want.pop("block_size", capacity.block_size)
    assert capacity.num_blocks == want.pop("num_blocks")
    assert capacity.engine_reported_tokens == want.pop("tokens")
    assert capacity.max_concurrency == pytest.approx(want.pop("concurrency"), rel=1e-12)
    assert groups_of(deployment, release, want["max_model_len"]) == want.pop("groups")
    assert {name: made.inputs[name] for name in want} == want


def test_every_release_was_asked() -> None:
    asked = {release: [a for _, r, a in CASES if r == release] for release in RELEASES}
    for release, found in asked.items():
        assert sum("result" in a for a in found) >= 20, release
        assert sum("refused" in a for a in found) >= 5, release

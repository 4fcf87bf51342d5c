"""vLLM's own numbers: what its planner code gave for 74 deployments, releases 0.20.0 to 0.33.0.

``tests/data/cases/vllm.jsonl`` holds them. Cases with a configuration go through the planner as a
user's deployment does; cases that hand over layer specs go to the grouping and to the block counts.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kvplan.catalog import load_gpu
from kvplan.engines import get_engine
from kvplan.engines.base import Pool, Settings, Stage
from kvplan.engines.vllm.groups import block_bytes, make_groups
from kvplan.engines.vllm.requests import Limits, alike, group_blocks, longest_request, request_blocks
from kvplan.engines.vllm.specs import CacheLayer, Group
from kvplan.engines.vllm.versions import Rules
from kvplan.planning.drafts import served_model
from kvplan.planning.evaluate import build_stages, evaluate
from kvplan.planning.planner import plan_deployment
from kvplan.planning.settings import resolve
from kvplan.planning.weights import weight_format
from kvplan.sources.hf.read import read_config
from kvplan.spec.formats import get_format
from kvplan.spec.model import ModelSpec

DATA = Path(__file__).parents[2] / "data" / "cases"
CASES = [json.loads(line) for line in (DATA / "vllm.jsonl").read_text().splitlines()]
MODEL_CASES = [c for c in CASES if c["input"]["mode"] == "model"]
SPEC_CASES = [c for c in CASES if c["input"]["mode"] == "specs"]

FAMILIES = {
    "FullAttentionSpec": "full", "MLAAttentionSpec": "mla", "SlidingWindowSpec": "sliding", "MambaSpec": "mamba",
    "ChunkedLocalAttentionSpec": "chunked", "CrossAttentionSpec": "cross", "SinkFullAttentionSpec": "sink",
    "SlidingWindowMLASpec": "sliding_mla",
}  # fmt: skip
SETTINGS = {
    "tp": "tensor_parallel_size", "pp": "pipeline_parallel_size", "dcp": "decode_context_parallel_size",
    "max_model_len": "max_model_len", "kv_cache_dtype": "kv_cache_dtype", "block_size": "block_size",
    "max_num_batched_tokens": "max_num_batched_tokens", "max_num_seqs": "max_num_seqs",
    "num_gpu_blocks_override": "num_gpu_blocks_override", "enable_prefix_caching": "enable_prefix_caching",
    "mamba_ssm_cache_dtype": "mamba_ssm_cache_dtype", "mamba_cache_mode": "mamba_cache_mode",
    "disable_hybrid_kv_cache_manager": "disable_hybrid_kv_cache_manager", "speculative_config": "speculative_config",
}  # fmt: skip
"""Names in a case's input -> settings of kvplan."""
NOT_SETTINGS = {"mode", "hf_config", "available_bytes", "draft_hf_config", "build_device"}


def ids(case: dict[str, Any]) -> str:
    return str(case["id"])


def marked(cases: list[dict[str, Any]]) -> list[Any]:
    """The cases as parameters, named by their ids."""
    return [pytest.param(c, id=c["id"]) for c in cases]


def test_all_cases_are_here() -> None:
    assert len(CASES) == 74
    assert len(MODEL_CASES) + len(SPEC_CASES) == 74


def given_of(case: dict[str, Any]) -> dict[str, Any]:
    """The case's input as settings; fails on an input that no setting stands for."""
    asked = case["input"]
    assert set(asked) <= set(SETTINGS) | NOT_SETTINGS, "an input that the test does not carry over"
    given = {SETTINGS[name]: value for name, value in asked.items() if name in SETTINGS}
    if "speculative_config" in given and "draft_hf_config" in asked:
        draft = read_config(asked["draft_hf_config"], name="draft")
        given["speculative_config"] = {**given["speculative_config"], "model": draft}
    have = asked["available_bytes"]
    given["kv_cache_memory_bytes"] = have if isinstance(have, int) else min(have)
    return given


def model_of(case: dict[str, Any]) -> ModelSpec:
    return read_config(json.loads((DATA / "vllm_configs" / case["input"]["hf_config"]).read_text()))


def gpu_of(case: dict[str, Any]) -> Any:
    return load_gpu("h100-sxm" if case["gpu"]["capability"] == [9, 0] else "b200")


def engine_of(case: dict[str, Any]) -> str:
    return f"vllm@{case['vllm_version']}"


@pytest.mark.parametrize("case", marked(MODEL_CASES))
def test_plan(case: dict[str, Any]) -> None:
    """Blocks, the printed tokens, concurrency (all digits) and block size of the public plan."""
    result, given = case["result"], given_of(case)
    plan = plan_deployment(model_of(case), gpu_of(case), engine_of(case), given)
    capacity = plan.capacity
    assert capacity is not None
    assert capacity.block_size == result["resolved"]["block_size"]
    assert plan.inputs["max_num_batched_tokens"] == result["resolved"]["max_num_batched_tokens"]
    assert plan.inputs["enable_prefix_caching"] == result["resolved"]["enable_prefix_caching"]
    if "refused" in result:
        assert plan.verdict.fits is False
        assert plan.verdict.binding == "kv"
        estimate = result["refused"].partition("estimated maximum model length is ")[2].partition(".")[0]
        assert capacity.max_single_request_tokens == int(estimate)
        return
    assert capacity.num_blocks == result["num_blocks"]
    assert capacity.engine_reported_tokens == result["kv_cache_size_tokens"]
    assert capacity.max_concurrency == result["max_concurrency"]
    if given["max_model_len"] == -1:
        assert plan.inputs["max_model_len"] == result["resolved"]["max_model_len"]


@pytest.mark.parametrize("case", marked(MODEL_CASES))
def test_groups(case: dict[str, Any]) -> None:
    """Groups as vLLM made them: layers, kind, block size, page bytes, blocks per request; bytes of a block."""
    model, gpu, engine, given = model_of(case), gpu_of(case), get_engine(engine_of(case)), given_of(case)
    if given["max_model_len"] == -1:
        given["max_model_len"] = case["result"]["resolved"]["max_model_len"]
    settings, _ = resolve(model, gpu, engine, given)
    served = served_model(model, engine, settings)
    stages, _ = build_stages(served, engine, settings, weight_format(served, "auto"))
    laid = engine.layout(stages[0], settings)  # type: ignore[attr-defined]
    assert laid.block_bytes(stages[0]) == case["result"]["bytes_per_block_worker0"]
    found = [described(g, settings.max_model_len, laid.limits) for g in laid.groups]
    assert sorted(found) == sorted(expected_groups(case))
    per_stage = [sum(1 for layer, _ in laid.caches if held(stage, layer)) for stage in stages]
    assert per_stage == case["result"]["layers_per_worker"]


def held(stage: Stage, layer: int) -> bool:
    end = stage.first_layer + stage.spec.num_layers
    return stage.first_layer <= layer < end or (stage.last and layer >= end)


def described(group: Group, tokens: int, limits: Limits) -> tuple[Any, ...]:
    first = group.first
    return (
        len(group.members), first.family, first.block_size, first.page_bytes,
        group.page_bytes if group.mixed else first.page_bytes, group_blocks(group, tokens, limits),
    )  # fmt: skip


def expected_groups(case: dict[str, Any]) -> list[tuple[Any, ...]]:
    return [
        (
            g["num_layers"], FAMILIES[g["spec"]["type"]], g["spec"]["block_size"], g["spec"]["page_size_bytes"],
            g["group_page_size_bytes"], g["blocks_per_request"],
        )
        for g in case["result"]["groups"]
    ]  # fmt: skip


def test_every_pipeline_stage_counts_by_its_own_bytes() -> None:
    """Four stages with different bytes: the smallest decides, also where it is not the first."""
    case = next(c for c in MODEL_CASES if isinstance(c["input"]["available_bytes"], list))
    model, gpu, engine = model_of(case), gpu_of(case), get_engine(engine_of(case))
    settings, _ = resolve(model, gpu, engine, given_of(case))
    outcome = evaluate(served_model(model, engine, settings), gpu, engine, settings)
    pool = engine.pool(outcome.stages, settings, tuple(case["input"]["available_bytes"]))
    assert pool.num_blocks == case["result"]["num_blocks"]


# ---- cases that hand over layer specs ----


def layer_of(asked: dict[str, Any], rules: Rules) -> CacheLayer:
    """One layer of a case as the manager sees it."""
    if asked["kind"] == "mamba":
        sizes = [get_format(name).block_bytes for name in asked["dtypes"]]
        data = 0
        for shape, size in zip(asked["shapes"], sizes, strict=True):
            elements = 1
            for n in shape:
                elements *= n
            data += elements * size
        return CacheLayer("mamba", asked["block_size"], state_bytes=data, padded_bytes=asked.get("page_size_padded", 0))
    name = asked.get("kv_cache_dtype") or asked["dtype"]
    heads, dim = asked["num_kv_heads"], asked["head_size"]
    row = sum(get_format(name).pair_bytes(heads, dim, asked.get("head_size_v", dim)))
    window = asked.get("sliding_window")
    return CacheLayer(asked["kind"], asked["block_size"], row, window=window, shape=(heads, dim, name))


@pytest.mark.parametrize("case", SPEC_CASES, ids=ids)
def test_specs(case: dict[str, Any]) -> None:
    """Grouping, blocks, concurrency and the token line from layer specs."""
    asked, result, rules = case["input"], case["result"], Rules(case["vllm_version"])
    workers = asked.get("workers") or [asked["layers"]]
    layers: list[CacheLayer] = []
    spans: list[set[int]] = []
    for worker in workers:
        own = [layer_of(layer, rules) for layer in worker for _ in range(layer["count"])]
        spans.append(set(range(len(layers), len(layers) + len(own))))
        layers += own
    groups = make_groups(layers, rules)
    batched = asked.get("max_num_batched_tokens", 8192)
    flying = 2 * batched if rules.has("in_flight_batches") else batched
    limits = Limits(flying, mamba_mode=asked.get("mamba_cache_mode", "none"))
    have = asked["available_bytes"]
    bytes_ = [have] * len(spans) if isinstance(have, int) else have
    blocks = min(b // block_bytes(groups, span) for b, span in zip(bytes_, spans, strict=True))
    assert blocks == result["num_blocks"]
    concurrency = blocks / request_blocks(alike(groups), asked["max_model_len"], limits)
    assert concurrency == result["max_concurrency"]
    assert sorted((len(g.members), g.first.family, g.first.block_size, g.first.page_bytes) for g in groups) == sorted(
        (g["num_layers"], FAMILIES[g["spec"]["type"]], g["spec"]["block_size"], g["spec"]["page_size_bytes"])
        for g in result["groups"]
    )
    printed = result.get("kv_cache_size_tokens", result.get("logged_tokens"))
    if rules.has("tokens_from_concurrency"):
        assert int(concurrency * asked["max_model_len"]) == printed
    else:
        assert blocks // len(groups) * min(g.first.block_size for g in groups) == printed


def test_longest_request_inverts_the_block_count() -> None:
    groups = make_groups([CacheLayer("full", 16, 100), *[CacheLayer("sliding", 16, 100, window=64)] * 2], Rules())
    limits = Limits(256)
    for blocks in (1, 30, 100, 1000):
        longest = longest_request(alike(groups), blocks, limits)
        assert longest is not None
        assert longest == 0 or request_blocks(alike(groups), longest, limits) <= blocks
        assert request_blocks(alike(groups), longest + 1, limits) > blocks


def _pool(**changes: Any) -> Pool:
    """The pool of a small hybrid on a device."""
    case = next(c for c in MODEL_CASES if c["id"] == "nemotronh-8b-no-prefix-cache")
    model, gpu, engine = model_of(case), gpu_of(case), get_engine("vllm")
    settings, _ = resolve(model, gpu, engine, {**given_of(case), **changes})
    outcome = evaluate(served_model(model, engine, settings), gpu, engine, settings)
    assert isinstance(settings, Settings)
    assert outcome.pool is not None
    return outcome.pool


def test_state_blocks_cap_running_sequences() -> None:
    """vLLM refuses more running sequences than there are blocks for states, unless it runs eagerly."""
    assert _pool(max_num_seqs=1760).starts
    refused = _pool(max_num_seqs=1761)
    assert not refused.starts
    assert refused.max_num_seqs_allowed == 1760
    assert "1,761" in refused.refusal
    assert _pool(max_num_seqs=1761, enforce_eager=True).starts


def test_packed_groups_of_compressed_attention() -> None:
    """DeepSeek-V4: 169 caches of 43 layers in five groups, page sizes side by side in a block."""
    case = next(c for c in MODEL_CASES if c["id"] == "dsv4-default-tp4")
    data = json.loads((DATA / "vllm_configs" / case["input"]["hf_config"]).read_text())
    data.pop("mlp_layer_types")  # which layers hash their experts: nothing that caches
    capacity = plan_deployment(read_config(data), gpu_of(case), engine_of(case), given_of(case)).capacity
    assert capacity is not None
    assert capacity.num_blocks == case["result"]["num_blocks"]
    assert capacity.engine_reported_tokens == case["result"]["kv_cache_size_tokens"]
    assert capacity.max_concurrency == case["result"]["max_concurrency"]


def test_smaller_rows_take_larger_blocks() -> None:
    """Gemma 4: sliding heads of 256 beside full heads of 512 take blocks of 32 where the full ones take 16."""
    case = next(c for c in MODEL_CASES if c["id"] == "gemma4-text-default")
    data = json.loads((DATA / "vllm_configs" / case["input"]["hf_config"]).read_text())
    data.pop("per_layer_config")
    data["global_head_dim"] = 512
    capacity = plan_deployment(read_config(data), gpu_of(case), engine_of(case), given_of(case)).capacity
    assert capacity is not None
    assert capacity.num_blocks == case["result"]["num_blocks"]
    assert capacity.engine_reported_tokens == case["result"]["kv_cache_size_tokens"]
    assert capacity.max_concurrency == case["result"]["max_concurrency"]

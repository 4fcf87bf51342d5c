"""The figures of plans over engines, layouts and formats, each worked out again from others that stand beside it."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from kvplan import load_gpu, load_model
from kvplan.cache.bytes import sequence_bytes
from kvplan.engines import get_engine
from kvplan.planning import planner
from kvplan.planning.evaluate import Outcome, evaluate, settled
from kvplan.planning.plan import Plan
from kvplan.planning.planner import plan_deployment

CASES: list[tuple[str, str, str, dict[str, Any]]] = [
    ("llama-3.1-8b", "h100-sxm", "vllm", {"max_model_len": 8192}),
    ("llama-3.1-8b", "h100-sxm", "vllm", {"max_model_len": 8192, "data_parallel_size": 3, "concurrency": 10}),
    ("llama-3.1-8b", "h100-sxm", "vllm", {"max_model_len": 8192, "max_num_seqs": 12, "concurrency": 10}),
    ("llama-3.1-8b", "h100-sxm", "vllm", {"max_model_len": 8192, "kv_cache_memory_bytes": 5 * 2**30}),
    ("llama-3.1-8b", "h100-sxm", "vllm", {"max_model_len": 8192, "num_gpu_blocks_override": 3000}),
    ("llama-3.1-8b", "l4", "vllm", {"max_model_len": 60_000, "concurrency": 2}),
    ("llama-3.1-8b", "l4", "vllm", {"max_model_len": 4096, "shared_prefix_tokens": 600, "concurrency": 20}),
    ("llama-3.1-8b", "l4", "generic", {"max_model_len": 4096, "shared_prefix_tokens": 600, "data_parallel_size": 2,
                                       "concurrency": 9}),
    ("llama-3.1-70b", "l40s", "vllm", {"max_model_len": 4096, "tensor_parallel_size": 4, "pipeline_parallel_size": 2}),
    ("llama-3.1-70b", "h100-sxm", "generic", {"max_model_len": 4096, "tensor_parallel_size": 16,
                                              "decode_context_parallel_size": 2}),
    ("llama-3.1-70b", "h100-sxm", "vllm", {"max_model_len": 8192}),
    ("deepseek-v3", "h200-sxm", "vllm", {"max_model_len": 8192, "tensor_parallel_size": 8}),
    ("deepseek-v3", "b200", "sglang", {"max_model_len": 8192, "tensor_parallel_size": 8}),
    ("gpt-oss-120b", "h100-sxm", "vllm", {"max_model_len": 8192, "tensor_parallel_size": 2}),
    ("qwen3-next-80b-a3b", "b200", "vllm", {"max_model_len": 8192, "max_num_seqs": 64}),
    ("mamba2-2.7b", "l4", "vllm", {"max_model_len": 8192, "max_num_seqs": 64}),
    ("gemma-3-27b", "h100-sxm", "tensorrt-llm", {"max_model_len": 8192, "kv_cache_dtype": "fp8"}),
    ("qwen3-8b", "rtx-4090", "llama.cpp", {"ctx_size": 16_384, "parallel": 4, "cache_type_k": "q8_0"}),
    ("qwen3-8b", "rtx-4090", "ollama", {"num_ctx": 8192, "num_parallel": 2}),
    ("llama-3.1-8b", "apple-m4-max", "mlx", {"max_model_len": 8192}),
    ("llama-3.1-8b", "a100-sxm4-80gb", "transformers", {"max_model_len": 4096, "concurrency": 4}),
    ("qwen3-8b", "rtx-3090", "exllamav3", {"cache_tokens": 16_384, "gpus": 2, "max_model_len": 8192}),
    ("whisper-large-v3", "l4", "vllm", {}),
    ("mixtral-8x7b", "h100-sxm", "vllm", {"max_model_len": 4096, "data_parallel_size": 4,
                                          "enable_expert_parallel": True}),
    ("granite-4.0-h-tiny", "l4", "vllm", {"max_model_len": 4096, "kv_cache_dtype": "fp8"}),
]  # fmt: skip
NAMES = [f"{n}-{model}-{engine}" for n, (model, _, engine, _) in enumerate(CASES)]


@pytest.fixture(autouse=True)
def _without_advice(monkeypatch: pytest.MonkeyPatch) -> None:
    """Advice changes no figure and takes most of the time."""
    monkeypatch.setattr(planner, "hints", lambda *_: ())


def worked(name: str, gpu: str, engine: str, given: dict[str, Any]) -> tuple[Plan, Any, Any, Outcome]:
    """(the plan, the model as it is served, the engine, its outcome)."""
    own, device = get_engine(engine), load_gpu(gpu)
    model, settings, _ = settled(load_model(name), device, own, dict(given))
    made = plan_deployment(load_model(name), device, engine, dict(given))
    return made, model, own, evaluate(model, device, own, settings)


def most(good: Callable[[int], bool], top: int = 1 << 22) -> int:
    """The largest number for which `good` holds, 0 where it does not hold of 1."""
    low, high = 0, 1
    while high < top and good(high):
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if good(middle) else (low, middle)
    return low


@pytest.mark.parametrize(("name", "gpu", "engine", "given"), CASES, ids=NAMES)
def test_memory_adds_up(name: str, gpu: str, engine: str, given: dict[str, Any]) -> None:
    made, _, own, outcome = worked(name, gpu, engine, given)
    assert made.memory is not None
    assert outcome.waterfalls is not None
    settings, kv = outcome.settings, outcome.kv_bytes
    assert kv is not None
    tp, pp, dp = (made.inputs[f"{kind}_parallel_size"] for kind in ("tensor", "pipeline", "data"))
    assert [row.rank for row in made.memory] == list(range(tp * pp * dp))
    assert [row.pipeline_stage for row in made.memory] == [s for _ in range(dp) for s in range(pp) for _ in range(tp)]
    for row in made.memory:
        fall, left = outcome.waterfalls[row.pipeline_stage], kv[row.pipeline_stage]
        spent = {part: sum(t.bytes for t in fall.terms if t.part == part) for part in {t.part for t in fall.terms}}
        assert row.weights_bytes == spent.get("weights", 0)
        assert row.activation_bytes == spent.get("activation", 0)
        assert row.cuda_graph_bytes == spent.get("cuda_graph", 0)
        assert row.runtime_bytes == spent.get("runtime", 0)
        assert row.unused_bytes == row.total_bytes - sum(spent.values()) - row.kv_bytes
        assert sum(row.weights_by_role.values()) == outcome.stages[row.pipeline_stage].weights_bytes
        assert 0 <= row.replicated_bytes <= sum(row.weights_by_role.values())
        asked = made.inputs.get("kv_cache_memory_bytes")
        if asked is not None:
            assert left == asked
        else:
            assert left == row.budget_bytes - sum(spent.values()) == fall.available_bytes
        if (own.fills_budget and made.inputs.get("num_gpu_blocks_override") is None) or outcome.pool is None:
            assert row.kv_bytes == max(0, left)
        else:
            assert row.kv_bytes == outcome.pool.used_bytes[row.pipeline_stage]
        assert row.budget_bytes == own.budget_bytes(row.total_bytes, settings) or engine in ("llama.cpp", "ollama")
    assert made.inputs["gpus"] >= tp * pp * dp


@pytest.mark.parametrize(("name", "gpu", "engine", "given"), CASES, ids=NAMES)
def test_capacity_is_what_the_pool_holds(name: str, gpu: str, engine: str, given: dict[str, Any]) -> None:
    made, _, own, outcome = worked(name, gpu, engine, given)
    capacity, pool, settings = made.capacity, outcome.pool, outcome.settings
    assert capacity is not None
    if pool is None:
        assert (capacity.kv_tokens, capacity.max_concurrency, capacity.at) == (None, None, ())
        assert made.verdict.fits is False
        return
    kv, dp, length = outcome.kv_bytes, made.inputs["data_parallel_size"], made.inputs["max_model_len"]
    assert kv is not None
    for field in ("block_size", "num_blocks", "kv_tokens", "engine_reported_tokens", "max_concurrency"):
        assert getattr(capacity, field) == getattr(pool, field)
    assert capacity.total_kv_tokens == (None if pool.kv_tokens is None else pool.kv_tokens * dp)
    assert capacity.total_max_concurrency == pytest.approx(pool.max_concurrency * dp)
    request = made.inputs["prompt_tokens"] + made.inputs["output_tokens"]
    tokens = [at.tokens for at in capacity.at]
    assert tokens == sorted(set(tokens))
    assert {request, length} - set(tokens) == ({request} if request > length else set())
    assert all(n <= length for n in tokens)
    for at in capacity.at:
        assert at.requests == own.requests_at(outcome.stages, settings, kv, at.tokens)
    counts = [at.requests for at in capacity.at]
    assert counts == sorted(counts, reverse=True)
    moves = made.inputs.get("kv_cache_memory_bytes") is None and any(
        t.low_bytes != t.high_bytes for fall in outcome.waterfalls or () for t in fall.terms
    )
    assert (capacity.low is not None) is (capacity.high is not None) is moves
    if capacity.low is not None and capacity.high is not None:
        falls = outcome.waterfalls or ()
        for end, bound in ((capacity.low, "high_bytes"), (capacity.high, "low_bytes")):
            left = tuple(fall.budget_bytes - sum(getattr(t, bound) for t in fall.terms) for fall in falls)
            there = own.pool(outcome.stages, settings, left) if min(left) > 0 else None
            expected = (0, 0.0, 0) if there is None else (
                there.kv_tokens, there.max_concurrency, there.max_single_request_tokens
            )  # fmt: skip
            assert tuple(end) == expected
    share = capacity.min_gpu_memory_utilization
    if share is not None and "num_gpu_blocks_override" not in given:
        for thousandths, starts in ((round(share * 1000), True), (round(share * 1000) - 1, False)):
            if thousandths:
                again = {**given, "gpu_memory_utilization": thousandths / 1000}
                then = worked(name, gpu, engine, again)[3].pool
                assert (then is not None and bool(then.starts)) is starts
    if made.inputs["shared_prefix_tokens"]:
        check_prefixes(made, own, outcome)


def made_model(made: Plan) -> Any:
    return load_model(made.inputs["model"])


def check_prefixes(made: Plan, own: Any, outcome: Outcome) -> None:
    """How many requests run beside a prefix of every length: one more does not hold, or is over the limit."""
    assert made.capacity is not None
    assert made.capacity.by_shared_prefix
    settings, dp = outcome.settings, outcome.settings.data_parallel_size
    for at in made.capacity.by_shared_prefix:
        body = settings.request_tokens - settings.shared_prefix_tokens
        assert at.prefix_tokens <= settings.max_model_len - body
        prompt = settings.prompt_tokens - settings.shared_prefix_tokens + at.prefix_tokens
        longer = replace(settings, shared_prefix_tokens=at.prefix_tokens, prompt_tokens=prompt)
        assert at.requests_unshared == own.requests_at(outcome.stages, longer, outcome.kv_bytes, longer.request_tokens)
        assert at.shared_tokens == (own.shared_prefix_tokens(made_model(made), longer) if at.prefix_tokens else 0)

        def holds(count: int, asked: Any = longer) -> bool:
            within = not asked.max_num_seqs or count <= asked.max_num_seqs
            some = replace(asked, concurrency=count * dp)
            return within and bool(own.holds(outcome.stages, some, outcome.kv_bytes))

        assert at.requests == most(holds)


@pytest.mark.parametrize(("name", "gpu", "engine", "given"), CASES, ids=NAMES)
def test_decode_and_prefill_divide_as_they_say(name: str, gpu: str, engine: str, given: dict[str, Any]) -> None:
    made, _, _, outcome = worked(name, gpu, engine, given)
    decode, prefill, settings = made.decode, made.prefill, outcome.settings
    if decode is None:
        return
    dp, limit = settings.data_parallel_size, settings.max_num_seqs
    running = settings.concurrency if not limit else min(settings.concurrency, limit * dp)
    each = -(-settings.concurrency // dp)
    assert decode.batch == (each if not limit else min(each, limit))
    assert decode.context == settings.prompt_tokens + settings.output_tokens // 2
    rate = running / decode.seconds_per_step
    assert decode.tokens_per_second == pytest.approx(rate)
    assert decode.tokens_per_second_per_request == pytest.approx(1 / decode.seconds_per_step)
    assert decode.tokens_per_second_per_gpu == pytest.approx(rate / settings.world_size)
    assert decode.low < rate < decode.high
    parts = decode.parts
    assert parts.compute is not None
    assert decode.seconds_per_step <= parts.memory + parts.compute + parts.latency + parts.communication + 1e-12
    assert decode.seconds_per_step >= max(parts.memory, parts.compute) / settings.pipeline_parallel_size
    assert decode.ceiling_tokens_per_second is not None
    assert rate < decode.ceiling_tokens_per_second
    if prefill is not None:
        assert prefill.tokens == settings.prompt_tokens
        assert prefill.tokens_per_second == pytest.approx(prefill.tokens / prefill.seconds)
        assert prefill.chunk_tokens <= prefill.tokens
        assert prefill.low_seconds < prefill.seconds < prefill.high_seconds
        chunk = settings.max_num_batched_tokens or settings.extra.get("ubatch_size") or 0
        chunk = chunk or settings.extra.get("chunked_prefill_size") or 0
        assert prefill.chunk_tokens == (min(chunk, prefill.tokens) if chunk > 0 else prefill.tokens)


@pytest.mark.parametrize(("name", "gpu", "engine", "given"), CASES, ids=NAMES)
def test_the_verdict_and_its_notes_follow_from_the_figures(
    name: str, gpu: str, engine: str, given: dict[str, Any]
) -> None:
    made, model, own, outcome = worked(name, gpu, engine, given)
    settings, pool, kv = outcome.settings, outcome.pool, outcome.kv_bytes
    assert kv is not None
    assert made.verdict.fits is outcome.fits
    if pool is None:
        assert made.verdict.binding in ("weights", "activations")
        heaviest = max(stage.weights_bytes for stage in outcome.stages)
        budget = (outcome.waterfalls or ())[0].budget_bytes
        assert (made.verdict.binding == "weights") is (heaviest > budget)
        return
    if made.verdict.fits:
        assert own.holds(outcome.stages, settings, kv)
        assert made.verdict.binding is None
    (first,) = [note for note in made.verdict.notes if note.startswith("breaks first")] or [None]
    if first is None:
        return
    numbers = [int(n.replace(",", "")) for n in re.findall(r"\d[\d,]*", first)]
    dp = settings.data_parallel_size

    def holds(count: int) -> bool:
        """With what so many requests take beside the cache, whatever limits those that run."""
        free = replace(settings, concurrency=count * dp)
        then = evaluate(model, load_gpu(gpu), own, free).kv_bytes
        return then is not None and bool(own.holds(outcome.stages, replace(free, max_num_seqs=None), then))

    full = most(holds)
    assert full in numbers
    assert settings.request_tokens in numbers
    assert (" per replica" in first) is (dp > 1)
    limit = settings.max_num_seqs
    if limit:
        assert ("the cache, full with" in first) is (full <= limit)
        assert limit in numbers
    spare = [note for note in made.verdict.notes if "leaves " in note]
    if spare and settings.kv_cache_memory_bytes is None and settings.num_gpu_blocks_override is None:
        needs = [
            max(own.start_bytes(s, settings), own.request_bytes(s, settings, settings.max_model_len))
            for s in outcome.stages
        ]
        if pool.max_single_request_tokens < settings.max_model_len:
            needs = [own.start_bytes(s, settings) for s in outcome.stages]
        beyond = min(have - need for have, need in zip(kv, needs, strict=True))
        said = re.search(r"leaves ([\d.]+) GiB per GPU", spare[0])
        assert said is not None
        assert float(said.group(1)) == pytest.approx(beyond / 2**30, abs=0.006)


@pytest.mark.parametrize(("name", "gpu", "engine", "given"), CASES, ids=NAMES)
def test_the_cache_by_its_own_formula(name: str, gpu: str, engine: str, given: dict[str, Any]) -> None:
    made, model, own, outcome = worked(name, gpu, engine, given)
    settings, kv = outcome.settings, made.kv
    formats, length = own.kv_formats(model, settings), settings.max_model_len
    assert kv.bytes_per_sequence == sequence_bytes(model, length, formats, drafts=True)
    assert kv.bytes_per_sequence_per_gpu == max(own.request_bytes(s, settings, length) for s in outcome.stages)
    assert (kv.format_k, kv.format_v) == (formats.k.name, formats.v.name)
    assert sum(group.layers for group in kv.groups) <= sum(layers for layers, _ in model.mixers())
    last = sequence_bytes(model, length, formats) - sequence_bytes(model, length - 1, formats)
    assert kv.marginal_bytes_per_token_at_max_len == pytest.approx(last, rel=0.35, abs=4096)
    if kv.exceeds_weights_at_tokens is not None:
        whole = evaluate(
            model, None, own, replace(settings, tensor_parallel_size=1, pipeline_parallel_size=1, data_parallel_size=1,
                                      decode_context_parallel_size=1, enable_expert_parallel=False)
        ).stages[0].weights_bytes  # fmt: skip
        assert sequence_bytes(model, kv.exceeds_weights_at_tokens, formats) >= whole
        assert sequence_bytes(model, kv.exceeds_weights_at_tokens - 1, formats) < whole
    shared = settings.shared_prefix_tokens
    assert (kv.shared_prefix is None) is (not shared)
    if kv.shared_prefix is not None:
        once = own.shared_prefix_tokens(model, settings)
        assert kv.shared_prefix.tokens_shared == once <= shared
        busy = min(settings.concurrency, settings.data_parallel_size)
        grown = sequence_bytes(model, once, formats) - sequence_bytes(model, 0, formats)
        assert kv.shared_prefix.bytes_saved == (settings.concurrency - busy) * grown

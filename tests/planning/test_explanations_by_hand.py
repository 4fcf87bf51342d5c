"""Explanations and curves against their own products and sums, over models of every kind of cache."""

from __future__ import annotations

import re
from math import prod
from typing import Any

import pytest

from kvplan import load_gpu, load_model, plan
from kvplan.cache.bytes import bytes_per_token, fixed_bytes, sequence_bytes
from kvplan.catalog import model_ids
from kvplan.engines import get_engine
from kvplan.engines.base import Stage
from kvplan.planning.curves import curves
from kvplan.planning.drafts import served_model
from kvplan.planning.explain import Explanation, explain
from kvplan.planning.settings import resolve
from kvplan.planning.speed import work as of
from kvplan.planning.weights import rank_weights, weight_format

KINDS = (
    "llama-3.1-8b", "gemma-3-27b", "gpt-oss-20b", "deepseek-v3", "deepseek-v3.2", "deepseek-v4-flash",
    "qwen3-next-80b-a3b", "falcon-h1-7b", "rwkv-7-g1-7.2b", "mamba2-2.7b", "whisper-large-v3", "gemma-3n-e4b",
    "llama-4-scout", "mimo-v2-flash", "minimax-m3", "llama-3.2-11b-vision", "kimi-linear-48b-a3b", "step3-321b",
)  # fmt: skip


def explained(name: str, **given: Any) -> Explanation:
    return explain(load_model(name), {"max_model_len": 4096, **given}, saved=given.pop("saved", False))


@pytest.mark.parametrize("name", model_ids()[::4])
@pytest.mark.parametrize("stored", ["auto", "fp8"])
def test_the_parts_make_the_whole(name: str, stored: str) -> None:
    """Every factor multiplied, every product added, and the line in numbers worked out."""
    found = explained(name, **({} if stored == "auto" else {"kv_cache_dtype": stored}))
    spec, engine = load_model(name), get_engine("generic")
    settings, _ = resolve(spec, None, engine, {"max_model_len": 4096, "kv_cache_dtype": stored})
    spec = served_model(spec, engine, settings)  # fp32 checkpoints in 16 bits
    formats = engine.kv_formats(spec, settings)
    total = 0
    for term in found.streams:
        size = prod(factor.value for factor in term.factors)
        expected = 0 if term.until_tokens == 0 else -(-size // term.tokens_per_entry)
        assert term.bytes_per_token == expected
        assert term.factors[0].symbol == "layers"
        total += size / term.tokens_per_entry if expected else 0
    assert found.bytes_per_token == pytest.approx(total, abs=len(found.streams))
    assert found.bytes_per_token == bytes_per_token(spec, formats)
    assert found.fixed_bytes_per_sequence == fixed_bytes(spec, formats)
    assert sum(term.bytes_per_sequence for term in found.states) <= found.fixed_bytes_per_sequence
    for state in found.states:
        assert state.bytes_per_sequence == prod(factor.value for factor in state.factors)
    assert found.bytes_per_sequence == sequence_bytes(spec, 4096, formats)
    if total:
        left, right = found.worked.split(" = ")
        worked = sum(
            prod(int(n) for n in part.split(" / ")[0].split(" x ")) / int((*part.split(" / "), "1")[1])
            for part in left.split(" + ")
        )
        assert worked == pytest.approx(total)
        assert int(re.sub(r"[^\d]", "", right)) == found.bytes_per_token
        assert len(found.formula.split(" + ")) <= len(left.split(" + "))
    else:
        assert found.worked == "0 B"
    crossing = found.exceeds_weights_at_tokens
    if crossing is not None:
        assert sequence_bytes(spec, crossing, formats) >= found.weights_bytes
        assert sequence_bytes(spec, crossing - 1, formats) < found.weights_bytes


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("stored", ["auto", "fp8", "nvfp4"])
def test_comparisons_are_with_other_caches_of_the_same_model(name: str, stored: str) -> None:
    """Each is as large as it says, no two have one name, and none is the cache as it is once more."""
    found = explained(name, **({} if stored == "auto" else {"kv_cache_dtype": stored}))
    own, *others = found.comparisons
    assert (own.name, own.ratio) == ("as it is", 1.0)
    assert (own.bytes_per_token, own.bytes_per_sequence) == (found.bytes_per_token, found.bytes_per_sequence)
    names = [each.name for each in others]
    assert len(set(names)) == len(names)
    spec, engine = load_model(name), get_engine("generic")
    for each in others:
        assert each.ratio == pytest.approx(each.bytes_per_sequence / own.bytes_per_sequence)
        dtype = {"16 bits": "bf16", "fp8": "fp8", "4 bits (nvfp4)": "nvfp4"}.get(each.name)
        if dtype is not None:
            settings, _ = resolve(spec, None, engine, {"max_model_len": 4096, "kv_cache_dtype": dtype})
            formats = engine.kv_formats(spec, settings)
            assert each.bytes_per_token == bytes_per_token(spec, formats)
            assert each.bytes_per_sequence == sequence_bytes(spec, 4096, formats)
        elif each.name.startswith("MHA"):
            assert each.ratio >= 1
        else:
            assert each.name.startswith("MQA")
            assert each.ratio <= 1
    grows = any(term.bytes_per_token for term in found.streams)
    expected = {"auto": {"fp8"}, "fp8": {"16 bits"}, "nvfp4": {"16 bits", "fp8"}}[stored]
    assert not grows or expected <= set(names)
    assert {"auto": "16 bits", "fp8": "fp8", "nvfp4": "4 bits (nvfp4)"}[stored] not in names


@pytest.mark.parametrize("name", ["llama-3.1-8b", "gemma-3-27b", "gpt-oss-20b", "qwen3-next-80b-a3b", "deepseek-v3"])
@pytest.mark.parametrize(("prompt", "output"), [(1, 1), (100, 1), (100, 37), (1000, 150)])
def test_work_is_that_of_every_step(name: str, prompt: int, output: int) -> None:
    """With the cache a token a step over all before it; without, everything again."""
    found = explain(
        load_model(name), {"max_model_len": 4096, "prompt_tokens": prompt, "output_tokens": output}, saved=True
    ).no_cache
    assert found is not None
    spec, engine = load_model(name), get_engine("generic")
    settings, _ = resolve(spec, None, engine, {"max_model_len": 4096})
    roles = rank_weights(spec, spec, weight_format(spec, "auto"), tp=1, vocab_rows=spec.vocab_size)
    stage = Stage(0, spec, True, True, sum(role.num_bytes for role in roles))
    work = of.stage_work(spec, stage, tuple(roles), engine.kv_formats(spec, settings), settings)
    body, head = of.token_parameters(work, head=False), work.head_parameters
    once = again = scores = squares = read = anew = 0
    for n in range(prompt + 1, prompt + output + 1):
        once += 2 * (body + head)
        again += 2 * (body * n + head)
        scores += int(of.attention_flops(work, n))
        squares += int(of.prefill_attention_flops(work, n))
        read += int(of.weight_bytes(work, 1) + of.kv_bytes(work, n))
        anew += int(of.weight_bytes(work, n) + 2 * of.kv_bytes(work, n))
    prefill = 2 * (body * prompt + head) + int(of.prefill_attention_flops(work, prompt))
    last = prompt + output
    assert tuple(found.with_cache) == (once, scores, read)
    assert tuple(found.without) == (again, squares, anew)
    assert found.prefill_flops == prefill
    assert found.flops_ratio == pytest.approx((again + squares + prefill) / (once + scores + prefill))
    assert found.bytes_ratio == pytest.approx(anew / read)
    longest = 2 * (body * last + head) + int(of.prefill_attention_flops(work, last))
    assert found.last_step_flops_ratio == pytest.approx(longest / (2 * (body + head) + of.attention_flops(work, last)))
    assert found.cache_bytes == of.kv_bytes(work, last) - work.state_bytes
    assert (found.prompt_tokens, found.output_tokens) == (prompt, output)


# ---- curves ----

DEPLOYMENTS: list[tuple[str, str | None, str, dict[str, Any]]] = [
    ("llama-3.1-8b", "h100-sxm", "vllm", {"max_model_len": 8192, "concurrency": 3}),
    ("llama-3.1-8b", "h100-sxm", "vllm", {"max_model_len": 8192, "data_parallel_size": 2, "concurrency": 7}),
    ("llama-3.1-70b", "h100-sxm", "vllm", {"max_model_len": 5000, "tensor_parallel_size": 4, "max_num_seqs": 32}),
    ("gemma-3-27b", "h100-sxm", "generic", {"max_model_len": 8192, "pipeline_parallel_size": 2}),
    ("gpt-oss-20b", "l40s", "sglang", {"max_model_len": 4096, "data_parallel_size": 2}),
    ("qwen3-next-80b-a3b", "b200", "vllm", {"max_model_len": 4096}),
    ("mimo-v2-flash", "b200", "vllm", {"max_model_len": 1024, "tensor_parallel_size": 4}),
    ("deepseek-v3", None, "generic", {"max_model_len": 3000}),
]


@pytest.mark.parametrize(("name", "gpu", "engine", "given"), DEPLOYMENTS, ids=[f"{c[0]}-{c[1]}" for c in DEPLOYMENTS])
def test_points_of_curves(name: str, gpu: str | None, engine: str, given: dict[str, Any]) -> None:
    spec, longest, dp = load_model(name), given["max_model_len"], given.get("data_parallel_size", 1)
    found = curves(spec, load_gpu(gpu) if gpu else None, engine, given)
    windows: dict[int, int] = {}
    for layers, mixer in spec.mixers():
        for window in {s.window for s in mixer.streams() if s.window is not None and s.window < longest}:
            windows[window] = windows.get(window, 0) + layers
    assert [tuple(knee) for knee in found.knees] == sorted(windows.items())
    lengths = {n for n in (2**i for i in range(40)) if n < longest} | {longest} | set(windows)
    shown = [at.tokens for at in found.lengths]
    assert shown == sorted(shown)
    assert set(shown) <= lengths
    assert {n for n in lengths if n >= min(shown)} == set(shown)
    made = plan(name, gpu=gpu, engine=engine, **given)
    assert found.lengths[-1].bytes == made.kv.bytes_per_sequence
    assert found.lengths[-1].bytes_per_gpu == made.kv.bytes_per_sequence_per_gpu
    if gpu is None:
        assert (found.batches, found.works, found.roof, found.most_requests) == ((), (), None, None)
        return
    decode, prefill, capacity = made.decode, made.prefill, made.capacity
    assert decode is not None
    assert prefill is not None
    assert capacity is not None
    limit = made.inputs["max_num_seqs"]
    assert found.max_num_seqs == (limit * dp if limit else None)
    assert found.context == decode.context
    assert found.ridge_requests == decode.ridge_batch * dp  # type: ignore[operator]
    assert found.ceiling_tokens_per_second == pytest.approx(decode.ceiling_tokens_per_second)
    batches = {batch.requests: batch for batch in found.batches}
    assert list(batches) == sorted(batches)
    most = found.most_requests
    assert most is not None
    for marked in (decode.batch * dp, found.ridge_requests, most // dp * dp):
        assert marked in batches or marked > 16_384 * dp or not marked
    for requests, batch in batches.items():
        each = requests // dp
        assert each & (each - 1) == 0 or requests in (decode.batch * dp, found.ridge_requests, most // dp * dp)
        assert batch.tokens_per_second == pytest.approx(requests / batch.seconds_per_step)
        assert batch.tokens_per_second_per_request == pytest.approx(1 / batch.seconds_per_step)
        assert batch.holds is (requests <= most)
    here = batches[decode.batch * dp]
    assert here.seconds_per_step == pytest.approx(decode.seconds_per_step)
    assert here.bound == decode.bound
    if made.verdict.fits:
        for count, fits in ((most, True), (most + dp, False)):
            free = {} if not limit else {"max_num_seqs": limit}
            assert plan(name, gpu=gpu, engine=engine, **{**given, **free, "concurrency": count}).verdict.fits is fits
    *decoded, prompt = found.works
    at_work = {work.name: work for work in decoded}
    flops = decode.arithmetic_intensity * (decode.weight_bytes + decode.kv_bytes)
    asked = at_work[f"decode, batch {decode.batch:,}"]
    assert asked.intensity == pytest.approx(decode.arithmetic_intensity)
    assert asked.flops_per_second == pytest.approx(flops / decode.seconds_per_step)
    assert set(at_work) == {f"decode, batch {n:,}" for n in (1, decode.batch, decode.ridge_batch)}
    assert prompt.name == f"prefill of {prefill.tokens:,}"
    stages = given.get("pipeline_parallel_size", 1)
    assert prompt.flops_per_second == pytest.approx(prefill.flops / stages / prefill.seconds)

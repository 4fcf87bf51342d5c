"""Speed: what a step reads, the laws of the roofline, and figures measured elsewhere."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as limits
from hypothesis import strategies as st

from kvplan import load_gpu, load_model, plan
from kvplan.cache.bytes import edge_surplus, sequence_bytes
from kvplan.engines import get_engine
from kvplan.planning.drafts import served_model
from kvplan.planning.evaluate import evaluate
from kvplan.planning.plan import Plan
from kvplan.planning.settings import resolve
from kvplan.planning.speed import decode, load, prefill, speculation
from kvplan.planning.speed import work as of
from kvplan.planning.speed.figures import Setup, setup
from kvplan.planning.speed.profile import Lengths, profile
from kvplan.planning.speed.rates import join
from kvplan.spec.formats import format_names
from kvplan.spec.gpu import GpuSpec
from kvplan.spec.kind import Read

H200 = json.loads((Path(__file__).parent.parent / "data" / "speed" / "h200.json").read_text(encoding="utf-8"))
FULL = ("llama-3.1-8b", "llama-2-7b", "qwen3-32b", "falcon-40b")
MIXED = (
    "llama-3.1-8b", "deepseek-v3", "deepseek-v3.2", "deepseek-v4-flash", "gemma-3-27b", "gemma-3n-e4b", "gpt-oss-20b",
    "llama-4-scout", "qwen3-next-80b-a3b", "falcon-h1-7b", "whisper-large-v3", "rwkv-7-g1-7.2b",
)  # fmt: skip


@cache
def deployment(model: str = "llama-3.1-8b", gpu: str = "h200-sxm", engine: str = "generic", **given: Any) -> Setup:
    found = built(load_model(model), load_gpu(gpu), engine, given)
    assert isinstance(found, Setup)
    return found


def built(spec: Any, device: GpuSpec, engine: str, given: dict[str, Any]) -> Setup | str:
    chosen = get_engine(engine)
    settings, _ = resolve(spec, device, chosen, {"max_model_len": 8192, **given})
    spec = served_model(spec, chosen, settings)
    return setup(spec, device, chosen, evaluate(spec, device, chosen, settings))


def seconds(made: Setup, batch: int, context: int) -> float:
    return float(decode.step(made.works, made.rates, made.layout, batch, context).seconds)


# ---- what is read ----


@given(st.sampled_from(FULL), st.integers(1, 2**20), st.sampled_from(list(format_names("cache"))))
def test_full_attention_reads_what_it_holds(name: str, tokens: int, fmt: str) -> None:
    spec = load_model(name)
    settings, _ = resolve(spec, None, get_engine("generic"), {"kv_cache_dtype": fmt, "max_model_len": 8192})
    formats = get_engine("generic").kv_formats(spec, settings)
    work = deployment(name).works[0]._replace(formats=formats, edge_bytes=edge_surplus(spec, formats))
    assert of.kv_bytes(work, tokens) == sequence_bytes(spec, tokens, formats)


def test_kv_reads_of_a_70b_at_4k() -> None:
    mha = sum(layers for layers, _ in load_model("llama-3.1-70b").mixers()) * 2 * 64 * 128 * 2 * 4096
    bf16 = of.kv_bytes(deployment("llama-3.1-70b", gpu="b200").works[0], 4096)
    fp8 = of.kv_bytes(deployment("llama-3.1-70b", gpu="b200", kv_cache_dtype="fp8").works[0], 4096)
    assert (bf16, mha // bf16, bf16 // fp8) == (327_680 * 4096, 8, 2)


def test_windows_cap_what_is_read() -> None:
    work = deployment("gemma-3-27b").works[0]
    full = 10 * 2 * 16 * 128 * 2
    assert of.kv_bytes(work, 100_001) - of.kv_bytes(work, 100_000) == full


def test_sparse_attention_reads_its_top_rows_and_every_index_key() -> None:
    spec = load_model("deepseek-v3.2")
    work = deployment("deepseek-v3.2", kv_cache_dtype="bf16").works[0]
    layers = spec.num_layers
    assert of.kv_bytes(work, 50_000) == layers * (2048 * 576 * 2 + 50_000 * 128 * 2)
    assert of.kv_bytes(work, 1000) == sequence_bytes(spec, 1000, work.formats)


def test_shared_caches_are_read_by_every_layer() -> None:
    spec = load_model("gemma-3n-e4b")
    work = deployment("gemma-3n-e4b").works[0]
    assert of.kv_bytes(work, 4096) > sequence_bytes(spec, 4096, work.formats)


def test_states_are_read_and_written() -> None:
    spec = load_model("rwkv-7-g1-7.2b")
    work = deployment("rwkv-7-g1-7.2b").works[0]
    assert of.kv_bytes(work, 12_345) == 2 * sequence_bytes(spec, 1, work.formats)


def test_a_step_reads_all_weights_but_the_embedding() -> None:
    spec = load_model("llama-3.1-8b")
    table = spec.vocab_size * spec.hidden_size
    work = deployment().works[0]
    assert of.weight_bytes(work, 1) == 2 * (spec.parameters - table)
    tied = load_model("llama-3.2-1b")
    assert of.weight_bytes(deployment("llama-3.2-1b").works[0], 1) == 2 * tied.parameters


def test_experts_are_read_as_far_as_tokens_touch_them() -> None:
    spec = load_model("mixtral-8x7b")
    work = deployment("mixtral-8x7b").works[0]
    (experts,) = work.experts
    one, many = of.weight_bytes(work, 1), of.weight_bytes(work, 10_000)
    assert one == work.weight_bytes + experts.num_bytes // 4
    assert many == work.weight_bytes + experts.num_bytes
    expected = np.mean([len({*np.random.default_rng(i).choice(8, 2, False), *np.random.default_rng(~i & 0xFFFF).choice(8, 2, False)}) for i in range(4000)])  # fmt: skip  # noqa: E501
    assert experts.touched(2) * 8 == pytest.approx(expected, rel=0.01)
    assert of.token_parameters(work) == pytest.approx(spec.active_parameters - spec.vocab_size * spec.hidden_size)


@pytest.mark.parametrize(
    "layout", [{"tensor_parallel_size": 8}, {"tensor_parallel_size": 4, "pipeline_parallel_size": 2}]
)
def test_ranks_share_the_work(layout: dict[str, int]) -> None:
    alone, shared = deployment("llama-3.1-70b", gpu="b200"), deployment("llama-3.1-70b", gpu="b200", **layout)
    tp = layout["tensor_parallel_size"]
    assert tp * sum(of.kv_bytes(w, 4096) for w in shared.works) == of.kv_bytes(alone.works[0], 4096)
    assert tp * sum(of.token_parameters(w) for w in shared.works) == pytest.approx(of.token_parameters(alone.works[0]), rel=1e-3)  # fmt: skip  # noqa: E501


def test_expert_parallel_replicas_split_experts_and_tokens() -> None:
    spec = load_model("deepseek-v3")
    alone = deployment("deepseek-v3", gpu="b200").works[0]
    dealt = deployment("deepseek-v3", gpu="b200", data_parallel_size=8, enable_expert_parallel=True).works[0]
    assert sum(e.num_bytes for e in dealt.experts) * 8 == sum(e.num_bytes for e in alone.experts)
    assert of.token_parameters(dealt) == of.token_parameters(alone)
    assert dealt.experts[0].experts == spec.blocks[spec.layers[-1]].ffns[0].experts  # type: ignore[attr-defined]


# ---- prefill's sums ----


def prefill_step(read: Read, tokens: int) -> int:
    """FLOPs of one more token of a prompt: with more before it than it reads, those of `beyond_flops`."""
    beyond = read.beyond_flops is not None and read.limit is not None and tokens > read.limit * read.stream.ratio
    return read.entries(tokens) * (read.beyond_flops if beyond else read.prefill_flops)  # type: ignore[operator]


@given(st.sampled_from(MIXED), st.integers(1, 300))
@limits(max_examples=60)
def test_prefill_attention_is_the_sum_of_its_steps(name: str, tokens: int) -> None:
    for _, mixer in load_model(name).mixers():
        if mixer.kind == "mla" and mixer.index_topk:  # type: ignore[attr-defined]
            mixer = replace(mixer, index_topk=97)  # type: ignore[type-var]
        steps = sum(sum(prefill_step(r, i) for r in mixer.reads()) for i in range(1, tokens + 1))
        assert mixer.prefill_flops(tokens) == steps + tokens * mixer.state_flops()


def test_causal_attention_is_half_of_the_square() -> None:
    n = 65_536
    square = 32 * 2 * 32 * (128 + 128) * n * n
    assert of.prefill_attention_flops(deployment().works[0], n) == pytest.approx(square / 2, rel=1e-4)


# ---- laws of time ----


@given(st.sampled_from(MIXED), st.integers(1, 512), st.integers(1, 8000))
@limits(max_examples=60, deadline=None)
def test_no_step_is_faster_than_its_bytes_or_its_flops(name: str, batch: int, context: int) -> None:
    made = deployment(name, gpu="b200")
    parts = decode.step(made.works, made.rates, made.layout, batch, context)
    assert parts.seconds >= parts.memory
    assert parts.seconds >= parts.compute
    assert seconds(made, batch + 1, context) >= parts.seconds * (1 - 1e-12)


def test_throughput_rises_to_the_ridge_and_is_flat_beyond() -> None:
    made = deployment()
    ridge = decode.ridge_batch(made.works, made.rates, made.layout)
    assert ridge is not None
    assert 140 <= ridge <= 260  # measured on this GPU: about 200
    top = decode.ceiling(made.works, made.rates, made.layout, 16)
    assert top is not None

    def per_second(batch: int) -> float:
        return batch / seconds(made, batch, 16)

    assert per_second(ridge // 8) / per_second(ridge // 16) > 1.9
    assert per_second(4 * ridge) / per_second(2 * ridge) < 1.25
    assert per_second(64 * ridge) == pytest.approx(top, rel=0.05)
    assert all(per_second(2 * b) > per_second(b) for b in (1, 16, ridge, 8 * ridge))


def test_half_of_the_ceiling_is_reached_at_the_saturation_batch() -> None:
    made = deployment()
    for context in (16, 1024, 8192):
        batch = decode.saturation_batch(made.works, made.rates, made.layout, context)
        top = decode.ceiling(made.works, made.rates, made.layout, context)
        assert batch is not None
        assert top is not None
        assert batch / seconds(made, batch, context) >= top / 2 > (batch - 1) / seconds(made, batch - 1, context)


def test_twice_the_bandwidth_halves_decode_and_leaves_prefill() -> None:
    once = plan("llama-3.1-70b", gpu="h200-sxm", engine="generic", max_model_len=8192, weights="fp8", concurrency=16)
    gpu = replace(load_gpu("h200-sxm"), bandwidth_bytes_per_second=2 * 4_800_000_000_000)
    twice = plan("llama-3.1-70b", gpu=gpu, engine="generic", max_model_len=8192, weights="fp8", concurrency=16)
    before, after = speeds(once), speeds(twice)
    assert before[0].parts.memory / after[0].parts.memory == pytest.approx(2)
    latency = before[0].parts.latency
    assert (before[0].seconds_per_step - latency) / (after[0].seconds_per_step - latency) == pytest.approx(2, rel=0.02)
    assert after[1].seconds == pytest.approx(before[1].seconds, rel=0.02)
    assert (before[0].bound, before[1].bound) == ("memory", "compute")


def speeds(found: Plan) -> tuple[Any, Any]:
    assert found.decode is not None
    assert found.prefill is not None
    return found.decode, found.prefill


def test_join_is_soft_and_never_below_either() -> None:
    assert join(1.0, 1.0, 3) == pytest.approx(2 ** (1 / 3))
    assert join(1.0, 100.0, 3) == pytest.approx(100, rel=1e-6)


@pytest.mark.parametrize(
    "name", ["llama-3.1-8b", "gemma-3-27b", "deepseek-v3.2", "qwen3-next-80b-a3b", "llama-4-scout"]
)
def test_arrays_give_what_single_numbers_give(name: str) -> None:
    made = deployment(name, gpu="b200", engine="vllm", tensor_parallel_size=2)
    batches, contexts = np.array([1, 7, 64, 512]), np.array([1, 300, 5000, 100_000])
    grid = decode.step(made.works, made.rates, made.layout, batches, contexts)
    prompts = prefill.prompt(made.works, made.rates, made.layout, contexts, 8192)
    traffic = profile(made, Lengths(1000, 256))
    steady = load.in_loop(traffic, batches, 1000)
    assert prompts is not None
    for i, (batch, context) in enumerate(zip(batches.tolist(), contexts.tolist(), strict=True)):
        one = decode.step(made.works, made.rates, made.layout, batch, context)
        assert [grid.seconds[i], grid.memory[i], grid.compute[i]] == pytest.approx(
            [one.seconds, one.memory, one.compute]
        )
        alone = prefill.prompt(made.works, made.rates, made.layout, context, 8192)
        assert alone is not None
        assert prompts.seconds[i] == pytest.approx(alone.seconds)
        assert prompts.flops[i] == pytest.approx(alone.flops)
        single = load.in_loop(traffic, batch, 1000)
        assert [steady.seconds_per_step[i], steady.seconds_to_first_token[i]] == pytest.approx(
            [single.seconds_per_step, single.seconds_to_first_token], rel=1e-3
        )


def test_tensor_parallel_steps_pay_for_messages() -> None:
    alone, shared = deployment(), deployment(tensor_parallel_size=2)
    parts = decode.step(shared.works, shared.rates, shared.layout, 1, 16)
    assert parts.memory < decode.step(alone.works, alone.rates, alone.layout, 1, 16).memory * 0.51
    assert parts.communication >= 64 * shared.rates.short_seconds
    crowd = decode.step(shared.works, shared.rates, shared.layout, 70_000, 16)
    more = decode.step(shared.works, shared.rates, shared.layout, 71_000, 16)
    moved = (more.communication - crowd.communication) * shared.rates.link_bandwidth
    assert moved == pytest.approx(1000 * (64 * 4096 * 2 + 128_256 // 2 * 2), rel=1e-6)


def test_a_pipeline_serves_a_batch_in_micro_batches() -> None:
    alone = deployment("llama-3.1-70b", gpu="b200")
    made = deployment("llama-3.1-70b", gpu="b200", pipeline_parallel_size=4)
    one = seconds(made, 1, 16)
    assert one == pytest.approx(seconds(alone, 1, 16), rel=0.02)  # a single stream gains nothing
    assert seconds(made, 4, 16) < 1.15 * one
    top = decode.ceiling(alone.works, alone.rates, alone.layout, 16)
    piped = decode.ceiling(made.works, made.rates, made.layout, 16)
    assert top is not None
    assert piped is not None
    assert 3 < piped / top <= 4


def test_expected_tokens_of_speculation() -> None:
    assert speculation.expected_tokens(0.0, 4) == 1
    assert speculation.expected_tokens(0.5, 2) == 1 + 0.5 + 0.25
    made = deployment(engine="vllm")
    assert 1 <= speculation.break_even(made, 1, 512, 4) < 1.1
    assert speculation.break_even(made, 512, 512, 4) > 2


# ---- gaps ----


def test_a_gpu_without_flops_has_no_prefill_and_says_so() -> None:
    gpu = replace(load_gpu("h200-sxm"), bf16_flops=None, fp16_flops=None, fp8_flops=None, fp4_flops=None, int8_ops=None)
    found = plan("llama-3.1-8b", gpu=gpu, max_model_len=8192)
    assert found.prefill is None
    assert found.decode is not None
    assert (found.decode.bound, found.decode.ridge_batch, found.decode.ceiling_tokens_per_second) == (None, None, None)
    assert found.decode.seconds_per_step > 0
    assert any("FLOPs" in w for w in found.warnings)


def test_without_a_bandwidth_or_a_gpu_there_is_no_speed() -> None:
    gpu = replace(load_gpu("h200-sxm"), bandwidth_bytes_per_second=None)
    found = plan("llama-3.1-8b", gpu=gpu, max_model_len=8192)
    assert (found.decode, found.prefill) == (None, None)
    assert any("--gpu-bandwidth" in w for w in found.warnings)
    assert plan("llama-3.1-8b", max_model_len=8192).to_dict()["decode"] is None


def test_layers_in_host_memory_have_no_speed() -> None:
    found = plan("llama-3.1-8b", gpu="rtx-4090", engine="llama.cpp", ctx_size=4096, n_gpu_layers="10")
    assert found.decode is None
    assert any("host memory" in w for w in found.warnings)


# ---- measured elsewhere ----


@pytest.mark.parametrize("row", H200["steps"]["rows"], ids=lambda r: f"{r['batch']}x{r['context']}")
def test_steps_of_an_h200(row: dict[str, Any]) -> None:
    predicted = seconds(deployment(), row["batch"], row["context"]) * 1e3
    for measured in (row["plain_ms"], *row["compiled_ms"]):
        assert predicted == pytest.approx(measured, rel=0.15)


def test_bounds_hold_the_point_between_them() -> None:
    decoded, prompt = speeds(plan("llama-3.1-8b", gpu="h100-sxm", max_model_len=8192, concurrency=8))
    assert decoded.low < decoded.tokens_per_second < decoded.high
    assert prompt.low_seconds < prompt.seconds < prompt.high_seconds
    assert decoded.tokens_per_second == pytest.approx(8 / decoded.seconds_per_step)


def test_kernels_that_are_slower_than_the_memory_are_no_bound_by_memory() -> None:
    """llama.cpp's multiprocessors unpack slower than an H100 reads: more bandwidth brings little, and it says so."""
    from dataclasses import replace

    from kvplan import load_gpu, plan

    card = load_gpu("h100-sxm")
    fast = replace(card, bandwidth_bytes_per_second=2 * (card.bandwidth_bytes_per_second or 0))
    for engine, bound in (("llama.cpp", "compute"), ("vllm", "memory")):
        one, two = (plan("llama-3.1-8b", gpu=g, engine=engine, max_model_len=8192).decode for g in (card, fast))
        assert one is not None
        assert two is not None
        assert one.bound == bound
        assert (one.seconds_per_step < 1.2 * two.seconds_per_step) is (bound == "compute")
    many = plan("llama-3.1-8b", gpu=card, engine="llama.cpp", max_model_len=512, prompt_tokens=64, output_tokens=2)
    assert many.decode is not None
    assert many.prefill is not None
    assert many.decode.ceiling_tokens_per_second is not None
    assert many.decode.ceiling_tokens_per_second < 1.2 * card.sm_count * 0.8e12 / (2 * many.model.parameters)  # type: ignore[operator]

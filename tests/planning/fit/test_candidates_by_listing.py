"""What a search tries, against lists made by hand; moments of lengths against the lengths themselves."""

from __future__ import annotations

from itertools import product
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as limits
from hypothesis import strategies as st

from kvplan import load_gpu, load_model
from kvplan.catalog import gpu_ids
from kvplan.engines import distinct, get_engine
from kvplan.errors import KvplanError
from kvplan.planning.fit.ask import Ask, check
from kvplan.planning.fit.candidates import Layout, cache_formats, engines_for, lacks, layouts, serving, weight_formats
from kvplan.planning.speed.profile import Lengths
from kvplan.planning.workload_lengths import Distribution, of_trace, read_lengths

FLAG = "--prompt-tokens"
MODELS = ("llama-3.1-8b", "llama-3.1-70b", "deepseek-v3", "gpt-oss-20b", "qwen3-30b-a3b", "falcon-7b", "smollm2-135m")


def legal(name: str, tp: int) -> bool:
    """Whether heads divide, or KV heads are copied whole."""
    spec = load_model(name)
    from kvplan.cache.sharding import shard_model

    try:
        shard_model(spec, tp=tp)
    except KvplanError:
        return False
    return True


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("engine", ["vllm", "llama.cpp", "sglang"])
@pytest.mark.parametrize(
    "pinned",
    [
        {}, {"tensor_parallel_size": 2}, {"pipeline_parallel_size": 3}, {"data_parallel_size": 2},
        {"tensor_parallel_size": 2, "pipeline_parallel_size": 2}, {"enable_expert_parallel": True},
        {"tensor_parallel_size": 8, "decode_context_parallel_size": 2}, {"decode_context_parallel_size": 1},
    ],
    ids=lambda pinned: "-".join(pinned) or "free",
)  # fmt: skip
def test_layouts_are_those_of_a_list(name: str, engine: str, pinned: dict[str, Any]) -> None:
    """Ranks that divide the model; stages within eight GPUs or of the widest ranks; replicas of one rank or of all."""
    spec, own = load_model(name), get_engine(engine)
    splits = own.splits_tensors
    sizes = [n for n in (1, 2, 4, 8) if legal(name, n)] if splits else [1]
    widest = max(sizes)
    if "tensor_parallel_size" in pinned:
        sizes = [pinned["tensor_parallel_size"]]
        widest = sizes[0]
    stages = [pinned["pipeline_parallel_size"]] if "pipeline_parallel_size" in pinned else [1, 2, 4, 8]
    stages = [n for n in stages if n <= spec.num_layers]
    routed = any(ffn.kind == "moe" for block in spec.blocks.values() for ffn in block.ffns)
    heads = max(stream.heads for _, mixer in spec.mixers() for stream in mixer.streams())
    expected: set[Layout] = set()
    for tp, pp in product(sizes, stages):
        if tp * pp > 8 and tp != widest and "pipeline_parallel_size" not in pinned:
            continue
        found = [Layout(tp, pp)]
        if splits and (pp == 1 or "pipeline_parallel_size" in pinned):
            if tp > heads and tp // heads > 1 and "decode_context_parallel_size" not in pinned:
                found.append(Layout(tp, pp, dcp=tp // heads))
            if routed and tp in (1, widest) and "data_parallel_size" not in pinned:
                found += [Layout(tp, pp, dp, 1, True) for dp in (2, 4, 8, 16)]
        if "data_parallel_size" in pinned:
            found = [each._replace(dp=pinned["data_parallel_size"]) for each in found]
        if "decode_context_parallel_size" in pinned:
            found = [each._replace(dcp=pinned["decode_context_parallel_size"]) for each in found]
        if "enable_expert_parallel" in pinned:
            found = [each._replace(expert_parallel=True) for each in found]
        expected |= {each for each in found if each.tp * each.pp * each.dp <= 64 or pinned}
    answer = layouts(spec, own, pinned)
    assert set(answer) == expected
    assert len(answer) == len(expected)
    assert all(isinstance(size, int) for each in answer for size in each[:4])
    assert [each.world for each in answer] == sorted(each.tp * each.pp * each.dp for each in expected)


def test_a_layout_says_what_differs_from_one_gpu() -> None:
    assert Layout().settings() == {}
    assert Layout(2, 3, 4, 2, True).settings() == {
        "tensor_parallel_size": 2, "pipeline_parallel_size": 3, "data_parallel_size": 4,
        "decode_context_parallel_size": 2, "enable_expert_parallel": True,
    }  # fmt: skip
    assert Layout(1, 2).settings() == {"pipeline_parallel_size": 2}
    assert Layout(2, 3, 4).world == 24


@pytest.mark.parametrize("name", gpu_ids())
def test_formats_that_nobody_asked_for_need_units_or_kernels(name: str) -> None:
    """fp8 where a device multiplies it or vLLM unpacks it: weights from capability 7.5, caches 8.0, latent ones 8.9."""
    gpu = load_gpu(name)
    capability = float(gpu.compute_capability or 0) if gpu.vendor == "nvidia" else 0.0
    whole = gpu.vendor == "apple" or bool(gpu.fp8_flops)
    own = get_engine("vllm").unpacks_fp8
    for cache, latent, key in (
        (False, False, "weights"), (True, False, "cache"), (True, True, "latent"),
    ):  # fmt: skip
        least = own.get(key)
        there = whole or (least is not None and capability >= least)
        assert (lacks("vllm", gpu, "fp8", cache=cache, latent=latent) == "") is there
        assert lacks("vllm", gpu, "auto", cache=cache, latent=latent) == ""
    old = gpu.vendor == "nvidia" and 0 < capability < 7.5
    assert (lacks("vllm", gpu, "awq") == "no kernels for 4-bit weights") is old
    assert lacks("vllm", gpu, "bf16") == ""


def test_the_engine_of_a_device_is_the_usual_one_or_what_was_asked_for() -> None:
    for name in gpu_ids():
        gpu = load_gpu(name)
        assert engines_for(gpu, ()) == ["mlx" if gpu.vendor == "apple" else "vllm"]
        asked = ("vllm@0.20.0", "mlx", "llama.cpp", "tensorrt-llm")
        assert engines_for(gpu, asked) == [each for each in asked if get_engine(each).takes(gpu)]
    assert serving() == tuple(name for name in distinct() if name != "generic")


@pytest.mark.parametrize("name", ["llama-3.1-8b", "gpt-oss-20b", "deepseek-v3"])
def test_smaller_formats_are_smaller_by_a_tenth(name: str) -> None:
    """16 bits a weight, and checkpoints of 8 and of 4: only what takes less than nine tenths is tried."""
    bits = {"bf16": 16.0, "fp8": 8.0, "mxfp4": 4.25, "awq": 4.16, "int4": 4.16, "nvfp4": 4.5}
    spec, engine = load_model(name), get_engine("vllm")
    own = spec.checkpoint.format if spec.checkpoint is not None else spec.dtype
    known = next(size for stem, size in bits.items() if own.startswith(stem))
    expected = ["auto", *(each for each in engine.smaller_weights if bits[each] < 0.9 * known)]
    assert weight_formats(spec, engine, ()) == expected
    assert weight_formats(spec, engine, ("fp8", "bf16")) == ["fp8", "bf16"]
    assert cache_formats(engine, ()) == ["auto", engine.smaller_kv_formats[0]]
    assert cache_formats(engine, ("fp8", "auto")) == ["fp8", "auto"]


# ---- what is asked ----


def asked(**given: Any) -> Ask:
    prompt, output = given.pop("prompt", 1000), given.pop("output", 101)
    both = (Distribution(n, 0.0, n, str(n)) for n in (prompt, output))
    return Ask(Lengths(prompt, output), *both, prompt + output, **given)


@pytest.mark.parametrize("over", [-1, 0, 1])
def test_a_request_as_long_as_is_taken_is_taken(over: int) -> None:
    spec = load_model("llama-3.1-8b")
    for given_, prompt in (({}, 131_072 - 101), ({"settings": {"max_model_len": 4096}}, 4096 - 101)):
        question = asked(prompt=prompt + over, concurrency=1, **given_)
        if over > 0:
            with pytest.raises(KvplanError, match="are over the"):
                check(question, spec)
        else:
            check(question, spec)


@pytest.mark.parametrize("rate", [0.5, 3.0])
def test_littles_law_between_targets(rate: float) -> None:
    """A request of 101 tokens may take 0.5 s and a hundred times 20 ms: 2.5 s, so rate x 2.5 are under way at most."""
    spec, most = load_model("llama-3.1-8b"), rate * 2.5
    for concurrency in (int(most), int(most) + 1, int(most) + 2):
        question = asked(request_rate=rate, concurrency=concurrency, ttft=0.5, tpot=0.02)
        assert question.limits.request == pytest.approx(concurrency / rate)
        if concurrency > most:
            with pytest.raises(KvplanError, match="Little's law") as refused:
                check(question, spec)
            assert f"last {concurrency / rate:.4g} s each" in refused.value.message
            assert "allows 2.5 s" in refused.value.message
            assert refused.value.hint == f"leave it out, or at most {max(1, int(most))}"
        else:
            check(question, spec)
    for alone in ({"ttft": 0.5}, {"tpot": 0.02}, {"ttft": 0.5, "tpot": 0.02, "request_rate": None}):
        check(asked(**{"request_rate": rate, "concurrency": 999, **alone}), spec)
    assert asked(concurrency=9).limits.request is None
    assert asked(request_rate=9.0).limits.request is None


def test_one_token_has_no_time_between_tokens() -> None:
    spec = load_model("llama-3.1-8b")
    with pytest.raises(KvplanError, match=r"allows 0\.5 s"):
        check(asked(output=1, request_rate=1.0, concurrency=1, ttft=0.5, tpot=9.0), spec)
    check(asked(output=2, request_rate=1.0, concurrency=1, ttft=0.5, tpot=9.0), spec)


# ---- lengths ----


@limits(max_examples=40)
@given(low=st.integers(0, 3000), span=st.integers(0, 9000))
def test_a_uniform_is_the_middle_and_the_twelfth_of_its_square(low: int, span: int) -> None:
    found = read_lengths(f"uniform:min={low},max={low + span}", FLAG)
    drawn = np.linspace(low, low + span, 20_001)
    assert found.mean == max(1, round(low + span / 2))
    assert found.longest == max(1, low + span)
    if low + span:
        assert found.cv == pytest.approx(drawn.std() / drawn.mean(), rel=1e-3, abs=1e-9)
    else:
        assert found.cv == 0


@limits(max_examples=40)
@given(st.lists(st.tuples(st.integers(1, 99), st.integers(1, 5000)), min_size=1, max_size=5))
def test_percentiles_are_joined_by_lines(points: list[tuple[int, int]]) -> None:
    """Moments of as many lengths as one likes, taken evenly over the shares."""
    shares = sorted({p for p, _ in points})
    lengths = sorted(n for _, n in points)[: len(shares)]
    text = ",".join(f"p{p}={n}" for p, n in zip(shares, lengths, strict=True))
    found = read_lengths(f"percentiles:{text}", FLAG)
    grid = (np.arange(200_000) + 0.5) / 2000
    drawn = np.interp(grid, [0, *shares, 100], [1, *lengths, lengths[-1]])
    assert found.mean == pytest.approx(drawn.mean(), abs=0.51)
    assert found.cv == pytest.approx(drawn.std() / drawn.mean(), rel=2e-3, abs=2e-3)
    assert found.longest == lengths[-1]
    ends = read_lengths(f"percentiles:p0=1,{text.replace('p99=', 'p99.5=')},p100=9000", FLAG)
    assert ends.longest == 9000


@pytest.mark.parametrize(
    ("text", "good"),
    [
        ("percentiles:p0=1,p100=2", True), ("percentiles:p100=2", True), ("percentiles:p101=2", False),
        ("percentiles:p-1=2", False), ("percentiles:p+5=2", False), ("percentiles:p50=2,p50.0=3", False),
        ("percentiles:p50=3,p60=3", True), ("percentiles:p50=3,p60=2", False), ("lognormal:mean=5,cv=100", True),
        ("lognormal:mean=5,cv=100.5", False), ("lognormal:mean=5,cv=0", True), ("uniform:min=5,max=5", True),
        ("uniform:min=6,max=5", False), ("uniform:min=0,max=0", True), ("uniform:min=1,max=2,p50=3", False),
        ("lognormal:cv=1", False), ("lognormal:mean=5,cv=1,cv=1", False), ("percentiles:p50", False), ("0", True),
    ],
)  # fmt: skip
def test_lengths_at_their_limits(text: str, good: bool) -> None:
    if good:
        assert read_lengths(text, FLAG).longest >= 0
    else:
        with pytest.raises(KvplanError) as refused:
            read_lengths(text, FLAG)
        assert refused.value.where == FLAG


@pytest.mark.parametrize("arrivals", [[0.0, 1.0, 4.0], [0.0, 0.0, 0.0], [5.0], [0.0, 2.0]])
def test_a_trace_has_its_own_moments(arrivals: list[float]) -> None:
    class Trace(SimpleNamespace):
        def __len__(self) -> int:
            return len(arrivals)

    prompts = np.array([100, 350, 40][: len(arrivals)])
    outputs = np.array([7, 1, 90][: len(arrivals)])
    trace = Trace(prompts=prompts, outputs=outputs, arrivals=np.array(arrivals), timed=True)
    found = of_trace(trace)
    assert found.longest == max(p + o for p, o in zip(prompts, outputs, strict=True))
    assert (found.prompts.mean, found.prompts.longest) == (round(prompts.mean()), prompts.max())
    assert found.outputs.cv == pytest.approx(outputs.std() / outputs.mean())
    span = arrivals[-1]
    expected = (len(arrivals) - 1) / span if span and len(arrivals) > 1 else None
    assert found.requests_per_second == expected
    assert found.requests == len(arrivals)


def test_sizes_that_are_tried() -> None:
    """Powers of two: up to a node of eight for tensors and stages, up to two nodes of replicas that share experts."""
    from kvplan.planning.fit.candidates import MOST_RANKS, REPLICAS, SIZES

    assert (SIZES, REPLICAS, MOST_RANKS) == ((1, 2, 4, 8), (2, 4, 8, 16), 64)

"""All advice of a deployment that does not hold, against trying every change that there is, one after the other."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from kvplan import load_gpu, load_model, plan
from kvplan.cache.sharding import legal_sizes
from kvplan.engines import get_engine
from kvplan.errors import KvplanError
from kvplan.planning import planner
from kvplan.planning.plan import Plan

MEMORY: list[tuple[str, str, str, dict[str, Any]]] = [
    ("llama-3.1-8b", "l4", "vllm", {}),
    ("llama-3.1-8b", "l4", "vllm", {"max_model_len": 8192, "concurrency": 300}),
    ("llama-3.1-8b", "l4", "vllm", {"max_model_len": 90_000, "prompt_tokens": 80_000, "concurrency": 2}),
    ("llama-3.1-8b", "l4", "vllm", {"max_model_len": 8192, "kv_cache_dtype": "fp8", "concurrency": 300}),
    ("llama-3.1-8b", "l4", "vllm", {"max_model_len": 8192, "gpus": 2, "concurrency": 300}),
    ("llama-3.1-8b", "l4", "vllm", {"max_model_len": 8192, "data_parallel_size": 2, "concurrency": 300}),
    ("llama-3.1-8b", "l4", "vllm", {"max_model_len": 4096, "prompt_tokens": 5000, "output_tokens": 100}),
    ("llama-3.1-8b", "l4", "vllm", {"max_model_len": 4096, "gpu_memory_utilization": 0.4}),
    ("llama-3.1-8b", "l4", "vllm", {"max_model_len": 131_072, "kv_cache_memory_bytes": 2**30}),
    ("llama-3.1-70b", "h100-sxm", "vllm", {"max_model_len": 8192, "weights": "bf16"}),
    ("llama-3.1-70b", "l4", "vllm", {"max_model_len": 8192, "tensor_parallel_size": 4}),
    ("llama-3.1-405b", "h100-sxm", "vllm", {"max_model_len": 8192}),
    ("llama-3.1-405b", "l4", "vllm", {"max_model_len": 8192, "weights": "bf16"}),
    ("gemma-3-27b", "l40s", "sglang", {"max_model_len": 8192}),
    ("mixtral-8x7b", "l40s", "generic", {"max_model_len": 32_768, "pipeline_parallel_size": 2, "concurrency": 90}),
    ("qwen3-14b", "l40s", "tensorrt-llm", {"max_model_len": 40_000, "concurrency": 90}),
    ("qwen3-32b", "rtx-4090", "llama.cpp", {"weights": "q8_0", "ctx_size": 8192, "parallel": 1, "n_gpu_layers": "all"}),
    ("nemotron-h-8b", "l4", "vllm", {"max_model_len": 8192, "max_num_seqs": 1024}),
]  # fmt: skip
FLAGS = {
    "--tensor-parallel-size": "tensor_parallel_size", "--pipeline-parallel-size": "pipeline_parallel_size",
    "--weights": "weights", "--kv-cache-dtype": "kv_cache_dtype", "--concurrency": "concurrency",
    "--prompt-tokens": "prompt_tokens", "--data-parallel-size": "data_parallel_size", "--gpus": "gpus",
    "--gpu-memory-utilization": "gpu_memory_utilization", "--max-num-seqs": "max_num_seqs",
}  # fmt: skip


class Trying:
    """A deployment with changes, without any advice of its own."""

    def __init__(self, name: str, gpu: str, engine: str, given: dict[str, Any]) -> None:
        self.name, self.gpu, self.engine, self.given = name, load_gpu(gpu), engine, given
        self.model, self.own = load_model(name), get_engine(engine)

    def __call__(self, **changes: Any) -> Plan | None:
        try:
            return planner.plan_deployment(self.model, self.gpu, self.engine, {**self.given, **changes})
        except KvplanError:
            return None

    def fits(self, **changes: Any) -> bool:
        made = self(**changes)
        return made is not None and bool(made.verdict.fits)

    def holds(self, **changes: Any) -> bool:
        made = self(**changes)
        return made is not None and bool(made.verdict.fits) and made.serving.targets_hold is True  # type: ignore[union-attr]


def first(values: Iterable[Any], good: Any) -> Any:
    return next((value for value in values if good(value)), None)


def most(below: int, good: Any) -> int:
    """The largest number below `below` for which `good` holds; 0: none. By halves, since it stays false."""
    low, high = 0, below
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if good(middle) else (low, middle)
    return low


def advice(made: Plan) -> dict[str, str]:
    found: dict[str, str] = {}
    for hint in made.verdict.hints:
        assert hint.flag not in found
        found[hint.flag] = hint.value
    return found


def more_gpus(trying: Trying, made: Plan) -> dict[str, str]:
    """The narrowest layout over more GPUs with which it fits: wider layers first, then stages of the widest."""
    expected: dict[str, str] = {}
    tp, pp, dp = (made.inputs[f"{kind}_parallel_size"] for kind in ("tensor", "pipeline", "data"))
    sizes = legal_sizes(trying.model, 8) if trying.own.splits_tensors else []
    typed_gpus = " --gpus {}" if "gpus" in trying.given else ""
    size = first((n for n in sizes if n != tp), lambda n: trying.fits(tensor_parallel_size=n, gpus=n * pp * dp))
    if size:
        expected["--tensor-parallel-size"] = f"{size}" + typed_gpus.format(size * pp * dp)
    else:
        wide = max(sizes) if sizes else tp
        layers = trying.model.num_layers

        def staged(n: int) -> bool:
            split = {"tensor_parallel_size": wide} if trying.own.splits_tensors else {}
            return trying.fits(**split, pipeline_parallel_size=n, gpus=wide * n * dp)

        stages = first(range(pp + 1, min(8, layers) + 1), staged)
        if stages and not trying.own.splits_tensors:
            expected["--gpus"] = f"{wide * stages * dp}"
        elif stages and wide == tp:
            expected["--pipeline-parallel-size"] = f"{stages}" + typed_gpus.format(wide * stages * dp)
        elif stages:
            more = f" --pipeline-parallel-size {stages}" + typed_gpus.format(wide * stages * dp)
            expected["--tensor-parallel-size"] = f"{wide}{more}"
    return expected


@pytest.mark.parametrize(("name", "gpu", "engine", "given"), MEMORY, ids=[f"{n}-{c[0]}" for n, c in enumerate(MEMORY)])
def test_advice_on_memory(
    name: str, gpu: str, engine: str, given: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    made = plan(name, gpu=gpu, engine=engine, **given)
    assert made.verdict.fits is False
    found = advice(made)
    monkeypatch.setattr(planner, "hints", lambda *_: ())
    trying = Trying(name, gpu, engine, given)
    expected = more_gpus(trying, made)
    binding = made.verdict.binding
    if "weights" not in given and binding != "kv":
        smaller = first(trying.own.smaller_weights, lambda n: trying.fits(weights=n))
        if smaller:
            expected["--weights"] = smaller
    if "gpu_memory_utilization" in trying.own.settings and "kv_cache_memory_bytes" not in given:
        now, highest = made.inputs["gpu_memory_utilization"], trying.own.highest_utilization
        if now < highest and trying.fits(gpu_memory_utilization=highest):
            low = most(1000, lambda n: not trying.fits(gpu_memory_utilization=(n or 1) / 1000)) + 1
            expected["--gpu-memory-utilization"] = f"{low / 1000:g}"
    if binding == "kv" and engine in ("vllm", "sglang", "generic", "tensorrt-llm"):
        if "kv_cache_dtype" not in given:
            cache = first(trying.own.smaller_kv_formats, lambda n: trying.fits(kv_cache_dtype=n))
            if cache:
                expected["--kv-cache-dtype"] = cache
        asked = made.inputs["concurrency"]
        if made.capacity is not None and trying.fits(concurrency=1):
            runs = most(asked + 1, lambda n: trying.fits(concurrency=n))
            if 0 < runs < asked:
                expected["--concurrency"] = f"{runs}"
    length, request = made.inputs["max_model_len"], made.inputs["prompt_tokens"] + made.inputs["output_tokens"]
    if request > length:
        if trying.fits(max_model_len=request):
            expected["--max-model-len"] = f"{request}"
        prompt = length - made.inputs["output_tokens"]
        if prompt > 0 and trying.fits(prompt_tokens=prompt):
            expected["--prompt-tokens"] = f"{prompt}"
    elif made.capacity is None or (made.capacity.max_single_request_tokens or 0) < length:
        shorter = most(length, lambda n: trying.fits(max_model_len=n))
        if shorter >= request:
            expected["--max-model-len"] = f"{shorter}"
    compared = {flag for flag in FLAGS if flag != "--max-num-seqs"}
    assert {flag: value for flag, value in found.items() if flag in compared} == {
        flag: value for flag, value in expected.items() if flag in compared
    }
    if "--max-model-len" in expected:
        assert found["--max-model-len"] == expected["--max-model-len"]
    states = trying.model.id in ("nemotron-h-8b",)
    assert ("--max-num-seqs" in found) is states
    if states:
        value = int(found["--max-num-seqs"])
        assert trying.fits(max_num_seqs=value)
        assert not trying.fits(max_num_seqs=value + 1)
    assert ("--n-gpu-layers" in found) is (engine == "llama.cpp")
    if "--n-gpu-layers" in found:
        layers = int(found["--n-gpu-layers"])
        assert trying.fits(n_gpu_layers=f"{layers}")
        assert not trying.fits(n_gpu_layers=f"{layers + 1}")


SERVING: list[tuple[str, str, dict[str, Any]]] = [
    ("llama-3.1-8b", "h100-sxm", {"request_rate": 60.0, "ttft": 0.2, "tpot": 0.015}),
    ("llama-3.1-8b", "h100-sxm", {"request_rate": 3.0, "ttft": 0.02}),
    ("llama-3.1-8b", "h100-sxm", {"request_rate": 3.0, "tpot": 0.005}),
    ("llama-3.1-8b", "h100-sxm", {"request_rate": 3.0, "tpot": 0.001}),
    ("llama-3.1-8b", "h100-sxm", {"concurrency": 200, "tpot": 0.012}),
    ("llama-3.1-8b", "h100-sxm", {"concurrency": 90, "ttft": 0.03, "data_parallel_size": 2}),
    ("llama-3.1-8b", "h100-sxm", {"request_rate": 9.0, "concurrency": 10}),
    ("llama-3.1-8b", "h100-sxm", {"request_rate": 9.0, "concurrency": 10, "tensor_parallel_size": 2}),
    ("llama-3.1-8b", "h100-sxm", {"request_rate": 60.0, "tpot": 0.02, "weights": "fp8", "kv_cache_dtype": "fp8"}),
    ("gemma-3-4b", "l4", {"request_rate": 30.0, "ttft": 0.5, "data_parallel_size": 2, "gpus": 3}),
]


@pytest.mark.parametrize(("name", "gpu", "given"), SERVING, ids=[f"{n}-{case[0]}" for n, case in enumerate(SERVING)])
def test_advice_on_targets(name: str, gpu: str, given: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    given = {"max_model_len": 4096, "prompt_tokens": 1000, "output_tokens": 200, **given}
    made = plan(name, gpu=gpu, engine="vllm", **given)
    serving = made.serving
    assert made.verdict.fits is True
    assert serving is not None
    assert serving.targets_hold is False
    found = advice(made)
    monkeypatch.setattr("kvplan.planning.workload_advice.target_hints", lambda *_: ())
    trying = Trying(name, gpu, "vllm", given)
    expected: dict[str, str] = {}
    dp, idle = given.get("data_parallel_size", 1), given.get("gpus", 0) - given.get("data_parallel_size", 1)
    gpus = {"gpus": None} if "gpus" not in given else {}

    def spread(**layout: int) -> dict[str, Any]:
        world = layout.get("tensor_parallel_size", given.get("tensor_parallel_size", 1))
        world *= layout.get("data_parallel_size", dp)
        return {**layout, **(gpus or {"gpus": world + idle})}

    if "request_rate" in given:
        carried = serving.max_request_rate or 0.0
        assert ("--request-rate" in found) is (carried > 0)
        if carried:
            value = float(found["--request-rate"])
            assert 0.99 * carried < value <= carried
            assert found["--request-rate"] == f"{value:g}"
            assert len(found["--request-rate"].replace(".", "").lstrip("0")) <= 3
    elif (runs := most(given["concurrency"], lambda n: trying.holds(concurrency=n))) > 0:
        expected["--concurrency"] = f"{runs}"
    missed = {target.name: target for target in serving.targets if not target.holds}
    if "concurrency" in missed:
        flying = missed["concurrency"].predicted or 0.0
        count = -int(-flying // 1)
        if trying.holds(concurrency=count):
            expected["--concurrency"] = f"{count}"
    needed = serving.replicas_needed
    if needed is not None or "request_rate" not in given:
        low = max(dp + 1, dp * ((needed or 1) - 1) + 1)
        while low <= 256 and not trying.holds(**spread(data_parallel_size=low)):
            low += -(-low // 8)
        if low <= 256:
            expected["--data-parallel-size"] = f"{low}"
    tp = given.get("tensor_parallel_size", 1)
    sizes = (n for n in legal_sizes(trying.model, 8) if n > tp)
    size = first(sizes, lambda n: trying.holds(**spread(tensor_parallel_size=n)))
    if size:
        expected["--tensor-parallel-size"] = f"{size}"
    for field, names in (("kv_cache_dtype", trying.own.smaller_kv_formats), ("weights", trying.own.smaller_weights)):
        if field not in given and (smaller := first(names, lambda n, f=field: trying.holds(**{f: n}))):
            expected[f"--{field.replace('_', '-')}"] = smaller
    assert {flag: value for flag, value in found.items() if flag != "--request-rate"} == expected


@pytest.mark.parametrize(
    ("gpu", "engine", "length"), [("apple-m4-max", "mlx", 8192), ("a100-sxm4-80gb", "transformers", 4096)]
)
def test_fewer_requests_leave_more_where_nothing_is_laid_out(
    gpu: str, engine: str, length: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Activations grow with the batch, so the most that hold are not those that the cache of one more would hold."""
    given = {"max_model_len": length, "concurrency": 450}
    made = plan("llama-3.1-8b", gpu=gpu, engine=engine, **given)
    assert made.verdict.fits is False
    found = int(advice(made)["--concurrency"])
    monkeypatch.setattr(planner, "hints", lambda *_: ())
    trying = Trying("llama-3.1-8b", gpu, engine, given)
    assert trying.fits(concurrency=found)
    assert not trying.fits(concurrency=found + 1)
    (note,) = [n for n in trying(concurrency=1).verdict.notes if n.startswith("breaks first")]  # type: ignore[union-attr]
    assert f"the cache, full with {found:,} requests" in note

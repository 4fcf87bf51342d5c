"""Engines on hardware that they do not run on: refused, or said out loud."""

from __future__ import annotations

import pytest

from kvplan import load_gpu, plan
from kvplan.engines import distinct, get_engine
from kvplan.errors import UnsupportedError
from kvplan.planning.fit.candidates import engines_for


@pytest.mark.parametrize(("engine", "gpu", "other"), [
    ("tensorrt-llm", "mi300x", "vllm"), ("tensorrt-llm", "apple-m3-ultra", "llama.cpp"),
    ("tensorrt-llm", "tpu-v7x", "vllm"),
    ("tensorrt-llm", "gaudi3", "vllm"), ("tensorrt-llm", "inferentia2", "vllm"), ("exllamav3", "tpu-v7x", "vllm"),
    ("mlx", "gaudi3", "vllm"), ("sglang", "p40", "llama.cpp"), ("sglang", "v100-sxm2-32gb", "vllm"),
    ("vllm", "p40", "llama.cpp"),
    ("exllamav3", "t4", "vllm"), ("tensorrt-llm", "t4", "vllm"),
])  # fmt: skip
def test_refused(engine: str, gpu: str, other: str) -> None:
    with pytest.raises(UnsupportedError, match=f"does not run on {gpu}") as caught:
        plan("llama-3.1-8b", gpu=gpu, engine=engine, max_model_len=4096)
    assert other in str(caught.value.hint)
    assert engine not in str(caught.value.hint)


@pytest.mark.parametrize(
    ("engine", "gpu"), [("sglang", "apple-m3-ultra"), ("mlx", "h100-sxm"), ("ollama", "arc-pro-b60")]
)
def test_not_listed(engine: str, gpu: str) -> None:
    made = plan("llama-3.1-8b", gpu=gpu, engine=engine, max_model_len=4096)
    assert [w for w in made.warnings if w.startswith(f"{engine} lists no backend for {gpu}")]


@pytest.mark.parametrize("gpu", ["mi300x", "apple-m3-ultra", "tpu-v7x", "gaudi3", "p40", "h100-sxm", "trainium2"])
def test_fit_tries_what_a_plan_takes_without_a_word(gpu: str) -> None:
    device = load_gpu(gpu)
    asked = [name for name in distinct() if name != "generic"]
    tried = engines_for(device, asked)
    for name in asked:
        assert (name in tried) == get_engine(name).takes(device)


def test_a_device_without_a_maker_is_any() -> None:
    made = plan("llama-3.1-8b", gpu_memory="24GiB", engine="tensorrt-llm", max_model_len=4096)
    assert not [w for w in made.warnings if "backend" in w]

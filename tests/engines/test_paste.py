"""The line to paste starts what was planned: read back, it plans the same."""

from __future__ import annotations

import shlex
from typing import Any

import pytest

from kvplan import plan
from kvplan.deployment import of_command
from kvplan.engines.options import quoted
from kvplan.planning.plan import Plan
from kvplan.sources.commands import read_command
from kvplan.units import GIB

GIVEN: list[tuple[str, str, str, dict[str, Any]]] = [
    ("vllm", "llama-3.1-8b", "h100-sxm", {"max_model_len": 20_000, "enforce_eager": True}),
    ("vllm", "deepseek-v3", "h200-sxm", {"tensor_parallel_size": 8, "decode_context_parallel_size": 8,
                                         "kv_cache_dtype": "fp8", "enable_expert_parallel": True}),
    ("vllm", "qwen3-next-80b-a3b", "h200-sxm", {"tensor_parallel_size": 2, "enable_prefix_caching": False}),
    ("vllm", "glm-4.5-air", "h200-sxm", {"tensor_parallel_size": 4, "speculative_config": '{"method": "mtp"}'}),
    ("sglang", "llama-3.1-8b", "h100-sxm", {"max_model_len": 8192, "page_size": 16}),
    ("sglang", "qwen3-32b", "h100-sxm", {"tensor_parallel_size": 2, "mem_fraction_static": 0.8}),
    ("tensorrt-llm", "llama-3.1-8b", "h100-sxm", {"tensor_parallel_size": 2, "free_gpu_memory_fraction": 0.7}),
    ("llama.cpp", "gemma-3-27b", "h100-sxm", {"ctx_size": 16_384, "parallel": 2, "cache_type_k": "q8_0",
                                              "cache_type_v": "q8_0"}),
    ("llama.cpp", "llama-3.1-8b", "h100-sxm", {"max_model_len": 8192, "parallel": 3, "swa_full": True}),
]  # fmt: skip
SAME = (
    "max_model_len", "max_num_seqs", "max_num_batched_tokens", "gpu_memory_utilization", "tensor_parallel_size",
    "decode_context_parallel_size", "enable_expert_parallel", "enforce_eager", "enable_prefix_caching", "block_size",
    "kv_cache_dtype", "mem_fraction_static", "page_size", "free_gpu_memory_fraction", "parallel", "swa_full",
)  # fmt: skip


def pasted(made: Plan) -> str:
    return next(text for text in made.verdict.notes if text.startswith("to paste: "))


@pytest.mark.parametrize(("engine", "model", "gpu", "given"), GIVEN, ids=lambda v: v if isinstance(v, str) else "")
def test_read_back_it_plans_the_same(engine: str, model: str, gpu: str, given: dict[str, Any]) -> None:
    made = plan(model, gpu=gpu, engine=engine, **given)
    line = pasted(made).removeprefix("to paste: ").partition("\n")[0]
    read = read_command(line)
    again = plan(model, gpu=gpu, engine=engine, **{k: v for k, v in read.settings.items() if k != "weights"})
    assert {k: str(again.inputs.get(k)) for k in SAME} == {k: str(made.inputs.get(k)) for k in SAME}
    assert again.capacity == made.capacity
    assert not read.unknown


@pytest.mark.parametrize("text", ["plain-1.0", "", "two words", "it's", '{"a": "b"}', "$HOME", "a;b", "é"])
def test_words_are_quoted_for_a_shell(text: str) -> None:
    assert shlex.split(quoted(text)) == [text]


def test_what_it_leaves() -> None:
    """Cache less one request of the limit, block by block, and less what the terms may be more."""
    made = plan("llama-3.1-8b", gpu="h100-sxm", max_model_len=8192)
    assert made.memory is not None
    row = made.memory[0]
    spare = row.kv_bytes - 513 * 16 * 131_072  # a block is set aside
    more = sum(t.high_bytes - t.bytes for t in row.terms)
    assert f"leaves {spare / GIB:.2f} GiB per GPU beyond one request of the limit" in pasted(made)
    assert f"({(spare - more) / GIB:.2f} GiB if every modelled term" in pasted(made)


def test_nothing_to_paste_where_it_does_not_fit() -> None:
    assert not [t for t in plan("llama-3.1-70b", gpu="h100-sxm").verdict.notes if "to paste" in t]


@pytest.mark.parametrize(
    ("seqs", "words"), [(16, "max_num_seqs 16; the cache would hold"), (4096, "the cache, full with")]
)
def test_what_breaks_first(seqs: int, words: str) -> None:
    made = plan("llama-3.1-8b", gpu="h100-sxm", max_model_len=8192, max_num_seqs=seqs)
    assert [t for t in made.verdict.notes if t.startswith("breaks first") and words in t]


NAMED = [
    ("Qwen/Qwen3-32B-AWQ", "l40s", "vllm"), ("Qwen/Qwen3-32B-FP8", "h100-sxm", "vllm"),
    ("Qwen/Qwen3-32B-FP8", "h100-sxm", "sglang"), ("Qwen/Qwen3-32B-FP8", "h100-sxm", "tensorrt-llm"),
    ("neuralmagic/Meta-Llama-3.1-8B-Instruct-FP8", "l40s", "vllm"), ("qwen3-32b-awq", "l40s", "vllm"),
    ("meta-llama/Llama-3.1-8B-Instruct", "l40s", "vllm"), ("qwen/qwen3-32b", "h200-sxm", "sglang"),
    ("unsloth/Qwen3-32B-GGUF:Q4_K_M", "l40s", "llama.cpp"), ("openai/gpt-oss-20b", "l40s", "vllm"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "gpu", "engine"), NAMED)
def test_it_starts_the_checkpoint_that_was_named(name: str, gpu: str, engine: str) -> None:
    """The line read back holds weights of the same bytes, and the verdict stays."""
    made = plan(name, gpu=gpu, engine=engine)
    line = pasted(made).removeprefix("to paste: ").partition("\n")[0]
    read = read_command(line)
    again = plan(str(read.model), gpu=gpu, engine=engine, **read.settings)
    assert read.model.lower() == name.lower()
    assert [row.weights_bytes for row in again.memory or ()] == [row.weights_bytes for row in made.memory or ()]
    assert (again.verdict.fits, again.capacity) == (made.verdict.fits, made.capacity)


def test_a_checkpoint_that_is_quantised_is_not_quantised_again() -> None:
    """An engine refuses ``--quantization fp8`` over AWQ: what else was asked for is said beside the line."""
    made = plan("Qwen/Qwen3-32B-AWQ", gpu="h100-sxm", weights="fp8")
    assert "--quantization" not in pasted(made)
    assert "a checkpoint in fp8" in pasted(made)


def test_what_the_line_lacks_of_the_one_given_is_said() -> None:
    """Flags without a bearing on the cache are named where they are passed over; what the engine needs stands in it."""
    overrides = "--hf-overrides '{\"max_position_embeddings\": 60000}'"
    read = read_command(f"vllm serve Qwen/Qwen3-32B-FP8 --host 0.0.0.0 {overrides}")
    made = of_command(read, {"gpu": "h100-sxm"})
    assert made.report is not None
    assert "ignored: --host (a line to paste lacks them)" in made.report.note()
    line = pasted(made.plan()).removeprefix("to paste: ").partition("\n")[0]
    assert line.endswith(overrides)
    assert of_command(read_command(line), {"gpu": "h100-sxm"}).plan().capacity == made.plan().capacity
    assert not [text for text in made.plan().warnings if "to paste" in text]
    plain = of_command(read_command("vllm serve Qwen/Qwen3-32B-FP8"), {"gpu": "h100-sxm"})
    assert not [text for text in plain.plan().warnings if "to paste" in text]


@pytest.mark.parametrize("engine", ["sglang", "tensorrt-llm", "transformers"])
@pytest.mark.parametrize("model", ["qwen3-32b", "gemma-3-27b"])
def test_what_it_leaves_beyond_a_request(engine: str, model: str) -> None:
    """Engines that start with a page alone: a request of the limit is still taken off."""
    made = plan(model, gpu="h200-sxm", engine=engine, max_model_len=32_768)
    assert made.memory is not None
    said = next(t for t in made.verdict.notes if "beyond one request of the limit" in t)
    leaves = float(said.rpartition("leaves ")[2].split()[0])
    one = made.kv.bytes_per_sequence_per_gpu
    assert one > 1 << 30
    assert leaves <= (made.memory[0].kv_bytes - one) / GIB + 0.005


def test_what_it_leaves_where_no_such_request_holds() -> None:
    made = plan("llama-3.1-8b", gpu="rtx-4090", engine="sglang")
    assert [t for t in made.verdict.notes if "beyond the smallest cache that starts" in t]
    assert not [t for t in made.verdict.notes if "beyond one request" in t]

"""What is refused, advised and said under each engine is what that engine does and has."""

from __future__ import annotations

import json
from typing import Any

import pytest

from kvplan import plan
from kvplan.cli import main
from kvplan.errors import KvplanError
from kvplan.units import GIB


def refused(model: str, **given: Any) -> KvplanError:
    with pytest.raises(KvplanError) as caught:
        plan(model, **given)
    return caught.value


@pytest.mark.parametrize(
    ("engine", "gpu", "dtype", "hint"),
    [
        ("tensorrt-llm", "h100-sxm", "nvfp4", "type --kv-cache-dtype fp8"),
        ("tensorrt-llm", "a100-sxm4-80gb", "fp8", "type --kv-cache-dtype auto"),
        ("tensorrt-llm", "h100-sxm", "int8", "type --kv-cache-dtype fp8"),
        ("sglang", "h100-sxm", "int8", "type --kv-cache-dtype fp8_e4m3"),
        ("sglang@0.5.2", "h100-sxm", "nvfp4", "type --kv-cache-dtype fp8_e4m3"),
        ("sglang", "h100-sxm", "fp8,bf16", "type --kv-cache-dtype fp8_e4m3"),
    ],
)
def test_cache_types_that_an_engine_does_not_have(engine: str, gpu: str, dtype: str, hint: str) -> None:
    assert refused("llama-3.1-8b", gpu=gpu, engine=engine, kv_cache_dtype=dtype).hint == hint
    near = hint.rpartition(" ")[2]
    assert plan("llama-3.1-8b", gpu=gpu, engine=engine, kv_cache_dtype=near, max_model_len=4096).verdict.fits


def test_4_bits_are_advised_where_there_are_kernels() -> None:
    for gpu, engine in (("h100-sxm", "tensorrt-llm"), ("h100-sxm", "sglang")):
        made = plan("llama-3.1-8b", gpu=gpu, engine=engine, concurrency=600)
        assert not [h for h in made.verdict.hints if "nvfp4" in h.value]
    assert plan("llama-3.1-8b", gpu="b200", engine="tensorrt-llm", kv_cache_dtype="nvfp4").verdict.fits


@pytest.mark.parametrize(
    ("model", "given", "hint"),
    [
        ("qwen3-8b", {"engine": "mlx", "gpu": "m2-max", "kv_bits": 7}, "type --kv-bits 6 or 8"),
        ("llama-3.1-8b", {"engine": "sglang", "gpu": "h100-sxm", "tensor_parallel_size": 8, "attn_dp_size": 3},
         "type --attn-dp-size 2 or 4"),
        ("llama-3.1-8b", {"engine": "tensorrt-llm", "gpu": "h100-sxm", "free_gpu_memory_fraction": 2.0},
         "type --free-gpu-memory-fraction 1"),
    ],
)  # fmt: skip
def test_the_nearest_legal_value(model: str, given: dict[str, Any], hint: str) -> None:
    assert refused(model, **given).hint == hint


def test_running_requests_are_limited_by_states_alone() -> None:
    plain = plan("llama-3.1-8b", gpu="h100-sxm", engine="sglang")
    assert plain.capacity is not None
    assert plain.capacity.max_num_seqs_allowed is None
    assert not [t for t in plain.verdict.notes if "at most with this memory" in t]
    hybrid = plan("qwen3-next-80b-a3b", gpu="h200-sxm", engine="sglang", tensor_parallel_size=2)
    assert hybrid.capacity is not None
    most = hybrid.capacity.max_num_seqs_allowed
    assert [t for t in hybrid.verdict.notes if t.startswith(f"--max-running-requests is {most:,} at most")]


def test_one_figure_for_the_most_sequences_of_a_hybrid() -> None:
    """Note, JSON and hint say the same number, and it is the last that starts."""
    given: dict[str, Any] = {"gpu": "rtx-4090", "max_model_len": 8192}
    made = plan("nemotron-h-8b", **given)
    assert made.capacity is not None
    most = made.capacity.max_num_seqs_allowed
    assert most is not None
    assert [t for t in made.verdict.notes if t.startswith(f"--max-num-seqs is {most} at most")]
    over = plan("nemotron-h-8b", **given, max_num_seqs=1024)
    assert over.capacity is not None
    assert over.capacity.max_num_seqs_allowed == most
    assert [h.value for h in over.verdict.hints if h.flag == "--max-num-seqs"] == [str(most)]
    assert plan("nemotron-h-8b", **given, max_num_seqs=most).verdict.fits
    assert not plan("nemotron-h-8b", **given, max_num_seqs=most + 1).verdict.fits


@pytest.mark.parametrize("engine", ["sglang", "tensorrt-llm"])
def test_a_pool_that_shortens_requests_is_said(engine: str) -> None:
    made = plan("llama-3.1-8b", gpu="rtx-4090", engine=engine)
    assert made.verdict.fits
    assert made.capacity is not None
    assert "the longest request holds" not in made.verdict.reason
    single = f"{made.capacity.max_single_request_tokens:,}"
    assert single in made.verdict.reason
    assert [t for t in made.warnings if single in t]


@pytest.mark.parametrize("engine", ["llama.cpp", "transformers", "exllamav3"])
def test_no_word_of_pages_of_states_but_under_vllm(engine: str) -> None:
    made = plan("qwen3-next-80b-a3b", gpu="h200-sxm", engine=engine, max_model_len=8192, weights="auto")
    assert not [t for t in made.verdict.notes if "page is that of a state" in t]
    assert not [t for t in plan("qwen3-next-80b-a3b", gpu="h200-sxm", tensor_parallel_size=2, kv_cache_dtype="bf16")
                .verdict.notes if "page is that of a state" in t]  # fmt: skip


@pytest.mark.parametrize("engine", ["transformers", "exllamav3"])
def test_states_as_the_engine_keeps_them(engine: str) -> None:
    """What is fixed for a sequence is what the engine lays out for one, the convolution's last column included."""
    made = plan("qwen3-next-80b-a3b", gpu="h200-sxm", engine=engine, max_model_len=2048)
    assert made.allocation is not None
    slots = 16 if engine == "exllamav3" else 1
    assert made.kv.fixed_bytes_per_sequence == made.allocation.state_bytes // slots
    generic = plan("qwen3-next-80b-a3b", engine="generic", max_model_len=2048).kv.fixed_bytes_per_sequence
    assert made.kv.fixed_bytes_per_sequence != generic


def test_a_context_that_nobody_gave_stays_useful() -> None:
    made = plan("qwen3-32b", gpu="rtx-4090", engine="llama.cpp")
    assert made.inputs["max_model_len"] == 4096
    assert not made.verdict.fits
    assert "--n-gpu-layers" in [h.flag for h in made.verdict.hints]


def test_refusals_that_two_decimals_do_not_tell_apart() -> None:
    made = plan("llama-3.1-8b", gpu="h100-sxm", max_model_len=8192, kv_cache_memory_bytes=GIB)
    assert "needs 1,075,838,976 bytes of cache per GPU, there are 1,073,741,824" in made.verdict.reason
    small = plan("llama-3.1-8b", gpu="h100-sxm", engine="tensorrt-llm", kv_cache_memory_bytes=1 << 20)
    assert "needs 4,194,304 bytes" in small.verdict.reason


@pytest.mark.parametrize("engine", ["llama.cpp", "ollama", "exllamav3"])
def test_a_cache_that_is_laid_out_has_no_bounds(engine: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["plan", "qwen3-8b", "--gpu", "h100-sxm", "--engine", engine, "--max-model-len", "8192"]) == 0
    row = next(line for line in capsys.readouterr().out.splitlines() if "laid out by the settings" in line)
    cells = row.split()
    assert cells[2] == cells[3] == cells[4]
    assert cells[5] == "exact"


def test_where_no_engine_can_plan_it_one_line_says_why(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["plan", "llama-3.1-8b", "--gpu", "h100-sxm", "--engine", "vllm,sglang,mlx", "-tp", "7"]) == 2
    done = capsys.readouterr()
    assert done.out == ""
    lines = done.err.splitlines()
    assert lines[-2].startswith("error: ")
    assert lines[-1].startswith("hint: ")
    assert json.dumps(lines[-2])


@pytest.mark.parametrize("engine", ["mlx", "transformers", "exllamav3", "llama.cpp", "vllm"])
def test_smaller_weights_are_formats_of_the_engine(engine: str) -> None:
    from kvplan.engines import get_engine

    foreign = {"mlx": ("fp8", "awq"), "transformers": ("awq",), "exllamav3": ("fp8", "awq"), "llama.cpp": ("fp8",)}
    assert not set(foreign.get(engine, ())) & set(get_engine(engine).smaller_weights)


@pytest.mark.parametrize("engine", ["llama.cpp", "ollama"])
def test_a_warning_of_the_file_is_said_once(engine: str) -> None:
    from dataclasses import replace

    from kvplan.catalog import load_gpu, load_model
    from kvplan.planning.planner import plan_deployment

    model = replace(load_model("qwen3-8b"), file_warnings=("said by the file",))
    made = plan_deployment(model, load_gpu("h100-sxm"), engine, {"max_model_len": 8192})
    assert made.warnings.count("said by the file") == 1


@pytest.mark.parametrize("engine", ["sglang", "tensorrt-llm", "exllamav3", "mlx", "transformers"])
def test_a_layout_that_is_not_modelled_is_refused(engine: str) -> None:
    error = refused("deepseek-v3", gpu="h200-sxm", engine=engine, tensor_parallel_size=8, max_model_len=8192,
                    decode_context_parallel_size=8)  # fmt: skip
    assert "--engine vllm" in (error.hint or "")

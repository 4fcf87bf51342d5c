"""``kvplan plan`` of an engine's own command line: the same figures as with the same flags."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from .conftest import Run, one_line_error

MANIFESTS = Path(__file__).parents[1] / "data" / "manifests"


def figures(run: Run, *words: str) -> dict[str, Any]:
    """The plan without what says where it comes from."""
    done = run("plan", *words, "--json")
    assert done.status in (0, 1), done.err
    plan: dict[str, Any] = json.loads(done.out)
    plan["inputs"].pop("command", None)
    plan.pop("warnings")
    return plan


@pytest.mark.parametrize(
    ("line", "flags"),
    [
        (
            "vllm serve Qwen/Qwen3-32B -tp 2 --max-model-len 32K --port 80 --gpu-memory-utilization 0.85",
            "Qwen/Qwen3-32B -tp 2 --max-model-len 32K --gpu-memory-utilization 0.85",
        ),
        (
            "docker run vllm/vllm-openai:v0.11.0 --model meta-llama/Llama-3.1-8B-Instruct "
            "--kv-cache-dtype fp8 --max-num-seqs 64",
            "meta-llama/Llama-3.1-8B-Instruct --engine vllm@0.11.0 --kv-cache-dtype fp8 --max-num-seqs 64",
        ),
        (
            "python -m sglang.launch_server --model-path Qwen/Qwen3-32B --tp 2 "
            "--mem-fraction-static 0.8 --context-length 16384",
            "Qwen/Qwen3-32B --engine sglang -tp 2 --mem-fraction-static 0.8 --max-model-len 16384",
        ),
        (
            "trtllm-serve Qwen/Qwen3-32B --tp_size 2 --max_seq_len 16384 --max_batch_size "
            "64 --kv_cache_free_gpu_memory_fraction 0.8",
            "Qwen/Qwen3-32B --engine tensorrt-llm -tp 2 --max-model-len 16384 "
            "--max-num-seqs 64 --free-gpu-memory-fraction 0.8",
        ),
        (
            "llama-server -hf unsloth/Qwen3-8B-GGUF:Q4_K_M -c 16384 -np 2 -ctk q8_0 -ctv q8_0 -fa on -ngl 99",
            "unsloth/Qwen3-8B-GGUF:Q4_K_M --engine llama.cpp -c 16384 -np 2 -ctk q8_0 -ctv q8_0 -fa on -ngl 99",
        ),
        (
            "OLLAMA_CONTEXT_LENGTH=16384 OLLAMA_NUM_PARALLEL=2 ollama run llama3.1:8b",
            "llama3.1:8b --engine ollama --weights q4_k_m --num-ctx 16384 --num-parallel 2",
        ),
        (
            "vllm serve Qwen/Qwen3-8B --quantization fp8 --max-model-len 8K",
            "Qwen/Qwen3-8B --weights fp8 --max-model-len 8K",
        ),
        (
            str(MANIFESTS / "deployment.yaml"),
            "Qwen/Qwen3-32B --engine vllm@0.33.0 -tp 4 --max-model-len 32768 "
            "--enable-prefix-caching --gpus 4 --gpu h100-sxm",
        ),
        (
            f"{MANIFESTS / 'compose.yaml'}#llm",
            "Qwen/Qwen3-32B-AWQ --engine vllm@0.20.1 -tp 2 --max-model-len 16384 --gpus 2",
        ),
    ],
)
def test_a_line_plans_as_its_flags_do(run: Run, line: str, flags: str) -> None:
    gpu = () if "--gpu " in flags else ("--gpu", "h100-sxm")
    assert figures(run, line, *gpu) == figures(run, *flags.split(), *gpu)


def test_flags_of_kvplan_go_over_those_inside(run: Run) -> None:
    line = "vllm serve Qwen/Qwen3-32B -tp 4 --max-model-len 32K --enforce-eager --port 80 --zap"
    done = run("plan", line, "--gpu", "h100-sxm", "-tp", "2", "--concurrency", "4", "--json")
    assert done.status == 0
    plan = json.loads(done.out)
    assert plan["inputs"]["tensor_parallel_size"] == 2
    assert plan["inputs"]["command"] == {
        "engine": "vllm",
        "source": "command line",
        "settings": {"max_model_len": 32768, "enforce_eager": True},
        "ignored": ["--port"],
        "unknown": ["--zap"],
        "overridden": ["-tp 4"],
    }
    assert "command line: replaced by kvplan's own flags: -tp 4" in plan["warnings"]
    assert any("--zap" in text for text in plan["warnings"])
    assert "ignored: --port" in done.err
    assert figures(run, line, "--gpu", "h100-sxm", "-tp", "2", "--concurrency", "4") == figures(
        run,
        "Qwen/Qwen3-32B",
        "--max-model-len",
        "32K",
        "--enforce-eager",
        "--gpu",
        "h100-sxm",
        "-tp",
        "2",
        "--concurrency",
        "4",
    )


@pytest.mark.parametrize(
    ("model", "weights", "said"),
    [
        ("llama3.1:8b", "q4_k_m", "llama3.1:8b is in q4_k_m in Ollama's library"),
        ("deepseek-r1", "q4_k_m", "is deepseek-r1:8b in q4_k_m in Ollama's library"),
        ("llama3.1:8b-instruct-q8_0", "q8_0", None),
        ("hf.co/unsloth/Qwen3-8B-GGUF:Q8_0", "q8_0", None),
        ("hf.co/unsloth/Qwen3-8B-GGUF", "q4_k_m", "does not say how it is quantised"),
    ],
)
def test_how_a_model_of_ollama_is_stored(run: Run, model: str, weights: str, said: str | None) -> None:
    done = run("plan", f"ollama run {model}", "--json")
    assert json.loads(done.out)["inputs"]["weights_format"] == weights
    assert said in done.err if said else "Ollama's library" not in done.err and "does not say" not in done.err
    assert (
        json.loads(run("plan", f"ollama run {model}", "--weights", "bf16", "--json").out)["inputs"]["weights"] == "bf16"
    )


def test_another_engine_takes_what_it_knows(run: Run) -> None:
    done = run(
        "plan", "vllm serve Qwen/Qwen3-32B -tp 2 --max-model-len 8K --enforce-eager", "--engine", "generic", "--json"
    )
    plan = json.loads(done.out)
    assert (plan["inputs"]["engine"], plan["inputs"]["max_model_len"]) == ("generic", 8192)
    assert plan["inputs"]["command"]["ignored"] == ["--enforce-eager"]


def test_a_flag_fills_in_for_a_variable(run: Run) -> None:
    line = "vllm serve Qwen/Qwen3-8B --max-model-len $LEN --port $PORT"
    message, hint = one_line_error(run("plan", line))
    assert message == "--max-model-len: $LEN is not set here"
    assert "--max-model-len" in hint
    assert run("plan", line, "--max-model-len", "8K").status == 0


def test_a_version_nobody_read_and_a_label_nobody_knows(run: Run, tmp_path: Path) -> None:
    pod = tmp_path / "pod.yaml"
    pod.write_text(
        "apiVersion: v1\nkind: Pod\nspec:\n  nodeSelector: {nvidia.com/gpu.product: NVIDIA-Z9000}\n"
        "  containers: [{name: c, image: 'vllm/vllm-openai:v0.1.0', args: [--model, Qwen/Qwen3-8B]}]\n"
    )
    done = run("plan", str(pod), "--json")
    assert done.status == 0, done.err
    assert "no GPU is called 'NVIDIA-Z9000'; add --gpu NAME" in done.err
    assert "0.1.0" in done.err
    assert run("plan", str(pod), "--gpu", "h100-sxm").status == 0


def test_more_gpus_than_the_layout_and_fewer(run: Run, tmp_path: Path) -> None:
    pod = tmp_path / "pod.yaml"
    text = (
        "apiVersion: v1\nkind: Pod\nspec:\n  containers: [{{image: vllm/vllm-openai, args: [Qwen/Qwen3-8B, -tp, '2'], "
        "resources: {{limits: {{nvidia.com/gpu: {}}}}}}}]\n"
    )
    pod.write_text(text.format(4))
    assert "2 of 4 GPUs idle" in run("plan", str(pod)).err
    pod.write_text(text.format(1))
    message, _ = one_line_error(run("plan", str(pod)))
    assert "needs 2 GPUs, not 1" in message


@pytest.mark.parametrize(
    "line", ["vllm serve $M", "ls -l", "vllm serve 'x", "ollama serve", "vllm serve no/such-model"]
)
def test_errors_are_one_line(run: Run, line: str) -> None:
    one_line_error(run("plan", line))

"""Every hint of a deployment that does not fit, put into the same command line, does what it says."""

from __future__ import annotations

import json
import shlex
from typing import Any

import pytest

from kvplan.cli import main

ARGV = [
    "llama-3.1-70b --gpu h100-sxm",
    "llama-3.1-70b --gpu h100-sxm --gpus 1",
    "llama-3.1-8b --gpu rtx-4090",
    "llama-3.1-8b --gpu rtx-4090 --max-model-len 131072 --concurrency 4",
    "llama-3.1-8b --gpu rtx-4090 --gpu-memory-utilization 0.7",
    "nemotron-h-8b --gpu rtx-4090 --max-model-len 8192 --max-num-seqs 1024",
    "qwen3-32b --gpu h100-sxm --pipeline-parallel-size 1 --max-model-len 40960 --concurrency 64",
    "llama-3.1-8b --gpu rtx-4090 --engine sglang --concurrency 200",
    "qwen3-32b --gpu h100-sxm --engine sglang@0.5.6 --concurrency 64 --prompt-tokens 8000",
    "llama-3.1-70b --gpu h100-sxm --engine tensorrt-llm",
    "llama-3.1-8b --gpu rtx-4090 --engine tensorrt-llm --concurrency 200",
    "llama-3.1-8b --gpu rtx-4090 --engine llama.cpp -c 131072",
    "llama-3.1-8b --gpu rtx-4090 --engine llama.cpp -c 131072 -np 2",
    "llama-3.1-8b --gpu rtx-4090 --engine llama.cpp -c 131072 -ctk f16 -ctv f16",
    "llama-3.1-8b --gpu rtx-4090 --engine llama.cpp --max-model-len 131072",
    "qwen3-32b --gpu rtx-4090 --engine llama.cpp",
    "qwen3-32b --gpu rtx-4090 --engine llama.cpp --weights q4_k_m -c 32768",
    "llama-3.1-8b --gpu rtx-4090 --engine ollama --num-ctx 131072",
    "qwen3-32b --gpu rtx-4090 --engine ollama",
    "llama-3.1-8b --gpu rtx-4090 --engine exllamav3 --max-model-len 131072",
    "llama-3.1-8b --gpu rtx-4090 --engine exllamav3 --max-model-len 65536 --cache-tokens 131072",
    "qwen3-32b --gpu rtx-4090 --engine exllamav3 --max-model-len 8192",
    "llama-3.1-8b --gpu rtx-4090 --engine transformers --max-model-len 131072",
    "qwen3-32b --gpu rtx-4090 --engine transformers --max-model-len 8192",
    "qwen3-32b --gpu m2-max --engine mlx --max-model-len 40960",
    "llama-3.1-8b --gpu rtx-4090 --engine generic --concurrency 8 --prompt-tokens 60000",
]


def run(argv: list[str], capsys: pytest.CaptureFixture[str]) -> tuple[int, dict[str, Any]]:
    status = main.main(["plan", *argv, "--json"])
    out = capsys.readouterr().out
    return status, json.loads(out) if out.strip() else {}


def with_hint(argv: list[str], flag: str, value: str) -> list[str]:
    """The command line with the hint's flags in place of its own."""
    new = [flag, *shlex.split(value)]
    names = {"--ctx-size": ("-c",), "--n-gpu-layers": ("-ngl",), "--cache-type-k": ("-ctk",),
             "--cache-type-v": ("-ctv",), "--tensor-parallel-size": ("-tp",)}  # fmt: skip
    gone = {name for word in new if word.startswith("--") for name in (word, *names.get(word, ()))}
    kept, skip = [], False
    for word in argv:
        if not skip and word not in gone:
            kept.append(word)
        skip = word in gone
    return [*kept, *new]


@pytest.mark.parametrize("line", ARGV)
def test_a_hint_does_what_it_says(line: str, capsys: pytest.CaptureFixture[str]) -> None:
    argv = line.split()
    status, plain = run(argv, capsys)
    if status == 2:
        pytest.fail(line)
    assert status == 1, line
    hints = plain["verdict"]["hints"]
    for hint in hints:
        tried = with_hint(argv, hint["flag"], hint["value"])
        status, after = run(tried, capsys)
        if hint["effect"].startswith("it starts;"):
            assert status in (0, 1), (tried, hint)
            assert after["capacity"]["max_single_request_tokens"] >= after["inputs"]["max_model_len"], tried
        else:
            assert status == 0, (shlex.join(tried), hint, after.get("verdict", {}).get("reason"))

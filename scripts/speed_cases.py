"""Measured decode and prefill speeds as deployments that can be planned; nothing here is kvplan's own figure."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

from kvplan import load_gpu, load_model
from kvplan.engines import get_engine
from kvplan.errors import KvplanError
from kvplan.planning.drafts import served_model
from kvplan.planning.evaluate import evaluate
from kvplan.planning.settings import resolve
from kvplan.planning.speed.figures import Setup, setup
from kvplan.units import GIB

DATA = Path(__file__).resolve().parent.parent / "tests" / "data"
SPEED = DATA / "speed"
ONE = {"concurrency": 1}
VLLM_BENCH = {"concurrency": 1, "prompt_tokens": 1024, "output_tokens": 1024}
"""One request of the serving benchmark."""
BUILD_1691 = {"flash_attn": "off", "prompt_tokens": 1, "output_tokens": 512, "ctx_size": 512}
"""512 tokens generated from an empty prompt."""

FIELD: dict[str, tuple[str, str, str, dict[str, Any]]] = {
    "recipes-muse-glimmer-1x5090": (
        "vllm", "muse-glimmer-30b", "rtx-5090", {**ONE, "weights": "nvfp4", "prompt_tokens": 64, "output_tokens": 600},
    ),
    "vllmbench-qwen2-7b-1gpu-05": ("vllm@0.10.1.1", "qwen2-7b", "a100-pcie-80gb", VLLM_BENCH),
    "vllmbench-qwen2-7b-2gpu-025": (
        "vllm@0.10.1.1", "qwen2-7b", "a100-pcie-80gb", {**VLLM_BENCH, "tensor_parallel_size": 2},
    ),
    "vllmbench-qwen25-32b-1gpu": ("vllm@0.10.1.1", "qwen2.5-32b", "a100-pcie-80gb", VLLM_BENCH),
    "vllmbench-qwen25-32b-2gpu": (
        "vllm@0.10.1.1", "qwen2.5-32b", "a100-pcie-80gb", {**VLLM_BENCH, "tensor_parallel_size": 2},
    ),
    "vllmbench-qwen2-72b-2gpu": (
        "vllm@0.10.1.1", "qwen2-72b", "a100-pcie-80gb", {**VLLM_BENCH, "tensor_parallel_size": 2},
    ),
    "thor-gemma4-31b": ("vllm", "gemma-4-31b", "jetson-thor-t5000", {**ONE, "weights": "nvfp4"}),
    "spark-91-llama33-70b-nvfp4": ("vllm", "llama-3.3-70b", "gb10", {**ONE, "weights": "nvfp4"}),
    "llamacpp-3479-mistral7b-llamacpp": (
        "llama.cpp@b1400", "mistral-7b-v0.1", "a100-sxm4-80gb",
        {**ONE, "weights": "fp16", "flash_attn": "off", "ctx_size": 4096},
    ),
    "gpubench-kv-llama-13b-q4_0-c512": (
        "llama.cpp@b1691", "llama-2-13b", "rtx-3090", {**BUILD_1691, "weights": "q4_0"},
    ),
}  # fmt: skip
"""Case -> (engine, model, GPU, settings). Where no lengths are stated: kvplan's default workload."""
PRINTED_WEIGHTS = {"thor-gemma4-31b"}
"""Cases whose log prints more weights than the named format has: attention stayed in 16 bits. The print is used."""

ASIDE = {
    "vllmbench-qwen2-7b-1gpu-025": "the same machine and workload as -05",
    "exo-1780-maverick-4bit": "an engine that is not modelled (exo)",
    "ik-r1-16x3090-speed": "an engine that is not modelled (ik_llama.cpp)",
    "thor-qwopus27b": "speculative decoding: how many drafts were accepted is not stated",
    "spark-dsv41flash-3x-speed": "a fork over three machines; weight format and network not stated",
    "llamacpp-3479-mistral7b-vllm-bs1": "vLLM 0.2, of which nothing is modelled; quoted from a vendor's guide",
    **{
        f"gpubench-kv-llama-{name}-c512": "several GPUs under build 1691, which cut every matrix by rows, not by layers"
        for name in ("2-13b-q4_0", "2-13b-f16", "13b-f16", "65b-q4_0", "65b-f16")
    },
    "llmfit-203-qwen35-9b": "the model is not in the catalog",
    "vllm-8244-llama405b": "vLLM 0.6.0 in a report of a fault; a mean over a whole run, prefill and queue included",
}


class Measured(NamedTuple):
    """One measurement and the deployment it was made on."""

    name: str
    gpu: str
    setup: Setup
    batch: int
    context: int
    seconds: float
    """Of one decode step."""


def deployment(engine: str, model: str, gpu: str, given: dict[str, Any]) -> Setup:
    """The deployment as the speed formulas take it.

    Raises:
        KvplanError: it cannot be planned.
    """
    spec, device, chosen = load_model(model), load_gpu(gpu), get_engine(engine)
    settings, _ = resolve(spec, device, chosen, given)
    spec = served_model(spec, chosen, settings)
    found = setup(spec, device, chosen, evaluate(spec, device, chosen, settings))
    if isinstance(found, str):
        raise KvplanError(found)
    return found


def lines(path: Path) -> list[dict[str, Any]]:
    """The objects of a JSON-lines file."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def llama_cpp_table() -> list[tuple[dict[str, Any], Setup]]:
    """Every row of the public llama.cpp table with its deployment, which all lengths share."""
    _, *rows = lines(SPEED / "llama_cpp_gpus.jsonl")
    found = []
    for row in rows:
        given = {"weights": row["weights"], "flash_attn": "off", "ctx_size": 8192, "gpus": row["gpus"]}
        found.append((row, deployment("llama.cpp@b2800", row["model"], row["gpu"], given)))
    return found


def reports() -> tuple[list[Measured], list[tuple[str, str]]]:
    """(the public single reports that can be planned, the others with the reason)."""
    found, aside = [], []
    for case in lines(DATA / "cases" / "field.jsonl"):
        if "speed" not in case["kinds"]:
            continue
        if case["id"] not in FIELD:
            aside.append((case["id"], ASIDE[case["id"]]))
            continue
        printed = case["reported"]
        seconds = printed["tpot_ms_bs1"] / 1e3 if "tpot_ms_bs1" in printed else 1 / printed["decode_tok_s"]
        weights = printed["weights_gib"] * GIB if case["id"] in PRINTED_WEIGHTS else None
        found.append((case["id"], FIELD[case["id"]], seconds, weights))
    for case in lines(SPEED / "reports.jsonl"):
        seconds = case["tpot_ms"] / 1e3 if "tpot_ms" in case else 1 / case["tokens_per_second"]
        found.append((case["id"], (case["engine"], case["model"], case["gpu"], case["settings"]), seconds, None))
    measured = []
    for name, (engine, model, gpu, given), seconds, weights in found:
        try:
            made = deployment(engine, model, gpu, given)
        except KvplanError as error:
            aside.append((name, str(error)))
            continue
        if weights is not None:
            made = made._replace(works=(made.works[0]._replace(weight_bytes=int(weights)),))
        context = given.get("prompt_tokens", 1024) + given.get("output_tokens", 256) // 2
        measured.append(Measured(f"{name} ({engine})", gpu, made, given.get("concurrency", 1), context, seconds))
    return measured, aside

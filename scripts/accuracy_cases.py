"""From public start-up reports to plans: which of them can be planned, and what they printed.

Nothing here is a figure of kvplan's own: names are mapped, settings carried over, gaps named.
"""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from kvplan import load_gpu, load_model
from kvplan.errors import KvplanError
from kvplan.spec.gpu import GpuSpec
from kvplan.spec.model import ModelSpec
from kvplan.units import GIB

FILES = ("field.jsonl", "field_2026.jsonl", "field_more.jsonl")
CASES = Path(__file__).resolve().parent.parent / "tests" / "data" / "cases"

GPUS = {
    "A100 80GB": "a100-sxm4-80gb", "A100 40GB": "a100-sxm4-40gb", "B200 192GB": "b200", "H200 141GB": "h200-sxm",
    "RTX PRO 6000 Blackwell 96GB": "rtx-pro-6000-blackwell-ws", "RTX 5090-class 32GB": "rtx-5090",
}  # fmt: skip
"""Names of the reports that the GPU catalog does not take, or finds ambiguous."""
INFERRED_VERSIONS = {
    "fresh-69451098589-32b-u70": ("0.28.0", "log of September 2026 with the line of 0.27 or later"),
    "fresh-69451098589-32b-u85": ("0.28.0", "the same machine"),
    "fresh-69451098589-14b-16384": ("0.28.0", "the same machine"),
    "fresh-69451098589-14b-32768": ("0.28.0", "the same machine"),
    "fresh-61120944849-rocm80-qwen38-27b": ("0.27.0", "main of 16 August 2026, V1 runner for a hybrid"),
    "fresh-61120944849-rocm80-qwen38-27b-mtp": ("0.27.0", "the same build"),
    "vllm-44376-dsv4flash": ("0.22.0", "the report says 0.22-era"),
    "vllm-53961-dsv4pro": ("0.29.0", "main of August 2026; it counts the bytes of a request as 0.29 does"),
    "fresh-vllm-21489-b200-gemma3-4b": ("0.10.0", "the report is of July 2025"),
}
OLDEST = "0.8.5"
INFERRED_GPUS = {
    "fresh-67144197265-qwen25-7b": ("l40s", "44.6 GiB by the printed utilisation"),
    "log-54492899325-24gb-gemma4-e4b": ("rtx-3090", "23.7 GiB by the printed utilisation"),
    "fresh-51830815744-wsl-qwen36-35b-nvfp4": ("rtx-5090", "32.0 GiB by the printed utilisation, native NVFP4"),
    "fresh-61120944849-rocm80-qwen38-27b": ("strix-halo", "gfx1151, 80.0 GiB printed"),
    "fresh-61120944849-rocm80-qwen38-27b-mtp": ("strix-halo", "gfx1151, 80.0 GiB printed"),
}
INFERRED_SETTINGS: dict[str, tuple[dict[str, Any], str]] = {
    "fresh-61120944849-rocm80-qwen38-27b": ({"max_num_seqs": 256}, "2,048 batched tokens are the small tier's default"),
    "fresh-61120944849-rocm80-qwen38-27b-mtp": ({"max_num_seqs": 256}, "the same"),
    "vllm-44376-dsv4flash": ({"max_num_batched_tokens": 16384}, "needed bytes and longest length follow from it alone"),
}
SAME_SHAPE = {"qwen3.8-27b": "qwen3.6-27b", "deepseek-r1-distill-qwen-14b": "qwen2.5-14b"}
"""A model outside the catalog whose layers are those of another."""
NOT_PLANNED = {
    "fresh-70820752248-spark-negative-activation": "prints a negative activation (unified memory)",
    "fresh-70820752248-spark-pinned-kv": "kv_cache_memory_bytes given: nothing is modelled",
    "fresh-63441798540-rtxpro6000x3-glm53flash": "a fork with its own kernels",
    "fresh-57852185537-rtxpro6000x2-dsv4-dspark": "a fork with its own kernels, and a draft whose size is not stated",
    "vllm-16104-maverick-h100": "an advised length, not a printed figure",
    "vllm-15340-r1-tp16": "a V0 engine and a GGUF mix that is not named",
    "gemma4-31b-awq-vllm020": "figures marked as approximate in the source",
    "gemma4-31b-awq-vllm021": "figures marked as approximate in the source",
    "vllmbench-qwen2-7b-2gpu-40gb-diffnode": "two nodes: what the network transport holds is not modelled",
    "fresh-vllm-33263-24gb-qwen3-17b": "the GPU is not named, and no 24 GB card holds what it prints at 0.9",
    "fresh-recipes-273-mi300x2-minimax-m2": "the utilisation is not stated",
    "fresh-29233847939-rtxpro6000x4-glm47-nvfp4": "weights and cache together exceed the stated share of 0.8",
}  # fmt: skip
LOGGED_SAMPLER = {
    "vllmbench": True,
    "fresh-7292846353": False,
}
"""Sources (0.11.0 and before) whose log says whether it is "Using FlashInfer for top-p & top-k sampling"."""
REFUSALS: dict[str, tuple[tuple[str, dict[str, Any]], ...]] = {
    "llmd-qwen3-32b-tp1": (("llmd-qwen3-32b-tp1 at 32,000", {"max_model_len": 32000}),),
    "llmd-llama33-70b-fp8": (("llmd-llama33-70b-fp8 on one GPU", {"tensor_parallel_size": 1}),),
}
"""Starts that a report says were refused besides the one it prints: (name, what differs)."""
NO_SIZING = {
    "fresh-29233847939-rtxpro6000x4-glm47-u90": "ran out of memory in the sampler's warm-up, after the cache was sized",
    "fresh-61120944849-rocm80-mmprofile-oom": "the encoder's attention asked for 256 GiB, for want of a flash kernel",
    "nim-95-nemotron120b": "refused for max_num_seqs over the state blocks; the model is not in the catalog",
}
"""Failed starts that no budget explains."""
SPECULATIVE = {"mtp": '{"method": "mtp"}', "mtp 1": '{"method": "mtp", "num_speculative_tokens": 1}'}
PASSED = (
    "max_num_seqs", "max_num_batched_tokens", "gpu_memory_utilization", "block_size", "kv_cache_dtype", "enforce_eager",
    "max_model_len", "enable_expert_parallel", "enable_prefix_caching",
)  # fmt: skip
EXTRA = ("skip_mm_profiling", "language_model_only", "max_cudagraph_capture_size", "compile_cache")


class Case(NamedTuple):
    """One report that can be planned."""

    id: str
    source: str
    """Reports of one author on one machine share it."""
    version: str
    model: ModelSpec
    gpu: GpuSpec
    given: dict[str, Any]
    extra: dict[str, Any]
    reported: dict[str, Any]
    outcome: str
    inferred: str
    """What had to be inferred (version, GPU, shape); empty: everything was stated."""

    @property
    def available_bytes(self) -> int:
        """What the engine printed as available for the cache, per GPU."""
        return round(float(self.reported["available_kv_gib"]) * GIB)


def read_all() -> list[dict[str, Any]]:
    """Every end-to-end case of vLLM in the files."""
    found = []
    for name in FILES:
        for line in (CASES / name).read_text(encoding="utf-8").splitlines():
            case = json.loads(line)
            ends = "end-to-end" in case.get("kinds", ())
            if case["engine"] == "vllm" and ends and case.get("modelled_engine") is not False:
                found.append(case)
    return found


def source_of(case: dict[str, Any]) -> str:
    """An id for the report's author and machine."""
    head = re.match(r"(fresh-\d+|log-\d+|fresh-[a-z0-9]+-\d+|[a-z0-9]+)", case["id"])
    return head.group(0) if head else str(case["id"])


def plannable(case: dict[str, Any], *, refused: bool = False) -> Case | str:
    """The case ready to plan, or why it is set aside.

    Args:
        refused: only the verdict is wanted: no bytes need be printed, and an unknown version counts as the oldest.
    """
    aside = {**NOT_PLANNED, **NO_SIZING}.get(case["id"])
    if aside:
        return aside
    if not refused and "available_kv_gib" not in case["reported"]:
        return "does not print the bytes of the cache"
    notes: list[str] = []
    version = _version(case, notes)
    if version is None and refused:
        version = OLDEST
        notes.append(f"version {case.get('engine_version') or 'not stated'}, planned as {OLDEST}")
    if version is None:
        return f"version {case.get('engine_version') or 'not stated'}"
    gpu = _gpu(case, notes)
    if isinstance(gpu, str):
        return gpu
    model = _model(case, notes)
    if isinstance(model, str):
        return model
    settings = case["settings"]
    given = {name: settings[name] for name in PASSED if name in settings}
    given["tensor_parallel_size"] = settings.get("tp", 1)
    given["pipeline_parallel_size"] = settings.get("pp", 1)
    given["data_parallel_size"] = settings.get("dp", 1)
    if case["id"] in INFERRED_SETTINGS:
        more, why = INFERRED_SETTINGS[case["id"]]
        given.update(more)
        notes.append(f"{', '.join(f'{k} {v}' for k, v in more.items())}: {why}")
    if given.pop("enable_prefix_caching", None) is False:
        given["enable_prefix_caching"] = False
    if settings.get("speculative"):
        speculative = SPECULATIVE.get(settings["speculative"])
        if speculative is None:
            return f"speculation {settings['speculative']!r} whose draft is not in the catalog"
        given["speculative_config"] = speculative
    weights = _weights(case, model)
    if weights:
        given["weights"] = weights
    extra = {name: settings[name] for name in EXTRA if name in settings}
    if source_of(case) in LOGGED_SAMPLER:
        extra["flashinfer_sampler"] = LOGGED_SAMPLER[source_of(case)]
    return Case(
        case["id"],
        source_of(case),
        version,
        model,
        gpu,
        given,
        extra,
        case["reported"],
        case["outcome"],
        "; ".join(notes),
    )


def _version(case: dict[str, Any], notes: list[str]) -> str | None:
    if case["id"] in INFERRED_VERSIONS:
        version, why = INFERRED_VERSIONS[case["id"]]
        notes.append(f"version {version}: {why}")
        return version
    said = case.get("engine_version") or ""
    found = re.match(r"(\d+)\.(\d+)(\.\d+)*", said)
    if found is None or "fork" in said or "era" in said or (int(found.group(1)), int(found.group(2))) < (0, 8):
        return None
    return found.group(0)


def _gpu(case: dict[str, Any], notes: list[str]) -> GpuSpec | str:
    name = case.get("gpu")
    if case["id"] in INFERRED_GPUS:
        name, why = INFERRED_GPUS[case["id"]]
        notes.append(f"GPU {name}: {why}")
    if not name:
        return "the GPU is not named"
    short = re.sub(r"\s*\(.*?\)", "", name)
    try:
        gpu = load_gpu(GPUS.get(short, short))
    except KvplanError as error:
        return f"GPU {name}: {error}"
    total = case["reported"].get("total_gpu_gib")
    return (
        replace(gpu, torch_total_bytes=round(total * GIB), torch_total_source="printed in this log") if total else gpu
    )


def _model(case: dict[str, Any], notes: list[str]) -> ModelSpec | str:
    plain = re.sub(r"\s*\(.*", "", case["model"])
    tail = plain.split("/")[-1].split()[-1 if " " in plain and "/" not in plain and "27B" in plain else 0]
    bare = re.sub(r"-(FP8|NVFP4)$", "", tail)
    for name in (case["model"], plain, plain.split("/")[-1], tail, SAME_SHAPE.get(bare.lower(), "")):
        try:
            model = load_model(name)
        except KvplanError:
            continue
        if name and name == SAME_SHAPE.get(bare.lower()):
            notes.append(f"shape of {name}")
        return model
    return f"model {case['model']} is not in the catalog"


def _weights(case: dict[str, Any], model: ModelSpec) -> str | None:
    """A weight format to ask for where the name alone did not give one."""
    said = (case.get("quantization") or "").lower()
    if model.checkpoint is not None and "bf16" not in said:
        return None
    for word, name in (("fp8", "fp8_block"), ("nvfp4", "nvfp4"), ("awq", "awq"), ("gptq", "gptq"), ("bf16", "bf16")):
        if word in said:
            return name if name != "bf16" or model.checkpoint else None
    return None

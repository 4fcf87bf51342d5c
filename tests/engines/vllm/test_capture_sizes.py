"""Batch sizes whose CUDA graphs are captured, as the method of each release answers.

``tests/data/cases/vllm_capture_sizes.jsonl``: what ``_set_cudagraph_sizes`` of the published wheels (0.11.0:
``vllm/config/__init__.py``, later ``vllm/config/vllm.py``) sets for random settings, as runs [first, last, step].
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kvplan.catalog import load_gpu
from kvplan.engines.base import Settings
from kvplan.engines.vllm.budget_outside import capture_sizes

FILE = Path(__file__).parents[2] / "data" / "cases" / "vllm_capture_sizes.jsonl"
CASES = [json.loads(line) for line in FILE.read_text(encoding="utf-8").splitlines()]


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case['vllm']}-{case['max_num_seqs']}-{case['drafts']}")
def test_sizes_of_every_release(case: dict[str, Any]) -> None:
    asked = ("max_cudagraph_capture_size", "performance_mode")
    settings = Settings(
        engine="vllm", engine_version=case["vllm"], max_num_seqs=case["max_num_seqs"],
        max_num_batched_tokens=case["max_num_batched_tokens"], extra={name: case.get(name) for name in asked},
    )  # fmt: skip
    gpu = load_gpu("b200" if case["capability"] == 10 else "h100-sxm")
    sizes = {
        size for first, *rest in case["sizes"] for size in range(first, (rest or [first])[0] + 1, (rest or [0, 1])[1])
    }
    assert capture_sizes(settings, gpu, case["drafts"]) == sorted(sizes)

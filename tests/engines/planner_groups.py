"""The groups of a plan's first stage as vLLM's own planner lists them, for tests that hold the two together."""

from __future__ import annotations

from typing import Any

from kvplan.catalog import load_gpu
from kvplan.engines import get_engine
from kvplan.planning.drafts import served_model
from kvplan.planning.evaluate import build_stages
from kvplan.planning.settings import resolve
from kvplan.planning.weights import weight_format
from kvplan.spec.model import ModelSpec

DEVICES = {
    "8.0": "a100-80gb-sxm", "8.9": "l40s", "9.0": "h100-sxm", "10.0": "b200", "12.0": "rtx-pro-6000-blackwell-server",
}  # fmt: skip
"""Compute capability -> the device whose memory and name the engine was told."""


def groups(release: str, model: ModelSpec, capability: str, given: dict[str, Any]) -> list[list[Any]]:
    """Layers, kind, tokens of a block and bytes of a page of each group.

    Of stages the engine tells one's layers, of layers that differ in size one's page: these are left out.
    """
    engine = get_engine(f"vllm@{release}")
    settings, _ = resolve(model, load_gpu(DEVICES[capability]), engine, given)
    served = served_model(model, engine, settings)
    stages, _ = build_stages(served, engine, settings, weight_format(served, "auto"))
    found = engine.layout(stages[0], settings).groups  # type: ignore[attr-defined]
    one = len(found) == 1 and found[0].mixed
    return sorted(
        [
            0 if len(stages) > 1 else len(g.members), g.first.family, g.first.block_size,
            0 if one else g.first.page_bytes,
        ]
        for g in found
    )  # fmt: skip

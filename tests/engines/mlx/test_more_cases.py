"""More recorded caches of MLX-LM 0.32.2: whole models, and the slots of its classes push by push."""

from __future__ import annotations

import json
import lzma
from pathlib import Path
from typing import Any

import pytest

from kvplan import plan
from kvplan.engines.base import Allocation
from kvplan.engines.mlx import growth
from kvplan.errors import UnsupportedError
from kvplan.planning.planner import plan_deployment
from kvplan.sources.hf.read import read_config

DATA = Path("tests/data/cases")
MORE = (DATA / "mlx_lm_more.jsonl").read_text()
WIDE = lzma.decompress((DATA / "mlx_lm_wide.jsonl.xz").read_bytes()).decode()
CASES = [json.loads(line) for line in (*MORE.splitlines(), *WIDE.splitlines())]
SLOTS = json.loads((DATA / "mlx_lm_slots.json").read_text())
"""[class, prompt, prompt and output tokens, prefill step, window or chunk, slots at the end, slots after the prompt]"""


def allocated(case: dict[str, Any]) -> Allocation:
    given = case["settings"]
    model = read_config({**case["config"], "dtype": given["dtype"]}, name=case["id"])
    settings = {
        "concurrency": given.get("batch", 1), "prompt_tokens": given["prompt"], "output_tokens": given["decode"],
        "prefill_step_size": given["prefill_step"],
        "max_model_len": max(model.max_position_embeddings or 0, given["prompt"] + given["decode"] + 10),
    }  # fmt: skip
    if "bits" in given:
        settings |= {"kv_bits": given["bits"], "kv_group_size": given["group_size"], "quantized_kv_start": 0}
    if "max_kv_size" in given:
        settings["max_kv_size"] = given["max_kv_size"]
    laid = plan_deployment(model, None, "mlx@0.32.2", settings).allocation
    assert laid is not None
    return laid


@pytest.mark.parametrize("case", CASES, ids=lambda c: f"{c['id']}-{c['arch']}")
def test_bytes_held(case: dict[str, Any]) -> None:
    laid = allocated(case)
    assert laid.bytes == case["observed"]["kv_bytes"]
    assert laid.peak_bytes is not None
    assert laid.peak_bytes >= max(stage["bytes"] for stage in case["observed"]["stages"])


@pytest.mark.parametrize("name", ["plain", "rotating", "rotating_keep", "chunked"])
def test_slots_push_by_push(name: str) -> None:
    rows = [row for row in SLOTS if row[0] == name]
    assert len(rows) > 80
    for _, prompt, tokens, step, window, last, after in rows:
        if name == "plain":
            found = growth.plain(prompt, tokens, step)
        elif name == "chunked":
            found = growth.chunked(prompt, tokens, step, window)
        else:
            found = growth.rotating(prompt, tokens, step, window)
        assert (found.last, found.after_prompt) == (last, after), (prompt, tokens, step, window)


@pytest.mark.parametrize("model", ["gemma-2-9b", "phi-2"])
def test_attention_that_does_not_take_a_quantised_cache(model: str) -> None:
    with pytest.raises(UnsupportedError, match="does not take a quantised cache"):
        plan(model, engine="mlx", kv_bits=4, quantized_kv_start=0, kv_group_size=32)

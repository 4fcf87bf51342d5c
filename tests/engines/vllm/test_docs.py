"""The examples of docs/engines/vllm.md, recomputed."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

from kvplan.catalog import load_gpu, load_model
from kvplan.engines.options import Option
from kvplan.engines.vllm.flags import LAYOUT, OPTIONS, SERVED
from kvplan.engines.vllm.versions import CHANGES, RELEASES
from kvplan.planning.plan import Capacity
from kvplan.planning.planner import plan_deployment

PAGE = Path(__file__).parents[3] / "docs" / "engines" / "vllm.md"
ROW = re.compile(r"^\| `([^`]+)` \| ([\d,]+) \| (\d+) \| ([\d,]+) \| ([\d,]+) \| ([\d.]+) \|$", re.MULTILINE)


def compute(command: str, have: int) -> Capacity:
    """What a model and its flags hold in so many bytes per GPU."""
    name, *words = shlex.split(command)
    options: dict[str, Option] = {flag: option for option in (*LAYOUT, *OPTIONS, *SERVED) for flag in option.flags}
    given: dict[str, Any] = {"kv_cache_memory_bytes": have}
    engine, gpu = "vllm", "h100-sxm"
    while words:
        word = words.pop(0)
        if word == "--engine":
            engine = words.pop(0)
        elif word == "--gpu":
            gpu = words.pop(0)
        else:
            option = options[word]
            given[option.setting] = option.kind == "true" if option.is_switch else option.read(words.pop(0))
    found = plan_deployment(load_model(name), load_gpu(gpu), engine, given).capacity
    assert found is not None
    return found


def number(text: str) -> int:
    return int(text.replace(",", ""))


def test_examples_hold() -> None:
    rows = ROW.findall(PAGE.read_text(encoding="utf-8"))
    assert len(rows) >= 12
    for command, have, block, blocks, tokens, concurrency in rows:
        found = compute(command, number(have))
        assert found.block_size == int(block), command
        assert found.num_blocks == number(blocks), command
        assert found.engine_reported_tokens == number(tokens), command
        assert f"{found.max_concurrency:.2f}" == concurrency, command


def test_the_page_names_the_releases_that_were_read() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert RELEASES[0] in text
    assert RELEASES[-1] in text
    assert all(change.source.startswith("vllm/") for change in CHANGES.values())

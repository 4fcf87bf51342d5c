"""More recorded caches of transformers 5.24.0 and 4.57.6, of every decoder family that classes and kvplan both know.

Recorded on the CPU from the classes' own defaults with some sizes changed: what the cache object holds after a prompt
and some steps, and the storages that its tensors keep alive after each.
"""

from __future__ import annotations

import json
import lzma
from pathlib import Path
from typing import Any

import pytest

from kvplan import plan
from kvplan.engines.base import Allocation
from kvplan.errors import UnsupportedError
from kvplan.planning.planner import plan_deployment
from kvplan.sources.hf.read import read_config

DATA = Path("tests/data/cases")
MORE = (DATA / "transformers_more.jsonl").read_text()
WIDE = lzma.decompress((DATA / "transformers_wide.jsonl.xz").read_bytes()).decode()
CASES = [json.loads(line) for line in (*MORE.splitlines(), *WIDE.splitlines())]
NAMES = {
    "nbits": "cache_nbits", "q_group_size": "cache_group_size", "residual_length": "cache_residual_length",
    "backend": "cache_backend", "max_cache_len": "max_cache_len",
}  # fmt: skip
OUTSIDE = "recurrent outside the cache"


def allocated(case: dict[str, Any]) -> Allocation:
    given = case["settings"]
    model = read_config({**case["config"], "dtype": given["dtype"]}, name=case["id"])
    settings = {ours: given[theirs] for theirs, ours in NAMES.items() if theirs in given}
    tokens = given["prompt_tokens"] + given["decode_steps"]
    settings |= {
        "cache_implementation": "dynamic" if given["cache"] == "own" else given["cache"],
        "concurrency": given["batch"], "prompt_tokens": given["prompt_tokens"], "output_tokens": given["decode_steps"],
        "max_model_len": max(model.max_position_embeddings or 0, tokens + 8),
    }  # fmt: skip
    laid = plan_deployment(model, None, f"transformers@{case['version']}", settings).allocation
    assert laid is not None
    return laid


@pytest.mark.parametrize("case", CASES, ids=lambda c: f"{c['id']}-{c['arch']}")
def test_bytes_held(case: dict[str, Any]) -> None:
    laid, seen = allocated(case), case["observed"]
    inside = [p for p in (*laid.pools, *laid.states) if p.kind != OUTSIDE]
    beside = sum(size for kind, size in seen["bytes_by_kind"].items() if kind.startswith("cache."))
    assert sum(p.bytes for p in inside) == seen["kv_bytes"] - beside
    assert beside in (0, sum(p.bytes for p in laid.states if p.kind == OUTSIDE))
    states = sum(seen["bytes_by_kind"].get(kind, 0) for kind in ("conv_states", "recurrent_states"))
    assert sum(p.bytes for p in inside if p.kind == "recurrent") == states


@pytest.mark.parametrize("case", CASES, ids=lambda c: f"{c['id']}-{c['arch']}")
def test_peak_covers_the_storages(case: dict[str, Any]) -> None:
    laid = allocated(case)
    assert laid.peak_bytes is not None
    assert laid.peak_bytes >= max(case["observed"]["storage_bytes"])


def test_the_corpus_is_wide() -> None:
    assert len({c["arch"] for c in CASES}) > 90


@pytest.mark.parametrize(
    ("model", "engine", "settings"),
    [
        ("deepseek-v4-flash", "transformers@5.6.0", {}),
        ("deepseek-v4.1-flash", "transformers", {}),
        ("deepseek-v4-flash", "transformers", {"cache_implementation": "static"}),
        ("deepseek-v4-flash", "transformers", {"cache_implementation": "quantized"}),
        ("falcon-h1-7b", "transformers@4.57.6", {"cache_implementation": "static"}),
    ],
)
def test_refused_caches(model: str, engine: str, settings: dict[str, Any]) -> None:
    with pytest.raises(UnsupportedError) as caught:
        plan(model, engine=engine, **settings)
    assert caught.value.hint


def test_static_caches_with_states_since_5() -> None:
    laid = plan("falcon-h1-7b", engine="transformers", cache_implementation="static").allocation
    assert laid is not None
    assert laid.state_bytes


def test_tokens_wait_for_their_entry() -> None:
    """One token short of an entry, all that wait are held beside it, value and gate; then the entry alone."""

    def held(tokens: int) -> dict[str, int]:
        laid = plan("deepseek-v4-flash", engine="transformers", prompt_tokens=tokens - 1, output_tokens=1).allocation
        assert laid is not None
        return {p.kind: p.bytes for p in (*laid.pools, *laid.states)}

    short, whole = held(1023), held(1024)
    overlap = 21 * 2 * 4 * 640 * 2
    assert short["compressor"] == overlap + 2 * 2 * (20 * 127 * 512 + 21 * 3 * 2 * 640)
    assert whole["compressor"] == overlap
    assert whole["compressed"] - short["compressed"] == 2 * 512 * (20 + 21)
    assert whole["index"] == 21 * 256 * 128 * 2
    assert whole["sliding"] == 127 * 512 * 2 * (41 + 2 * 2)

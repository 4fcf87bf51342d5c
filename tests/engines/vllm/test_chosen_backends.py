"""The attention backend that vLLM's own selector picked, release by release: 0.20.0 to 0.33.0.

Each release's ``vllm/v1/attention/selector.py`` and ``vllm/platforms/cuda.py`` ran without a device, with every kernel
taken to be there: three kinds of attention, six compute capabilities, the formats of a cache, and sizes of a block. A
deployment is of eight ranks where attention is latent, which leaves 16 query heads to each.
"""

from __future__ import annotations

import json
import lzma
from pathlib import Path

import pytest

from kvplan.catalog import load_gpu, load_model
from kvplan.engines.vllm.choices import defaults
from kvplan.engines.vllm.versions import Rules, parse
from kvplan.errors import KvplanError

FILE = Path(__file__).parents[2] / "data" / "cases" / "vllm_backends.json.xz"
CHOSEN: dict[str, list[tuple[str, str, str, int | None, str | None]]] = json.loads(lzma.decompress(FILE.read_bytes()))
"""Release -> rows of capability, kind, ``--kv-cache-dtype``, ``--block-size``, and the backend (None: none)."""
DEVICES = {
    "7.5": "t4", "8.0": "a100-80gb-sxm", "8.9": "l40s", "9.0": "h100-sxm", "10.0": "b200",
    "12.0": "rtx-pro-6000-blackwell-server",
}  # fmt: skip
MODELS = {"dense": "llama-3.1-8b", "mla": "deepseek-v3", "sparse": "deepseek-v3.2"}
REFUSES_LATER = {"TRITON_ATTN": (0, 24, 0), "TRITON_MLA": (0, 26, 0)}
"""Backends that are picked for fp8 below capability 8.9 and then refuse it: the release that began
(``vllm/v1/attention/backends/triton_attn.py``, ``mla/triton_mla.py``)."""


def picked(capability: str, kind: str, dtype: str, block: int | None, release: str) -> str | None:
    given = {"kv_cache_dtype": dtype, "tensor_parallel_size": 1 if kind == "dense" else 8}
    given |= {"block_size": block} if block else {}
    try:
        found = defaults(load_model(MODELS[kind]), load_gpu(DEVICES[capability]), given, Rules(release), None)
    except KvplanError:
        return None
    return str(found["attention_backend"][0])


@pytest.mark.parametrize("capability", DEVICES)
@pytest.mark.parametrize("release", CHOSEN)
def test_the_backend_that_the_engine_picks(release: str, capability: str) -> None:
    rows = [row for row in CHOSEN[release] if row[0] == capability]
    assert len(rows) > 30
    for _, kind, dtype, block, chosen in rows:
        since = REFUSES_LATER.get(chosen or "")
        refused = dtype.startswith("fp8") and float(capability) < 8.9 and since and parse(release) >= since
        found = picked(capability, kind, dtype, block, release)
        assert found == (None if refused else chosen), (kind, dtype, block)

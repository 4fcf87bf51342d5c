"""First releases as vLLM's own files have them: formats of the cache, connectors, batch sizes that are captured.

Read in the wheels of 0.11.0 to 0.33.0: ``CacheDType`` in ``vllm/config/cache.py``; classes that inherit ``SupportsHMA``
in ``vllm/distributed/kv_transfer/kv_connector/v1``; ``_set_cudagraph_sizes`` in ``vllm/config/vllm.py``.
"""

from __future__ import annotations

from typing import Any

import pytest

from kvplan import load_gpu, load_model, plan
from kvplan.engines import get_engine
from kvplan.engines.vllm.budget_outside import capture_sizes
from kvplan.engines.vllm.choices import FORMATS
from kvplan.engines.vllm.connectors import HYBRID
from kvplan.errors import InputError, KvplanError
from kvplan.planning.settings import resolve

CACHE_DTYPES = {
    "0.11.0": "bf16 fp8_e4m3 fp8_e5m2", "0.12.0": "fp8_ds_mla", "0.18.0": "fp16",
    "0.20.0": "turboquant_k8v4 turboquant_4bit_nc turboquant_k3v4_nc turboquant_3bit_nc int8_per_token_head "
              "fp8_per_token_head nvfp4",
    "0.25.0": "int4_per_token_head", "0.30.0": "nvfp4_ds_mla",
}  # fmt: skip
SUPPORTS_HMA = {
    "0.18.0": "NixlConnector", "0.19.0": "SimpleCPUOffloadConnector", "0.20.0": "MooncakeConnector",
    "0.21.0": "MultiConnector OffloadingConnector DecodeBenchConnector",
    "0.22.0": "ExampleHiddenStatesConnector MooncakeStoreConnector",
    "0.24.0": "NixlPullConnector NixlPushConnector",  # by NixlBaseConnector
    "0.30.0": "MoRIIOConnector HiSparseConnector", "0.33.0": "UMBPStoreConnector",
}  # fmt: skip


def by_name(releases: dict[str, str]) -> dict[str, str]:
    return {name: release for release, names in releases.items() for name in names.split()}


@pytest.mark.parametrize(
    ("known", "read"), [(FORMATS, CACHE_DTYPES), (HYBRID, SUPPORTS_HMA)], ids=["formats", "connectors"]
)
def test_what_began_when(known: dict[str, tuple[int, int, int]], read: dict[str, str]) -> None:
    assert {name: ".".join(map(str, since)) for name, since in known.items()} == by_name(read)


def test_a_format_is_refused_until_its_release() -> None:
    model, gpu = load_model("llama-3.1-8b"), load_gpu("h100-sxm")
    for release, before in (("0.20.0", "0.19.0"), ("0.33.0", "0.18.0")):
        given: dict[str, Any] = {"max_model_len": 4096, "kv_cache_dtype": "turboquant_4bit_nc"}
        engine = get_engine(f"vllm@{release}")
        engine.check(model, resolve(model, gpu, engine, given)[0], gpu)
        with pytest.raises(KvplanError, match=r"since 0\.20\.0"):
            plan(model, gpu=gpu, engine=f"vllm@{before}", **given)


UP_TO_256 = [1, 2, 4, *range(8, 257, 8)]


@pytest.mark.parametrize(
    ("release", "gpu", "given", "sizes"),
    [
        ("0.33.0", "h100-sxm", {"max_num_seqs": 1024}, [*UP_TO_256, *range(272, 513, 16)]),
        ("0.33.0", "h100-sxm", {"max_num_seqs": 256}, [*UP_TO_256, *range(272, 513, 16)]),
        ("0.33.0", "h100-sxm", {"max_num_seqs": 140}, sorted([*UP_TO_256, 140, 272])),
        ("0.30.0", "h100-sxm", {"max_num_seqs": 140}, [*UP_TO_256, 272]),
        ("0.33.0", "h100-sxm", {"max_num_seqs": 1}, [1, 2]),
        ("0.33.0", "b200", {"max_num_seqs": 1024}, [*UP_TO_256, *range(272, 1025, 16)]),
        ("0.28.0", "b200", {"max_num_seqs": 1024}, [*UP_TO_256, *range(272, 1025, 16)]),
        ("0.27.0", "b200", {"max_num_seqs": 1024}, [*UP_TO_256, *range(272, 513, 16)]),
        ("0.11.0", "h100-sxm", {"max_num_seqs": 1024}, [*UP_TO_256, *range(264, 513, 8)]),
        ("0.12.0", "h100-sxm", {"max_num_seqs": 1024}, [*UP_TO_256, *range(272, 513, 16)]),
        ("0.33.0", "h100-sxm", {"max_num_seqs": 64, "max_num_batched_tokens": 64}, [1, 2, 4, *range(8, 65, 8)]),
        ("0.33.0", "h100-sxm", {"max_cudagraph_capture_size": 20}, [1, 2, 4, 8, 16]),
        ("0.33.0", "h100-sxm", {"max_cudagraph_capture_size": 300}, [*UP_TO_256, 272, 288]),
        ("0.33.0", "h100-sxm", {"max_cudagraph_capture_size": 1 << 16, "max_num_batched_tokens": 64},
         [1, 2, 4, *range(8, 65, 8)]),
    ],
)  # fmt: skip
def test_batch_sizes_that_are_captured(release: str, gpu: str, given: dict[str, Any], sizes: list[int]) -> None:
    model, device, engine = load_model("llama-3.1-8b"), load_gpu(gpu), get_engine(f"vllm@{release}")
    settings, _ = resolve(model, device, engine, {"max_model_len": 64, **given})
    assert capture_sizes(settings, device) == sizes


def test_batches_to_capture_beyond_reason_are_refused_at_once() -> None:
    given = {"max_model_len": 64, "max_num_batched_tokens": 1 << 20, "max_cudagraph_capture_size": (1 << 16) + 1}
    with pytest.raises(InputError, match="--max-cudagraph-capture-size: 65,537 is absurdly large"):
        plan("llama-3.1-8b", gpu="h100-sxm", **given)


def test_drafts_widen_the_batches_that_are_captured() -> None:
    model, device, engine = load_model("llama-3.1-8b"), load_gpu("h100-sxm"), get_engine("vllm")
    settings, _ = resolve(model, device, engine, {"max_model_len": 64, "max_num_seqs": 10})
    assert capture_sizes(settings, device) == [1, 2, 4, 8, 10, 16]
    assert capture_sizes(settings, device, 2) == sorted({1, 2, 4, *range(8, 61, 8), 3, 6, 12, 30})

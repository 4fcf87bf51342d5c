"""DeepSeek-V4 before 0.29: layer tuples and slots, worked out by hand from the release's rules; its budget."""

from __future__ import annotations

from typing import Any

import pytest

from kvplan.catalog import load_gpu, load_model
from kvplan.engines.vllm.budget_sparse import LOGITS_BYTES
from kvplan.errors import UnsupportedError
from kvplan.planning.plan import Plan
from kvplan.planning.planner import plan_deployment

ENTRY, INDEX, FAR = 37_440, 8_640, 1_728
"""Pages of 256 tokens: 64 entries of 584 bytes, 64 index keys of 132, 2 entries of 584, each in multiples of 576."""
WINDOWS, NEAR, FAR_LAYERS = 43, 21, 20
"""Layers with a window, with ratio 4, with ratio 128."""
TUPLES = 22
"""Chunks of 22 round 21, 43, 21 and 20 tuples up by 1 + 1 + 1 + 2; any other of 21 to 43 by more."""
WHOLE_BYTES = NEAR * (ENTRY + INDEX) + FAR_LAYERS * FAR


def planned(version: str, **given: Any) -> Plan:
    asked = {"tensor_parallel_size": 2, "max_model_len": 262_144, "max_num_batched_tokens": 8_192, **given}
    return plan_deployment(load_model("deepseek-v4-flash"), load_gpu("h200-nvl"), f"vllm@{version}", asked)


@pytest.mark.parametrize(
    ("version", "block_bytes"),
    [
        ("0.20.1", TUPLES * (ENTRY + INDEX + FAR)),
        ("0.22.0", TUPLES * (ENTRY + INDEX + FAR)),
        ("0.23.0", TUPLES * ENTRY + NEAR * INDEX + FAR_LAYERS * FAR),
        ("0.26.0", TUPLES * ENTRY + NEAR * INDEX + FAR_LAYERS * FAR),
        ("0.27.0", WHOLE_BYTES),
        ("0.28.0", WHOLE_BYTES),
        ("0.29.0", WHOLE_BYTES),
    ],
)
def test_bytes_of_a_block(version: str, block_bytes: int) -> None:
    found = planned(version, kv_cache_memory_bytes=1000 * block_bytes + block_bytes - 1).capacity
    assert found is not None
    assert found.num_blocks == 1000
    assert found.block_size == 256


def pages(batched: int) -> tuple[int, int, int, int]:
    """Blocks of one request of 262,144 tokens in the whole, window, near and far groups."""
    return 1024, -(-(127 + batched) // 64) + 1, -(-(7 + batched) // 4) + 1, -(-(127 + batched) // 8) + 1


@pytest.mark.parametrize(("version", "in_flight"), [("0.22.0", 8192), ("0.23.0", 8192), ("0.26.0", 16_384)])
def test_printed_concurrency_weighs_groups_by_their_bytes(version: str, in_flight: int) -> None:
    whole, window, near, far = pages(in_flight)
    spent = window * WINDOWS * ENTRY + near * NEAR * (ENTRY + INDEX) + far * FAR_LAYERS * ENTRY
    printed = whole + -(-spent // WHOLE_BYTES)
    found = planned(version, kv_cache_memory_bytes=30 * 10**9).capacity
    assert found is not None
    assert found.num_blocks is not None
    assert found.max_concurrency == found.num_blocks / printed


def test_what_runs_is_counted_in_blocks() -> None:
    """Two window groups; the printed concurrency of 0.26 and before promises more than the pool holds."""
    whole, window, near, far = pages(8192)
    found = planned("0.23.0", kv_cache_memory_bytes=30 * 10**9).capacity
    assert found is not None
    assert found.num_blocks is not None
    holds = (found.num_blocks - 1) // (whole + 2 * window + near + far)
    assert found.at[-1].requests == holds
    assert holds < found.max_concurrency


def test_releases_without_the_model_name_the_first_with_it() -> None:
    with pytest.raises(UnsupportedError, match="does not have") as caught:
        planned("0.19.0")
    assert "vllm@0.20.0" in (caught.value.hint or "")


def term(made: Plan, name: str) -> Any:
    assert made.memory is not None
    return next(t for t in made.memory[0].terms if t.name == name)


def test_rotary_tables_are_two_in_fp32() -> None:
    assert term(planned("0.33.0"), "rotary tables").bytes == 2 * 4 * 64 * 1_048_576


def test_sparse_attention_reserves_keys_of_forty_contexts() -> None:
    """A workspace of 40 x length x 132 bytes where that is more than the experts', and 512 MiB of logits."""
    spec = load_model("deepseek-v3.2")
    asked = {"tensor_parallel_size": 8, "max_model_len": 163_840, "max_num_batched_tokens": 64, "max_num_seqs": 1,
             "weights": "bf16"}  # fmt: skip
    made = plan_deployment(spec, load_gpu("h200-sxm"), "vllm@0.33.0", asked)
    keys = 40 * 163_840 * 132
    assert f"workspace of sparse attention {keys / 2**30:.2f} GiB" in term(made, "buffers kept").source
    old = plan_deployment(spec, load_gpu("h200-sxm"), "vllm@0.18.0", asked)
    assert term(made, "activation peak").bytes - term(old, "activation peak").bytes >= LOGITS_BYTES * 9 // 10


def test_amd_devices_reserve_logits_of_the_whole_context() -> None:
    asked = {"tensor_parallel_size": 8, "max_model_len": 1_048_576, "max_num_batched_tokens": 16_384}
    spec = load_model("deepseek-v4-pro")
    sizes = {
        gpu: term(plan_deployment(spec, load_gpu(gpu), "vllm@0.28.0", asked), "buffers kept").bytes
        for gpu in ("mi300x", "b200")
    }
    assert sizes["mi300x"] - sizes["b200"] > 10 * 2**30
    assert sizes["mi300x"] >= 4 * 16_384 * 262_144

"""Plans that start from a log: whose bytes count, how far they move, and what is said where they cannot be used."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kvplan.errors import InputError
from kvplan.planning.log_base import Base, measured_base
from kvplan.sources import find_gpu
from kvplan.sources.logs import read_log
from kvplan.units import GIB

LOGS = Path(__file__).resolve().parent.parent / "data" / "logs"
LLAMA = "vllm-0.31.0-llama-3.1-8b"


def base(name: str = LLAMA, gpu: str | None = None, **given: Any) -> Base:
    log = read_log(str(LOGS / f"{name}.log"))
    device = find_gpu(gpu) if gpu else None
    return measured_base(log, name=name, model=None, gpu=device, engine=None, given=given)


def test_bytes_that_the_user_gives_are_his() -> None:
    found = base(kv_cache_memory_bytes=5 * GIB, max_num_seqs=64)
    assert found.found.settings["kv_cache_memory_bytes"] == 5 * GIB
    assert (found.bounds, found.measured_bytes) == (None, round(56.21 * GIB))
    assert found.line == base().line == 12


def test_a_move_lies_between_its_bounds_and_none_has_none() -> None:
    assert base().bounds is None
    found = base(max_num_batched_tokens=32768)
    size = found.found.settings["kv_cache_memory_bytes"]
    assert found.bounds is not None
    assert found.bounds[0] <= size <= found.bounds[1] < found.measured_bytes  # type: ignore[operator]
    origin = found.found.origins["kv_cache_memory_bytes"]
    assert origin.startswith(f"modelled: {LLAMA}, line 12: 56.21 GiB per GPU, moved by -")


def test_a_share_that_leaves_nothing_is_refused() -> None:
    with pytest.raises(InputError, match=r"of the 56\.21 GiB that were left, 5\d\.\d+ GiB go to what was") as refused:
        base(gpu_memory_utilization=0.2)
    assert refused.value.where == "--from-log"

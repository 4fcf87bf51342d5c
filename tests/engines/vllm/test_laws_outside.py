"""What vLLM's budget charges outside torch, by version, link and compute capability: the logs' figures in GiB."""

from __future__ import annotations

import pytest

from kvplan import load_gpu
from kvplan.engines.base import Settings
from kvplan.engines.vllm.budget_outside import outside_level
from kvplan.units import GIB


def level(version: str, gpu: str, **given: int) -> tuple[float, float, float]:
    settings = Settings(engine="vllm", engine_version=version, **given)
    found, why = outside_level(settings, load_gpu(gpu))
    assert why
    assert found.low <= found.typical <= found.high
    return found.low / GIB, found.typical / GIB, found.high / GIB


def test_nccl_counts_before_snapshots_only_over_nvlink_of_new_cards() -> None:
    """Before 0.9 nothing was subtracted: context and communicators count. NVLink from compute capability 9.0 on
    sets up NCCL's larger buffers."""
    alone = level("0.8.5", "h100-sxm")[1]
    hopper = level("0.8.5", "h100-sxm", tensor_parallel_size=2)[1]
    ampere = level("0.8.5", "a100-sxm4-80gb", tensor_parallel_size=2)[1]
    slow = level("0.8.5", "l40s", tensor_parallel_size=2)[1]
    assert level("0.8.5", "a100-sxm4-80gb")[1] == alone
    assert alone < ampere == slow < hopper
    assert ampere - alone == pytest.approx(0.14, abs=0.005)
    assert level("0.8.5", "h100-sxm", pipeline_parallel_size=2)[1] == hopper


@pytest.mark.parametrize(
    ("version", "gpu", "ranks", "printed"),
    [
        ("0.10.2", "h200-sxm", 2, 1.38), ("0.10.1", "a100-sxm4-80gb", 2, 0.14), ("0.11.0", "h100-sxm", 2, 0.545),
        ("0.11.0", "h100-sxm", 1, 0.13), ("0.10.2", "a100-sxm4-80gb", 1, 0.025), ("0.30.0", "h100-sxm", 1, 0.145),
        ("0.29.0", "rtx-5090", 1, 0.45),
    ],
)  # fmt: skip
def test_levels_of_logs(version: str, gpu: str, ranks: int, printed: float) -> None:
    low, typical, high = level(version, gpu, tensor_parallel_size=ranks)
    assert low <= printed <= high
    assert typical == pytest.approx(printed, abs=0.05)


def test_more_ranks_over_nvlink_hold_more_peers() -> None:
    two, four, eight = (level("0.33.0", "h100-sxm", tensor_parallel_size=n)[1] for n in (2, 4, 8))
    assert four - two == pytest.approx(eight - four)
    assert four > two
    old = [level("0.10.2", "h100-sxm", tensor_parallel_size=n)[1] for n in (2, 4, 8)]
    assert old[1] - old[0] == pytest.approx(2 * (four - two))
    plain = [level("0.33.0", "l40s", tensor_parallel_size=n)[1] for n in (2, 4, 8)]
    assert plain[0] == plain[1] == plain[2]
    amd = level("0.33.0", "mi300x", tensor_parallel_size=2)
    assert amd[1] == pytest.approx(level("0.33.0", "mi300x")[1] + level("0.33.0", "l40s", tensor_parallel_size=2)[1])

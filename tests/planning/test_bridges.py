"""NVLink bridges join pairs of cards: beyond two ranks messages take PCIe, in a plan and in a search."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from kvplan import load_gpu, load_model, plan
from kvplan.catalog import gpu_ids
from kvplan.engines import get_engine
from kvplan.engines.base import Settings
from kvplan.engines.vllm.budget_outside import outside_level
from kvplan.planning.fit.stack import RatesOf
from kvplan.planning.settings import resolve
from kvplan.planning.speed.constants import LINKS
from kvplan.planning.speed.rates import Rates, ranks_that_meet, rates
from kvplan.spec.formats import get_format

BRIDGED = [name for name in gpu_ids() if load_gpu(name).interconnect_bridge]
BF16 = get_format("bf16")


def rates_of(gpu: str, meeting: int) -> Rates:
    found = rates(load_gpu(gpu), "vllm", BF16, BF16, meeting=meeting)
    assert found is not None
    return found


def test_the_catalog_has_cards_with_bridges() -> None:
    assert {"a100-pcie-80gb", "h100-nvl", "rtx-3090", "rtx-2080-ti"} <= set(BRIDGED)


@pytest.mark.parametrize("name", BRIDGED)
def test_two_cards_meet_on_their_bridge_and_more_over_pcie(name: str) -> None:
    pair, four = rates_of(name, 2), rates_of(name, 4)
    one_way = (load_gpu(name).interconnect_bytes_per_second or 0) / 2
    assert pair.link_bandwidth == pytest.approx(one_way * LINKS["nvlink"][0])
    assert not pair.notes
    share, seconds = LINKS["pcie"]
    pcie = {"7": 16e9, "8": 32e9, "9": 64e9}[(load_gpu(name).compute_capability or "")[0]]
    assert (four.link_bandwidth, four.link_seconds) == pytest.approx((pcie * share, seconds))
    assert four.short_bandwidth is None
    assert "bridges join pairs" in four.notes[0]
    assert rates_of(name, 8)._replace(notes=()) == four._replace(notes=())


@pytest.mark.parametrize("name", ["h100-sxm", "l40s", "mi300x", "b200"])
def test_other_links_are_the_same_for_any_number(name: str) -> None:
    assert rates_of(name, 2) == rates_of(name, 8)


@pytest.mark.parametrize(
    ("layout", "ranks"),
    [
        ({}, 1), ({"tensor_parallel_size": 2}, 2), ({"tensor_parallel_size": 2, "pipeline_parallel_size": 4}, 2),
        ({"pipeline_parallel_size": 4}, 4), ({"tensor_parallel_size": 2, "data_parallel_size": 4}, 2),
        ({"tensor_parallel_size": 2, "data_parallel_size": 4, "enable_expert_parallel": True}, 8),
        ({"data_parallel_size": 4}, 1),
    ],
)  # fmt: skip
def test_ranks_that_meet(layout: dict[str, Any], ranks: int) -> None:
    assert ranks_that_meet(Settings(engine="vllm", engine_version="0.33.0", **layout)) == ranks


def test_four_bridged_cards_send_slower_than_four_on_a_board() -> None:
    given: dict[str, Any] = {"max_model_len": 4096, "concurrency": 8, "weights": "fp8"}

    def messages(gpu: str, tp: int) -> float:
        found = plan("llama-3.1-70b", gpu=gpu, tensor_parallel_size=tp, **given).decode
        assert found is not None
        return found.parts.communication

    assert messages("a100-pcie-80gb", 2) == messages("a100-sxm4-80gb", 2)
    reduces, row, vocabulary = 2 * 80, 8192 * 2, 128_256
    carried = reduces * 8 * 1.5 * row + 8 * 3 * vocabulary // 4 * 2
    expected = (reduces + 1) * 45e-6 + carried / (0.25 * 32e9)
    assert messages("a100-pcie-80gb", 4) == pytest.approx(expected, rel=1e-6)
    assert messages("a100-pcie-80gb", 4) > 4 * messages("a100-sxm4-80gb", 4)


@pytest.mark.parametrize("tp", [1, 2, 4])
def test_a_search_takes_every_card_s_link_as_a_plan_does(tp: int) -> None:
    """Cards with one line for all sizes stand in the same arrays as those with two."""
    engine, names = get_engine("vllm"), ["h100-nvl", "l40s", "h100-sxm", "mi300x", "rtx-3090"]
    spec, devices = load_model("llama-3.1-8b"), [load_gpu(name) for name in names]
    given = {"max_model_len": 8192, "tensor_parallel_size": tp}
    settings, _ = resolve(spec, devices[0], engine, given)
    stacked, known = RatesOf(engine, devices, {}).stacked(BF16, BF16, settings)
    assert stacked is not None
    assert known.all()
    for size in (0, 4096, 2**20, 2**28):
        alone = [rates_of(name, tp).message_seconds(size) for name in names]
        assert stacked.message_seconds(np.full(len(names), float(size))) == pytest.approx(alone)
        assert min(alone) > 5e-6


def test_one_search_keeps_layouts_apart() -> None:
    engine, spec, devices = get_engine("vllm"), load_model("llama-3.1-8b"), [load_gpu("a100-pcie-80gb")]
    known = RatesOf(engine, devices, {})
    found = {}
    for tp in (2, 4, 8, 2):
        settings, _ = resolve(spec, devices[0], engine, {"max_model_len": 8192, "tensor_parallel_size": tp})
        stacked, _ = known.stacked(BF16, BF16, settings)
        assert stacked is not None
        found[tp] = float(stacked.link_bandwidth[0])
    assert found[2] > 10 * found[4] == 10 * found[8]


def test_communicators_beyond_a_pair_are_those_of_cards_without_nvlink() -> None:
    bridged = load_gpu("h100-nvl")
    bare = replace(bridged, interconnect="pcie", interconnect_bridge=False)
    for version in ("0.8.5", "0.10.2", "0.33.0"):
        two, four = (Settings(engine="vllm", engine_version=version, tensor_parallel_size=n) for n in (2, 4))
        assert outside_level(four, bridged) == outside_level(four, bare)
        assert outside_level(two, bridged) == outside_level(two, replace(bridged, interconnect_bridge=False))

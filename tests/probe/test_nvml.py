"""The driver's facts, the catalog's entry behind them, and ``--gpu auto``."""

from __future__ import annotations

from typing import Any

import pytest

from kvplan.catalog import load_gpu
from kvplan.errors import InputError
from kvplan.planning.planner import plan_deployment
from kvplan.probe import auto, extras, nvml
from kvplan.probe.device import match
from kvplan.probe.inventory import differences, inventory
from kvplan.render.grid import KeyValues
from kvplan.render.validation import inventory_report
from kvplan.sources import find_gpu, find_model

from .conftest import H200


def test_facts_of_a_card(fake_nvml: Any) -> None:
    module = fake_nvml({**H200, "processes": ((4242, 1 << 30), (17, None))})
    (card,) = nvml.all_facts()
    assert card.total_bytes == 150_754_820_096
    assert card.reserved_bytes == 644_939_776
    assert card.free_bytes == 150_109_880_320
    assert card.theoretical_bandwidth == pytest.approx(4.814304e12)
    assert card.compute_capability == "9.0"
    assert card.ecc is None  # this driver does not say
    assert {p.pid: p.used_bytes for p in card.processes} == {4242: 1 << 30, 17: None}
    assert [p.pid for p in card.others(17)] == [4242]
    assert module.open == 0  # shut down again


def test_a_driver_that_does_not_tell_reserved_bytes(fake_nvml: Any) -> None:
    fake_nvml({**H200, "reserved": None})
    (card,) = nvml.all_facts()
    assert card.reserved_bytes is None
    assert card.total_bytes == 150_754_820_096


GB10 = {**H200, "name": "NVIDIA GB10", "uuid": "GPU-gb10", "total": None, "bus": None, "capability": (12, 1)}
"""Its memory is the processor's: NVML does not support the call."""


def test_a_card_without_memory_of_its_own(fake_nvml: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    fake_nvml(GB10)
    (card,) = nvml.all_facts()
    assert (card.total_bytes, card.reserved_bytes, card.used_bytes, card.free_bytes) == (None,) * 4
    assert nvml.used_bytes(0) is None
    known = load_gpu("gb10")
    assert find_gpu("auto").device_bytes == known.device_bytes
    monkeypatch.setitem(sys.modules, "torch", None)
    (device,), _ = inventory()
    assert (device["gpu"], device["nvml"]["total_bytes"]) == ("gb10", None)
    shown = inventory_report({"devices": [device], "warnings": []})
    (driver,) = (part for part in shown if isinstance(part, KeyValues))
    assert driver.rows[0] == ("NVML", "-", "states no memory: the card uses the processor's")
    fake_nvml({**GB10, "name": "NVIDIA Frobnicator 9000"})
    monkeypatch.setattr("kvplan.probe.device._meminfo", lambda: {"MemTotal": 120 << 30})
    found = find_gpu("auto")
    assert (found.id, found.device_bytes, found.unified_memory) == ("this-machine", 120 << 30, True)
    monkeypatch.setattr("kvplan.probe.device._meminfo", dict)
    with pytest.raises(InputError, match="the driver states no memory of NVIDIA Frobnicator 9000"):
        find_gpu("auto")


def test_a_card_that_cannot_be_read_does_not_take_the_others_with_it(fake_nvml: Any) -> None:
    fake_nvml({**H200, "lost": True}, {**H200, "uuid": "GPU-2"})
    remarks: list[str] = []
    (card,) = nvml.all_facts(remarks=remarks)
    assert card.number == 1
    assert remarks == ["GPU 0 cannot be read (GPU is lost)"]
    assert nvml.facts_of([card], None, 0) is None  # not the other one in its place
    assert nvml.facts_of([card], None, 1) is card
    assert nvml.used_bytes(0) is None
    assert "GPU 0 cannot be read (GPU is lost)" in inventory()[1]
    fake_nvml({**H200, "lost": True})
    assert nvml.quiet_facts() == []
    with pytest.raises(InputError, match="GPU 0 cannot be read"):
        find_gpu("auto")


def test_auto_takes_the_catalogs_entry_with_the_cards_bytes(fake_nvml: Any) -> None:
    fake_nvml({**H200, "reserved": 700_000_000})
    found = find_gpu("AUTO")
    known = load_gpu("h200-sxm")
    assert found.id == "h200-sxm"
    assert found.bf16_flops == known.bf16_flops
    assert found.torch_total_bytes == 150_754_820_096 - 700_000_000
    plan = plan_deployment(find_model("llama-3.1-8b"), found, "vllm", {})
    assert plan.memory is not None
    assert plan.memory[0].total_bytes == 150_754_820_096 - 700_000_000


def test_auto_keeps_what_an_older_driver_does_not_tell_apart(fake_nvml: Any) -> None:
    """Its total holds what it reserves, which no process gets: the catalog's card says how much that is."""
    fake_nvml({**H200, "reserved": None})
    found = find_gpu("auto")
    assert found.device_bytes == load_gpu("h200-sxm").torch_total_bytes == 150_109_880_320
    assert "the catalog's card" in str(found.torch_total_source)


def test_auto_describes_a_card_that_the_catalog_lacks(fake_nvml: Any) -> None:
    fake_nvml({**H200, "name": "NVIDIA Frobnicator 9000", "bus": 512, "memory_clock": 14_000})
    found = find_gpu("auto")
    assert found.id == "this-machine"
    assert found.bandwidth_bytes_per_second == 2 * 512 // 8 * 14_000 * 10**6
    assert found.device_bytes == 150_109_880_320
    assert found.bf16_flops is None


def test_auto_refuses_to_choose_between_kinds(fake_nvml: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    other = {**H200, "name": "NVIDIA L4", "uuid": "GPU-2", "total": 24_152_899_584, "reserved": 410_000_000}
    fake_nvml(H200, other)
    with pytest.raises(InputError, match="2 kinds of GPU") as caught:
        auto.this_gpu()
    assert "NVIDIA H200" in (caught.value.hint or "")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    assert auto.this_gpu().id == "l4"
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-0000aaaa")
    assert auto.this_gpu().id == "h200-sxm"
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "-1")
    with pytest.raises(InputError, match="no NVIDIA GPU is visible"):
        auto.this_gpu()


def test_two_alike_are_one_gpu(fake_nvml: Any) -> None:
    fake_nvml(H200, {**H200, "uuid": "GPU-2"})
    assert auto.this_gpu().id == "h200-sxm"


def test_without_a_driver_or_the_library_one_line_says_so(fake_nvml: Any, request: pytest.FixtureRequest) -> None:
    fake_nvml(broken="NVML Shared Library Not Found")
    with pytest.raises(InputError, match="no NVIDIA driver answers"):
        find_gpu("auto")
    request.getfixturevalue("no_extras")
    with pytest.raises(extras.MissingExtraError, match="nvidia-ml-py is not installed") as caught:
        find_gpu("auto")
    assert caught.value.hint == "pip install 'kvcache-plan[probe]'"
    assert caught.value.where == "--gpu auto"


@pytest.mark.parametrize(
    ("name", "total", "found"),
    [
        ("NVIDIA H200", 150_754_820_096, "h200-sxm"),
        ("NVIDIA H20", 102_625_181_696, "h20-96gb"),
        ("NVIDIA H20", 151_000_000_000, "h20-141gb"),
        ("NVIDIA A100-SXM4-80GB", 85_899_345_920, "a100-sxm4-80gb"),
        ("Apple M2 Max", None, "apple-m2-max"),
        ("NVIDIA GeForce GT 710", 2_000_000_000, None),
        ("NVIDIA GeForce RTX 4060 Ti", 17_175_674_880, "rtx-4060-ti-16gb"),
        ("NVIDIA GeForce RTX 4060 Ti", 8_585_740_288, None),  # the catalog has the one with 16 GB alone
        ("AMD Instinct MI300A", 137_438_953_472, "mi300a"),  # 128 GB of a datasheet are GiB here
        ("NVIDIA GB10", 120 << 30, "gb10"),  # what the system leaves it
    ],
)
def test_drivers_names_lead_to_catalog_entries(name: str, total: int | None, found: str | None) -> None:
    gpu = match(name, total)
    assert (gpu.id if gpu else None) == found


def test_detect_says_where_driver_and_catalog_differ(fake_nvml: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "torch", None)
    fake_nvml({**H200, "memory_clock": 2000, "capability": (8, 0)})
    devices, remarks = inventory()
    (device,) = devices
    assert device["gpu"] == "h200-sxm"
    assert device["torch"] is None
    assert remarks == ["torch is not installed"]
    assert any("3,008 GB/s, the datasheet 4,800" in line for line in device["differences"])
    assert any("compute capability 8.0 here, 9.0" in line for line in device["differences"])


def test_a_card_as_the_catalog_has_it_shows_no_difference(fake_nvml: Any) -> None:
    fake_nvml(H200)
    (card,) = nvml.all_facts()
    assert differences(card, None, load_gpu("h200-sxm")) == []
    assert differences(card, None, None) == ["not in the catalog: plans take what is read here"]


def test_detect_on_a_machine_without_a_gpu_asks_for_no_installation(
    fake_nvml: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_nvml(broken="Driver Not Loaded")
    monkeypatch.setattr("kvplan.probe.inventory._torch_devices", lambda: ([], ["torch 2.13 sees no GPU"]))
    with pytest.raises(InputError) as caught:
        inventory()
    assert "pip" not in str(caught.value.hint)
    assert "kvplan gpus list" in str(caught.value.hint)


def test_detect_without_anything_is_an_error(no_extras: None) -> None:
    with pytest.raises(extras.MissingExtraError, match="nvidia-ml-py is not installed"):
        inventory()

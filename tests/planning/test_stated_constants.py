"""Stated constants of speed against the measurements and the datasheets that their sources name, and prices and
calibrations at their limits."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kvplan import load_gpu
from kvplan.catalog import gpu_ids
from kvplan.engines import distinct
from kvplan.errors import KvplanError
from kvplan.planning.calibration import from_data
from kvplan.planning.cost import cost_figures, price_of, read_prices, throughput_bounds
from kvplan.planning.speed import constants as of
from kvplan.planning.speed.constants import engine_rates
from kvplan.planning.speed.rates import cache_bits, dense_flops, join, rates
from kvplan.spec.formats import format_names, get_format

from .test_calibration import calibration, figure, line

ENGINES = distinct()
VENDORS = sorted({load_gpu(name).vendor for name in gpu_ids()})
TB, TFLOPS, US = 1e12, 1e12, 1e-6


def test_shares_are_what_an_h200_reached_of_its_datasheet() -> None:
    assert pytest.approx(4.60 / 4.81, rel=2e-3) == of.READ_SHARE
    assert (
        pytest.approx({"16": 770 / 989, "fp8": 1450 / 1979, "int8": 1450 / 1979, "fp4": 0.6}, rel=5e-3)
        == of.MATMUL_SHARE
    )
    assert pytest.approx({"16": 4.453 / 4.8, "8": 4.454 / 4.8, "4": 3.785 / 4.8}, rel=1e-3) == of.ATTENTION_SHARE
    assert 0.50 <= of.ATTENTION_COMPUTE_SHARE <= 0.73
    assert of.EngineRates().prefill_share == pytest.approx(685 / 770, rel=0.02)


def test_latencies_make_a_layer_of_forty_microseconds() -> None:
    """Four matrix kernels, one of attention, and what stands between; eager launches are 6.7 us each."""
    layer = 4 * of.LINEAR_SECONDS + of.ATTENTION_SECONDS + of.LAYER_SECONDS
    assert layer == pytest.approx(40 * US, rel=0.01)
    assert pytest.approx(14 * 6.7 / 40, rel=0.03) == of.EAGER_SCALE
    assert engine_rates("transformers", "nvidia").latency_scale == pytest.approx(40 * 6.7 / 40, rel=0.05)
    assert pytest.approx(3 * 2 * US) == of.ROUTING_SECONDS
    assert of.SOFTNESS == 3


def test_links_carry_less_than_they_are_sold_for_and_start_within_a_tenth_of_a_millisecond() -> None:
    for share, seconds in (*of.LINKS.values(), *of.SMALL_MESSAGES.values(), of.OTHER_LINK):
        assert 0.2 < share < 0.75
        assert 5 * US < seconds < 60 * US
    large, small = of.LINKS["nvlink"], of.SMALL_MESSAGES["nvlink"]
    assert small[0] < large[0]
    assert small[1] < large[1] / 3
    assert of.LINKS["pcie"][1] > large[1]
    assert [of.PCIE_OF[major][1] for major in "789"] == [16e9, 32e9, 64e9]
    assert [of.PCIE_OF[major][0] for major in "789"] == ["3.0", "4.0", "5.0"]
    assert of.PCIE_4_X16 == 32e9
    assert of.BRIDGED == 2


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("vendor", VENDORS)
def test_an_engine_makes_of_a_device_no_more_than_it_has(engine: str, vendor: str) -> None:
    own = engine_rates(engine, vendor)
    assert 0.75 <= own.read_share <= 1
    assert 0.75 <= own.prefill_share <= 1
    assert 0.45 <= own.low < 1 < own.high <= 1.65
    assert 0.3 <= own.prefill_low < 1 < own.prefill_high <= 2.3
    assert 1 <= own.latency_scale <= 7
    assert 0 <= own.step_seconds <= 1e-3
    assert own.matvec_share is None or 0.05 < own.matvec_share < 0.15
    assert own.naive_share is None or 0.1 < own.naive_share < 0.2
    assert own.source
    served = engine in ("vllm", "sglang", "tensorrt-llm", "exllamav3") or (engine == "mlx" and vendor != "apple")
    assert (own.step_seconds > 0) is served
    assert (own.read_share < 1) is served
    reported = {("generic", "nvidia"), ("vllm", "nvidia")} | {
        (name, family) for name in ("llama.cpp", "ollama", "lmstudio") for family in ("nvidia", "apple")
    }
    assert own.reported is ((engine, vendor.lower()) in reported)
    assert own.half_accumulate is (engine in ("llama.cpp", "ollama", "lmstudio") and vendor.lower() == "nvidia")
    assert (own.matvec_share is not None) is (
        vendor == "apple" and engine in ("llama.cpp", "ollama", "lmstudio", "mlx")
    )
    assert own.low == min(own.low, 1 / own.high + 0.2)


def test_graphs_came_in_the_summer_of_2024() -> None:
    before, after = (engine_rates("llama.cpp", "nvidia", f"b{build}") for build in (3499, 3500))
    assert before.latency_scale == pytest.approx(1.93)
    assert after.latency_scale == 1
    assert engine_rates("llama.cpp", "nvidia", "") == after == engine_rates("llama.cpp", "nvidia", "b9999")
    for odd in ("b", "3499", "bx"):
        assert engine_rates("llama.cpp", "nvidia", odd) == after
    assert engine_rates("llama.cpp", "apple", "b100") == engine_rates("llama.cpp", "apple")


@pytest.mark.parametrize("name", list(format_names("cache")))
def test_the_kernel_of_a_cache_is_the_nearest_above(name: str) -> None:
    fmt = get_format(name)
    bits = 8 * fmt.block_bytes / fmt.block_elements
    assert cache_bits(fmt) == ("4" if bits <= 5 else "8" if bits <= 10 else "16")


@pytest.mark.parametrize("name", gpu_ids()[::4])
def test_units_that_a_device_lacks_are_those_of_16_bits(name: str) -> None:
    gpu = load_gpu(name)
    wide = gpu.bf16_flops or gpu.fp16_flops
    plain = (wide, "16") if wide else None
    assert dense_flops(gpu, "16") == plain
    assert dense_flops(gpu, "fp8") == ((gpu.fp8_flops, "fp8") if gpu.fp8_flops else plain)
    assert dense_flops(gpu, "int8") == ((gpu.int8_ops, "int8") if gpu.int8_ops else plain)
    four = (gpu.fp4_flops, "fp4") if gpu.fp4_flops else (gpu.fp8_flops, "fp8") if gpu.fp8_flops else plain
    assert dense_flops(gpu, "fp4") == four


@pytest.mark.parametrize("softness", [2, 3, 4.5])
def test_joined_times_are_a_norm(softness: float) -> None:
    assert join(3.0, 4.0, softness) == pytest.approx((3**softness + 4**softness) ** (1 / softness))


@pytest.mark.parametrize("measured", [None, 1.7e12, 3.2e12])
@pytest.mark.parametrize("engine", ["generic", "vllm", "llama.cpp"])
def test_measured_bandwidth_stands_for_the_stated_one(engine: str, measured: float | None) -> None:
    bf16, gpu = get_format("bf16"), load_gpu("h200-sxm")
    data = calibration(linear={}, attention={}, read_bytes_per_second=figure(measured) if measured else None)
    if measured is None:
        with pytest.raises(KvplanError, match="nothing says how fast memory is read"):
            from_data(data, "x")
        return
    found = rates(gpu, engine, bf16, bf16, calibration=from_data(data, "x"))
    stated, own = rates(gpu, engine, bf16, bf16), engine_rates(engine, "nvidia")
    assert found is not None
    assert stated is not None
    read = measured * own.read_share
    cap = (own.sm_bytes or 0) * (gpu.sm_count or 0)
    assert found.weight_bandwidth == pytest.approx((1 / ((1 / read) ** 3 + (1 / cap) ** 3)) ** (1 / 3) if cap else read)
    assert found.attention_bandwidth == stated.attention_bandwidth


# ---- calibrations ----


@pytest.mark.parametrize(
    ("changed", "good"),
    [
        ({"matmul_flops": {"16": {**figure(1e12), "samples": 1}}}, True),
        ({"matmul_flops": {"16": {**figure(1e12), "samples": 0}}}, False),
        ({"matmul_flops": {"16": {**figure(1e12), "low": 1e12, "high": 1e12}}}, True),
        ({"matmul_flops": {"16": {**figure(1e12), "low": 1.001e12}}}, False),
        ({"matmul_flops": {"16": {**figure(1e12), "high": 0.999e12}}}, False),
        ({"matmul_flops": {"16": {"value": 1e12, "low": 1e12, "high": 2e12}}}, True),
        ({"matmul_flops": {"16": {"value": 0, "low": 0, "high": 1}}}, False),
        ({"matmul_flops": {"32": figure(1e12)}}, False), ({"attention": {"4": line(1e12, 1e-6)}}, True),
        ({"attention": {"3": line(1e12, 1e-6)}}, False),
        ({"linear": {"16": {**line(1e12, 0.0), "worst_miss": 0}}}, True),
        ({"linear": {"16": {**line(1e12, 1e-6), "worst_miss": 1}}}, False),
        ({"linear": {"16": {**line(1e12, 1e-6), "worst_miss": -0.1}}}, False),
        ({"linear": {"16": {**line(1e12, 1e-6), "worst_miss": 0.99}}}, True),
        ({"layer_seconds": figure(0.0)}, False), ({"date": "2026-1-30"}, False), ({"more": 1}, False),
        ({"device": {"name": ""}}, False), ({"device": {"name": "x" * 200, "kind": "cuda"}}, True),
        ({"device": {"name": "x" * 201}}, False), ({"device": {"name": "x", "kind": "tpu"}}, False),
        ({"read_bytes_per_second": None}, True), ({"linear": {}}, True),
        ({"read_bytes_per_second": None, "linear": {}}, False), ({"schema": "kvplan.calibration/2"}, False),
    ],
)  # fmt: skip
def test_a_calibration_at_its_limits(changed: dict[str, Any], good: bool) -> None:
    data = calibration(**changed)
    if good:
        assert from_data(data, "x").device
    else:
        with pytest.raises(KvplanError):
            from_data(data, "x")


@pytest.mark.parametrize(("low", "high"), [(0.6, 1.4), (0.99, 1.01), (0.2, 1.1)])
@pytest.mark.parametrize("spread", [0.01, 0.3])
def test_bounds_are_half_of_the_engine_s_or_the_spread_of_the_samples(low: float, high: float, spread: float) -> None:
    made = from_data(calibration(read_bytes_per_second=figure(4.6e12, spread)), "x")
    widest = max(spread, 0.04)  # the worst miss of its lines
    assert made.bounds(low, high) == pytest.approx((1 - max(widest, (1 - low) / 2), 1 + max(widest, (high - 1) / 2)))


def test_the_documented_h200_is_what_the_constants_say() -> None:
    """The file of the measurements that the module's text quotes."""
    path = Path(__file__).parents[1] / "data" / "speed" / "h200.json"
    assert json.loads(path.read_text(encoding="utf-8"))["steps"]["rows"]


# ---- prices ----


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (2.5, {None: 2.5}), ((), {}), ({"h100-sxm": 2}, {"h100-sxm": 2.0}),
        ([("l4", 0.5), (None, 1)], {"l4": 0.5, None: 1.0}),
        ((("l4", 0.5), ("l4", 0.5)), {"l4": 0.5}), ((3,), {None: 3.0}), (999_999.0, {None: 999_999.0}),
        (0.001, {None: 0.001}), ({"custom": 1}, {"custom": 1.0}), (0, None), (-1, None), (1e6, None), (True, None),
        ("2", None), ((("l4", 0.5), ("l4", 0.6)), None), ((("l4", "x"),), None), ({"no-such-gpu": 1}, None),
        (None, None),
        ({"l4": True}, None), ({"l4": 0}, None),
    ],
)  # fmt: skip
def test_prices_at_their_limits(given: Any, expected: Any) -> None:
    if expected is None:
        with pytest.raises(KvplanError):
            read_prices(given)
    else:
        assert read_prices(given) == expected


def test_a_price_by_name_comes_before_one_for_all_and_that_before_the_catalog_s() -> None:
    gpu = load_gpu("h100-sxm")
    assert gpu.price is not None
    low, high = gpu.price.low_usd_per_hour, gpu.price.high_usd_per_hour
    known = price_of(gpu, {})
    assert known is not None
    assert (known.usd_per_hour, known.low, known.high) == ((low + high) / 2, low, high)
    for prices, usd in (({None: 3.0}, 3.0), ({None: 3.0, "h100-sxm": 2.0}, 2.0), ({"l4": 9.0, None: 3.0}, 3.0)):
        found = price_of(gpu, prices)
        assert found is not None
        assert (found.usd_per_hour, found.low, found.high, found.date) == (usd, usd, usd, None)
    left = price_of(gpu, {"l4": 9.0})
    assert left == known


@pytest.mark.parametrize(("output", "written"), [(0, False), (1, False), (2, True), (500, True)])
@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
def test_what_a_request_costs_is_what_prompt_and_output_pay(output: int, written: bool, share: float) -> None:
    gpu = load_gpu("h100-sxm")
    price = price_of(gpu, {})
    assert price is not None
    found = cost_figures(price, 4, prompt=100, output=output, rate=2.0, share=share, speed=(0.5, 2.0))
    request = price.usd_per_hour * 4 / 3600 / 2
    assert found.per_request == pytest.approx(request)
    assert found.low_per_request == pytest.approx(price.low * 4 / 3600 / 2 / 2)
    assert found.high_per_request == pytest.approx(price.high * 4 / 3600 / 2 / 0.5)
    assert found.per_million_input_tokens == pytest.approx(request * share * 1e4)
    assert (found.per_million_output_tokens is not None) is written
    if written:
        paid = (found.per_million_output_tokens or 0) * output + (found.per_million_input_tokens or 0) * 100
        assert paid / 1e6 == pytest.approx(request)
    for rate, part in ((None, 0.5), (0.0, 0.5), (2.0, None)):
        idle = cost_figures(price, 4, prompt=100, output=output, rate=rate, share=part)
        assert idle.usd_per_hour == pytest.approx(price.usd_per_hour * 4)
        assert (idle.per_request, idle.per_million_input_tokens, idle.low_per_request) == (None, None, None)
    assert cost_figures(None, 4, prompt=100, output=9, rate=2.0, share=share).usd_per_hour is None


@pytest.mark.parametrize("share", [0.0, 0.25, 1.0])
def test_a_throughput_is_bounded_by_the_seconds_of_both_phases(share: float) -> None:
    low, high = throughput_bounds(share, (0.5, 2.0), (0.8, 1.25))
    assert low == pytest.approx(1 / (share / 0.8 + (1 - share) / 0.5))
    assert high == pytest.approx(1 / (share / 1.25 + (1 - share) / 2.0))

"""Lines through times."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvplan.probe.fit import line, measured_line, shared_line, shown, worst_miss


def test_a_line_is_found_again() -> None:
    points = [(x, x / 4e12 + 7e-6) for x in (1.7e7, 1.3e8, 2.7e8, 1.1e9)]
    rate, start, miss = line(points)
    assert rate == pytest.approx(4e12)
    assert start == pytest.approx(7e-6)
    assert miss == pytest.approx(0, abs=1e-12)


def test_measured_times_of_a_kernel() -> None:
    """bf16 attention on one H200: 17 MB to 1.1 GB in 10.2 to 239 us is 4.5 TB/s and 7 us within 3.2 %."""
    points = [(16777216, 10.2e-6), (67108864, 22.1e-6), (134217728, 37.6e-6), (268435456, 66.3e-6),
              (268435456, 63.9e-6), (1073741824, 239.3e-6), (1073741824, 240.8e-6)]  # fmt: skip
    rate, start, miss = line(points)
    assert 4.5e12 < rate < 4.6e12
    assert 6.5e-6 < start < 7.1e-6
    assert 0.02 < miss < 0.033


@given(st.lists(st.tuples(st.integers(1, 200), st.floats(0.8, 1.25)), min_size=3, max_size=8,
                unique_by=lambda p: p[0]), st.floats(0.9, 1.1), st.floats(0.5, 2.0))  # fmt: skip
def test_no_other_line_misses_less(noise: list[tuple[int, float]], tilt: float, lift: float) -> None:
    points = [(x * 1e7, (x * 1e7 / 4e12 + 8e-6) * factor) for x, factor in noise]
    rate, start, miss = line(points)
    assert start >= 0
    assert worst_miss(points, 1 / rate, start) == pytest.approx(miss)
    assert worst_miss(points, tilt / rate, start * lift) >= miss - 1e-9


@given(st.lists(st.tuples(st.integers(1, 200), st.floats(0.5, 2.0)), min_size=3, max_size=8,
                unique_by=lambda p: p[0]), st.floats(0.5, 1.5), st.floats(0.9, 1.0), st.floats(0.5, 2.0))  # fmt: skip
def test_no_line_below_the_ceiling_misses_less(
    noise: list[tuple[int, float]], share: float, tilt: float, lift: float
) -> None:
    points = [(x * 1e7, (x * 1e7 / 4e12 + 8e-6) * factor) for x, factor in noise]
    ceiling = share * 4e12
    rate, start, miss = line(points, ceiling=ceiling)
    assert rate <= ceiling * (1 + 1e-12)
    assert start >= 0
    assert worst_miss(points, 1 / rate, start) == pytest.approx(miss)
    assert worst_miss(points, 1 / (rate * tilt), start * lift) >= miss - 1e-9


def test_no_line_is_faster_than_the_memory() -> None:
    """Products of qwen3-30b-a3b on one H200: small matrices draw the free line above what its memory gives."""
    points = [(21.0e6, 8.1e-6), (16.8e6, 9.4e-6), (622e6, 147e-6), (805e6, 185e-6)]
    assert line(points)[0] > 4.71e12
    rate, _, miss = line(points, ceiling=4.71e12)
    assert rate == pytest.approx(4.71e12)
    assert miss < 0.15


@given(st.lists(st.tuples(st.integers(1, 200), st.floats(0.5, 2.0), st.floats(0.01, 10.0)), min_size=3, max_size=8,
                unique_by=lambda p: p[0]), st.floats(0.5, 1.5), st.floats(0.9, 1.0), st.floats(0.5, 2.0))  # fmt: skip
def test_no_line_below_the_ceiling_has_a_smaller_sum(
    noise: list[tuple[int, float, float]], share: float, tilt: float, lift: float
) -> None:
    points = [(x * 1e7, (x * 1e7 / 4e12 + 8e-6) * factor) for x, factor, _ in noise]
    shares = [part for _, _, part in noise]

    def missed(slope: float, start: float) -> float:
        return sum(w * ((slope * x + start) / y - 1) ** 2 for (x, y), w in zip(points, shares, strict=True))

    rate, start, miss = shared_line(points, shares, ceiling=share * 4e12)
    assert rate <= share * 4e12 * (1 + 1e-12)
    assert start >= 0
    assert worst_miss(points, 1 / rate, start) == pytest.approx(miss)
    assert missed(1 / (rate * tilt), start * lift) >= missed(1 / rate, start) * (1 - 1e-9) - 1e-12


def test_what_fills_the_step_is_missed_least() -> None:
    """Products of qwen3-30b-a3b on one H200, 48 layers and a head: experts take nine tenths of the time."""
    points = [(21.0e6, 8.1e-6), (16.8e6, 9.4e-6), (622e6, 147e-6), (805e6, 185e-6), (403e6, 97e-6)]
    shares = [48 * y if i != 2 else y for i, (_, y) in enumerate(points)]
    rate, start, _ = shared_line(points, shares, ceiling=4.71e12)
    whole = sum(share for share in shares)
    found = sum(share * (x / rate + start) / y for (x, y), share in zip(points, shares, strict=True))
    assert found == pytest.approx(whole, rel=0.002)
    worst = line(points, ceiling=4.71e12)
    other = sum(share * (x / worst[0] + worst[1]) / y for (x, y), share in zip(points, shares, strict=True))
    assert other == pytest.approx(whole, rel=0.06)
    assert other < 0.97 * whole


def test_too_few_shapes_make_no_line() -> None:
    assert measured_line([(1e6, 1e-5), (2e6, 2e-5)]) is None
    with pytest.raises(ValueError, match="two different"):
        line([(1e6, 1e-5), (1e6, 2e-5)])


def test_bounds_hold_the_value_and_say_what_one_point_does() -> None:
    points = [(1e7, 1e-5), (1e8, 3.2e-5), (2e8, 5.9e-5), (4e8, 1.09e-4), (8e8, 2.4e-4)]
    found = measured_line(points)
    assert found is not None
    for figure in (found.bytes_per_second, found.latency_seconds):
        assert 0 < figure.low <= figure.value <= figure.high
    assert found.bytes_per_second.high > found.bytes_per_second.low
    assert found.latency_seconds.samples == 5


def test_no_latency_is_invented() -> None:
    """Times that bend downwards: the best line goes through the origin, whatever the others leave."""
    points = [(1e7, 0.9e-5), (2e7, 2e-5), (4e7, 4.2e-5), (8e7, 8.8e-5)]
    found = measured_line(points)
    assert found is not None
    assert (found.latency_seconds.value, found.latency_seconds.low) == (0.0, 0.0)
    assert found.worst_miss < 0.12


def test_lines_are_shown_in_the_unit_of_their_rate() -> None:
    assert shown(4.562e12, 7e-6) == "bytes / 4.562 TB/s + 7.0 us"
    assert shown(13e9, 1.5e-3) == "bytes / 13 GB/s + 1500.0 us"

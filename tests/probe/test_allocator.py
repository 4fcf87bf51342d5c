"""The allocator's arithmetic against what one H200 said (driver 580.159, torch 2.11.0+cu130)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvplan.probe.allocator import expandable_segments, most_blocks, reserve, round_size, segment_size
from kvplan.probe.fill import usable_bytes
from kvplan.units import MIB

LAYER = 1003 * 16 * 8 * 128 * 2
"""K of one layer: 1,003 blocks of 16 tokens, 8 heads of 128 in bf16."""


@pytest.mark.parametrize(
    ("sizes", "allocated", "reserved"),
    [
        ([2 * 4096 * 16 * 8 * 128 * 2] * 32, 8_589_934_592, 8_589_934_592),
        ([2 * LAYER] * 32, 2_103_443_456, 2_147_483_648),
        ([LAYER] * 64, 2_103_443_456 + 44_040_192, 2_147_483_648),
        ([2 * LAYER * 32], 2_103_443_456, 2_103_443_456),
    ],
)
def test_figures_of_one_h200(sizes: list[int], allocated: int, reserved: int) -> None:
    found = reserve(sizes)
    assert found.requested_bytes == sum(sizes)
    assert found.allocated_bytes == allocated
    assert found.reserved_bytes == reserved


def test_scales_share_segments_as_measured() -> None:
    """int8 K and V with fp32 scales apart, 44 layers of 2,887 blocks of 16 tokens, 2 KV heads of 128: as measured."""
    data, scale = 2887 * 16 * 2 * 128, 2887 * 16 * 2 * 4
    found = reserve([data, scale] * 88)
    assert found.requested_bytes == 1_073_132_544
    assert found.allocated_bytes == 1_139_826_688
    assert found.reserved_bytes == 1_145_044_992
    assert found.segments == 106


def test_a_card_is_filled_to_the_block_that_was_measured() -> None:
    """Blocks of 2 MiB in one tensor, and of 64 KiB in each of 32."""
    for free, most in ((149_557_477_376, 71_313), (149_555_380_224, 71_312), (149_448_425_472, 71_261)):
        assert most_blocks(usable_bytes(free), [2 * MIB]) == most
        assert free - usable_bytes(free) == 3_276_800
    assert most_blocks(usable_bytes(149_557_477_376), [65_536] * 32) == 71_296


def test_sizes_are_rounded_as_the_source_says() -> None:
    assert [round_size(n) for n in (1, 512, 513)] == [512, 512, 1024]
    assert [segment_size(n) for n in (512, MIB)] == [2 * MIB] * 2
    assert segment_size(MIB + 512) == 20 * MIB
    assert segment_size(10 * MIB) == 10 * MIB
    assert segment_size(10 * MIB + 512) == 12 * MIB


def test_small_tensors_share_a_segment_and_zero_bytes_cost_nothing() -> None:
    assert reserve([512] * 4096).reserved_bytes == 2 * MIB
    assert reserve([512] * 4097).reserved_bytes == 4 * MIB
    assert reserve([0, 0]).segments == 0


def test_expandable_segments_leave_nothing_between_tensors() -> None:
    found = reserve([LAYER] * 64, expandable=True)
    assert found.allocated_bytes == found.requested_bytes
    assert found.reserved_bytes - found.requested_bytes < 20 * MIB
    assert found.reserved_bytes % (20 * MIB) == 0


@given(st.lists(st.integers(0, 64 * MIB), max_size=30), st.booleans())
def test_what_is_held_covers_what_was_asked_for(sizes: list[int], expandable: bool) -> None:
    found = reserve(sizes, expandable=expandable)
    assert found.requested_bytes <= found.allocated_bytes <= found.reserved_bytes
    assert found.reserved_bytes % (2 * MIB) == 0


@given(st.integers(0, 1 << 34), st.lists(st.integers(512, 4 * MIB), min_size=1, max_size=6))
def test_most_blocks_is_the_last_that_fits(free: int, parts: list[int]) -> None:
    most = most_blocks(free, parts)
    assert reserve([most * p for p in parts]).reserved_bytes <= free
    assert reserve([(most + 1) * p for p in parts]).reserved_bytes > free


@pytest.mark.parametrize("name", ["PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"])
def test_the_environment_says_whether_segments_expand(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    for other in ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF"):
        monkeypatch.delenv(other, raising=False)
    assert not expandable_segments()
    monkeypatch.setenv(name, "max_split_size_mb:128, expandable_segments:True")
    assert expandable_segments()
    monkeypatch.setenv(name, "expandable_segments:False")
    assert not expandable_segments()

"""Ticks are round numbers of their unit, and hold what is drawn."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvplan.render.svg.parts import Axis, Unit
from kvplan.render.svg.ticks import scale_of, spoken

UNITS: tuple[Unit, ...] = ("number", "count", "tokens", "bytes", "seconds", "rate", "flops", "share", "usd")


@pytest.mark.parametrize(
    ("axis", "values", "texts"),
    [
        (Axis("", "bytes"), [3 * 2**30, 47 * 2**30], ["0", "10 GiB", "20 GiB", "30 GiB", "40 GiB", "50 GiB"]),
        (Axis("", "bytes"), [1500.0], ["0", "0.5 KiB", "1.0 KiB", "1.5 KiB"]),
        (Axis("", "seconds"), [0.0371], ["0", "10 ms", "20 ms", "30 ms", "40 ms"]),
        (Axis("", "count"), [3.0], ["0", "1", "2", "3"]),
        (Axis("", "count"), [1e-9], ["0", "1"]),
        (Axis("", "rate"), [9_500.0], ["0", "2k", "4k", "6k", "8k", "10k"]),
        (Axis("", "share", high=1.0), [0.5], ["0 %", "20 %", "40 %", "60 %", "80 %", "100 %"]),
        (Axis("", "usd"), [1.3], ["$0.0", "$0.5", "$1.0", "$1.5"]),
        (Axis("", "tokens", "log2"), [1024.0, 131072.0], ["1K", "4K", "16K", "64K"]),
        (Axis("", "bytes", "log2"), [2.0**27, 2.0**30], ["128 MiB", "256 MiB", "512 MiB", "1 GiB"]),
        (Axis("", "flops", "log10"), [1e12, 9e14], ["1T", "10T", "100T", "1P"]),
        (Axis("", "seconds", "log10"), [0.004, 0.09], ["2 ms", "5 ms", "10 ms", "20 ms", "50 ms", "100 ms"]),
    ],
)
def test_ticks(axis: Axis, values: list[float], texts: list[str]) -> None:
    assert [text for _, text in scale_of(axis, values, 5).ticks] == texts


@given(
    st.sampled_from(UNITS),
    st.sampled_from(["linear", "log2", "log10"]),
    st.lists(st.floats(1e-9, 1e18), min_size=0, max_size=5),
    st.integers(2, 9),
)
def test_a_scale_holds_its_values_and_its_ticks_rise(unit: Unit, kind: str, values: list[float], most: int) -> None:
    scale = scale_of(Axis("", unit, kind), values, most)  # type: ignore[arg-type]
    assert scale.low < scale.high
    assert all(-1e-6 <= scale.share(v) <= 1 + 1e-6 for v in values)
    ticks = [value for value, _ in scale.ticks]
    assert ticks == sorted(set(ticks))
    assert all(scale.low * (1 - 1e-6) - 1e-12 <= t <= scale.high * (1 + 1e-6) for t in ticks)
    assert len(ticks) <= 12
    texts = [text for _, text in scale.ticks]
    assert len(set(texts)) == len(texts)


@pytest.mark.parametrize(
    ("unit", "value", "text"),
    [
        ("bytes", 4096, "4.00 KiB"), ("bytes", 512, "512 B"), ("bytes", 58_691_988_685, "54.66 GiB"),
        ("seconds", 0.00771, "7.71 ms"), ("seconds", 0.0, "0 s"), ("seconds", 12.5, "12.5 s"),
        ("seconds", 3e-6, "3 us"),
        ("share", 0.123, "12.3 %"), ("usd", 1234.5, "$1,234"), ("usd", 0.42, "$0.42"), ("flops", 771e12, "771 T"),
        ("count", 27_986, "27,986"), ("number", 1.5, "1.5"), ("rate", 12_412.28, "12,412"), ("rate", None, "-"),
    ],
)  # fmt: skip
def test_numbers_in_words(unit: Unit, value: float | None, text: str) -> None:
    assert spoken(unit, value) == text

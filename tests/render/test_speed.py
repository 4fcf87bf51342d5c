"""The section on speed: short, and every figure says whose it is."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kvplan import load_gpu, plan
from kvplan.render.report import plan_report
from kvplan.render.speed import duration, rate, speed_part


def section(**given: object) -> dict[str, tuple[str, str]]:
    plain = plan("llama-3.1-8b", **{"gpu": "h100-sxm", "max_model_len": 8192, **given}).to_dict()  # type: ignore[arg-type]
    return {row[0]: (row[1], row[2]) for row in speed_part(plain).rows}  # type: ignore[misc]


def test_one_section_of_five_lines() -> None:
    rows = section(concurrency=8)
    assert list(rows) == [
        "time per output token", "tokens per second", "read per step", "ceiling", "time to first token",
    ]  # fmt: skip
    assert rows["time per output token"][0].endswith(" ms")
    assert "batch 8, 1,152 tokens cached by each; bound by memory" in rows["time per output token"][1]
    for words in ("of the deployment", "per GPU", "per request"):
        assert words in rows["tokens per second"][1]


def test_replicas_are_named() -> None:
    rows = section(data_parallel_size=2, concurrency=8)
    assert "batch 4 per replica" in rows["time per output token"][1]


def test_gaps_leave_lines_out() -> None:
    gpu = replace(load_gpu("h100-sxm"), bf16_flops=None, fp16_flops=None, fp8_flops=None, fp4_flops=None, int8_ops=None)
    assert list(section(gpu=gpu)) == ["time per output token", "tokens per second", "read per step"]
    without = plan("llama-3.1-8b", max_model_len=8192).to_dict()
    assert not any(getattr(part, "title", "") == "Speed, modelled" for part in plan_report(without))


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.00771, "7.71 ms"), (45e-6, "45 us"), (2.345, "2.35 s"), (86_400.0, "86,400 s")]
)
def test_durations_have_three_digits(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_rates() -> None:
    assert (rate(12_345.6), rate(7.712)) == ("12,346", "7.71")

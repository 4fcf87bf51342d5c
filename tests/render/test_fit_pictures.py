"""Cost against latency: every priced row is a point, the front is marked, and what has no price is named."""

from __future__ import annotations

from typing import Any

from kvplan.render import svg
from kvplan.render.fit_pictures import FRONT, cost_chart, pictured_report
from kvplan.render.grid import Column, Grid, Title
from kvplan.render.svg.parts import Chart


def row(gpu: str, gpus: int, usd: float | None, seconds: float, tp: int = 1) -> dict[str, Any]:
    return {
        "gpu": gpu, "gpus": gpus, "copies": gpus // tp, "usd_per_hour": usd, "request_seconds": seconds,
        "weights": "bf16", "tensor_parallel_size": tp, "pipeline_parallel_size": 1, "data_parallel_size": 1,
        "decode_context_parallel_size": 1, "enable_expert_parallel": False, "flags": f"{gpu} {tp} {seconds}",
    }  # fmt: skip


CHEAP, QUICK, DEAR = row("l4", 2, 1.5, 9.0), row("b200", 2, 8.0, 1.0, tp=2), row("a100", 4, 8.5, 3.0)
UNPRICED = row("tpu-v9", 1, None, 2.0)


def test_the_front_is_a_series_of_its_own_and_others_are_not_repeated() -> None:
    chart = cost_chart({"rows": [CHEAP, DEAR, UNPRICED], "front": [CHEAP, QUICK]})
    assert chart is not None
    others, front = chart.series
    assert front.label == FRONT
    assert list(front.points) == [(1.5, 9.0), (8.0, 1.0)]
    assert list(front.names) == ["2 x l4, bf16", "2 x b200 tp 2, bf16"]
    assert list(others.points) == [(8.5, 3.0)]
    assert (chart.x.unit, chart.x.scale) == ("usd", "log10")


def test_rows_without_a_price_are_named_and_not_drawn_at_zero() -> None:
    chart = cost_chart({"rows": [CHEAP, UNPRICED], "front": [CHEAP]})
    assert chart is not None
    assert all(x > 0 for s in chart.series for x, _ in s.points)
    assert sum(len(s.points) for s in chart.series) == 1
    assert chart.note.endswith(": tpu-v9")
    assert "tpu-v9" not in svg.draw(chart, "k")


def test_without_any_price_gpus_are_counted() -> None:
    two = UNPRICED | {"gpus": 2, "copies": 2, "request_seconds": 1.0, "flags": "two"}
    chart = cost_chart({"rows": [UNPRICED, two], "front": [UNPRICED, two]})
    assert chart is not None
    assert chart.x.unit == "count"
    assert list(chart.series[1].points) == [(1.0, 2.0), (2.0, 1.0)]
    assert not chart.note


def test_every_number_is_in_the_table_with_its_name_and_only_the_front_is_labelled() -> None:
    chart = cost_chart({"rows": [CHEAP, DEAR], "front": [CHEAP, QUICK]})
    assert chart is not None
    said = [cell for line in svg.numbers(chart).rows for cell in line]
    for text in ("2 x l4, bf16", "2 x b200 tp 2, bf16", "4 x a100, bf16", "$1.5", "$8.5"):
        assert text in said
    drawn = svg.draw(chart, "k")
    assert "2 x b200 tp 2, bf16</text>" in drawn
    assert "4 x a100, bf16</text>" not in drawn


def test_the_picture_stands_before_the_first_table_and_an_empty_answer_has_none() -> None:
    report = [Title("hardware", ""), Grid([Column("")], [])]
    made = pictured_report(report, {"rows": [CHEAP], "front": [CHEAP]})
    assert [type(part) for part in made] == [Title, Chart, Grid]
    assert pictured_report(report, {"rows": [], "front": []}) == report

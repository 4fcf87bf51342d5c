"""Pictures of a plan, a sweep and an explanation show the figures of their data, in the right places."""

from __future__ import annotations

from typing import Any

import pytest

from kvplan import load_gpu, load_model, plan
from kvplan.planning.curves import curves
from kvplan.planning.explain import explain
from kvplan.render.explain_pictures import explain_pictures
from kvplan.render.grid import Bar
from kvplan.render.plan_pictures import memory_bars, plan_pictures
from kvplan.render.report import plan_report
from kvplan.render.svg import Bars, Chart, HeatMap
from kvplan.render.sweep_pictures import sweep_pictures, unit_of

SETTINGS: dict[str, Any] = {"concurrency": 32, "prompt_tokens": 8192, "shared_prefix_tokens": 4096}


def drawn(model: str = "llama-3.1-8b", **settings: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    found = plan(model, gpu="h100-sxm", **settings).to_dict()
    return found, curves(load_model(model), load_gpu("h100-sxm"), "vllm", settings).to_dict()


def charts(model: str = "llama-3.1-8b", **settings: Any) -> dict[str, Chart]:
    return {p.title: p for p in plan_pictures(*drawn(model, **settings)) if isinstance(p, Chart)}


def test_a_plan_has_its_pictures_in_order() -> None:
    titles = [p.title for p in plan_pictures(*drawn(**SETTINGS))]
    assert titles == [
        "Memory per GPU", "KV cache against context", "Tokens per second against batch",
        "Time per output token against batch", "Roofline of one GPU", "Capacity against the system prompt",
    ]  # fmt: skip


@pytest.mark.parametrize("settings", [{}, {"pipeline_parallel_size": 2}, {"tensor_parallel_size": 4}])
def test_the_pieces_of_memory_are_the_device(settings: dict[str, Any]) -> None:
    bars = memory_bars(plan("llama-3.1-70b", gpu="h200-sxm", max_model_len=8192, **settings).to_dict())
    assert len(bars.stacks) == settings.get("pipeline_parallel_size", 1)
    for stack in bars.stacks:
        assert sum(p.value for p in stack.pieces) == pytest.approx(bars.total, rel=1e-9)


@pytest.mark.parametrize(
    ("engine", "name"),
    [
        ("vllm", "outside torch"), ("llama.cpp", "driver context"), ("sglang", "context, communication"),
        ("tensorrt-llm", "outside torch and left free by free_gpu_memory_fraction"),
    ],
)  # fmt: skip
def test_what_lies_outside_goes_by_the_name_of_its_term(engine: str, name: str) -> None:
    made = plan("llama-3.1-8b", gpu="h200-sxm", engine=engine, max_model_len=8192).to_dict()
    (stack,) = memory_bars(made).stacks
    assert name in [piece.label for piece in stack.pieces]
    (bar,) = [part for part in plan_report(made) if isinstance(part, Bar)]
    assert [segment.label for segment in bar.segments] == [piece.label for piece in stack.pieces]


def test_throughput_has_its_ridge_limit_and_ceiling() -> None:
    found, curve = drawn(**SETTINGS)
    chart = charts(**SETTINGS)["Tokens per second against batch"]
    marks = {m.label.partition(":")[0]: m for m in chart.marks}
    assert marks["ridge"].at == found["decode"]["ridge_batch"]
    assert marks["memory"].limit
    assert marks["memory"].at == curve["most_requests"]
    assert marks["ceiling at this context"].at == found["decode"]["ceiling_tokens_per_second"]
    (spot,) = chart.spots
    assert (spot.x, spot.y) == (32, found["decode"]["tokens_per_second"])
    held, more = chart.series
    assert max(x for x, _ in held.points) == curve["most_requests"] == more.points[0][0]
    rates = [y for _, y in (*held.points, *more.points[1:]) if y is not None]
    assert rates == sorted(rates)
    assert rates[-1] < marks["ceiling at this context"].at


def test_where_nothing_holds_no_line_says_so() -> None:
    chart = charts("llama-3.1-70b")["Tokens per second against batch"]
    assert [s.label for s in chart.series] == ["would need more memory"]
    assert not any(m.limit for m in chart.marks)


def test_windows_are_marked_as_knees() -> None:
    chart = charts("gemma-3-27b", max_model_len=32768)["KV cache against context"]
    assert ("52 layers' window full: 1,024", 1024) in [(m.label, m.at) for m in chart.marks]
    sizes = dict(chart.series[0].points)
    assert sizes[32768] == plan("gemma-3-27b", gpu="h100-sxm", max_model_len=32768).kv.bytes_per_sequence_per_gpu


def test_the_prefix_has_a_line_each_and_a_table_in_every_format() -> None:
    found, curve = drawn(**SETTINGS)
    chart = plan_pictures(found, curve)[-1]
    assert isinstance(chart, Chart)
    rows = found["capacity"]["by_shared_prefix"]
    assert list(chart.series[0].points) == [(r["prefix_tokens"], r["requests"]) for r in rows]
    assert list(chart.series[1].points) == [(r["prefix_tokens"], r["requests_unshared"]) for r in rows]
    (grid,) = [p for p in plan_report(found) if "system prompt" in getattr(p, "title", "")]
    assert [row[2] for row in grid.rows] == [f"{r['requests']:,}" for r in rows]  # type: ignore[union-attr]
    assert not [p for p in plan_report(drawn()[0]) if "system prompt" in getattr(p, "title", "")]


def test_an_explanation_adds_up() -> None:
    model = load_model("gemma-3-27b")
    plain = explain(model, {"max_model_len": 32768}).to_dict()
    token, context, others = explain_pictures(plain, curves(model, None, "generic", {"max_model_len": 32768}).to_dict())
    assert isinstance(token, Bars)
    assert sum(p.value for p in token.stacks[0].pieces) == plain["bytes_per_token"]
    assert isinstance(context, Chart)
    assert context.series[0].points[-1] == (32768, plain["bytes_per_sequence"])
    assert isinstance(others, Bars)
    assert len(others.stacks) == len(plain["comparisons"])


CELLS = [
    {"tp": tp, "n": n, "capacity.requests": None if tp == 3 else 10 * n, "refused": "no" if tp == 3 else None}
    for tp in (1, 3)
    for n in (1, 2, 4)
]


def test_a_sweep_over_numbers_is_a_line_with_gaps() -> None:
    cells = [{"n": n, "capacity.requests": y, "refused": None} for n, y in ((1, 5), (2, None), (3, 15))]
    (line,) = sweep_pictures("m", ["n"], [[1, 2, 3]], ["capacity.requests"], cells, asked=True)
    assert isinstance(line, Chart)
    assert list(line.series[0].points) == [(1.0, 5.0), (2.0, None), (3.0, 15.0)]


def test_a_sweep_over_two_axes_is_a_map_and_over_three_bars() -> None:
    (heat,) = sweep_pictures("m", ["tp", "n"], [[1, 3], [1, 2, 4]], ["capacity.requests"], CELLS, asked=True)
    assert isinstance(heat, HeatMap)
    assert heat.values == [[10.0, 20.0, 40.0], [None, None, None]]
    cells = [{**cell, "x": "a"} for cell in CELLS]
    names = ["x", "tp", "n"]
    (bars,) = sweep_pictures("m", names, [["a"], [1, 3], [1, 2, 4]], ["capacity.requests"], cells, asked=True)
    assert isinstance(bars, Bars)
    assert [s.label for s in bars.stacks][:2] == ["a, 1, 1", "a, 1, 2"]
    assert bars.stacks[-1].text == "no"
    assert bars.stacks[-1].pieces[0].value == 0


def test_figures_that_nobody_asked_for_are_drawn_where_they_vary() -> None:
    cells = [{"n": n, "capacity.requests": 7, "kv.bytes_per_sequence": 100 * n, "refused": None} for n in (1, 2, 3)]
    figures = ["capacity.requests", "kv.bytes_per_sequence"]
    (line,) = sweep_pictures("m", ["n"], [[1, 2, 3]], figures, cells, asked=False)
    assert line.title == "m: bytes per sequence"
    assert len(sweep_pictures("m", ["n"], [[1, 2, 3]], figures, cells, asked=True)) == 2


@pytest.mark.parametrize(
    ("name", "unit"),
    [
        ("kv.bytes_per_sequence", "bytes"), ("decode.seconds_per_step", "seconds"), ("max_model_len", "tokens"),
        ("decode.tokens_per_second_per_gpu", "rate"), ("concurrency", "count"), ("capacity.max_concurrency", "number"),
    ],
)  # fmt: skip
def test_units_follow_names(name: str, unit: str) -> None:
    assert unit_of(name) == unit

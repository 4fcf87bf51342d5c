"""What a run leaves for plans: the file, its way into a plan, and drift against it."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest

from kvplan.catalog import load_gpu
from kvplan.planning.calibration import from_data
from kvplan.planning.planner import plan_deployment
from kvplan.probe.calibrate import calibration_data, drift_rows
from kvplan.probe.session import Figures, MeasuredFigure, MeasuredLine
from kvplan.sources import find_model


def session_with(kind: str = "cuda", scale: float = 1.0, **changes: Any) -> Any:
    """What calibrating reads of a session: one H200's figures, times `scale`."""
    figures = Figures(
        read_bytes_per_second=MeasuredFigure.of([4.59e12 * scale, 4.6e12 * scale, 4.61e12 * scale]),
        matmul_flops={"16": MeasuredFigure.of([7.6e14 * scale, 7.7e14 * scale, 7.8e14 * scale])},
        attention={
            "16": MeasuredLine(
                MeasuredFigure.of([4.4e12 * scale]), MeasuredFigure.of([7.1e-6 / scale]), 0.04
            )
        },
    )  # fmt: skip
    device = SimpleNamespace(
        kind=kind, name="NVIDIA H200", gpu=load_gpu("h200-sxm"), driver="580.159", torch_version="2.13.0+cu130",
        triton_version="3.7.0",
    )  # fmt: skip
    for name, value in changes.items():
        setattr(figures, name, value)
    return SimpleNamespace(figures=figures, device=device)


def test_the_file_is_read_back_and_plans_use_it(tmp_path: Any) -> None:
    data = calibration_data(session_with())
    assert data is not None
    found = from_data(json.loads(json.dumps(data)))
    assert found.read_bandwidth == 4.6e12
    assert found.gpu == "h200-sxm"
    assert found.attention["16"].seconds == 7.1e-6
    assert "driver 580.159, torch 2.13.0+cu130" in found.source
    path = tmp_path / "h200.json"
    path.write_text(json.dumps(data), encoding="utf-8")
    model, gpu = find_model("llama-3.1-8b"), load_gpu("h200-sxm")
    plain = plan_deployment(model, gpu, "generic", {"kv_cache_dtype": "bf16"})
    calibrated = plan_deployment(model, gpu, "generic", {"kv_cache_dtype": "bf16", "calibration": str(path)})
    assert plain.decode is not None
    assert calibrated.decode is not None
    assert calibrated.decode.seconds_per_step != plain.decode.seconds_per_step
    assert calibrated.inputs["calibration"] == found.source


def test_nothing_measured_is_no_calibration() -> None:
    assert calibration_data(session_with(read_bytes_per_second=None)) is None


def test_a_line_without_a_latency_is_left_out() -> None:
    """The schema wants figures above zero; a fit through the origin has none."""
    flat = MeasuredLine(MeasuredFigure.of([4e12]), MeasuredFigure.of([0.0]), 0.04)
    data = calibration_data(session_with(attention={"16": flat}))
    assert data is not None
    assert "attention" not in data
    from_data(data)


def test_the_same_machine_does_not_drift_and_a_slower_one_does() -> None:
    before = from_data(calibration_data(session_with()))
    same = drift_rows(before, session_with(scale=1.01))
    assert [r.name for r in same] == [
        "read rate",
        "matrix products, 16",
        "attention, 16: rate",
        "attention, 16: latency",
    ]
    assert all(r.passed for r in same)
    slower = drift_rows(before, session_with(scale=0.8))
    assert [r.passed for r in slower] == [False, False, False, True]


def test_a_cpu_may_drift_more() -> None:
    before = from_data(calibration_data(session_with()))
    assert all(r.passed for r in drift_rows(before, session_with("cpu", scale=0.7)))
    assert not all(r.passed for r in drift_rows(before, session_with("cpu", scale=0.4)))


@pytest.mark.parametrize("samples", [[1.0, 2.0, 3.0], [3.0, 1.0]])
def test_a_figure_spans_its_samples(samples: list[float]) -> None:
    found = MeasuredFigure.of(samples)
    assert found.low == min(samples)
    assert found.high == max(samples)
    assert found.low <= found.value <= found.high
    assert found.samples == len(samples)

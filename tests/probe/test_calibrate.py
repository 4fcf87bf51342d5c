"""What a run leaves for plans: the file, its way into a plan, and drift against it."""

from __future__ import annotations

import json
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kvplan.catalog import load_gpu
from kvplan.errors import InputError
from kvplan.planning.calibration import Heads, from_data, load_calibration, measured_on
from kvplan.planning.planner import plan_deployment
from kvplan.probe.calibrate import UNSTEADY, calibration_data, drift_rows, note_left_out
from kvplan.probe.session import Figures, MeasuredFigure, MeasuredLine
from kvplan.sources import find_model

ALL = {"bandwidth", "attention", "decode"}
"""Sections that measure what a calibration holds."""


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
    return SimpleNamespace(figures=figures, device=device, model=find_model("llama-3.1-8b"))


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
    assert calibrated.inputs["calibration"] == f"{found.source} in {path}"


LLAMA, FALCON = Heads(32, 8, 128, 128), Heads(71, 1, 64, 64)


def of_model(name: str, heads: Heads | None, scale: float = 1.0) -> Any:
    """The same with every kind of line, of a model."""
    steep = MeasuredLine(MeasuredFigure.of([4.5e12 * scale]), MeasuredFigure.of([5e-6 / scale]), 0.04)
    found = session_with(
        scale=scale, linear={"16": steep}, layer_seconds=MeasuredFigure.of([13e-6 / scale]), heads=heads
    )
    found.model = find_model(name)
    return found


def test_a_file_says_whose_lines_it_has() -> None:
    data = calibration_data(of_model("falcon-7b", FALCON))
    assert data is not None
    assert data["model"] == {"id": "falcon-7b", "query_heads": 71, "kv_heads": 1, "head_dim": 64, "head_dim_v": 64}
    found = from_data(json.loads(json.dumps(data)))
    assert (found.model, found.heads) == ("falcon-7b", FALCON)
    unheard = calibration_data(of_model("falcon-7b", None))
    assert unheard is not None
    assert unheard["model"] == {"id": "falcon-7b"}
    assert from_data(unheard).heads is None


def test_lines_of_another_model_inform_and_rates_of_the_machine_are_judged() -> None:
    before = from_data(calibration_data(of_model("falcon-7b", FALCON)))
    rows = {r.name: r for r in drift_rows(before, of_model("llama-3.1-8b", LLAMA, 1.6), ALL)}
    judged = {name for name, r in rows.items() if r.passed is False}
    assert judged == {"read rate", "matrix products, 16"}
    lines = [r for name, r in rows.items() if name not in judged]
    assert len(lines) == 5
    assert {r.passed for r in lines} == {None}
    said = "the file's is of falcon-7b, and belongs to the shapes of that model, not judged"
    assert all(said in r.note for r in lines)
    own = drift_rows(before, of_model("falcon-7b", FALCON, 1.6), ALL)
    assert [r.passed for r in own] == [False] * len(rows)
    lost = session_with(attention={})
    lost.model = find_model("llama-3.1-8b")
    assert {r.passed for r in drift_rows(before, lost, ALL) if r.measured is None} == {None}


def test_lines_of_a_ranks_share_are_not_those_of_the_whole_model() -> None:
    before = from_data(calibration_data(of_model("llama-3.1-8b", LLAMA)))
    share = drift_rows(before, of_model("llama-3.1-8b", Heads(16, 4, 128, 128), 0.6), ALL)
    assert [r.passed for r in share[:2]] == [False, False]
    assert {r.passed for r in share[2:]} == {None}
    assert "of 32 query and 8 KV heads of 128, this run's of 16 query and 4 KV heads of 128" in share[2].note


def test_a_file_that_names_no_model_is_judged_as_before() -> None:
    data = calibration_data(of_model("falcon-7b", FALCON))
    assert data is not None
    del data["model"]
    rows = drift_rows(from_data(data), of_model("llama-3.1-8b", LLAMA, 0.6), ALL)
    assert {r.passed for r in rows} == {False}


def test_a_measured_attention_is_named_in_the_file() -> None:
    pytest.importorskip("torch", reason="the probe's extra is not installed")
    from kvplan.probe import attention, run
    from kvplan.probe.device import detect

    request = run.Request(find_model("smollm2-135m"), "vllm", {}, detect("cpu"), 64 << 20, quick=True)
    session = run.open_session(request, lambda text: None)
    session.limits = session.limits._replace(deadline=0.0)
    attention.measure(session)
    assert session.figures.heads == (9, 3, 64, 64)


def test_nothing_measured_is_no_calibration() -> None:
    assert calibration_data(session_with(read_bytes_per_second=None)) is None


def test_a_line_through_the_origin_keeps_its_rate_and_invents_no_latency() -> None:
    flat = MeasuredLine(MeasuredFigure.of([4e12]), MeasuredFigure.of([0.0]), 0.04)
    data = calibration_data(session_with(attention={"16": flat}))
    assert data is not None
    found = from_data(json.loads(json.dumps(data)))
    assert (found.attention["16"].bytes_per_second, found.attention["16"].seconds) == (4e12, 0.0)
    rows = {r.name: r for r in drift_rows(found, session_with(scale=0.7), ALL)}
    assert rows["attention, 16: latency"].passed is None
    assert "through the origin" in rows["attention, 16: latency"].note
    assert rows["attention, 16: rate"].passed is False  # 3.1 against 4.0 TB/s


def test_the_same_machine_does_not_drift_and_a_slower_one_does() -> None:
    before = from_data(calibration_data(session_with()))
    same = drift_rows(before, session_with(scale=1.01), ALL)
    assert [r.name for r in same] == [
        "read rate",
        "matrix products, 16",
        "attention, 16: rate",
        "attention, 16: latency",
    ]
    assert all(r.passed for r in same)
    slower = drift_rows(before, session_with(scale=0.8), ALL)
    assert [r.passed for r in slower] == [False, False, False, True]


def test_a_cpu_may_drift_more() -> None:
    before = from_data(calibration_data(session_with()))
    rows = drift_rows(before, session_with("cpu", scale=0.7), ALL)
    assert {r.name for r in rows if r.passed is None} == {"attention, 16: latency"}  # it says nothing on a CPU
    assert all(r.passed for r in rows if not r.name.endswith("latency"))
    assert not all(r.passed for r in drift_rows(before, session_with("cpu", scale=0.4), ALL))


def test_a_cpu_whose_cores_others_have_says_no_drift_downwards() -> None:
    before = from_data(calibration_data(session_with()))
    idle, taken = (drift_rows(before, session_with("cpu", scale=0.4), ALL, share) for share in (0.05, 0.3))
    assert [r.passed for r in idle if r.unit != "s"] == [False] * 3
    assert [r.passed for r in taken if r.unit != "s"] == [None] * 3
    assert "others had the cores for 30% of this run's time, not judged" in taken[0].note
    faster = drift_rows(before, session_with("cpu", scale=1.6), ALL, 0.3)
    assert [r.passed for r in faster if r.unit != "s"] == [False] * 3  # nobody makes memory faster
    assert all(r.passed for r in drift_rows(before, session_with("cpu", scale=0.7), ALL, 0.3) if r.unit != "s")


def test_what_the_file_has_and_this_run_lacks_is_off_unless_its_section_was_left_out() -> None:
    before = from_data(calibration_data(session_with()))
    lost = session_with(attention={}, matmul_flops={})
    rows = {r.name: r for r in drift_rows(before, lost, ALL)}
    assert rows["read rate"].passed
    for name in ("matrix products, 16", "attention, 16: rate", "attention, 16: latency"):
        assert (rows[name].measured, rows[name].passed) == (None, False)
        assert "not measured" in rows[name].note
    narrowed = {r.name: r for r in drift_rows(before, lost, {"bandwidth"})}
    assert narrowed.keys() == rows.keys()
    assert [r.passed for r in narrowed.values()] == [True, None, None, None]
    assert "attention was left out" in narrowed["attention, 16: rate"].note


@pytest.mark.parametrize("wrong", [math.nan, math.inf, 0.0])
def test_figures_that_are_no_numbers_stay_out_of_the_file(wrong: float) -> None:
    line = MeasuredLine(MeasuredFigure.of([wrong]), MeasuredFigure.of([7e-6]), 0.04)
    data = calibration_data(
        session_with(attention={"16": line}, matmul_flops={"16": MeasuredFigure.of([wrong])}, linear={"16": line})
    )
    assert data is not None
    assert not {"attention", "matmul_flops", "linear"} & set(data)
    from_data(json.loads(json.dumps(data, allow_nan=False)))
    assert calibration_data(session_with(read_bytes_per_second=MeasuredFigure.of([wrong]))) is None


def test_a_cpu_is_no_gpu_of_the_catalog(tmp_path: Path) -> None:
    """The rates of a processor would make an H200 take seconds a token."""
    found = session_with("cpu")
    found.device.name, found.device.gpu = "AMD EPYC 9654 96-Core Processor", None
    data = calibration_data(found)
    assert data is not None
    assert data["device"]["kind"] == "cpu"
    path = tmp_path / "here.json"
    path.write_text(json.dumps(data), encoding="utf-8")
    with pytest.raises(InputError, match="which is a CPU, not on h200-sxm"):
        load_calibration(str(path), "h200-sxm")
    assert load_calibration(str(path), "custom").kind == "cpu"  # a device that only the user knows
    assert measured_on(str(path), ["h200-sxm"])[1] is None
    del data["device"]["kind"]  # as older files are
    path.write_text(json.dumps(data), encoding="utf-8")
    with pytest.raises(InputError, match="no GPU of the catalog") as refused:
        load_calibration(str(path), "h200-sxm")
    assert '"gpu": "h200-sxm"' in (refused.value.hint or "")
    assert measured_on(str(path), ["h200-sxm"])[1] is None


@pytest.mark.parametrize("samples", [[1.0, 2.0, 3.0], [3.0, 1.0]])
def test_a_figure_spans_its_samples(samples: list[float]) -> None:
    found = MeasuredFigure.of(samples)
    assert found.low == min(samples)
    assert found.high == max(samples)
    assert found.low <= found.value <= found.high
    assert found.samples == len(samples)


def line(rate: tuple[float, ...], seconds: tuple[float, ...], miss: float = 0.04) -> MeasuredLine:
    """The line of the first figures, with the bounds of all."""
    figures = [MeasuredFigure(all_[0], min(all_), max(all_), len(all_)) for all_ in (rate, seconds)]
    return MeasuredLine(*figures, miss)


@pytest.mark.parametrize("side", ["the file", "this run"])
def test_what_lies_apart_on_one_side_cannot_drift(side: str) -> None:
    steady = {"attention": {"16": line((4e12,), (7e-6,))}, "layer_seconds": MeasuredFigure.of([1e-5])}
    apart = {
        "attention": {"16": line((2e12, 1e12, 4e12), (14e-6, 13e-6))},
        "layer_seconds": MeasuredFigure(2e-5, 1e-5, 2e-5, 3),
        "read_bytes_per_second": MeasuredFigure(2e12, 2e12, 4.6e12, 3),
        "matmul_flops": {"16": MeasuredFigure(11e14, 11e14 * (1 - UNSTEADY - 0.05), 11e14, 3)},
    }
    first, second = (apart, steady) if side == "the file" else (steady, apart)
    before = from_data(json.loads(json.dumps(calibration_data(session_with(**first)))))
    rows = {r.name: r for r in drift_rows(before, session_with(**second), ALL)}
    latency = rows.pop("attention, 16: latency")
    assert latency.passed is False  # half or twice, and steady on both sides
    assert len(rows) == 4
    for row in rows.values():
        assert row.passed is None
        assert f"{side} " in row.note
        assert "not judged" in row.note


def test_samples_of_two_sides_that_do_not_meet_have_drifted_however_wide() -> None:
    wide = {"read_bytes_per_second": MeasuredFigure(4e12, 2e12, 5e12, 20)}
    before = from_data(json.loads(json.dumps(calibration_data(session_with(**wide)))))
    tenth = session_with(read_bytes_per_second=MeasuredFigure(4e11, 2e11, 5e11, 20))
    row = drift_rows(before, tenth, ALL)[0]
    assert (row.name, row.passed) == ("read rate", False)


def test_lines_that_say_nothing_are_named() -> None:
    lacks: list[str] = []
    for session in (session_with(), session_with(linear={"16": line((4e12,), (7e-6,), miss=1.22)})):
        assert lacks == []
        session.lack = lacks.append
        note_left_out(session)
    (said,) = lacks
    assert "calibration, linear, 16" in said
    assert "122%" in said

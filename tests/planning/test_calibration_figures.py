"""What becomes of the figures of a calibration file: bounds, spans, fallbacks and where they come from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kvplan.errors import InputError, SpecError
from kvplan.planning.calibration import Calibration, Line, from_data, load_calibration

from .test_calibration import calibration, figure, line, written

NONE: dict[str, Any] = {"linear": None, "attention": None, "matmul_flops": None, "layer_seconds": None}


def read(**changed: Any) -> Calibration:
    return from_data(calibration(**changed), "x.json")


def apart(value: float, low: float, high: float) -> dict[str, Any]:
    return {"value": value, "low": low, "high": high}


def test_spans_are_the_bounds_of_every_figure() -> None:
    made = read(
        read_bytes_per_second=apart(4e12, 3e12, 5e12), matmul_flops={"16": apart(7e14, 6e14, 8e14)},
        layer_seconds=apart(3e-6, 2e-6, 4e-6), linear=None,
        attention={"8": {"bytes_per_second": apart(2e12, 1e12, 3e12), "latency_seconds": apart(2e-6, 0, 3e-6),
                         "worst_miss": 0.1}},
    )  # fmt: skip
    assert made.spans == {
        "matmul 16": (6e14, 8e14), "read": (3e12, 5e12), "layer": (2e-6, 4e-6), "attention 8": (1e12, 3e12),
        "attention 8 latency": (0, 3e-6),
    }  # fmt: skip
    assert (made.read_bandwidth, made.layer_seconds) == (4e12, 3e-6)
    assert (made.matmul, made.linear, made.attention) == ({"16": 7e14}, {}, {"8": Line(2e12, 2e-6, 0.1)})


@pytest.mark.parametrize(
    ("changed", "spread", "below"),
    [
        ({"read_bytes_per_second": apart(100, 99, 101)}, 0.02, 0.02),  # never below two per cent
        ({"read_bytes_per_second": apart(100, 80, 110)}, 0.2, 0.2),
        ({"read_bytes_per_second": apart(100, 80, 150)}, 0.5, 0.2),
        ({"read_bytes_per_second": apart(100, 95, 300)}, 2.0, 0.05),
        ({"matmul_flops": {"16": apart(100, 70, 110)}}, 0.3, 0.3),
        ({"layer_seconds": apart(100, 10, 900)}, 0.02, 0.02),  # of a sum of seconds it is the small part
        ({"attention": {"16": {**line(1e12, 1e-6), "worst_miss": 0.07}}}, 0.07, 0.07),
        ({"attention": {"16": {**line(1e12, 1e-6), "bytes_per_second": apart(100, 10, 900)}}}, 0.04, 0.04),
    ],
)  # fmt: skip
def test_bounds_are_the_widest_of_the_figures_that_are_used(changed: Any, spread: float, below: float) -> None:
    made = read(**{**NONE, "read_bytes_per_second": apart(100, 100, 100), **changed})
    assert (made.spread, made.below) == pytest.approx((spread, below))
    assert made.bounds(0.5, 1.5) == pytest.approx((1 - max(below, 0.25), 1 + max(spread, 0.25)))


@pytest.mark.parametrize("odd", [float("inf"), float("nan")])
def test_figures_that_are_no_numbers(odd: float) -> None:
    good = apart(1.0, 1.0, 1.0)
    for field in ("value", "low", "high"):
        with pytest.raises(SpecError):
            read(**{**NONE, "read_bytes_per_second": {**good, field: odd}})
        late = {**line(1e12, 1e-6), "latency_seconds": {**good, field: odd}}
        with pytest.raises(SpecError):
            read(**{**NONE, "attention": {"16": late}})
    for wide in ({"value": 1.0, "low": 1.0, "high": odd}, {"value": odd, "low": odd, "high": odd}):
        with pytest.raises(SpecError):
            read(**{**NONE, "read_bytes_per_second": wide})
    with pytest.raises(SpecError):
        read(**{**NONE, "attention": {"16": {**line(1e12, 1e-6), "worst_miss": odd}}})


def test_where_figures_come_from() -> None:
    made = read()
    said = "calibration of NVIDIA H200, 2026-11-30 (driver 580.159, torch 2.11.0+cu130)"
    assert made.source == f"{said} in x.json"
    assert made._replace(path="").source == said
    assert made._replace(driver=None, path="").source == "calibration of NVIDIA H200, 2026-11-30 (torch 2.11.0+cu130)"
    assert made._replace(torch=None, driver=None).source == "calibration of NVIDIA H200, 2026-11-30 in x.json"
    assert (made.gpu, made.device, made.kind, made.date) == ("h200-sxm", "NVIDIA H200", None, "2026-11-30")


def test_lines_that_stand_in_for_others() -> None:
    made = read(linear={"16": line(1e12, 1e-6)}, attention={"16": line(2e12, 1e-6)}, matmul_flops={"16": figure(3e14)})
    assert made.linear_line("fp8") == made.linear_line("16") == Line(1e12, 1e-6, 0.04)
    assert made.attention_line("8") is None
    assert made.attention_line("16") == Line(2e12, 1e-6, 0.04)
    assert (made.matmul_flops("16"), made.matmul_flops("fp8")) == (3e14, None)


def refused(tmp_path: Path, data: Any, gpu: str | None = "h200-sxm") -> Any:
    with pytest.raises((InputError, SpecError)) as caught:
        load_calibration(written(tmp_path, data), gpu)
    return caught.value


def test_files_of_other_devices(tmp_path: Path) -> None:
    path = written(tmp_path, calibration())
    assert load_calibration(path).gpu == load_calibration(path, "h200-sxm").gpu == "h200-sxm"
    other = refused(tmp_path, calibration(), "l4")
    assert other.message.endswith("was measured on h200-sxm, not on l4")
    assert other.hint == "plan with --gpu h200-sxm, or measure this one"
    named = {"name": "NVIDIA L4"}
    assert load_calibration(written(tmp_path, calibration(device=named)), "l4").gpu is None
    assert "was measured on l4, not on h200-sxm" in refused(tmp_path, calibration(device=named)).message
    strange = refused(tmp_path, calibration(device={"name": "Strange"}))
    assert strange.message.endswith("was measured on Strange, which is no GPU of the catalog, not on h200-sxm")
    assert strange.hint == 'write "gpu": "h200-sxm" into its device, if it was this one'
    cpu = refused(tmp_path, calibration(device={"name": "EPYC", "kind": "cpu"}))
    assert cpu.message.endswith("was measured on EPYC, which is a CPU, not on h200-sxm")
    assert cpu.hint == "measure that one"
    mine = written(tmp_path, calibration(device={"name": "Strange"}))
    assert load_calibration(mine, "my-own").device == "Strange"  # whoever describes it knows what it is


@pytest.mark.parametrize(
    ("schema", "hint"),
    [
        ("kvplan.validation/1", "it is a receipt: give the file of --save, or what the receipt has under its key"),
        ("kvplan.calibration/9", "it is kvplan.calibration/9, of another kvplan: measure again with kvplan validate"),
        ("x", 'its first key is "schema": "kvplan.calibration/1"'),
    ],
)
def test_files_that_are_something_else(tmp_path: Path, schema: str, hint: str) -> None:
    error = refused(tmp_path, {**calibration(), "schema": schema})
    assert error.message == "is no kvplan.calibration/1"
    assert error.hint.startswith(hint)
    assert refused(tmp_path, "[1]").hint.startswith("its first key is")
    assert refused(tmp_path, "{").message == "is not JSON"
    with pytest.raises(InputError, match="cannot read") as missing:
        load_calibration(str(tmp_path / "none.json"))
    assert (missing.value.where, missing.value.hint) == ("--calibration", "give a file of kvplan validate --save")

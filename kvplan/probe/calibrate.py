"""A calibration from what was measured, and whether an earlier one still holds.

The file is ``kvplan.calibration/1`` (``docs/speed.md``); `kvplan.planning.calibration` reads it.
"""

from __future__ import annotations

import datetime
from typing import TYPE_CHECKING, Any

from kvplan._version import __version__
from kvplan.planning.calibration import SCHEMA
from kvplan.probe.receipt import Row, row

if TYPE_CHECKING:
    from kvplan.planning.calibration import Calibration
    from kvplan.probe.session import MeasuredFigure, MeasuredLine, Session

RATE_DRIFT, LATENCY_DRIFT = 0.05, 0.25
"""How far rates and latencies of a later run may lie from those of a file (or three times the file's own spread)."""
CPU_DRIFT = 0.5
"""The same on a CPU, whose memory is shared with everything else that runs."""


def calibration_data(session: Session) -> dict[str, Any] | None:
    """The object of a calibration file; None while nothing says how fast memory is read."""
    figures, device = session.figures, session.device
    if figures.read_bytes_per_second is None and not figures.linear:
        return None
    who: dict[str, Any] = {"name": device.name}
    if device.gpu is not None:
        who["gpu"] = device.gpu.id
    if device.driver is not None:
        who["driver"] = device.driver
    software = {"kvplan": __version__, "torch": device.torch_version}
    if device.triton_version is not None:
        software["triton"] = device.triton_version
    data: dict[str, Any] = {
        "schema": SCHEMA, "date": datetime.datetime.now(tz=datetime.UTC).date().isoformat(), "device": who,
        "software": software,
    }  # fmt: skip
    if figures.read_bytes_per_second is not None:
        data["read_bytes_per_second"] = _figure(figures.read_bytes_per_second)
    if figures.matmul_flops:
        data["matmul_flops"] = {key: _figure(value) for key, value in figures.matmul_flops.items()}
    for name in ("linear", "attention"):
        lines = {key: _line(value) for key, value in getattr(figures, name).items() if _positive(value)}
        if lines:
            data[name] = lines
    if figures.layer_seconds is not None and figures.layer_seconds.value > 0:
        data["layer_seconds"] = _figure(figures.layer_seconds)
    return data


def _positive(line: MeasuredLine) -> bool:
    """Whether a fitted line says something: a rate and a latency above zero."""
    return min(line.bytes_per_second.low, line.latency_seconds.low) > 0 and line.worst_miss < 1


def _figure(figure: MeasuredFigure) -> dict[str, Any]:
    return {"value": figure.value, "low": figure.low, "high": figure.high, "samples": figure.samples}


def _line(line: MeasuredLine) -> dict[str, Any]:
    return {
        "bytes_per_second": _figure(line.bytes_per_second),
        "latency_seconds": _figure(line.latency_seconds),
        "worst_miss": line.worst_miss,
    }


def drift_rows(before: Calibration, session: Session) -> list[Row]:
    """An earlier calibration as prediction, this run as measurement, figure by figure.

    What either of the two lacks is not compared.
    """
    figures = session.figures
    rates = max(RATE_DRIFT, 3 * before.spread) if session.device.kind != "cpu" else CPU_DRIFT
    rates = min(rates, CPU_DRIFT)
    late = LATENCY_DRIFT if session.device.kind != "cpu" else 4 * CPU_DRIFT
    since = f"against {before.date}"
    rows: list[Row] = []
    read = figures.read_bytes_per_second
    if before.read_bandwidth is not None and read is not None:
        rows.append(_drift("read rate", before.read_bandwidth, read.value, "bytes/s", rates, since))
    for key, flops in figures.matmul_flops.items():
        if (old := before.matmul.get(key)) is not None:
            rows.append(_drift(f"matrix products, {key}", old, flops.value, "flop/s", rates, since))
    for what in ("linear", "attention"):
        for key, line in getattr(figures, what).items():
            known = getattr(before, what).get(key)
            if known is not None:
                name = f"{what}, {key}"
                new = line.bytes_per_second.value
                rows.append(_drift(f"{name}: rate", known.bytes_per_second, new, "bytes/s", rates, since))
                new = line.latency_seconds.value
                rows.append(_drift(f"{name}: latency", known.seconds, new, "s", late, since))
    if before.layer_seconds is not None and figures.layer_seconds is not None:
        rows.append(_drift("per layer", before.layer_seconds, figures.layer_seconds.value, "s", late, since))
    return rows


def _drift(name: str, before: float, now: float, unit: Any, tolerance: float, note: str) -> Row:
    return row("drift", name, predicted=before, measured=now, unit=unit, tolerance=tolerance, note=note)

"""A calibration from what was measured, and whether an earlier one still holds.

The file is ``kvplan.calibration/1`` (``docs/speed.md``); `kvplan.planning.calibration` reads it.
"""

from __future__ import annotations

import datetime
from math import isfinite
from typing import TYPE_CHECKING, Any

from kvplan._version import __version__
from kvplan.planning.calibration import SCHEMA
from kvplan.probe.receipt import Row, Unit, row

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from kvplan.planning.calibration import Calibration
    from kvplan.probe.session import Figures, MeasuredFigure, MeasuredLine, Session

RATE_DRIFT, LATENCY_DRIFT = 0.05, 0.25
"""How far rates and latencies of a later run may lie from those of a file (or three times the file's own spread)."""
CPU_DRIFT = 0.5
"""Of rates on a CPU, whose memory is shared with everything else that runs; latencies inform there."""
WAITED = 0.1
"""Of a run's time on a CPU that it waited for a core: from then on a rate that fell says no drift."""
UNSTEADY = 0.25
"""How far the samples of a figure may lie from it: beyond that it says no drift while both sides' samples meet."""


def calibration_data(session: Session) -> dict[str, Any] | None:
    """The object of a calibration file; None while nothing says how fast memory is read."""
    figures, device = session.figures, session.device
    read = figures.read_bytes_per_second
    linear, attention = (
        {key: _line(value) for key, value in lines.items() if _line_stands(value)}
        for lines in (figures.linear, figures.attention)
    )
    if (read is None or not _stands(read)) and not linear:
        return None
    who: dict[str, Any] = {"name": device.name, "kind": device.kind}
    if device.gpu is not None:
        who["gpu"] = device.gpu.id
    if device.driver is not None:
        who["driver"] = device.driver
    software = {"kvplan": __version__, "torch": device.torch_version}
    if device.triton_version is not None:
        software["triton"] = device.triton_version
    data: dict[str, Any] = {
        "schema": SCHEMA, "date": datetime.datetime.now(tz=datetime.UTC).date().isoformat(), "device": who,
        "software": software, "model": _model(session),
    }  # fmt: skip
    if read is not None and _stands(read):
        data["read_bytes_per_second"] = _figure(read)
    if flops := {key: _figure(value) for key, value in figures.matmul_flops.items() if _stands(value)}:
        data["matmul_flops"] = flops
    for name, lines in (("linear", linear), ("attention", attention)):
        if lines:
            data[name] = lines
    if figures.layer_seconds is not None and _stands(figures.layer_seconds):
        data["layer_seconds"] = _figure(figures.layer_seconds)
    return data


def _model(session: Session) -> dict[str, Any]:
    """Whose shapes the lines belong to."""
    heads = session.figures.heads
    return {"id": session.model.id, **(heads._asdict() if heads is not None else {})}


def note_left_out(session: Session) -> None:
    """Lines that were measured and say too little to be written: the receipt lacks them."""
    for what, lines in (("linear", session.figures.linear), ("attention", session.figures.attention)):
        for key, line in lines.items():
            if not _line_stands(line):
                session.lack(
                    f"calibration, {what}, {key}: no line through its shapes says something "
                    f"(worst miss {line.worst_miss:.0%}), so there is none in it"
                )


def _stands(figure: MeasuredFigure) -> bool:
    """Whether a figure says something: finite numbers above zero."""
    return all(isfinite(x) and x > 0 for x in (figure.value, figure.low, figure.high))


def _line_stands(line: MeasuredLine) -> bool:
    """Whether a fitted line says something: a rate above zero, a latency of zero or more, and no miss of a whole."""
    late = line.latency_seconds
    latency = all(isfinite(x) and x >= 0 for x in (late.value, late.low, late.high))
    return _stands(line.bytes_per_second) and latency and line.worst_miss < 1


def _figure(figure: MeasuredFigure) -> dict[str, Any]:
    return {"value": figure.value, "low": figure.low, "high": figure.high, "samples": figure.samples}


def _line(line: MeasuredLine) -> dict[str, Any]:
    return {
        "bytes_per_second": _figure(line.bytes_per_second),
        "latency_seconds": _figure(line.latency_seconds),
        "worst_miss": line.worst_miss,
    }


def drift_rows(before: Calibration, session: Session, ran: Collection[str], waited: float = 0.0) -> list[Row]:
    """An earlier calibration as prediction, this run as measurement, figure by figure.

    Where the samples of either side lie further from their figure than `UNSTEADY`, and those of both meet, a row
    informs: the figure would come out elsewhere on the same machine. Lines, and what stands between the kernels of a
    layer, belong to a model's shapes: where the file has those of others, they inform. A figure of the file that this
    run lacks is a failed row, unless the section that measures it was left out (``--only``): then the row says so and
    is not judged.
    What the file lacks is not compared.

    Args:
        ran: the sections of this run.
        waited: share of its time that it waited for a core, on a CPU. What others take makes rates fall and never
            rise, so one that fell is then not judged.
    """
    cpu = session.device.kind == "cpu"
    rates = min(CPU_DRIFT if cpu else max(RATE_DRIFT, 3 * before.spread), CPU_DRIFT)
    late = None if cpu else LATENCY_DRIFT
    rows: list[Row] = []
    for name, old, found, unit, section, key in _pairs(before, session.figures):
        new = found.value if found is not None else None
        left_out = new is None and section not in ran
        unsteady = _unsteady(old, before.spans.get(key, (old, old)), found) if found is not None else []
        note = f"against {before.date}"
        foreign = _foreign(before, session) if key != "read" and not key.startswith("matmul") else ""
        if foreign:
            note += f": {foreign}, not judged"
        elif new is None:
            note += f": not measured, as {section} was left out" if left_out else ": not measured by this run"
        elif not old:
            note += ": its line goes through the origin, so nothing can be said of a latency"
        elif unsteady:
            note += f": its samples lie as far apart as {' and '.join(unsteady)}, not judged"
        taken = waited > WAITED and unit != "s" and new is not None and new < old * (1 - rates)
        if taken and not unsteady and not foreign:
            note += f": others had the cores for {waited:.0%} of this run's time, not judged"
        informs = bool(foreign) or left_out or taken or (new is not None and (not old or unsteady))
        tolerance = None if informs else late if unit == "s" else rates
        rows.append(row("drift", name, predicted=old, measured=new, unit=unit, tolerance=tolerance, note=note))
    return rows


def _foreign(before: Calibration, session: Session) -> str:
    """Why lines of the file say nothing about this run's; empty where they are of the same shapes, or may be."""
    if (other := before.other_model(session.model)) is not None:
        return f"the file's is of {other}, and belongs to the shapes of that model"
    old, new = before.heads, session.figures.heads
    if old is None or new is None or old == new:
        return ""
    shapes = [f"{x.query_heads} query and {x.kv_heads} KV heads of {x.head_dim}" for x in (old, new)]
    return f"the file's is of {shapes[0]}, this run's of {shapes[1]}"


def _unsteady(old: float, span: tuple[float, float], new: MeasuredFigure) -> list[str]:
    """The sides whose samples lie too far apart to say whether a figure has drifted; none where they do not meet."""
    if span[0] > new.high or new.low > span[1]:
        return []
    sides = {"the file": (old, *span), "this run": (new.value, new.low, new.high)}
    shares = {side: max(1 - low / x, high / x - 1) for side, (x, low, high) in sides.items() if x}
    return [f"{side} {share:.0%}" for side, share in shares.items() if share > UNSTEADY]


def _pairs(before: Calibration, figures: Figures) -> Iterator[tuple[str, float, MeasuredFigure | None, Unit, str, str]]:
    """(name, what the file has, what this run has, unit, section that measures it, its key in the file's spreads)."""
    if before.read_bandwidth is not None:
        yield "read rate", before.read_bandwidth, figures.read_bytes_per_second, "bytes/s", "bandwidth", "read"
    for key, old in before.matmul.items():
        yield f"matrix products, {key}", old, figures.matmul_flops.get(key), "flop/s", "decode", f"matmul {key}"
    for what, known, found, section in (
        ("linear", before.linear, figures.linear, "decode"),
        ("attention", before.attention, figures.attention, "attention"),
    ):
        for key, line in known.items():
            new = found.get(key)
            rate, start = (new.bytes_per_second, new.latency_seconds) if new else (None, None)
            yield f"{what}, {key}: rate", line.bytes_per_second, rate, "bytes/s", section, f"{what} {key}"
            yield f"{what}, {key}: latency", line.seconds, start, "s", section, f"{what} {key} latency"
    if before.layer_seconds is not None:
        yield "per layer", before.layer_seconds, figures.layer_seconds, "s", "decode", "layer"

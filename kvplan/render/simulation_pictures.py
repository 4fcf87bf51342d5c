"""The pictures of a simulation: memory, requests and tokens over time."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from kvplan.render.grid import Part
from kvplan.render.svg.parts import Axis, Chart, Series

Plain = Mapping[str, Any]
_TIME = Axis("since the first arrival", "seconds")


def timeline_charts(result: Plain) -> list[Part]:
    """What happened over time, all replicas together."""
    line = result["timeline"]

    def of(figure: Callable[[Plain], float]) -> list[tuple[float, float | None]]:
        return [(p["seconds"], figure(p)) for p in line]

    memory = [Series("in use", of(lambda p: p["used"]), "area"), Series("token states", of(lambda p: p["stored"]))]
    if any(p["cached"] > 0 for p in line):
        memory.append(Series("in use and cached", of(lambda p: min(1.0, p["used"] + p["cached"]))))
    requests = [
        Series("running", of(lambda p: p["running"])),
        Series("waiting", of(lambda p: p["waiting"])),
    ]
    return [
        Chart("KV memory over time", _TIME, Axis("share of the pool", "share", high=1.0), memory),
        Chart("Requests over time", _TIME, Axis("requests", "count"), requests),
        Chart(
            "Tokens over time", _TIME, Axis("tokens per second, prompts and outputs", "count"),
            [Series("computed", of(lambda p: p["tokens_per_second"]))],
        ),
    ]  # fmt: skip


def study_charts(axis: str, rows: Sequence[Plain]) -> list[Part]:
    """Throughput and latency over one axis of numbers; nothing where it has names."""
    kept = [r for r in rows if not r["refused"] and _number(r[axis]) is not None]
    if len(kept) < 3 or len(kept) < len([r for r in rows if not r["refused"]]):
        return []
    along = Axis(axis.replace("_", " "), "number")

    def of(name: str) -> list[tuple[float, float | None]]:
        return [(_number(r[axis]) or 0.0, r[name]) for r in kept]

    return [
        Chart(
            "Time to the first token", along, Axis("seconds", "seconds"),
            [Series("p50", of("latency.ttft.p50")), Series("p99", of("latency.ttft.p99"))],
        ),
        Chart(
            "Throughput", along, Axis("output tokens per second", "count"),
            [Series("deployment", of("throughput.tokens_per_second"))],
        ),
    ]  # fmt: skip


def _number(value: Any) -> float | None:
    if isinstance(value, bool):
        return None
    try:
        return float(value)
    except (TypeError, ValueError):
        return None

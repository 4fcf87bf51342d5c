"""Speed as a section of the capacity report."""

from __future__ import annotations

from typing import Any

from kvplan.render.grid import KeyValues
from kvplan.units import gib

Plain = dict[str, Any]
TITLE = "Speed, modelled"


def speed_part(plan: Plain) -> KeyValues:
    """Decode and prefill of the workload; every figure says whose it is."""
    rows = _decode(plan["decode"], plan["inputs"]["data_parallel_size"] > 1) if plan["decode"] else []
    if plan["prefill"]:
        rows.append(_prefill(plan["prefill"]))
    if rows and plan["inputs"].get("calibration"):
        rows.append(("rates", "measured", plan["inputs"]["calibration"]))
    return KeyValues(rows, title=TITLE)


def _decode(decode: Plain, replicas: bool) -> list[tuple[str, str, str]]:
    parts = decode["parts"]
    per = " per replica" if replicas else ""
    limit = f"bound by {decode['bound']}; " if decode["bound"] else ""
    rest = parts["latency"] + parts["communication"]
    shares = f"{limit}{duration(rest)} of it in launches and messages"
    rows = [
        (
            "time per output token",
            duration(decode["seconds_per_step"]),
            f"batch {decode['batch']:,}{per}, {decode['context']:,} tokens cached by each; {shares}",
        ),
        (
            "tokens per second",
            rate(decode["tokens_per_second"]),
            f"of the deployment ({rate(decode['low'])} to {rate(decode['high'])}); "
            f"{rate(decode['tokens_per_second_per_gpu'])} per GPU, "
            f"{rate(decode['tokens_per_second_per_request'])} per request",
        ),
        (
            "read per step",
            gib(decode["weight_bytes"] + decode["kv_bytes"]),
            f"per GPU: weights {gib(decode['weight_bytes'])}, cache {gib(decode['kv_bytes'])}; "
            f"{decode['arithmetic_intensity']:.3g} FLOPs a byte",
        ),
    ]
    if decode["ridge_batch"] is not None:
        half = f"; batch {decode['saturation_batch']:,} brings half of it" if decode["saturation_batch"] else ""
        rows.append(
            (
                "ceiling",
                rate(decode["ceiling_tokens_per_second"]),
                f"tokens per second of the deployment at this context, whatever the batch{half}; from batch "
                f"{decode['ridge_batch']:,}{per} on the weights are bound by compute",
            )
        )
    return rows


def _prefill(prefill: Plain) -> tuple[str, str, str]:
    return (
        "time to first token",
        duration(prefill["seconds"]),
        f"prompt of {prefill['tokens']:,} alone, nothing cached ({duration(prefill['low_seconds'])} to "
        f"{duration(prefill['high_seconds'])}); bound by {prefill['bound']}, "
        f"{rate(prefill['tokens_per_second'])} tokens per second",
    )


def duration(seconds: float) -> str:
    """``7.71 ms``, ``2.3 s``, ``45 us``: three digits."""
    if seconds >= 0.9995:
        return f"{seconds:,.3g} s" if seconds < 999.5 else f"{seconds:,.0f} s"
    return f"{seconds * 1e3:.3g} ms" if seconds >= 0.9995e-3 else f"{seconds * 1e6:.3g} us"


def rate(per_second: float) -> str:
    """Whole numbers above 100, three digits below."""
    return f"{per_second:,.0f}" if per_second >= 100 else f"{per_second:.3g}"

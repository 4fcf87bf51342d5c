"""Traffic, targets and cost as sections of the capacity report."""

from __future__ import annotations

from typing import Any

from kvplan.render.grid import Column, Grid, KeyValues, Part
from kvplan.render.speed import duration, rate

Plain = dict[str, Any]
Rows = list[tuple[str, str, str]]


def serving_parts(plan: Plain) -> list[Part]:
    """What a deployment serves, the targets it was asked for, and what it costs."""
    parts: list[Part] = []
    serving, cost = plan["serving"], plan["cost"]
    if serving["saturation_request_rate"] is not None:
        parts.append(KeyValues(_serving(serving), title="Under load, modelled"))
    if serving["targets"]:
        parts.append(_targets(serving["targets"]))
    parts.append(KeyValues(_cost(cost, plan["inputs"]["gpus"]), title="Cost"))
    return parts


def _serving(serving: Plain) -> Rows:
    rows: Rows = []
    if serving["ttft_seconds"] is not None:
        waits = [(serving["queue_seconds"], "for prompts ahead"), (serving["slot_seconds"], "for a slot")]
        said = [f"{duration(seconds)} waiting {why}" for seconds, why in waits if seconds >= 1e-6]
        text = "; ".join([f"mean: {duration(serving['prefill_seconds'])} of prefill with others on board", *said])
        rows.append(("time to first token", duration(serving["ttft_seconds"]), text))
    else:
        rows.append(("time to first token", "-", "more requests come than it carries: waits grow without end"))
    if serving["tpot_seconds"] is not None:
        batch = f"{serving['decode_batch']:,.1f} sequences a step, prompts of others in the same steps"
        rows.append(("time per output token", duration(serving["tpot_seconds"]), f"mean: {batch}"))
    rows.append(
        (
            "requests per second",
            rate(serving["requests_per_second"]),
            f"of the deployment, {serving['in_flight']:,.1f} of them in flight; {serving['slots']:,} slots a replica",
        )
    )
    most = f"beyond {rate(serving['saturation_request_rate'])} waits grow without end"
    if serving["max_request_rate"] < serving["saturation_request_rate"]:
        most = f"at random within the targets; {most}"
    rows.append(("at most", rate(serving["max_request_rate"]), most))
    if serving["replicas_needed"] is not None and serving["replicas_needed"] > 1:
        rows.append(("replicas", f"{serving['replicas_needed']:,}", "deployments like this one that carry the rate"))
    rows.append(("queueing", "model", serving["queueing"]))
    return rows


def _targets(targets: list[Plain]) -> Grid:
    rows = [
        (t["flag"], _figure(t["name"], t["target"]), _figure(t["name"], t["predicted"]), "yes" if t["holds"] else "NO")
        for t in targets
    ]
    columns = [Column("target"), Column("asked", right=True), Column("modelled", right=True), Column("holds")]
    return Grid(columns, rows, title="Targets")


def _figure(name: str, value: float | None) -> str:
    if value is None:
        return "-"
    if name in ("ttft", "tpot"):
        return duration(value)
    return f"{rate(value)}/s" if name == "request_rate" else f"{value:,.4g} in flight"


def _cost(cost: Plain, gpus: int) -> Rows:
    if cost["usd_per_hour"] is None:
        return [("price", "not known", "the catalog has none for this GPU; --price USD_PER_HOUR sets it")]
    each = f"{dollars(cost['usd_per_gpu_hour'])} a GPU"
    if cost["low_usd_per_gpu_hour"] != cost["high_usd_per_gpu_hour"]:
        low, high = dollars(cost["low_usd_per_gpu_hour"]), dollars(cost["high_usd_per_gpu_hour"])
        each += f", the middle of {low} to {high}"
    where = f"{cost['price_source']}, {cost['price_date']}" if cost["price_date"] else cost["price_source"]
    rows: Rows = [("per hour", dollars(cost["usd_per_hour"]), f"{gpus:,} x {each} ({where})")]
    if cost["per_million_input_tokens"] is None:
        return rows
    load = f"at {rate(cost['requests_per_second'])} requests/s"
    share = f"{cost['prefill_share']:.0%} of the seconds are the prompts'"
    read, written = (_range(cost, f"per_million_{kind}_tokens") for kind in ("input", "output"))
    rows.append(("a million input tokens", dollars(cost["per_million_input_tokens"]), f"{read}{load}; {share}"))
    if cost["per_million_output_tokens"] is not None:
        times = cost["per_million_output_tokens"] / cost["per_million_input_tokens"]
        text = f"{written}{times:,.3g} x an input token: decode reads the weights for every token, prefill once a chunk"
        rows.append(("a million output tokens", dollars(cost["per_million_output_tokens"]), text))
    return rows


def _range(cost: Plain, name: str) -> str:
    """``$0.20 to $0.45, ``; empty where both ends are the figure."""
    low, high = cost[f"low_{name}"], cost[f"high_{name}"]
    return "" if low is None or low == high else f"{dollars(low)} to {dollars(high)}, "


def dollars(value: float) -> str:
    """``$12.30``; small sums with three digits."""
    return f"${value:,.2f}" if value >= 1 or round(value, 2) == value else f"${value:.3g}"

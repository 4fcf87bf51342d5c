"""A candidate as a row: planned by the ordinary planner, so that its figures are those of ``kvplan plan``."""

from __future__ import annotations

from math import ceil
from typing import TYPE_CHECKING, Any

from kvplan.planning.fit.result import Margins, Row
from kvplan.planning.planner import plan_deployment

if TYPE_CHECKING:
    from kvplan.planning.fit.ask import Ask
    from kvplan.planning.fit.search import Candidate
    from kvplan.planning.plan import Plan

_ROUNDS = 3
"""Copies that are added where the screening was too kind by a rounding."""


def settings_of(each: Candidate, ask: Ask, copies: int) -> dict[str, Any]:
    """One copy's part of the workload, as `plan_deployment` takes it."""
    lengths = ask.lengths
    given: dict[str, Any] = {**each.screen.given, **each.case.settings()}
    if lengths.prompt_cv:
        given["prompt_cv"] = lengths.prompt_cv
    if lengths.output_cv:
        given["output_cv"] = lengths.output_cv
    given |= {name: value for name, value in (("ttft", ask.ttft), ("tpot", ask.tpot)) if value is not None}
    if ask.request_rate is not None:
        given["request_rate"] = ask.request_rate / copies
    if ask.concurrency is not None or ask.request_rate is None:
        given["concurrency"] = ceil((ask.concurrency or 1) / copies)
    if each.gpu.id in each.screen.measured:
        given["calibration"] = ask.settings["calibration"]
    price = each.price
    given["price"] = ((None, price.usd_per_hour),) if price is not None and price.date is None else ()
    return given


def planned(each: Candidate, ask: Ask, rank: int) -> Row | None:
    """The row of a candidate; None where the planner disagrees."""
    for copies in range(each.copies, each.copies + _ROUNDS):
        if ask.max_gpus is not None and copies * each.case.layout.world > ask.max_gpus:
            return None
        given = settings_of(each, ask, copies)
        plan = plan_deployment(each.screen.model, each.gpu, each.case.engine, given)
        if plan.holds and plan.serving is not None and plan.serving.ttft_seconds is not None:
            return _row(each, ask, rank, copies, given, plan)
    return None


def _row(each: Candidate, ask: Ask, rank: int, copies: int, given: dict[str, Any], plan: Plan) -> Row:
    serving, cost, inputs = plan.serving, plan.cost, plan.inputs
    assert serving is not None  # the caller looked
    assert cost is not None
    assert serving.ttft_seconds is not None
    assert plan.memory is not None
    margins = _margins(ask, plan)
    layout, gpus = each.case.layout, copies * each.case.layout.world
    formats = (plan.kv.format_k, plan.kv.format_v)
    return Row(
        rank=rank, gpu=each.gpu.id, gpus=gpus, copies=copies, tensor_parallel_size=layout.tp,
        pipeline_parallel_size=layout.pp, data_parallel_size=layout.dp, decode_context_parallel_size=layout.dcp,
        enable_expert_parallel=layout.expert_parallel, engine=inputs["engine"],
        engine_version=inputs["engine_version"], weights=inputs["weights_format"],
        kv_cache=formats[0] if formats[0] == formats[1] else ",".join(formats), max_model_len=inputs["max_model_len"],
        usd_per_hour=None if cost.usd_per_hour is None else cost.usd_per_hour * copies,
        usd_per_gpu_hour=cost.usd_per_gpu_hour, price_source=cost.price_source, price_date=cost.price_date,
        per_million_input_tokens=cost.per_million_input_tokens,
        per_million_output_tokens=cost.per_million_output_tokens, ttft_seconds=serving.ttft_seconds,
        tpot_seconds=serving.tpot_seconds, request_seconds=serving.request_seconds or 0.0,
        requests_per_second=(serving.requests_per_second or 0.0) * copies,
        output_tokens_per_second=(serving.output_tokens_per_second or 0.0) * copies,
        in_flight=(serving.in_flight or 0.0) * copies, max_request_rate=(serving.max_request_rate or 0.0) * copies,
        slots=serving.slots or 0, margin=min(m for m in margins if m is not None), margins=margins,
        device_bytes=gpus * each.gpu.device_bytes, kv_bytes=min(row.kv_bytes for row in plan.memory),
        prefill_utilization=serving.prefill_utilization or 0.0, confidence=each.gpu.confidence,
        flags=_flags(each, given),
    )  # fmt: skip


def _margins(ask: Ask, plan: Plan) -> Margins:
    serving = plan.serving
    assert serving is not None
    dp = plan.inputs["data_parallel_size"]
    running = (serving.in_flight or 0.0) / dp
    if ask.concurrency is not None or ask.request_rate is None:
        running = max(running, ceil(plan.inputs["concurrency"] / dp))
    rate = None
    if serving.request_rate is not None and serving.max_request_rate:
        rate = 1 - serving.request_rate / serving.max_request_rate
    ttft = None if ask.ttft is None else 1 - (serving.ttft_seconds or 0.0) / ask.ttft
    tpot = None if ask.tpot is None else 1 - (serving.tpot_seconds or 0.0) / ask.tpot
    return Margins(1 - running / (serving.slots or 1), rate, ttft, tpot)


_SHORT = {
    "tensor_parallel_size": "-tp", "pipeline_parallel_size": "-pp", "data_parallel_size": "-dp",
    "decode_context_parallel_size": "-dcp",
}  # fmt: skip
_OFF = {"enable_prefix_caching": "--no-enable-prefix-caching"}


def _flags(each: Candidate, given: dict[str, Any]) -> str:
    """What to type for the plan of one copy."""
    words = [f"--gpu {each.gpu.id}", f"--engine {each.case.engine}"]
    for name, value in given.items():
        flag = _SHORT.get(name, "--" + name.replace("_", "-"))
        if name == "price":
            words += [f"--price {usd:.17g}" for _, usd in value]
        elif value is False:
            words.append(_OFF.get(name, ""))
        elif value is True:
            words.append(flag)
        else:
            words.append(f"{flag} {_typed(value)}")
    return " ".join(filter(None, words))


def _typed(value: Any) -> str:
    text = f"{value:.17g}" if isinstance(value, float) else str(value)
    if isinstance(value, float) and float(f"{value:.12g}") == value:
        text = f"{value:.12g}"
    from shlex import quote

    return quote(text)

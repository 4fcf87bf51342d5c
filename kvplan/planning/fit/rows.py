"""A candidate as a row: worked out by the ordinary planner, so that its figures are those of ``kvplan plan``."""

from __future__ import annotations

from math import ceil
from typing import TYPE_CHECKING, Any

from kvplan.planning.fit.judge import more_copies
from kvplan.planning.fit.result import Margins, Row
from kvplan.planning.planner import rank_kv_bytes, work_out
from kvplan.planning.speed.constants import engine_rates
from kvplan.planning.workload import Traffic

if TYPE_CHECKING:
    from kvplan.engines.base import Settings
    from kvplan.planning.cost import CostFigures
    from kvplan.planning.evaluate import Outcome
    from kvplan.planning.fit.ask import Ask
    from kvplan.planning.fit.search import Candidate
    from kvplan.planning.workload import ServingFigures
    from kvplan.spec.gpu import GpuSpec

_ROUNDS = 3
"""Numbers of copies that are tried where the screening was too kind by a rounding."""


def settings_of(each: Candidate, ask: Ask, copies: int) -> dict[str, Any]:
    """One copy's part of the workload, as `plan_deployment` takes it."""
    lengths = ask.lengths
    given: dict[str, Any] = {**each.screen.given, **each.case.settings()}
    if not each.screen.drafts:
        given.pop("acceptance_rate", None)
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


def planned(each: Candidate, ask: Ask) -> Row | None:
    """The row of a candidate, as the first of all; None where the planner disagrees."""
    tried = [each.copies]
    for _ in range(_ROUNDS - 1):
        tried.append(int(more_copies(ask, tried[-1])))
    for copies in tried:
        if ask.max_gpus is not None and copies * each.case.layout.world > ask.max_gpus:
            return None
        given = settings_of(each, ask, copies)
        model, engine, calibration, outcome, warnings = work_out(each.screen.model, each.gpu, each.case.engine, given)
        traffic = Traffic(model, each.gpu, engine, calibration, given)
        outcome = traffic.running(outcome)
        if outcome.fits is False:
            continue
        serving, cost = traffic.figures(outcome)
        if serving.targets_hold is not False and serving.ttft_seconds is not None:
            return _row(each, ask, copies, given, traffic, outcome, serving, cost, warnings)
    return None


def _row(
    each: Candidate, ask: Ask, copies: int, given: dict[str, Any], traffic: Traffic, outcome: Outcome,
    serving: ServingFigures, cost: CostFigures, warnings: list[str],
) -> Row:  # fmt: skip
    assert serving.ttft_seconds is not None  # the caller looked
    assert outcome.kv_bytes is not None  # or nothing would be served
    settings = outcome.settings
    formats = traffic.engine.kv_formats(traffic.model, settings)
    names = (formats.k.name, formats.v.name)
    kv_bytes = min(rank_kv_bytes(traffic.engine, settings, outcome.pool, outcome.kv_bytes))
    margins = _margins(ask, settings, serving)
    layout, gpus = each.case.layout, copies * each.case.layout.world
    return Row(
        rank=1, gpu=each.gpu.id, gpus=gpus, copies=copies, tensor_parallel_size=layout.tp,
        pipeline_parallel_size=layout.pp, data_parallel_size=layout.dp, decode_context_parallel_size=layout.dcp,
        enable_expert_parallel=layout.expert_parallel, engine=settings.engine,
        engine_version=settings.engine_version, weights=outcome.weights.quantized.name,
        kv_cache=",".join(dict.fromkeys(names)), max_model_len=settings.max_model_len,
        usd_per_hour=None if cost.usd_per_hour is None else cost.usd_per_hour * copies,
        usd_per_gpu_hour=cost.usd_per_gpu_hour, price_source=cost.price_source, price_date=cost.price_date,
        per_million_input_tokens=cost.per_million_input_tokens,
        per_million_output_tokens=cost.per_million_output_tokens, ttft_seconds=serving.ttft_seconds,
        tpot_seconds=serving.tpot_seconds, request_seconds=serving.request_seconds or 0.0,
        requests_per_second=(serving.requests_per_second or 0.0) * copies,
        output_tokens_per_second=(serving.output_tokens_per_second or 0.0) * copies,
        in_flight=(serving.in_flight or 0.0) * copies, max_request_rate=(serving.max_request_rate or 0.0) * copies,
        slots=serving.slots or 0, margin=min(m for m in margins if m is not None), margins=margins,
        device_bytes=gpus * each.gpu.device_bytes, kv_bytes=kv_bytes,
        prefill_utilization=serving.prefill_utilization or 0.0, confidence=each.gpu.confidence,
        speed_reported=traffic.calibration is not None or _reported(each, settings),
        warnings=tuple(dict.fromkeys(warnings)), flags=_flags(each, given, ask),
    )  # fmt: skip


def _reported(each: Candidate, settings: Settings) -> bool:
    return engine_rates(settings.engine, each.gpu.vendor, settings.engine_version).reported


def _margins(ask: Ask, settings: Settings, serving: ServingFigures) -> Margins:
    dp = settings.data_parallel_size
    running = (serving.in_flight or 0.0) / dp
    if ask.concurrency is not None or ask.request_rate is None:
        running = max(running, ceil(settings.concurrency / dp))
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


def _named(gpu: GpuSpec, ask: Ask) -> str:
    """The name that finds a device: its id, or the file that it was read from."""
    from kvplan.catalog import gpu_ids
    from kvplan.sources import find_gpu

    if gpu.id in gpu_ids():
        return gpu.id
    return next((name for name in ask.gpus if find_gpu(name).id == gpu.id), gpu.id)


def _flags(each: Candidate, given: dict[str, Any], ask: Ask) -> str:
    """What to type for the plan of one copy."""
    words = [f"--gpu {_typed(_named(each.gpu, ask))}", f"--engine {each.case.engine}"]
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

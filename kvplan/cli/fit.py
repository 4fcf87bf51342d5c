"""``kvplan fit MODEL``: which GPUs, layouts and formats carry a workload, cheapest first."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from kvplan.cli import flags, output
from kvplan.cli.app import SETTINGS
from kvplan.cli.output import PICTURED, ROWS, Output
from kvplan.engines.options import Option
from kvplan.errors import InputError

if TYPE_CHECKING:
    from kvplan.deployment import Deployment
    from kvplan.planning.fit.ask import Ask
    from kvplan.planning.fit.result import Fit
    from kvplan.planning.workload_lengths import TraceLoad
    from kvplan.render.grid import Document

app = typer.Typer(**SETTINGS)

_SOUGHT = (
    Option("gpu", ("--gpu",), "texts", "NAME", "only these GPUs; several, or repeated (default: all known)", "Search"),
    Option("max_gpus", ("--max-gpus",), "count", "N", "at most so many GPUs in all", "Search"),
    Option(
        "engine", ("--engine",), "texts", "NAME[@VERSION]",
        "only these engines, or all (default: vllm, and mlx on Apple's chips)", "Search",
    ),
    Option(
        "weights", ("--weights",), "texts", "FORMAT",
        "only these weight formats (default: the checkpoint's, and smaller ones where the GPU has them)", "Search",
    ),
    Option("kv_cache_dtype", ("--kv-cache-dtype",), "texts", "FORMAT", "only these formats of the cache", "Search"),
    Option("top", ("--top",), "count", "N", "rows that are shown (default 20)", "Search"),
    Option("every", ("--every",), "true", "", "every way, not the best of each GPU alone", "Search"),
)  # fmt: skip
_LENGTHS = "TOKENS or DISTRIBUTION"
_WORKLOAD = (
    Option(
        "prompt_tokens", ("--prompt-tokens",), "text", _LENGTHS,
        "1024, lognormal:mean=1024,cv=1, uniform:min=256,max=4096 or percentiles:p50=800,p99=12000", "Workload",
    ),
    Option("output_tokens", ("--output-tokens",), "text", _LENGTHS, "the same (default 256)", "Workload"),
    Option("trace", ("--trace",), "text", "FILE", "lengths and rate of a request trace instead", "Workload"),
    Option(
        "trace_format", ("--trace-format",), "text", "NAME", "mooncake, azure, csv (default: as it begins)", "Workload"
    ),
)  # fmt: skip
_OWN = {option.setting for option in (*_SOUGHT, *_WORKLOAD)}
_ELSEWHERE = {"gpus", "gpu_memory", "gpu_bandwidth", "from_log", "prompt_cv", "output_cv"}
"""Planning flags that are about one GPU, or that lengths say here."""


def _here(option: Option) -> Option:
    """A planning flag with what it means for a search."""
    if option.panel == "Layout":
        return option._replace(help=f"no other than: {option.help.removesuffix(' (default 1)')}")
    if option.setting == "max_model_len":
        return option._replace(help="longest request that every candidate must hold; default: that of the workload")
    if option.setting == "calibration":
        return option._replace(
            help="measured rates of one GPU, which is then judged by them; the others by stated ones"
        )
    if option.setting == "price":
        return option._replace(help=option.help.rpartition(";")[0])
    return option


class FitVerb(flags.PlanVerb):
    """Planning flags that candidates have in common, the search's own, and traffic with its targets."""

    flags = (
        *_SOUGHT, *_WORKLOAD,
        *(_here(o) for o in (*flags.SERVICE, *flags.PLAN) if o.setting not in _OWN and o.setting not in _ELSEWHERE),
    )  # fmt: skip
    formats = (*PICTURED, *ROWS)


@app.command(cls=FitVerb)
def fit(
    ctx: typer.Context,
    model: Annotated[
        str, typer.Argument(metavar="MODEL", help="catalog id, hub name, folder, file, or an engine's command line")
    ],
) -> int:
    """Which GPUs, layouts and formats carry a workload: every one that does with its margin, cheapest first."""
    from kvplan.deployment import find_deployment
    from kvplan.planning.fit.search import fit as search

    given = flags.read(ctx)
    own = {
        name: given.pop(name)
        for name in tuple(given)
        if name in _OWN or name in ("request_rate", "ttft", "tpot", "price")
    }
    deployment = find_deployment(model, given)
    ask, warnings = _ask(own, deployment)
    result = search(deployment.model, ask, name=model)
    out = output.of(ctx)
    if deployment.report is not None:
        out.note(deployment.report.note())
    _write(out, result, (*deployment.warnings, *warnings, *result.warnings), ask.every)
    if result.verdict.carries:
        return 0
    if out.format in ("json", *ROWS) or out.file is not None:
        out.note(f"{result.inputs['model']}: {result.verdict.reason}")
    return 1


def _ask(own: dict[str, Any], deployment: Deployment) -> tuple[Ask, list[str]]:
    """(what is asked for, what to tell about it).

    Raises:
        KvplanError: lengths or a trace that cannot be read, lengths beside a trace.
    """
    from kvplan.planning.fit.ask import DEFAULT_TOP, Ask
    from kvplan.planning.speed.profile import Lengths
    from kvplan.planning.workload_lengths import read_lengths

    settings = {k: v for k, v in deployment.settings.items() if k not in ("weights", "kv_cache_dtype", "concurrency")}
    warnings: list[str] = []
    trace = _trace(own) if "trace" in own else None
    if trace is not None:
        prompts, outputs, longest = trace.prompts, trace.outputs, trace.longest
    else:
        prompts = read_lengths(own.get("prompt_tokens", "1024"), "--prompt-tokens")
        outputs = read_lengths(own.get("output_tokens", "256"), "--output-tokens")
        longest = prompts.longest + outputs.longest
    longest = _longest(longest, settings, deployment, warnings)
    rate, concurrency = own.get("request_rate"), deployment.settings.get("concurrency")
    if trace is not None and rate is None and concurrency is None:
        rate = trace.requests_per_second
        if rate is None:
            raise InputError(
                "does not say when requests come", where="--trace", hint="add --request-rate or --concurrency"
            )
    engines = own.get("engine", (deployment.engine,) if deployment.report is not None else ())
    stored = {name: deployment.settings.get(name) for name in ("weights", "kv_cache_dtype")}
    weights, cache = (own.get(name, (value,) if value is not None else ()) for name, value in stored.items())
    lengths = Lengths(prompts.mean, outputs.mean, 0, prompts.cv, outputs.cv)
    return Ask(
        lengths, prompts, outputs, longest, request_rate=rate, concurrency=concurrency, ttft=own.get("ttft"),
        tpot=own.get("tpot"), prices=own.get("price", ()), settings=settings, gpus=own.get("gpu", ()),
        engines=_engines(engines), weights=weights, kv_formats=cache, max_gpus=own.get("max_gpus"),
        top=own.get("top", DEFAULT_TOP), every=own.get("every", False),
    ), warnings  # fmt: skip


def _engines(names: tuple[str, ...]) -> tuple[str, ...]:
    """The engines that were asked for; ``all`` are those that serve."""
    from kvplan.engines import get_engine
    from kvplan.planning.fit.candidates import serving

    if [name.lower() for name in names] == ["all"]:
        return serving()
    for name in names:
        get_engine(name)
    return names


def _trace(own: dict[str, Any]) -> TraceLoad:
    """The load of a trace's file."""
    from kvplan.planning.workload_lengths import of_trace
    from kvplan.simulate.traces import Reading, read_trace

    for name in ("prompt_tokens", "output_tokens"):
        if name in own:
            flag = "--" + name.replace("_", "-")
            raise InputError("the trace says how long requests are", where=flag, hint="leave out one of the two")
    return of_trace(read_trace(own["trace"], Reading(own.get("trace_format"))))


def _longest(longest: int, settings: dict[str, Any], deployment: Deployment, warnings: list[str]) -> int:
    """The longest request that is planned for: that of the workload, as far as the model takes it."""
    given = settings.get("max_model_len")
    if given is not None:
        if given < 0:
            raise InputError("-1 fits the length to a memory", where="--max-model-len", hint="type a number of tokens")
        if given < longest:
            warnings.append(f"requests may have {longest:,} tokens, more than max_model_len {given:,}")
        return int(given)
    limit = deployment.model.max_position_embeddings
    if limit is not None and longest > limit:
        warnings.append(
            f"requests of up to {longest:,} tokens are cut to the {limit:,} that {deployment.model.id} takes"
        )
        return limit
    return longest


def _write(out: Output, result: Fit, warnings: tuple[str, ...], every: bool) -> None:
    plain = result.to_dict()
    if out.format in ROWS:
        from kvplan.render.fit import plain_rows

        out.write(output.writer(out.format, "lines").lines(*plain_rows(plain)))
        for warning in warnings:
            out.warn(warning)
        return
    out.emit(lambda: _report(plain, every, out.format in ("html", "svg")), plain, warnings=warnings)


def _report(plain: dict[str, Any], every: bool, pictured: bool) -> Document:
    from kvplan.render.fit import fit_report

    report = fit_report(plain, every=every)
    if not pictured:
        return report
    from kvplan.render.fit_pictures import pictured_report

    return pictured_report(report, plain)

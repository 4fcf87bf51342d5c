"""`fit`: every candidate screened, ranked, and the winners planned one by one."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy

from kvplan.errors import InputError, UnsupportedError
from kvplan.planning.cost import price_of, read_prices
from kvplan.planning.fit import candidates as of
from kvplan.planning.fit import rank
from kvplan.planning.fit.ask import Ask, check
from kvplan.planning.fit.cases import Case
from kvplan.planning.fit.judge import judge
from kvplan.planning.fit.misses import Misses
from kvplan.planning.fit.result import SCHEMA, Fit, FitVerdict, Row
from kvplan.planning.fit.rows import planned
from kvplan.planning.fit.screen import CARRIES, Screen, Started, measured_of
from kvplan.planning.fit.stack import joined
from kvplan.planning.speed.speculation import no_drafts

if TYPE_CHECKING:
    from kvplan.planning.cost import Price
    from kvplan.spec.gpu import GpuSpec
    from kvplan.spec.model import ModelSpec

WASTE = 8
"""Layouts of more than this many times the GPUs on which a model starts are not tried."""
_MOST_FRONT = 8
_SPARE = 10
"""Rows that are planned beyond those wanted, should some not hold."""


class Candidate(NamedTuple):
    """One way that carries the workload, as screened."""

    screen: Screen
    case: Case
    gpu: GpuSpec
    copies: int
    price: Price | None
    request_seconds: float

    @property
    def gpus(self) -> int:
        return self.copies * self.case.layout.world


def fit(model: ModelSpec, ask: Ask, *, name: str | None = None) -> Fit:
    """Which GPUs, layouts and formats carry a workload, cheapest first.

    Args:
        name: of the model, for the flags that a row prints.

    Raises:
        InputError: targets that contradict each other; UnknownNameError: no such GPU or engine;
        UnsupportedError: no candidate is legal, whatever the memory.
    """
    check(ask, model)
    prices = read_prices(ask.prices)
    if None in prices:
        raise InputError("names no GPU", where="--price", hint="--price h100-sxm=2.5")
    gpus = _devices(ask)
    priced = {gpu.id: price_of(gpu, prices) for gpu in gpus}
    measured = measured_of(ask, gpus)
    misses, found, tried = Misses(ask), [], 0
    screens: list[Screen] = []
    for engine, devices in _by_engine(gpus, ask, misses).items():
        screen = Screen(model, engine, devices, ask, measured)
        screens.append(screen)
        some, count = _screened(screen, ask, misses, priced)
        found += some
        tried += count
    if not found and (refusal := misses.all_refused()):
        refusal.hint = refusal.hint or "leave out what is pinned, or name other engines or GPUs"
        raise refusal
    if found and ask.settings.get("acceptance_rate") is not None and not any(screen.drafts for screen in screens):
        raise no_drafts()
    order = rank.ordered(found)
    chosen = order if ask.every else rank.best_of_each(order)
    known: dict[Candidate, Row | None] = {}
    rows = _planned(chosen, ask.top, ask, known)
    front = _planned(rank.front(found), _MOST_FRONT, ask, known)
    carrying = {each.gpu.id for each in found}
    failures = misses.grouped(carrying)
    verdict = FitVerdict(bool(rows), _reason(rows, found, misses))
    inputs = _inputs(model, ask, gpus, name)
    return Fit(
        SCHEMA, inputs, tried, len(found), len(gpus), len(carrying), rows, front, failures, misses.not_tried(),
        verdict, (),
    )  # fmt: skip


def _devices(ask: Ask) -> list[GpuSpec]:
    from kvplan.catalog import gpu_ids
    from kvplan.sources import find_gpu

    found = [find_gpu(name) for name in ask.gpus or gpu_ids()]
    return list({gpu.id: gpu for gpu in found}.values())


def _by_engine(gpus: Iterable[GpuSpec], ask: Ask, misses: Misses) -> dict[str, list[GpuSpec]]:
    """engine -> the devices that it is tried on."""
    found: dict[str, list[GpuSpec]] = {}
    for gpu in gpus:
        engines = of.engines_for(gpu, ask.engines)
        if not engines:
            why = f"{' and '.join(ask.engines)} {'have' if len(ask.engines) > 1 else 'has'} no backend for {gpu.vendor}"
            misses.refused(gpu, UnsupportedError(why, where="--engine", hint="name other engines or GPUs"))
        for name in engines:
            found.setdefault(name, []).append(gpu)
    return found


def _screened(screen: Screen, ask: Ask, misses: Misses, priced: dict[str, Price | None]) -> tuple[list[Candidate], int]:
    """(the candidates of one engine that carry the workload, how many were looked at)."""
    started, tried = _started(screen, ask, misses)
    if not started:
        return [], tried
    sizes = [len(each.gpus) for each in started]

    def spread(values: Iterable[Any]) -> Any:
        return numpy.repeat(numpy.array(list(values)), sizes)

    slots = numpy.concatenate([each.slots for each in started])
    world, dp = (spread(getattr(s.case.layout, n) for s in started) for n in ("world", "dp"))
    result = judge(ask, joined([each.profile for each in started], sizes), slots, world, dp)
    where = [(each.case, gpu) for each in started for gpu in each.gpus]
    found = []
    for i, (case, gpu) in enumerate(where):
        if result.reached[i] == CARRIES:
            seconds = float(result.request[i])
            found.append(Candidate(screen, case, gpu, int(result.copies[i]), priced[gpu.id], seconds))
    misses.judged(where, result)
    return found, tried


def _started(screen: Screen, ask: Ask, misses: Misses) -> tuple[list[Started], int]:
    """(the cases that start, how many candidates were looked at)."""
    model, engine = screen.model, screen.engine
    shapes = of.layouts(model, engine, ask.settings)
    if ask.max_gpus is not None:
        shapes = [layout for layout in shapes if layout.world <= ask.max_gpus]
        if not shapes:
            raise InputError("is less than the layout takes", where="--max-gpus", hint="raise it, or leave out -tp")
    most = WASTE * of.MOST_RANKS
    if all(layout.world > most for layout in shapes):
        least = min(layout.world for layout in shapes)
        raise InputError(
            f"{least:,} GPUs for one copy are more than the {most:,} that are searched", where="layout",
            hint="lower -tp, -pp or -dp, or leave them to the search; `kvplan plan` takes any layout",
        )  # fmt: skip
    for gpu in screen.gpus:
        if all(_networked(gpu, layout, ask) for layout in shapes):
            why = "a computer of its own: layouts of several are tried where --gpu names it"
            misses.refused(gpu, UnsupportedError(why, where="--gpu", hint=f"add --gpu {gpu.id}"), 2.0)
    found, tried = [], 0
    for weights in of.weight_formats(model, engine, ask.weights):
        for cache in of.cache_formats(engine, ask.kv_formats):
            rows = [i for i, gpu in enumerate(screen.gpus) if not _lacking(screen, gpu, weights, cache, ask, misses)]
            smallest: dict[str, int] = {}
            for layout in shapes:
                here = [i for i in rows if _sensible(screen.gpus[i], layout, smallest, ask)]
                for part in screen.run(Case(screen.name, weights, cache, layout), here) if here else ():
                    tried += len(part.gpus)
                    if isinstance(part, Started):
                        found.append(part)
                        for gpu in part.gpus:
                            smallest.setdefault(gpu.id, layout.world)
                    else:
                        misses.failed(part)
    return found, tried


def _lacking(screen: Screen, gpu: GpuSpec, weights: str, cache: str, ask: Ask, misses: Misses) -> bool:
    """Whether a device lacks what a format needs that nobody asked for."""
    name = screen.engine.name
    why = {
        (weights, "weights"): "" if ask.weights else of.lacks(name, gpu, weights),
        (cache, "cache"): "" if ask.kv_formats else of.lacks(name, gpu, cache, cache=True, latent=screen.latent),
    }  # fmt: skip
    for (fmt, use), reason in why.items():
        if reason:
            misses.left_out(gpu, fmt, use, reason)
    return any(why.values())


def _networked(gpu: GpuSpec, layout: of.Layout, ask: Ask) -> bool:
    """Whether a layout nobody asked for makes a network: such a device is a computer of its own, and not a card."""
    return gpu.unified_memory and layout.world > 1 and not ask.gpus


def _sensible(gpu: GpuSpec, layout: of.Layout, smallest: dict[str, int], ask: Ask) -> bool:
    if _networked(gpu, layout, ask):
        return False
    return layout.world <= WASTE * smallest.get(gpu.id, of.MOST_RANKS)


def _planned(chosen: Sequence[Candidate], count: int, ask: Ask, known: dict[Candidate, Row | None]) -> tuple[Row, ...]:
    """The first `count` candidates of which the planner says that they hold."""
    found: list[Row] = []
    for each in chosen[: count + _SPARE]:
        if len(found) == count:
            break
        if each not in known:
            known[each] = planned(each, ask)
        row = known[each]
        if row is not None:
            found.append(row._replace(rank=len(found) + 1))
    return tuple(found)


def _reason(rows: Sequence[Row], found: Sequence[Candidate], misses: Misses) -> str:
    if not rows:
        return misses.verdict()
    best = rows[0]
    cost = f"${best.usd_per_hour:,.2f} an hour" if best.usd_per_hour is not None else "no price known"
    many = len({each.gpu.id for each in found})
    ways = f"{len(found):,} {'ways' if len(found) > 1 else 'way'} on {many:,} {'GPUs' if many > 1 else 'GPU'}"
    return f"{best.gpus:,} x {best.gpu}, {cost}, is first of {ways}"


def _inputs(model: ModelSpec, ask: Ask, gpus: Sequence[GpuSpec], name: str | None) -> dict[str, Any]:
    lengths = ask.lengths
    return {
        "model": model.id, "source": name or model.id, "prompt_tokens": lengths.prompt, "output_tokens": lengths.output,
        "prompt_cv": lengths.prompt_cv, "output_cv": lengths.output_cv, "prompts": ask.prompts.text,
        "outputs": ask.outputs.text, "shared_prefix_tokens": ask.settings.get("shared_prefix_tokens", 0),
        "max_model_len": ask.settings.get("max_model_len", ask.longest), "request_rate": ask.request_rate,
        "concurrency": ask.concurrency, "ttft": ask.ttft, "tpot": ask.tpot,
        "engines": list(ask.engines) or sorted({of.engines_for(gpu, ())[0] for gpu in gpus}),
        "weights": list(ask.weights), "kv_cache_dtype": list(ask.kv_formats), "max_gpus": ask.max_gpus,
        "settings": {k: v for k, v in ask.settings.items() if v is not None},
    }  # fmt: skip

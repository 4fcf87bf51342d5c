"""Why nothing carries a workload: how far every GPU comes at most, over all that was tried, and the nearest of them."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import numpy
import pytest

from kvplan import load_gpu, load_model
from kvplan.engines import get_engine
from kvplan.planning.fit.candidates import layouts
from kvplan.planning.fit.cases import Case
from kvplan.planning.fit.judge import MOST_COPIES, judge
from kvplan.planning.fit.misses import layout_text, text_of
from kvplan.planning.fit.result import Fit
from kvplan.planning.fit.screen import CACHE, CARRIES, COPIES, LIMIT, REFUSED, TARGETS, WEIGHTS, Screen, Started
from kvplan.planning.fit.search import fit
from kvplan.planning.fit.stack import joined
from kvplan.planning.speed import load

from .test_small_searches import asked

REASONS = {
    WEIGHTS: "the weights do not load", CACHE: "no room for the longest request beside the weights",
    LIMIT: "more GPUs than --max-gpus", COPIES: f"more than {MOST_COPIES:,} copies, the most that are counted",
}  # fmt: skip
QUESTIONS: list[tuple[str, dict[str, Any]]] = [
    ("llama-3.1-405b", {"gpus": ("l4", "h100-sxm", "mi300x"), "concurrency": 4, "max_gpus": 2}),
    ("llama-3.1-8b", {"gpus": ("l4", "t4"), "concurrency": 1, "max_gpus": 1, "prompt": 60_000, "output": 500}),
    ("llama-3.1-8b", {"gpus": ("l4", "h100-sxm"), "request_rate": 2.0, "ttft": 0.002, "max_gpus": 2}),
    ("llama-3.1-8b", {"gpus": ("l4", "h100-sxm"), "concurrency": 2, "tpot": 0.001, "max_gpus": 2}),
    ("llama-3.1-8b", {"gpus": ("l4", "h100-sxm"), "concurrency": 2, "ttft": 0.05, "tpot": 0.001, "max_gpus": 2}),
    ("llama-3.1-8b", {"gpus": ("l4", "h100-sxm"), "request_rate": 900.0, "max_gpus": 3}),
    ("llama-3.1-8b", {"gpus": ("l4", "t4", "h100-sxm"), "concurrency": 9000, "tpot": 0.02, "max_gpus": 2}),
    ("llama-3.1-8b", {"gpus": ("h100-sxm",), "request_rate": 1e9, "max_gpus": 4}),
    ("llama-3.1-8b", {"gpus": ("l4", "h100-sxm"), "request_rate": 4.0, "concurrency": 1, "max_gpus": 2}),
    ("llama-3.1-70b", {"gpus": ("t4", "l40s", "h100-sxm"), "request_rate": 40.0, "ttft": 0.3, "max_gpus": 4}),
    ("gpt-oss-20b", {"gpus": ("l4", "rtx-4090"), "request_rate": 50.0, "tpot": 0.008, "max_gpus": 2,
                     "weights": ("auto",)}),
]  # fmt: skip


def furthest(name: str, given: dict[str, Any]) -> tuple[dict[str, tuple[Any, ...]], dict[str, float]]:
    """(GPU -> (how far, by how much it fails, what it waits for, case, seconds), the least seconds of one request)."""
    ask = asked(given)
    gpus = [load_gpu(gpu) for gpu in ask.gpus]
    screen = Screen(load_model(name), "vllm", gpus, ask, {})
    tried: dict[str, list[tuple[Any, ...]]] = defaultdict(list)
    floors = {"ttft": float("inf"), "tpot": float("inf")}
    started: list[Started] = []
    for layout in layouts(screen.model, get_engine("vllm"), ask.settings):
        if layout.world > (ask.max_gpus or 64):
            continue
        case = Case("vllm", ask.weights[0], ask.kv_formats[0], layout)
        for part in screen.run(case, list(range(len(gpus)))):
            if isinstance(part, Started):
                started.append(part)
                continue
            count = len(part.gpus)
            for gpu, how, by in zip(
                part.gpus, numpy.broadcast_to(part.reached, count), numpy.broadcast_to(part.miss, count), strict=True
            ):
                tried[gpu.id].append((int(how), float(by), "", case, 0.0))
    for part in started:
        world, dp = (numpy.full(len(part.gpus), n) for n in (part.case.layout.world, part.case.layout.dp))
        profile = joined([part.profile], [len(part.gpus)])
        found = judge(ask, profile, part.slots, world, dp)
        single = load.alone(profile)
        limits = {"ttft": ask.ttft, "tpot": ask.tpot, "concurrency": ask.limits.request}
        for i, gpu in enumerate(part.gpus):
            seconds = {
                "ttft": float(single.seconds_to_first_token[i]), "tpot": float(single.seconds_per_step[i]),
                "concurrency": float(single.request_seconds(profile.lengths)[i]),
            }  # fmt: skip
            floors = {key: min(value, seconds[key]) for key, value in floors.items()}
            over = {key: seconds[key] / limit if limit else 0.0 for key, limit in limits.items()}
            worst = max(over, key=lambda key: over[key])
            alone = over[worst]
            assert found.floor_ttft[i] == pytest.approx(seconds["ttft"])
            assert found.floor_tpot[i] == pytest.approx(seconds["tpot"])
            if alone > 1:
                assert (found.reached[i], found.miss[i]) == (TARGETS, pytest.approx(alone))
            if found.reached[i] != CARRIES:
                tried[gpu.id].append((int(found.reached[i]), float(found.miss[i]), worst, part.case, seconds[worst]))
            if found.reached[i] == LIMIT:
                assert found.copies[i] * part.case.layout.world > (ask.max_gpus or 0)
                assert found.miss[i] == pytest.approx(found.copies[i] * part.case.layout.world / (ask.max_gpus or 1))
    return {gpu: max(ways, key=lambda way: (way[0], -way[1])) for gpu, ways in tried.items()}, floors


@pytest.mark.parametrize(("name", "given"), QUESTIONS, ids=[f"{n}-{q[0]}" for n, q in enumerate(QUESTIONS)])
def test_the_nearest_misses_are_those_of_all_that_was_tried(name: str, given: dict[str, Any]) -> None:
    found, (best, floors) = fit(load_model(name), asked(given)), furthest(name, given)
    carrying = {row.gpu for row in found.rows}
    said = {gpu: failure for failure in found.failures for gpu in failure.gpus}
    assert set(said) == set(best) - carrying
    sizes = [len(failure.gpus) for failure in found.failures]
    assert sizes == sorted(sizes, reverse=True)
    for gpu, failure in said.items():
        reached, miss, which, _, _ = best[gpu]
        if reached == TARGETS:
            words = {"ttft": "time to first token", "tpot": "time per output token", "concurrency": "seconds of a"}
            assert failure.reason.startswith(words[which] if miss > 1 else "the targets do not hold under load")
        else:
            assert failure.reason == REASONS[reached]
    for failure in found.failures:
        members = {gpu: best[gpu] for gpu in failure.gpus}
        gpu = min(members, key=lambda name: members[name][1])
        reached, miss, which, case, seconds = members[gpu]
        if reached == REFUSED:
            assert failure.nearest is None
            continue
        nearest = failure.nearest
        assert nearest is not None
        assert (nearest.gpu, nearest.factor) == (gpu, pytest.approx(miss))
        assert nearest.layout == layout_text(case)
        assert (nearest.engine, nearest.weights, nearest.kv_cache) == ("vllm", case.weights, case.cache)
        expected = {
            WEIGHTS: f"{miss:.3g} x the memory of a GPU", CACHE: f"{miss:.3g} x the memory of a GPU",
            LIMIT: f"{round(miss * (asked(given).max_gpus or 0)):,} GPUs",
            COPIES: f"{miss * MOST_COPIES:,.0f} copies",
        }  # fmt: skip
        if reached == TARGETS:
            assert " for a request that is alone, " in nearest.text
            number, unit = nearest.text.split(" for ")[0].split(" ")
            assert float(number) * (1e-3 if unit == "ms" else 1) == pytest.approx(seconds, rel=6e-3)
        else:
            assert nearest.text.startswith(expected[reached])
    if not carrying:
        check_verdict(found, best, floors, given)


def check_verdict(found: Fit, best: dict[str, Any], floors: dict[str, float], given: dict[str, Any]) -> None:
    top = max(reached for reached, *_ in best.values())
    gpu = min((g for g in best if best[g][0] == top), key=lambda g: best[g][1])
    reason, (_, miss, which, case, _) = found.verdict.reason, best[gpu]
    assert found.verdict.carries is False
    if top != TARGETS:
        assert reason.startswith(f"nothing carries it: {REASONS[top]}; nearest: {gpu}, {layout_text(case)}: ")
        return
    for name in ("ttft", "tpot"):
        if name in given and floors[name] > given[name]:
            assert reason.startswith(f"--{name} ")
            assert "is below what any of them reaches with a single request: the best is " in reason
            return
    if which == "concurrency":
        assert "contradict each other: together they allow" in reason
        assert f"({gpu})" in reason
    elif "ttft" in given and "tpot" in given and miss > 1:
        assert "--ttft and --tpot contradict each other here" in reason
    else:
        assert reason == "nothing carries it: single requests meet the targets, no load does"


def test_cases_and_layouts_in_words() -> None:
    from kvplan.planning.fit.candidates import Layout

    assert layout_text(Case("vllm", "auto", "auto", Layout())) == "1 GPU"
    assert (
        layout_text(Case("vllm", "auto", "auto", Layout(2, 3, 4, 5, True))) == "tp 2, pp 3, dp 4, dcp 5, experts dealt"
    )
    assert text_of(Case("vllm", "auto", "auto", Layout(2))) == "vllm, tp 2"
    assert text_of(Case("vllm", "fp8", "fp8", Layout())) == "vllm, 1 GPU, fp8 weights, fp8 cache"

"""Searches that are small enough to try every way by hand: what is found, in which order, and each figure of a row."""

from __future__ import annotations

import json
from math import ceil
from shlex import split
from typing import Any

import pytest

from kvplan import load_gpu, load_model
from kvplan.catalog import gpu_ids
from kvplan.cli.main import main
from kvplan.engines import get_engine
from kvplan.errors import KvplanError
from kvplan.planning import planner
from kvplan.planning.fit.ask import Ask
from kvplan.planning.fit.candidates import Layout, layouts
from kvplan.planning.fit.result import Fit, Row
from kvplan.planning.fit.search import fit
from kvplan.planning.plan import Plan
from kvplan.planning.planner import plan_deployment
from kvplan.planning.speed.profile import Lengths
from kvplan.planning.workload_lengths import Distribution

QUESTIONS: list[tuple[str, dict[str, Any]]] = [
    ("llama-3.2-1b", {"gpus": ("l4", "t4"), "request_rate": 12.0, "ttft": 0.4, "tpot": 0.03, "max_gpus": 3}),
    ("llama-3.2-1b", {"gpus": ("l4",), "request_rate": 9.0, "concurrency": 90, "max_gpus": 2}),
    ("llama-3.2-1b", {"gpus": ("l4",), "request_rate": 9.0, "concurrency": 9, "max_gpus": 4}),
    ("llama-3.2-1b", {"gpus": ("rtx-3090",), "concurrency": 60, "tpot": 0.012, "max_gpus": 4}),
    ("llama-3.2-1b", {"gpus": ("rtx-3090", "a10g"), "concurrency": 7, "max_gpus": 4, "prompt": 9000, "output": 1}),
    ("llama-3.2-1b", {"gpus": ("l40s",), "request_rate": 40.0, "output": 1, "ttft": 0.2, "max_gpus": 2}),
    ("llama-3.2-1b", {"gpus": ("mi300x",), "request_rate": 300.0, "prompt_cv": 1.0, "output_cv": 0.5, "max_gpus": 3}),
    ("llama-3.2-1b", {"gpus": ("h100-pcie",), "concurrency": 400, "ttft": 1.5, "settings": {"max_num_seqs": 64},
                      "max_gpus": 7}),
    ("llama-3.2-1b", {"gpus": ("l4",), "concurrency": 30, "max_gpus": 2, "settings": {
        "shared_prefix_tokens": 700, "max_model_len": 4096}}),
    ("llama-3.2-1b", {"gpus": ("l4",), "concurrency": 30, "max_gpus": 2, "settings": {
        "enable_prefix_caching": False, "enforce_eager": True, "gpu_memory_utilization": 0.5}}),
    ("llama-3.2-1b", {"gpus": ("l4", "l40s"), "request_rate": 8.0, "max_gpus": 3, "prices": {"l4": 0.5, "l40s": 4.5}}),
    ("llama-3.2-1b", {"gpus": ("l4",), "concurrency": 5, "max_gpus": 2, "engines": ("sglang",)}),
    ("llama-3.2-1b", {"gpus": ("l4",), "concurrency": 5, "max_gpus": 2, "engines": ("tensorrt-llm",)}),
    ("llama-3.2-1b", {"gpus": ("rtx-4090",), "concurrency": 2, "max_gpus": 2, "engines": ("llama.cpp",)}),
    ("llama-3.2-1b", {"gpus": ("apple-m4-max",), "concurrency": 1, "max_gpus": 2, "engines": ("mlx", "llama.cpp")}),
    ("llama-3.1-8b", {"gpus": ("h100-nvl",), "request_rate": 6.0, "tpot": 0.012, "max_gpus": 4,
                      "settings": {"tensor_parallel_size": 4}}),
    ("llama-3.1-8b", {"gpus": ("h100-nvl",), "request_rate": 6.0, "tpot": 0.03, "max_gpus": 4,
                      "settings": {"tensor_parallel_size": 2}}),
    ("llama-3.1-8b", {"gpus": ("a10g",), "concurrency": 4, "max_gpus": 4, "settings": {"pipeline_parallel_size": 3}}),
    ("gpt-oss-20b", {"gpus": ("h100-sxm",), "request_rate": 12.0, "tpot": 0.02, "max_gpus": 2}),
    ("granite-4.0-h-tiny", {"gpus": ("l4",), "request_rate": 2.0, "max_gpus": 2}),
    ("gemma-3-4b", {"gpus": ("l4",), "concurrency": 20, "kv_formats": ("fp8",), "max_gpus": 2}),
    ("deepseek-v2-lite", {"gpus": ("h100-sxm",), "concurrency": 20, "max_gpus": 2, "settings": {
        "tensor_parallel_size": 2, "decode_context_parallel_size": 2}}),
    ("qwen3-30b-a3b", {"gpus": ("h100-sxm",), "concurrency": 64, "max_gpus": 4, "settings": {
        "data_parallel_size": 2, "enable_expert_parallel": True, "tensor_parallel_size": 1}}),
    ("qwen3-8b", {"gpus": ("h100-sxm",), "request_rate": 5.0, "max_gpus": 1, "settings": {
        "speculative_config": '{"method": "ngram", "num_speculative_tokens": 3}', "acceptance_rate": 0.6}}),
]  # fmt: skip
NAMES = [f"{n}-{name}-{given['gpus'][0]}" for n, (name, given) in enumerate(QUESTIONS)]
TOTALS = ("requests_per_second", "output_tokens_per_second", "in_flight", "max_request_rate")


@pytest.fixture(autouse=True)
def _without_advice(monkeypatch: pytest.MonkeyPatch) -> None:
    """Advice changes no figure and takes most of the time."""
    monkeypatch.setattr(planner, "hints", lambda *_: ())


def asked(given: dict[str, Any]) -> Ask:
    given = {"weights": ("bf16",), "kv_formats": ("auto",), "engines": ("vllm",), "top": 10_000, "every": True, **given}
    prompt, output = given.pop("prompt", 1000), given.pop("output", 200)
    lengths = Lengths(prompt, output, 0, given.pop("prompt_cv", 0.0), given.pop("output_cv", 0.0))
    both = (Distribution(n, cv, 2 * n, str(n)) for n, cv in ((prompt, lengths.prompt_cv), (output, lengths.output_cv)))
    return Ask(lengths, *both, 2 * (prompt + output), **given)


def typed(ask: Ask, layout: Layout, copies: int) -> dict[str, Any]:
    """One copy's part of a question, in the names of `kvplan.plan`."""
    given: dict[str, Any] = {
        "max_model_len": ask.longest, **ask.settings, "prompt_tokens": ask.lengths.prompt,
        "output_tokens": ask.lengths.output, "tensor_parallel_size": layout.tp, "pipeline_parallel_size": layout.pp,
        "data_parallel_size": layout.dp, "decode_context_parallel_size": layout.dcp,
        "enable_expert_parallel": layout.expert_parallel or None, "weights": ask.weights[0],
        "kv_cache_dtype": None if ask.kv_formats[0] == "auto" else ask.kv_formats[0],
        "ttft": ask.ttft, "tpot": ask.tpot, "prompt_cv": ask.lengths.prompt_cv or None,
        "output_cv": ask.lengths.output_cv or None,
    }  # fmt: skip
    if ask.request_rate is not None:
        given["request_rate"] = ask.request_rate / copies
    if ask.concurrency is not None:
        given["concurrency"] = ceil(ask.concurrency / copies)
    return {"price": (), **{name: value for name, value in given.items() if value is not None}}


def every_way(name: str, ask: Ask) -> dict[tuple[str, str, Layout], tuple[int, Plan]]:
    """(GPU, engine, layout) -> the fewest copies that hold within the most GPUs, and the plan of one of them."""
    found: dict[tuple[str, str, Layout], tuple[int, Plan]] = {}
    model, most = load_model(name), ask.max_gpus or 1
    for gpu in map(load_gpu, ask.gpus):
        for engine in ask.engines:
            own = get_engine(engine)
            if not own.takes(gpu):
                continue
            for layout in layouts(model, own, ask.settings):
                for copies in range(1, most // layout.world + 1):
                    given = typed(ask, layout, copies)
                    known = {k: v for k, v in given.items() if not k.endswith("_size") or v > 1}
                    try:
                        made = plan_deployment(model, gpu, engine, known)
                    except KvplanError:
                        break
                    limit = 0.95 if ask.ttft is None and ask.request_rate is not None else 1.0
                    serving = made.serving
                    if made.holds and serving is not None and serving.ttft_seconds is not None:
                        within = serving.request_rate is None or serving.request_rate <= limit * (
                            serving.saturation_request_rate or 0
                        ) * (1 + 1e-6)
                        if ask.request_rate is None:  # all of them run at once, none waits for a place
                            within = ceil(given["concurrency"] / layout.dp) <= (serving.slots or 0)
                        if within:
                            found[gpu.id, engine, layout] = copies, made
                            break
    return found


def layout_of(row: Row) -> Layout:
    return Layout(
        row.tensor_parallel_size, row.pipeline_parallel_size, row.data_parallel_size,
        row.decode_context_parallel_size, row.enable_expert_parallel,
    )  # fmt: skip


@pytest.mark.parametrize(("name", "given"), QUESTIONS, ids=NAMES)
def test_a_search_finds_what_trying_every_way_finds(name: str, given: dict[str, Any]) -> None:
    ask = asked(given)
    tried, answer = every_way(name, ask), fit(load_model(name), ask)
    ways = {(row.gpu, row.engine, layout_of(row)): row for row in answer.rows}
    assert {key: row.copies for key, row in ways.items()} == {key: copies for key, (copies, _) in tried.items()}
    assert answer.feasible == len(answer.rows) == len(ways)
    assert answer.gpus_feasible == len({row.gpu for row in answer.rows})
    assert answer.gpus_tried == len(ask.gpus)
    assert answer.verdict.carries is bool(ways)
    check_inputs(answer, ask, name)
    for key, row in ways.items():
        check_figures(row, ask, *tried[key])
    check_order(answer, ask)


def check_inputs(answer: Fit, ask: Ask, name: str) -> None:
    """What was asked, as the answer repeats it."""
    inputs, lengths = answer.inputs, ask.lengths
    assert (inputs["model"], inputs["source"]) == (name, name)
    assert (inputs["prompt_tokens"], inputs["output_tokens"]) == (lengths.prompt, lengths.output)
    assert (inputs["prompt_cv"], inputs["output_cv"]) == (lengths.prompt_cv, lengths.output_cv)
    assert (inputs["prompts"], inputs["outputs"]) == (ask.prompts.text, ask.outputs.text)
    assert inputs["shared_prefix_tokens"] == ask.settings.get("shared_prefix_tokens", 0)
    assert inputs["max_model_len"] == ask.settings.get("max_model_len", ask.longest)
    for field in ("request_rate", "concurrency", "ttft", "tpot", "max_gpus"):
        assert inputs[field] == getattr(ask, field)
    assert (inputs["engines"], inputs["weights"]) == (list(ask.engines), list(ask.weights))
    assert inputs["kv_cache_dtype"] == list(ask.kv_formats)
    assert inputs["settings"] == {key: value for key, value in ask.settings.items() if value is not None}


def check_figures(row: Row, ask: Ask, copies: int, made: Plan) -> None:
    """A row's figures are those of its plan, or of all copies of it."""
    serving, cost = made.serving, made.cost
    assert serving is not None
    assert cost is not None
    assert made.memory is not None
    gpu, world = load_gpu(row.gpu), layout_of(row).world
    assert (row.gpus, row.device_bytes) == (copies * world, copies * world * gpu.device_bytes)
    assert row.kv_bytes == min(rank.kv_bytes for rank in made.memory)
    for field in ("ttft_seconds", "tpot_seconds", "request_seconds", "slots", "prefill_utilization"):
        value = getattr(serving, field)
        assert getattr(row, field) == (value if value is None else pytest.approx(value, rel=1e-9)), field
    for field in TOTALS:
        assert getattr(row, field) == pytest.approx(copies * getattr(serving, field), rel=1e-9), field
    assert row.max_model_len == made.inputs["max_model_len"]
    assert (row.engine_version, row.weights) == (made.inputs["engine_version"], made.inputs["weights_format"])
    price = dict(ask.prices).get(row.gpu) if ask.prices else None
    if price is None and gpu.price is not None:
        price = (gpu.price.low_usd_per_hour + gpu.price.high_usd_per_hour) / 2
        assert row.price_date == gpu.price.date
    assert row.usd_per_gpu_hour == pytest.approx(price) if price else row.usd_per_gpu_hour is None
    assert row.usd_per_hour == pytest.approx(price * row.gpus) if price else row.usd_per_hour is None
    if price:
        hourly, rate = price * row.gpus, serving.requests_per_second * copies  # type: ignore[operator]
        paid = (row.per_million_input_tokens or 0) * ask.lengths.prompt / 1e6
        if ask.lengths.output > 1:
            paid += (row.per_million_output_tokens or 0) * ask.lengths.output / 1e6
            if ask.request_rate is not None:
                assert paid == pytest.approx(hourly / 3600 / rate)
    dp, slots, held = row.data_parallel_size, serving.slots or 1, []
    running = (serving.in_flight or 0) / dp
    if ask.concurrency is not None:
        running = max(running, ceil(ceil(ask.concurrency / copies) / dp))
    held.append(1 - running / slots)
    expected = [held[0], None, None, None]
    if ask.request_rate is not None:
        expected[1] = 1 - ask.request_rate / copies / (serving.max_request_rate or 1)
    if ask.ttft is not None:
        expected[2] = 1 - serving.ttft_seconds / ask.ttft  # type: ignore[operator]
    if ask.tpot is not None:
        expected[3] = 1 - (serving.tpot_seconds or 0) / ask.tpot
    assert [m is None for m in row.margins] == [m is None for m in expected]
    margins = [m for m in expected if m is not None]
    assert [m for m in row.margins if m is not None] == pytest.approx(margins)
    assert row.margin == pytest.approx(min(margins))


def check_order(answer: Fit, ask: Ask) -> None:
    """Dollars, then GPUs, then memory; the front is what nothing beats in both cost and seconds by 2 %."""
    assert [row.rank for row in answer.rows] == list(range(1, len(answer.rows) + 1))
    keys = [
        (row.usd_per_hour is None, row.usd_per_hour or 0.0, row.gpus, row.device_bytes, row.request_seconds)
        for row in answer.rows
    ]
    assert keys == sorted(keys)
    priced = [row for row in answer.rows if row.usd_per_hour is not None] or list(answer.rows)
    cheapest = sorted(priced, key=lambda row: (row.usd_per_hour or row.gpus, row.request_seconds, row.gpus))
    best: list[Row] = []
    for row in cheapest:
        if not best or row.request_seconds < 0.98 * best[-1].request_seconds:
            best.append(row)
    assert [row.flags for row in answer.front] == [row.flags for row in best[:8]]


@pytest.mark.parametrize("number", [0, 1, 3, 6, 8, 9, 10, 16, 20, 21, 22, 23])
def test_the_flags_of_a_row_make_its_plan(number: int, capsys: pytest.CaptureFixture[str]) -> None:
    name, given = QUESTIONS[number]
    row = fit(load_model(name), asked(given)).rows[0]
    assert main(("plan", name, *split(row.flags), "--json")) == 0
    made = json.loads(capsys.readouterr().out)
    if "serving" in made:
        assert made["serving"]["ttft_seconds"] == pytest.approx(row.ttft_seconds, rel=1e-9)
        assert made["serving"]["slots"] == row.slots
    assert min(rank["kv_bytes"] for rank in made["memory"]) == row.kv_bytes
    assert made["inputs"]["max_model_len"] == row.max_model_len
    if "cost" in made and row.usd_per_hour is not None:
        assert made["cost"]["usd_per_hour"] * row.copies == pytest.approx(row.usd_per_hour)


def test_all_gpus_of_the_catalog_are_tried_where_none_is_named() -> None:
    answer = fit(load_model("llama-3.2-1b"), asked({"gpus": (), "concurrency": 1, "max_gpus": 1, "top": 1}))
    assert answer.gpus_tried == len(gpu_ids())
    assert len(answer.rows) == 1

"""A sweep is so many plans: every cell holds what one plan of its settings says, and is refused where that is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvplan import load_gpu, load_model
from kvplan.cli.sweep import SweepVerb
from kvplan.engines import get_engine
from kvplan.engines.base import Engine, Settings
from kvplan.errors import InputError, KvplanError, UnknownNameError
from kvplan.planning import planner
from kvplan.planning.drafts import served_model
from kvplan.planning.evaluate import Outcome, evaluate, fit_length
from kvplan.planning.planner import plan_deployment
from kvplan.planning.settings import FIT, resolve
from kvplan.planning.sweep import Base, Sweep, _slices
from kvplan.planning.sweep_axes import Axis, read_axes
from kvplan.planning.sweep_figures import FIGURES, figure_names
from kvplan.spec.gpu import GpuSpec
from kvplan.spec.model import ModelSpec

SMALL, LARGE = "h100-sxm", "b200"
MTP = '{"method": "mtp", "num_speculative_tokens": 2}'
DEPLOYMENTS: tuple[tuple[str, str, str, dict[str, Any]], ...] = (
    ("llama-3.1-8b", SMALL, "vllm", {}),
    ("llama-3.1-8b", SMALL, "generic", {}),
    ("llama-3.1-70b", SMALL, "vllm", {"tensor_parallel_size": 4, "pipeline_parallel_size": 2, "data_parallel_size": 2}),
    ("llama-3.1-70b", SMALL, "generic", {"tensor_parallel_size": 16, "decode_context_parallel_size": 2}),
    ("llama-3.1-8b", SMALL, "vllm", {"max_num_seqs": 1}),  # max_num_batched_tokens follows short lengths
    ("gemma-3-27b", SMALL, "vllm", {"kv_cache_dtype": "fp8"}),
    ("gemma-3-27b", SMALL, "generic", {"pipeline_parallel_size": 3}),
    ("gpt-oss-20b", SMALL, "vllm", {}),
    ("llama-4-scout", LARGE, "vllm", {"tensor_parallel_size": 4}),
    ("deepseek-v3", LARGE, "vllm", {"tensor_parallel_size": 8, "max_num_seqs": 4}),  # latent prefill follows the length
    ("deepseek-v4-flash", LARGE, "vllm", {"tensor_parallel_size": 4}),
    ("deepseek-v4-flash", LARGE, "generic", {"tensor_parallel_size": 4}),
    ("qwen3-next-80b-a3b", LARGE, "vllm", {"tensor_parallel_size": 2}),
    ("qwen3-next-80b-a3b", LARGE, "vllm", {"tensor_parallel_size": 2, "enable_prefix_caching": False}),
    ("qwen3-next-80b-a3b", LARGE, "vllm@0.19.0", {"tensor_parallel_size": 2}),
    ("llama-3.1-8b", SMALL, "vllm", {"num_gpu_blocks_override": 5000}),
    ("deepseek-v3", LARGE, "vllm", {"tensor_parallel_size": 8, "speculative_config": MTP}),
    ("gemma-3-27b", SMALL, "vllm@0.11.0", {}),
    ("falcon-h1-7b", SMALL, "generic", {}),
    ("falcon-h1-7b", SMALL, "vllm@0.17.0", {}),
    ("whisper-large-v3", SMALL, "vllm", {}),
    ("mimo-v2-flash", LARGE, "vllm", {"tensor_parallel_size": 4}),
    ("rwkv-7-g1-7.2b", SMALL, "generic", {"max_model_len": 4096}),
    ("llama-3.1-8b", SMALL, "sglang", {}),
    ("llama-3.1-8b", SMALL, "llama.cpp", {}),
)  # fmt: skip
EXACT = [name for name in FIGURES if not name.startswith(("decode", "prefill"))]
PACE = [name for name in FIGURES if name not in EXACT]

VALUES: dict[str, st.SearchStrategy[Any]] = {
    "max_model_len": st.one_of(st.integers(1, 300), st.integers(1, 200_000), st.just(2**21)),
    "concurrency": st.one_of(st.integers(1, 8), st.integers(1, 5000)),
    "prompt_tokens": st.integers(1, 150_000),
    "output_tokens": st.integers(0, 10_000),
    "shared_prefix_tokens": st.one_of(st.just(0), st.integers(0, 100_000)),
    "kv_cache_memory_bytes": st.integers(1, 10**11),
    "gpu_memory_utilization": st.floats(0.05, 1.0),
}
"""Sizes and workload that arrays carry, over ranges that hold, that do not, and that are refused."""


@pytest.fixture(autouse=True)
def _without_advice(monkeypatch: pytest.MonkeyPatch) -> None:
    """Advice changes no figure and takes most of the time."""
    monkeypatch.setattr(planner, "hints", lambda *_: ())


@cache
def model(name: str) -> ModelSpec:
    return load_model(name)


@cache
def gpu(name: str) -> GpuSpec:
    return load_gpu(name)


def cells(base: Base, axes: list[Axis], figures: list[str], at_once: int = 7) -> list[dict[str, Any]]:
    found = [cell for block in Sweep(lambda _: base, axes, figures).blocks(at_once) for cell in block.cells()]
    assert len(found) == Sweep(lambda _: base, axes, figures).size
    return found


def of_plan(base: Base, given_: Mapping[str, Any]) -> dict[str, Any]:
    """The figures of one plan, by the names of a sweep's."""
    plain = plan_deployment(base.model, base.gpu, base.engine, dict(given_)).to_dict()
    found: dict[str, Any] = {}
    for name in FIGURES:
        part: Any = plain
        for key in name.split("."):
            part = part.get(key) if isinstance(part, dict) else None
        found[name] = part
    inputs, kv, memory = plain["inputs"], plain["kv"], plain["memory"]
    engine = get_engine(base.engine)
    resolved, _ = resolve(base.model, base.gpu, engine, dict(given_))
    served = served_model(base.model, engine, resolved)
    if resolved.max_model_len == FIT:
        resolved = fit_length(served, base.gpu, engine, resolved)
    engine.check(served, resolved, base.gpu)
    outcome = evaluate(served, base.gpu, engine, resolved)
    tokens = inputs["prompt_tokens"] + inputs["output_tokens"]
    found["kv.bytes_per_1k_tokens"] = 1000 * kv["bytes_per_token"]
    longer = plan_deployment(base.model, None, "generic", {"max_model_len": tokens} | _formats(base, given_))
    if base.engine == "generic":
        found["kv.bytes_per_request"] = longer.kv.bytes_per_sequence
    else:
        del found["kv.bytes_per_request"]
    found["kv.bytes_per_request_per_gpu"] = max(engine.request_bytes(s, resolved, tokens) for s in outcome.stages)
    shared = kv["shared_prefix"]
    found["kv.shared_prefix.bytes_saved"] = shared and shared["bytes_saved"]
    for name, most in (("budget", max), ("weights", max), ("activation", max), ("kv", min)):
        found[f"memory.{name}_bytes"] = most(row[f"{name}_bytes"] for row in memory)
    found["capacity.requests"] = None
    if outcome.pool is not None and outcome.kv_bytes is not None:
        found["capacity.requests"] = engine.requests_at(outcome.stages, resolved, outcome.kv_bytes, tokens)
        if resolved.shared_prefix_tokens:
            found["capacity.requests"] = most_that_hold(engine, outcome, resolved)
        found["capacity.requests"] = min(found["capacity.requests"], resolved.max_num_seqs or 1 << 62)
    return found


def most_that_hold(engine: Engine, outcome: Outcome, resolved: Settings) -> int:
    """Requests of the workload that a replica holds at once, counted up from none by steps that double."""
    assert outcome.kv_bytes is not None
    count, step, top = 0, 1 << 20, engine.requests_at(outcome.stages, resolved, outcome.kv_bytes, 1)
    while step:
        more = replace(resolved, concurrency=(count + step) * resolved.data_parallel_size)
        if count + step <= min(top, 1 << 20) and engine.holds(outcome.stages, more, outcome.kv_bytes):
            count += step
        step //= 2
    return count


def expected_of(base: Base, given_: Mapping[str, Any]) -> tuple[dict[str, Any], str | None]:
    """The figures of one plan, or why there is none."""
    try:
        return of_plan(base, given_), None
    except KvplanError as error:
        return {}, str(error)


def _formats(base: Base, given_: Mapping[str, Any]) -> dict[str, Any]:
    return {k: v for k, v in given_.items() if k in ("kv_cache_dtype", "mamba_ssm_cache_dtype")}


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_a_cell_is_a_plan(data: st.DataObject) -> None:
    name, card, engine, fixed = data.draw(st.sampled_from(DEPLOYMENTS), label="deployment")
    names = data.draw(st.lists(st.sampled_from(sorted(VALUES)), min_size=1, max_size=3, unique=True), label="axes")
    names = [n for n in names if n not in fixed and (n in EVERYWHERE or engine in ("generic",) or "vllm" in engine)]
    axes = [Axis(n, data.draw(st.lists(VALUES[n], min_size=1, max_size=5, unique=True), label=n)) for n in names]
    if data.draw(st.booleans(), label="in order"):
        axes = [Axis(a.setting, sorted(a.values)) for a in axes]
    base = Base(model(name), gpu(card), engine, fixed)
    found = cells(base, axes, list(FIGURES))
    cell = data.draw(st.sampled_from(found), label="cell")
    chosen = fixed | {n: cell[n] for n in names}
    expected, reason = expected_of(base, chosen)
    assert (cell["refused"] is None) == (reason is None), reason
    if reason is not None:
        two = "shared" in reason or "shared" in cell["refused"]  # then either reason will do
        assert two or cell["refused"] == reason
        assert all(cell[figure] is None for figure in FIGURES)
        return
    for figure in EXACT:
        if figure in expected:
            assert cell[figure] == expected[figure], figure
            assert type(cell[figure]) is type(expected[figure]), figure
    for figure in PACE:
        assert cell[figure] == pytest.approx(expected[figure], rel=1e-12), figure


EVERYWHERE = ("max_model_len", "concurrency", "prompt_tokens", "output_tokens")


@pytest.mark.parametrize("engine", ["generic", "vllm"])
def test_huge_values_do_not_overflow(engine: str) -> None:
    base = Base(model("llama-3.1-8b"), gpu(SMALL), engine, {"max_model_len": 4096})
    axes = [Axis("concurrency", [1, 2**39]), Axis("prompt_tokens", [1, 2**39])]
    for cell in cells(base, axes, ["verdict.fits", "capacity.requests", "kv.bytes_per_request"]):
        expected = of_plan(base, base.settings | {a.setting: cell[a.setting] for a in axes})
        assert cell["verdict.fits"] is expected["verdict.fits"]
        assert cell["capacity.requests"] == expected["capacity.requests"]
        assert cell["kv.bytes_per_request"] == 131_072 * (cell["prompt_tokens"] + 256)


@pytest.mark.parametrize("at_once", [1, 5, 1000])
def test_blocks_cover_the_grid_in_order(at_once: int) -> None:
    base = Base(model("llama-3.1-8b"), gpu(SMALL), "vllm", {})
    axes = [
        Axis("concurrency", range(1, 4)),
        Axis("max_model_len", range(1000, 9000, 1000)),
        Axis("output_tokens", [1, 2]),
    ]
    found = cells(base, axes, ["verdict.fits"], at_once)
    order = [(c["max_model_len"], c["concurrency"], c["output_tokens"]) for c in found]
    assert order == sorted(order)
    assert len(set(order)) == 3 * 8 * 2


def test_slices_never_exceed_what_is_asked_for() -> None:
    for counts in ([7], [3, 5], [2, 3, 4], [1, 100], [100, 1]):
        for limit in (1, 3, 10, 1000):
            seen = 0
            for slices in _slices(counts, limit):
                size = 1
                for part in slices:
                    size *= part.stop - part.start
                assert 1 <= size <= limit
                seen += size
            total = 1
            for count in counts:
                total *= count
            assert seen == total


def test_structural_axes_are_looked_up_and_refusals_are_cells() -> None:
    def lookup(chosen: Mapping[str, Any]) -> Base:
        rest = {k: v for k, v in chosen.items() if k != "engine"}
        return Base(model("llama-3.1-8b"), gpu(SMALL), chosen.get("engine", "vllm"), rest)

    axes = [
        Axis("engine", ["vllm", "generic"]),
        Axis("tensor_parallel_size", [1, 3, 8]),
        Axis("block_size", [None, 32]),
    ]
    found = [cell for block in Sweep(lookup, axes, ["capacity.block_size"]).blocks() for cell in block.cells()]
    table = {(c["engine"], c["tensor_parallel_size"], c["block_size"]): c for c in found}
    assert table["vllm", 1, "default"]["capacity.block_size"] == 16
    assert table["vllm", 8, 32]["capacity.block_size"] == 32
    assert "cannot be divided" in table["vllm", 3, 32]["refused"]
    assert "no such setting" in table["generic", 1, 32]["refused"]
    assert table["generic", 1, "default"]["refused"] is None
    assert sum(c["refused"] is not None for c in found) == 2 + 1 + 3


def test_lengths_over_the_models_are_refused_one_by_one() -> None:
    base = Base(model("llama-3.1-8b"), gpu(SMALL), "vllm", {})
    found = cells(
        base, [Axis("max_model_len", range(131_000, 131_200)), Axis("concurrency", [1, 2])], ["verdict.fits"], 64
    )
    for cell in found:
        length = cell["max_model_len"]
        assert (cell["refused"] is None) == (length <= 131_072)
        if cell["refused"]:
            assert f"refuses {length:,} tokens" in cell["refused"]


def test_attention_variants_scale_with_their_heads() -> None:
    base = Base(model("llama-3.1-70b"), None, "generic", {})
    found = cells(base, [Axis("attention", ["own", "mha", "mqa"])], ["kv.bytes_per_token"])
    assert [c["kv.bytes_per_token"] for c in found] == [327_680, 8 * 327_680, 327_680 // 8]


def test_a_name_that_nobody_knows_ends_the_sweep() -> None:
    base = Base(model("llama-3.1-8b"), gpu(SMALL), "vllm", {"kv_cache_dtype": "fp9"})
    with pytest.raises(UnknownNameError, match="fp9"):
        cells(base, [Axis("concurrency", [1])], ["verdict.fits"])


def test_figures_by_name_part_and_group() -> None:
    assert figure_names(["capacity.num_blocks"]) == ["capacity.num_blocks"]
    assert figure_names(["fits", "num-blocks"]) == ["verdict.fits", "capacity.num_blocks"]
    assert figure_names(["verdict"]) == ["verdict.fits", "verdict.binding"]
    assert figure_names(["all"]) == list(FIGURES)
    with pytest.raises(UnknownNameError, match="no_such"):
        figure_names(["no_such"])


def test_the_page_lists_every_figure() -> None:
    page = (Path(__file__).parents[2] / "docs" / "sweep.md").read_text(encoding="utf-8")
    for name, figure in FIGURES.items():
        assert f"| `{name}` | {figure.type} | {figure.text} |" in page


def test_requests_at_once_are_those_that_the_engine_runs() -> None:
    base = Base(model("llama-3.1-8b"), gpu("h100-sxm"), "vllm", {"max_num_seqs": 100})
    axes = [Axis("prompt_tokens", [500, 8000])]
    grid = Sweep(lambda _: base, axes, ["capacity.requests", "verdict.fits"])
    (block,) = grid.blocks()
    few, many = (cell["capacity.requests"] for cell in block.cells())
    assert few == 100
    assert 0 < many < 100
    assert block.limited.tolist() == [True, False]


def test_requests_over_the_limit_do_not_fit_in_any_cell() -> None:
    base = Base(model("llama-3.1-8b"), gpu("h100-sxm"), "vllm", {})
    axes = [Axis("max_model_len", [500, 1280, 2000]), Axis("prompt_tokens", [400, 1024, 1900])]
    for cell in cells(base, axes, ["verdict.fits", "verdict.binding", "kv.bytes_per_request"]):
        rest = cell["max_model_len"] - cell["prompt_tokens"]
        output = 256 if rest <= 0 else min(256, rest)
        assert cell["verdict.fits"] is (rest > 0)
        assert cell["verdict.binding"] is None
        assert cell["kv.bytes_per_request"] == (cell["prompt_tokens"] + output) * 131_072


def test_a_cell_under_traffic_is_the_plan_under_traffic() -> None:
    fixed = {"max_model_len": 8192, "ttft": 0.3, "price": ((None, 2.0),), "output_cv": 1.0}
    base = Base(model("llama-3.1-8b"), gpu(SMALL), "vllm", fixed)
    axes = [Axis("request_rate", [2.0, 15.0, 60.0]), Axis("prompt_tokens", [512, 2048])]
    names = [n for n in FIGURES if n.startswith(("serving", "cost", "decode", "verdict"))]
    grid = Sweep(lambda chosen: base._replace(settings=fixed | dict(chosen)), axes, names)
    for cell in (cell for block in grid.blocks() for cell in block.cells()):
        chosen = {a.setting: cell[a.setting] for a in axes}
        plain = plan_deployment(base.model, base.gpu, "vllm", fixed | chosen).to_dict()
        for name in names:
            group, _, key = name.partition(".")
            assert cell[name] == plain[group][key], name


def test_prices_are_varied_in_dollars_of_the_gpu_or_of_one_by_name() -> None:
    base = Base(model("llama-3.1-8b"), gpu(SMALL), "vllm", {"max_model_len": 8192})
    (axis,) = read_axes([f"price=1,2.5,{SMALL}=4,default"], SweepVerb.flags, {})
    assert [axis.shown(v) for v in axis.values] == [1.0, 2.5, f"{SMALL}=4", "default"]
    grid = Sweep(lambda chosen: base._replace(settings=base.settings | dict(chosen)), [axis], ["cost.usd_per_hour"])
    cells = [cell for block in grid.blocks() for cell in block.cells()]
    assert [cell["price"] for cell in cells] == [1.0, 2.5, f"{SMALL}=4", "default"]
    assert [cell["cost.usd_per_hour"] for cell in cells[:3]] == [1.0, 2.5, 4.0]
    (steps,) = read_axes(["price=0.5..1.5:0.5"], SweepVerb.flags, {})
    assert [steps.shown(v) for v in steps.values] == [0.5, 1.0, 1.5]
    for text in ("price=0", "price=-1", "price=x", "price=1..3", "price=3..1:1", "price=0..2:1"):
        with pytest.raises(InputError):
            read_axes([text], SweepVerb.flags, {})

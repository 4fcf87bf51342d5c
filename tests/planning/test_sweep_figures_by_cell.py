"""Small grids whose every cell is worked out again as a plan, and the parts of which a grid is made."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy
import pytest

from kvplan import load_gpu, load_model
from kvplan.engines.base import Settings
from kvplan.errors import InputError
from kvplan.planning import planner
from kvplan.planning.sweep import (
    Base,
    Block,
    Sweep,
    _array,
    _ends,
    _is_safe,
    _listed,
    _open_grids,
    _runs,
    _slices,
    _with_lengths,
)
from kvplan.planning.sweep_axes import Axis
from kvplan.planning.sweep_figures import BINDINGS, FIGURES, NOTHING, Column, figure_names

from .test_sweep import EXACT, PACE, cells, expected_of

GIB = 2**30
GRIDS: list[tuple[str, str | None, str, dict[str, Any], dict[str, Any]]] = [
    ("llama-3.1-8b", "h100-sxm", "vllm", {"data_parallel_size": 2, "max_num_seqs": 40},
     {"max_model_len": [4096, 1024], "concurrency": [1, 9], "prompt_tokens": [900, 3000]}),
    ("llama-3.1-8b", "h100-sxm", "generic", {"data_parallel_size": 3, "max_model_len": 4096},
     {"concurrency": [2, 3, 700], "shared_prefix_tokens": [0, 500, 1500]}),
    ("llama-3.1-70b", "h100-sxm", "generic", {"tensor_parallel_size": 4, "pipeline_parallel_size": 2},
     {"max_model_len": range(1000, 140_000, 60_000), "output_tokens": [0, 1, 500]}),
    ("llama-3.1-70b", "l4", "vllm", {"max_model_len": 2048}, {"concurrency": [1, 2], "output_tokens": [1, 9]}),
    ("llama-3.1-8b", "l4", "vllm", {"max_model_len": 8192},
     {"gpu_memory_utilization": [0.3, 0.75, 0.95], "prompt_tokens": [100, 7000]}),
    ("llama-3.1-8b", "l4", "vllm", {"max_model_len": 8192},
     {"kv_cache_memory_bytes": [1, GIB, 2 * GIB, 40 * GIB], "concurrency": [1, 20]}),
    ("gemma-3-27b", "h100-sxm", "vllm", {"kv_cache_dtype": "fp8"},
     {"max_model_len": [512, 5000, 200_000], "prompt_tokens": [100, 4000]}),
    ("qwen3-next-80b-a3b", "b200", "vllm", {"max_num_seqs": 64},
     {"max_model_len": [512, 70_000], "concurrency": [1, 80]}),
    ("deepseek-v3", "b200", "vllm", {"tensor_parallel_size": 8},
     {"max_model_len": [512, 70_000], "concurrency": [1, 80]}),
    ("deepseek-v3", "b200", "vllm", {"tensor_parallel_size": 8, "max_num_seqs": 4},
     {"max_model_len": [512, 4000, 4001, 90_000], "output_tokens": [5]}),
    ("llama-3.1-8b", "h100-sxm", "vllm", {"max_num_seqs": 1}, {"max_model_len": [64, 300, 3000], "output_tokens": [5]}),
    ("qwen3-8b", "rtx-4090", "llama.cpp", {"ctx_size": 8192}, {"concurrency": [1, 2], "prompt_tokens": [100, 8000]}),
    ("mamba2-2.7b", "l4", "generic", {"max_model_len": 4096}, {"concurrency": [1, 5000], "prompt_tokens": [1, 3000]}),
]  # fmt: skip


@pytest.fixture(autouse=True)
def _without_advice(monkeypatch: pytest.MonkeyPatch) -> None:
    """Advice changes no figure and takes most of the time."""
    monkeypatch.setattr(planner, "hints", lambda *_: ())


@pytest.mark.parametrize("number", range(len(GRIDS)))
def test_every_cell_of_a_small_grid_is_a_plan(number: int) -> None:
    name, gpu, engine, fixed, varied = GRIDS[number]
    base = Base(load_model(name), load_gpu(gpu) if gpu else None, engine, fixed)
    axes = [Axis(setting, values) for setting, values in varied.items()]
    found = cells(base, axes, list(FIGURES), 5)
    for cell in found:
        expected, reason = expected_of(base, fixed | {setting: cell[setting] for setting in varied})
        assert cell["refused"] == reason or "shared" in str(reason), (cell, reason)
        for figure in EXACT:
            if figure in expected or reason is not None:
                assert cell[figure] == expected.get(figure), figure
        for figure in PACE:
            assert cell[figure] == (None if reason else pytest.approx(expected[figure], rel=1e-12)), figure


def test_without_a_gpu_there_are_figures_of_the_cache_alone() -> None:
    base = Base(load_model("llama-3.1-8b"), None, "vllm", {"max_model_len": 4096})
    found = cells(base, [Axis("concurrency", [1, 2])], list(FIGURES))
    for cell in found:
        known = {name for name in FIGURES if cell[name] is not None}
        assert known == {name for name in FIGURES if name.startswith("kv.") and "shared" not in name}
    with pytest.raises(InputError, match="says how fast a GPU is"):
        planner.read_calibration("x.json", None)
    assert planner.read_calibration(None, None) is None


# ---- parts ----


def test_cells_of_a_block() -> None:
    axes = {"a": 7, "b": numpy.array([[1], [2]])}
    figures = {"f": Column(numpy.array([5, 6, 7])), "g": Column(3, numpy.array([[True], [False]])), "h": NOTHING}
    block = Block((2, 3), axes, figures, Column("no", numpy.array([True, True, False])))
    assert block.size == 6
    assert block.limited is False
    assert list(block.cells()) == [
        {"a": 7, "b": b, "f": f, "g": None if b == 1 else 3, "h": None, "refused": "no" if f == 7 else None}
        for b in (1, 2) for f in (5, 6, 7)
    ]  # fmt: skip
    assert Block((), {}, {}, NOTHING).size == 1


@pytest.mark.parametrize(
    ("column", "shape", "expected"),
    [
        (Column(5), (), [5]), (Column(5), (3,), [5, 5, 5]), (Column(None), (2, 2), [None] * 4),
        (Column(5, True), (3,), [None] * 3), (Column("x", numpy.array([False, True])), (2,), ["x", None]),
        (Column(numpy.array([1, 2])), (2, 2), [1, 2, 1, 2]), (Column(0), (2,), [0, 0]),
    ],
)  # fmt: skip
def test_values_of_cells(column: Column, shape: tuple[int, ...], expected: list[Any]) -> None:
    assert _listed(column, shape) == expected


@pytest.mark.parametrize("values", [range(0, 50), [1, 2, 3, 5, 8, 13, 21, 34], [5, 3, 8, 8, 1], [3], [2, 2, 2]])
@pytest.mark.parametrize("width", [1, 2, 3, 7, 100])
def test_runs_of_equal_keys(values: Sequence[int], width: int) -> None:
    """As counted one by one; where values rise, few are looked at."""
    looked: list[int] = []

    def key(index: int) -> int:
        looked.append(index)
        return values[index] // width

    found = list(_runs(values, key))
    edges = [i for i, (a, b) in enumerate(pairwise(values), 1) if a // width != b // width]
    assert found == list(pairwise([0, *edges, len(values)]))
    if width == 100 and len(values) == 50:
        assert len(looked) < 15
        assert sorted(looked)[-1] == 49 or len(found) == 1


@pytest.mark.parametrize(
    ("counts", "cells", "expected"),
    [
        ([], 5, [()]), ([3], 2, [(slice(0, 2),), (slice(2, 3),)]),
        ([2, 3], 6, [(slice(0, 2), slice(0, 3))]), ([2, 3], 5, [(slice(n, n + 1), slice(0, 3)) for n in (0, 1)]),
        ([2, 3], 3, [(slice(n, n + 1), slice(0, 3)) for n in (0, 1)]),
        ([1, 3], 2, [(slice(0, 1), slice(0, 2)), (slice(0, 1), slice(2, 3))]),
    ],
)  # fmt: skip
def test_slices_in_row_order(counts: list[int], cells: int, expected: Any) -> None:
    assert list(_slices(counts, cells)) == expected


def test_arrays_along_their_own_dimension() -> None:
    axes = [Axis("a", range(10, 40, 10)), Axis("b", [0.5, 1.5]), Axis("c", [None, 3])]
    (shape, arrays), *rest = _open_grids(axes, 100, [axes[2]])
    assert (shape, rest) == ((3, 2, 2), [])
    assert [arrays[name].shape for name in "abc"] == [(3, 1, 1), (1, 2, 1), (1, 1, 2)]
    assert arrays["a"].ravel().tolist() == [10, 20, 30]
    assert (arrays["a"].dtype, arrays["b"].dtype) == (numpy.int64, numpy.float64)
    assert arrays["c"].ravel().tolist() == ["default", "3"]
    assert _array(Axis("a", [3, 2**40]), slice(1, 2), False).tolist() == [2**40]
    assert _array(Axis("a", range(5)), slice(1, 3), True).tolist() == ["1", "2"]


def test_values_out_of_the_ordinary_are_at_the_ends_of_a_range() -> None:
    assert _ends(Axis("a", range(3, 9))) == (3, 8)
    assert _ends(Axis("a", [3, None, 9])) == (3, None, 9)


def test_reasons_with_their_own_lengths() -> None:
    assert _with_lengths("no", None) == "no"
    found = _with_lengths("{length} is too long", numpy.array([[1000], [20]]))
    assert found.tolist() == [["1,000 is too long"], ["20 is too long"]]


@pytest.mark.parametrize(
    ("varied", "per_token", "safe"),
    [
        ({"concurrency": [1, 2]}, 1, True), ({"concurrency": range(1, 2**31)}, 2**20, True),
        ({"concurrency": [1, 2**33]}, 2**20, False), ({"max_model_len": [2**53 - 1]}, 0, True),
        ({"max_model_len": [2**53]}, 0, False), ({"kv_cache_memory_bytes": [5, 2**53]}, 0, False),
        ({"kv_cache_memory_bytes": [5, 2**53 - 1]}, 0, True), ({"prompt_tokens": range(1, 2**53)}, 0, False),
        ({"max_model_len": [2**40]}, 2**13, False), ({"max_model_len": [2**40 - 1]}, 2**13, True),
    ],
)  # fmt: skip
def test_what_64_bits_hold(varied: dict[str, Any], per_token: int, safe: bool) -> None:
    """Sizes below 2^53, which float64 divides exactly, and products below 2^62."""
    settings = Settings(engine="x", engine_version="", max_model_len=1, prompt_tokens=1000, output_tokens=24)
    engine: Any = type("Own", (), {"request_bytes": lambda self, stage, asked, tokens: per_token * tokens})()
    prepared: Any = type("Prepared", (), {"stages": (None,), "engine": engine})()
    assert _is_safe(prepared, settings, [Axis(name, values) for name, values in varied.items()]) is safe


def test_the_limit_of_running_requests_marks_the_cells_that_it_sets() -> None:
    base = Base(load_model("llama-3.1-8b"), load_gpu("h100-sxm"), "vllm", {"max_num_seqs": 56, "max_model_len": 9000})
    for axis, arrays in ((Axis("prompt_tokens", [500, 8000]), True), (Axis("block_size", [16, 32]), False)):
        given = Sweep(lambda chosen: base._replace(settings=base.settings | chosen), [axis], ["capacity.requests"])
        limited = [block.limited for block in given.blocks()]
        assert (numpy.asarray(limited).ravel().tolist() == [True, False]) is arrays
        without = Sweep(lambda _: base, [axis], ["verdict.fits"])
        assert all(block.limited is False for block in without.blocks())


def test_names_of_figures() -> None:
    assert figure_names(["kv-tokens", "Requests".lower()]) == ["capacity.kv_tokens", "capacity.requests"]
    assert figure_names([" ttft_seconds ", "cost"])[:2] == ["serving.ttft_seconds", "cost.usd_per_hour"]
    assert figure_names(["bytes_per_token", "kv.bytes_per_token"]) == ["kv.bytes_per_token"]
    assert BINDINGS == ("", "kv", "weights", "activations", None)


def test_more_than_one_reading_of_a_length_is_kept() -> None:
    """Lengths that fall, rise again and come twice are cells of their own."""
    base = Base(load_model("llama-3.1-8b"), load_gpu("h100-sxm"), "vllm", {})
    found = cells(base, [Axis("max_model_len", [8192, 1024, 8192, 200_000])], ["kv.bytes_per_sequence"])
    assert [cell["kv.bytes_per_sequence"] for cell in found] == [n and n * 131_072 for n in (8192, 1024, 8192, None)]

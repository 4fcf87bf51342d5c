"""Bytes that a log measured and that a change moves, from plans whose terms are made up."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from kvplan import load_gpu, load_model
from kvplan.engines.base import Term
from kvplan.engines.log_table import Figure, Run
from kvplan.errors import InputError
from kvplan.planning import log_base as of
from kvplan.planning.log_base import FREE, _available, _moved, _others, measured_base
from kvplan.planning.log_case import Deployment
from kvplan.planning.settings import SERVICE
from kvplan.sources.logs import Log

GIB = 2**30
LLAMA, L4 = load_model("llama-3.1-8b"), load_gpu("l4")


def deployed(engine: str = "vllm@0.11.0", gpu: Any = L4, **settings: Any) -> Deployment:
    return Deployment(engine, LLAMA, gpu, settings, {}, [])


def row(budget: int, spent: int, low: int = 0, high: int = 0, kv: int = 0, weights: int = 0) -> Any:
    terms = (Term("a", "weights", spent - 10, spent - 10 - low, spent - 10 + high, "modelled", ""),
             Term("b", "runtime", 10, 10, 10, "exact", ""))  # fmt: skip
    return SimpleNamespace(budget_bytes=budget, terms=terms, kv_bytes=kv, weights_bytes=weights)


def plans(monkeypatch: pytest.MonkeyPatch, *made: list[Any]) -> None:
    """One after the other."""
    left = [SimpleNamespace(memory=rows) for rows in made]
    monkeypatch.setattr(of, "plan_deployment", lambda *_: left.pop(0))


def log(**figures: float) -> Log:
    run = Run()
    for line, (name, value) in enumerate(figures.items(), 1):
        run.figures[name] = [Figure(value, 0, "bytes", line)]
    return Log("vllm", "0.11.0", "", "", run, 1, ())


def test_the_tightest_rank_has_least_left(monkeypatch: pytest.MonkeyPatch) -> None:
    plans(monkeypatch, [row(1000, 400, 50, 70), row(1000, 500, 5, 7), row(900, 300, 1, 2)])
    assert _available(deployed()) == (500, 505, 493)


MODELLED = ", moved by +0.20 GiB (+0.16 to +0.22) as modelled for what was changed"


@pytest.mark.parametrize(
    ("given", "others", "moved", "said", "band"),
    [
        ({"tensor_parallel_size": 2}, None, 200, MODELLED,
         (160, 220)),
        ({"max_num_seqs": 4}, None, 200, MODELLED,
         (160, 220)),
        ({"max_num_seqs": 4}, 200, 200, MODELLED,
         (160, 220)),
        ({"max_num_seqs": 4}, 190, 190, ", moved by +0.19 GiB: all that the log leaves beside weights and cache",
         (160, 190)),
        ({"max_num_seqs": 4, "concurrency": 3}, 100, 100,
         ", moved by +0.10 GiB: all that the log leaves beside weights and cache", (100, 100)),
        ({"max_num_seqs": 4, "weights": "fp8"}, 100, 200,
         MODELLED, (160, 220)),
    ],
)  # fmt: skip
def test_bytes_move_by_what_both_plans_leave(
    given: Any, others: int | None, moved: int, said: str, band: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In thousandths of a GiB: 300, 310 and 280 left before, 500, 470 and 500 after."""
    unit = GIB // 1000
    plans(
        monkeypatch, [row(1000 * unit, 700 * unit, 10 * unit, 20 * unit)],
        [row(1000 * unit, 500 * unit, -30 * unit, 0)],
    )  # fmt: skip
    found = _moved(deployed(), deployed(), given, None if others is None else others * unit)
    assert found == (moved * unit, said, tuple(size * unit for size in band))


def test_what_moves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    none = (0, "", (0, 0))
    for name in ("concurrency", "block_size", "kv_cache_dtype", "max_model_len", "ttft", "price", "calibration"):
        assert name in FREE
        assert _moved(deployed(), deployed(), {name: 1}, 5) == none == _moved(deployed(), deployed(), {}, 5)
    assert SERVICE < FREE
    assert _moved(deployed(), deployed(gpu=None), {"tensor_parallel_size": 2}, 5) == none
    plans(monkeypatch, [row(1000, 400)], [row(1000, 400)])
    assert _moved(deployed(), deployed("vllm@0.20.0"), {}, None) == none
    plans(monkeypatch, [row(1000, 400)], [row(1000, 300)])
    assert _moved(deployed(), deployed("vllm@0.20.0"), {}, None)[0] == 100  # another release has other terms


def test_what_was_neither_weights_nor_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    assert _others(log(budget=1000, weights=400), deployed(gpu=None), 500) is None
    rows = [row(900, 0, kv=70, weights=300), row(800, 0, kv=60, weights=350)]
    for figures, expected in (
        ({"budget": 1000, "weights": 400}, 100), ({"budget": 1000}, 150), ({"weights": 400}, 0), ({}, 0),
        ({"budget": 1200}, 350),
    ):  # fmt: skip
        plans(monkeypatch, rows)
        assert _others(log(**figures), deployed(), 500) == expected
    plans(monkeypatch, rows)
    assert _others(log(), deployed(), 400) == 800 - 350 - 400


def based(monkeypatch: pytest.MonkeyPatch, moved: int, found: Any = None, given: Any = None, kv: float = GIB) -> Any:
    monkeypatch.setattr(of, "deployment", lambda *_, **__: found or deployed())
    monkeypatch.setattr(of, "_others", lambda *_: None)
    monkeypatch.setattr(of, "_moved", lambda *_: (moved, " and more" if moved else "", (moved - 5, moved + 7)))
    return measured_base(log(kv=kv), name="x", model=None, gpu=None, engine=None, given=given or {})


def test_a_base_and_its_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    still = based(monkeypatch, 0)
    assert (still.bounds, still.measured_bytes, still.line) == (None, GIB, 1)
    assert still.found.settings == {"kv_cache_memory_bytes": GIB}
    assert still.found.origins == {"kv_cache_memory_bytes": "measured: x, line 1: 1.00 GiB per GPU"}
    gone = based(monkeypatch, -100)
    assert (gone.bounds, gone.measured_bytes) == ((GIB - 105, GIB - 93), GIB)
    assert gone.found.settings == {"kv_cache_memory_bytes": GIB - 100}
    assert gone.found.origins == {"kv_cache_memory_bytes": "modelled: x, line 1: 1.00 GiB per GPU and more"}
    assert based(monkeypatch, 1 - GIB).found.settings == {"kv_cache_memory_bytes": 1}
    with pytest.raises(
        InputError, match=r"of the 1\.00 GiB that were left, 1\.00 GiB go to what was changed"
    ) as refused:
        based(monkeypatch, -GIB)
    assert (refused.value.where, refused.value.hint) == ("--from-log", "change less, or plan without the log")
    own = based(monkeypatch, -100, given={"kv_cache_memory_bytes": 5})
    assert (own.bounds, own.measured_bytes, own.line, own.found.settings) == (None, GIB, 1, {})
    for kv in (0.0, -1.0):
        with pytest.raises(InputError, match="does not say how many bytes were left"):
            based(monkeypatch, 0, kv=kv)


def test_without_a_gpu_the_bytes_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    said = "without --gpu the measured bytes do not follow what was changed (max_num_seqs, tensor_parallel_size)"
    given = {"tensor_parallel_size": 2, "max_num_seqs": 4, "concurrency": 3}
    assert based(monkeypatch, 0, deployed(gpu=None), given).found.warnings == [said]
    assert based(monkeypatch, 0, deployed(gpu=None), {"concurrency": 3}).found.warnings == []
    assert based(monkeypatch, 0, deployed(), given).found.warnings == []


def test_a_base_of_no_known_model(monkeypatch: pytest.MonkeyPatch) -> None:
    nobody = deployed()._replace(model=None, warnings=["the log names x; nothing is predicted (--model NAME)"])
    with pytest.raises(InputError, match=r"^--from-log: the log names x$") as refused:
        based(monkeypatch, 0, nobody)
    assert refused.value.hint == "name the model: kvplan plan MODEL --from-log FILE"

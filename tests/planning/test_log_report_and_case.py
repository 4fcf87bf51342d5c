"""A log's deployment and rows part by part, with figures that no engine printed."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from kvplan import load_gpu, load_model
from kvplan.engines import get_engine
from kvplan.engines.base import Allocation, CachePool, Term
from kvplan.engines.log_table import Cache, Figure, Run, Setting
from kvplan.errors import InputError
from kvplan.planning import log_report as of
from kvplan.planning.log_case import _engine, _give_way, _gpu, _settings, _weights, deployment, weights_open
from kvplan.planning.log_report import (
    LogReport,
    Row,
    _buffer_rows,
    _conversion_rows,
    _explain,
    _local_rows,
    _named,
    _row,
)
from kvplan.sources.logs import Log
from kvplan.units import GIB, MIB

LLAMA = load_model("llama-3.1-8b")


def log(engine: str = "vllm", version: str = "0.11.0", model: str = "", gpu: str = "", **figures: float) -> Log:
    run = Run()
    for line, (name, value) in enumerate(figures.items(), 1):
        unit = "number" if name == "concurrency" else "tokens" if name in ("blocks", "kv_tokens") else "bytes"
        run.figures[name] = [Figure(value, 0, unit, line)]
    return Log(engine, version, model, gpu, run, 1, ())


def found(**changes: Any) -> Any:
    known = {"engine": "vllm@0.11.0", "model": LLAMA, "gpu": None, "settings": {"max_model_len": 4096}}
    return SimpleNamespace(**{**known, **changes})


# ---- rows ----


def test_a_row_and_how_far_it_is_off() -> None:
    said = Figure(1000.4, 0.5, "tokens", 7)
    row = _row("x", said, 900, 800, 1000, kind="term", computed="a - b")
    assert tuple(row) == ("x", "tokens", 1000, 900, 800, 1000, -100, -0.1, True, 7, "a - b", "term")
    alone = _row("x", None, 900)
    assert tuple(alone) == ("x", "bytes", None, 900, 900, 900, None, None, None, None, "", "result")
    bare = _row("x", said, None, unit="number")
    assert tuple(bare) == ("x", "tokens", 1000, None, None, None, None, None, None, 7, "", "result")
    assert _row("x", Figure(1.5, 0, "number", 0), 1.5)[2:10] == (1.5, 1.5, 1.5, 1.5, 0.0, 0.0, True, None)
    assert _row("x", Figure(0, 0, "tokens", 1), 5).relative is None


@pytest.mark.parametrize("unit", ["tokens", "number", "bytes"])
def test_what_agrees_within_bounds_and_rounding(unit: str) -> None:
    """Bytes of a sum may miss by five MiB more: half of the last digit that is shown."""
    slack = 50 * 1.001 + (5 * MIB if unit == "bytes" else 0)
    for value, agrees in ((2000 + slack, True), (2001.1 + slack, False), (1000 - slack, True), (998.9 - slack, False)):
        given = round(value) if unit != "number" else value
        if unit != "number" and agrees:
            given = int(value) if value > 1500 else -int(-value // 1)
        assert _row("x", Figure(given, 50, unit, 1), 1500, 1000, 2000).agrees is agrees


def rows(*differences: tuple[str, str, float]) -> list[Row]:
    return [Row(name, "bytes", 0, 0, 0, 0, size, 0, True, 1, "", kind) for name, kind, size in differences]


def test_what_explains_a_cache_that_is_off() -> None:
    """Terms take from the cache, the budget gives to it; devices and results do neither."""
    cache = ("KV", "cache", 100.0)
    assert _explain(rows(("a", "term", -60.0), ("b", "term", -90.0), cache)) == ("b", 90, 0.9)
    assert _explain(rows(("budget", "device", 130.0), ("b", "term", -90.0), cache)) == ("budget", 130, 1.3)
    assert _explain(rows(("device", "device", 130.0), ("b", "term", 90.0), ("r", "result", -7.0), cache)) is None
    assert _explain(rows(("b", "term", -90.0), ("KV", "cache", 0.0))) is None
    assert _explain(rows(("a", "term", 60.0), ("b", "term", -90.0), ("KV", "cache", -30.0))) == ("a", -60, 2.0)


def test_the_figure_that_the_verdict_is_about() -> None:
    cache, tokens = rows(("KV", "cache", 1.0), ("tokens in the log", "result", 1.0))
    blocks, term = rows(("blocks", "result", 1.0), ("tokens", "term", 1.0))
    every = [term, blocks, tokens, cache]
    assert _named(every, None) == cache == _named(every, "bytes")
    assert _named(every, "tokens") == tokens == _named([tokens], None)
    assert _named([tokens], "bytes") is None is _named([cache], "tokens")
    open_ = [cache._replace(difference=None), tokens]
    assert _named(open_, None) == tokens
    assert _named([cache, tokens._replace(difference=None)], "tokens") is None


# ---- what the printed bytes hold ----


def test_blocks_tokens_and_requests_of_the_printed_bytes() -> None:
    size = 1000 * 16 * 131_072
    warnings: list[str] = []
    said = log(kv=size, kv_tokens=15_984.0)
    said.run.figures["kv"] = [Figure(size, 16 * 131_072, "bytes", 1)]
    made = _conversion_rows(said, found(), warnings)
    assert [(r.name, r.unit, r.said) for r in made] == [
        ("blocks of these bytes", "tokens", None), ("tokens in the log of these bytes", "tokens", 15_984),
        ("requests at the limit of these bytes", "number", None),
    ]  # fmt: skip
    assert (made[0].predicted, made[0].low, made[0].high) == (1000, 999, 1001)
    assert made[2].predicted == pytest.approx(1000 * 16 / 4096, rel=1e-2)
    assert warnings == []


def test_a_request_that_is_too_long_is_compared_by_its_bytes() -> None:
    (row,) = _conversion_rows(log(kv=GIB, needed=4096 * 131_072.0), found(), [])
    assert (row.name, row.predicted, row.agrees) == ("one request of the limit, per GPU", 4096 * 131_072, True)


def test_printed_figures_stand_alone_where_no_bytes_do() -> None:
    for said, model in ((log(kv=0, blocks=5, concurrency=2.5), LLAMA), (log(blocks=5, concurrency=2.5), LLAMA),
                        (log(kv=GIB, blocks=5, concurrency=2.5), None)):  # fmt: skip
        made = _conversion_rows(said, found(model=model), [])
        assert [(r.name, r.said, r.predicted) for r in made] == [
            ("blocks of these bytes", 5, None), ("requests at the limit of these bytes", 2.5, None),
        ]  # fmt: skip


def test_bytes_of_which_nothing_can_be_said() -> None:
    warnings: list[str] = []
    assert _conversion_rows(log(kv=GIB), found(settings={"tensor_parallel_size": 3}), warnings) == []
    assert warnings[0].startswith("what these bytes hold cannot be said: ")
    assert len(warnings) == 1


@pytest.mark.parametrize(
    ("engine", "kv", "refusals", "said"),
    [
        ("vllm", -2.5 * GIB, (), ("-2.50 GiB are left for the cache",)),
        ("vllm", 0.0, (), ("0.00 GiB are left for the cache",)),
        ("vllm", 1.0, (), ()), ("vllm", None, (), ()), ("llama.cpp", 0.0, (), ()), ("ollama", 0.0, (), ()),
        ("vllm", 0.0, ("out of memory",), ("out of memory",)),
    ],
)  # fmt: skip
def test_starts_that_were_refused(engine: str, kv: float | None, refusals: tuple[str, ...], said: Any) -> None:
    made = log(engine, **({} if kv is None else {"kv": kv}))
    made.run.refusals += refusals
    assert of._refusals(made) == said


# ---- local engines ----


def term(name: str, part: str, size: int) -> Term:
    return Term(name, part, size, size - 10, size + 20, "modelled", "")


def test_buffers_of_the_fullest_gpu() -> None:
    """Weights are all of their part; the compute buffer is told by its name."""
    ranks = [
        [term("weights", "weights", n), term("tables", "weights", 5), term("compute buffer", "activation", 70 * n),
         term("scratch", "activation", 9 * n)]
        for n in (100, 300, 200)
    ]  # fmt: skip
    placed: Any = SimpleNamespace(memory=[SimpleNamespace(terms=terms) for terms in ranks])
    made = _buffer_rows(log("llama.cpp", weights=305, compute=20_000), placed)
    assert [(r.name, r.said, r.predicted, r.low, r.high, r.kind) for r in made] == [
        ("weights on a GPU", 305, 305, 285, 345, "term"), ("compute buffer", 20_000, 21_000, 20_990, 21_020, "term"),
    ]  # fmt: skip
    assert [r.name for r in _buffer_rows(log("llama.cpp", compute=1), placed)] == ["compute buffer"]
    without: Any = SimpleNamespace(memory=None)
    (alone,) = _buffer_rows(log("llama.cpp", weights=305), without)
    assert (alone.said, alone.predicted) == (305, None)


def laid(*pools: CachePool, states: int = 0) -> Any:
    size = sum(pool.bytes for pool in pools)
    return SimpleNamespace(allocation=Allocation(size + states, pools, states, None, None), memory=None)


def test_caches_of_a_local_engine_one_by_one() -> None:
    full, window = (CachePool(kind, 64, None, size, 0, 0) for kind, size in (("full", 700), ("sliding", 300)))
    said = log("llama.cpp", kv=1000)
    said.run.caches += [
        Cache(kind, Figure(size, 0, "bytes", 3), cells, 4, 1)
        for kind, size, cells in (("kv", 700, 4096), ("swa", 200, 512), ("state", 9, 1))
    ]
    made = _local_rows(said, laid(full, window), laid(full, window))
    assert [(r.name, r.said, r.predicted, r.kind) for r in made] == [
        ("full cache, 4 layers of 4,096 cells", 700, 700, "term"),
        ("sliding cache, 4 layers of 512 cells", 200, 300, "term"), ("KV cache", 1000, 1000, "cache"),
    ]  # fmt: skip
    # one cache is the whole of it; caches that are not as many are not told apart
    assert [r.name for r in _local_rows(said, laid(full), laid(full))] == ["KV cache"]
    one = log("llama.cpp", kv=700)
    one.run.caches.append(said.run.caches[0])
    assert [r.name for r in _local_rows(one, laid(full), laid(full))] == ["KV cache"]
    assert _local_rows(one, SimpleNamespace(allocation=None), laid(full)) == []  # type: ignore[arg-type]


def test_states_of_a_local_engine() -> None:
    full = CachePool("full", 64, None, 700, 0, 0)
    made = _local_rows(log("llama.cpp", kv=700, state=50), laid(full, states=50), laid(full))
    assert [(r.name, r.said, r.predicted) for r in made] == [("recurrent states", 50, 50), ("KV cache", 700, 700)]
    for said, states in ((log("llama.cpp", kv=700), 50), (log("llama.cpp", kv=700, state=50), 0)):
        assert _local_rows(said, laid(full, states=states), laid(full))[0].name == "recurrent states"
    assert _local_rows(log("llama.cpp", kv=700), laid(full), laid(full))[0].name == "KV cache"


# ---- the deployment ----


def test_the_engine_of_a_log() -> None:
    warnings: list[str] = []
    assert _engine(log(), None, warnings).version == "0.11.0"
    assert _engine(log(), "vllm@0.20.0", warnings).version == "0.20.0"
    assert _engine(log(), "vllm", warnings).version == "0.11.0"
    assert _engine(log("llama.cpp", "b4000"), "ollama@0.5.0", warnings).name == "ollama"
    assert warnings == []
    latest = get_engine("vllm").version
    assert _engine(log(version=""), None, warnings).version == latest
    assert _engine(log(version="nightly"), None, warnings).version == latest
    assert warnings == [
        f"the log does not say its version; {latest} is assumed (--engine vllm@VERSION)",
        f"vllm nightly is planned by the rules of {latest}",
    ]
    with pytest.raises(InputError, match="the log is of vllm") as refused:
        _engine(log(), "sglang", warnings)
    assert (refused.value.where, refused.value.hint) == ("--engine", "type --engine vllm, or leave it out")
    with pytest.raises(InputError, match="the log is of llama"):
        _engine(log("llama.cpp"), "vllm", warnings)


def test_settings_of_a_log_under_those_of_the_user() -> None:
    said = log()
    for line, (name, value) in enumerate((("max_num_seqs", 7), ("ctx_size", 1), ("kv_cache_dtype", "fp8")), 3):
        said.run.settings[name] = Setting(value, line)
    settings, origins = _settings(said, "x", get_engine("vllm"), {"kv_cache_dtype": "auto", "concurrency": 2})
    assert settings == {"max_num_seqs": 7, "kv_cache_dtype": "auto", "concurrency": 2}
    assert origins == {"max_num_seqs": "x, line 3"}
    said = log()
    said.run.settings["ctx_size"] = Setting(8192, 4)
    assert _settings(said, "x", get_engine("ollama"), {"num_ctx": 4096}) == ({"num_ctx": 4096}, {})
    assert _settings(said, "x", get_engine("ollama"), {}) == ({"ctx_size": 8192}, {"ctx_size": "x, line 4"})


@pytest.mark.parametrize(
    ("given", "gone"),
    [
        ("kv_cache_dtype", {"cache_type_k", "cache_type_v"}), ("max_model_len", {"ctx_size", "num_ctx"}),
        ("num_ctx", {"ctx_size"}), ("ctx_size", {"max_model_len", "num_ctx"}), ("concurrency", set()),
    ],
)  # fmt: skip
def test_words_for_the_same_thing_give_way(given: str, gone: set[str]) -> None:
    names = {"cache_type_k", "cache_type_v", "ctx_size", "num_ctx", "max_model_len", "parallel"}
    settings, origins = dict.fromkeys(names, 1), dict.fromkeys(names, "x")
    _give_way(settings, origins, {given: 2})
    assert set(settings) == set(origins) == names - gone


@pytest.mark.parametrize(
    ("engine", "settings", "file", "expected"),
    [
        ("llama.cpp", {}, None, True), ("ollama", {}, None, True), ("vllm", {}, None, False),
        ("llama.cpp", {"weights": "q8_0"}, None, False), ("llama.cpp", {}, 123, False), ("llama.cpp", {}, 0, True),
    ],
)  # fmt: skip
def test_logs_that_leave_the_weights_open(engine: str, settings: Any, file: int | None, expected: bool) -> None:
    model: Any = SimpleNamespace(**({} if file is None else {"file_bytes": file}))
    assert weights_open(log(engine), model, settings) is expected


@pytest.mark.parametrize(
    ("engine", "stated", "more", "expected"),
    [
        ("vllm", "fp8", {}, "fp8_e4m3"), ("vllm", "no-such", {}, None), ("vllm", "", {}, None),
        ("vllm", "fp8", {"checkpoint": 1}, None), ("llama.cpp", "Q8_0", {"checkpoint": 1}, "q8_0"),
        ("ollama", "Q8_0", {"checkpoint": 1}, "q8_0"), ("llama.cpp", "Q8_0", {"file_bytes": 9}, None),
        ("vllm", "fp8", {"given": {"weights": "bf16"}}, None),
    ],
)  # fmt: skip
def test_the_format_of_weights_that_a_log_states(engine: str, stated: str, more: dict[str, Any], expected: Any) -> None:
    said, settings, origins = log(engine), {}, {}
    said.run.text("weights", stated)
    given = more.pop("given", {})
    model: Any = SimpleNamespace(**{"checkpoint": None, **more})
    _weights(said, model, settings, origins, "x", given)
    assert settings == ({} if expected is None else {"weights": expected})
    assert origins == ({} if expected is None else {"weights": f"x: {stated}"})


def test_the_gpu_of_a_log() -> None:
    warnings: list[str] = []
    l4 = load_gpu("l4")
    assert _gpu(log(), l4, warnings) is l4
    assert _gpu(log(gpu="NVIDIA L4"), None, warnings) == l4
    printed = _gpu(log(total=22 * GIB), l4, warnings)
    assert printed is not None
    assert (printed.torch_total_bytes, printed.torch_total_source) == (22 * GIB, "printed in the log, line 1")
    assert warnings == []
    assert _gpu(log(gpu="Tesla Q9"), None, warnings) is None
    assert warnings == ["the log names 'Tesla Q9', which is not known (--gpu NAME)"]
    assert _gpu(log(), None, warnings) is None
    assert warnings[1:] == ["the log does not name its GPU; terms of the budget are predicted with one (--gpu NAME)"]
    assert _gpu(log("llama.cpp"), None, warnings) is None
    assert len(warnings) == 2
    from kvplan.sources import override_gpu

    own = override_gpu(l4, 20 * GIB, None)
    assert _gpu(log(total=22 * GIB), own, warnings) == own


@pytest.mark.parametrize("off", [0.0, 0.0099, -0.0099, 0.0101, -0.0101, 0.5])
def test_a_gpu_by_its_memory_to_a_hundredth_of_a_gib(off: float) -> None:
    """80 GB of an H100 as torch sees them: no other device of the catalog has as many."""
    warnings: list[str] = []
    whole = load_gpu("h100-sxm").torch_total_bytes
    assert whole is not None
    made = _gpu(log(total=float(round(whole + off * GIB))), None, warnings)
    known = made is not None or "its memory is that of" in warnings[0]
    assert known is (abs(off) < 0.01)


def test_a_deployment_of_an_unknown_model() -> None:
    made = deployment(log(model="no/such-model"), name="x", model=None, gpu=None, engine=None, given={})
    assert (made.engine, made.model, made.gpu) == ("vllm@0.11.0", None, None)
    assert "the log names 'no/such-model', which is not known; nothing is predicted without one (--model NAME)" in (
        made.warnings
    )
    silent = deployment(log(), name="x", model=None, gpu=None, engine=None, given={})
    assert "the log does not name its model; nothing is predicted without one (--model NAME)" in silent.warnings
    report: LogReport = of.report(log(blocks=5), silent, file="f")
    assert (report.schema, report.file, report.model, report.gpu, report.figure) == (
        "kvplan.log/1",
        "f",
        None,
        None,
        None,
    )
    assert [(row.name, row.said, row.predicted) for row in report.rows] == [("blocks", 5, None)]
    assert (report.engine, report.engine_version, report.version_in_log) == ("vllm", "0.11.0", True)
    assert of.report(log(version=""), silent, file="f").version_in_log is False

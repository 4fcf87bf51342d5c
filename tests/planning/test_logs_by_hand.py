"""Logs with figures of our choosing against what their plans say: rows, bounds, what explains, and bytes that move."""

from __future__ import annotations

from itertools import count
from pathlib import Path
from typing import Any

import pytest

from kvplan import load_gpu
from kvplan.errors import InputError
from kvplan.planning import planner
from kvplan.planning.log_base import Base, measured_base
from kvplan.planning.log_case import Deployment, deployment
from kvplan.planning.log_report import LogReport, Row, exceeds, report
from kvplan.planning.plan import Plan
from kvplan.planning.planner import plan_deployment
from kvplan.sources.logs import Log, read_log

LOG = Path(__file__).resolve().parent.parent / "data" / "logs" / "vllm-0.31.0-llama-3.1-8b.log"
TEXT = LOG.read_text(encoding="utf-8")
GIB, MIB = 2**30, 2**20
PRINTED = {
    "kv": ("Available KV cache memory: {} GiB", "56.21"), "weights": ("Model loading took {} GiB", "15.0"),
    "tokens": ("GPU KV cache size: {} tokens", "460,496"), "total": ("(78.84/{} GiB)", "79.25"),
    "budget": ("(0.92, {} GiB)", "72.91"), "consumed": ("{} GiB for consumed memory", "15.26"),
    "peak": ("{} GiB for peak activation", "1.44"),
}  # fmt: skip
_FILES = count()


@pytest.fixture(autouse=True)
def _without_advice(monkeypatch: pytest.MonkeyPatch) -> None:
    """Advice changes no figure and takes most of the time."""
    monkeypatch.setattr(planner, "hints", lambda *_: ())


def log(folder: Path, **said: str) -> Log:
    """The log with other figures, as they would be printed."""
    text = TEXT
    for name, value in said.items():
        words, number = PRINTED[name]
        assert text.count(words.format(number)) == 1
        text = text.replace(words.format(number), words.format(value))
    path = folder / f"{next(_FILES)}.log"
    path.write_text(text, encoding="utf-8")
    return read_log(str(path))


def held(read: Log, **given: Any) -> tuple[LogReport, Plan, Deployment]:
    found = deployment(read, name="x", model=None, gpu=None, engine=None, given=given)
    assert found.model is not None
    made = plan_deployment(found.model, found.gpu, found.engine, found.settings)
    return report(read, found, file="x"), made, found


def row(of: LogReport, start: str) -> Row:
    (found,) = [each for each in of.rows if each.name.startswith(start)]
    return found


def rank_of(made: Plan) -> Any:
    assert made.memory is not None
    return made.memory[0]


def left(made: Plan, bound: str = "bytes") -> int:
    """Budget less every term, or less every term at one bound."""
    return rank_of(made).budget_bytes - sum(getattr(term, bound) for term in rank_of(made).terms)


@pytest.mark.parametrize("gib", ["40.00", "55.90", "56.04", "56.21", "57.50", "60.00"])
def test_the_cache_is_held_against_what_the_budget_leaves(gib: str, tmp_path: Path) -> None:
    found, made, _ = held(log(tmp_path, kv=gib))
    said, half = round(float(gib) * GIB), 0.005 * GIB
    cache = row(found, "KV cache")
    low, high = left(made, "high_bytes"), left(made, "low_bytes")
    assert (cache.said, cache.predicted, cache.low, cache.high) == (said, left(made), low, high)
    assert low < left(made) < high
    assert cache.difference == left(made) - said
    assert cache.relative == pytest.approx((left(made) - said) / said)
    assert cache.agrees is (low - half * 1.001 - 5 * MIB <= said <= high + half * 1.001 + 5 * MIB)
    assert found.figure == cache
    assert exceeds(cache, abs(cache.relative) * 0.999) is True
    assert exceeds(cache, abs(cache.relative)) is False
    assert (cache.line, cache.kind, cache.unit) == (12, "cache", "bytes")


@pytest.mark.parametrize("end", ["low", "high"])
def test_a_figure_agrees_up_to_its_bound_its_rounding_and_five_mib(end: str, tmp_path: Path) -> None:
    """Bounds of half a mebibyte of what is printed decide."""
    _, made, _ = held(log(tmp_path))
    bound = left(made, "high_bytes" if end == "low" else "low_bytes")
    step = -1 if end == "low" else 1
    edge = bound + step * (0.005 * 1.001 * GIB + 5 * MIB)
    inside, outside = (int((edge / GIB + step * more) * 100) / 100 for more in (-0.02, 0.02))
    found = [row(held(log(tmp_path, kv=f"{gib:.2f}"))[0], "KV cache").agrees for gib in (inside, outside)]
    assert found == [True, False]


@pytest.mark.parametrize(
    ("said", "start", "names"),
    [
        ({"weights": "17.0"}, "weights", {"weights", "rotary tables"}),
        ({"weights": "15.0"}, "weights", {"weights", "rotary tables"}),
        ({"peak": "1.60"}, "activation", None), ({"peak": "0.20"}, "activation", None),
        ({"peak": "9.00"}, "activation", None), ({"consumed": "16.00"}, "outside", None),
    ],
)  # fmt: skip
def test_a_term_is_the_sum_of_its_parts(said: dict[str, str], start: str, names: Any, tmp_path: Path) -> None:
    found, made, _ = held(log(tmp_path, **said))
    term = row(found, start)
    rank = rank_of(made)
    (value,) = said.values()
    printed = float(value) * GIB - (15.0 * GIB if start == "outside" else 0)
    assert term.said == pytest.approx(printed, abs=1)
    assert term.kind == "term"
    assert term.difference == term.predicted - term.said  # type: ignore[operator]
    if names is not None:
        mine = [part for part in rank.terms if part.name in names]
        assert term.predicted == sum(part.bytes for part in mine)
        assert (term.low, term.high) == (sum(p.low_bytes for p in mine), sum(p.high_bytes for p in mine))
    whole = [each for each in found.rows if each.kind == "term"]
    assert sum(each.predicted or 0 for each in whole) == sum(part.bytes for part in rank.terms)
    assert sum(each.low or 0 for each in whole) == sum(part.low_bytes for part in rank.terms)
    assert sum(each.high or 0 for each in whole) == sum(part.high_bytes for part in rank.terms)


@pytest.mark.parametrize(
    ("said", "largest"),
    [
        ({"weights": "18.0", "kv": "53.00"}, "weights"), ({"weights": "13.0", "kv": "59.00"}, "weights"),
        ({"peak": "9.00", "kv": "50.00"}, "activation"), ({"budget": "60.00", "kv": "43.00"}, "budget"),
        ({"budget": "75.00", "kv": "59.00"}, "budget"),
    ],
)  # fmt: skip
def test_what_explains_is_what_moves_most_in_the_same_direction(
    said: dict[str, str], largest: str, tmp_path: Path
) -> None:
    found, _, _ = held(log(tmp_path, **said))
    cache = row(found, "KV cache")
    moves = {
        each.name: (1 if each.name == "budget" else -1) * each.difference
        for each in found.rows
        if each.difference and (each.kind == "term" or each.name == "budget")
    }
    same = {name: size for name, size in moves.items() if size * cache.difference > 0}
    assert found.explains is not None
    assert found.explains.name == max(same, key=lambda name: abs(same[name]))
    assert found.explains.name.startswith(largest)
    assert found.explains.bytes == int(same[found.explains.name])
    assert found.explains.share == pytest.approx(same[found.explains.name] / cache.difference)


def test_nothing_explains_what_all_terms_pull_the_other_way(tmp_path: Path) -> None:
    """Every printed term takes more than is predicted, and more is left all the same."""
    found, _, _ = held(log(tmp_path, weights="16.0", consumed="17.00", peak="3.00", kv="66.00"))
    assert row(found, "KV cache").difference < 0  # type: ignore[operator]
    assert found.explains is None or found.explains.bytes < 0


@pytest.mark.parametrize("gib", ["10.00", "56.21"])
def test_tokens_are_those_of_the_printed_bytes(gib: str, tmp_path: Path) -> None:
    """131,072 bytes a token in blocks of 16: whole blocks of what was printed, and of its rounding either way."""
    size = float(gib) * GIB
    blocks = [int(bytes_) // (16 * 131_072) for bytes_ in (round(size), size - 0.005 * GIB, size + 0.005 * GIB)]
    for tokens, agrees in ((blocks[1] * 16, True), (blocks[1] * 16 - 16, False), (blocks[2] * 16 + 16, False)):
        found, _, _ = held(log(tmp_path, kv=gib, tokens=f"{tokens:,}"))
        blocks_row, tokens_row = row(found, "blocks"), row(found, "tokens")
        assert (blocks_row.said, blocks_row.predicted) == (None, blocks[0])
        assert (blocks_row.low, blocks_row.high) == (blocks[1], blocks[2])
        assert tokens_row.said == tokens
        assert tokens_row.predicted == pytest.approx(blocks[0] * 16, abs=16)
        assert tokens_row.agrees is agrees or abs(tokens - blocks[1] * 16) == 16
        requests = row(found, "requests")
        assert requests.unit == "number"
        assert requests.predicted == pytest.approx(blocks[0] * 16 / 131_072, rel=1e-3)
        assert found.fits is True


def test_no_bytes_are_a_refusal_and_no_figure_of_tokens(tmp_path: Path) -> None:
    found, _, _ = held(log(tmp_path, kv="-2.00"))
    assert found.refused == ("-2.00 GiB are left for the cache",)
    assert row(found, "tokens").predicted is None
    assert row(found, "requests").said == 3.51
    zero, _, _ = held(log(tmp_path, kv="0.00"))
    assert zero.refused == ("0.00 GiB are left for the cache",)
    assert row(zero, "KV cache").relative is None
    assert exceeds(row(zero, "KV cache"), 99.0) is True
    with pytest.raises(InputError, match="nothing to compare"):
        exceeds(None, 0.1)


# ---- bytes that move ----

MOVES: list[dict[str, Any]] = [
    {"gpu_memory_utilization": 0.8}, {"gpu_memory_utilization": 0.95}, {"tensor_parallel_size": 2},
    {"max_num_batched_tokens": 16_384}, {"max_num_seqs": 1024, "max_num_batched_tokens": 32_768}, {"weights": "fp8"},
    {"pipeline_parallel_size": 2}, {"gpu_memory_utilization": 0.8, "max_num_seqs": 64},
]  # fmt: skip
STAY: list[dict[str, Any]] = [
    {}, {"concurrency": 5}, {"prompt_tokens": 9000}, {"output_tokens": 9}, {"max_model_len": 8192}, {"block_size": 32},
    {"kv_cache_dtype": "fp8"}, {"enable_prefix_caching": False}, {"num_gpu_blocks_override": 900},
    {"shared_prefix_tokens": 100}, {"data_parallel_size": 2}, {"request_rate": 2.0}, {"ttft": 1.0, "price": 2.0},
]  # fmt: skip


def based(read: Log, **given: Any) -> Base:
    return measured_base(read, name="x", model=None, gpu=None, engine=None, given=given)


@pytest.mark.parametrize("given", MOVES, ids=lambda given: "-".join(given))
def test_the_bytes_move_by_what_the_model_says_of_both(given: dict[str, Any], tmp_path: Path) -> None:
    read = log(tmp_path)
    _, before, _ = held(read)
    _, after, _ = held(read, **given)
    found, measured = based(read, **given), round(56.21 * GIB)
    moved = [left(after, bound) - left(before, bound) for bound in ("bytes", "low_bytes", "high_bytes")]
    assert found.found.settings["kv_cache_memory_bytes"] == measured + moved[0]
    assert found.bounds == (measured + min(moved), measured + max(moved))
    assert (found.measured_bytes, found.line) == (measured, 12)
    origin = found.found.origins["kv_cache_memory_bytes"]
    assert origin.startswith("modelled: x, line 12: 56.21 GiB per GPU")
    assert f"moved by {moved[0] / GIB:+.2f} GiB ({min(moved) / GIB:+.2f} to {max(moved) / GIB:+.2f})" in origin


@pytest.mark.parametrize("given", STAY, ids=lambda given: "-".join(given) or "nothing")
def test_what_the_bytes_hold_does_not_move_them(given: dict[str, Any], tmp_path: Path) -> None:
    found = based(log(tmp_path), **given)
    assert found.found.settings["kv_cache_memory_bytes"] == found.measured_bytes == round(56.21 * GIB)
    assert found.bounds is None
    assert found.found.origins["kv_cache_memory_bytes"] == "measured: x, line 12: 56.21 GiB per GPU"


@pytest.mark.parametrize("kv", ["56.21", "57.00", "57.80", "58.00"])
@pytest.mark.parametrize("given", [{"max_num_seqs": 8, "max_num_batched_tokens": 64}, {"enforce_eager": True}])
def test_a_smaller_batch_frees_what_is_neither_weights_nor_cache_at_most(
    given: dict[str, Any], kv: str, tmp_path: Path
) -> None:
    read = log(tmp_path, kv=kv)
    others = max(0, round(72.91 * GIB) - round(15.0 * GIB) - round(float(kv) * GIB))
    _, before, _ = held(read)
    _, after, _ = held(read, **given)
    moved = left(after) - left(before)
    found = based(read, **given)
    size = found.found.settings["kv_cache_memory_bytes"] - round(float(kv) * GIB)
    assert size == pytest.approx(min(moved, others), abs=2)
    if moved > others > 0:
        assert "all that the log leaves beside weights and cache" in found.found.origins["kv_cache_memory_bytes"]
        assert found.bounds is not None
        assert found.bounds[1] == found.found.settings["kv_cache_memory_bytes"]
        shifts = [left(after, bound) - left(before, bound) for bound in ("bytes", "low_bytes", "high_bytes")]
        assert found.bounds[0] == round(float(kv) * GIB) + min(size, *shifts)


def test_another_device_or_release_moves_the_bytes_too(tmp_path: Path) -> None:
    read = log(tmp_path)
    _, before, found = held(read)
    for engine, gpu in (("vllm@0.20.0", None), (None, load_gpu("h200-sxm"))):
        moved = measured_base(read, name="x", model=None, gpu=gpu, engine=engine, given={"max_num_seqs": 512})
        case = deployment(read, name="x", model=None, gpu=gpu, engine=engine, given={"max_num_seqs": 512})
        assert case.model is not None
        after = plan_deployment(case.model, case.gpu, case.engine, case.settings)
        base = deployment(read, name="x", model=case.model, gpu=case.gpu, engine=None, given={})
        assert base.model is not None
        start = plan_deployment(base.model, base.gpu, base.engine, base.settings)
        by = left(after) - left(start)
        assert moved.found.settings["kv_cache_memory_bytes"] == round(56.21 * GIB) + by
    assert found.gpu is not None
    assert left(before) > 0

"""Which layers are on the device for a step, and how their times become the model's."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest

pytest.importorskip("torch", reason="the probe's extra is not installed")

from hypothesis import given
from hypothesis import strategies as st

from kvplan.catalog import load_gpu, load_model, model_ids
from kvplan.planning.speed.work import count_reduces
from kvplan.probe import correctness, held, linear, prefill, step_rows
from kvplan.probe.held import Held, chosen_layers
from kvplan.probe.session import MeasuredFigure, MeasuredLine
from kvplan.probe.step_rows import Point
from kvplan.spec.model import ModelSpec

from .test_step import session_of, small

MIXED = ("deepseek-v2-lite", "jamba-1.5-mini", "gemma-3n-e2b", "nemotron-nano-9b-v2", "llama-4-scout", "llama-3.1-8b")


@given(st.sampled_from(MIXED), st.integers(0, 200), st.integers(1, 100))
def test_every_block_is_held_and_none_lags_behind_its_share(name: str, room: int, limit: int) -> None:
    """Layers of one size: the counts are those of the largest remainder, give or take a layer."""
    spec = load_model(name)
    wanted = spec.layer_counts
    names = chosen_layers(spec, dict.fromkeys(wanted, 1), max(room, len(wanted)), limit)
    many = min(max(limit, len(wanted)), max(room, len(wanted)), spec.num_layers)
    assert len(names) == many
    count = Counter(names)
    assert set(count) == set(wanted)
    assert all(count[block] <= wanted[block] for block in wanted)
    for block in wanted:
        share = many * wanted[block] / spec.num_layers
        assert abs(count[block] - share) < len(wanted)
    left = iter(spec.layers)
    assert all(block in left for block in names)  # in the model's order


def test_a_block_that_no_longer_fits_leaves_room_for_smaller_ones() -> None:
    spec = load_model("deepseek-v2-lite")
    dense, moe = spec.layers[0], spec.layers[-1]
    assert Counter(chosen_layers(spec, {dense: 1, moe: 10}, 31, 100)) == {dense: 1, moe: 3}
    assert Counter(chosen_layers(spec, {dense: 10, moe: 1}, 31, 100)) == {dense: 1, moe: 21}


def two_blocks() -> tuple[ModelSpec, Held]:
    spec = load_model("deepseek-v2-lite")
    dense, moe = spec.layers[0], spec.layers[-1]
    return spec, Held(names=[dense, moe, moe], layers=[], head=None, fmt="bf16")


def test_times_of_a_block_count_for_its_layers_alone() -> None:
    """1 dense layer of 5 s and 26 routed ones, of which 2 take 3 s: 44 s; all three at once would be 8 x 9."""
    spec, part = two_blocks()
    ran: list[list[int]] = []

    def layers(reduce: Any, chosen: Iterable[int]) -> None:
        ran.append(list(chosen))

    def sample(work: Any) -> list[float]:
        work()
        return [5.0, 6.0] if ran[-1] == [0] else [3.0, 4.0]

    assert part.sampled(spec, layers, sample) == [5 + 26 / 2 * 3, 6 + 26 / 2 * 4]
    assert ran == [[0], [1, 2]]
    assert part.told(spec) == f"1 of 1 {spec.layers[0]}, 2 of 26 {spec.layers[-1]} layers, scaled"
    every = Held(names=list(spec.layers), layers=[], head=None, fmt="bf16")
    assert every.told(spec) == ""
    ran.clear()
    assert every.sampled(spec, layers, sample) == [3.0, 4.0]
    assert ran == [list(range(27))]


def test_what_does_not_fit_with_one_layer_of_every_block_is_said() -> None:
    session = session_of(load_model("jamba-1.5-mini"), megabytes=512)
    reason = held.hold(session)
    assert isinstance(reason, str)
    assert reason.startswith(f"a layer of each of {len(session.layout.spec.layer_counts)} blocks and the head take ")


@pytest.mark.parametrize(
    ("formats", "run", "why"),
    [
        (
            {"cache_type_k": "q4_0", "cache_type_v": "q4_0"},
            "bf16",
            "in place of q4_0, of which there are no pages here",
        ),
        ({"cache_type_k": "f16", "cache_type_v": "q4_0"}, "bf16", "in place of fp16 and q4_0, of which there are no"),
        ({"cache_type_k": "f16", "cache_type_v": "f16"}, "bf16", "in place of fp16, which takes the same bytes"),
    ],
)
def test_a_step_in_another_format_is_predicted_in_that_format(formats: dict[str, str], run: str, why: str) -> None:
    from kvplan.probe import run as runs
    from kvplan.probe.device import detect

    asked = {"max_model_len": 2048, "weights": "bf16", **formats}
    session = runs.open_session(runs.Request(small(), "llama.cpp", asked, detect("cpu"), 1 << 29, quick=True), print)
    session.gpu = load_gpu("h200-sxm")
    fmt, instead = held.cache_format(session)
    assert fmt == run
    assert instead.startswith(why)
    part = Held(names=[], layers=[], head=None, fmt=fmt, instead=instead)
    (row, *_) = step_rows.point_rows(session, part, [Point(8, 1024, (1e-3,) * 3, "a kernel")])
    assert instead in row.note
    other = session_of(small(), weights="bf16")
    other.gpu = session.gpu
    assert row.predicted == step_rows.predicted_seconds(other.speed(), 8, 1024)
    assert row.predicted != step_rows.predicted_seconds(other.speed(), 8, 2048)


def test_a_prompt_of_weights_that_are_not_multiplied_is_not_timed() -> None:
    session = session_of(load_model("llama-3.2-1b"), weights="fp8")
    row = prefill.measure(session)[-1]
    assert row.measured is None
    assert "--weights bf16" in row.note
    assert any("prefill: weights in" in text for text in session.lacks)
    latent = session_of(small("deepseek-v2-lite"))
    assert "latent rows" in prefill.measure(latent)[-1].note
    wide = session_of(small("mimo-v2-flash"), weights="bf16")
    assert "K and V of 192 and 128 elements are not prefilled here" in prefill.measure(wide)[-1].note
    assert "no layer of this model has K and V" in prefill.measure(session_of(small("mamba2-2.7b")))[-1].note


def test_prompts_are_no_longer_than_the_model_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prefill, "_CPU_TOKENS", (64, 1024))
    names = [row.name for row in prefill.measure(session_of(small(max_position_embeddings=100), max_model_len=100))]
    assert "prompt of 64 tokens" in names
    assert "prompt of 100 tokens" in names
    assert "prompt of 1024 tokens" not in names


def test_a_prompt_through_one_of_several_blocks_says_so_and_predicts_nothing() -> None:
    spec = small("gemma-3-4b")
    other = next(name for name in load_model("gemma-3-4b").layers if name != spec.layers[0])
    row = prefill.measure(session_of(replace(spec, layers=(spec.layers[0], other))))[-1]
    assert row.predicted is None
    assert "as if all layers were" in row.note


@pytest.mark.parametrize("name", [n for n in model_ids() if any(
    r.stream.role == "index" for _, m in load_model(n).mixers() for r in m.reads())])  # fmt: skip
def test_work_that_is_counted_is_that_which_runs_without_an_index(name: str) -> None:
    session = session_of(load_model(name), weights="bf16")
    kinds = {mixer.kind: mixer for _, mixer in session.layout.spec.mixers()}
    plain = next((m for kind, m in kinds.items() if kind in ("full", "mla")), None)
    if plain is None:
        pytest.skip("no attention over everything in this model")
    session.limits = session.limits._replace(max_bytes=1 << 33)
    rows = [row for row in correctness._growth(session, plain, "cpu") if "work of a step" in row.name]
    assert rows
    assert all(row.passed for row in rows)


@pytest.mark.parametrize(
    ("name", "sums"),
    [("llama-3.1-8b", 64), ("whisper-large-v3", 96), ("nemotron-nano-9b-v2", 56), ("mamba2-2.7b", 64),
     ("falcon-h1-7b", 132), ("qwen3-30b-a3b", 96)],
)  # fmt: skip
def test_sums_over_ranks_follow_every_divided_matrix(name: str, sums: int) -> None:
    """By hand: attention and FFN; two attentions and an FFN; one mixer or one FFN a layer; two mixers and an FFN."""
    assert count_reduces(load_model(name)) == sums


def test_layers_without_an_ffn_have_no_crossing() -> None:
    session = session_of(small("mamba2-2.7b"), weights="bf16")
    session.gpu = load_gpu("h200-sxm")
    line = MeasuredFigure(4e12, 4e12, 4e12, 3)
    session.figures.linear["16"] = MeasuredLine(line, MeasuredFigure(5e-6, 5e-6, 5e-6, 3), 0.01)
    part = held.hold(session)
    assert isinstance(part, Held)
    assert linear._crossing(session, part.layers) == []

"""One sequence and one more token, as plans count them, against tensors; a wrong formula shows."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("torch", reason="the probe's extra is not installed")

from kvplan.cache import bytes as formulas
from kvplan.cache.bytes import fixed_bytes
from kvplan.catalog import load_model
from kvplan.engines import distinct
from kvplan.errors import KvplanError
from kvplan.probe import correctness, memory, run, sequences
from kvplan.probe.device import detect
from kvplan.probe.mixer_kinds import build_mixer
from kvplan.probe.receipt import Row
from kvplan.units import MIB

from .test_cpu import failed, session_of

RECURRENT = (
    "falcon-h1-0.5b", "qwen3-next-80b-a3b", "lfm2-8b-a1b", "kimi-linear-48b-a3b", "zamba2-7b", "rwkv-7-g1-7.2b",
    "falcon-mamba-7b", "recurrentgemma-2b", "minimax-text-01",
)  # fmt: skip
"""A catalog model of every kind of layer with a fixed state."""


def rows_of(model: str, engine: str = "vllm") -> list[Row]:
    return sequences.measure(session_of(model, engine, megabytes=512, max_model_len=2048))


@pytest.mark.parametrize(
    ("model", "lengths"),
    [
        ("qwen3-0.6b", [1000]), ("gemma-3-1b", [511, 512, 769]), ("deepseek-v2-lite", [1000]),
        ("falcon-h1-0.5b", [1000]), ("deepseek-v4-flash", None),
    ],
)  # fmt: skip
def test_sequences_hold_what_plans_say(model: str, lengths: list[int] | None) -> None:
    rows = rows_of(model)
    assert failed(rows) == []
    whole = [r for r in rows if r.name.startswith("one sequence")]
    if lengths is not None:
        assert [r.name for r in whole] == [f"one sequence of {n:,} tokens" for n in lengths]
    assert all(r.tolerance == 0.0 and r.measured for r in whole)
    assert any(r.name.startswith("one more token") for r in rows)


def test_a_small_limit_takes_a_shorter_sequence() -> None:
    session = session_of("qwen3-0.6b", megabytes=64)
    assert failed(sequences.measure(session)) == []
    assert session.lacks == []
    session.limits = session.limits._replace(max_bytes=40 * 114_688)
    (whole, *_) = rows = sequences.measure(session)  # 1,000 tokens of one of 28 layers are 3.9 MiB
    assert (whole.name, whole.measured) == ("one sequence of 1,000 tokens", 1000 * 114_688)
    assert "one of each kind at a time" in whole.note
    assert failed(rows) == []
    session.limits = session.limits._replace(max_bytes=40 * 4096)
    names = [r.name for r in sequences.measure(session)]
    assert "one sequence of 31 tokens" in names  # 1000, 500, 250, 125, 62, 31: the first below 40
    assert session.lacks == []


def test_layers_that_differ_are_held_one_of_each_where_all_do_not_fit() -> None:
    for model in ("gemma-3-1b", "falcon-h1-0.5b"):
        session = session_of(model, megabytes=512)
        rows = sequences.measure(session)
        session.limits = session.limits._replace(max_bytes=3 * MIB)
        again = sequences.measure(session)
        assert session.lacks == []
        assert failed(again) == []
        assert [(r.name, r.measured) for r in again] == [(r.name, r.measured) for r in rows]
        assert any("one of each kind" in r.note for r in again)


@pytest.mark.parametrize("formula", ["mixer_bytes", "state_bytes"])
def test_a_plan_that_counts_twice_is_off(formula: str, monkeypatch: pytest.MonkeyPatch) -> None:
    right: Any = getattr(formulas, formula)
    monkeypatch.setattr(formulas, formula, lambda *args, **given: 2 * right(*args, **given))
    assert [name for name, _, _ in failed(rows_of("falcon-h1-0.5b"))] == ["one sequence of 1,000 tokens"]


def test_a_wrong_rate_of_growth_is_off(monkeypatch: pytest.MonkeyPatch) -> None:
    right = sequences.bytes_per_token
    monkeypatch.setattr(sequences, "bytes_per_token", lambda *args, **given: 2 * right(*args, **given))
    names = [name for name, _, _ in failed(rows_of("gemma-3-1b"))]
    assert names == ["one more token of a short sequence", "one more token of a sequence of 512"]


@pytest.mark.parametrize("window", [24, 47, 49])
def test_a_window_that_the_cache_gets_wrong_changes_the_result(window: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The streams of a layer hold fewer or more entries than the window that its config states."""
    session = session_of("gemma-3-1b")
    layer, mixer = next(x for x in correctness._mixers(session) if x[0].kind == "sliding")
    short = correctness.shortened(mixer)
    wrong = tuple(s._replace(window=window) for s in short.streams())
    monkeypatch.setattr(type(short), "streams", lambda self: wrong)
    built = build_mixer(short, 0, "cpu")
    assert built is not None
    assert failed(correctness._equal(layer.kind, built, session))


def test_heads_that_are_folded_wrongly_change_the_result(monkeypatch: pytest.MonkeyPatch) -> None:
    from kvplan.probe import mixers

    right = mixers.attend

    def wrong(q: Any, k: Any, v: Any, mask: Any = None) -> Any:
        folded = q.unflatten(1, (-1, k.shape[1])).transpose(1, 2).flatten(1, 2)
        return right(folded, k, v, mask)

    session = session_of("qwen3-0.6b")
    ((layer, mixer),) = correctness._mixers(session)
    built = build_mixer(mixer, 0, "cpu")
    assert built is not None
    assert failed(correctness._equal(layer.kind, built, session)) == []
    monkeypatch.setattr(mixers, "attend", wrong)
    assert failed(correctness._equal(layer.kind, built, session))


@pytest.mark.parametrize("engine", distinct())
@pytest.mark.parametrize("model", RECURRENT)
def test_states_are_those_of_the_engine(model: str, engine: str) -> None:
    """Some engines keep a column more of a convolution than others."""
    request = run.Request(load_model(model), engine, {"max_model_len": 2048}, detect("cpu"), 64 * MIB, quick=True)
    try:
        session = run.open_session(request, lambda text: None)
    except KvplanError:
        pytest.skip(f"{engine} does not serve {model} here")
    spelled = sum(memory._fixed(layer) for layer in session.layout.layers)
    assert spelled == fixed_bytes(session.layout.spec, session.layout.formats)
    assert any(layer.states for layer in session.layout.layers)

"""Which steps are judged: those that memory binds, of models whose products the probe has."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

pytest.importorskip("torch", reason="the probe's extra is not installed")

from kvplan.catalog import load_gpu, load_model
from kvplan.probe import attention, prefill, shapes, step_rows
from kvplan.probe.attention import Timed
from kvplan.probe.kernels import choose
from kvplan.probe.readers import head_shape
from kvplan.probe.receipt import Row
from kvplan.probe.session import MeasuredFigure, MeasuredLine, Session
from kvplan.probe.step import Held
from kvplan.probe.step_rows import MEDIAN_MISS, Point

from .test_step import session_of, small

CEILING = 4.7e12


def figure(value: float) -> MeasuredFigure:
    return MeasuredFigure(value, value, value, 3)


def on_a_card(name: str = "llama-3.2-1b", attention_share: float = 0.9) -> Session:
    """As if a card with this ceiling had been measured."""
    session = session_of(small(name))
    session.device = replace(session.device, kind="cuda")
    session.gpu = load_gpu("h200-sxm")
    session.figures.read_bytes_per_second = figure(CEILING)
    session.figures.attention["16"] = MeasuredLine(figure(attention_share * CEILING), figure(7e-6), 0.01)
    return session


def rows_of(session: Session, *taken: tuple[int, float]) -> dict[str, Row]:
    """The rows of points (batch, share of the step that its bytes take at the ceiling)."""
    setup = session.speed(session.calibration())
    assert not isinstance(setup, str)
    points = []
    for batch, share in taken:
        whole = step_rows.memory_share(setup, CEILING, batch, 1024, 1.0)
        points.append(Point(batch, 1024, (whole / share,) * 3, "a kernel"))
    held = Held(names=[], layers=[], head=None, fmt="bf16")
    return {row.name: row for row in step_rows.point_rows(session, held, points)}


def test_only_steps_that_memory_binds_are_judged() -> None:
    rows = rows_of(on_a_card(), (1, 0.49), (8, 0.51), (64, 0.8))
    bound, short = rows["median miss of predicted steps"], rows["median miss of steps of short kernels"]
    assert (bound.predicted, bound.passed is None) == (MEDIAN_MISS, False)
    assert bound.note.startswith("over 2 points")
    assert short.passed is None
    assert short.note.startswith("over 1 point,")
    assert "49% of the read ceiling" in rows["step, bf16 cache, 1 x 1024"].note
    assert "median miss of steps of short kernels" not in rows_of(on_a_card(), (8, 0.51))
    assert "median miss of predicted steps" not in rows_of(on_a_card(), (8, 0.49))


@pytest.mark.parametrize(("share", "judged"), [(0.49, False), (0.51, True)])
def test_steps_before_calibration_need_attention_that_memory_binds(share: float, judged: bool) -> None:
    rows = rows_of(on_a_card(attention_share=share), (8, 0.6), (64, 0.8))
    assert (rows["median miss before calibration"].passed is not None) is judged
    assert rows["median miss of predicted steps"].passed is not None


def test_products_that_are_left_out_are_no_verdict() -> None:
    rows = rows_of(on_a_card("gemma-3n-e2b"), (8, 0.6), (64, 0.8))
    assert {row.passed for row in rows.values()} == {None}
    assert "beside attention and FFN" in rows["median miss of predicted steps"].note


def test_what_is_left_out_is_counted_by_weights() -> None:
    """gemma-3n-e2b: laurel and gates in 30 layers, projections of the model; 4.2 % of the products."""
    spec = load_model("gemma-3n-e2b")
    others = 30 * (2 * 64 * 2048 + 2 * 256 * 2048) + 7680 * 2048 + 6 * 2048 * 2048
    q_kv, own, ffn = 3072 * 2048 + 2048 * 2048, 30, 3 * 8192 * 2048
    assert shapes.left_out(spec) == pytest.approx(others / (others + own * (q_kv + ffn)), rel=1e-12)
    assert shapes.left_out(load_model("llama-3.1-8b")) == 0.0


@pytest.mark.parametrize(("rate", "judged"), [(0.49, False), (0.51, True)])
def test_a_line_is_judged_where_memory_binds_it(rate: float, judged: bool) -> None:
    session, shape = on_a_card(), head_shape(load_model("llama-3.1-8b").blocks["layer"].mixers[0])
    assert shape is not None
    timed: list[Any] = []
    for size in (1 << 24, 1 << 25, 1 << 26, 1 << 27, 1 << 28, 1 << 29):
        seconds = size / (rate * CEILING) + 7e-6
        path = choose.Path("a kernel", lambda copy: None, True)
        timed.append(Timed("bf16", 1, 1024, size, choose.Picked(path, (seconds,) * 3, 1e-3, ()), None))
    rows = attention._format_rows(session, shape, "bf16", timed, [])
    row = next(row for row in rows if row.name == "bf16: worst miss of the line")
    assert (row.passed is not None) is judged
    assert ("memory does not bind it" in row.note) is not judged


def test_products_in_16_bits_are_held_against_the_rate_of_16_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    """A model whose weights are planned in 8 bits: its plan's rate is twice that."""
    session = session_of(small())
    session.gpu = load_gpu("h200-sxm")
    monkeypatch.setattr(prefill.timing, "sample", lambda *args, **how: [1e-3] * 3)
    monkeypatch.setattr(session.__class__, "speed", lambda self, *args, **how: pytest.fail("the plan's rate"))
    monkeypatch.setattr(prefill, "_plateau_sizes", lambda session: [(64, 64, 64)])
    [row] = prefill.measure_plateau(session)
    assert row.predicted == pytest.approx(989e12 * 0.78, rel=1e-3)

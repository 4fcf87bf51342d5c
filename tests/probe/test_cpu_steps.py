"""Steps and products on a CPU: what is read beside them, of which models they are, and that they end with the time."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("torch", reason="the probe's extra is not installed")

import torch

from kvplan.probe import bandwidth, linear, ram, run, stack
from kvplan.probe.device import detect
from kvplan.probe.session import MeasuredFigure, Session
from kvplan.probe.tensor_parallel import StackShape
from kvplan.sources import find_model
from kvplan.units import MIB


def session_of(model: str, megabytes: int = 64) -> Session:
    """A quick session on the CPU."""
    request = run.Request(find_model(model), "vllm", {}, detect("cpu"), megabytes * MIB, quick=True)
    return run.open_session(request, lambda text: None)


def test_reads_beside_steps_are_those_of_the_ceiling(monkeypatch: pytest.MonkeyPatch) -> None:
    """A slower way of reading made steps a fifth faster than their bytes allow."""
    session, ran = session_of("smollm2-135m"), []
    for method in bandwidth._methods(session, torch.ones(bandwidth.ROW // 4, dtype=torch.int32)):
        session.figures.read_method = method.name
        found = bandwidth.best_reader(session, torch.ones(bandwidth.ROW // 4, dtype=torch.int32))
        assert found.reads
        assert (found.name == method.name) == method.reads
        found.run()
    bandwidth.measure(session)
    ceiling = session.figures.read_bytes_per_second
    assert ceiling is not None
    assert session.figures.read_method in {"amax of int32", "sum of fp32", "matrix times vector, fp32"}
    real = bandwidth.best_reader

    def noted(session: Session, data: Any) -> bandwidth.Method:
        method = real(session, data)
        return method._replace(run=lambda: ran.append(method.name))

    monkeypatch.setattr(bandwidth, "best_reader", noted)
    ram._beside(session, SimpleNamespace(step=lambda: None))  # type: ignore[arg-type]
    assert ran == [session.figures.read_method] * (1 + ram.ROUNDS)


@pytest.mark.parametrize(
    ("model", "runs"),
    [
        ("smollm2-135m", True),
        ("mistral-7b-v0.1", True),  # a window of 4,096, and no context beyond it
        ("olmo-3-7b", True),
        ("gemma-3-4b", False),  # windows of 1,024
        ("phi-3-mini-4k", False),  # a window of 2,047
        ("falcon-h1-7b", False),  # a recurrence beside each attention
        ("zamba2-2.7b", False),
        ("llama-3.2-11b-vision", False),  # layers that read an encoder's rows
        ("deepseek-v2-lite", False),
        ("gemma-3n-e2b", False),  # layers that read an earlier layer's cache
    ],
)
def test_steps_in_ram_are_of_models_whose_every_layer_is_plain_attention(model: str, runs: bool) -> None:
    session = session_of(model)
    assert (StackShape.of(session, max(c for _, c in ram.POINTS)) is not None) == runs
    if not runs:
        session.figures.read_bytes_per_second = MeasuredFigure.of([1e9])
        (row,) = ram.measure(session)
        assert (row.measured, row.passed) == (None, None)


def test_layers_with_other_matrices_than_the_steps_are_left_out() -> None:
    spec = find_model("smollm2-135m")
    blocks = {
        name: replace(block, mixers=tuple(replace(m, output_gate=True) for m in block.mixers))  # type: ignore[type-var]
        for name, block in spec.blocks.items()
    }
    session = session_of("smollm2-135m")
    session.layout = session.layout._replace(spec=replace(session.layout.spec, blocks=blocks))
    assert StackShape.of(session, 2048) is None


class Clock:
    """Seconds that pass one a measurement."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now, self.passes = 0.0, []
        monkeypatch.setattr("kvplan.probe.session.time", SimpleNamespace(monotonic=lambda: self.now))
        monkeypatch.setattr(linear.timing, "sample", self.sample)

    def sample(self, device: Any, work: Any, *, samples: int, per: int = 1, **rest: Any) -> list[float]:
        """As long as everything takes."""
        self.now += 1
        self.passes.append((len(work() or []), per))
        return [1e-3 * self.now] * samples


def routed(session: Session) -> Any:
    """Four small experts."""
    weights = torch.zeros((4, 12, 8), dtype=torch.bfloat16), torch.zeros((4, 8, 6), dtype=torch.bfloat16)
    layer = stack.Layer(norm=torch.ones(8, dtype=torch.bfloat16))
    layer.dense.append((torch.zeros((16, 8), dtype=torch.bfloat16), torch.zeros((8, 8), dtype=torch.bfloat16), True))
    layer.experts = stack.Experts(*weights, None, 2)
    return layer


@pytest.mark.parametrize(("seconds", "experts"), [(0, 0), (3, 0), (3.5, 1), (9, 2)])
def test_experts_end_with_the_time(monkeypatch: pytest.MonkeyPatch, seconds: float, experts: int) -> None:
    """Three shapes of linear layers come first, a second each; then two matrices of experts, a second each."""
    session = session_of("qwen3-30b-a3b", megabytes=64)
    monkeypatch.setattr(linear.prefill, "measure_plateau", lambda session: [])
    clock = Clock(monkeypatch)
    session.limits = session.limits._replace(deadline=seconds)
    rows = linear.measure(session, [routed(session)], torch.zeros((32, 8), dtype=torch.bfloat16))
    timed = [r for r in rows if r.name.startswith("experts")]
    assert len(timed) == experts
    assert clock.now <= seconds + 1
    late = [text for text in session.lacks if text.startswith("decode, experts")]
    assert late == [
        f"decode, experts, {shape}: the time was up after 0 of 1 counts of tokens"
        for shape in ("4 x 12 x 8", "4 x 8 x 6")[experts:]
    ]
    assert [passes for passes in clock.passes[3:] if passes != (1, 1)] == []  # on a CPU one product takes seconds


def test_experts_of_a_card_end_between_counts_of_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    session = session_of("qwen3-30b-a3b", megabytes=64)
    session.device = replace(session.device, kind="cuda")
    clock = Clock(monkeypatch)
    session.limits = session.limits._replace(deadline=2)
    experts = routed(session).experts
    points, (row,) = linear._experts(session, experts)
    assert points == [(4 * 12 * 8 * 2.0, 1.5e-3)]
    assert "tokens an expert: 1, 4;" in row.note
    assert session.lacks[0] == "decode, experts, 4 x 12 x 8: the time was up after 2 of 3 counts of tokens"
    assert clock.passes == [(3, 3)] * 2

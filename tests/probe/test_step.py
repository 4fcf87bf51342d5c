"""Layers with random weights, the rows of a step, and what goes to the calibration."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

pytest.importorskip("torch", reason="the probe's extra is not installed")

import torch

from kvplan.catalog import load_model
from kvplan.probe import attention, bandwidth, linear, prefill, readers, run, shapes, stack, step
from kvplan.probe import held as held_part
from kvplan.probe.device import detect
from kvplan.probe.kernels import between
from kvplan.probe.session import MeasuredFigure, MeasuredLine, Session
from kvplan.spec.ffn import MoeFfn
from kvplan.spec.model import ModelSpec
from kvplan.units import MIB


def small(name: str = "llama-3.2-1b", **changes: Any) -> ModelSpec:
    """A catalog model with two layers and a small vocabulary, so that it fits any machine."""
    spec = load_model(name)
    blocks = {
        key: replace(block, ffns=tuple(
            replace(f, experts=8, experts_per_token=2) if isinstance(f, MoeFfn) else f for f in block.ffns
        ))
        for key, block in spec.blocks.items()
    }  # fmt: skip
    return replace(spec, layers=(spec.layers[0], spec.layers[-1]), vocab_size=2048, blocks=blocks, **changes)


def session_of(spec: ModelSpec, megabytes: int = 768, **settings: Any) -> Session:
    """A quick session on the CPU."""
    request = run.Request(spec, "vllm", {"max_model_len": 2048, **settings}, detect("cpu"), megabytes * MIB, quick=True)
    return run.open_session(request, lambda text: None)


def test_products_are_fused_as_the_planner_counts_them() -> None:
    """Llama-3.1-8B: q, k and v are one product of 6,144 x 4,096; the mixer has two, as `linear_kernels` says."""
    spec = load_model("llama-3.1-8b")
    mixer = next(iter(spec.blocks.values())).mixers[0]
    products = shapes.layer_shapes(mixer, spec.hidden_size)
    assert products == [(6144, 4096), (4096, 4096)]
    assert len(products) == mixer.linear_kernels


@pytest.mark.parametrize("name", ["llama-3.2-1b", "qwen3-30b-a3b", "deepseek-v2-lite"])
def test_layers_weigh_what_the_planner_says(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = load_model(name)
    block = spec.layers[0]
    monkeypatch.setattr(stack, "random_weight", lambda shape, device, generator: torch.empty(shape, device="meta"))
    made = stack.build(spec, [block], lambda mixer: 0, "cpu")[0]
    tensors = [*made.matrices, *(made.experts[:3] if made.experts else ())]
    held = sum(t.numel() * 2 for t in tensors if t is not None)
    small_vectors = sum(
        2 * t.elements
        for part in (*spec.blocks[block].mixers, *spec.blocks[block].ffns)
        for t in part.tensors(spec.hidden_size)
        if t.role == "norm"
    )
    assert held == stack.layer_bytes(spec, block) - small_vectors


def test_as_many_experts_are_read_as_tokens_touch() -> None:
    assert stack.touched(128, 8, 1) == 8
    assert stack.touched(128, 8, 10_000) == 128
    assert stack.touched(128, 8, 16) == round(128 * (1 - (1 - 1 / 16) ** 16))


def test_columns_are_cut_or_repeated() -> None:
    x = torch.arange(6).view(2, 3)
    assert stack.take(x, 2).tolist() == [[0, 1], [3, 4]]
    assert stack.take(x, 5).tolist() == [[0, 1, 2, 0, 1], [3, 4, 5, 3, 4]]


def _between(device: str) -> None:
    generator = torch.Generator().manual_seed(0)
    x, rest = (torch.randn((3, 320), generator=generator).to(device) for _ in range(2))
    weight, out = torch.rand(320, generator=generator).to(device), torch.empty((3, 320), device=device)
    total = x + rest
    between.add_norm(x, rest, weight, out)
    torch.testing.assert_close(rest, total)
    torch.testing.assert_close(out, total / total.pow(2).mean(1, keepdim=True).sqrt() * weight, rtol=1e-4, atol=1e-5)
    turn = torch.stack((torch.full((48,), 0.6), torch.full((48,), 0.8))).to(device)  # other layers have wider heads
    turned = torch.empty((3, 4, 64), device=device)
    between.rotate(x, turn, turned)
    low, high = x[:, :256].view(3, 4, 2, 32).unbind(2)
    torch.testing.assert_close(turned, torch.cat((low * 0.6 - high * 0.8, high * 0.6 + low * 0.8), -1))
    gated = torch.empty((3, 160), device=device)
    between.gate(x, gated)
    torch.testing.assert_close(gated, torch.nn.functional.silu(x[:, :160]) * x[:, 160:], rtol=1e-4, atol=1e-6)


def test_what_stands_between_products() -> None:
    _between("cpu")
    turned = torch.empty((1, 2, 5))
    between.rotate(torch.arange(10.0)[None], torch.tensor([[0.0, 0.0], [1.0, 1.0]]), turned)
    assert turned.tolist() == [[[-2, -3, 0, 1, 4], [-7, -8, 5, 6, 9]]]


@pytest.mark.gpu
def test_what_stands_between_products_on_a_gpu() -> None:
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    _between("cuda")


@pytest.mark.parametrize("name", ["llama-3.2-1b", "qwen3-30b-a3b", "deepseek-v2-lite", "falcon-h1-7b"])
def test_a_step_runs_through_every_kind_of_layer(name: str) -> None:
    """Real products and caches; outputs are finite, and a layer that is left out is scaled in."""
    spec = small(name)
    spec = replace(spec, layers=(spec.layers[-1],) * 2)
    session = session_of(spec, megabytes=2048)
    held = held_part.Held(
        names=list(spec.layers[-1:]), fmt="bf16", head=torch.randn((64, spec.hidden_size)).bfloat16() * 0.02,
        layers=stack.build(spec, spec.layers[-1:], held_part.state_bytes_of(session), "cpu"),
    )  # fmt: skip
    point = step.time_step(session, held, 2, 64)
    assert len(point.seconds) == session.limits.samples
    assert min(point.seconds) > 0
    scratch = stack.Scratch.of(2, spec.hidden_size, 64, "cpu")
    before = scratch.rest.clone()
    stack.run_layer(held.layers[0], scratch, {})
    assert bool(scratch.x.isfinite().all())
    assert not torch.equal(scratch.rest, before)


def test_what_a_layer_takes_besides_products_is_a_difference(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two layers of 12 ms, of which 10 ms are products: 1 ms each; the layers did run, norms and all."""
    session = session_of(small())
    held = held_part.hold(session)
    ran: list[int] = []

    def sample(device: object, work: Any, **how: Any) -> list[float]:
        work()
        ran.append(1)
        return [0.012] * 3

    monkeypatch.setattr(step.timing, "sample", sample)
    monkeypatch.setattr(linear, "layer_products", lambda session, layers, batch: [0.009, 0.010, 0.011])
    calls: list[int] = []
    norm = between.add_norm
    monkeypatch.setattr(between, "add_norm", lambda *args: (calls.append(1), norm(*args))[1])
    assert step._in_place(session, held, 2) == pytest.approx([0.001] * 3)
    assert len(ran) == 1
    assert len(calls) == 2 * len(held.layers)


def test_the_sections_fill_a_calibration() -> None:
    session = session_of(small())
    session.figures.read_bytes_per_second = rate = MeasuredFigure(1e10, 9e9, 1.1e10, 3)
    session.figures.attention["16"] = MeasuredLine(rate, MeasuredFigure(1e-4, 1e-4, 1e-4, 1), 0.1)
    held = held_part.hold(session)
    rows = linear.measure(session, held.layers, held.head)
    rows.append(step._between(session, held))
    assert session.figures.matmul_flops["16"].value > 1e8
    assert session.figures.layer_seconds is not None
    assert session.figures.layer_seconds.value > 0
    line = session.figures.linear["16"]
    assert line.bytes_per_second.value > 1e7
    named = {row.name for row in rows}
    assert {"linear layer, 3072 x 2048", "linear layer, 2048 x 2048", "linear layer, 16384 x 2048"} <= named
    calibration = session.calibration()
    assert calibration is not None
    points = [step.time_step(session, held, 1, 64), step.time_step(session, held, 2, 128)]
    rows = step.point_rows(session, held, points)
    assert next(row for row in rows if row.name == "step, bf16 cache, 1 x 64").predicted is not None
    assert any("miss" in row.name for row in rows)
    assert {row.passed for row in rows} == {None}  # a CPU's caches make its steps erratic


def test_attention_times_every_format_and_fits_its_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention, "CPU_QUICK", ((1, 64), (1, 128), (2, 128), (2, 256)))
    monkeypatch.setattr("kvplan.probe.timing._CPU_CACHE", 1 << 20)
    session = session_of(small())
    rows = attention.measure(session)
    names = [row.name for row in rows]
    for fmt in ("bf16", "fp8_e4m3", "int8_per_token_head", "int4_g32"):
        assert f"{fmt}, 2 x 256" in names
        error = next(row for row in rows if row.name == f"{fmt}: worst error of a sequence")
        assert error.passed is True
    assert "bf16, 2 x 256: scaled_dot_product_attention, contiguous" in names
    assert set(session.figures.attention) == {"16", "8", "4"}
    ratio = next(row for row in rows if row.name == "int4_g32 over bf16, 2 x 256")
    assert ratio.predicted == pytest.approx(128 / (64 / 2 + 4))  # 64 elements: 128 bytes against 36


def test_a_model_without_attention_says_so() -> None:
    spec = load_model("mamba2-2.7b")
    rows = attention.measure(session_of(spec))
    assert [row.measured for row in rows] == [None]
    assert "no layer" in rows[0].note


def test_latent_rows_are_one_head() -> None:
    spec = load_model("deepseek-v2-lite")
    shape = readers.head_shape(next(iter(spec.blocks.values())).mixers[0])
    assert shape == (16, 1, 576, 512, True, 192)
    assert shape.scale == pytest.approx(192**-0.5)


def test_weights_in_other_formats_are_left_out_with_a_reason() -> None:
    session = session_of(load_model("llama-3.2-1b"), weights="fp8")
    rows = step.measure(session)
    assert rows[0].measured is None
    assert "bf16 measures" in rows[0].note


def test_reads_are_timed_several_ways_and_the_best_is_the_ceiling(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bandwidth, "_CPU_BYTES", 128 << 20)
    session = session_of(small())
    rows = {row.name: row for row in bandwidth.measure(session)}
    reads = [r.measured for n, r in rows.items() if r.note == "bytes read"]
    assert len(reads) >= 3
    assert rows["read ceiling"].measured == max(reads)
    assert session.figures.read_bytes_per_second is not None
    assert session.figures.read_bytes_per_second.value == max(reads)
    assert rows["copy"].measured is not None
    assert rows["copy"].note == "bytes read and written"


def test_a_prompt_runs_through_layers() -> None:
    session = session_of(small())
    rows = {row.name: row for row in prefill.measure(session)}
    assert rows["matrix products, bf16"].measured > 1e8
    prompt = rows["prompt of 128 tokens"]
    assert prompt.measured > 0
    assert "2 layers times 1" in prompt.note


def test_products_of_a_routed_layer_are_those_that_a_step_uses(monkeypatch: pytest.MonkeyPatch) -> None:
    """8 experts of which a token takes 2: 4 tokens use ``8 (1 - (3/4)^4)`` = 5 of them, 2 tokens each."""
    session = session_of(small("qwen3-30b-a3b"))
    held = held_part.hold(session)
    assert isinstance(held, held_part.Held)
    seen = []

    def counted(x: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        seen.append((tuple(x.shape), tuple(weights.shape)))
        return x

    monkeypatch.setattr(torch, "bmm", counted)
    assert all(seconds > 0 for seconds in linear.layer_products(session, held.layers[:1], 4))
    experts = held.layers[0].experts
    assert experts is not None
    up, down = experts.up.shape, experts.down.shape
    assert seen[:2] == [((5, 2, up[2]), (5, up[2], up[1])), ((5, 2, down[2]), (5, down[2], down[1]))]


def test_experts_in_four_bits_are_not_multiplied_in_sixteen() -> None:
    """gpt-oss-20b: only its routed experts are quantised; products of 16 bits would read four times their bytes."""
    assert "mxfp4" in str(shapes.unfit_weights(session_of(load_model("gpt-oss-20b"))))
    assert shapes.unfit_weights(session_of(load_model("gpt-oss-20b"), weights="bf16")) is None


@pytest.mark.parametrize("name", ["llama-3.1-8b", "qwen3-30b-a3b", "deepseek-v2-lite", "falcon-h1-7b", "starcoder"])
def test_products_have_the_weights_that_the_planner_counts(name: str) -> None:
    """Elements of all products of a step: those of the spec's matrices, which parameter counts are held against."""
    spec = load_model(name)
    counted = sum(times * out * inner for (out, inner), times in shapes.product_shapes(spec).items())
    assert counted == sum(
        times * t.elements for times, t in spec.tensors_by_block()
        if t.role in ("attention", "dense_ffn", "shared_experts") and len(t.shape) == 2
    )  # fmt: skip


@pytest.mark.parametrize("name", ["qwen3-30b-a3b", "deepseek-v2-lite", "falcon-h1-7b", "starcoder"])
def test_products_are_counted_as_they_are_built(name: str) -> None:
    """What every token multiplies, by shape: counted from the spec, and as matrices of the layers."""
    spec = load_model(name)
    spec = replace(spec, layers=(spec.layers[0], spec.layers[-1]), hidden_size=64)
    layers = stack.build(spec, spec.layers, lambda mixer: 0, "cpu")
    built = Counter((m.shape[0], m.shape[1]) for layer in layers for m in layer.matrices)
    assert built == shapes.product_shapes(spec)

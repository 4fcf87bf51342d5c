"""Models and kernels that are not as usual: odd heads, fp16 caches, attention that is wrong."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

pytest.importorskip("torch", reason="the probe's extra is not installed")

from kvplan.catalog import load_model
from kvplan.errors import InputError, UnsupportedError
from kvplan.probe import attention, held, ram, run
from kvplan.probe.device import detect
from kvplan.probe.kernels import choose, reference, store
from kvplan.probe.receipt import Row
from kvplan.probe.session import MeasuredFigure, MeasuredLine
from kvplan.spec.model import ModelSpec
from kvplan.units import MIB

from .test_step import session_of, small


@pytest.fixture(autouse=True)
def _time_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    """However busy the machine is: what a run does when its time is up is tested elsewhere."""
    monkeypatch.setattr(run, "QUICK_SECONDS", 600.0)


def measured(spec: ModelSpec, *sections: str, **settings: Any) -> Any:
    """A quick run of some sections on the CPU."""
    request = run.Request(
        spec, "vllm", {"max_model_len": 2048, **settings}, detect("cpu"), 256 * MIB, quick=True, sections=sections
    )
    return run.validate(request)


def with_heads(head_dim: int) -> ModelSpec:
    """A small model whose heads have this many elements."""
    spec = small()
    blocks = {
        key: replace(block, mixers=tuple(replace(m, head_dim=head_dim) for m in block.mixers))
        for key, block in spec.blocks.items()
    }  # fmt: skip
    return replace(spec, blocks=blocks)


def named(receipt: Any, start: str) -> list[Row]:
    return [r for r in receipt.rows if r.name.startswith(start)]


@pytest.mark.parametrize("head_dim", [80, 96])
def test_heads_that_int4_does_not_hold_leave_the_other_rows(head_dim: int) -> None:
    receipt = measured(with_heads(head_dim), "bandwidth", "attention")
    (line,) = named(receipt, "int4_g32")
    assert (line.measured, line.passed) == (None, None)
    assert f"a multiple of 64 elements, not ({head_dim}, {head_dim})" in line.note
    assert all(named(receipt, f"{fmt}, ") for fmt in ("bf16", "fp8_e4m3", "int8_per_token_head"))
    assert not any("int4" in text for text in receipt.warnings)  # there is nothing of it to measure


def test_a_plan_in_int4_whose_heads_have_no_pages_says_so_and_steps_in_bf16() -> None:
    session = session_of(with_heads(80))
    formats = session.layout.formats
    int4 = store_format("int4_g32")
    session.layout = session.layout._replace(formats=formats._replace(k=int4, v=int4))
    assert held.cache_format(session) == ("bf16", "in place of int4_g32, of which there are no pages here")
    shape = attention.main_shape(session)
    assert shape is not None
    assert attention.time_format(session, shape, "int4_g32") == []
    assert "multiple of 64" in session.lacks[0]


def store_format(name: str) -> Any:
    from kvplan.spec.formats import get_format

    return get_format(name)


def test_what_a_section_does_not_support_leaves_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    def unsupported(session: Any) -> None:
        raise UnsupportedError("no pages for these")

    monkeypatch.setattr(attention, "measure", unsupported)
    receipt = measured(small(), "device", "attention")
    assert [r.passed for r in named(receipt, "attention failed")] == [False]
    assert "no pages for these" in named(receipt, "attention failed")[0].note
    assert {r.section for r in receipt.rows} == {"device", "attention"}

    def wrong(session: Any) -> None:
        raise InputError("asked for in a way that nothing answers")

    monkeypatch.setattr(attention, "measure", wrong)
    with pytest.raises(InputError):
        measured(small(), "device", "attention")


def test_a_cache_in_fp16_is_measured_as_one_in_bf16() -> None:
    receipt = measured(small(), "decode", kv_cache_dtype="fp16")
    assert receipt.inputs["kv_cache_format"] == "fp16"
    assert named(receipt, "decode step failed") == []
    steps = named(receipt, "step, bf16 cache")
    assert steps
    assert all(r.measured and "bf16 in place of fp16, which takes the same bytes" in r.note for r in steps)
    plain = named(measured(small(), "decode"), "step, bf16 cache")
    assert not any("in place" in r.note for r in plain)


def test_attention_that_is_wrong_everywhere_is_red(monkeypatch: pytest.MonkeyPatch) -> None:
    right = reference.paged_operators

    def wrong(q: Any, pool: Any, table: Any, lens: Any, out: Any) -> None:
        right(q, pool, table, lens, out)
        out.mul_(1.05)

    monkeypatch.setattr(choose, "triton_runs", lambda device, fmt: False)
    monkeypatch.setattr(reference, "paged_operators", wrong)
    receipt = measured(small(), "bandwidth", "attention", "decode")
    errors = [r for r in receipt.rows if "worst error of a sequence" in r.name]
    assert len(errors) == len(attention.PROBE_FORMATS)
    for r in errors:
        assert (r.passed, r.predicted) == (False, choose.TOLERANCE)
        assert r.measured == pytest.approx(0.05, rel=0.2)
        assert "torch operators" in r.note
    (line,) = named(receipt, "bf16: line")
    assert "nothing serves" in line.note
    assert "error 5." in line.note
    assert "time was up" not in line.note
    (of_steps,) = named(receipt, "steps: worst error of attention")
    assert of_steps.passed is False
    assert (receipt.agrees, receipt.complete) == (False, False)


@pytest.mark.parametrize(("how", "passed"), [("wrong", False), ("raises", True)])
def test_a_kernel_that_is_wrong_is_red_although_operators_serve(
    monkeypatch: pytest.MonkeyPatch, how: str, passed: bool
) -> None:
    """One that this card cannot run is only named."""

    def prepare(q: Any, pool: Any, lens: Any, out: Any, config: Any, **given: Any) -> Any:
        if how == "raises":
            raise RuntimeError("out of resource: shared memory")
        return lambda table: out.zero_()

    monkeypatch.setattr(choose, "triton_runs", lambda device, fmt: True)
    monkeypatch.setattr(choose.launch, "starts_early", lambda q: False)
    monkeypatch.setattr(choose.launch, "prepare", prepare)
    paths = choose.paths
    monkeypatch.setattr(choose, "paths", lambda work, **given: paths(work))
    receipt = measured(small(), "bandwidth", "attention")
    errors = [r for r in receipt.rows if "worst error of a sequence" in r.name]
    assert [r.passed for r in errors] == [passed] * len(attention.PROBE_FORMATS)
    assert all(("Triton" in r.note) == (not passed) for r in errors)
    assert named(receipt, "bf16, ")[0].measured is not None


def test_the_probe_asks_before_it_allocates() -> None:
    odd = store.HeadShape(8, 8, 80, 80)
    assert store.unserved(odd, "bf16") is None
    with pytest.raises(UnsupportedError, match="multiple of 64"):
        store.allocate(odd, "int4_g32", 4, 16, "cpu")


def test_a_line_that_is_left_out_of_the_calibration_is_not_complete(monkeypatch: pytest.MonkeyPatch) -> None:
    def measure(session: Any) -> list[Row]:
        figure = MeasuredFigure.of([1e12])
        session.figures.linear["16"] = MeasuredLine(figure, MeasuredFigure.of([0.0]), 1.22)
        return []

    monkeypatch.setattr(attention, "measure", measure)
    receipt = measured(small(), "device", "attention")
    assert receipt.complete is False
    assert "worst miss 122%" in receipt.warnings[0]


def timed_at(fmt: str, rate: float, path: str) -> list[attention.Timed]:
    """Six shapes on one line."""
    found = []
    for n in range(1, 7):
        seconds = (n * 1e6 / rate + 1e-6,) * 3
        picked = choose.Picked(choose.Path(path, lambda i: None, True), seconds, 1e-3, ())
        found.append(attention.Timed(fmt, n, 1024, n * 1_000_000, picked, None))
    return found


@pytest.mark.parametrize(
    ("served", "planned", "expected"),
    [
        ({"fp8_e4m3": (1e11, choose.OPERATORS), "int8_per_token_head": (3e12, "Triton")}, "bf16", 3e12),
        ({"fp8_e4m3": (2e12, "Triton"), "int8_per_token_head": (3e12, "Triton")}, "bf16", 3e12),
        ({"fp8_e4m3": (3e12, "Triton"), "int8_per_token_head": (2e12, "Triton")}, "bf16", 3e12),
        ({"fp8_e4m3": (2e12, "Triton"), "int8_per_token_head": (3e12, "Triton")}, "fp8", 2e12),
        ({"fp8_e4m3": (1e11, choose.OPERATORS), "int8_per_token_head": (1e11, choose.OPERATORS)}, "bf16", None),
    ],
)
def test_the_calibration_takes_lines_of_kernels(
    monkeypatch: pytest.MonkeyPatch, served: dict[str, tuple[float, str]], planned: str, expected: float | None
) -> None:
    """A card without fp8 units serves fp8 by torch operators: their line is nothing to plan 8 bits with."""
    session = session_of(small(), kv_cache_dtype=planned)
    session.device = replace(session.device, kind="cuda")
    monkeypatch.setattr(type(session.device), "release", lambda self: None)
    monkeypatch.setattr(
        attention, "time_format",
        lambda session, shape, fmt, **given: timed_at(fmt, *served[fmt]) if fmt in served else [],
    )  # fmt: skip
    rows = {r.name: r for r in attention.measure(session)}
    found = session.figures.attention.get("8")
    if expected is None:
        assert found is None
        assert "attention, 8: no line of a kernel" in session.lacks[0]
    else:
        assert found is not None
        assert found.bytes_per_second.value == pytest.approx(expected, rel=1e-3)
    for fmt, (_, path) in served.items():
        kept = path != choose.OPERATORS
        assert ("not in the calibration" in rows[f"{fmt}: worst miss of the line"].note) == (not kept)


@pytest.mark.parametrize("name", ["gpt-oss-20b", "deepseek-v4-flash"])
def test_a_step_that_is_not_measured_is_not_all_that_was_to_measure(name: str) -> None:
    receipt = measured(load_model(name), "decode")
    assert [r.measured for r in named(receipt, "decode step")] == [None]
    assert receipt.complete is False
    assert any("are not multiplied here" in text for text in receipt.warnings)
    assert "not all was measured" in receipt.to_dict()["verdict"]["reason"]


def test_the_line_of_linear_layers_informs() -> None:
    (line,) = named(measured(small(), "bandwidth", "decode"), "linear layers: worst miss")
    assert (line.predicted, line.tolerance, line.passed) == (None, None, None)
    assert line.measured is not None


def test_a_card_that_kernels_serve_keeps_no_room_for_operators(monkeypatch: pytest.MonkeyPatch) -> None:
    """24 GB: the largest shapes of an 8-bit cache fit, and what operators would take does not."""
    session = session_of(small())
    session.device = replace(session.device, kind="cuda", compute_capability="8.9")
    shape = store.HeadShape(32, 8, 128, 128)
    session.limits = session.limits._replace(max_bytes=21 << 30, quick=False, slow=False)
    most = session.limits.max_bytes * 0.3
    without = {}
    for kernels in (False, True):
        monkeypatch.setattr(choose, "triton_runs", lambda device, fmt, kernels=kernels: kernels)
        without[kernels] = attention._fitting(session, shape, "int8_per_token_head")
    assert (256, 1024) not in without[False]
    assert (256, 1024) in without[True]
    assert set(without[False]) < set(without[True])
    assert all(b * c * store.row_bytes(shape, "int8_per_token_head") <= most for b, c in without[True])
    assert all(b * c * store.workspace_bytes(shape, "int8_per_token_head") <= most for b, c in without[False])


@pytest.mark.parametrize("room", [True, False])
def test_operators_stand_beside_kernels_where_there_is_room(monkeypatch: pytest.MonkeyPatch, room: bool) -> None:
    monkeypatch.setattr(choose, "triton_runs", lambda device, fmt: True)
    monkeypatch.setattr(choose.launch, "starts_early", lambda q: False)
    heads = store.HeadShape(8, 4, 64, 64)
    work = choose.workload(detect("cpu"), heads, "bf16", 2, 64, page=16, max_bytes=1 << 20)
    names = [path.name for path in choose.paths(work, operators=room)]
    assert (choose.OPERATORS in names) == room
    assert names[0].startswith("Triton")
    odd = choose.workload(
        detect("cpu"), heads._replace(head_dim=192, head_dim_v=192), "int4_g32", 2, 64, page=16, max_bytes=1 << 20
    )
    assert [path.name for path in choose.paths(odd, operators=room)] == [choose.OPERATORS]  # no kernel is there for it


def test_a_quick_run_tries_more_where_its_one_kernel_does_not_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of too much shared memory on a small card, or without a compiler on any: operators serve then."""
    tried: list[Any] = []

    def prepare(q: Any, pool: Any, lens: Any, out: Any, config: Any, **given: Any) -> Any:
        tried.append(config)
        raise RuntimeError("out of resource: shared memory")

    monkeypatch.setattr(choose, "triton_runs", lambda device, fmt: True)
    monkeypatch.setattr(choose.launch, "starts_early", lambda q: False)
    monkeypatch.setattr(choose.launch, "prepare", prepare)
    receipt = measured(small(), "bandwidth", "attention", "decode")
    (found,) = named(receipt, "bf16, 1 x 512")[:1]
    assert found.measured is not None
    assert "torch operators; skipped Triton" in found.note
    assert len(set(tried)) > len(attention.PROBE_FORMATS)
    (step,) = named(receipt, "step, bf16 cache, 1 x 256")
    assert step.measured is not None
    assert "torch operators" in step.note
    assert not [r for r in receipt.rows if r.section == "attention" and r.passed is False]


def test_models_too_small_to_say_something_are_not_judged(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = small("smollm2-135m")
    blocks = {
        key: replace(b, mixers=tuple(replace(m, query_heads=1, kv_heads=1, head_dim=16) for m in b.mixers))
        for key, b in spec.blocks.items()
    }  # fmt: skip
    spec = replace(spec, blocks=blocks, hidden_size=64)
    monkeypatch.setattr(ram, "_beside", lambda session, stack: ([1e9] * 3, [9.0] * 3))
    receipt = measured(spec, "correctness", "bandwidth", "decode")
    steps, errors = named(receipt, "float32 step in RAM"), [r for r in receipt.rows if "error of attention" in r.name]
    assert [(r.passed, r.measured) for r in steps] == [(None, 9.0)] * 2
    assert all("calls of operators bind" in r.note for r in steps)
    assert {r.passed for r in errors} == {None}
    assert all("few elements" in r.note for r in errors)
    wide = [r for r in measured(small(), "correctness").rows if "error of attention" in r.name]
    assert {r.passed for r in wide} == {True}


def test_a_layer_that_does_not_fit_is_not_called_another_kind_of_model() -> None:
    session = session_of(small(), megabytes=256)
    session.figures.read_bytes_per_second = MeasuredFigure.of([1e9])
    assert ram.measure(session) == []
    assert session.lacks == [
        f"decode, float32 step, {batch} x {context:,}: one layer does not fit into --max-memory"
        for batch, context in ram.POINTS[::2]
    ]


def test_of_a_pipeline_the_first_stage_is_measured_and_that_is_said() -> None:
    session = session_of(small(), pipeline_parallel_size=2)
    assert session.lacks == ["pipeline: of 2 stages the first is measured"]
    assert session.layout.spec.num_layers == 1
    assert session_of(small()).lacks == []

"""The sections on a CPU: real allocations, real block tables, real arithmetic."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("torch", reason="the probe's extra is not installed")

from kvplan.errors import InputError
from kvplan.probe import blocks, memory, ram, run
from kvplan.probe.device import detect
from kvplan.probe.quantise import expected_error, round_trip
from kvplan.probe.receipt import Row
from kvplan.probe.session import MeasuredFigure, Session
from kvplan.sources import find_model
from kvplan.spec.formats import get_format
from kvplan.units import MIB

from .conftest import H200


def session_of(model: str, engine: str = "vllm", megabytes: int = 64, **settings: Any) -> Session:
    """A quick session on the CPU."""
    request = run.Request(find_model(model), engine, settings, detect("cpu"), megabytes * MIB, quick=True)
    return run.open_session(request, lambda text: None)


def failed(rows: list[Row]) -> list[tuple[str, float | None, float | None]]:
    """Rows that do not agree, but for those that a busy machine moves."""
    return [(r.name, r.predicted, r.measured) for r in rows if r.passed is False and "resident" not in r.name]


@pytest.mark.parametrize(
    "model", ["llama-3.2-1b", "gemma-3-4b", "deepseek-v2-lite", "falcon-h1-7b", "whisper-large-v3"]
)
def test_every_kind_and_format_has_the_predicted_bytes(model: str) -> None:
    rows = memory.measure(session_of(model))
    assert failed(rows) == []
    judged = [r for r in rows if r.passed is not None]
    assert len(judged) >= 8
    assert {r.tolerance for r in judged} <= {0.0, memory.RSS_TOLERANCE}


def test_the_resident_set_grows_by_what_is_written() -> None:
    rows = [r for r in memory.measure(session_of("llama-3.2-1b")) if "resident" in r.name]
    if not rows:
        pytest.skip("this system does not say what is resident")
    for row in rows:  # other threads of this test run may allocate too: the tolerance is wider than the probe's
        assert row.measured == pytest.approx(row.predicted, rel=0.1)


def test_a_wrong_formula_shows() -> None:
    """The same model with one head size off by one element: what is allocated is not what is predicted."""
    session = session_of("llama-3.2-1b")
    layer = session.layout.layers[3]
    wrong = layer._replace(streams=tuple(s._replace(entry_bytes=s.entry_bytes + 2) for s in layer.streams))
    session.layout = session.layout._replace(
        layers=tuple(wrong if x is layer else x for x in session.layout.layers)
    )  # fmt: skip
    assert failed(memory._of_layout(session, "bf16", session.layout))


def test_the_pool_of_an_engine_holds_its_bytes() -> None:
    rows = memory._pool(session_of("llama-3.2-1b", kv_cache_dtype="fp8"))
    assert [r.passed for r in rows if "tensors" in r.name] == [True]
    assert "blocks of 16 tokens" in rows[0].note


def test_block_tables_share_and_copy() -> None:
    session = session_of("llama-3.2-1b")
    rows = {r.name: r for r in blocks.measure(session)}
    assert failed(list(rows.values())) == []
    tables = session.exhibits["blocks"]
    first = tables["shared"][0]
    assert all(table == first for table in tables["shared"])
    whole = tables["prefix"] // tables["block_size"]
    assert all(table[:whole] == first[:whole] for table in tables["diverged"])
    last = [table[whole] for table in tables["diverged"]]
    assert len(set(last)) == len(last)  # after divergence nobody writes where another reads
    assert rows["copy on write: blocks copied"].measured == 3
    assert rows["paged: waste"].measured < rows["contiguous: waste"].measured / 3  # type: ignore[operator]


def test_a_model_without_plain_layers_says_that_no_tables_are_shown() -> None:
    (row,) = blocks.measure(session_of("deepseek-v4-flash"))
    assert (row.measured, row.passed) == (None, None)
    assert "no layer" in row.note


def test_a_write_without_copying_would_be_seen() -> None:
    import torch

    pool = blocks.BlockPool(8, 4, 3, "cpu")
    first: list[int] = []
    texts = [torch.arange(18, dtype=torch.int16).reshape(6, 3), 100 + torch.arange(18, dtype=torch.int16).reshape(6, 3)]
    pool.write(first, 0, texts[0])
    second = pool.share(first)
    pool.users = [min(count, 1) for count in pool.users]  # as if nobody else read these blocks
    pool.write(second, 2, texts[1][2:])
    assert blocks._same("wrong", pool, [first], texts[:1]).passed is False


@pytest.mark.parametrize("name", ["bf16", "fp16", "fp8_e4m3", "fp8_e5m2", "int8_per_token_head", "int4_g32", "q8_0"])
def test_formats_err_as_their_grid_says(name: str) -> None:
    import torch

    fmt = get_format(name)
    rows = torch.randn((512, 4, 128), dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    back = round_trip(fmt, rows)
    error = float((back - rows).norm() / rows.norm())
    assert error == pytest.approx(expected_error(fmt, 4, 128), rel=0.06)


def test_a_step_in_ram_is_predicted_from_its_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ram, "_beside", lambda session, stack: ([0.9e9, 1e9, 1.1e9], [stack.step().sum().item()] * 3))
    session = session_of("smollm2-135m")
    assert ram.measure(session) == []  # nothing says yet how fast memory is read
    session.figures.read_bytes_per_second = MeasuredFigure.of([1e9])
    rows = ram.measure(session)
    points = ram.POINTS[::2]  # a quick run
    assert [r.name for r in rows] == [f"float32 step in RAM, {b} x {c:,}" for b, c in points]
    for row, (batch, context) in zip(rows, points, strict=True):
        layers = int(row.note.split()[0])
        weights = 576 * (576 + 2 * 192 + 3 * 1536) + 576 * 576  # q, k, v, gate, up, down; output
        cache = batch * context * 2 * 3 * 64
        assert row.predicted == pytest.approx(layers * (weights + cache) * 4 / 1e9)
        assert row.predicted * 1e9 <= session.limits.max_bytes / 2
        assert row.measured is not None


def test_a_machine_that_others_use_is_not_judged(monkeypatch: pytest.MonkeyPatch) -> None:
    session = session_of("smollm2-135m")
    session.figures.read_bytes_per_second = MeasuredFigure.of([1e9])
    for steps, passed in (([9.0, 9.1, 9.2], False), ([1.0, 9.0, 20.0], None)):
        monkeypatch.setattr(ram, "_beside", lambda session, stack, steps=steps: ([1e9, 1e9, 1e9], steps))
        rows = ram.measure(session)
        assert [r.passed for r in rows] == [passed] * len(ram.POINTS[::2])
        assert all(("not judged" in r.note) == (passed is None) for r in rows)
    monkeypatch.undo()
    rates, taken = ram._beside(session, SimpleNamespace(step=lambda: None))  # type: ignore[arg-type]
    assert len(rates) == len(taken) >= ram.ROUNDS
    assert min(rates) > 1e8


def test_experts_are_not_run_as_one_dense_ffn() -> None:
    session = session_of("qwen3-30b-a3b", megabytes=256)
    session.figures.read_bytes_per_second = MeasuredFigure.of([1e9])
    (row,) = ram.measure(session)
    assert (row.measured, row.passed) == (None, None)
    assert "dense FFNs" in row.note


def test_sparse_attention_is_held_on_a_cpu_too() -> None:
    """Backends of engines are no matter of the machine that counts the bytes."""
    layout = session_of("deepseek-v3.2").layout
    assert {s.name for layer in layout.layers for s in layer.streams} >= {"latent", "index"}
    device = replace(detect("cpu"), kind="cuda", name="NVIDIA Unheard-of", compute_capability="10.0")
    gpu = run.planner_gpu(device)
    assert (gpu.vendor, gpu.compute_capability) == ("nvidia", "10.0")


def test_limits_of_memory() -> None:
    device = detect("cpu")
    assert run.allowed_bytes(device, None) <= run.CPU_BYTES
    assert run.allowed_bytes(replace(device, kind="cuda", free_bytes=100 << 30), None) == int(0.9 * (100 << 30))
    with pytest.raises(InputError, match="more than"):
        run.allowed_bytes(device, device.free_bytes + 1)
    with pytest.raises(InputError, match="too little"):
        run.allowed_bytes(device, MIB)


def test_a_busy_card_is_refused(fake_nvml: Any) -> None:
    from kvplan.probe import nvml

    def card(**changes: Any) -> Any:
        fake_nvml({**H200, **changes})
        return replace(detect("cpu"), kind="cuda", nvml=nvml.all_facts()[0])

    run.refuse_busy(card())
    with pytest.raises(InputError, match=r"1 other process holds 3 GiB"):
        run.refuse_busy(card(used=3 << 30, processes=((1, 3 << 30),)))
    with pytest.raises(InputError, match="busy"):
        run.refuse_busy(card(used=3 << 30))  # a container hides who
    run.refuse_busy(card(used=10 << 20, processes=((1, 10 << 20),)))


def test_a_card_without_nvml_is_busy_by_what_torch_calls_free(fake_nvml: Any) -> None:
    from kvplan.probe import nvml

    card = replace(detect("cpu"), kind="rocm", name="AMD Instinct MI300X", total_bytes=24 << 30, free_bytes=2 << 30)
    with pytest.raises(InputError, match=r"AMD Instinct MI300X is busy: somebody holds 22 GiB"):
        run.refuse_busy(card)
    run.refuse_busy(replace(card, free_bytes=(24 << 30) - (600 << 20)))  # its own context
    run.refuse_busy(replace(card, shared_memory=True))  # of the machine's memory anybody may hold some
    run.refuse_busy(replace(card, kind="cpu"))
    fake_nvml({**H200, "used": 60 << 30, "processes": ((1, 60 << 30),)})
    whole = nvml.all_facts()[0]
    part = replace(card, kind="cuda", nvml=whole._replace(mig=True), free_bytes=(24 << 30) - (600 << 20))
    run.refuse_busy(part)  # the processes work on other parts of the card
    with pytest.raises(InputError, match="holds 22 GiB"):
        run.refuse_busy(replace(part, free_bytes=2 << 30))


class Cards:
    """As much of ``torch.cuda`` as says which card is current."""

    def __init__(self) -> None:
        self.now = 0

    @contextmanager
    def device(self, index: int) -> Iterator[None]:
        before, self.now = self.now, index
        try:
            yield
        finally:
            self.now = before


@pytest.mark.parametrize("trouble", [None, KeyboardInterrupt])
def test_all_of_a_run_is_on_its_card(trouble: type[BaseException] | None, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    from kvplan.probe import facts

    cards, seen = Cards(), []

    def measure(session: Session) -> list[Row]:
        seen.append(cards.now)
        if trouble is not None:
            raise trouble
        return []

    monkeypatch.setattr(torch.cuda, "device", cards.device)
    monkeypatch.setattr(facts, "measure", measure)
    monkeypatch.setattr(memory, "measure", measure)
    device = replace(detect("cpu"), kind="cuda", index=1, free_bytes=8 << 30, total_bytes=8 << 30)
    monkeypatch.setattr(type(device), "release", lambda self: seen.append(cards.now))
    request = run.Request(find_model("llama-3.2-1b"), "vllm", {}, device, quick=True, sections=("device", "memory"))
    with nullcontext() if trouble is None else pytest.raises(trouble):
        run.validate(request)
    assert seen == [1] * (4 if trouble is None else 2)
    assert cards.now == 0


def test_out_of_memory_in_a_section_is_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    def measure(session: Session) -> list[Row]:
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 1 bytes")

    monkeypatch.setattr(blocks, "measure", measure)
    request = run.Request(
        find_model("llama-3.2-1b"), "vllm", {}, detect("cpu"), 128 * MIB, quick=True, sections=("blocks", "device")
    )
    receipt = run.validate(request)
    assert [r.name for r in receipt.rows if r.section == "blocks"] == ["out of memory"]
    assert not receipt.complete
    assert any(r.section == "device" for r in receipt.rows)


def test_a_section_that_fails_is_a_row_and_the_others_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    def measure(session: Session) -> list[Row]:
        raise RuntimeError("CUDA error: an illegal memory access was encountered\nsecond line")

    monkeypatch.setattr(blocks, "measure", measure)
    request = run.Request(
        find_model("llama-3.2-1b"), "vllm", {}, detect("cpu"), 128 * MIB, quick=True, sections=("blocks", "device")
    )
    receipt = run.validate(request)
    (broken,) = (r for r in receipt.rows if r.section == "blocks")
    assert (broken.name, broken.passed) == ("blocks failed", False)
    assert broken.note == "RuntimeError: CUDA error: an illegal memory access was encountered; --debug shows where"
    assert (receipt.complete, receipt.agrees) == (False, False)
    assert any(r.section == "device" for r in receipt.rows)
    with pytest.raises(RuntimeError, match="illegal"):
        run.validate(request._replace(debug=True))


def test_allocations_that_do_not_fit_are_not_agreement(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "_fill", lambda device, shapes, tensors: "out of memory after 0 of 1 tensors")
    request = run.Request(
        find_model("llama-3.2-1b"), "vllm", {}, detect("cpu"), 128 * MIB, quick=True, sections=("memory",)
    )
    receipt = run.validate(request)
    assert all(r.measured is None for r in receipt.rows)
    assert (receipt.complete, receipt.agrees) == (False, None)
    assert any("out of memory after 0 of 1 tensors" in text for text in receipt.warnings)
    assert receipt.to_dict()["verdict"]["reason"] == "no prediction was judged; not all was measured"


def test_a_shortened_grid_is_not_complete() -> None:
    session = session_of("opt-6.7b", max_model_len=2048)  # 32 KV heads: 16 KiB a token
    from kvplan.probe import attention

    timed = attention.time_format(session, attention.main_shape(session), "bf16", until=0.0)  # type: ignore[arg-type]
    assert 0 < len(timed) < len(attention.CPU_QUICK)
    assert session.lacks == [f"attention, bf16: {4 - len(timed)} of 4 shapes do not fit into --max-memory"]


def test_no_section_holds_more_than_is_allowed() -> None:
    """In a process of its own, whose largest resident set is read: a head and a layer of this model are 1.4 GiB."""
    code = """
import resource
import time
from kvplan.probe import attention, correctness, prefill, run, sequences, step
from kvplan.probe.device import detect
from kvplan.sources import find_model
request = run.Request(find_model("llama-3.1-8b"), "vllm", {}, detect("cpu"), 64 << 20, quick=True)
session = run.open_session(request, lambda text: None)
session.limits = session.limits._replace(deadline=time.monotonic() + 8)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
rows = [r for module in (correctness, sequences, attention, step, prefill) for r in module.measure(session)]
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) >> 10)
print(sum("does not fit into --max-memory" in r.note for r in rows))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    grown, refused = map(int, done.stdout.split())
    assert grown < 64 + 128  # MiB; what torch loads at the first use of some operators comes on top
    assert refused == 2  # the step and the prompt


def test_a_receipt_counts_other_processes_and_does_not_name_them(fake_nvml: Any) -> None:
    from kvplan.probe import nvml
    from kvplan.probe.facts import device_payload

    fake_nvml({**H200, "processes": ((4711, 3 << 30), (4712, None))})
    device = replace(detect("cpu"), kind="cuda", nvml=nvml.all_facts()[0])
    plain = device_payload(device)["nvml"]
    assert plain["other_processes"] == 2
    assert not {"uuid", "processes"} & set(plain)
    assert "4711" not in str(plain)


def test_an_interruption_frees_and_gives_back_what_was_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    def measure(session: Session) -> list[Row]:
        raise KeyboardInterrupt

    released: list[bool] = []
    device_class = type(detect("cpu"))
    monkeypatch.setattr(blocks, "measure", measure)
    monkeypatch.setattr(device_class, "release", lambda self: released.append(True))
    request = run.Request(
        find_model("llama-3.2-1b"), "vllm", {}, detect("cpu"), 128 * MIB, quick=True, sections=("device", "blocks")
    )
    so_far: list[run.Receipt] = []
    with pytest.raises(KeyboardInterrupt):
        run.validate(request, stopped=so_far.append)
    assert [r.section for r in so_far[0].rows] == ["device", "device"]
    assert so_far[0].complete is False
    assert released


def test_once_the_time_is_up_nothing_long_is_begun(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a machine that others keep busy a quick run still ends, and says what it left out."""
    monkeypatch.setattr(run, "QUICK_SECONDS", 0.0)
    request = run.Request(
        find_model("llama-3.2-1b"), "vllm", {}, detect("cpu"), 128 << 20, quick=True, sections=("decode", "prefill")
    )
    receipt = run.validate(request)
    assert [(r.name, r.measured) for r in receipt.rows] == [
        ("decode in RAM", None), ("decode step", None), ("prompt", None),
    ]  # fmt: skip
    assert not receipt.complete
    assert "the time was up" in receipt.warnings[0]

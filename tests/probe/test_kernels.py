"""Decode attention on a CPU: pages, formats, torch operators, and the Triton kernels in Triton's interpreter."""

from __future__ import annotations

import math
import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("torch", reason="the probe's extra is not installed")

import torch

from kvplan.errors import UnsupportedError
from kvplan.probe.device import detect
from kvplan.probe.kernels import choose, launch, reference, store
from kvplan.probe.kernels.store import HeadShape
from kvplan.spec.formats import get_format

GQA = HeadShape(8, 2, 128, 128)
LATENT = HeadShape(16, 1, 576, 512, True, 192)
LENGTHS = (100, 1, 190)


def problem(shape: HeadShape, fmt: str, page: int, *, transposed: bool | None = None):
    """(pool, table, lens, q) of ragged sequences over pages in random order."""
    pool = store.allocate(shape, fmt, 4 * len(LENGTHS) * 64 // page, page, "cpu", transposed=transposed)
    store.fill_random(pool, 1)
    table = store.random_tables(pool, 1, len(LENGTHS), max(LENGTHS))[0]
    lens = torch.tensor(LENGTHS, dtype=torch.int32)
    q = torch.randn((len(LENGTHS), shape.query_heads, shape.head_dim), generator=torch.Generator().manual_seed(2))
    return pool, table, lens, q.bfloat16()


@pytest.mark.parametrize("fmt", store.FORMATS)
@pytest.mark.parametrize("shape", [GQA, HeadShape(4, 4, 64, 128), LATENT])
def test_a_token_takes_the_planner_s_bytes(fmt: str, shape: HeadShape) -> None:
    planned = get_format(fmt, use="cache")
    if shape.latent:
        expected = planned.row_bytes(1, shape.head_dim)
    else:
        expected = sum(planned.pair_bytes(shape.kv_heads, shape.head_dim, shape.head_dim_v))
    assert store.row_bytes(shape, fmt) == expected
    pool = store.allocate(shape, fmt, 3, 16, "cpu")
    assert pool.num_bytes == 3 * 16 * expected


@pytest.mark.parametrize(
    ("fmt", "bound"),
    [("bf16", 2**-8), ("fp16", 2**-11), ("fp8_e4m3", 2**-4), ("int8_per_token_head", 0.02), ("int4_g32", 0.15)],
)
def test_what_is_stored_comes_back(fmt: str, bound: float) -> None:
    values = torch.randn((5, 2, 16, 128), generator=torch.Generator().manual_seed(0))
    packed, scale = store.encode(values, fmt)
    back = store.decode(packed, scale, fmt, torch.float64)
    error = float((back - values).norm() / values.norm())
    assert error < bound
    assert error > bound / 20  # the format does lose something: nothing wider was stored


def test_int4_keeps_every_code_in_its_place() -> None:
    """All 15 codes, each group with a scale of its own: the element order and the nibble order are exact."""
    codes = (torch.arange(4 * 128) * 7 % 15 - 7).view(4, 128).float()
    codes[:, ::32] = 7  # each group's largest
    scales = torch.tensor([0.5, 1.0, 2.0, 4.0]).repeat_interleave(32)
    packed, scale = store.encode(codes * scales, "int4_g32")
    assert packed.shape == (4, 64)
    assert scale is not None
    assert scale.shape == (4, 4)
    assert torch.equal(store.decode(packed, scale, "int4_g32", torch.float64), (codes * scales).double())


@pytest.mark.parametrize("fmt", store.FORMATS)
def test_pages_turned_or_not_hold_the_same(fmt: str) -> None:
    found = []
    for turned in (False, True):
        pool, table, _, _ = problem(GQA, fmt, 16, transposed=turned)
        found.append(store.gather(pool, table, torch.float64))
    (k, v), (k_turned, v_turned) = found
    assert k.shape == (3, 2, 192, 128)
    assert torch.equal(k, k_turned)
    assert torch.equal(v, v_turned)
    assert 0.9 < float(v.std()) < 1.1


def test_a_table_names_pages_by_position() -> None:
    pool = store.allocate(HeadShape(1, 1, 64, 64), "fp16", 4, 2, "cpu")
    pool.k.copy_(torch.arange(8).view(4, 1, 2, 1).expand_as(pool.k))
    k, _ = store.gather(pool, torch.tensor([2, 0, 3]), torch.float64)
    assert k[0, :, 0].tolist() == [4, 5, 0, 1, 6, 7]


def test_attention_by_hand() -> None:
    """Two tokens with scores 0 and ln 3: weights 1/4 and 3/4."""
    q = torch.tensor([[1.0]], dtype=torch.float64)
    k = torch.tensor([[[0.0], [math.log(3)]]], dtype=torch.float64)
    v = torch.tensor([[[4.0], [8.0]]], dtype=torch.float64)
    assert reference.attend(q, k, v, 1.0).item() == pytest.approx(7.0)


@pytest.mark.parametrize("fmt", store.FORMATS)
@pytest.mark.parametrize("shape", [GQA, HeadShape(4, 4, 64, 64), HeadShape(6, 1, 128, 64), LATENT])
def test_operators_agree_with_float64(fmt: str, shape: HeadShape) -> None:
    pool, table, lens, q = problem(shape, fmt, 16)
    out = torch.full((3, shape.query_heads, shape.head_dim_v), math.nan, dtype=torch.bfloat16)
    reference.paged_operators(q, pool, table, lens, out)
    assert reference.worst_error(out, reference.truth(q, pool, table, lens)) < choose.TOLERANCE


@pytest.mark.parametrize("fmt", store.FORMATS)
@pytest.mark.parametrize("shape", [GQA, LATENT])
@pytest.mark.parametrize("chunk", [1, 1 << 13, 1 << 15])
def test_chunks_of_any_size_agree_with_float64(
    fmt: str, shape: HeadShape, chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A page at a time, some pages, or some sequences: those that end early read nothing of later chunks."""
    pool, table, lens, q = problem(shape, fmt, 16)
    monkeypatch.setattr(reference, "_CHUNK_ELEMENTS", chunk)
    out = torch.full((3, shape.query_heads, shape.head_dim_v), math.nan, dtype=torch.bfloat16)
    reference.paged_operators(q, pool, table, lens, out)
    expected = reference.truth(q, pool, table, lens)
    assert reference.worst_error(out, expected) < choose.TOLERANCE
    monkeypatch.setattr(reference, "_TRUTH_ELEMENTS", 1)  # one KV head at a time
    assert torch.allclose(reference.truth(q, pool, table, lens), expected, rtol=1e-12, atol=1e-12)


def test_pages_of_a_large_pool_repeat_and_differ() -> None:
    pool = store.allocate(GQA, "int8_per_token_head", 40, 16, "cpu", transposed=False)
    store.fill_random(pool, 1)
    assert pool.v is not None
    assert pool.k_scale is not None
    distinct = len({bytes(page.numpy().tobytes()) for page in pool.k})
    assert 8 <= distinct <= 40
    assert bool((pool.k_scale > 0).all())
    assert bool(pool.v.ne(0).flatten(1).any(1).all())


def test_the_worst_sequence_counts() -> None:
    """A long sequence with small outputs is wrong by 10 %: a norm over the batch would show 0.1 %."""
    expected = torch.stack([torch.full((4,), 100.0), torch.full((4,), 1.0)])
    found = expected.clone()
    found[1] *= 1.1
    assert reference.worst_error(found, expected) == pytest.approx(0.1)
    assert math.isnan(reference.worst_error(torch.full_like(expected, math.nan), expected))


def test_wrong_candidates_are_rejected_by_name() -> None:
    device = detect("cpu")
    work = choose.workload(device, GQA, "bf16", 2, 64, page=16, max_bytes=1 << 20)

    def wrong(index: int) -> None:
        reference.paged_operators(work.q, work.pool, work.tables[index], work.lens - 1, work.out)

    def lazy(index: int) -> None:
        work.out[0] = 0.0  # leaves the second sequence unwritten

    candidates = [choose.Path("one token short", wrong, True), choose.Path("lazy", lazy, True)]
    assert choose.pick(work, iter(candidates), samples=2) is None
    picked = choose.pick(work, [*candidates, *choose.paths(work)], samples=3)
    assert picked is not None
    assert picked.path.name == "torch operators"
    assert len(picked.seconds) == 3
    assert [text.split(":")[0] for text in picked.rejected] == ["one token short", "lazy"]


def test_what_fails_to_launch_record_or_time_is_skipped_and_named() -> None:
    """An early start that this Triton does not know, a graph that cannot be recorded: no crash, the next best."""
    work = choose.workload(detect("cpu"), GQA, "bf16", 2, 64, page=16, max_bytes=1 << 20)
    (right,) = choose.paths(work)

    def failing(after: int) -> choose.Path:
        calls: list[int] = []

        def run(index: int) -> None:
            calls.append(index)
            if len(calls) > after:
                raise KeyError("launch_pdl")
            right.run(index)

        return choose.Path(f"fails after {after}", run, True)

    candidates = [failing(0), failing(1), right]
    picked = choose.pick(work, candidates, samples=3)
    assert picked is not None
    assert picked.path is right
    assert picked.rejected == ("fails after 0: KeyError", "fails after 1: KeyError")
    assert choose.pick(work, [failing(0), failing(1)], samples=3) is None
    assert work.rejected == ("fails after 0: KeyError", "fails after 1: KeyError")


def test_a_kernel_that_cannot_be_prepared_is_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    def prepare(*args: object, **given: object) -> None:
        raise ImportError("no such intrinsic")

    monkeypatch.setattr(choose, "triton_runs", lambda device, fmt: True)
    monkeypatch.setattr(choose.launch, "starts_early", lambda q: True)
    monkeypatch.setattr(choose.launch, "prepare", prepare)
    work = choose.workload(detect("cpu"), GQA, "bf16", 2, 64, page=16, max_bytes=1 << 20)
    picked = choose.pick(work, choose.paths(work), samples=3)
    assert picked is not None
    assert picked.path.name == "torch operators"
    assert picked.rejected
    assert all(text.startswith("Triton, ") and text.endswith(": ImportError") for text in picked.rejected)


def test_contiguous_attention_stands_beside() -> None:
    work = choose.workload(detect("cpu"), GQA, "bf16", 2, 48, page=16, max_bytes=1 << 20)
    path = choose.contiguous(work, 1 << 30)
    assert path is not None
    assert not path.paged
    assert choose.pick(work, [path], samples=2) is not None
    assert choose.contiguous(work, 1) is None


def test_pages_of_unknown_formats_are_refused() -> None:
    with pytest.raises(UnsupportedError, match="nvfp4"):
        store.allocate(GQA, "nvfp4", 1, 16, "cpu")
    with pytest.raises(UnsupportedError, match="multiple of 64"):
        store.allocate(HeadShape(4, 4, 96, 96), "int4_g32", 1, 16, "cpu")


def test_tables_share_no_page() -> None:
    pool = store.allocate(HeadShape(1, 1, 16, 16), "fp16", 24, 16, "cpu")
    tables = store.random_tables(pool, 3, 2, 50)
    assert tables.shape == (3, 2, 4)
    assert len(set(tables.flatten().tolist())) == 24
    with pytest.raises(ValueError, match="24"):
        store.random_tables(pool, 4, 2, 50)


@given(st.integers(1, 4096), st.integers(1, 4096), st.integers(1, 2000))
def test_splits_fill_the_device_and_none_is_empty(programs: int, tiles: int, slots: int) -> None:
    splits = launch.splits_for(programs, tiles, slots)
    each = -(-tiles // splits)
    assert 1 <= splits <= tiles
    assert (splits - 1) * each < tiles  # the last one has work
    assert splits == 1 or programs * splits <= slots


_INTERPRETED = """
import math, torch
from kvplan.probe.kernels import choose, launch, reference, store
from kvplan.probe.kernels.launch import Config
from kvplan.probe.kernels.store import HeadShape
from tests_kernels import problem
gqa, latent = HeadShape(8, 2, 128, 128), HeadShape(16, 1, 576, 512, True, 192)
for fmt, shape, page, config, slots in (
    ("fp16", gqa, 64, Config(False, 64, 4, 3, 4), 1), ("fp16", gqa, 16, Config(True, 64, 4, 3, 4), 40),
    ("fp16", HeadShape(6, 2, 96, 80), 64, Config(False, 32, 4, 3, 4), 40),
    ("fp8_e4m3", gqa, 64, Config(True, 64, 4, 3, 4), 40), ("fp8_e4m3", latent, 64, Config(False, 64, 4, 3, 4), 20),
    ("fp8_e4m3", gqa, 64, Config(True, 64, 2, 2, 4, early=True), 1),
    ("int8_per_token_head", gqa, 16, Config(True, 64, 4, 3, 4), 1),
    ("int8_per_token_head", gqa, 64, Config(False, 64, 4, 3, 4), 40),
    ("int8_per_token_head", latent, 64, Config(False, 64, 4, 3, 4), 1),
    ("int4_g32", gqa, 64, Config(True, 64, 4, 3, 4), 40), ("int4_g32", gqa, 16, Config(False, 64, 4, 3, 4, True), 1),
    ("int4_g32", HeadShape(4, 1, 64, 64), 64, Config(True, 64, 4, 3, 4, True), 40),
    ("int4_g32", HeadShape(4, 2, 256, 256), 64, Config(True, 32, 1, 3, 4), 40),
    ("int4_g32", HeadShape(4, 2, 256, 256), 16, Config(False, 32, 1, 3, 4, True), 1),
    ("int4_g32", latent, 64, Config(False, 32, 4, 2, 4), 20),
):
    pool, table, lens, q = problem(shape, fmt, page)
    q = q.half()
    out = torch.full((3, shape.query_heads, shape.head_dim_v), math.nan, dtype=torch.float16)
    launch.prepare(q, pool, lens, out, config, longest=190, slots=slots)(table)
    error = reference.worst_error(out, reference.truth(q, pool, table, lens))
    assert error < choose.TOLERANCE, (fmt, shape, page, config, slots, error)
print("all right")
"""


def test_triton_kernels_in_the_interpreter(tmp_path: Path) -> None:
    """The kernels' logic without a GPU; the interpreter is chosen when Triton is imported, so in another process."""
    if find_spec("triton") is None:
        pytest.skip("Triton is not installed")
    import numpy

    if tuple(map(int, numpy.__version__.split(".")[:2])) >= (2, 4):
        pytest.skip("Triton 3.6's interpreter does not run with NumPy 2.4")
    (tmp_path / "tests_kernels.py").write_text(Path(__file__).read_text(encoding="utf-8"), encoding="utf-8")
    paths = os.pathsep.join([str(tmp_path), str(Path(__file__).parents[2])])
    done = subprocess.run(
        [sys.executable, "-c", _INTERPRETED], capture_output=True, text=True, timeout=300, check=False,
        env={**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": paths},
    )  # fmt: skip
    assert done.stdout.strip() == "all right", done.stderr[-2000:]


def test_an_early_start_is_for_cards_that_can(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compute capability 9 and later; elsewhere the plain configurations stay, and none twice."""
    pytest.importorskip("triton", reason="Triton is not installed")
    work = choose.workload(detect("cpu"), GQA, "fp8_e4m3", 2, 64, page=64, max_bytes=1 << 20)
    monkeypatch.setattr(choose, "triton_runs", lambda device, fmt: True)
    assert not launch.starts_early(work.q)
    plain = [path.name for path in choose.paths(work) if path.name.startswith("Triton")]
    assert plain
    assert not [name for name in plain if "early start" in name]
    monkeypatch.setattr(launch, "starts_early", lambda q: True)
    found = [path.name for path in choose.paths(work) if path.name.startswith("Triton")]
    assert [name for name in found if "early start" not in name] == plain
    assert "Triton, tokens x heads, tile 64, 2 warps, 2 stages, early start" in found


@pytest.mark.parametrize("early", [False, True])
def test_an_early_start_reads_no_query_or_page_before_the_kernel_before_is_done(
    early: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As compiled for Hopper, which takes no GPU: the wait stands between the length and everything else."""
    pytest.importorskip("triton", reason="Triton is not installed")
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource, compile

    from kvplan.probe.kernels.triton_decode import tokens_as_rows

    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    fixed = dict(
        FORMAT=1, TRANSPOSED=True, HEADS=8, GROUP=4, GROUP_PAD=8, D=128, D_PAD=128, DV=128, DV_PAD=128, PAGE=64, BN=64,
        SPLIT=False, ASM=True, EARLY=early,
    )  # fmt: skip
    kinds = {"q_ptr": "*bf16", "out_ptr": "*bf16", "part_ptr": "*bf16", "lse_ptr": "*bf16", "table_ptr": "*i32",
             "lens_ptr": "*i32", "k_ptr": "*fp8e4nv", "v_ptr": "*fp8e4nv", "ks_ptr": "*fp8e4nv", "vs_ptr": "*fp8e4nv",
             "scale": "fp32", "v_scale": "fp32"}  # fmt: skip
    names = tokens_as_rows.arg_names
    signature = {name: "constexpr" if name in fixed else kinds.get(name, "i32") for name in names}
    aligned = {(i,): [["tt.divisibility", 16]] for i, name in enumerate(names) if signature[name].startswith("*")}
    built = compile(
        ASTSource(tokens_as_rows, signature, fixed, aligned), target=GPUTarget("cuda", 90, 32),
        options={"num_warps": 2, "num_stages": 2, **({"launch_pdl": True} if early else {})},
    )  # fmt: skip
    marks = re.findall(r"griddepcontrol\.\w+|ld\.global|cp\.async\.c[ag]|st\.global", built.asm["ptx"])
    if not early:
        assert not [mark for mark in marks if mark.startswith("grid")]
        return
    assert marks.count("griddepcontrol.launch_dependents") == marks.count("griddepcontrol.wait") == 1
    before, after = marks[: marks.index("griddepcontrol.wait")], marks[marks.index("griddepcontrol.wait") :]
    assert before == ["griddepcontrol.launch_dependents", "ld.global"]
    assert {"ld.global", "cp.async.cg", "st.global"} <= set(after)


GPU_CASES = [
    (fmt, shape, page)
    for fmt in store.FORMATS
    for shape in (GQA, HeadShape(32, 8, 128, 128), HeadShape(64, 8, 64, 64), HeadShape(32, 1, 128, 128),
                  HeadShape(32, 32, 128, 128), HeadShape(16, 8, 256, 256), HeadShape(12, 4, 96, 80), LATENT,
                  HeadShape(128, 1, 576, 512, True, 192))
    for page in (16, 64)
    if not (fmt == "int4_g32" and shape.head_dim % 64) and (page == 64 or shape.query_heads == 8)
]  # fmt: skip


@pytest.mark.gpu
@pytest.mark.parametrize(("fmt", "shape", "page"), GPU_CASES)
def test_every_candidate_agrees_with_float64(fmt: str, shape: HeadShape, page: int) -> None:
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    device, lengths = detect("cuda"), (777, 1, 2048, 130)
    pool = store.allocate(shape, fmt, 4 * 2048 // page, page, "cuda", transposed=choose.transposed(device, fmt))
    store.fill_random(pool, 1)
    work = choose.over_pool(device, pool, 1, 4, 2048)
    work.lens.copy_(torch.tensor(lengths, dtype=torch.int32))
    truth = reference.truth(work.q, pool, work.tables[0], work.lens)
    rows = torch.arange(4, device="cuda")
    for path in choose.paths(work, several=shape.query_heads == 32):
        assert choose.error_of(path, work, truth, rows) < choose.TOLERANCE, path.name

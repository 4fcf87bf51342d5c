"""Sweeps and comparisons as people type them: every format, whole files, and what makes no sense."""

from __future__ import annotations

import csv
import io
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from kvplan import plan
from kvplan.cli.sweep import MAX_ROWS
from kvplan.engines import distinct

from .conftest import Run, one_line_error
from .test_startup import HEAVY, loaded

SWEEP = ("sweep", "llama-3.1-8b", "--gpu", "h100-sxm")
GRID = ("--vary", "max-model-len=1K..256K*4", "--vary", "tp=1,2,3")


def test_csv_has_a_column_for_each_axis_and_figure_and_a_row_for_each_plan(run: Run) -> None:
    done = run(*SWEEP, *GRID, "--format", "csv")
    assert done.status == 0
    rows = list(csv.DictReader(io.StringIO(done.out)))
    assert len(rows) == 5 * 3
    assert list(rows[0])[:2] == ["max_model_len", "tensor_parallel_size"]
    assert list(rows[0])[-1] == "refused"
    for row in rows:
        tp, length = int(row["tensor_parallel_size"]), int(row["max_model_len"])
        if tp == 3 or length > 131_072:
            assert row["refused"]
            assert row["capacity.num_blocks"] == row["verdict.fits"] == ""
            continue
        expected = plan("llama-3.1-8b", gpu="h100-sxm", max_model_len=length, tensor_parallel_size=tp)
        assert expected.capacity is not None
        assert row["refused"] == ""
        assert int(row["capacity.num_blocks"]) == expected.capacity.num_blocks
        assert float(row["capacity.max_concurrency"]) == expected.capacity.max_concurrency
        assert row["verdict.fits"] == ("true" if expected.verdict.fits else "false")
        assert int(row["kv.bytes_per_sequence"]) == expected.kv.bytes_per_sequence
    assert "refused: 7 of 15 plans" in done.err


def test_engines_of_a_list_are_an_axis(run: Run) -> None:
    typed = json.loads(run(*SWEEP, "--engine", "vllm,sglang", "--vary", "tp=1,2", "--json").out)
    varied = json.loads(run(*SWEEP, "--vary", "engine=vllm,sglang", "--vary", "tp=1,2", "--json").out)
    assert typed == varied
    assert not any(row["refused"] for row in typed["rows"])
    alone = run("compare", "llama-3.1-8b", "--gpu", "h100-sxm", "--engine", "all", "--json")
    assert len(json.loads(alone.out)["rows"]) == len(distinct())
    message, _ = one_line_error(run(*SWEEP, "--engine", "vllm,sglang", "--vary", "engine=mlx"))
    assert "engine is varied twice" in message


def test_formats_say_the_same(run: Run, tmp_path: Path) -> None:
    words = (*SWEEP, *GRID, "--figure", "capacity", "--figure", "verdict")
    rows = list(csv.DictReader(io.StringIO(run(*words, "--format", "csv").out)))
    lines = [json.loads(line) for line in run(*words, "--format", "jsonl").out.splitlines()]
    whole = json.loads(run(*words, "--json").out)
    assert whole["schema"] == "kvplan.sweep/1"
    assert whole["plans"] == len(rows) == len(lines)
    assert whole["rows"] == lines
    assert whole["axes"] == {"max_model_len": [1024, 4096, 16384, 65536, 262144], "tensor_parallel_size": [1, 2, 3]}
    assert whole["figures"] == list(lines[0])[2:-1]
    for row, line in zip(rows, lines, strict=True):
        assert list(row) == list(line)
        for name, value in line.items():
            if value is None:
                assert row[name] == ""
            elif isinstance(value, bool):
                assert row[name] == str(value).lower()
            else:
                assert type(value)(row[name]) == value
    path = tmp_path / "grid.jsonl"
    assert run(*words, "-o", str(path)).status == 0
    assert [json.loads(line) for line in path.read_text().splitlines()] == lines
    assert os.listdir(tmp_path) == ["grid.jsonl"]


def test_reasons_with_commas_and_quotes_stay_one_cell(run: Run, tmp_path: Path) -> None:
    done = run(*SWEEP, "--vary", "max-model-len=1K,1000000", "--format", "csv")
    rows = list(csv.DictReader(io.StringIO(done.out)))
    assert "refuses 1,000,000 tokens" in rows[1]["refused"]
    assert None not in rows[1]


def test_a_table_draws_rows_and_says_what_it_leaves_out(run: Run) -> None:
    done = run(*SWEEP, "--vary", "concurrency=1..1000", "--format", "text")
    assert done.status == 0
    assert f"{1000 - MAX_ROWS} more plans" in done.out
    assert len(done.out.splitlines()) == MAX_ROWS + 4
    drawn = run(*SWEEP, *GRID, "--format", "table").out
    assert "437.28" in drawn  # requests of 1,024 tokens
    assert "columns have no room for" in drawn
    markdown = run(*SWEEP, *GRID, "--format", "markdown").out
    assert markdown.count("|") > 15 * 5


@pytest.mark.parametrize("color", ["never", "always"])
def test_one_figure_over_two_axes_is_a_heat_map(run: Run, color: str) -> None:
    done = run(*SWEEP, *GRID, "--figure", "max_concurrency", "--format", "text", "--color", color)
    lines = done.out.splitlines()
    assert "max concurrency" in lines[0]
    assert lines[2].split()[-3:] == ["1", "2", "3"]
    for text in ("437.28", "987.94", "6.83"):
        assert text in done.out
    assert ("\x1b[48;5;" in done.out) == (color == "always")
    assert "7 refused" in lines[-1]


def test_a_heat_map_fits_the_terminal(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    words = (*SWEEP, "--vary", "prompt-tokens=1K,2K", "--vary", "concurrency=1..60", "--figure", "requests")
    monkeypatch.setenv("COLUMNS", "70")
    drawn = run(*words, "--format", "table", "--color", "never")
    assert max(map(len, drawn.out.splitlines())) <= 70
    assert "of 60 columns left out" in drawn.out


def test_without_a_gpu_the_caches_own_figures(run: Run) -> None:
    rows = list(csv.DictReader(io.StringIO(run("sweep", "deepseek-v3", "--vary", "tp=1,8", "--format", "csv").out)))
    assert [r["kv.bytes_per_sequence"] for r in rows] == [rows[0]["kv.bytes_per_sequence"]] * 2
    assert "capacity.num_blocks" not in rows[0]


def test_models_gpus_and_engines_are_axes(run: Run) -> None:
    done = run(
        "sweep", "llama-3.1-8b", "--vary", "model=llama-3.1-8b,qwen3-32b", "--vary", "gpu=h100-sxm,h200-sxm",
        "--vary", "engine=vllm,generic", "--figure", "num_blocks", "--figure", "memory.budget_bytes", "--format", "csv",
    )  # fmt: skip
    rows = list(csv.DictReader(io.StringIO(done.out)))
    assert len(rows) == 8
    assert [r["capacity.num_blocks"] == "" for r in rows] == [False, True] * 4
    assert len({r["memory.budget_bytes"] for r in rows}) == 4


def test_a_command_line_can_be_varied(run: Run) -> None:
    line = "vllm serve meta-llama/Llama-3.1-8B-Instruct --max-model-len 8K --tensor-parallel-size 2"
    done = run("sweep", line, "--gpu", "h100-sxm", "--vary", "tp=1,2", "--figure", "bytes_per_sequence", "--json")
    rows = json.loads(done.out)["rows"]
    assert [r["kv.bytes_per_sequence"] for r in rows] == [131_072 * 8192] * 2


@pytest.mark.parametrize(
    ("words", "message", "hint"),
    [
        ((), "nothing is varied", "--vary concurrency"),
        (("--vary", "max-modl-len=1,2"), "unknown flag to vary 'max-modl-len'", "max-model-len"),
        (("--vary", "tp=1,2", "-tp", "4"), "fixed by --tensor-parallel-size too", "leave out"),
        (("--vary", "tp="), "an empty value", ""),
        (("--vary", "gpu=h100-sxm"), "fixed by --gpu too", "leave out"),
        (("--vary", "concurrency=1..1000000", "--vary", "prompt-tokens=1..1m"), "1,000,000,000,000 points", "at most"),
        (("--vary", "tp=1,2", "--figure", "blokcs"), "unknown figure 'blokcs'", "docs/sweep.md"),
        (("--vary", "kv-cache-dtype=fp8,fp9"), "unknown cache format 'fp9'", "kvplan formats"),
        (("--vary", "model=llama-3.1-8c"), "unknown model", "llama-3.1-8b"),
        (("--vary", "tp=1,2", "--format", "parquet"), "parquet", ""),
    ],
)
def test_what_makes_no_sense_is_one_line(run: Run, words: tuple[str, ...], message: str, hint: str) -> None:
    said, advised = one_line_error(run(*SWEEP, *words))
    assert message in said.replace("Parquet", "parquet")
    assert hint in advised


def test_a_sweep_of_refusals_alone_is_no_answer(run: Run) -> None:
    done = run(*SWEEP, "--vary", "tp=3,5", "--format", "csv")
    assert done.status == 2
    assert len(done.out.splitlines()) == 3
    assert "every plan is refused" in done.err
    assert "cannot be divided" in done.err


@pytest.mark.parametrize("suffix", ["csv", "json", "md", "html"])
def test_a_file_of_refusals_alone_is_not_written(run: Run, tmp_path: Path, suffix: str) -> None:
    done = run(*SWEEP, "--vary", "tp=3,5", "-o", str(tmp_path / f"grid.{suffix}"))
    assert done.status == 2
    assert "every plan is refused" in one_line_error(done)[0]
    assert list(tmp_path.iterdir()) == []


def test_a_table_whose_first_rows_are_refused_is_an_answer(run: Run) -> None:
    done = run(*SWEEP, "--vary", "tp=3,1", "--vary", "concurrency=1..1000", "--format", "text")
    assert done.status == 0
    assert f"refused: {MAX_ROWS} of the first {MAX_ROWS} plans" in done.err


def test_hostile_values_do_not_reach_a_file_raw(run: Run, tmp_path: Path) -> None:
    folder = tmp_path / "a\x1b[31m,b"
    folder.mkdir()
    path = folder / "m.json"
    config = {
        "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 64, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 128, "vocab_size": 1000,
        "max_position_embeddings": 2048, "torch_dtype": "bfloat16", "tie_word_embeddings": False,
    }  # fmt: skip
    path.write_text(json.dumps(config))
    done = run("sweep", "llama-3.1-8b", "--vary", f"model={path};llama-3.1-8b", "--format", "csv")
    assert done.status == 0, done.err
    assert "\x1b" not in done.out
    assert len(list(csv.reader(io.StringIO(done.out)))) == 3
    assert "\x1b" not in run("sweep", "x", "--vary", f"model={path};llama-3.1-8b", "--json").out


def test_an_interrupted_sweep_leaves_the_old_file_whole(tmp_path: Path) -> None:
    path = tmp_path / "grid.csv"
    path.write_text("old\n")
    words = ("--vary", "max-model-len=1..100000", "--vary", "concurrency=1..1000", "-o", str(path))
    child = subprocess.Popen([sys.executable, "-m", "kvplan", *SWEEP, *words], stderr=subprocess.PIPE)
    while len(os.listdir(tmp_path)) < 2 and child.poll() is None:  # the new file has begun
        time.sleep(0.02)
    child.send_signal(signal.SIGINT)
    _, err = child.communicate(timeout=30)
    assert child.returncode == 130
    assert err == b"interrupted: nothing is written\n"
    assert os.listdir(tmp_path) == ["grid.csv"]
    assert path.read_text() == "old\n"


def test_a_reader_that_leaves_early_is_no_error() -> None:
    words = ("--vary", "max-model-len=1..100000", "--vary", "concurrency=1..100", "--format", "csv")
    child = subprocess.Popen(
        [sys.executable, "-m", "kvplan", *SWEEP, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert child.stdout is not None
    assert child.stderr is not None
    child.stdout.readline()
    child.stdout.close()
    err = child.stderr.read()
    child.stderr.close()
    assert child.wait(timeout=60) == 0
    assert err == b""


def test_compare_sets_models_side_by_side(run: Run) -> None:
    done = run("compare", "llama-3.1-8b", "qwen3-32b", "deepseek-v3", "--prompt-tokens", "32512", "--json")
    whole = json.loads(done.out)
    assert whole["schema"] == "kvplan.compare/1"
    rows = whole["rows"]
    assert [r["model"] for r in rows] == ["llama-3.1-8b", "qwen3-32b", "deepseek-v3"]
    assert [r["kv.bytes_per_1k_tokens"] for r in rows] == [131_072_000, 262_144_000, 70_272_000]
    assert [r["kv.bytes_per_request"] for r in rows] == [4 * 2**30, 8 * 2**30, 2_302_672_896]
    assert [round(r["ratio"], 3) for r in rows] == [1, 2, 0.536]


def test_compare_sets_variants_of_one_model_side_by_side(run: Run) -> None:
    words = ("compare", "llama-3.1-70b", "--vary", "attention=own,mha,mqa", "--vary", "kv-cache-dtype=default,fp8")
    rows = json.loads(run(*words, "--json").out)["rows"]
    assert [r["ratio"] for r in rows] == [1, 0.5, 8, 4, 0.125, 0.0625]
    text = run(*words, "--format", "text").out
    bars = [line.count("█") for line in text.splitlines() if line.strip().startswith("mha")]
    assert bars == [16, 8]
    assert "▏" in text  # the smallest is seen


def test_compare_shows_what_a_deployment_holds(run: Run) -> None:
    words = ("compare", "llama-3.1-70b", "--gpu", "h100-sxm", "--vary", "tp=4,3,8")
    rows = json.loads(run(*words, "--json").out)["rows"]
    expected = plan("llama-3.1-70b", gpu="h100-sxm", tensor_parallel_size=8)
    assert expected.capacity is not None
    assert rows[2]["capacity.max_concurrency"] == expected.capacity.max_concurrency
    assert rows[0]["ratio"] == rows[2]["ratio"] == 1
    assert "cannot be divided" in rows[1]["refused"]
    assert rows[1]["ratio"] is None
    assert "cannot be divided" in run(*words, "--format", "text").out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("llama-3.1-8b",), "one model alone"),
        (("llama-3.1-8b", "llama-3.1-8b"), "one model alone"),
        (("llama-3.1-8b", "no-such-model"), "unknown model"),
        (("llama-3.1-8b", "--vary", "concurrency=1..1000"), "1,000 variants are too many"),
        (("llama-3.1-8b", "qwen3-32b", "--vary", "model=qwen3-32b"), "named and varied"),
        (("llama-3.1-8b", "--vary", "tp=3,5"), "every variant is refused"),
    ],
)
def test_comparisons_that_make_no_sense(run: Run, words: tuple[str, ...], message: str) -> None:
    said, _ = one_line_error(run("compare", *words))
    assert message in said


def test_compare_and_structural_sweeps_load_no_numpy(run: Run, spawn: Run) -> None:
    for words in (
        ("compare", "llama-3.1-8b", "qwen3-32b", "--json"),
        ("sweep", "llama-3.1-8b", "--vary", "tp=1,2", "--json"),
    ):
        status, modules = loaded(spawn, *words)
        assert status == 0
        assert modules.isdisjoint(HEAVY)
    _, modules = loaded(spawn, *SWEEP, "--vary", "concurrency=1,2", "--json")
    assert "numpy" in modules
    assert "pydantic" not in modules


def test_figures_of_traffic_need_traffic(run: Run) -> None:
    sweep = ("sweep", "llama-3.1-8b", "--gpu", "h100-sxm", "--max-model-len", "8K", "--vary", "tp=1,2")
    said, hint = one_line_error(run(*sweep, "--figure", "serving"))
    assert "about traffic" in said
    assert "--request-rate" in hint
    rows = list(csv.DictReader(io.StringIO(run(*sweep, "--request-rate", "30", "--format", "csv").out)))
    assert [row["serving.targets_hold"] for row in rows] == ["false", "true"]
    compared = json.loads(run("compare", *sweep[1:], "--tpot", "30ms", "--json").out)
    assert all(row["serving.targets_hold"] for row in compared["rows"])


def test_a_map_marks_the_plans_that_do_not_fit(run: Run) -> None:
    """Though nobody asked for the figure that says so, which is then in no other format."""
    words = ("sweep", "llama-3.1-8b", "--gpu", "l4", "--vary", "max-model-len=8K,128K", "--vary", "concurrency=1,2")
    words += ("--figure", "decode.tokens_per_second")
    drawn = run(*words, "--format", "text")
    (short,) = [line for line in drawn.out.splitlines() if " 8,192 " in line]
    (long,) = [line for line in drawn.out.splitlines() if "131,072 " in line]
    assert short.count("!") == 0
    assert long.count("!") == 2
    assert "!: 2 of 4 plans do not fit" in drawn.out
    assert "! and a cut corner: 2 of 4 plans do not fit" in run(*words, "--format", "html").out
    listed = run(*words, "--format", "csv").out
    assert "fits" not in listed
    assert "!" not in listed


def test_a_name_that_is_none_ends_the_sweep_before_the_first_row(run: Run) -> None:
    for words in (("--vary", "gpu=l40s,nonsense"), ("--gpu", "nonsense")):
        done = run("sweep", "llama-3.1-8b", *words, "--vary", "max-model-len=1K,2K", "--json")
        assert (done.status, done.out) == (2, "")
        assert done.err.startswith("error: unknown GPU 'nonsense'")

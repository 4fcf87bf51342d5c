"""``simulate`` and ``trace`` as people type them."""

from __future__ import annotations

import csv
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import jsonschema
import pytest

from .conftest import Run, one_line_error

DATA = Path(__file__).parents[1] / "data" / "traces"
AZURE, MOONCAKE = str(DATA / "azure_59.csv"), str(DATA / "mooncake_150.jsonl")
BASE = ("simulate", "llama-3.1-8b", "--gpu", "h100-sxm")


def test_trace_describe_has_the_keys_of_its_contract(run: Run) -> None:
    done = run("trace", "describe", MOONCAKE, "--json", "--cache-blocks", "100")
    assert done.status == 0
    plain = json.loads(done.out)
    assert plain["schema"] == "kvplan.trace/1"
    assert plain["requests"] == 150
    assert {"block_tokens", "blocks", "hit_blocks", "tokens", "hit_tokens"} == set(plain["prefix_ceiling"])
    assert [one["cache_blocks"] for one in plain["lru"]] == [100]
    drawn = run("trace", "describe", MOONCAKE, "--format", "text")
    assert f"{plain['input_tokens']:,}" in drawn.out
    assert f"{plain['prefix_ceiling']['hit_blocks']:,}" in drawn.out


def test_simulate_has_the_keys_of_its_contract(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "requests.csv"
    done = run(*BASE, "--trace", MOONCAKE, "--json", "--requests", str(path))
    assert done.status == 0, done.err
    plain = json.loads(done.out)
    assert plain["schema"] == "kvplan.simulation/1"
    contract = {
        "inputs": (),
        "trace": (),
        "cache": ("hit_tokens", "hit_blocks", "evictions"),
        "memory": ("peak_blocks", "mean_utilisation", "waste"),
        "scheduling": ("preemptions", "rejected", "mean_batch", "peak_batch"),
        "latency": ("ttft", "tpot", "e2e"),
        "throughput": ("requests_per_second", "tokens_per_second"),
    }
    for part, keys in contract.items():
        assert set(keys) <= set(plain[part]), part
    assert set(plain["memory"]["waste"]) == {"reserved", "internal", "external"}
    assert {"p50", "p90", "p99"} <= set(plain["latency"]["ttft"])
    rows = list(csv.DictReader(path.read_text().splitlines()))
    assert len(rows) == 150
    assert sum(int(row["hit_tokens"]) for row in rows) == plain["cache"]["hit_tokens"] > 0
    assert plain["cache"]["hit_tokens"] <= plain["cache"]["ceiling_tokens"]
    finished = [float(row["e2e_seconds"]) for row in rows if row["status"] == "done"]
    assert sorted(finished)[75] == pytest.approx(plain["latency"]["e2e"]["p50"], rel=0.05)


def test_the_report_is_drawn_in_every_format(run: Run, tmp_path: Path) -> None:
    for name in ("table", "text", "markdown", "html", "svg"):
        done = run(*BASE, "--trace", AZURE, "--format", name)
        assert done.status == 0, (name, done.err)
        assert "59" in done.out or name == "svg"
    assert "KV memory over time" in run(*BASE, "--trace", AZURE, "--format", "html").out
    assert "<svg" in run(*BASE, "--trace", AZURE, "--format", "svg").out
    text = run(*BASE, "--trace", AZURE, "--format", "text").out
    assert "hit rate" in text
    assert "\033" not in text


def test_the_whole_command_twice_gives_the_same_bytes(run: Run) -> None:
    words = (*BASE, "--synthetic", "requests=200,lengths=sharegpt,rate=9,turns=2,seed=4", "--json")
    assert run(*words).out == run(*words).out


def test_vary_writes_a_row_a_simulation(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "study.csv"
    done = run(
        *BASE, "--synthetic", "requests=60,lengths=alpaca,rate=9,longest=2000", "--max-model-len", "2048",
        "--vary", "allocator=max,paged", "--vary", "max-num-seqs=4,64", "-o", str(path), "--workers", "1",
    )  # fmt: skip
    assert done.status == 0, done.err
    rows = list(csv.DictReader(path.read_text().splitlines()))
    assert [(r["allocator"], r["max_num_seqs"]) for r in rows] == [
        ("max", "4"), ("max", "64"), ("paged", "4"), ("paged", "64")
    ]  # fmt: skip
    assert all(int(r["scheduling.peak_batch"]) <= int(r["max_num_seqs"]) for r in rows)
    shown = run(
        *BASE, "--trace", AZURE, "--vary", "request-rate=1,2,4", "--workers", "1", "--format", "html"
    )  # fmt: skip
    assert "Time to the first token" in shown.out
    plain = json.loads(
        run(*BASE, "--trace", AZURE, "--request-rate", "2", "--vary", "seed=1,2", "--workers", "1", "--json").out
    )
    assert plain["schema"] == "kvplan.simulations/1"
    assert [row["seed"] for row in plain["rows"]] == ["1", "2"]


def test_a_target_that_is_not_met_ends_with_1(run: Run) -> None:
    met = run(*BASE, "--trace", AZURE, "--target", "ttft.p99<=10", "--json")
    assert met.status == 0
    found = json.loads(met.out)["smallest_pool"]
    assert found["met"]
    assert 0 < found["blocks"] < json.loads(met.out)["memory"]["pool_blocks"]
    assert run(*BASE, "--trace", AZURE, "--target", "tpot.p50<=0.1ms").status == 1
    typed = met.err.partition("--num-gpu-blocks-override ")[2].split()[0]
    again = json.loads(run(*BASE, "--trace", AZURE, "--num-gpu-blocks-override", typed, "--json").out)
    assert again["memory"]["pool_blocks"] == found["blocks"]
    assert again["latency"]["ttft"]["p99"] <= 10


@pytest.mark.parametrize("name", ["nowhere/rows.csv", ".", "a\0b"])
def test_rows_that_cannot_be_written_are_refused_before_the_run(run: Run, tmp_path: Path, name: str) -> None:
    path = str(tmp_path / name)
    # the trace is looked at after the file for the rows
    message, _ = one_line_error(run(*BASE, "--trace", "/nowhere/trace.csv", "--requests", path))
    assert "--requests: cannot write" in message
    assert not list(tmp_path.iterdir())


def test_rejected_requests_are_told(run: Run) -> None:
    done = run(*BASE, "--trace", AZURE, "--max-model-len", "500", "--json")
    assert done.status == 0
    plain = json.loads(done.out)
    assert plain["scheduling"]["rejected"] > 0
    assert plain["scheduling"]["finished"] + plain["scheduling"]["rejected"] == 59
    assert "requests were rejected; the first, number" in done.err


def test_a_run_without_any_request_ends_with_1(run: Run) -> None:
    done = run(*BASE, "--synthetic", "requests=5,prompt=600,output=9", "--max-model-len", "500", "--json")
    assert done.status == 1
    assert json.loads(done.out)["scheduling"]["rejected"] == 5


def test_samples_count_in_the_tokens_of_the_trace(run: Run) -> None:
    words = (*BASE, "--synthetic", "requests=5,prompt=60,output=9", "--json")
    assert json.loads(run(*words).out)["trace"]["output_tokens"] == 45
    assert json.loads(run(*words, "--samples", "3").out)["trace"]["output_tokens"] == 135


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no named pipes")
def test_a_pipe_is_refused_and_not_waited_for(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    message, hint = one_line_error(run("trace", "describe", str(path)))
    assert "pipe" in message
    assert "save it to a file" in hint


def test_broken_lines_are_told_or_stop_the_run(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("arrival,prompt,output\n0,10,5\n1,x,5\n2,10,-1\n3,10,\n4,10\n5,20,5\n")
    done = run("trace", "describe", str(path))
    assert done.status == 0
    assert "4 broken lines were left out; the first: line 3: prompt tokens 'x' is not a whole number" in done.err
    message, _ = one_line_error(run("trace", "describe", str(path), "--strict"))
    assert "line 3" in message


@pytest.mark.parametrize(
    "words",
    [
        ("trace", "describe"),
        ("trace", "describe", "/nowhere/trace.csv"),
        ("trace", "describe", AZURE, "--trace-format", "mooncake"),
        ("trace", "describe", AZURE, "--synthetic", "requests=3"),
        ("trace", "describe", AZURE, "--start", "1e9"),
        ("trace", "describe", AZURE, "--time-scale", "0"),
        ("trace", "describe", AZURE, "--cache-blocks", "many"),
        ("trace", "describe", AZURE, "--format", "csv"),
        BASE,
        (*BASE, "--trace", AZURE, "--allocator", "slab"),
        (*BASE, "--trace", AZURE, "--scheduler", "static", "--allocator", "oracle"),
        (*BASE, "--trace", AZURE, "--routing", "random"),
        (*BASE, "--trace", AZURE, "--target", "ttft<=1"),
        (*BASE, "--trace", AZURE, "--format", "csv"),
        (*BASE, "--trace", AZURE, "--workers", "2"),
        (*BASE, "--trace", AZURE, "--vary", "seed=1,2", "--target", "ttft.p50<=1"),
        (*BASE, "--trace", AZURE, "--vary", "allocator=slab", "--workers", "1"),
        (*BASE, "--trace", AZURE, "--columns", "prompt"),
        ("simulate", "llama-3.1-8b", "--trace", AZURE),
        ("simulate", "llama-3.1-70b", "--gpu", "h100-sxm", "--trace", AZURE),
        ("simulate", "gemma-3-27b", "--gpu", "h200-sxm", "--trace", AZURE, "--allocator", "max"),
    ],
)
def test_what_makes_no_sense_is_one_line_and_a_hint(run: Run, words: tuple[str, ...]) -> None:
    _, hint = one_line_error(run(*words))
    assert hint


def test_a_failed_run_leaves_no_file(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "out.json"
    assert run(*BASE, "--trace", AZURE, "--allocator", "slab", "-o", str(path)).status == 2
    assert not list(tmp_path.iterdir())


@pytest.mark.skipif(os.name == "nt", reason="sends a signal")
def test_an_interrupted_run_leaves_whole_files(tmp_path: Path) -> None:
    out, rows = tmp_path / "out.json", tmp_path / "rows.csv"
    words = [
        *BASE, "--synthetic", "requests=3000000,lengths=sharegpt,rate=20", "-o", str(out), "--requests", str(rows),
    ]  # fmt: skip
    process = subprocess.Popen(
        [sys.executable, "-m", "kvplan", *words], stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    time.sleep(8)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=50)
    assert process.returncode == 130, err
    assert "Traceback" not in err
    if not out.exists():  # it came while the trace was being made: nothing is written then
        assert not rows.exists()
        return
    plain = json.loads(out.read_text())
    assert plain["interrupted"]
    table = list(csv.DictReader(rows.read_text().splitlines()))
    done = sum(row["status"] == "done" for row in table)
    assert done == plain["scheduling"]["finished"]
    assert not [p for p in tmp_path.iterdir() if p.suffix == ".new"]


@pytest.mark.parametrize("verb", ["trace", "simulation"])
def test_the_published_schemas_hold(run: Run, verb: str) -> None:
    schema = json.loads((Path(__file__).parents[2] / "docs" / "schemas" / f"kvplan.{verb}-1.json").read_text())
    words = ("trace", "describe", MOONCAKE) if verb == "trace" else (*BASE, "--trace", MOONCAKE)
    jsonschema.validate(json.loads(run(*words, "--json").out), schema)

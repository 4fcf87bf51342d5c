"""``kvplan fit`` from the command line."""

from __future__ import annotations

import csv
import io
import json
import shlex
from pathlib import Path

import jsonschema
import pytest

from .conftest import Run, one_line_error

ROOT = Path(__file__).parent.parent.parent
FIT = ("fit", "llama-3.1-8b", "--gpu", "h100-sxm,l4,rtx-4090,mi308x", "--request-rate", "8", "--tpot", "40ms")


def test_json_is_as_its_schema_says(run: Run) -> None:
    done = run(*FIT, "--json")
    plain = json.loads(done.out)
    assert done.status == 0
    schema = json.loads((ROOT / "docs" / "schemas" / "kvplan.fit-1.json").read_text(encoding="utf-8"))
    jsonschema.validate(plain, schema)
    assert plain["schema"] == "kvplan.fit/1"
    assert [row["rank"] for row in plain["rows"]] == list(range(1, len(plain["rows"]) + 1))


def test_the_flags_of_a_row_give_its_plan(run: Run) -> None:
    rows = json.loads(run(*FIT, "--json").out)["rows"]
    for row in rows:
        seen = json.loads(run("plan", "llama-3.1-8b", *row["flags"].split(), "--json").out)
        assert seen["serving"]["ttft_seconds"] == row["ttft_seconds"]
        assert seen["serving"]["tpot_seconds"] == row["tpot_seconds"]
        assert seen["cost"]["per_million_output_tokens"] == row["per_million_output_tokens"]


def test_rows_as_csv_and_lines_are_those_of_the_json(run: Run) -> None:
    rows = json.loads(run(*FIT, "--json").out)["rows"]
    read = list(csv.DictReader(io.StringIO(run(*FIT, "--format", "csv").out)))
    lines = [json.loads(line) for line in run(*FIT, "--format", "jsonl").out.splitlines()]
    assert len(read) == len(lines) == len(rows)
    for row, cells, line in zip(rows, read, lines, strict=True):
        assert (cells["gpu"], float(cells["ttft_seconds"])) == (row["gpu"], row["ttft_seconds"])
        assert cells["usd_per_hour"] == ("" if row["usd_per_hour"] is None else repr(row["usd_per_hour"]))
        assert line["margins.tpot"] == row["margins"]["tpot"]
        assert line["usd_per_hour"] == row["usd_per_hour"]


@pytest.mark.parametrize("form", ["text", "table", "markdown"])
def test_people_see_prices_with_dates_and_why_the_others_fail(run: Run, form: str) -> None:
    done = run(*FIT, "--format", form)
    assert done.status == 0
    for word in ("h100-sxm", "2026-05", "margin", "mi308x", "kvplan plan llama-3.1-8b --gpu"):
        assert word in done.out


def test_nothing_that_carries_it_is_status_1_and_says_why(run: Run) -> None:
    done = run(*FIT[:4], "--tpot", "0.00001", "--format", "text")
    assert done.status == 1
    assert "NOT CARRIED" in done.out
    assert "below what any of them reaches" in done.out
    done = run(*FIT[:4], "--tpot", "0.00001", "--format", "csv")
    assert done.status == 1
    assert "--tpot" in done.err


def test_prices_by_hand_decide_the_order(run: Run) -> None:
    words = (*FIT, "--price", "rtx-4090=0.1", "--price", "h100=50,l4=40", "--json")
    rows = json.loads(run(*words).out)["rows"]
    assert rows[0]["gpu"] == "rtx-4090"
    assert {row["price_source"] for row in rows} == {"--price"}


def test_a_trace_gives_lengths_and_rate(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    rows = [f"2023-11-16 18:15:{10 + i}.0000000,{200 + 100 * i},{20 + i}" for i in range(10)]
    path.write_text("\n".join(["TIMESTAMP,ContextTokens,GeneratedTokens", *rows]) + "\n", encoding="utf-8")
    inputs = json.loads(run("fit", "llama-3.1-8b", "--gpu", "l4", "--trace", str(path), "--json").out)["inputs"]
    assert (inputs["prompt_tokens"], inputs["request_rate"], inputs["max_model_len"]) == (650, 1.0, 1129)
    assert inputs["prompt_cv"] == pytest.approx(0.4419, abs=1e-3)
    message, _ = one_line_error(run("fit", "llama-3.1-8b", "--trace", str(path), "--prompt-tokens", "5"))
    assert "--prompt-tokens" in message


def test_a_command_line_pins_what_it_says(run: Run) -> None:
    done = run("fit", "vllm serve meta-llama/Llama-3.1-8B-Instruct -tp 2 --max-model-len 8K", "--gpu", "l4", "--json")
    plain = json.loads(done.out)
    assert {row["tensor_parallel_size"] for row in plain["rows"]} == {2}
    assert plain["inputs"]["max_model_len"] == 8192
    assert plain["inputs"]["engines"] == ["vllm"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--prompt-tokens", "normal:mean=3"), "--prompt-tokens"), (("--ttft", "fast"), "--ttft"),
        (("--price", "2.5"), "--price"), (("--price", "h100=x"), "--price"), (("--gpu", "nope"), "nope"),
        (("--engine", "nope"), "nope"), (("--weights", "nope"), "nope"), (("--kv-cache-dtype", "nope"), "nope"),
        (("--max-model-len", "-1"), "--max-model-len"), (("--trace", "/nope/x.csv"), "/nope"), (("-tp", "3"), "3"),
        (("--top", "0"), "--top"), (("--gpus", "3"), "--gpus"),
        (("--concurrency", "99", "--request-rate", "1", "--ttft", "1", "--tpot", "0.01"), "--concurrency"),
    ],
)  # fmt: skip
def test_bad_input_is_one_line_and_a_hint(run: Run, words: tuple[str, ...], said: str) -> None:
    message, hint = one_line_error(run("fit", "llama-3.1-8b", *words))
    assert said in message
    assert hint


def test_speeds_without_reports_are_marked_and_formats_left_out_are_named(run: Run) -> None:
    done = run("fit", "llama-3.1-8b", "--gpu", "h100-sxm,mi250x", "--concurrency", "8", "--format", "text")
    (fast,) = [line for line in done.out.splitlines() if " h100-sxm " in line and "vllm" not in line and "%" in line]
    (other,) = [line for line in done.out.splitlines() if " mi250x " in line and "%" in line]
    assert "~" not in fast
    assert other.count("~") == 2
    assert "~: no report of this engine" in done.out
    assert "fp8 cache: no fp8 units on mi250x; --kv-cache-dtype fp8 tries them" in done.out
    alone = run("fit", "llama-3.1-8b", "--gpu", "h100-sxm", "--concurrency", "8", "--format", "text")
    assert "~" not in alone.out
    assert "Not tried" not in alone.out


def test_the_ways_are_a_table_at_80_columns(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    done = run("fit", "qwen3-32b", "--request-rate", "2", "--gpu", "h100-sxm,a100-sxm4-80gb", "--top", "5",
               "--format", "table")  # fmt: skip
    head = next(line for line in done.out.splitlines() if "GPUs  layout" in line)
    assert "TPOT" in head
    *lines, _ = done.out.splitlines()  # the last is for pasting, and the terminal's to break
    assert max(map(len, lines)) <= 80


@pytest.mark.parametrize("form", ["text", "table"])
def test_the_plan_that_is_named_can_be_pasted(run: Run, form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    typed = "vllm serve meta-llama/Llama-3.1-8B-Instruct -tp 2 --max-model-len 8K"
    line = run("fit", typed, "--gpu", "l4", "--format", form).out.splitlines()[-1]
    words = shlex.split(line)
    assert words[:3] == ["kvplan", "plan", typed]
    assert "fits" in run(*words[1:], "--format", "text").out


def test_a_gpu_of_a_file_is_named_by_the_file(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "my card.yaml"
    known = (ROOT / "kvplan" / "data" / "gpus" / "nvidia" / "l40s.yaml").read_text(encoding="utf-8")
    path.write_text(known.replace("id: l40s\n", "id: my-card\n").partition("aliases:")[0], encoding="utf-8")
    (row,) = json.loads(run("fit", "llama-3.1-8b", "--gpu", str(path), "--json").out)["rows"]
    assert row["gpu"] == "my-card"
    assert run("plan", "llama-3.1-8b", *shlex.split(row["flags"]), "--format", "text").status == 0

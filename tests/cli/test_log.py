"""``kvplan log`` and ``kvplan plan --from-log``."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from .conftest import Run, one_line_error

LOGS = Path(__file__).resolve().parent.parent / "data" / "logs"
LLAMA = str(LOGS / "vllm-0.31.0-llama-3.1-8b.log")
QWEN = str(LOGS / "vllm-0.22.0-qwen2.5-7b.log")


def test_says_both_sides_and_the_reason(run: Run) -> None:
    done = run("log", LLAMA)
    assert done.status == 0
    assert "vllm 0.31.0" in done.out
    assert "explained by" in done.out
    row = next(line for line in done.out.splitlines() if "KV cache per GPU" in line and "56.21" in line)
    assert "yes" in row


def test_json(run: Run) -> None:
    done = run("log", LLAMA, "--json", "--fail-over", "5%")
    plain = json.loads(done.out)
    assert plain["schema"] == "kvplan.log/1"
    assert (plain["engine"], plain["engine_version"], plain["model"]) == ("vllm", "0.31.0", "llama-3.1-8b")
    assert plain["fail_over"] == {"limit": 0.05, "ok": True}
    assert plain["figure"]["name"] == "KV cache per GPU"
    assert plain["said"]["kv"]["line"] == 12
    assert plain["inputs"]["defaults"]["max_model_len"].startswith(LLAMA)
    for row in plain["rows"]:
        if row["unit"] != "number":
            assert all(row[key] is None or isinstance(row[key], int) for key in ("said", "predicted", "low", "high")), (
                row
            )


@pytest.mark.parametrize(("limit", "status"), [("5%", 0), ("0.05", 0), ("0.01%", 1), ("0", 1)])
def test_fail_over(run: Run, limit: str, status: int) -> None:
    done = run("log", LLAMA, "--fail-over", limit)
    assert done.status == status
    assert ("BROKEN" in done.out) == (status == 1)
    assert ("more than" in done.err) == (status == 1)


def test_the_limit_is_said_as_it_was_given(run: Run) -> None:
    assert run("log", LLAMA, "--fail-over", "0.01%").err.rstrip().endswith("more than 0.01%")
    assert run("log", LLAMA, "--fail-over", "0.0001").err.rstrip().endswith("more than 0.01%")


def test_a_local_log_needs_no_gpu(run: Run, tmp_path: Path) -> None:
    """Weights and compute buffer follow from the settings; a device only says whether they fit."""
    file = tmp_path / "start.log"
    said = [text for text in (LOGS / "llama.cpp-qwen3.5-27b-q3km.log").read_text().splitlines() if "3090" not in text]
    file.write_text("\n".join([*said, "llama_context:      CUDA0 compute buffer size =   505.00 MiB", ""]))
    bare, named = (json.loads(run("log", str(file), *more, "--json").out) for more in ((), ("--gpu", "h200-sxm")))
    rows = {row["name"]: (row["predicted"], row["low"], row["high"]) for row in bare["rows"]}
    assert rows == {row["name"]: (row["predicted"], row["low"], row["high"]) for row in named["rows"]}
    assert rows["weights on a GPU"][0]
    assert rows["compute buffer"][0]
    assert bare["gpu"] is None
    assert not [w for w in bare["warnings"] if "--gpu" in w]


def test_fail_over_by_tokens(run: Run) -> None:
    done = run("log", QWEN, "--figure", "tokens", "--fail-over", "0.1%", "--json")
    assert done.status == 0
    assert json.loads(done.out)["figure"]["said"] == 492_912


def test_standard_input(spawn: Run) -> None:
    with open(LLAMA, "rb") as stream:
        done = spawn("log", "-", "--json", "--quiet", stdin=stream)
    assert done.status == 0
    assert json.loads(done.out)["file"] == "standard input"


@pytest.mark.parametrize("limit", ["5", "x", "-1%", "101%", "nan"])
def test_a_limit_that_is_none(run: Run, limit: str) -> None:
    message, _ = one_line_error(run("log", LLAMA, f"--fail-over={limit}"))
    assert "not a share" in message


def test_errors(run: Run, tmp_path: Path) -> None:
    empty = tmp_path / "x.log"
    empty.write_bytes(b"\xff\x00\x1b[31mnothing\n")
    message, _ = one_line_error(run("log", str(empty)))
    assert "looked for" in message
    one_line_error(run("log", str(tmp_path)))
    one_line_error(run("log", str(tmp_path / "none")))
    one_line_error(run("log", LLAMA, "--figure", "blocks"))
    message, hint = one_line_error(run("log", str(LOGS / "vllm-v0-phi-4-gptq.log"), "--fail-over", "5%"))
    assert "nothing to compare" in message
    assert "--model" in hint


def test_escapes_in_a_log_do_not_reach_the_terminal(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "x.log"
    path.write_text(
        "INFO Initializing a V1 LLM engine (v0.30.0) with config: model='a\x1b]0;b\x07c/d', max_seq_len=10\n"
        "Available KV cache memory: 1.00 GiB\n",
        encoding="utf-8",
    )
    done = run("log", str(path))
    assert done.status == 0
    assert "\x1b" not in done.out + done.err
    assert "\x07" not in done.out + done.err


def test_plan_from_a_log(run: Run) -> None:
    done = run("plan", "--from-log", LLAMA, "--json")
    assert done.status == 0
    plain = json.loads(done.out)
    assert plain["model"]["id"] == "llama-3.1-8b"
    assert plain["inputs"]["engine_version"] == "0.31.0"
    assert plain["inputs"]["kv_cache_memory_bytes"] == plain["memory"][0]["kv_bytes"] == 60_355_027_927
    assert plain["inputs"]["defaults"]["kv_cache_memory_bytes"].startswith("measured: ")
    assert plain["inputs"]["defaults"]["gpu_memory_utilization"].startswith(LLAMA)
    assert abs(plain["capacity"]["engine_reported_tokens"] - 460_496) <= 48


def test_the_report_says_that_it_was_measured(run: Run) -> None:
    def row(*flags: str) -> str:
        out = run("plan", "llama-3.1-8b", "--from-log", LLAMA, *flags).out
        return next(line for line in out.splitlines() if line.strip().startswith("KV cache  ") and "line 12" in line)

    assert "measured" in row()
    moved = row("--max-num-seqs", "64")
    assert "modelled" in moved
    assert "moved by" in moved


def test_plan_without_a_model(run: Run) -> None:
    message, _ = one_line_error(run("plan"))
    assert message == "MODEL is missing"

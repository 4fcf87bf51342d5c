"""``--calibration`` and ``explain --no-cache``."""

from __future__ import annotations

import json
from pathlib import Path

from .conftest import Run, one_line_error

PAGE = Path(__file__).parent.parent.parent / "docs" / "speed.md"
PLAN = ("plan", "llama-3.1-8b", "--max-model-len", "8192")


def documented(folder: Path) -> str:
    path = folder / "h200.json"
    path.write_text(PAGE.read_text(encoding="utf-8").partition("```json\n")[2].partition("```")[0], encoding="utf-8")
    return str(path)


def test_a_plan_with_measured_rates_says_so(run: Run, tmp_path: Path) -> None:
    done = run(*PLAN, "--gpu", "h200-sxm", "--calibration", documented(tmp_path), "--json")
    plain = json.loads(done.out)
    assert done.status == 0
    assert plain["inputs"]["calibration"].startswith("calibration of NVIDIA H200, 2026-11-30")
    assert plain["decode"]["source"].startswith(plain["inputs"]["calibration"])
    text = run(*PLAN, "--gpu", "h200-sxm", "--calibration", documented(tmp_path), "--format", "text").out
    assert plain["inputs"]["calibration"] in text
    assert "calibration of" not in run(*PLAN, "--gpu", "h200-sxm", "--format", "text").out


def test_a_card_that_only_the_user_knows_takes_the_measured_bandwidth(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "own.json"
    data = json.loads(Path(documented(tmp_path)).read_text(encoding="utf-8"))
    data["device"] = {"name": "Some Card"}
    del data["attention"]
    path.write_text(json.dumps(data), encoding="utf-8")
    done = run(*PLAN, "--gpu-memory", "141GB", "--engine", "generic", "--calibration", str(path), "--json")
    assert "no speed is given" not in done.err
    decode = json.loads(done.out)["decode"]
    read = (decode["weight_bytes"] + decode["kv_bytes"]) / data["read_bytes_per_second"]["value"]
    assert 0.9 < decode["parts"]["memory"] / read < 1.1


def test_other_calibrations_are_refused(run: Run, tmp_path: Path) -> None:
    path = documented(tmp_path)
    message, hint = one_line_error(run(*PLAN, "--gpu", "h100-sxm", "--calibration", path))
    assert "--calibration" in message
    assert "h200-sxm" in hint
    assert "--gpu" in one_line_error(run(*PLAN, "--calibration", path))[1]
    assert "cannot read" in one_line_error(run(*PLAN, "--gpu", "h200-sxm", "--calibration", str(tmp_path)))[0]


def test_every_verb_says_once_a_model_that_the_lines_are_anothers(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "falcon.json"
    data = json.loads(Path(documented(tmp_path)).read_text(encoding="utf-8"))
    path.write_text(json.dumps({**data, "model": {"id": "falcon-7b"}}), encoding="utf-8")
    rates = ("--gpu", "h200-sxm", "--calibration", str(path))
    said = "lines of attention layers were measured on falcon-7b"
    swept = run("sweep", *PLAN[1:], *rates, "--vary", "tp=1,2", "--vary", "engine=vllm,sglang")
    assert swept.err.count(said) == 1
    compared = run("compare", "falcon-7b", *PLAN[1:], *rates)
    assert compared.err.count(said) == 1
    assert "falcon-7b may be" not in compared.err
    found = json.loads(run("fit", *PLAN[1:], *rates, "--request-rate", "1", "--json").out)
    assert all(any(said in text for text in row["warnings"]) for row in found["rows"])
    assert found["rows"]
    assert run(*PLAN, *rates).err.count(said) == 1
    simulated = run("simulate", *PLAN[1:], *rates, "--synthetic", "requests=3,prompt=64,output=4,rate=2")
    assert simulated.err.count(said) == 1
    rules = tmp_path / "rules.yaml"
    rules.write_text(
        "schema: kvplan.rules/1\ndeployments:\n  one:\n    model: llama-3.1-8b\n    gpu: h200-sxm\n"
        f"    max-model-len: 8192\n    calibration: {json.dumps(str(path))}\n    rules:\n"
        "      - decode.tokens_per_second_per_request >= 1\n",
        encoding="utf-8",
    )
    checked = run("check", str(rules))
    assert (checked.status, checked.err.count(said)) == (0, 1)


def test_the_work_without_a_cache(run: Run) -> None:
    words = ("explain", "llama-3.1-8b", "--prompt-tokens", "100", "--output-tokens", "50")
    shown = run(*words, "--no-cache", "--format", "text").out
    assert "Without a cache" in shown
    assert "50 steps after a prompt of 100" in shown
    assert "O(n d^2 + n^2 d)" in shown
    assert json.loads(run(*words, "--no-cache", "--json").out)["no_cache"]["flops_ratio"] > 1
    assert "Without a cache" not in run(*words, "--format", "text").out

"""``kvplan validate``, ``gpus detect`` and ``--gpu auto`` as they are typed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from kvplan.planning.calibration import load_calibration

from .conftest import Run, one_line_error

INSTALL = "pip install 'kvcache-plan[probe]'"
needs_torch = pytest.mark.skipif(
    __import__("importlib.util").util.find_spec("torch") is None, reason="the probe's extra is not installed"
)
FAST = ("llama-3.2-1b", "--device", "cpu", "--quick", "--max-memory", "64MiB")


@pytest.fixture
def without(monkeypatch: pytest.MonkeyPatch) -> None:
    """An installation without the extra."""
    for name in ("torch", "pynvml"):
        monkeypatch.setitem(sys.modules, name, None)


@pytest.mark.parametrize(
    ("words", "what"),
    [
        (("validate", "llama-3.1-8b"), "torch is not installed"),
        (("validate", "llama-3.1-8b", "--device", "cuda"), "--device: torch is not installed"),
        (("plan", "llama-3.1-8b", "--gpu", "auto"), "--gpu auto: nvidia-ml-py is not installed"),
        (("gpus", "detect"), "nvidia-ml-py is not installed"),
    ],
)
def test_without_the_extra_one_line_says_how_to_get_it(
    run: Run, without: None, words: tuple[str, ...], what: str
) -> None:
    message, hint = one_line_error(run(*words))
    assert message.endswith(what)
    assert INSTALL in hint


@pytest.mark.parametrize(
    ("body", "what"),
    [
        ("raise OSError('libcudnn.so.9: cannot open')", "torch cannot be loaded: libcudnn.so.9: cannot open"),
        ("raise ImportError('undefined symbol')", "torch cannot be loaded: undefined symbol"),
        ("", "is none"),
    ],
)
def test_a_torch_that_is_broken_is_no_bug_of_this_program(body: str, what: str, tmp_path: Path) -> None:
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text(body, encoding="utf-8")
    env = {**os.environ, "PYTHONPATH": os.pathsep.join((str(tmp_path), *filter(None, sys.path)))}
    done = subprocess.run(
        [sys.executable, "-m", "kvplan", "validate", "llama-3.2-1b"], env=env, capture_output=True, text=True,
        timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 2
    message, hint = done.stderr.splitlines()
    assert message.startswith("error: ")
    assert what in message
    assert INSTALL in hint


@needs_torch
@pytest.mark.parametrize(
    ("words", "what"),
    [
        (("--device", "tpu"), "unknown device 'tpu'"),
        (("--device", "cpu", "--max-memory", "9000TiB"), "--max-memory"),
        (("--device", "cpu", "--max-memory", "1MiB"), "too little"),
        (("--device", "cpu", "--max-memory", "8G"), "could be 8GiB or 8GB"),
        (("--device", "cpu", "--fill"), "--fill: fills a GPU"),
        (("--device", "cpu", "--only", "sums"), "unknown section 'sums'"),
        (("--device", "cpu", "--check", "/nowhere/file.json"), "--check: cannot read"),
        (("--device", "cpu", "-tp", "3"), "--tensor-parallel-size"),
        (("--device", "cpu", "--only", "blocks", "--save", "x.json"), "--save"),
        (("--device", "cpu", "--only", "device", "--check", "x.json"), "--check: these sections measure nothing"),
        (("--device", "cpu", "--only", "drift"), "nothing to measure for drift"),
        (("--device", "cpu", "--only", "drift", "--check", "x.json"), "--check: these sections measure nothing"),
        (("--device", "cpu", "--save", "nowhere/x.json"), "--save: cannot write nowhere/x.json: No such file"),
        (("--device", "cpu", "--save", "."), "--save: cannot write ."),
        (("--device", "cpu", "--save", "-"), "--save: '-' is no file"),
        (("--device", "cpu", "-o", "nowhere/x.json"), "-o: cannot write nowhere/x.json: No such file"),
        (("--device", "cpu", "--save", "x.json", "-o", "./x.json"), "--save: -o would write the receipt over x.json"),
        (("--device", "cpu", "--engine", "all"), "--engine: one engine"),
        (("--device", "cpu", "--engine", "vllm,sglang"), "--engine: one engine"),
        (("--device", "cpu", "--only", ","), "names no section"),
        (("--device", "cpu", "--only", "distributed"), "nothing to measure for distributed"),
        (("--device", "cpu", "--only", "fill"), "nothing to measure for fill"),
    ],
)
def test_what_cannot_be_measured_is_refused(
    run: Run, words: tuple[str, ...], what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    message, _ = one_line_error(run("validate", "llama-3.2-1b", "--quick", *words))
    assert what in message
    assert list(tmp_path.iterdir()) == []


@needs_torch
def test_a_receipt_is_json_with_every_sample(run: Run) -> None:
    done = run("validate", *FAST, "--only", "device,memory,blocks,bandwidth", "--json")
    plain = json.loads(done.out)
    assert plain["schema"] == "kvplan.validation/1"
    assert set(plain) >= {"device", "software", "rows", "calibration", "verdict"}
    for row in plain["rows"]:
        assert list(row)[:10] == [
            "section", "name", "predicted", "measured", "unit", "error", "tolerance", "pass", "spread", "samples",
        ]  # fmt: skip
        assert row["measured"] is None or row["samples"]
    assert {row["section"] for row in plain["rows"]} == {"device", "memory", "blocks", "bandwidth"}
    assert plain["device"]["kind"] == "cpu"
    assert done.status == (0 if plain["verdict"]["agrees"] else 1)


@needs_torch
def test_a_calibration_is_saved_checked_and_planned_with(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kvplan.probe.run.waited_share", lambda since: 0.0)  # whoever else has the cores
    path = tmp_path / "here.json"
    done = run("validate", *FAST, "--only", "bandwidth", "--save", str(path))
    assert done.status == 0, done
    assert f"wrote {path}" in done.err
    found = load_calibration(str(path))
    assert found.read_bandwidth
    planned = run(
        "plan", "llama-3.2-1b", "--gpu-memory", "16GiB", "--engine", "generic",
        "--calibration", str(path), "--json",
    )  # fmt: skip
    assert planned.status == 0, planned
    assert json.loads(planned.out)["inputs"]["calibration"].startswith("calibration of")
    data = json.loads(path.read_text(encoding="utf-8"))
    for figure in ("value", "low", "high"):  # ten times as fast as this machine is
        data["read_bytes_per_second"][figure] *= 10
    path.write_text(json.dumps(data), encoding="utf-8")
    checked = run("validate", *FAST, "--only", "bandwidth", "--check", str(path), "--json")
    assert checked.status == 1
    drift = [row for row in json.loads(checked.out)["rows"] if row["section"] == "drift"]
    assert [row["pass"] for row in drift] == [False]


@needs_torch
def test_what_the_file_has_and_this_run_cannot_say_is_drift(run: Run, tmp_path: Path) -> None:
    """The whole machine's file against a run without decode: what was left out is said; a lost figure is off."""
    path = tmp_path / "here.json"
    assert run("validate", *FAST, "--only", "bandwidth", "--save", str(path)).status == 0
    data = json.loads(path.read_text(encoding="utf-8"))
    data["layer_seconds"] = {"value": 1e-5, "low": 1e-5, "high": 1e-5, "samples": 1}
    path.write_text(json.dumps(data), encoding="utf-8")
    done = run("validate", *FAST, "--only", "bandwidth", "--check", str(path), "--json")
    drift = {r["name"]: r for r in json.loads(done.out)["rows"] if r["section"] == "drift"}
    assert (drift["per layer"]["measured"], drift["per layer"]["pass"]) == (None, None)
    assert "decode was left out" in drift["per layer"]["note"]


@needs_torch
def test_nothing_measured_is_status_two(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    from kvplan.probe import memory

    monkeypatch.setattr(memory, "_fill", lambda device, shapes, tensors: "out of memory after 0 of 1 tensors")
    done = run("validate", *FAST, "--only", "memory")
    assert done.status == 2
    assert "nothing judged" in done.out
    assert "out of memory after 0 of 1 tensors" in done.err


@needs_torch
def test_what_was_measured_is_saved_before_it_is_shown(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from kvplan.render import validation

    def broken(plain: Any) -> Any:
        raise ValueError("a row that cannot be drawn")

    monkeypatch.setattr(validation, "validation_report", broken)
    path = tmp_path / "here.json"
    assert run("validate", *FAST, "--only", "bandwidth", "--save", str(path)).status == 2
    assert load_calibration(str(path)).kind == "cpu"


@needs_torch
@pytest.mark.parametrize("shape", ["text", "table", "markdown"])
def test_the_report_shows_block_tables(run: Run, shape: str) -> None:
    done = run("validate", *FAST, "--only", "blocks", "--format", shape)
    assert done.status == 0, done
    assert "Block tables" in done.out
    assert "copy on write" in done.out
    assert "contiguous" in done.out


@needs_torch
def test_an_interruption_ends_with_130_and_writes_nothing(tmp_path: Path) -> None:
    saved = tmp_path / "never.json"
    process = subprocess.Popen(
        [sys.executable, "-m", "kvplan", "validate", "llama-3.1-8b", "--device", "cpu", "--save", str(saved)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )  # fmt: skip
    try:
        time.sleep(6)  # a full run takes minutes: this is in the middle of one
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=50)
    finally:
        process.kill()
    assert process.returncode == 130, err
    assert out == ""
    assert "Traceback" not in err
    assert not saved.exists()


def test_detect_reads_nvml_without_torch(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    from tests.probe.conftest import H200, FakeNvml

    monkeypatch.setitem(sys.modules, "pynvml", FakeNvml([H200]))
    monkeypatch.setitem(sys.modules, "torch", None)
    done = run("gpus", "detect", "--json")
    assert done.status == 0, done
    plain: dict[str, Any] = json.loads(done.out)
    assert plain["schema"] == "kvplan.gpus/1"
    (device,) = plain["devices"]
    assert device["gpu"] == "h200-sxm"
    assert device["nvml"]["theoretical_bandwidth"] == pytest.approx(4.814304e12)
    shown = run("gpus", "detect", "--format", "text")
    assert "150,754,820,096 B" in shown.out
    assert "torch is not installed" in shown.err


def test_auto_plans_for_this_machine(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    from tests.probe.conftest import H200, FakeNvml

    monkeypatch.setitem(sys.modules, "pynvml", FakeNvml([H200]))
    monkeypatch.setitem(sys.modules, "torch", None)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    here = json.loads(run("plan", "llama-3.1-8b", "--gpu", "auto", "--json").out)
    known = json.loads(run("plan", "llama-3.1-8b", "--gpu", "h200-sxm", "--json").out)
    assert here["capacity"] == known["capacity"]
    assert here["inputs"]["gpu"] == "h200-sxm"


def test_a_plan_does_not_load_the_probe(spawn: Run) -> None:
    code = (
        "import sys; from kvplan.cli.main import main; main(sys.argv[1:]); "
        "print([m for m in sys.modules if m.startswith('kvplan.probe')])"
    )
    done = spawn("plan", "llama-3.1-8b", "--gpu", "h200-sxm", "--json", "-o", "/dev/null", code=code)
    assert done.out.strip().endswith("[]")


@needs_torch
def test_a_calibration_of_another_device_is_not_drift(run: Run, tmp_path: Path) -> None:
    """A CPU is no slower H200: the file is refused before anything is measured."""
    figure = {"value": 4.6e12, "low": 4.6e12, "high": 4.6e12, "samples": 3}
    path = tmp_path / "h200.json"
    data = {
        "schema": "kvplan.calibration/1", "date": "2026-11-30", "device": {"name": "NVIDIA H200", "gpu": "h200-sxm"},
        "software": {"kvplan": "0.1.0"}, "read_bytes_per_second": figure,
    }  # fmt: skip
    path.write_text(json.dumps(data), encoding="utf-8")
    message, hint = one_line_error(run("validate", "llama-3.2-1b", "--device", "cpu", "--check", str(path)))
    assert "--check" in message
    assert "was measured on NVIDIA H200, not on" in message
    assert "--save" in hint


@needs_torch
def test_a_calibration_of_another_kind_of_device_is_not_drift(run: Run, tmp_path: Path) -> None:
    """The processor of a Mac and its GPU have one name."""
    path = tmp_path / "here.json"
    assert run("validate", *FAST, "--only", "bandwidth", "--save", str(path)).status == 0
    data = json.loads(path.read_text(encoding="utf-8"))
    data["device"]["kind"] = "mps"
    path.write_text(json.dumps(data), encoding="utf-8")
    message, _ = one_line_error(run("validate", *FAST, "--only", "bandwidth", "--check", str(path)))
    assert "(mps), not on" in message
    assert message.endswith("(cpu)")


@needs_torch
def test_a_calibration_that_cannot_be_written_is_named_by_its_flag(run: Run) -> None:
    done = run("validate", *FAST, "--only", "bandwidth", "--save", "/dev/full")
    assert done.status == 2
    assert "error: --save: cannot write /dev/full" in done.err
    assert "read ceiling" in done.out


@needs_torch
def test_an_interruption_while_torch_is_loaded_ends_in_order() -> None:
    """torch's C++ calls Python while it is loaded: an exception there would abort the process."""
    code = (
        "import os, signal, sys, types\n"
        "class Loader:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name == 'torch':\n"
        "            os.kill(os.getpid(), signal.SIGINT)\n"
        "            print('still loading', flush=True)\n"
        "sys.meta_path.insert(0, Loader())\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "from kvplan.cli.main import main\n"
        "sys.exit(main(['validate', 'llama-3.2-1b', '--device', 'cpu']))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout.strip(), done.stderr) == (130, "still loading", "")

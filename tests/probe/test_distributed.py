"""Two processes on one machine, gloo between them."""

from __future__ import annotations

import dataclasses
import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="the probe's extra is not installed")
if not torch.distributed.is_available():
    pytest.skip("this torch has no torch.distributed", allow_module_level=True)


def launch(*words: str, ranks: int = 2, code: str | None = None) -> list[subprocess.CompletedProcess[str]]:
    """`kvplan` in several processes that find each other as under ``torchrun``; `code` runs in its place."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    started = []
    for rank in range(ranks):
        env = {
            **os.environ, "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(ranks),
            "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "OMP_NUM_THREADS": "1",
        }  # fmt: skip
        command = [sys.executable, *(("-c", code) if code else ("-m", "kvplan")), "validate", *words]
        started.append(
            subprocess.Popen(
                command, env=env, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL
            )
        )
    done = []
    for process in started:
        try:
            out, err = process.communicate(timeout=120)
        finally:
            process.kill()
        done.append(subprocess.CompletedProcess(process.args, process.returncode, out, err))
    return done


def test_two_ranks_hold_their_shares(tmp_path: Path) -> None:
    first, second = launch("llama-3.2-1b", "--device", "cpu", "--quick", "--only", "distributed", "--json")
    assert first.returncode in (0, 1), first.stderr  # 1: a busy machine may move the times
    assert second.stdout == ""
    plain = json.loads(first.stdout)
    assert plain["inputs"]["tensor_parallel_size"] == plain["inputs"]["world_size"] == 2
    rows = {row["name"]: row for row in plain["rows"]}
    for rank in range(2):
        row = rows[f"cache on rank {rank}"]
        assert row["predicted"] == row["measured"] > 1 << 24
        assert "4 KV heads" in row["note"]
    assert rows["copies of the cache, as it is"]["measured"] == 1
    assert rows["copies of the cache, with one KV head"]["measured"] == 2
    assert rows["all-reduce: B"]["measured"] > 0
    for name in ("all-reduce, 4 MiB", "all-to-all, 4 MiB", "step on rank 1, 2 x 128"):
        assert rows[name]["measured"] > 0
        assert len(rows[name]["samples"]) >= 3
    step, read = rows["step on rank 1, 2 x 128"], rows["read rate"]["measured"]
    assert "; predicted by the plan" in step["note"]
    layers = 16 * 2048 * 64 * (16 + 4 + 4 + 16) + 16 * 3 * 4096 * 2048  # 16 layers: heads and half of the FFN
    assert step["predicted"] > 2 * layers / read
    assert step["pass"] is None


def test_another_tensor_parallel_size_is_refused() -> None:
    first, _ = launch("llama-3.2-1b", "-tp", "4", "--device", "cpu", "--quick", "--only", "distributed")
    assert first.returncode == 2
    assert "2 processes, and a tensor parallel size of 4" in first.stderr


def test_three_ranks_copy_one_kv_head_and_divide_messages_that_are_no_multiple_of_three() -> None:
    first, *others = launch("starcoder", "--device", "cpu", "--quick", "--only", "distributed", "--json", ranks=3)
    assert first.returncode in (0, 1), first.stderr
    assert [other.stdout for other in others] == ["", ""]
    rows = {row["name"]: row for row in json.loads(first.stdout)["rows"]}
    assert rows["cache on rank 2"]["predicted"] == rows["cache on rank 2"]["measured"]
    assert rows["copies of the cache, as it is"]["measured"] == 3  # one head, held by all
    assert rows["all-to-all, 8 KiB"]["measured"] > 0


def test_routed_experts_are_the_ranks_share_and_not_one_dense_ffn() -> None:
    from kvplan.probe import run, stack
    from kvplan.probe.device import detect
    from kvplan.probe.step_rows import ranks_seconds
    from kvplan.sources import find_model

    request = run.Request(
        find_model("qwen3-30b-a3b"), "vllm", {"tensor_parallel_size": 2, "max_model_len": 8192}, detect("cpu"), 1 << 28,
        quick=True,
    )  # fmt: skip
    session = run.open_session(request, lambda text: None)
    spec = session.layout.spec
    # q 16 and k, v 2 heads of 128 x 2,048 each way, 128 experts of 3 x 384 x 2,048, router; in 16 bits
    matrices = 2048 * 128 * (16 + 2 + 2 + 16) + 128 * 3 * 384 * 2048 + 128 * 2048
    assert stack.layer_bytes(spec, spec.layers[0]) == pytest.approx(2 * matrices, rel=1e-3)
    line = (258e9, 12e-6, 0.1)
    assert ranks_seconds(session.speed(), *line[:2], 16, 4096) is None  # nothing says how fast this CPU reads
    session.gpu = dataclasses.replace(session.gpu, bandwidth_bytes_per_second=4_800_000_000_000)
    fast, slow = (ranks_seconds(session.speed(), 258e9, late, 16, 4096) for late in (0.0, 1e-3))
    assert slow - fast == pytest.approx(2 * 48 * 1e-3)
    longer = ranks_seconds(session.speed(), *line[:2], 16, 8192)
    cache = 48 * 16 * 4096 * 2 * 2 * 128 * 2  # of the tokens more: layers, sequences, K and V of 2 heads in 16 bits
    assert longer - ranks_seconds(session.speed(), *line[:2], 16, 4096) == pytest.approx(cache / 4.8e12, rel=0.2)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"RANK": "0", "WORLD_SIZE": "2"}, "torchrun: the processes do not find each other"),
        ({"RANK": "1"}, None),
    ],
)
def test_half_a_torchrun_is_no_riddle(given: dict[str, str], says: str | None) -> None:
    env = {k: v for k, v in os.environ.items() if k not in ("MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE", "RANK")}
    only = "distributed" if says else "device"
    command = [sys.executable, "-m", "kvplan", "validate", "llama-3.2-1b", "--device", "cpu", "--quick", "--only", only]
    done = subprocess.run(command, env={**env, **given}, capture_output=True, text=True, timeout=60, check=False)
    if says is None:  # one process, whatever its rank is called: it speaks
        assert "memory free" in done.stdout
    else:
        assert done.returncode == 2
        assert says in done.stderr
        assert "internal error" not in done.stderr


def test_a_calibration_is_not_promised_under_torchrun(tmp_path: Path) -> None:
    first, second = launch("llama-3.2-1b", "--device", "cpu", "--quick", "--save", str(tmp_path / "x.json"))
    assert first.returncode == second.returncode == 2
    assert "--save: under torchrun nothing is measured that a calibration holds" in first.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_rank_without_memory_tells_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    from types import SimpleNamespace

    from kvplan.errors import KvplanError
    from kvplan.probe import distributed

    said: list[str] = []
    session: Any = SimpleNamespace(lack=said.append)
    monkeypatch.setattr(distributed, "_gathered", lambda value, group: [value, "out of memory"])
    assert distributed._agreed(session, distributed.Group(0, 2), lambda: 7, "step") is None
    assert said == ["distributed, step: rank 1: out of memory"]
    monkeypatch.setattr(distributed, "_gathered", lambda value, group: [value, None])
    assert distributed._agreed(session, distributed.Group(0, 2), lambda: 7, "step") == 7

    def full() -> None:
        raise MemoryError

    assert distributed._agreed(session, distributed.Group(0, 2), full, "step") is None
    assert said[-1] == "distributed, step: rank 0: out of memory"

    def left_out() -> None:
        raise KvplanError("one layer takes more than there is")

    assert distributed._agreed(session, distributed.Group(0, 2), left_out, "step") is None
    assert said[-1] == "distributed, step: rank 0: one layer takes more than there is"


ENDS = """
import os, signal, sys
from kvplan.cli.main import main
from kvplan.probe import distributed
def end(*args):
    {how}
if os.environ["RANK"] == "1":
    distributed._replicated = end
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.parametrize(
    ("how", "status", "says"),
    [
        ("raise MemoryError", 0, "rank 1: out of memory: out of memory within"),
        ("raise RuntimeError('an odd thing')", 0, "rank 1: distributed failed: RuntimeError: an odd thing"),
        ("os.kill(os.getpid(), signal.SIGKILL)", -9, ""),
    ],
)
def test_a_rank_that_ends_ends_the_others_with_a_report(how: str, status: int, says: str) -> None:
    """The first rank reports and fails; one that a launcher saw fail before it would have it ended without a word."""
    words = ("llama-3.2-1b", "--device", "cpu", "--quick", "--only", "distributed", "--json")
    first, second = launch(*words, code=ENDS.format(how=how))
    assert (first.returncode, second.returncode) == (1, status)
    assert says in second.stderr
    plain = json.loads(first.stdout)
    *before, row = plain["rows"]
    assert [r["name"] for r in before] == ["cache on rank 0", "cache on rank 1"]  # what was measured stays
    assert all(r["pass"] for r in before)
    assert (row["name"], row["pass"]) == ("distributed failed", False)
    assert "another rank stopped" in row["note"]
    assert plain["verdict"]["complete"] is False


FULL = """
import os, sys
from kvplan.cli.main import main
from kvplan.probe import {module}
original = {module}.{name}
def short(*args, **kwargs):
    if os.environ["RANK"] == "1":
        raise MemoryError
    return original(*args, **kwargs)
{module}.{name} = short
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.parametrize(
    ("module", "name", "says", "gone", "there"),
    [
        (
            "distributed", "_stored", "copies of the cache, as it is: rank 1: out of memory",
            "copies of the cache, as it is", "all-reduce, 4 MiB",
        ),
        (
            "stack", "run_layer", "step, 2 x 128: rank 1: out of memory", "step on rank 0, 2 x 128",
            "all-reduce, 4 MiB",
        ),
    ],
)  # fmt: skip
def test_a_rank_that_runs_out_says_so_before_the_next_message(
    module: str, name: str, says: str, gone: str, there: str
) -> None:
    words = ("llama-3.2-1b", "--device", "cpu", "--quick", "--only", "distributed", "--json")
    first, second = launch(*words, code=FULL.format(module=module, name=name))
    assert "Traceback" not in first.stderr + second.stderr
    plain = json.loads(first.stdout)
    names = {row["name"] for row in plain["rows"]}
    assert there in names
    assert gone not in names
    assert "distributed failed" not in names
    assert any(says in text for text in plain["warnings"])
    assert plain["verdict"]["complete"] is False


@pytest.mark.parametrize(
    ("asked", "there", "given"),
    [
        (None, True, "cuda:3"), ("auto", True, "cuda:3"), ("AUTO", True, "cuda:3"), ("cuda", True, "cuda:3"),
        ("cuda:1", True, "cuda:1"), ("cpu", True, "cpu"), ("auto", False, "auto"), (None, False, None),
    ],
)  # fmt: skip
def test_every_rank_takes_its_own_card(
    asked: str | None, there: bool, given: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    from kvplan.cli.validate import _local_device

    monkeypatch.setattr(torch.cuda, "is_available", lambda: there)
    monkeypatch.setenv("LOCAL_RANK", "3")
    assert _local_device(asked) == given
    monkeypatch.delenv("LOCAL_RANK")
    assert _local_device(asked) == asked


def test_what_runs_alone_is_refused_among_several() -> None:
    first, _ = launch("llama-3.2-1b", "--device", "cpu", "--only", "memory")
    assert first.returncode == 2
    assert "nothing to measure for memory" in first.stderr


def test_a_model_of_states_alone_has_messages_and_a_step() -> None:
    words = ("--device", "cpu", "--quick", "--only", "distributed", "--max-model-len", "2048", "--json")
    first, _ = launch("mamba2-2.7b", *words)
    assert first.returncode in (0, 1), first.stderr
    rows = {row["name"]: row for row in json.loads(first.stdout)["rows"]}
    assert "no layer of this model caches entries" in rows["cache"]["note"]
    assert rows["all-reduce, 4 MiB"]["measured"] > 0
    assert rows["step on rank 1, 2 x 128"]["measured"] > 0
    assert "and 64 all-reduces of" in rows["step on rank 1, 2 x 128: messages"]["note"]

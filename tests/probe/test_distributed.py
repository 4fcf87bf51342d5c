"""Two processes on one machine, gloo between them."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="the probe's extra is not installed")
if not torch.distributed.is_available():
    pytest.skip("this torch has no torch.distributed", allow_module_level=True)


def launch(*words: str, ranks: int = 2) -> list[subprocess.CompletedProcess[str]]:
    """`kvplan` in several processes that find each other as under ``torchrun``."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    started = []
    for rank in range(ranks):
        env = {
            **os.environ, "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(ranks),
            "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "OMP_NUM_THREADS": "1",
        }  # fmt: skip
        command = [sys.executable, "-m", "kvplan", "validate", *words]
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


def test_what_runs_alone_is_refused_among_several() -> None:
    first, _ = launch("llama-3.2-1b", "--device", "cpu", "--only", "memory")
    assert first.returncode == 2
    assert "nothing to measure for memory" in first.stderr

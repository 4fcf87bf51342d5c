"""Reading start-up logs: the right engine, the right figures, and bounded work on anything else."""

from __future__ import annotations

import contextlib
import io
import json
import os
import time
from pathlib import Path

import pytest

from kvplan.errors import InputError
from kvplan.sources import logs
from kvplan.sources.logs import read_lines, read_log
from kvplan.units import GIB, MIB

LOGS = Path(__file__).resolve().parent.parent / "data" / "logs"

EXPECTED = {
    "vllm-0.31.0-llama-3.1-8b": ("vllm", "0.31.0", {"kv": 56.21, "consumed": 15.26, "headroom": 1.44, "total": 79.25}),
    "vllm-0.22.0-qwen2.5-7b": ("vllm", "0.22.0", {"kv": 26.32, "graphs": 0.37, "weights": 14.29}),
    "vllm-0.10.2-qwen3-next-tp2": ("vllm", "0.10.2", {"kv": 44.59, "activation": 5.58, "outside": 1.38}),
    "vllm-v0-phi-4-gptq": ("vllm", "0.6.5", {"kv": 2.18, "weights": 8.5107, "activation": 0.94, "budget": 11.89}),
    "vllm-0.11.0-qwen3-32b-refused": ("vllm", "0.11.0", {"kv": 4.45, "needed": 7.81}),
    "sglang-qwen2.5-32b-tp4": ("sglang", "", {"kv": 2.84, "weights": 15.54, "free_before": 21.63}),
    "sglang-kimi-k2.5-tp8": ("sglang", "", {"kv": 160.63}),
    "sglang-qwen3.6-27b-eagle": ("sglang", "", {"kv": 5.22 * 2 + 0.12 + 3.09, "draft_pool": 0.66}),
    "llama.cpp-qwen3.5-27b-q3km": ("llama.cpp", "8467", {"kv": 1.5, "state": 149.62 / 1024}),
    "ollama-gpt-oss-120b": ("ollama", "0.30.2", {"kv": 9306 / 1024}),
    "ollama-engine-qwen3-30b": ("ollama", "", {"kv": 3.0, "weights": 18.5}),
    "tensorrt-llm-deepseek-v3": ("tensorrt-llm", "1.3.0rc1", {"kv": 41.11, "peak": 91.46, "total": 139.81}),
}


@pytest.mark.parametrize("name", EXPECTED)
def test_figures_of_each_engine(name: str) -> None:
    engine, version, figures = EXPECTED[name]
    log = read_log(str(LOGS / f"{name}.log"))
    assert (log.engine, log.version, log.starts) == (engine, version, 1)
    for figure, gib in figures.items():
        found = log.figure(figure)
        assert found is not None, figure
        assert found.value == pytest.approx(gib * GIB, abs=2), figure


def test_every_log_is_expected() -> None:
    assert {path.stem for path in LOGS.glob("*.log")} == set(EXPECTED)


def test_settings_come_with_their_lines() -> None:
    log = read_log(str(LOGS / "vllm-0.22.0-qwen2.5-7b.log"))
    lines = (LOGS / "vllm-0.22.0-qwen2.5-7b.log").read_text(encoding="utf-8").splitlines()
    found = {name: setting.value for name, setting in log.settings.items()}
    assert found["gpu_memory_utilization"] == 0.95
    assert found["max_model_len"] == 4096
    assert found["max_num_batched_tokens"] == 2048
    assert found["max_cudagraph_capture_size"] == 256
    assert found["flashinfer_sampler"] is True
    assert "max_num_batched_tokens=2048" in lines[log.settings["max_num_batched_tokens"].line - 1]
    kv = log.figure("kv")
    assert kv is not None
    assert "Available KV cache memory: 26.32" in lines[kv.line - 1]
    assert kv.half == pytest.approx(0.005 * GIB)


def test_the_rank_with_the_least_cache_decides() -> None:
    text = b"(Worker_TP0) Available KV cache memory: 8.11 GiB\n(Worker_TP1) Available KV cache memory: 8.02 GiB\n"
    found = read_lines(io.BytesIO(text)).figure("kv")
    assert found is not None
    assert found.value == round(8.02 * GIB)


def test_ranks_of_sglang_are_not_added_up() -> None:
    log = read_log(str(LOGS / "sglang-qwen2.5-32b-tp4.log"))
    assert len(log.run.figures["pool"]) == 1
    tokens = log.figure("kv_tokens")
    assert tokens is not None
    assert tokens.value == 46611


def test_windowed_pools_of_sglang() -> None:
    text = (
        "[2026 TP0] Use sliding window memory pool. full_layer_tokens=1000, swa_layer_tokens=800\n"
        "[2026 TP0] KV Cache is allocated. #tokens: 800, K size: 1.00 GB, V size: 1.00 GB\n"
        "[2026 TP0] KV Cache is allocated. #tokens: 1000, K size: 2.00 GB, V size: 2.00 GB\n"
        "[2026 TP0] KV Cache is allocated. #tokens: 1000, K size: 0.50 GB, V size: 0.50 GB\n"
    )
    log = read_lines(io.BytesIO(text.encode()))
    whole, draft = log.figure("kv"), log.figure("draft_pool")
    assert whole is not None
    assert draft is not None
    assert (whole.value, draft.value) == (6 * GIB, 1 * GIB)


def test_the_last_start_counts() -> None:
    one = (LOGS / "vllm-0.31.0-llama-3.1-8b.log").read_bytes()
    other = (LOGS / "vllm-0.22.0-qwen2.5-7b.log").read_bytes()
    log = read_lines(io.BytesIO(one + other))
    assert (log.version, log.starts) == ("0.22.0", 2)
    assert any("2 starts" in text for text in log.warnings)


def test_a_draft_model_in_the_same_process_is_left_out() -> None:
    main = (LOGS / "llama.cpp-qwen3.5-27b-q3km.log").read_bytes()
    draft = (
        b"llama_model_loader: loaded meta data with 3 key-value pairs and 2 tensors from d.gguf (version GGUF V3)\n"
        b"llama_kv_cache: size = 99.00 MiB (24576 cells, 2 layers, 1/1 seqs), K (f16): 49.50 MiB, V (f16): 49.50 MiB\n"
    )
    found = read_lines(io.BytesIO(main + draft)).figure("kv")
    assert found is not None
    assert found.value == 1536 * MIB


def test_wrapping_does_not_matter() -> None:
    plain = (LOGS / "vllm-0.31.0-llama-3.1-8b.log").read_text(encoding="utf-8")
    wanted = read_lines(io.BytesIO(plain.encode())).run.figures
    lines = plain.splitlines()
    coloured = "\n".join(f"\x1b[1;36m(EngineCore)\x1b[0;0m {line}" for line in lines)
    docker = "\n".join(json.dumps({"log": f"{line}\n", "stream": "stdout"}, ensure_ascii=False) for line in lines)
    crlf = plain.replace("\n", "\r\n")
    for text in (coloured.encode(), docker.encode(), crlf.encode(), crlf.encode("utf-16")):
        assert read_lines(io.BytesIO(text)).run.figures == wanted


def test_pieces_do_not_cut_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    text = (LOGS / "vllm-0.31.0-llama-3.1-8b.log").read_bytes()
    wanted = read_lines(io.BytesIO(text)).run.figures
    for size in (64, 977, 4096):
        monkeypatch.setattr(logs, "_PIECE", size)
        assert read_lines(io.BytesIO(text)).run.figures == wanted


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"\n\n",
        b"INFO nothing here\n",
        os.urandom(100_000),
        b"\x00" * 100_000,
        b"Available KV cache memory: lots GiB\n",
    ],
)
def test_no_start_is_an_error(text: bytes) -> None:
    with pytest.raises(InputError) as caught:
        read_lines(io.BytesIO(text), "my.log")
    assert "my.log" in str(caught.value)
    if text.strip():
        assert "Available KV cache memory" in str(caught.value)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    for path in (str(tmp_path), str(tmp_path / "none.log"), "a\x00b"):
        with pytest.raises(InputError, match="cannot read the log"):
            read_log(path)


@pytest.mark.parametrize(
    "text",
    [
        b"non-default args: {'a': '" * 200_000,
        b"Available KV cache memory: 1.00 GiB " * 200_000,
        b"Available KV cache memory: 1.00 GiB\n" * 200_000,
        b"server_args=ServerArgs(" + b"a=" * 4_000_000,
        b"loaded meta data with 1 key-value pairs and 1 tensors from " * 100_000,
        b"x" * 8_000_000,
    ],
)
def test_hostile_logs_end_soon(text: bytes) -> None:
    began = time.process_time()
    with contextlib.suppress(InputError):
        read_lines(io.BytesIO(text))
    assert time.process_time() - began < 60


def test_a_log_is_read_up_to_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "MOST_BYTES", 2 << 20)
    noise = b"INFO loggers.py:310] Engine 000: GPU KV cache usage: 1.0%\n" * 100_000
    found = read_lines(io.BytesIO(b"Available KV cache memory: 1.00 GiB\n" + noise))
    assert any("read up to" in text for text in found.warnings)

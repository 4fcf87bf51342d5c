"""Logs of chosen figures: what each line gives, what a release says otherwise, and the sums that follow."""

from __future__ import annotations

import io

import pytest

from kvplan.engines.log_table import Device, Figure, difference, number, pairs, read_setting, table_of, tables
from kvplan.errors import InputError
from kvplan.sources.logs import Log, read_lines
from kvplan.units import GIB, KIB, MIB


def read(*lines: str) -> Log:
    return read_lines(io.BytesIO("\n".join(lines).encode()))


def values(log: Log, name: str) -> list[float]:
    return [figure.value for figure in log.run.figures.get(name, [])]


@pytest.mark.parametrize(
    ("text", "unit", "want"),
    [
        ("1.5", "gib", (1.5 * GIB, 0.05 * GIB, "bytes")), ("1,024", "mib", (1024 * MIB, 0.5 * MIB, "bytes")),
        ("2.25", "kib", (2.25 * KIB, 0.005 * KIB, "bytes")), ("7", "bytes", (7, 0, "bytes")),
        ("7.0", "bytes", (7, 0.05, "bytes")), ("12", "int", (12, 0, "tokens")),
        ("0.90", "float", (0.9, 0.005, "number")),
        ("-0.5", "gib", (-GIB / 2, 0.05 * GIB, "bytes")), ("1" * 24, "int", (int("1" * 24), 0, "tokens")),
    ],
)  # fmt: skip
def test_numbers(text: str, unit: str, want: tuple[float, float, str]) -> None:
    found = number(text, unit, 3)
    assert found is not None
    assert (found.value, found.unit, found.line) == (pytest.approx(want[0]), want[2], 3)
    assert found.half == pytest.approx(want[1])


@pytest.mark.parametrize("text", ["", "x", "1.2.3", "\u0661", "1" * 25, "-", "1e5"])
def test_no_numbers(text: str) -> None:
    assert number(text, "gib", 1) is None


def test_differences_add_up_what_was_rounded() -> None:
    found = difference(Figure(100, 5, "bytes", 2), Figure(30, 1, "bytes", 3), Figure(20, 2, "bytes", 4))
    assert found == (50, 8, "bytes", 2)


@pytest.mark.parametrize(
    ("text", "want"),
    [
        ("{'model': 'x/y', 'tp': 2, 'deep': {'a': 1}, 'on': True}", {"model": "x/y", "tp": "2", "deep": "{'a': 1}",
         "on": "True"}),
        ("ServerArgs(model='x y', tp_size=-1, f=0.9, none=None)", {"model": "x y", "tp_size": "-1", "f": "0.9",
         "none": "None"}),
        ("A(x=1, y=B(x=2))", {"x": "1", "y": "B"}),
    ],
)  # fmt: skip
def test_printed_pairs(text: str, want: dict[str, str]) -> None:
    assert pairs(text) == want


@pytest.mark.parametrize(
    ("kind", "text", "want"),
    [("flag", "True", True), ("flag", "no", False), ("flag", "1", True), ("flag", "on", True), ("flag", "yes", True),
     ("count", "'8'", 8), ("count", "x", None), ("share", "0.9", 0.9), ("share", "2", None)],
)  # fmt: skip
def test_printed_settings(kind: str, text: str, want: object) -> None:
    assert read_setting(kind, text) == want


def test_every_engine_reads_its_own() -> None:
    assert [table.engine for table in tables()] == ["vllm", "sglang", "llama.cpp", "tensorrt-llm"]
    assert table_of("ollama") is table_of("llama.cpp")
    assert table_of("sglang").engine == "sglang"


# ---- TensorRT-LLM ----

TRT = (
    "[TRT-LLM] TensorRT-LLM version: 1.2.0",
    "Memory used after loading model weights (inside torch) in memory usage profiling: 10.25 GiB",
    "Memory used after loading model weights (outside torch) in memory usage profiling: 1.50 GiB",
    "Memory dynamically allocated during inference (inside torch) in memory usage profiling: 2.00 GiB",
    "Memory used outside torch (e.g., NCCL and CUDA graphs) in memory usage profiling: 3.00 GiB",
    "Peak memory during memory usage profiling (torch + non-torch): 20.00 GiB, available KV cache memory when "
    "calculating max tokens: 45.00 GiB, fraction is set 0.75, kv size per token is 131072, device total memory 80.00 "
    "GiB",
    "max_seq_len=8192, max_num_requests=64, max_num_tokens=4096",
    "Number of tokens per block: 64",
    "Number of blocks in KV cache primary pool: 5760",
    "Allocated 45.00 GiB for max tokens in paged KV cache (368640)",
)


def test_tensorrt_llm() -> None:
    log = read(*TRT)
    assert (log.engine, log.version) == ("tensorrt-llm", "1.2.0")
    assert values(log, "weights") == [10.25 * GIB]
    assert values(log, "outside_loaded") == [1.5 * GIB]
    assert values(log, "activation") == [2 * GIB]
    assert values(log, "outside") == [3 * GIB]
    assert values(log, "peak") == [20 * GIB]
    assert values(log, "kv") == [45 * GIB]
    assert values(log, "token") == [131_072]
    assert values(log, "blocks") == [5760]
    assert values(log, "kv_tokens") == [368_640]
    settings = {name: (setting.value, setting.line) for name, setting in log.run.settings.items()}
    assert settings == {
        "free_gpu_memory_fraction": (0.75, 6), "max_model_len": (8192, 7), "max_num_seqs": (64, 7),
        "max_num_batched_tokens": (4096, 7), "tokens_per_block": (64, 8),
    }  # fmt: skip
    table = table_of("tensorrt-llm")
    assert table.shares is not None
    found = {share.name: share.said.value for share in table.shares(log.run, Device(1, 1, True))}
    assert found == {
        "weights": 10.25 * GIB, "activations, outside torch": 9.75 * GIB, "left free by the fraction": 15 * GIB,
    }  # fmt: skip


def test_tensorrt_llm_of_older_wordings() -> None:
    """The pool's size alone; no weights; no total: then the device's own."""
    log = read(TRT[0], "Allocated 5.50 GiB for max tokens (45056)")
    assert values(log, "kv") == values(log, "allocated") == [5.5 * GIB]
    peak = (
        "Peak memory during memory usage profiling (torch + non-torch): 20.00 GiB, available KV cache memory when "
        "calculating max tokens: 30.00 GiB"
    )
    log = read(TRT[0], peak)
    table = table_of("tensorrt-llm")
    assert table.shares is not None
    found = table.shares(log.run, Device(60 * GIB, 1, True))
    assert [(share.name, share.said.value) for share in found] == [
        ("peak: weights, activations, outside torch", 20 * GIB), ("left free by the fraction", 10 * GIB),
    ]  # fmt: skip
    only = read(TRT[0], TRT[1], TRT[9])
    assert [(s.name, s.said.value) for s in table.shares(only.run, Device(1, 1, True))] == [("weights", 10.25 * GIB)]
    assert table.shares(read(TRT[0], TRT[9]).run, Device(1, 1, True)) == []


# ---- SGLang ----

ARGS = "server_args=ServerArgs(model_path='openai/gpt-oss-20b', tp_size=2, kv_cache_dtype='auto', page_size=16)"
POOL = "max_total_num_tokens=1000, chunked_prefill_size=4096, max_prefill_tokens=16384, max_running_requests=100, "


def test_sglang_with_windows_and_a_draft() -> None:
    """The first two pools of the first rank are the model's, what follows is the draft's; other ranks repeat them."""
    log = read(
        ARGS, "[TP0] Load weight begin. avail mem=70.00 GB", "[TP1] Load weight begin. avail mem=69.00 GB",
        "[TP0] Load weight end. type=X, dtype=torch.bfloat16, avail mem=60.50 GB, mem usage=9.50 GB.",
        "[TP0] Use sliding window memory pool. full_layer_tokens=1000, swa_layer_tokens=800",
        "[TP0] KV Cache is allocated. #tokens: 800, K size: 1.00 GB, V size: 2.00 GB",
        "[TP0] KV Cache is allocated. #tokens: 1000, K size: 4.00 GB, V size: 5.00 GB",
        "[TP0] KV Cache is allocated. #tokens: 1000, KV size: 0.50 GB",
        "[TP1] KV Cache is allocated. #tokens: 1000, KV size: 7.00 GB",
        f"[TP0] {POOL}context_len=8192, available_gpu_mem=11.25 GB",
    )  # fmt: skip
    assert (log.engine, log.model) == ("sglang", "openai/gpt-oss-20b")
    assert values(log, "pool") == [3 * GIB, 9 * GIB]
    assert values(log, "draft_pool") == [GIB / 2]
    assert values(log, "kv") == [12 * GIB]
    assert log.run.figures["kv"][0].half == pytest.approx(4 * 0.005 * GIB)
    assert values(log, "pool_tokens") == [800, 1000]
    assert values(log, "kv_tokens") == [1000]
    assert values(log, "running") == [100]
    assert values(log, "free_end") == [11.25 * GIB]
    assert log.run.settings["max_model_len"].value == 8192
    assert log.run.settings["chunked_prefill_size"].value == 4096
    assert log.run.settings["page_size"].value == 16
    assert "kv_cache_dtype" not in log.run.settings
    table = table_of("sglang")
    assert table.shares is not None
    gone, weights = table.shares(log.run, Device(80 * GIB, 60 * GIB, False))
    assert gone.said.value == 0.75 * 11 * GIB
    assert gone.said.half == pytest.approx(0.75 * 0.005 * GIB)
    assert weights.said.value == 9.5 * GIB


def test_sglang_with_states() -> None:
    state = "Mamba Cache is allocated. max_mamba_cache_size: 300, conv_state size: 0.25GB, ssm_state size: 3.00GB"
    lines = [ARGS, state, "KV Cache is allocated. #tokens: 9, K size: 1.00 GB, V size: 1.00 GB", f"{POOL}context_len=9"]
    log = read(*lines)
    assert values(log, "state_slots") == [300]
    assert values(log, "kv") == [5.25 * GIB]
    assert "max_mamba_cache_size" not in log.run.settings
    drafted = read(*lines[:3], "KV Cache is allocated. #tokens: 9, K size: 0.50 GB, V size: 0.50 GB", lines[3])
    assert (drafted.run.settings["max_mamba_cache_size"].value, values(drafted, "kv")) == (300, [5.25 * GIB])
    given = read(lines[0].replace(", page", ", max_mamba_cache_size=77, page"), *lines[1:3], lines[2], lines[3])
    assert given.run.settings["max_mamba_cache_size"].value == 77


def test_sglang_weights_from_what_was_free() -> None:
    log = read(
        ARGS, "Load weight begin. avail mem=70.00 GB", "Load weight end. type=X, dtype=y, avail mem=58.00 GB",
        "Capture cuda graph end. Time elapsed: 7.23 s. avail mem=0.53 GB. mem usage=0.93 GB.",
        "Memory pool end. avail mem=2.09 GB", f"{POOL}context_len=9",
    )  # fmt: skip
    table = table_of("sglang")
    assert table.shares is not None
    assert [s.said.value for s in table.shares(log.run, Device(80 * GIB, 80 * GIB, False))] == [10 * GIB, 12 * GIB]
    assert values(log, "captured") == [pytest.approx(0.93 * GIB)]
    assert values(log, "free_pool") == [pytest.approx(2.09 * GIB, abs=1)]


def test_sglang_refuses() -> None:
    log = read(
        ARGS, "RuntimeError: Not enough memory. Please try to increase --mem-fraction-static. Current value: 0.8"
    )
    assert log.run.refusals == ["Not enough memory. Please try to increase --mem-fraction-static"]


def test_lines_of_no_engine() -> None:
    with pytest.raises(InputError):
        read("hello", "world")


# ---- figures of several ranks ----


def test_least_most_and_last() -> None:
    log = read(ARGS, *(f"[TP{n}] Load weight begin. avail mem={gb} GB" for n, gb in enumerate(("3.0", "1.0", "2.0"))),
               f"{POOL}context_len=9")  # fmt: skip
    found = [getattr(log.run, pick)("free_before") for pick in ("least", "most", "last")]
    assert [(f.value, f.line) for f in found] == [(GIB, 3), (3 * GIB, 2), (2 * GIB, 4)]
    assert log.run.least("nothing") is log.run.most("nothing") is log.run.last("nothing") is None

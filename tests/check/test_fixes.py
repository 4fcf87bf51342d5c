"""The change that a message names passes, and the one before it does not."""

from __future__ import annotations

from typing import Any

import pytest

import kvplan

from .conftest import Write, findings, result

BASE = {"model": "llama-3.1-8b", "gpu": "h100-sxm"}


def file_of(rules: list[str], **settings: Any) -> str:
    said = ", ".join(f"{key.replace('_', '-')}: {value}" for key, value in {**BASE, **settings}.items())
    return "deployments:\n  a:\n    " + f"<settings>\n    rules: {rules}\n".replace(
        "<settings>", said.replace(", ", "\n    ")
    )


def fixed(rules: list[str], write: Write, **settings: Any) -> list[tuple[bool, str | None]]:
    write(file_of(rules, **settings))
    return [(f["pass"], f["fix"]) for f in findings(result())]


def parts(fix: str | None) -> tuple[str, int]:
    assert fix is not None
    flag, value = fix.split()
    return flag, int(value)


def test_the_longest_length_that_passes(write: Write) -> None:
    ((held, fix),) = fixed(["capacity.max_concurrency >= 8"], write)
    flag, length = parts(fix)
    assert (held, flag) == (False, "--max-model-len")
    assert fixed(["capacity.max_concurrency >= 8"], write, max_model_len=length)[0][0]
    assert not fixed(["capacity.max_concurrency >= 8"], write, max_model_len=length + 1)[0][0]


def test_the_middle_is_what_the_library_plans(write: Write) -> None:
    write(file_of(["{rule: capacity.max_concurrency >= 8, bound: mid}"]).replace("'", ""))
    (found,) = findings(result())
    _, length = parts(found["fix"])
    plans = [kvplan.plan("llama-3.1-8b", gpu="h100-sxm", max_model_len=n) for n in (length, length + 1)]
    first, second = (p.capacity.max_concurrency for p in plans if p.capacity)
    assert first is not None
    assert second is not None
    assert first >= 8 > second
    assert found["value"] == kvplan.plan("llama-3.1-8b", gpu="h100-sxm").capacity.max_concurrency  # type: ignore[union-attr]


def test_a_longer_length_where_that_is_what_is_missing(write: Write) -> None:
    ((_, fix),) = fixed(["capacity.requests_at(32K) >= 4"], write, max_model_len=8192)
    assert fix == "--max-model-len 32768"


def test_the_smallest_share_of_the_memory(write: Write) -> None:
    rules = ["capacity.kv_tokens >= 300K"]
    ((_, fix),) = fixed(rules, write, gpu_memory_utilization=0.5, max_model_len=8192, kv_cache_dtype="auto")
    assert fix is not None
    flag, share = fix.split()
    assert flag == "--gpu-memory-utilization"
    less = round(float(share) - 0.001, 3)
    assert fixed(rules, write, gpu_memory_utilization=share, max_model_len=8192)[0][0]
    assert not fixed(rules, write, gpu_memory_utilization=less, max_model_len=8192)[0][0]


def test_the_most_sequences_for_which_the_memory_is_enough(write: Write) -> None:
    rules = ["memory.activation_bytes <= 2 GiB"]
    ((_, fix),) = fixed(rules, write, max_num_seqs=1024, max_model_len=8192)
    flag, sequences = parts(fix)
    assert flag == "--max-num-seqs"
    assert fixed(rules, write, max_num_seqs=sequences, max_model_len=8192)[0][0]
    assert not fixed(rules, write, max_num_seqs=sequences + 1, max_model_len=8192)[0][0]


def test_a_smaller_cache_format(write: Write) -> None:
    ((_, fix),) = fixed(["kv.bytes_per_token <= 100 KiB"], write)
    assert fix == "--kv-cache-dtype fp8"
    assert fixed(["kv.bytes_per_token <= 100 KiB"], write, kv_cache_dtype="fp8")[0][0]


def test_more_gpus(write: Write) -> None:
    rules = ["memory.weights_bytes <= 8 GiB"]
    ((_, fix),) = fixed(rules, write)
    assert fix == "--tensor-parallel-size 2"
    assert fixed(rules, write, tensor_parallel_size=2)[0][0]


def test_fewer_requests_come_last(write: Write) -> None:
    rules = ["verdict.fits == true"]
    load = {"prompt_tokens": "32K", "output_tokens": 1, "max_model_len": "33K"}
    ((_, fix),) = fixed(rules, write, concurrency=14, **load)
    assert fix is not None
    assert not fix.startswith("--concurrency")
    flat = {"gpu_memory_utilization": 0.95, "kv_cache_dtype": "fp8", "kv_cache_memory_bytes": 20 << 30}
    ((_, fix),) = fixed(rules, write, concurrency=40, **load, **flat)
    flag, requests = parts(fix)
    if flag == "--concurrency":
        assert fixed(rules, write, concurrency=requests, **load, **flat)[0][0]
        assert not fixed(rules, write, concurrency=requests + 1, **load, **flat)[0][0]


def test_a_change_that_breaks_another_rule_is_none(write: Write) -> None:
    alone = fixed(["capacity.max_concurrency >= 4"], write)
    assert parts(alone[0][1])[0] == "--max-model-len"
    both = fixed(["capacity.max_concurrency >= 4", "inputs.max_model_len >= 128K"], write)
    assert both[0][1] == "--kv-cache-dtype fp8"
    none = fixed(
        [
            "capacity.max_concurrency >= 4", "inputs.max_model_len >= 128K", "inputs.kv_cache_dtype == auto",
            "inputs.gpus == 1", "inputs.weights == auto",
        ],
        write,
    )  # fmt: skip
    assert none[0] == (False, None)
    assert all(held for held, _ in none[1:])


def test_no_length_falls_below_a_request_of_any_workload(write: Write) -> None:
    write("""
        workloads: {chat: {prompt-tokens: 1K, concurrency: 1}, rag: {prompt-tokens: 60K, output-tokens: 1K}}
        rules: [capacity.max_concurrency >= 8]
        deployments: {a: {model: llama-3.1-8b, gpu: h100-sxm, workloads: [chat, rag]}}
    """)
    for found in findings(result()):
        assert found["fix"] is None or not found["fix"].startswith("--max-model-len")


@pytest.mark.parametrize(
    ("command", "rule", "flag"),
    [
        ("python -m sglang.launch_server --model-path Qwen/Qwen3-32B --tp-size 2 --mem-fraction-static 0.6",
         "capacity.kv_tokens >= 150K", "--mem-fraction-static"),
        ("vllm serve llama-3.1-8b --max-model-len=131072", "capacity.max_concurrency >= 8", "--max-model-len"),
        ("vllm serve llama-3.1-8b -tp 1", "memory.weights_bytes <= 8 GiB", "-tp"),
        ("trtllm-serve llama-3.1-8b --max_seq_len 131072 --max_batch_size 8", "kv.bytes_per_sequence <= 4 GiB",
         "--max_seq_len"),
        ("llama-server -hf unsloth/Qwen3-8B-GGUF:Q4_K_M -c 65536 -fa on", "memory.kv_bytes <= 5 GiB", "-c"),
        ("llama-server -hf unsloth/Qwen3-8B-GGUF:Q4_K_M -c 65536 -np 1 -fa on", "kv.bytes_per_token <= 100 KiB",
         "--cache-type-k"),
    ],
)  # fmt: skip
def test_a_change_is_spelled_as_the_command_spells_it(write: Write, command: str, rule: str, flag: str) -> None:
    write(f"deployments:\n  a:\n    command: {command}\n    gpu: h100-sxm\n    rules: ['{rule}']\n")
    (found,) = findings(result())
    assert not found["pass"]
    assert found["fix"] is not None
    assert found["fix"].split()[0] == flag
    words = found["fix"].split()
    changed = command
    for name, value in zip(words[::2], words[1::2], strict=True):
        changed = f"{changed} {name} {value}"
    write(f"deployments:\n  a:\n    command: {changed}\n    gpu: h100-sxm\n    rules: ['{rule}']\n")
    assert findings(result())[0]["pass"]


def test_one_change_for_all_rules_of_a_deployment(write: Write) -> None:
    rules = ["capacity.max_concurrency >= 6", "capacity.max_concurrency >= 8", "verdict.fits == true"]
    write(file_of(rules))
    (deployment,) = result()["deployments"]
    lengths = [parts(f["fix"])[1] for f in deployment["findings"] if not f["pass"]]
    assert deployment["fix"] == f"--max-model-len {min(lengths)}"
    assert all(held for held, _ in fixed(rules, write, max_model_len=min(lengths)))
    write(file_of(rules[1:]))
    assert result()["deployments"][0]["fix"] is None  # one broken rule says it itself


POD = """apiVersion: v1
kind: Pod
metadata: {name: x}
spec:
  containers:
    - name: vllm
      image: vllm/vllm-openai:latest
      args: [--model, Qwen/Qwen3-32B, -tp, "TP", --enforce-eager, --max-model-len, "32768"]
      resources: {limits: {nvidia.com/gpu: TP}}
"""


def test_a_change_of_tp_names_the_gpus_that_are_counted_elsewhere(write: Write) -> None:
    rule = "rules: [memory.weights_bytes <= 10 GiB]\n"
    manifest = rule + "deployments: {m: {from: m.yaml, gpu: h100-sxm}}"
    fields = rule + "deployments: {y: {model: qwen3-32b, gpu: h100-sxm, tp: TP, gpus: TP}}"
    for text, flag in ((manifest, "-tp"), (fields, "--tensor-parallel-size")):
        write(text.replace("TP", "2"), m_yaml=POD.replace("TP", "2"))
        (found,) = findings(result())
        assert found["fix"] == f"{flag} 8 with 8 GPUs"
        write(text.replace("TP", "8"), m_yaml=POD.replace("TP", "8"))
        assert findings(result())[0]["pass"]


def test_no_more_gpus_than_a_host_has_are_suggested(write: Write) -> None:
    ((held, fix),) = fixed(["memory.weights_bytes <= 3 GiB"], write, model="qwen3-32b")
    assert (held, fix) != (False, "--tensor-parallel-size 32")
    assert fix is None or not fix.startswith("--tensor")

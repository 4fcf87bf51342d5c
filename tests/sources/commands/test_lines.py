"""Pasted command lines: which engine, which model, which settings."""

from __future__ import annotations

from typing import Any

import pytest

from kvplan.engines import get_engine
from kvplan.engines.command_line import grammars
from kvplan.errors import InputError, KvplanError
from kvplan.planning.settings import COMMON
from kvplan.sources.commands import is_command, read_command

VLLM = {"tensor_parallel_size": 2, "max_model_len": 32768}


@pytest.mark.parametrize(
    ("line", "engine", "model", "settings"),
    [
        ("vllm serve Qwen/Qwen3-32B -tp 2 --max-model-len 32K", "vllm", "Qwen/Qwen3-32B", VLLM),
        ("vllm serve --max_model_len=32768 -tp=2 --model Qwen/Qwen3-32B", "vllm", "Qwen/Qwen3-32B", VLLM),
        (
            "python3 -m vllm.entrypoints.openai.api_server --model Qwen/Qwen3-32B "
            "--tensor-parallel-size 2 --max-model-len 32K",
            "vllm",
            "Qwen/Qwen3-32B",
            VLLM,
        ),
        ("vllm serve Qwen/Qwen3-32B --tensor-parallel 2 --max-model 32K", "vllm", "Qwen/Qwen3-32B", VLLM),
        (
            "vllm serve Qwen/Qwen3-32B -tp 4 -tp 2 --max-model-len -1",
            "vllm",
            "Qwen/Qwen3-32B",
            {"tensor_parallel_size": 2, "max_model_len": -1},
        ),
        (
            "VLLM_ALLOW_LONG_MAX_MODEL_LEN=1 vllm serve Qwen/Qwen3-8B --enforce-eager --no-enforce-eager",
            "vllm",
            "Qwen/Qwen3-8B",
            {"allow_long_max_model_len": True},
        ),
        (
            "vllm serve Qwen/Qwen3-8B --disable-prefix-caching -ep",
            "vllm",
            "Qwen/Qwen3-8B",
            {"enable_prefix_caching": False, "enable_expert_parallel": True},
        ),
        (
            "vllm serve Qwen/Qwen3-8B --speculative-config.method mtp --spec-tokens 2",
            "vllm",
            "Qwen/Qwen3-8B",
            {"speculative_config": '{"method": "mtp", "num_speculative_tokens": 2}'},
        ),
        (
            "python -m sglang.launch_server --model-path m/x --tp 8 --dp-size 8 --enable-dp-attention --ep 8",
            "sglang",
            "m/x",
            {"tensor_parallel_size": 8, "attn_dp_size": 8, "enable_expert_parallel": True},
        ),
        (
            "sglang serve m/x --dp 2 --mem-fraction 0.8 --context-length 8192 --chunked-prefill-size -1",
            "sglang",
            "m/x",
            {"data_parallel_size": 2, "mem_fraction_static": 0.8, "max_model_len": 8192},
        ),
        (
            "trtllm-serve m/x --tp_size 2 --max_seq_len 8192 --max_batch_size 16 --free_gpu_memory_fraction 0.8",
            "tensorrt-llm",
            "m/x",
            {"tensor_parallel_size": 2, "max_model_len": 8192, "max_num_seqs": 16, "free_gpu_memory_fraction": 0.8},
        ),
        (
            "llama-server -hf a/b-GGUF:Q8_0 -c 8192 -fa -np 2 -ngl 99 -nkvo",
            "llama.cpp",
            "a/b-GGUF:Q8_0",
            {"ctx_size": 8192, "flash_attn": "on", "parallel": "2", "n_gpu_layers": "99", "kv_offload": False},
        ),
        (
            "LLAMA_ARG_CTX_SIZE=4096 LLAMA_ARG_SWA_FULL=1 LLAMA_ARG_KV_OFFLOAD=0 llama-server -hf a/b:Q4_K_M -fa off",
            "llama.cpp",
            "a/b:Q4_K_M",
            {"ctx_size": 4096, "swa_full": True, "kv_offload": False, "flash_attn": "off"},
        ),
        (
            "OLLAMA_CONTEXT_LENGTH=8192 OLLAMA_KV_CACHE_TYPE=q8_0 ollama run llama3.1:8b 'say hello'",
            "ollama",
            "llama3.1:8b",
            {"num_ctx": 8192, "kv_cache_dtype": "q8_0"},
        ),
        ("export OLLAMA_NUM_PARALLEL=4; ollama serve & ollama run qwen3:8b", "ollama", "qwen3:8b", {"num_parallel": 4}),
        (
            "CUDA_VISIBLE_DEVICES=0,1 vllm serve a/b -dp 8 -dpl 2 --headless",
            "vllm",
            "a/b",
            {"data_parallel_size": 8, "gpus": 8},
        ),
        (
            "CUDA_VISIBLE_DEVICES=0,1 vllm serve a/b -dp 4 -tp 2 --data-parallel-rank 3",
            "vllm",
            "a/b",
            {"data_parallel_size": 4, "tensor_parallel_size": 2, "gpus": 8},
        ),
        (
            "CUDA_VISIBLE_DEVICES=0,1,2,3 python -m sglang.launch_server --model a/b --tp 8 --nnodes 2 --node-rank 1",
            "sglang",
            "a/b",
            {"tensor_parallel_size": 8, "gpus": 8},
        ),
    ],
)
def test_each_engine(line: str, engine: str, model: str, settings: dict[str, Any]) -> None:
    assert is_command(line)
    command = read_command(line)
    assert (command.engine, command.model, command.settings) == (engine, model, settings)
    assert command.unknown == ()
    assert command.problems == {}
    assert set(settings) <= set(command.typed)


@pytest.mark.parametrize(
    "wrapped",
    [
        "sudo -E -u vllm {}",
        "exec {}",
        "nohup {} > log 2>&1 &",
        "env -u X A=1 {}",
        "timeout -k 5 1h {}",
        "time {}",
        "nice -n 5 {}",
        "taskset -c 0-7 {}",
        "numactl -N 0 -m 0 {}",
        "uv run --with vllm {}",
        "uvx --from vllm {}",
        "poetry run {}",
        "conda run -n env {}",
        "srun -N 1 --gpus=2 {}",
        "mpirun -n 2 {}",
        "bash -c '{}'",
        "sh -lc 'exec {}'",
        "sudo env A=1 nohup bash -c 'cd /x && {}'",
        "cd /srv && {}",
        "tmux new-session -d -s x '{}'",
        "eval '{}'",
        "tini -- {}",
        "/opt/venv/bin/{}",
        "python /usr/local/bin/{}",
        "nsys profile -o out {}",
        "( {} )",
        "! {}",
        "docker run --rm -it --gpus all -v a:b -p 1:2 some/image {}",
        "while true; do {}; done",
    ],
)
def test_wrappers_are_looked_through(wrapped: str) -> None:
    command = read_command(wrapped.format("vllm serve Qwen/Qwen3-32B -tp 2 --max-model-len 32K"))
    assert (command.model, command.settings) == ("Qwen/Qwen3-32B", VLLM)


@pytest.mark.parametrize(
    ("line", "engine", "settings"),
    [
        (
            "docker run --gpus 2 -e VLLM_X=1 --ipc=host vllm/vllm-openai:v0.11.0 --model m/x -tp 2",
            "vllm@0.11.0",
            {"tensor_parallel_size": 2, "gpus": 2},
        ),
        ("podman run -d --device nvidia.com/gpu=all quay.io/mirror/vllm/vllm-openai:latest m/x", "vllm", {}),
        (
            "docker run --gpus '\"device=0,3\"' --entrypoint python3 "
            "lmsysorg/sglang:v0.5.6.post1-cu126 -m sglang.launch_server --model-path m/x",
            "sglang@0.5.6",
            {"gpus": 2},
        ),
        (
            "docker run -eLLAMA_ARG_CTX_SIZE=4096 ghcr.io/ggml-org/llama.cpp:full-cuda --server -hf m/x:Q4_K_M",
            "llama.cpp",
            {"ctx_size": 4096},
        ),
        (
            "docker run nvcr.io/nvidia/tensorrt-llm/release:1.3.0rc1 trtllm-serve m/x --tp_size 2",
            "tensorrt-llm",
            {"tensor_parallel_size": 2},
        ),
    ],
)
def test_docker_run(line: str, engine: str, settings: dict[str, Any]) -> None:
    command = read_command(line)
    assert (command.engine, command.settings) == (engine, settings)


def test_flags_without_a_bearing_and_flags_nobody_knows() -> None:
    command = read_command(
        "VLLM_USE_V1=1 vllm serve Qwen/Qwen3-8B --served-model-name a b --host 0.0.0.0 -O3 --trust-remote-code "
        "--no-enable-log-requests --frobnicate 7 --zap --max-model-len 8K stray $MORE"
    )
    assert command.ignored == (
        "VLLM_USE_V1",
        "--served-model-name",
        "--host",
        "-O3",
        "--trust-remote-code",
        "--no-enable-log-requests",
    )
    assert command.unknown == ("--frobnicate 7", "--zap", "stray", "$MORE")
    assert command.settings == {"max_model_len": 8192}
    assert command.warnings == ("$MORE is not set here: flags in it are not read",)


def test_a_word_after_a_flag_that_takes_one_is_not_the_model() -> None:
    assert read_command("vllm serve --tokenizer a/b Qwen/Qwen3-8B").model == "Qwen/Qwen3-8B"
    assert read_command("vllm serve --trust-remote-code Qwen/Qwen3-8B").model == "Qwen/Qwen3-8B"
    line = "python -m sglang.launch_server --model-path Qwen/Qwen3-8B --cuda-graph-max-bs 128 --disable-radix-cache"
    assert read_command(line).model == "Qwen/Qwen3-8B"
    assert read_command("vllm serve --enable-chunked-prefill false Qwen/Qwen3-8B").model == "Qwen/Qwen3-8B"


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("vllm serve Qwen/Qwen3-8B --cpu-offload-gb 20", "--cpu-offload-gb 20 changes what the memory holds"),
        ("vllm serve Qwen/Qwen3-8B -pcp 2", "-pcp 2 changes what the memory holds"),
        ("vllm serve Qwen/Qwen3-8B --hf-overrides.rope_type yarn", "changes what the memory holds"),
        ("llama-server -hf Qwen/Qwen3-8B-GGUF", "Q4_K_M is what llama.cpp looks for first"),
        (
            "llama-server -m /models/Qwen3-8B-Q4_K_M-00001-of-00002.gguf",
            "planned as what the catalog calls Qwen3-8B-Q4_K_M",
        ),
        ("vllm serve s3://bucket/models/Qwen3-8B", "planned as what the catalog calls"),
        ("trtllm-serve Qwen/Qwen3-8B --config /etc/x.yaml", "--config /etc/x.yaml is not here"),
        ("python -m sglang.launch_server --model Qwen/Qwen3-8B --chunked-prefill-size -1", "prefill in one piece"),
    ],
)
def test_what_is_not_modelled_is_said(line: str, said: str) -> None:
    assert any(said in text for text in read_command(line).warnings)


@pytest.mark.parametrize(
    ("name", "model"),
    [
        ("/root/.cache/huggingface/hub/models--Qwen--Qwen3-8B/snapshots/abc", "Qwen/Qwen3-8B"),
        (
            "https://huggingface.co/unsloth/Qwen3-8B-GGUF/resolve/main/Qwen3-8B-Q4_K_M.gguf?download=true",
            "Qwen3-8B-Q4_K_M",
        ),
        ("hf://Qwen/Qwen3-8B", "Qwen/Qwen3-8B"),
        ("$HOME/models/Qwen3-8B-Q4_K_M.gguf", "Qwen3-8B-Q4_K_M"),
        ("${DIR}/Qwen3-8B", "Qwen3-8B"),
        ("$A/$B/Qwen3-8B", "Qwen3-8B"),
        ("/data/Qwen3-8B/", "Qwen3-8B"),
    ],
)
def test_paths_and_addresses_of_models(name: str, model: str) -> None:
    assert read_command(f"llama-server -m {name}").model == model


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("vllm serve $MODEL --max-model-len 8K", r"the model: \$MODEL is not set here"),
        ("llama-server -m x/${M}.gguf", r"-m: \$\{M\} is not set here"),
        ("llama-server -m ${M}/", r"-m: \$\{M\} is not set here"),
        ("llama-server -m ${M}/x.gguf", r"\$\{M\}/x.gguf: is not here"),
        ("vllm serve", "vllm is started without a model"),
        ("ollama serve", "ollama is started without a model"),
        ("ls -la /tmp", "starts no engine: ls -la /tmp"),
        ("pip install vllm", "starts no engine"),
        ("echo vllm serve Qwen/Qwen3-8B", "starts no engine"),
        ("vllm bench serve --model Qwen/Qwen3-8B", "starts no engine"),
        ("vllm serve 'Qwen/Qwen3-8B", "command line:1: a ' does not end"),
        ("vllm serve a/b; vllm serve c/d", r"starts 2 engines: vllm, vllm"),
        ("vllm serve /nowhere/my-finetune", "is not here, and the catalog knows no model of that name"),
        ("vllm serve " + "x" * 300_000, "is longer than"),
        ("vllm serve \x1b[31mred -tp 2\x1b]0;x\x07 | vllm serve b", r"starts 2 engines"),
    ],
)
def test_one_line_says_what_is_wrong(line: str, said: str) -> None:
    with pytest.raises(KvplanError, match=said) as caught:
        read_command(line)
    assert caught.value.hint
    assert str(caught.value).isprintable()


@pytest.mark.parametrize(
    ("line", "setting", "said"),
    [
        (
            "vllm serve Qwen/Qwen3-8B --max-model-len $LEN --port $PORT",
            "max_model_len",
            r"--max-model-len: \$LEN is not set here",
        ),
        (
            "vllm serve Qwen/Qwen3-8B -tp $(nproc)",
            "tensor_parallel_size",
            r"-tp: \$\(nproc\) is a command, and none is run",
        ),
        ("vllm serve Qwen/Qwen3-8B -tp two", "tensor_parallel_size", "-tp: 'two' is not a whole number"),
        ("vllm serve Qwen/Qwen3-8B --max-model-len --enforce-eager", "max_model_len", "--max-model-len: needs a value"),
        ("LLAMA_ARG_CTX_SIZE=lots llama-server -hf a/b:Q8_0", "ctx_size", "LLAMA_ARG_CTX_SIZE: 'lots'"),
    ],
)
def test_a_value_that_matters_is_needed_unless_it_is_replaced(line: str, setting: str, said: str) -> None:
    command = read_command(line)
    with pytest.raises(KvplanError, match=said):
        command.under({})
    settings, report = command.under({setting: 3})
    assert settings[setting] == 3
    assert report.overridden == (setting,)


def test_settings_that_say_the_same_replace_each_other() -> None:
    command = read_command("llama-server -hf a/b:Q8_0 -c 8192 -ctk q8_0 -ctv q8_0 --mlock")
    settings, report = command.under({"max_model_len": 4096})
    assert settings == {"max_model_len": 4096, "cache_type_k": "q8_0", "cache_type_v": "q8_0"}
    assert report.overridden == ("-c 8192",)
    assert command.under({"cache_type_k": "f16"})[0]["cache_type_v"] == "q8_0"
    settings, report = command.under({"kv_cache_dtype": "q4_0"})
    assert settings == {"ctx_size": 8192, "kv_cache_dtype": "q4_0"}
    assert report.to_dict()["ignored"] == ["--mlock"]


def test_settings_of_another_engine_are_left_out() -> None:
    command = read_command("vllm serve Qwen/Qwen3-8B -tp 2 --enforce-eager --max-num-seqs $N")
    settings, report = command.under({}, accepted={"tensor_parallel_size"})
    assert settings == {"tensor_parallel_size": 2}
    assert report.ignored == ("--enforce-eager",)


def test_every_setting_is_one_its_engine_has() -> None:
    for grammar in grammars():
        known = COMMON | get_engine(grammar.engine).settings
        assert {option.setting for option in grammar.options} <= known, grammar.engine
        assert set(grammar.aliases.values()) <= {option.setting for option in grammar.options}, grammar.engine
        assert set(grammar.environment.values()) <= {
            *(flag for option in grammar.options for flag in (*option.flags, "--kv-offload")),
            *grammar.model,
            *grammar.values,
        }, grammar.engine


def test_flag_tables_do_not_contradict_themselves() -> None:
    for grammar in grammars():
        assert not grammar.switches & grammar.values, grammar.engine
        assert not grammar.switches & grammar.several, grammar.engine
        assert not grammar.values & grammar.several, grammar.engine
        assert all(flag.startswith("-") for flag in grammar.switches | grammar.values | grammar.several | grammar.maybe)


@pytest.mark.parametrize(
    ("line", "refused", "near"),
    [
        ("vllm serve a/b --kv-cache-dtyp fp8", True, "--kv-cache-dtype"),
        ("vllm serve a/b --max-modellen 4096", True, "--max-model-len"),
        ("vllm serve a/b --no-such-flag", False, ""),
        ("sglang serve --model a/b --contxt-length 4096", False, "--context-length"),
        ("trtllm-serve a/b --max_seq_length 4096", False, "--max-seq-len"),
    ],
)
def test_a_slip_of_a_flag(line: str, refused: bool, near: str) -> None:
    """Refused where the tables have every flag; else it is named beside the nearest."""
    command = read_command(line)
    assert len(command.unknown) == 1
    assert near in command.unknown[0]
    assert bool(command.problems) == refused
    if refused:
        with pytest.raises(InputError, match="has no such flag") as caught:
            command.under({})
        assert near in str(caught.value.hint)


def test_a_release_whose_flags_are_known_refuses_every_other() -> None:
    image = "docker run vllm/vllm-openai:v{} --model a/b --no-such-flag"
    assert read_command(image.format("0.20.0")).problems
    for version in ("0.99.0", "0.8.5"):
        assert not read_command(image.format(version)).problems


def test_no_method_of_quantization() -> None:
    with pytest.raises(InputError, match="no such method"):
        read_command("vllm serve a/b --quantization awg").under({})
    assert read_command("vllm serve a/b --quantization awg").under({"weights": "awq"})[0] == {"weights": "awq"}
    assert not read_command("vllm serve a/b --quantization compressed-tensors").problems

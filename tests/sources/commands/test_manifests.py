"""Files that start engines: scripts, Dockerfiles, compose files, manifests, chart values, units."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kvplan.errors import KvplanError
from kvplan.sources import find_command
from kvplan.sources.commands import is_command, read_command

MANIFESTS = Path(__file__).parents[2] / "data" / "manifests"
QWEN = "Qwen/Qwen3-32B"


def read(name: str) -> Any:
    return read_command(str(MANIFESTS / name))


@pytest.mark.parametrize(
    ("name", "engine", "model", "settings"),
    [
        (
            "serve-vllm.sh",
            "vllm",
            QWEN,
            {
                "tensor_parallel_size": 2,
                "max_model_len": 32768,
                "gpu_memory_utilization": 0.9,
                "enable_prefix_caching": False,
                "speculative_config": '{"method": "ngram", "num_speculative_tokens": 4}',
                "gpus": 2,
            },
        ),
        ("serve-two.sh#4", "vllm", "Qwen/Qwen3-8B", {"max_model_len": 16384, "gpus": 1}),
        (
            "ollama.sh",
            "ollama",
            "llama3.1:8b",
            {"num_ctx": 16384, "num_parallel": 2, "flash_attn": "1", "kv_cache_dtype": "q8_0"},
        ),
        (
            "vllm.Dockerfile",
            "vllm@0.11.0",
            "meta-llama/Llama-3.1-70B-Instruct",
            {"tensor_parallel_size": 4, "max_model_len": 16384, "kv_cache_dtype": "fp8"},
        ),
        (
            "sglang.Dockerfile#server",
            "sglang@0.5.12",
            "deepseek-ai/DeepSeek-V3",
            {"tensor_parallel_size": 8, "attn_dp_size": 8, "max_model_len": 65536, "mem_fraction_static": 0.88},
        ),
        (
            "trtllm.Dockerfile",
            "tensorrt-llm@1.3.0",
            QWEN,
            {
                "tensor_parallel_size": 2,
                "max_num_seqs": 64,
                "max_num_batched_tokens": 8192,
                "max_model_len": 32768,
                "free_gpu_memory_fraction": 0.8,
            },
        ),
        (
            "compose.yaml#llm",
            "vllm@0.20.1",
            "Qwen/Qwen3-32B-AWQ",
            {"tensor_parallel_size": 2, "max_model_len": 16384, "gpus": 2},
        ),
        (
            "compose.yaml#local",
            "llama.cpp",
            "unsloth/Qwen3-8B-GGUF:Q4_K_M",
            {
                "ctx_size": 32768,
                "parallel": "4",
                "n_gpu_layers": "99",
                "flash_attn": "1",
                "cache_type_k": "q8_0",
                "cache_type_v": "q8_0",
                "gpus": 1,
            },
        ),
        ("compose.yaml#ollama", "ollama", "llama3.1:8b", {"num_ctx": 8192, "num_parallel": 2}),
        (
            "deployment.yaml",
            "vllm@0.33.0",
            QWEN,
            {"tensor_parallel_size": 4, "max_model_len": 32768, "force_prefix_caching": True, "gpus": 4},
        ),
        (
            "deployment.yaml#qwen",
            "vllm@0.33.0",
            QWEN,
            {"tensor_parallel_size": 4, "max_model_len": 32768, "force_prefix_caching": True, "gpus": 4},
        ),
        (
            "statefulset.yaml#deepseek",
            "sglang@0.5.20",
            "deepseek-ai/DeepSeek-V3",
            {"tensor_parallel_size": 8, "max_model_len": 65536, "kv_cache_dtype": "fp8_e4m3", "gpus": 8},
        ),
        (
            "statefulset.yaml#trtllm",
            "tensorrt-llm@1.3.0",
            QWEN,
            {
                "tensor_parallel_size": 2,
                "max_num_seqs": 32,
                "free_gpu_memory_fraction": 0.75,
                "kv_cache_dtype": "fp8",
                "gpus": 2,
            },
        ),
        (
            "values-stack.yaml",
            "vllm@0.20.1",
            "meta-llama/Llama-3.1-8B-Instruct",
            {
                "max_model_len": 16384,
                "tensor_parallel_size": 1,
                "enable_prefix_caching": False,
                "enable_chunked_prefill": False,
                "gpu_memory_utilization": 0.8,
                "gpus": 1,
            },
        ),
        ("values-chart.yaml", "vllm", "mistralai/Mistral-7B-Instruct-v0.3", {"max_model_len": 16384, "gpus": 1}),
        (
            "values-args.yaml",
            "llama.cpp",
            "unsloth/Qwen3-8B-GGUF:Q8_0",
            {"ctx_size": 16384, "parallel": "2", "gpus": 1},
        ),
        (
            "llama-server.service",
            "llama.cpp",
            "Qwen3-8B-Q4_K_M",
            {
                "ctx_size": 32768,
                "n_gpu_layers": "99",
                "flash_attn": "on",
                "cache_type_k": "q8_0",
                "cache_type_v": "q8_0",
                "parallel": "4",
            },
        ),
        ("vllm.container", "vllm@0.30.0", "Qwen/Qwen3-8B", {"max_model_len": 16000}),
    ],
)
def test_each_kind_of_file(name: str, engine: str, model: str, settings: dict[str, Any]) -> None:
    assert is_command(str(MANIFESTS / name))
    command = read(name)
    assert (command.engine, command.model, command.settings) == (engine, model, settings)
    assert command.problems == {}


def test_every_manifest_is_tested() -> None:
    text = Path(__file__).read_text(encoding="utf-8")
    assert [path.name for path in MANIFESTS.iterdir() if path.name not in text] == []


def test_what_else_a_file_says() -> None:
    deployment = read("deployment.yaml")
    assert deployment.gpu == "NVIDIA-H100-80GB-HBM3"
    assert deployment.warnings == ("qwen runs 3 replicas; the figures are of one",)
    assert deployment.ignored == ("--api-key",)
    assert read("compose.yaml#llm").quantization[:2] == ("--quantization awq_marlin", "awq")
    script = read("serve-vllm.sh")
    assert script.unknown == ("--enforce-eager",)
    assert script.warnings == ("--enforce-eager is added in a branch: flags in it are not read",)
    assert "--kv-cache-config.enable-block-reuse" in read("statefulset.yaml#trtllm").ignored


@pytest.mark.parametrize(
    ("name", "said", "hint"),
    [
        ("serve-two.sh", r"starts 2 engines: 3 \(vllm\), 4 \(vllm\)", "serve-two.sh#3"),
        ("compose.yaml", r"starts 3 engines: llm \(vllm\), local \(llama.cpp\), ollama \(ollama\)", "compose.yaml#llm"),
        ("compose.yaml#web", "'web' starts no engine", "engines start in: llm, local, ollama"),
        ("compose.yaml#nope", "'nope' is not in it", "engines start in: llm, local, ollama"),
        ("deployment.yaml#exporter", "'exporter' starts no engine", "engines start in: vllm"),
        ("statefulset.yaml", r"starts 2 engines: sglang \(sglang\), trtllm \(tensorrt-llm\)", "#sglang"),
        ("sglang.Dockerfile", "starts no engine that is known", "there are: server"),
        ("missing.sh", "cannot be read: no such file", "check the path"),
    ],
)
def test_which_one_is_meant(name: str, said: str, hint: str) -> None:
    with pytest.raises(KvplanError, match=said) as caught:
        read(name)
    assert caught.value.hint is not None
    assert hint in caught.value.hint


def test_errors_inside_a_file_name_it(tmp_path: Path) -> None:
    path = tmp_path / "run.sh"
    path.write_text("vllm serve Qwen/Qwen3-8B --max-model-len $LEN")
    with pytest.raises(KvplanError) as caught:
        read_command(str(path)).under({})
    assert str(caught.value) == f"{path}: --max-model-len: $LEN is not set here"
    path.write_text("vllm serve $MODEL")
    with pytest.raises(KvplanError) as caught:
        read_command(str(path))
    assert str(caught.value) == f"{path}: the model: $MODEL is not set here"


def test_a_model_beside_the_file(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text("{}")
    (tmp_path / "x.gguf").write_bytes(b"GGUF")
    (tmp_path / "a.sh").write_text("vllm serve ./model")
    (tmp_path / "b.sh").write_text("vllm serve model")
    (tmp_path / "c.sh").write_text("llama-server -m x.gguf")
    assert read_command(str(tmp_path / "a.sh")).model == f"{tmp_path}/./model"
    assert read_command(str(tmp_path / "b.sh")).model == str(tmp_path / "model")
    assert read_command(str(tmp_path / "c.sh")).model == str(tmp_path / "x.gguf")


def test_a_relative_model_beside_a_relative_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "m").mkdir()
    (tmp_path / "m" / "config.json").write_text("{}")
    (tmp_path / "Dockerfile").write_text('FROM vllm/vllm-openai\nCMD ["--model", "m"]\n')
    monkeypatch.chdir(tmp_path)
    assert read_command("Dockerfile").model == "./m"
    assert read_command("vllm serve m").model == "./m"


def test_settings_in_a_file_that_a_flag_names(tmp_path: Path) -> None:
    (tmp_path / "vllm.yaml").write_text(
        "model: Qwen/Qwen3-8B\nmax-model-len: 8K\ntensor_parallel_size: 2\nenforce-eager: true\n"
    )
    (tmp_path / "a.sh").write_text("vllm serve --config vllm.yaml -tp 4")
    command = read_command(str(tmp_path / "a.sh"))
    assert command.model == "Qwen/Qwen3-8B"
    assert command.settings == {"max_model_len": 8192, "tensor_parallel_size": 4, "enforce_eager": True}
    (tmp_path / "b.sh").write_text(
        "cat > /tmp/o.yaml <<EOF\nkv_cache_config:\n  free_gpu_memory_fraction: 0.5\nenable_attention_dp: true\nEOF\n"
        "trtllm-serve m/x --tp_size 8 --kv_cache_free_gpu_memory_fraction 0.9 --extra_llm_api_options /tmp/o.yaml\n"
    )
    assert read_command(str(tmp_path / "b.sh")).settings == {
        "tensor_parallel_size": 8,
        "free_gpu_memory_fraction": 0.5,
        "attn_dp_size": 8,
    }


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("run.sh", "#!/bin/sh\nvllm serve a/b"),
        ("Dockerfile", 'FROM vllm/vllm-openai\nCMD ["a/b"]'),
        ("Dockerfile.gpu", "# x\nFROM vllm/vllm-openai\nCMD vllm serve a/b\nENTRYPOINT []"),
        ("x.service", "[Service]\nExecStart=vllm serve a/b"),
        ("d.yaml", "apiVersion: v1\nkind: Pod\nspec: {containers: [{name: c, command: [vllm, serve, a/b]}]}"),
        (
            "l.yaml",
            "apiVersion: v1\nkind: List\nitems:\n- {kind: Pod, spec: {containers: [{command: [vllm, serve, a/b]}]}}",
        ),
        ("c.yml", "services: {s: {image: x, command: vllm serve a/b}}"),
        ("values.yaml", "image: vllm/vllm-openai\nargs: [a/b]"),
        ("compose.yaml", "services: {s: {image: vllm/vllm-openai, entrypoint: [], command: [vllm, serve, a/b]}}"),
        ("run", "#!/bin/sh\nvllm serve a/b"),
    ],
)
def test_files_are_told_apart(tmp_path: Path, name: str, content: str) -> None:
    path = tmp_path / name
    path.write_text(content)
    command = find_command(str(path))
    assert command is not None
    assert (command.engine, command.model) == ("vllm", "a/b")


@pytest.mark.parametrize(
    "text", ["llama-3.1-8b", "Qwen/Qwen3-32B", "meta-llama/Llama-3.1-8B-Instruct", "qwen3:8b", "x.gguf"]
)
def test_names_of_models_are_no_commands(text: str) -> None:
    assert find_command(text) is None


def test_a_spec_is_no_manifest(tmp_path: Path) -> None:
    spec = tmp_path / "my model.yaml"
    spec.write_text((MANIFESTS.parent / "sample-model.yaml").read_text(encoding="utf-8"))
    assert find_command(str(spec)) is None
    misspelt = tmp_path / "x.yaml"
    misspelt.write_text("id: x\nlayerz: []\n")
    assert find_command(str(misspelt)) is None


def test_dockerfile_forms(tmp_path: Path) -> None:
    path = tmp_path / "Dockerfile"

    def settings(text: str) -> dict[str, Any]:
        path.write_text(text)
        return read_command(str(path)).settings

    base = "ARG LEN=8K\nFROM python\nENV TP=2\n"
    assert settings(base + "CMD vllm serve a/b -tp $TP") == {"tensor_parallel_size": 2}
    assert settings(base + 'ENTRYPOINT ["vllm", "serve", "a/b"]\nCMD ["-tp", "4"]') == {"tensor_parallel_size": 4}
    assert settings(base + "ARG LEN\nENV L=$LEN\nCMD vllm serve a/b --max-model-len ${L}") == {"max_model_len": 8192}
    assert settings(base + "CMD vllm serve a/b -tp 1\nENTRYPOINT vllm serve a/b -tp 8") == {"tensor_parallel_size": 8}
    assert settings(base + "HEALTHCHECK CMD vllm serve x/y\nENTRYPOINT vllm serve a/b") == {}
    assert settings("FROM python AS a\nENV TP=4\nFROM a\nCMD vllm serve a/b -tp $TP") == {"tensor_parallel_size": 4}
    path.write_text(base + 'CMD ["vllm", "serve", "a/b", "-tp", "$TP"]')  # no shell, so nobody replaces it
    with pytest.raises(KvplanError, match=r"-tp: '\$TP' is not a whole number"):
        read_command(str(path)).under({})
    path.write_text("FROM x\nCMD ['vllm', 'serve']")
    with pytest.raises(KvplanError, match=r"Dockerfile:2: is no JSON list of texts"):
        read_command(str(path))


def test_a_leader_and_its_workers(tmp_path: Path) -> None:
    path = tmp_path / "lws.yaml"
    container = (
        "spec: {containers: [{name: engine, image: vllm/vllm-openai, args: [a/b, -tp, '8', -pp, '4'%s], "
        "resources: {limits: {nvidia.com/gpu: '8'}}}]}"
    )
    head = "apiVersion: leaderworkerset.x-k8s.io/v1\nkind: LeaderWorkerSet\nmetadata: {name: big}\nspec:\n"
    template = "  leaderWorkerTemplate:\n    size: 4\n    leaderTemplate: {%s}\n    workerTemplate: {%s}\n"
    path.write_text(head + template % (container % "", container % ", --headless"))
    assert read_command(str(path)).settings["gpus"] == 32
    path.write_text(head + template % (container % ", --nnodes, '4'", container % ", --headless"))
    assert read_command(str(path)).settings["gpus"] == 32


def test_compose_interpolation(tmp_path: Path) -> None:
    path = tmp_path / "compose.yaml"
    path.write_text(
        "services:\n  s:\n    image: vllm/vllm-openai:${TAG:-v0.20.1}\n    environment: {TP: 2}\n"
        "    entrypoint: sh -c\n    command: ['vllm serve a/b -tp $$TP --max-model-len ${LEN:-4K}']\n"
    )
    command = read_command(str(path))
    assert command.engine == "vllm@0.20.1"
    assert command.settings == {"tensor_parallel_size": 2, "max_model_len": 4096}

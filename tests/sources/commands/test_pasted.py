"""Lines as people paste them: versions pinned beside the start, graphs switched off, prompts, dashes, containers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kvplan.errors import InputError
from kvplan.sources.commands import read_command

A = "vllm serve a/b"


@pytest.mark.parametrize(
    ("line", "version"),
    [
        ("uv run --with vllm==0.12.0 vllm serve a/b", "0.12.0"),
        ("uvx --from vllm==0.12.0 vllm serve a/b", "0.12.0"),
        ("uvx --from 'vllm[audio]==0.12.0' vllm serve a/b", "0.12.0"),
        ("uvx vllm@0.15.0 serve a/b", "0.15.0"),
        ("pip install vllm==0.12.0 && vllm serve a/b", "0.12.0"),
        ('V=0.12.0; pip install -q "vllm==$V" && vllm serve a/b', "0.12.0"),
        ("bash -c 'pip install sglang==0.5.1; vllm serve a/b'", ""),
    ],
)
def test_versions_pinned_beside_the_start(line: str, version: str) -> None:
    assert read_command(line).engine == (f"vllm@{version}" if version else "vllm")


@pytest.mark.parametrize("name", ["$VER", "${VER}"])
def test_a_version_in_an_argument_of_a_dockerfile(tmp_path: Path, name: str) -> None:
    path = tmp_path / "Dockerfile"
    path.write_text(f'FROM python:3.12\nARG VER=0.12.0\nRUN pip install vllm=={name}\nCMD ["vllm", "serve", "a/b"]\n')
    assert read_command(str(path)).engine == "vllm@0.12.0"
    path.write_text(f'FROM python:3.12\nARG VER\nRUN pip install vllm=={name}\nCMD ["vllm", "serve", "a/b"]\n')
    assert read_command(str(path)).engine == "vllm"


@pytest.mark.parametrize(
    "flags",
    [
        "-O0", "-O 0", "-O=0", "--optimization-level 0", "--optimization_level=0", "--compilation-config 0",
        """--compilation-config '{"cudagraph_mode": "NONE"}'""", "-cc.cudagraph_mode=none", "-O.cudagraph_mode NONE",
        "--compilation-config.cudagraph_mode=CUDAGraphMode.NONE", """-O '{"level": 0}'""",
        "--compilation-config.max_cudagraph_capture_size 0",
    ],
)  # fmt: skip
def test_no_graphs(flags: str) -> None:
    found = read_command(f"{A} {flags}")
    assert found.settings == {"enforce_eager": True}
    assert (found.ignored, found.unknown, found.warnings) == ((), (), ())


@pytest.mark.parametrize("flags", ["-O3", "-O 2", "--optimization-level 1", "--compilation-config 3", "-O.level=3"])
def test_other_levels_keep_their_graphs(flags: str) -> None:
    found = read_command(f"{A} {flags}")
    assert found.settings == {}
    assert found.warnings == ()


@pytest.mark.parametrize(
    ("flags", "size"),
    [
        ("--cudagraph-capture-sizes 1 2 4 8", 8),
        ("--cuda-graph-sizes 64", 64),
        ("--cuda-graph-sizes 64 128", 128),
        ("--compilation-config.cudagraph_capture_sizes '[1, 2, 4]'", 4),
        ("""-cc '{"cudagraph_capture_sizes": [1, 16]}'""", 16),
        ("""--compilation-config '{"max_cudagraph_capture_size": 32}'""", 32),
    ],
)
def test_sizes_of_graphs(flags: str, size: int) -> None:
    found = read_command(f"{A} {flags}")
    assert found.settings == {"max_cudagraph_capture_size": size}
    assert found.ignored == ()


def test_sizes_that_cannot_be_read() -> None:
    assert "cannot be read" in read_command(f"{A} --cudagraph-capture-sizes 1 many").warnings[0]


@pytest.mark.parametrize(
    "flags",
    [
        "--num-redundant-experts 32", """--enable-eplb --eplb-config '{"num_redundant_experts": 32}'""",
        "--eplb-config.num_redundant_experts=32",
    ],
)  # fmt: skip
def test_redundant_experts_are_said(flags: str) -> None:
    assert any("redundant" in said and "not modelled" in said for said in read_command(f"{A} {flags}").warnings)
    assert not read_command(f"{A} {flags.replace('32', '0')}").warnings


def test_sglang_redundant_experts_are_said() -> None:
    line = "python -m sglang.launch_server --model-path a/b --ep-num-redundant-experts 16"
    assert "not modelled" in read_command(line).warnings[0]


@pytest.mark.parametrize("prompt", ["$ ", "  $  ", "% ", "\u276f "])
def test_a_prompt_that_was_copied_too(prompt: str) -> None:
    assert read_command(f"{prompt}vllm serve a/b -tp 2").settings == {"tensor_parallel_size": 2}


@pytest.mark.parametrize(
    ("words", "settings", "meant"),
    [
        ("\u2014tensor-parallel-size 2", {"tensor_parallel_size": 2}, "--tensor-parallel-size"),
        ("\u2013max-model-len=8192", {"max_model_len": 8192}, "--max-model-len=8192"),
        ("\u2013tp 2", {"tensor_parallel_size": 2}, "-tp"),
        ("\u2013\u2013enforce-eager", {"enforce_eager": True}, "--enforce-eager"),
    ],
)
def test_long_dashes(words: str, settings: dict[str, Any], meant: str) -> None:
    found = read_command(f"{A} {words}")
    assert found.settings == settings
    assert found.warnings == (f"{words.split()[0]} has a long dash in place of hyphens: read as {meant}",)
    assert read_command(f"{A} \u2014no-such-flag").unknown


def test_ollama_in_a_container() -> None:
    alone = read_command("docker exec -it ollama ollama run llama3.1:8b")
    both = read_command(
        "docker run -d --gpus=2 -e OLLAMA_NUM_PARALLEL=4 --name ollama ollama/ollama && "
        "docker exec -it ollama ollama run llama3.1:8b"
    )
    assert alone.model == both.model == "llama3.1:8b"
    assert both.settings == {"num_parallel": 4, "gpus": 2}


def test_gemma_3_trained_for_four_bits() -> None:
    found = read_command("ollama run gemma3:27b-it-qat")
    assert found.quantization is not None
    assert (found.model, found.quantization.format) == ("gemma-3-27b", "q4_0")


def test_sums_are_no_commands() -> None:
    with pytest.raises(InputError, match=r"\$\(\(1\+1\)\) is not worked out"):
        read_command(f"{A} -tp $((1+1))").under({})


SERVICE = """
apiVersion: serving.kserve.io/v1beta1
kind: InferenceService
metadata: {name: llama}
spec:
  predictor:
    nodeSelector: {nvidia.com/gpu.product: NVIDIA-L4}
    model:
      modelFormat: {name: huggingface}
      storageUri: hf://c/d
      args: [%s"--model_name=x", "--max-model-len=8192"]
      resources: {limits: {nvidia.com/gpu: "1"}}
"""
LLM = """
apiVersion: serving.kserve.io/v1alpha1
kind: LLMInferenceService
metadata: {name: q}
spec:
  model: {uri: "hf://c/d", name: q}
  replicas: 3
  parallelism: {tensor: 2, data: 4, dataLocal: 2, expert: true}
  template:
    containers:
      - name: main
        env: [{name: VLLM_ADDITIONAL_ARGS, value: "--max-model-len 8192 --enforce-eager"}]
        resources: {limits: {nvidia.com/gpu: "4"}}
"""


@pytest.mark.parametrize(("more", "model"), [("", "c/d"), ('"--model_id=a/b", ', "a/b")])
def test_kserve_with_the_hugging_face_runtime(tmp_path: Path, more: str, model: str) -> None:
    path = tmp_path / "k.yaml"
    path.write_text(SERVICE % more)
    found = read_command(str(path))
    assert (found.model, found.settings, found.gpu) == (model, {"max_model_len": 8192, "gpus": 1}, "NVIDIA-L4")
    assert (found.unknown, found.warnings) == ((), ())


def test_kserve_for_language_models(tmp_path: Path) -> None:
    path = tmp_path / "k.yaml"
    path.write_text(LLM)
    found = read_command(f"{path}#q")
    assert found.model == "c/d"
    assert found.settings == {
        "tensor_parallel_size": 2, "data_parallel_size": 4, "enable_expert_parallel": True, "max_model_len": 8192,
        "enforce_eager": True, "gpus": 8,
    }  # fmt: skip
    assert "3 replicas" in found.warnings[0]

"""Words that come from beside the command: ``.env`` files, positional arguments, templates, other programs' files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kvplan.deployment import find_deployment
from kvplan.errors import InputError, KvplanError
from kvplan.sources.commands import Command, is_command, read_command

COMPOSE = """
services:
  llm:
    image: vllm/vllm-openai:v0.11.0
    command: ["--model", "${MODEL}", "--tensor-parallel-size", "${TP:?say it}", "--max-model-len", "${LEN:-8192}"]
"""


def settings(text: str) -> dict[str, Any]:
    return read_command(text).settings


def write(folder: Path, name: str, text: str) -> str:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return str(path)


# ---- compose ----


def test_compose_takes_what_the_env_file_beside_it_says(tmp_path: Path) -> None:
    path = write(tmp_path, "compose.yaml", COMPOSE)
    with pytest.raises(KvplanError, match=r"\$MODEL is not set here"):
        read_command(path)
    lines = "# here\nexport ORG=Qwen\nMODEL=\"${ORG}/Qwen3-8B\"\n\nTP='2'  # two\nLEN=4096 # tokens\nnot a line\n"
    write(tmp_path, ".env", lines)
    command = read_command(path)
    assert command.model == "Qwen/Qwen3-8B"
    assert command.settings == {"tensor_parallel_size": 2, "max_model_len": 4096}


def test_a_variable_that_is_set_to_nothing_leaves_the_default(tmp_path: Path) -> None:
    path = write(tmp_path, "compose.yaml", COMPOSE)
    write(tmp_path, ".env", "MODEL=Qwen/Qwen3-8B\nTP=1\nLEN=\n")
    assert settings(path)["max_model_len"] == 8192


def test_files_of_variables_for_the_container(tmp_path: Path) -> None:
    text = "services:\n  llm:\n    image: x\n    command: ollama run llama3.1:8b\n    env_file: {files}\n"
    write(tmp_path, "ollama.env", "OLLAMA_CONTEXT_LENGTH=16384\nOLLAMA_NUM_PARALLEL=2\n")
    (tmp_path / "out").mkdir()
    inside = write(tmp_path, "compose.yaml", text.format(files="[ollama.env, {path: none.env}]"))
    outside = write(tmp_path / "out", "compose.yaml", text.format(files="../ollama.env"))
    assert settings(inside)["num_ctx"] == 16384
    assert "num_ctx" not in settings(outside)


# ---- arguments of scripts ----


def test_the_arguments_of_an_entry_point_are_its_places(tmp_path: Path) -> None:
    """``sh -c SCRIPT`` with CMD behind it: the first word is ``$0``, the others are ``$@``."""
    path = write(
        tmp_path,
        "Dockerfile",
        "FROM vllm/vllm-openai:v0.11.0\nENV MODEL=Qwen/Qwen3-8B\n"
        'ENTRYPOINT ["sh", "-c", "exec vllm serve $MODEL $0 $@"]\n'
        'CMD ["--max-num-seqs", "8", "--max-model-len", "4096"]\n',
    )
    assert settings(path) == {"max_num_seqs": 8, "max_model_len": 4096}


@pytest.mark.parametrize("places", ['"$@"', "$*", "$1 $2"])
def test_arguments_in_a_pasted_line(places: str) -> None:
    assert settings(f"bash -c 'vllm serve Qwen/Qwen3-8B {places}' x --max-model-len 4096") == {"max_model_len": 4096}


def test_arguments_of_a_script_that_nobody_gives_are_unknown(tmp_path: Path) -> None:
    path = write(tmp_path, "serve.sh", 'vllm serve Qwen/Qwen3-8B --max-model-len "$1"\n')
    with pytest.raises(KvplanError, match=r"\$1 is not set here"):
        find_deployment(path, {})


# ---- what is missing ----


@pytest.mark.parametrize("path", ["nothere.yaml", "/dev/zero"])
def test_a_missing_configuration_is_named_where_the_model_is_missed(path: str) -> None:
    with pytest.raises(InputError, match=f"without a model .*{path} is not here"):
        read_command(f"vllm serve --config {path}")


@pytest.mark.parametrize("flag", ["--model", "--max-model-len"])
def test_places_of_a_template_are_named_as_such(flag: str, tmp_path: Path) -> None:
    values = {"--model": "Qwen/Qwen3-8B", "--max-model-len": "4096"} | {flag: "{{ .Values.it }}"}
    words = "".join(f"\n        - {word!r}" for pair in values.items() for word in pair)
    text = f"""
apiVersion: v1
kind: Pod
metadata: {{name: llm}}
spec:
  containers:
      - name: llm
        image: vllm/vllm-openai:v0.11.0
        args:{words}
"""
    path = write(tmp_path, "pod.yaml", text)
    with pytest.raises(KvplanError, match=r"\{\{ .Values.it \}\} is filled in by `helm template CHART`"):
        find_deployment(path, {})


def test_a_command_of_a_hundred_thousand_words_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path, "serve.sh", "vllm serve Qwen/Qwen3-8B \\\n" + "-a \\\n" * 100_000)
    with pytest.raises(InputError, match=r"more than 20,000 words"):
        read_command(path)


# ---- other programs' files ----

RAY = """applications:
- name: llm
  import_path: ray.serve.llm:build_openai_app
  args:
    llm_configs:
    - model_loading_config: {model_id: qwen, model_source: Qwen/Qwen3-8B}
      accelerator_type: H100
      engine_kwargs: {tensor_parallel_size: 2, max_model_len: 8192, enable_prefix_caching: false}
      runtime_env: {env_vars: {VLLM_USE_V1: "1"}}
"""


def _is_ray(command: Command) -> None:
    assert (command.engine, command.model) == ("vllm", "Qwen/Qwen3-8B")
    assert command.settings == {"tensor_parallel_size": 2, "max_model_len": 8192, "enable_prefix_caching": False}
    assert command.gpu == "H100"


def test_models_of_ray_serve(tmp_path: Path) -> None:
    path = write(tmp_path, "serve.yaml", RAY)
    assert is_command(path)
    _is_ray(read_command(path))


def test_models_of_a_ray_service(tmp_path: Path) -> None:
    inside = "\n".join(f"    {line}" for line in RAY.splitlines())
    text = f"apiVersion: ray.io/v1\nkind: RayService\nmetadata: {{name: llm}}\nspec:\n  serveConfigV2: |\n{inside}\n"
    _is_ray(read_command(write(tmp_path, "service.yaml", text)))


LLMD = """
modelArtifacts: {uri: "hf://Qwen/Qwen3-32B", name: Qwen/Qwen3-32B}
decode:
  create: true
  replicas: 3
  parallelism: {tensor: 2}
  containers:
  - name: vllm
    image: ghcr.io/llm-d/llm-d-cuda:v0.3.0
    modelCommand: vllmServe
    args: ["--max-model-len", "8192"]
    resources: {limits: {nvidia.com/gpu: "2"}}
prefill:
  create: CREATE
  containers:
  - {name: vllm, image: "ghcr.io/llm-d/llm-d-cuda:v0.3.0", modelCommand: vllmServe, args: ["--max-num-seqs", "4"]}
"""


def test_values_of_llm_d(tmp_path: Path) -> None:
    one = read_command(write(tmp_path, "one.yaml", LLMD.replace("CREATE", "false")))
    assert one.model == "Qwen/Qwen3-32B"
    assert one.settings == {"max_model_len": 8192, "tensor_parallel_size": 2, "gpus": 2}
    assert any("3 replicas" in warning for warning in one.warnings)
    both = write(tmp_path, "both.yaml", LLMD.replace("CREATE", "true"))
    with pytest.raises(InputError, match="starts 2 engines"):
        read_command(both)
    assert settings(f"{both}#prefill") == {"max_num_seqs": 4}


def test_workers_of_dynamo(tmp_path: Path) -> None:
    text = """
apiVersion: nvidia.com/v1alpha1
kind: DynamoGraphDeployment
metadata: {name: graph}
spec:
  services:
    Frontend: {componentType: frontend, replicas: 1}
    Worker:
      resources: {limits: {gpu: "2"}}
      extraPodSpec:
        mainContainer:
          image: my-registry/vllm-runtime:1.0
          command: [python3, -m, dynamo.vllm]
          args: [--model, Qwen/Qwen3-32B, --tensor-parallel-size, "2"]
"""
    command = read_command(write(tmp_path, "graph.yaml", text))
    assert (command.engine, command.model) == ("vllm", "Qwen/Qwen3-32B")
    assert command.settings == {"tensor_parallel_size": 2, "gpus": 2}

"""Command lines that change the model itself: stretched positions, replaced keys, dtypes, chart values of a stack."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kvplan.deployment import find_deployment
from kvplan.errors import KvplanError
from kvplan.sources.commands import read_command

YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}
NATIVE = 40_960
"""What the configuration of Qwen3-8B says."""


def longest(line: str, **given: Any) -> int | None:
    return find_deployment(line, given).model.max_position_embeddings


def overrides(**keys: Any) -> str:
    return f"--hf-overrides '{json.dumps(keys)}'"


@pytest.mark.parametrize(
    ("line", "tokens"),
    [
        ("vllm serve Qwen/Qwen3-8B", NATIVE),
        (f"vllm serve Qwen/Qwen3-8B --rope-scaling '{json.dumps(YARN)}' --max-model-len 131072", 131072),
        ("vllm serve Qwen/Qwen3-8B --rope-theta 5000000", NATIVE),
        (f"docker run vllm/vllm-openai:v0.11.0 --model Qwen/Qwen3-8B {overrides(rope_scaling=YARN)}", 131072),
        (f"docker run vllm/vllm-openai:v0.29.0 --model Qwen/Qwen3-8B {overrides(rope_parameters=YARN)}", 131072),
        (f"docker run vllm/vllm-openai:v0.30.0 --model Qwen/Qwen3-8B {overrides(rope_parameters=YARN)}", NATIVE),
        (f"vllm serve Qwen/Qwen3-8B {overrides(rope_parameters=YARN, max_position_embeddings=131072)}", 131072),
        ("vllm serve Qwen/Qwen3-8B --hf-overrides.max_position_embeddings 8192", 8192),
        (f"vllm serve Qwen/Qwen3-8B {overrides(rope_parameters={'rope_type': 'linear', 'factor': 2})}", 2 * NATIVE),
        (f"vllm serve Qwen/Qwen3-8B {overrides(rope_parameters={'rope_type': 'llama3', 'factor': 8})}", NATIVE),
        (f"vllm serve google/gemma-3-4b-it {overrides(rope_scaling={'rope_type': 'linear', 'factor': 8})}", 131072),
        (f"vllm serve Qwen/Qwen3-8B {overrides(text_config={'max_position_embeddings': 65536})}", 65536),
        (
            "docker run vllm/vllm-openai:v0.20.0 --model Qwen/Qwen3-8B --hf-overrides.rope_scaling.rope_type yarn "
            "--hf_overrides.rope-scaling.factor 4 --hf-overrides.rope_scaling.original_max_position_embeddings 32768",
            131072,
        ),
        (f"sglang serve Qwen/Qwen3-8B --json-model-override-args '{json.dumps({'rope_scaling': YARN})}'", NATIVE),
        (
            "sglang serve Qwen/Qwen3-8B --json-model-override-args "
            '\'{"rope_scaling": {"rope_type": "yarn", "factor": 2}}\'',
            2 * NATIVE,
        ),
        ("llama-server -hf Qwen/Qwen3-8B-GGUF:Q4_K_M -c 131072 --rope-scaling yarn --rope-scale 4", 4 * NATIVE),
        (
            "llama-server -hf Qwen/Qwen3-8B-GGUF:Q4_K_M -c 131072 --rope-scaling yarn --rope-freq-scale 0.25 "
            "--yarn-orig-ctx 32768",
            131072,
        ),
        ("llama-server -hf Qwen/Qwen3-8B-GGUF:Q4_K_M --rope-scaling yarn --rope-scale 4", NATIVE),
        ("llama-server -hf Qwen/Qwen3-8B-GGUF:Q4_K_M -c 131072 --rope-scaling linear --rope-scale 4", NATIVE),
        (
            "llama-server -hf Qwen/Qwen3-8B-GGUF:Q4_K_M --override-kv tokenizer.ggml.add_bos_token=bool:false "
            "--override-kv qwen3.context_length=int:8192,general.name=str:x",
            8192,
        ),
    ],
)
def test_the_longest_context_is_what_that_engine_makes_of_it(line: str, tokens: int) -> None:
    assert longest(line) == tokens


def test_a_stretched_line_plans_beyond_the_native_length() -> None:
    plan = find_deployment(
        f"vllm serve Qwen/Qwen3-8B --rope-scaling '{json.dumps(YARN)}' --max-model-len 131072", {}
    ).plan()
    assert plan.kv.bytes_per_sequence == 131072 * plan.kv.bytes_per_token
    assert not any("above the model's maximum" in text for text in plan.warnings)
    assert any("not in vLLM 0.33.0" in text for text in plan.warnings)
    taken = plan.inputs["command"]["settings"]
    assert (taken["max_position_embeddings"], taken["rope"]) == (131072, "yarn x 4")


def test_new_vllm_refuses_a_factor_alone() -> None:
    line = f"vllm serve Qwen/Qwen3-8B {overrides(rope_parameters=YARN)} --max-model-len 131072"
    with pytest.raises(KvplanError, match="does not multiply max_position_embeddings 40,960") as error:
        find_deployment(line, {})
    assert '"max_position_embeddings": 131072' in (error.value.hint or "")
    assert longest(line, engine="generic") == NATIVE
    assert longest(f"VLLM_ALLOW_LONG_MAX_MODEL_LEN=1 {line}") == NATIVE


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--rope-scaling yarn", "is not a JSON object"),
        ("--rope-scaling '{}' --hf-overrides '[1]'", "is not a JSON object"),
        ('--hf-overrides \'{"rope_scaling": {"factor": 4}}\'', "has no rope_type"),
        ('--hf-overrides \'{"rope_scaling": {"rope_type": "yarn", "factor": "4"}}\'', "is not a number from 1 on"),
        ('--hf-overrides \'{"rope_scaling": {"rope_type": "yarn", "factor": NaN}}\'', "is not a number from 1 on"),
        ("--hf-overrides '{\"max_position_embeddings\": -1}'", "is not a number of tokens"),
        ('--hf-overrides "$X"', "is not set here"),
        ("--hf-overrides '" + '{"a":' * 5000 + "'", "is not a JSON object"),
        ("--dtype float7", "'float7' is no dtype"),
        ("--dtype float32", "a cache in float32 is not modelled"),
    ],
)
def test_what_cannot_be_read_is_refused(words: str, said: str) -> None:
    with pytest.raises(KvplanError) as error:
        find_deployment(f"vllm serve Qwen/Qwen3-8B {words}", {})
    assert said in str(error.value)


@pytest.mark.parametrize("words", ["--override-kv x", "--rope-scaling yarn --rope-scale 0", "--override-kv $X"])
def test_what_llama_cpp_would_not_read(words: str) -> None:
    with pytest.raises(KvplanError):
        find_deployment(f"llama-server -hf Qwen/Qwen3-8B-GGUF:Q4_K_M {words}", {})


def test_keys_that_change_the_layers_are_said() -> None:
    found = find_deployment(f"vllm serve Qwen/Qwen3-8B {overrides(num_hidden_layers=2)}", {})
    assert any("--hf-overrides num_hidden_layers: changes what the memory holds" in text for text in found.warnings)
    found = find_deployment("llama-server -hf Qwen/Qwen3-8B-GGUF:Q8_0 --override-kv qwen3.block_count=int:2", {})
    assert any("qwen3.block_count" in text for text in found.warnings)


def test_float32_doubles_weights_and_cache() -> None:
    wide, narrow = (
        find_deployment(f"sglang serve Qwen/Qwen3-8B --dtype {dtype}", {"gpu": "h100-sxm"}).plan()
        for dtype in ("float32", "bfloat16")
    )
    assert wide.kv.bytes_per_token == 2 * narrow.kv.bytes_per_token
    assert wide.memory is not None
    assert narrow.memory is not None
    assert wide.memory[0].weights_bytes == 2 * narrow.memory[0].weights_bytes
    vllm = find_deployment("vllm serve Qwen/Qwen3-8B --dtype float32 --kv-cache-dtype fp8", {})
    assert vllm.settings["weights"] == "fp32"


@pytest.mark.parametrize(
    ("line", "given", "where"),
    [
        ("vllm serve Qwen/Qwen3-8B-AWQ --quantization awq", {}, "ignored"),
        ("vllm serve Qwen/Qwen3-8B --quantization awq", {}, "settings"),
        ("vllm serve Qwen/Qwen3-8B --quantization awq", {"weights": "bf16"}, "overridden"),
        ("vllm serve Qwen/Qwen3-8B --quantization torchao", {}, "ignored"),
    ],
)
def test_a_quantization_is_always_accounted_for(line: str, given: dict[str, Any], where: str) -> None:
    report = find_deployment(line, given).report
    assert report is not None
    parts = {"ignored": report.ignored, "overridden": report.overridden, "settings": report.settings.values()}
    assert [name for name, words in parts.items() if any("awq" in str(w) or "torchao" in str(w) for w in words)] == [
        where
    ]


STACK = """
servingEngineSpec:
  modelSpec:
    - name: bare
      repository: vllm/vllm-openai
      tag: v0.20.1
      modelURL: meta-llama/Llama-3.1-8B-Instruct
      replicaCount: 2
      requestGPU: 1
      nodeSelectorTerms:
        - matchExpressions: [{key: nvidia.com/gpu.product, operator: In, values: [NVIDIA-H100-80GB-HBM3]}]
    - name: partial
      modelURL: Qwen/Qwen3-8B
      requestGPU: 2
      vllmConfig: {v1: 1, dtype: bfloat16, maxModelLen: 8192, tensorParallelSize: 2, extraArgs: ["--max-num-seqs", "8"]}
    - name: empty
      modelURL: Qwen/Qwen3-4B
      vllmConfig:
routerSpec:
  repository: lmcache/lmstack-router
"""


def test_the_models_of_a_production_stack(tmp_path: Path) -> None:
    path = tmp_path / "values.yaml"
    path.write_text(STACK)
    bare, partial, empty = (read_command(f"{path}#{name}") for name in ("bare", "partial", "empty"))
    assert (bare.engine, bare.model, bare.settings) == (
        "vllm@0.20.1", "meta-llama/Llama-3.1-8B-Instruct", {"gpus": 1},
    )  # fmt: skip
    assert bare.gpu == "NVIDIA-H100-80GB-HBM3"
    assert any("runs 2 replicas" in text for text in bare.warnings)
    assert (partial.engine, partial.model) == ("vllm", "Qwen/Qwen3-8B")
    assert partial.settings == {"max_model_len": 8192, "tensor_parallel_size": 2, "max_num_seqs": 8, "gpus": 2}
    assert partial.unknown == ()
    assert (empty.engine, empty.model, empty.settings) == ("vllm", "Qwen/Qwen3-4B", {})
    with pytest.raises(KvplanError, match="starts 3 engines"):
        read_command(str(path))


def test_a_model_beside_an_image_is_a_start_and_one_beside_words_is_not_two(tmp_path: Path) -> None:
    path = tmp_path / "values.yaml"
    path.write_text("image: {repository: vllm/vllm-openai, tag: v0.30.0}\nmodel: Qwen/Qwen3-8B\n")
    assert read_command(str(path)).engine == "vllm@0.30.0"
    path.write_text(
        "image: {repository: vllm/vllm-openai}\nmodel: Qwen/Qwen3-8B\nserver: {extraArgs: {max-model-len: 4096}}\n"
    )
    assert read_command(str(path)).settings == {"max_model_len": 4096}


def test_overrides_may_be_a_mapping_in_a_file(tmp_path: Path) -> None:
    values = tmp_path / "values.yaml"
    rope = "{rope_type: yarn, factor: 4.0, original_max_position_embeddings: 32768}"
    values.write_text(
        "modelURL: Qwen/Qwen3-8B\nvllmConfig:\n  maxModelLen: 131072\n"
        f"  hfOverrides: {{rope_parameters: {rope}, max_position_embeddings: 131072}}\n"
    )
    found = find_deployment(str(values), {})
    assert found.model.max_position_embeddings == 131072
    assert found.model.rope == {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}
    (tmp_path / "serve.yaml").write_text(f"hf-overrides:\n  rope_scaling: {rope}\n  max_position_embeddings: 65536\n")
    script = tmp_path / "serve.sh"
    script.write_text("vllm serve Qwen/Qwen3-8B --config serve.yaml\n")
    assert longest(str(script)) == 65536

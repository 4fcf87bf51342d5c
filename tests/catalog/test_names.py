"""Names people type: each finds its own model or card, or an error that names the candidates."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kvplan.catalog import gpu_ids, load_gpu, load_model, model_ids, resolve_gpu_name, resolve_model_name
from kvplan.catalog.rules import OWN_FP8, QUANTISED
from kvplan.errors import InputError, UnknownNameError
from kvplan.spec.formats import get_format

RECORDED: dict[str, str] = json.loads(
    (Path(__file__).resolve().parents[1] / "data" / "model_repos.json").read_text(encoding="utf-8")
)
REPOS = {model: RECORDED.get(model) or load_model(model).repo or model for model in model_ids()}
"""id -> repository, as recorded apart from the catalog where it was."""


def test_every_recorded_model_is_there() -> None:
    assert RECORDED
    assert set(model_ids()) >= RECORDED.keys()


@pytest.mark.parametrize("model", REPOS)
def test_every_id_and_repository_finds_itself_and_nothing_else(model: str) -> None:
    repo = REPOS[model]
    for spelling in (model, model.upper(), repo, repo.lower(), repo.upper(), repo.rpartition("/")[2], f"  {repo} "):
        assert resolve_model_name(spelling) == (model, None), spelling


@pytest.mark.parametrize("model", REPOS)
def test_quantised_names_of_every_model_keep_to_it(model: str) -> None:
    repo = REPOS[model].removesuffix("-BF16")
    for suffix, weights in (("-AWQ", "awq"), ("-NVFP4", "nvfp4"), ("-GPTQ-Int4", "gptq"), ("-GGUF:Q4_K_M", "q4_k_m")):
        assert resolve_model_name(repo + suffix) == (model, weights), suffix


@pytest.mark.parametrize(
    ("name", "model"),
    [
        ("meta-llama/Llama-3.1-8B-Instruct", "llama-3.1-8b"),
        ("meta-llama/Meta-Llama-3.1-8B-Instruct", "llama-3.1-8b"),
        ("unsloth/Meta-Llama-3.1-8B-Instruct", "llama-3.1-8b"),
        ("meta-llama/Llama-3.2-3B-Instruct", "llama-3.2-3b"),
        ("meta-llama/Llama-2-70b-chat-hf", "llama-2-70b"),
        ("llama3.1:70b", "llama-3.1-70b"),
        ("llama2:70b", "llama-2-70b"),
        ("qwen3:32b", "qwen3-32b"),
        ("gpt-oss:120b", "gpt-oss-120b"),
        ("gemma3:27b", "gemma-3-27b"),
        ("deepseek-r1:671b", "deepseek-r1"),
        ("deepseek-r1:70b", "deepseek-r1-distill-llama-70b"),
        ("google/gemma-3-27b-pt", "gemma-3-27b"),
        ("google/gemma-4-26B-A4B", "gemma-4-26b-a4b"),
        ("deepseek-ai/DeepSeek-V3-0324", "deepseek-v3"),
        ("deepseek-ai/DeepSeek-R1-0528", "deepseek-r1"),
        ("deepseek-ai/DeepSeek-V4-Flash-0731", "deepseek-v4-flash"),
        ("mistralai/Mistral-7B-Instruct-v0.3", "mistral-7b-v0.3"),
        ("mistralai/Mistral-7B-Instruct-v0.1", "mistral-7b-v0.1"),
        ("mistralai/Mistral-Small-24B-Base-2501", "mistral-small-24b-2501"),
        ("moonshotai/Kimi-K2-Instruct", "kimi-k2"),
        ("moonshotai/Kimi-K2-Thinking", "kimi-k2-thinking"),
        ("Qwen/Qwen3-VL-8B-Thinking", "qwen3-vl-8b"),
        ("THUDM/GLM-4-9B-0414", "glm-4-9b-0414"),
        ("CohereForAI/c4ai-command-r-v01", "command-r-35b"),
        ("gpt2", "gpt2"),
    ],
)
def test_usual_variants(name: str, model: str) -> None:
    assert resolve_model_name(name) == (model, None)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("Qwen/Qwen3-32B-FP8", ("qwen3-32b", "fp8_block")),
        ("RedHatAI/Llama-3.3-70B-Instruct-FP8-dynamic", ("llama-3.3-70b", "fp8_channel")),
        ("nvidia/Llama-3.1-8B-Instruct-FP8", ("llama-3.1-8b", "fp8_e4m3")),
        ("neuralmagic/Meta-Llama-3.1-8B-Instruct-quantized.w4a16", ("llama-3.1-8b", "int4_g128")),
        ("Qwen/Qwen3-30B-A3B-GPTQ-Int4", ("qwen3-30b-a3b", "gptq")),
        ("Qwen/Qwen1.5-7B-Chat-GPTQ-Int4", ("qwen1.5-7b", "gptq")),
        ("cyankiwi/gemma-4-31B-it-AWQ-4bit", ("gemma-4-31b", "awq")),
        ("nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-FP8", ("nemotron-3-nano-30b-a3b", "fp8_e4m3")),
        ("mlx-community/Qwen3-32B-4bit", ("qwen3-32b", "mlx4_g64")),
        ("llama3.1:70b-instruct-q4_K_M", ("llama-3.1-70b", "q4_k_m")),
        ("Qwen3.5-27B Q3_K_M", ("qwen3.5-27b", "q3_k_m")),
    ],
)
def test_quantised_names(name: str, expected: tuple[str, str]) -> None:
    assert resolve_model_name(name) == expected


@pytest.mark.parametrize("weights", sorted({*QUANTISED.values(), *OWN_FP8.values()}))
def test_every_format_that_a_name_states_is_a_weight_format(weights: str) -> None:
    assert get_format(weights, use="weights").name == weights


@pytest.mark.parametrize(
    "name",
    [
        "mistralai/Mistral-7B-Instruct-v0.2",  # neither v0.1 (sliding) nor v0.3 (vocabulary)
        "Qwen/Qwen3.8-27B-FP8",
        "google/gemma-4-12B",
        "microsoft/Phi-3-vision-128k-instruct",
        "meta-llama/Llama-3.1-90B",
        "nvidia/Llama-3_1-Nemotron-Ultra-253B-v1",
        "somebody/Llama-3.1-8B",  # a stranger's weights may be anything
        "meta-llama/Qwen3-32B",
        "",
        "-",
        "/",
        "x" * 100_000,
    ],
)
def test_other_architectures_and_strangers_are_unknown(name: str) -> None:
    assert resolve_model_name(name) is None
    with pytest.raises(UnknownNameError, match="unknown model"):
        load_model(name)


def test_ambiguous_models_are_named() -> None:
    with pytest.raises(InputError, match=r"names 2 models: mistral-7b-v0\.1, mistral-7b-v0\.3"):
        resolve_model_name("mistral:7b")


def test_gguf_needs_a_type() -> None:
    with pytest.raises(InputError, match="does not say which GGUF file"):
        resolve_model_name("unsloth/Qwen3-8B-GGUF")


def test_unknown_model_gets_near_names() -> None:
    with pytest.raises(UnknownNameError) as caught:
        load_model("lama-3.1-8b\x1b[31m")
    assert "\x1b" not in f"{caught.value} {caught.value.hint}"
    with pytest.raises(UnknownNameError) as caught:
        load_model("lama-3.1-8b")
    assert caught.value.near[0] == "llama-3.1-8b"
    assert "llama-3.1-8b" in (caught.value.hint or "")


def test_a_variant_keeps_its_own_context_length() -> None:
    assert load_model("qwen3-30b-a3b").max_position_embeddings == 40_960
    dated = load_model("Qwen/Qwen3-30B-A3B-Instruct-2507-FP8")
    assert (dated.id, dated.repo, dated.max_position_embeddings) == (
        "qwen3-30b-a3b", "Qwen/Qwen3-30B-A3B-Instruct-2507-FP8", 262_144,
    )  # fmt: skip
    assert load_model("Qwen/Qwen2.5-7B").max_position_embeddings == 131_072
    assert load_model("Qwen/Qwen2.5-7B-Instruct-AWQ").max_position_embeddings == 32_768


def test_a_quantised_name_sets_the_checkpoint() -> None:
    plain, quantised = load_model("qwen3-32b"), load_model("Qwen/Qwen3-32B-AWQ")
    assert plain.checkpoint is None
    assert quantised.checkpoint is not None
    assert quantised.checkpoint.format == "awq"
    assert "embedding" not in quantised.checkpoint.roles
    gguf = load_model("qwen3:32b-q8_0").checkpoint
    assert gguf is not None
    assert {"embedding", "head"} <= set(gguf.roles)
    assert (quantised.blocks, quantised.layers) == (plain.blocks, plain.layers)


def test_a_native_format_stays_the_specs_own() -> None:
    own = load_model("deepseek-v3").checkpoint
    assert own is not None
    assert load_model("deepseek-ai/DeepSeek-V3-FP8").checkpoint == own
    assert load_model("unsloth/DeepSeek-V3-BF16").checkpoint is None


def candidates(name: str) -> str:
    """The id a GPU name finds, or the refusal that lists several."""
    try:
        return resolve_gpu_name(name) or ""
    except InputError as error:
        return str(error)


@pytest.mark.parametrize("gpu", gpu_ids())
def test_every_card_answers_to_its_id_and_driver_name(gpu: str) -> None:
    assert resolve_gpu_name(gpu) == gpu
    assert resolve_gpu_name(gpu.upper()) == gpu
    spec = load_gpu(gpu)
    for spelling in (spec.name, spec.name.lower(), spec.name.removeprefix("NVIDIA "), *spec.aliases):
        assert gpu in candidates(spelling), spelling


@pytest.mark.parametrize(
    ("name", "gpu"),
    [
        ("H100", "h100-sxm"),
        ("NVIDIA H100 80GB HBM3", "h100-sxm"),
        ("h100 80gb hbm3", "h100-sxm"),
        ("H100-80GB", "h100-sxm"),
        ("H100 PCIe", "h100-pcie"),
        ("A100-SXM4-80GB", "a100-sxm4-80gb"),
        ("NVIDIA A100 80GB PCIe", "a100-pcie-80gb"),
        ("a100 sxm 40gb", "a100-sxm4-40gb"),
        ("4090", "rtx-4090"),
        ("rtx 4090", "rtx-4090"),
        ("RTX4090", "rtx-4090"),
        ("NVIDIA GeForce RTX 4090", "rtx-4090"),
        ("4070 Ti Super", "rtx-4070-ti-super"),
        ("L40S", "l40s"),
        ("T4", "t4"),
        ("Tesla T4", "t4"),
        ("MI300X", "mi300x"),
        ("AMD Instinct MI300X", "mi300x"),
        ("M3 Ultra", "apple-m3-ultra"),
        ("A6000", "rtx-a6000"),
        ("6000 Ada", "rtx-6000-ada"),
        ("v100 sxm2 32gb", "v100-sxm2-32gb"),
        ("DGX Spark", "gb10"),
        ("Strix Halo", "ryzen-ai-max-395"),
    ],
)
def test_card_names(name: str, gpu: str) -> None:
    assert resolve_gpu_name(name) == gpu


@pytest.mark.parametrize(
    ("name", "candidates"),
    [
        ("A100", ("a100-pcie-40gb", "a100-pcie-80gb", "a100-sxm4-40gb", "a100-sxm4-80gb")),
        ("a100-80gb", ("a100-pcie-80gb", "a100-sxm4-80gb")),
        ("V100", ("v100-pcie-16gb", "v100-pcie-32gb", "v100-sxm2-16gb", "v100-sxm2-32gb")),
        ("V100 32GB", ("v100-pcie-32gb", "v100-sxm2-32gb")),
        ("RTX 6000", ("quadro-rtx-6000", "rtx-6000-ada")),
        ("RTX PRO 6000", ("rtx-pro-6000-blackwell-maxq", "rtx-pro-6000-blackwell-server", "rtx-pro-6000-blackwell-ws")),
        ("Orin (nvgpu)", ("jetson-agx-orin-32gb", "jetson-agx-orin-64gb")),
    ],
)
def test_shared_card_names_are_refused_with_the_candidates(name: str, candidates: tuple[str, ...]) -> None:
    with pytest.raises(InputError, match=f"accelerators: {', '.join(candidates)}$"):
        resolve_gpu_name(name)


@pytest.mark.parametrize("name", ["H1000", "h100-40gb", "", "gpu", "8xH100", "9999", "\x1b[31mH100"])
def test_unknown_cards_ask_for_their_figures(name: str) -> None:
    with pytest.raises(UnknownNameError, match="unknown GPU") as caught:
        load_gpu(name)
    assert "--gpu-memory and --gpu-bandwidth" in (caught.value.hint or "")
    assert "\x1b" not in f"{caught.value} {caught.value.hint}"


def test_a_recalled_context_length_says_so() -> None:
    from kvplan import plan

    found = plan("Qwen/Qwen2.5-7B-Instruct")
    assert found.inputs["max_model_len"] == 32_768
    assert any("Qwen/Qwen2.5-7B-Instruct is recalled" in w for w in found.warnings)
    assert not any("recalled" in w for w in plan("qwen2.5-7b").warnings)


@pytest.mark.parametrize(
    ("name", "repo"),
    [
        ("Qwen/Qwen3-32B-AWQ", "Qwen/Qwen3-32B-AWQ"), ("qwen/qwen3-32b", "Qwen/Qwen3-32B"),
        ("meta-llama/Llama-3.1-8B-Instruct", "meta-llama/Llama-3.1-8B-Instruct"), ("qwen3-32b-awq", "qwen3-32b-awq"),
        ("qwen3-32b", "Qwen/Qwen3-32B"), ("llama3.1:8b", "meta-llama/Llama-3.1-8B"),
    ],
)  # fmt: skip
def test_the_repository_is_the_one_that_was_named(name: str, repo: str) -> None:
    assert load_model(name).repo == repo

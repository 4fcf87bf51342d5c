"""What names of Ollama's library stand for."""

from __future__ import annotations

import pytest

from kvplan.catalog import resolve_model_name
from kvplan.deployment import Deployment, find_deployment
from kvplan.engines.ollama_library import _rows, meaning
from kvplan.errors import KvplanError


def run(name: str) -> Deployment:
    return find_deployment(f"ollama run {name}", {})


@pytest.mark.parametrize(
    ("name", "model", "stored"),
    [
        ("deepseek-r1", "qwen3-8b", "q4_k_m"),
        ("deepseek-r1:latest", "qwen3-8b", "q4_k_m"),
        ("deepseek-r1:671b", "deepseek-r1", "q4_k_m"),
        ("deepseek-r1:8b-llama-distill-fp16", "llama-3.1-8b", "fp16"),
        ("deepseek-r1:14b-qwen-distill-q8_0", "qwen2.5-14b", "q8_0"),
        ("llama3.1", "llama-3.1-8b", "q4_k_m"),
        ("llama3.1:8b", "llama-3.1-8b", "q4_k_m"),
        ("llama3.1:70b-instruct-q2_K", "llama-3.1-70b", "q2_k"),
        ("llama3.2", "llama-3.2-3b", "q4_k_m"),
        ("llama3.2:1b", "llama-3.2-1b", "q8_0"),
        ("llama3", "llama-3-8b", "q4_0"),
        ("qwen3", "qwen3-8b", "q4_k_m"),
        ("qwen3:30b", "qwen3-30b-a3b", "q4_k_m"),
        ("qwen2.5:7b-instruct", "qwen2.5-7b", "q4_k_m"),
        ("gemma3", "gemma-3-4b", "q4_k_m"),
        ("gemma3:27b-it-q8_0", "gemma-3-27b", "q8_0"),
        ("mistral", "mistral-7b-v0.3", "q4_k_m"),
        ("library/phi4", "phi-4", "q4_k_m"),
        ("registry.ollama.ai/library/phi4:latest", "phi-4", "q4_k_m"),
        ("mixtral", "mixtral-8x7b", "q4_0"),
    ],
)
def test_names_of_the_library(name: str, model: str, stored: str) -> None:
    found = run(name)
    assert (found.model.id, found.settings["weights"]) == (model, stored)


def test_what_a_bare_name_is_taken_for_is_said() -> None:
    found = run("deepseek-r1")
    assert found.model.max_position_embeddings == 131072
    assert any("deepseek-r1:8b in q4_k_m" in text and "planned as qwen3-8b" in text for text in found.warnings)


def test_what_is_stored_as_published_stays_so() -> None:
    found = run("gpt-oss")
    assert (found.model.id, found.settings.get("weights")) == ("gpt-oss-20b", None)
    assert any("gpt-oss:20b" in text for text in found.warnings)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("deepseek-r1:1.5b", "no model of the shape of deepseek-r1:1.5b"),
        ("codellama", "no model of the shape of codellama:7b"),
        ("llava", "knows no model that Ollama's library calls 'llava'"),
        ("my-own-model", "knows no model that Ollama's library calls"),
        ("gpt-oss:20b-cloud", "runs in Ollama's cloud"),
    ],
)
def test_models_of_another_shape_are_refused_with_a_hint(name: str, said: str) -> None:
    with pytest.raises(KvplanError) as error:
        run(name)
    assert said in str(error.value)
    assert error.value.hint


def test_every_row_leads_to_the_catalog() -> None:
    for name, (default, _, tags) in _rows().items():
        for tag in (default, *tags):
            found = meaning(name, tag)
            assert found is not None
            assert not found.model or resolve_model_name(found.model) is not None, (name, tag)

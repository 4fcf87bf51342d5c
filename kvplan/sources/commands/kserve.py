"""KServe: an InferenceService with the Hugging Face runtime, and an LLMInferenceService, both of which run vLLM.

The arguments of the former are those of vLLM besides ``--model_id``, ``--model_dir`` and ``--model_name``; the latter
takes more of them from a variable. Source: KServe's documentation of both.
"""

from __future__ import annotations

from typing import Any

from kvplan.sources.commands.containers import accelerator, container_environment, expand, gpu_count
from kvplan.sources.commands.documents import at, listed, mapping, texts
from kvplan.sources.commands.shell import split
from kvplan.sources.commands.starts import Finder, Start

_OWN = {"--model_id": "--model", "--model-id": "--model", "--model_dir": "--model", "--model-dir": "--model",
        "--model_name": "--served-model-name", "--model-name": "--served-model-name"}  # fmt: skip
_PARALLEL = (
    ("tensor", "--tensor-parallel-size"), ("pipeline", "--pipeline-parallel-size"), ("data", "--data-parallel-size"),
    ("dataLocal", "--data-parallel-size-local"),
)  # fmt: skip
_MORE = "VLLM_ADDITIONAL_ARGS"


def find(document: dict[str, Any], maps: dict[str, dict[str, str]], finder: Finder) -> list[Start]:
    """What one of KServe's objects starts without naming a command; nothing for any other object."""
    if not str(document.get("apiVersion") or "").startswith("serving.kserve.io/"):
        return []
    spec = mapping(document.get("spec"))
    if document.get("kind") == "LLMInferenceService":
        return [_llm(spec, maps, finder)]
    predictor = mapping(spec.get("predictor"))
    model = mapping(predictor.get("model"))
    if document.get("kind") != "InferenceService" or at(model, "modelFormat", "name") != "huggingface":
        return []
    environment = container_environment(model, maps)
    words: list[str] = []
    for word in texts(model.get("args")):
        flag, equals, value = expand(word, environment).partition("=")
        words.append(f"{_OWN.get(flag, flag)}{equals}{value}")
    backend = next((w.partition("=")[2] for w in words if w.startswith("--backend=")), "auto")
    words = [w for w in words if not w.startswith("--backend=")]
    notes = (f"--backend={backend}: planned as vLLM, which it is not",) if backend not in ("auto", "vllm") else ()
    named = any(word.partition("=")[0] == "--model" for word in words)
    uri = _uri(model.get("storageUri"))
    start = Start(_vllm(finder), (*([] if named or not uri else ["--model", uri]), *words), environment)
    return [start._replace(gpus=gpu_count(model.get("resources"))[0], gpu=accelerator(predictor), notes=notes)]


def _llm(spec: dict[str, Any], maps: dict[str, dict[str, str]], finder: Finder) -> Start:
    template = mapping(spec.get("template"))
    main = mapping(next((c for c in listed(template.get("containers")) if at(c, "name") == "main"), None))
    environment = container_environment(main, maps)
    words = ["--model", _uri(at(spec, "model", "uri")) or str(at(spec, "model", "name") or "")]
    parallel = mapping(spec.get("parallelism"))
    for key, flag in _PARALLEL:
        if isinstance(parallel.get(key), str):
            words += [flag, parallel[key]]
    if parallel.get("expert") == "true":
        words.append("--enable-expert-parallel")
    words += [expand(word, environment) for word in texts(main.get("args"))]
    words += split(environment.pop(_MORE, ""), finder.name)
    replicas = str(spec.get("replicas") or "")
    notes = (f"runs {replicas} replicas; the figures are of one",) if replicas not in ("", "0", "1") else ()
    gpus = gpu_count(main.get("resources"))[0]
    return Start(_vllm(finder), tuple(words), environment, gpus=gpus, gpu=accelerator(template), notes=notes)


def _vllm(finder: Finder) -> Any:
    return next(grammar for grammar in finder.grammars if grammar.engine == "vllm")


def _uri(value: Any) -> str:
    """The model of ``hf://ORG/NAME``; another store's path as it is."""
    return value.removeprefix("hf://") if isinstance(value, str) else ""

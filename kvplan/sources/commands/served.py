"""Files that describe served models in words of their own: Ray Serve's LLM configuration, llm-d's chart values.

Sources: Ray ``python/ray/llm/_internal/serve/core/configs/llm_config.py`` (``LLMConfig``), in a file of Serve or in the
``serveConfigV2`` of a RayService; llm-d ``charts/llm-d-modelservice/values.yaml``.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from kvplan.sources.commands.containers import accelerator, gpu_count
from kvplan.sources.commands.documents import at, listed, mapping, read_documents, texts
from kvplan.sources.commands.helm import flags
from kvplan.sources.commands.starts import Finder, Start

_ROLES = ("decode", "prefill")


def is_known(documents: list[Any]) -> bool:
    """Whether this is a file of Ray Serve with LLMs in it, or the values of llm-d."""
    return any(next(_ray_models(d), None) is not None or _is_llmd(d) for d in documents)


def find(documents: list[Any], finder: Finder) -> tuple[list[Start], list[str]]:
    """(the engines that such a file starts, their names)."""
    found = [s for d in documents for s in (_llmd(d, finder) if _is_llmd(d) else _ray(d, finder))]
    return found, [start.name for start in found]


def embedded(document: Any, finder: Finder) -> list[Start]:
    """What the Serve configuration inside a RayService starts."""
    text = at(document, "spec", "serveConfigV2")
    documents = read_documents(text, finder.name) if isinstance(text, str) else []
    return [start for d in documents for start in _ray(d, finder)]


def _ray_models(document: Any) -> Iterator[dict[str, Any]]:
    """Every ``LLMConfig`` of a Serve configuration."""
    for application in listed(at(document, "applications")):
        for config in listed(at(application, "args", "llm_configs")):
            if isinstance(at(config, "model_loading_config"), dict):
                yield config


def _ray(document: Any, finder: Finder) -> list[Start]:
    grammar = next(g for g in finder.grammars if g.engine == "vllm")
    found = []
    for config in _ray_models(document):
        loading = config["model_loading_config"]
        name, source = at(loading, "model_id"), at(loading, "model_source")
        named = [part for part in (source, name) if isinstance(part, str)]
        words = (*(["--model", named[0]] if named else []), *flags(mapping(config.get("engine_kwargs")), negates=True))
        variables = mapping(at(config, "runtime_env", "env_vars"))
        environment = {key: value for key, value in variables.items() if isinstance(value, str)}
        label = config.get("accelerator_type")
        gpu = label if isinstance(label, str) else ""
        found.append(Start(grammar, words, environment, name=name if isinstance(name, str) else "", gpu=gpu))
    return found


def _is_llmd(document: Any) -> bool:
    return isinstance(at(document, "modelArtifacts"), dict) and any(
        isinstance(at(document, role, "containers"), list) for role in _ROLES
    )


def _llmd(document: dict[str, Any], finder: Finder) -> list[Start]:
    """The containers of decode and prefill; ``modelCommand: vllmServe`` puts ``vllm serve MODEL`` before the words."""
    artifacts = document["modelArtifacts"]
    model = next((artifacts[k] for k in ("uri", "name") if isinstance(artifacts.get(k), str)), "")
    if not model.startswith("hf://") and isinstance(artifacts.get("name"), str):
        model = artifacts["name"]
    found: list[Start] = []
    for role in _ROLES:
        part = mapping(document.get(role))
        for container in listed(part.get("containers")) if part.get("create") != "false" else []:
            if isinstance(container, dict):
                found += _llmd_container(container, part, model, role, finder)
    return found


def _llmd_container(
    container: dict[str, Any], part: dict[str, Any], model: str, role: str, finder: Finder
) -> list[Start]:  # fmt: skip
    words = texts(container.get("args"))
    parallel = mapping(part.get("parallelism"))
    for key, flag in (("tensor", "--tensor-parallel-size"), ("data", "--data-parallel-size")):
        if isinstance(parallel.get(key), str) and parallel[key] != "1" and flag not in words:
            words += [flag, parallel[key]]
    environment = {
        entry["name"]: entry["value"]
        for entry in listed(container.get("env"))
        if isinstance(at(entry, "name"), str) and isinstance(at(entry, "value"), str)
    }
    image = container.get("image") if isinstance(container.get("image"), str) else ""
    command = texts(container.get("command"))
    if container.get("modelCommand") == "vllmServe":
        command, words = ["vllm", "serve"], [model, *words]
    gpus = gpu_count(container.get("resources"))[0]
    replicas = part.get("replicas")
    several = isinstance(replicas, str) and replicas.isdecimal() and replicas not in ("0", "1") and len(replicas) < 6
    notes = (f"{role} runs {replicas} replicas; the figures are of one",) if several else ()
    return [
        start._replace(name=role, gpus=start.gpus or gpus, gpu=accelerator(part), model=model, notes=notes)
        for start in finder.image(str(image), command or None, words, environment)
    ]

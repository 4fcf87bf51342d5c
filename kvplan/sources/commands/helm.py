"""Values of Helm charts: whatever mapping in them has an image of an engine, or words that start one.

Charts name things as they like. What is understood: ``image`` as text or as repository and tag, ``command``, ``args``
and ``extraArgs`` as lists, text or a mapping of flags, ``env``, ``resources.limits``, and the engine settings in camel
case that charts keep in a mapping of their own (``vllmConfig: {maxModelLen: 4096}``). A model beside an engine's image,
or a ``modelURL`` (vLLM's production stack, github.com/vllm-project/production-stack, ``helm/values.yaml``), is a start
without any of these.
"""

from __future__ import annotations

import json
import re
from typing import Any, NamedTuple

from kvplan.sources.commands import raw
from kvplan.sources.commands.containers import accelerator, expand, gpu_count
from kvplan.sources.commands.documents import at, listed, mapping, texts
from kvplan.sources.commands.shell import split
from kvplan.sources.commands.starts import Finder, Start

_WORDS = ("command", "args", "extraArgs", "extra_args", "extraArguments", "engineArgs", "serverArgs")
_MODELS = ("modelURL", "modelUrl", "modelName", "modelId", "modelID", "model", "hfModel", "modelPath")
_CONFIGS = {"vllmConfig": "vllm", "sglangConfig": "sglang", "vllm": "vllm", "sglang": "sglang"}
_STACK_MODELS = ("modelURL", "modelUrl")
"""Keys that only charts of vLLM have."""
_STACK_SWITCHES = {"v0": "VLLM_USE_V1", "v1": "VLLM_USE_V1"}
"""Keys of ``vllmConfig`` that become variables."""
_REPLICAS = ("replicaCount", "replicas")
_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")


class _Around(NamedTuple):
    """What holds for a mapping because of the ones around it."""

    image: str = ""
    environment: tuple[tuple[str, str], ...] = ()
    gpus: tuple[int, str] | None = None
    model: str = ""
    gpu: str = ""
    replicas: str = ""


def find(documents: list[Any], finder: Finder) -> tuple[list[Start], list[str]]:
    """(what these values start, the names of those places)."""
    found: list[Start] = []
    for document in documents:
        _walk(document, (), _Around(), finder, found, 0)
    return found, [start.name for start in found]


def _walk(node: Any, path: tuple[str, ...], around: _Around, finder: Finder, found: list[Start], depth: int) -> None:
    if depth > 32:
        return
    if isinstance(node, list):
        for number, item in enumerate(node):
            name = at(item, "name")
            _walk(item, (*path, name if isinstance(name, str) else str(number)), around, finder, found, depth + 1)
    if not isinstance(node, dict):
        return
    around = _updated(node, around)
    here, before = _named(_starts(node, around, finder), path, around), len(found)
    found += here
    for key, item in node.items():
        if (
            key not in (*_WORDS, "env", "resources")
            and not (here and key in _CONFIGS)
            and not (key == "image" and isinstance(item, dict))
        ):
            _walk(item, (*path, key), around, finder, found, depth + 1)
    if len(found) == before:
        found += _named(_bare(node, around, finder), path, around)


def _named(found: list[Start], path: tuple[str, ...], around: _Around) -> list[Start]:
    """Starts with their place in the values, and what stands around them."""
    place, own = ".".join(path) or "values", path[-1] if path else ""
    notes = (f"{own or place} runs {around.replicas} replicas; the figures are of one",) if around.replicas else ()
    return [
        start._replace(
            name=place, owner=own, gpus=start.gpus or around.gpus, model=around.model, gpu=start.gpu or around.gpu,
            notes=(*start.notes, *notes),
        )
        for start in found
    ]  # fmt: skip


def _bare(node: dict[str, Any], around: _Around, finder: Finder) -> list[Start]:
    """The start that a model alone is: beside the image of an engine, or under a key of vLLM's own charts."""
    if not any(isinstance(node.get(key), str) for key in _MODELS):
        return []
    found = finder.image(around.image, None, [], dict(around.environment)) if around.image else []
    if not found and any(isinstance(node.get(key), str) for key in _STACK_MODELS):
        grammar = next(g for g in finder.grammars if g.engine == "vllm")
        found = [Start(grammar, (), dict(around.environment))]
    return found


def _updated(node: dict[str, Any], around: _Around) -> _Around:
    image = node.get("image")
    if isinstance(image, dict):
        image = _joined(image)
    elif not isinstance(image, str):
        image = _joined(node)
    environment = dict(around.environment)
    if isinstance(node.get("env"), dict):
        environment |= {name: v for name, v in node["env"].items() if isinstance(v, str)}
    for entry in listed(node.get("env")):
        if isinstance(at(entry, "name"), str) and isinstance(at(entry, "value"), str):
            environment[entry["name"]] = entry["value"]
    gpus = gpu_count(node.get("resources"))[0]
    requested = node.get("requestGPU")
    if gpus is None and isinstance(requested, str) and requested.isdecimal() and 0 < len(requested) < 6:
        gpus = (int(requested), f"requestGPU: {requested}") if int(requested) else None
    model = next((node[key] for key in _MODELS if isinstance(node.get(key), str)), around.model)
    replicas = next((node[key] for key in _REPLICAS if isinstance(node.get(key), str)), "")
    replicas = replicas if replicas.isdecimal() and replicas not in ("0", "1") and len(replicas) < 6 else ""
    return _Around(
        image or around.image, tuple(environment.items()), gpus or around.gpus, model,
        accelerator(node) or around.gpu, replicas or around.replicas,
    )  # fmt: skip


def _joined(image: dict[str, Any]) -> str:
    """``{registry, repository, tag}`` as one name."""
    repository = image.get("repository")
    if not isinstance(repository, str):
        return ""
    registry, tag = image.get("registry"), image.get("tag")
    name = f"{registry}/{repository}" if isinstance(registry, str) and registry else repository
    return f"{name}:{tag}" if isinstance(tag, str) and tag else name


def _starts(node: dict[str, Any], around: _Around, finder: Finder) -> list[Start]:
    image = mapping(node.get("image"))
    if not any(key in node for key in (*_WORDS, *_CONFIGS)) and "command" not in image:
        return []
    environment = dict(around.environment)
    command = _words(node.get("command") or image.get("command"), environment, finder.name)
    words = [w for key in _WORDS[1:] for w in _words(node.get(key) or image.get(key), environment, finder.name)]
    for key, engine in _CONFIGS.items():
        config = node.get(key)
        if isinstance(config, dict) and (command or words or around.image or around.model):
            environment |= {name: config[k] for k, name in _STACK_SWITCHES.items() if isinstance(config.get(k), str)}
            own = {k: v for k, v in config.items() if k not in _WORDS and k not in _STACK_SWITCHES}
            words += flags(own, negates=True) + [
                w for k in _WORDS for w in _words(config.get(k), environment, finder.name)
            ]
            found = finder.image(around.image, command or None, words, environment)
            if not found:
                grammar = next(g for g in finder.grammars if g.engine == engine)
                found = [Start(grammar, tuple(words), environment)]
            break
    else:
        found = finder.image(around.image, command or None, words, environment)
    return found


def _words(value: Any, environment: dict[str, str], name: str) -> list[str]:
    if isinstance(value, str):
        return [expand(word, environment) for word in split(value, name)]
    if isinstance(value, dict):
        return [expand(word, environment) for word in flags(value)]
    return [expand(word, environment) for word in texts(value)]


def flags(settings: dict[str, Any], *, negates: bool = False) -> list[str]:
    """``{maxModelLen: 4096, enforceEager: true}`` -> ``--max-model-len 4096 --enforce-eager``.

    Args:
        negates: ``false`` becomes ``--no-...``; otherwise the flag is left out.
    """
    found: list[str] = []
    for key, value in settings.items():
        flag = "--" + _CAMEL.sub("-", key).lower().replace("_", "-").lstrip("-")
        if value in ("true", "", None):
            found.append(flag)
        elif value == "false":
            found += [f"--no-{flag[2:]}"] if negates else []
        elif isinstance(value, str):
            found += [flag, value]
        elif isinstance(value, list):
            found += [flag, *texts(value)]
        elif isinstance(value, dict):
            found += [flag, json.dumps(_typed(value))]
    return found


def _typed(value: Any) -> Any:
    """Data whose scalars are all text, as the JSON that was meant."""
    if isinstance(value, dict):
        return {key: _typed(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_typed(item) for item in value]
    if not isinstance(value, str) or len(value) > 40 or raw.has_unknown(value):
        return value
    try:
        return json.loads(value)
    except ValueError:
        return value

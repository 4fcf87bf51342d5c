"""Kubernetes manifests: containers of Pods, Deployments, StatefulSets, Jobs and whatever else has a pod template."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, NamedTuple

from kvplan.sources.commands import raw
from kvplan.sources.commands.documents import at, mapping, texts
from kvplan.sources.commands.starts import Finder, Start

_REFERENCE = re.compile(r"\$\$|\$\(([A-Za-z_][A-Za-z0-9_.\-]*)\)")
_LABELS = ("nvidia.com/gpu.product", "cloud.google.com/gke-accelerator", "amd.com/gpu.product-name")
"""Labels of nodes that name their accelerator."""
_GPU = re.compile(r"(?:^|[./])gpu(?:$|\.)")
_PLAIN_COUNT = re.compile(r"[0-9]{1,5}\Z")


class Container(NamedTuple):
    """One container, and where it stands."""

    name: str
    owner: str
    """Name of the Deployment, Pod, ..."""
    spec: dict[str, Any]
    pod: dict[str, Any]
    replicas: str
    nodes: int = 1
    """Pods that share the model."""


def is_manifest(documents: list[Any]) -> bool:
    """Whether these are objects of the Kubernetes API."""
    return any(isinstance(d, dict) and "kind" in d and "apiVersion" in d for d in documents)


def find(documents: list[Any], finder: Finder) -> tuple[list[Start], list[str]]:
    """(what the containers start, names of all containers)."""
    objects = [item for d in documents for item in (texts_or_items(d) if at(d, "kind") == "List" else [d])]
    maps = _config_maps(objects)
    finder.files.update({name: text for data in maps.values() for name, text in data.items()})
    containers = [c for o in objects if isinstance(o, dict) for c in _containers(o, _name(o), o, 0)]
    shared = {c.name for c in containers if [x.name for x in containers].count(c.name) > 1}
    found: list[Start] = []
    names: list[str] = []
    from kvplan.sources.commands import kserve

    for o in objects:
        served = kserve.find(o, maps, finder) if isinstance(o, dict) else []
        found += [start._replace(name=_name(o), owner=_name(o)) for start in served]
        names += [start.name for start in found]
    for container in containers:
        name = f"{container.owner}/{container.name}" if container.name in shared else container.name
        names.append(name)
        found += [start._replace(name=name, owner=container.owner) for start in _starts(container, maps, finder)]
    return found, names


def texts_or_items(document: Any) -> list[Any]:
    """The objects of a ``kind: List``."""
    items = at(document, "items")
    return items if isinstance(items, list) else []


def _name(document: dict[str, Any]) -> str:
    return str(at(document, "metadata", "name") or at(document, "kind") or "")


def _config_maps(objects: list[Any]) -> dict[str, dict[str, str]]:
    """ConfigMap -> its data."""
    return {
        _name(o): {k: v for k, v in mapping(o.get("data")).items() if isinstance(v, str)}
        for o in objects
        if isinstance(o, dict) and o.get("kind") == "ConfigMap"
    }


def _containers(node: Any, owner: str, top: dict[str, Any], depth: int, nodes: int = 1) -> Iterator[Container]:
    """Every entry of every ``containers`` list below `node`. Of a leader and its workers, the leader counts."""
    if depth > 32:
        return
    if isinstance(node, list):
        for item in node:
            yield from _containers(item, owner, top, depth + 1, nodes)
    if not isinstance(node, dict):
        return
    for number, item in enumerate(node["containers"] if isinstance(node.get("containers"), list) else []):
        if isinstance(item, dict):
            name = item.get("name") if isinstance(item.get("name"), str) else f"container-{number}"
            yield Container(str(name), owner, item, node, str(at(top, "spec", "replicas") or ""), nodes)
    led = isinstance(node.get("leaderTemplate"), dict)
    size = node.get("size")
    if "workerTemplate" in node and isinstance(size, str) and _PLAIN_COUNT.match(size):
        nodes = max(1, int(size))
    for key, item in node.items():
        if key not in ("containers", "initContainers", "status") and not (led and key == "workerTemplate"):
            yield from _containers(item, owner, top, depth + 1, nodes)


def _starts(container: Container, maps: dict[str, dict[str, str]], finder: Finder) -> list[Start]:
    spec = container.spec
    environment = container_environment(spec, maps)
    command = [expand(word, environment) for word in texts(spec.get("command"))]
    words = [expand(word, environment) for word in texts(spec.get("args"))]
    image = spec.get("image") if isinstance(spec.get("image"), str) else ""
    gpus, notes = gpu_count(spec.get("resources"))
    if container.replicas.isdecimal() and container.replicas not in ("0", "1"):
        notes = [*notes, f"{container.owner} runs {container.replicas} replicas; the figures are of one"]
    found = finder.image(str(image), command or None, words, environment)
    gpu = accelerator(container.pod)
    return [
        start._replace(gpus=start.gpus or gpus, gpu=gpu, nodes=container.nodes, notes=(*start.notes, *notes))
        for start in found
    ]


def accelerator(node: dict[str, Any]) -> str:
    """The accelerator that a pod asks its node for: by label, or by terms of affinity; empty where it does not say."""
    selector = mapping(node.get("nodeSelector"))
    found = next((selector[label] for label in _LABELS if isinstance(selector.get(label), str)), "")
    terms = node.get("nodeSelectorTerms")
    affinity = at(node, "affinity", "nodeAffinity", "requiredDuringSchedulingIgnoredDuringExecution")
    for term in (*texts_or_items({"items": terms}), *texts_or_items({"items": at(affinity, "nodeSelectorTerms")})):
        for wanted in texts_or_items({"items": at(term, "matchExpressions")}):
            values = texts(at(wanted, "values"))
            if at(wanted, "key") in _LABELS and at(wanted, "operator") == "In" and len(values) == 1:
                found = found or values[0]
    return found


def container_environment(spec: dict[str, Any], maps: dict[str, dict[str, str]]) -> dict[str, str]:
    """The variables of a container; those from elsewhere are not known."""
    found: dict[str, str] = {}
    for source in spec["envFrom"] if isinstance(spec.get("envFrom"), list) else []:
        found |= maps.get(str(at(source, "configMapRef", "name")), {})
    for entry in spec["env"] if isinstance(spec.get("env"), list) else []:
        name, value = at(entry, "name"), at(entry, "value")
        if not isinstance(name, str):
            continue
        if isinstance(value, str):
            found[name] = expand(value, found)
        elif at(entry, "valueFrom") is not None:
            reference = at(entry, "valueFrom", "configMapKeyRef")
            data = maps.get(str(at(reference, "name")), {})
            found[name] = data.get(str(at(reference, "key")), raw.unknown(f"${name}", "comes from elsewhere"))
        else:
            found[name] = ""
    return found


def expand(text: str, environment: dict[str, str]) -> str:
    """``$(NAME)`` as the kubelet replaces it; ``$$`` is a dollar."""

    def value(match: re.Match[str]) -> str:
        if match.group() == "$$":
            return "$"
        return environment.get(match.group(1), raw.unknown(match.group()))

    return raw.bounded(_REFERENCE.sub(value, text))


def gpu_count(resources: Any) -> tuple[tuple[int, str] | None, list[str]]:
    """((GPUs in the limits of a container, what says so), warnings)."""
    warnings: list[str] = []
    for part in ("limits", "requests"):
        for key, value in mapping(at(resources, part)).items():
            count = int(value) if isinstance(value, str) and _PLAIN_COUNT.match(value) else 0
            if "/mig-" in key:
                warnings.append(f"{key}: a slice of a GPU; describe it with --gpu-memory")
            elif count and _GPU.search(key):
                return (count, f"{key}: {count}"), warnings
    return None, warnings

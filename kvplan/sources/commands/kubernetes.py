"""Kubernetes manifests: containers of Pods, Deployments, StatefulSets, Jobs and whatever else has a pod template."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from kvplan.sources.commands import kserve
from kvplan.sources.commands.containers import PLAIN_COUNT, accelerator, container_environment, expand, gpu_count
from kvplan.sources.commands.documents import at, listed, mapping, texts
from kvplan.sources.commands.starts import Finder, Start


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
    objects = [item for d in documents for item in (listed(at(d, "items")) if at(d, "kind") == "List" else [d])]
    maps = _config_maps(objects)
    finder.files.update({name: text for data in maps.values() for name, text in data.items()})
    containers = [c for o in objects if isinstance(o, dict) for c in _containers(o, _name(o), o, 0)]
    shared = {c.name for c in containers if [x.name for x in containers].count(c.name) > 1}
    found: list[Start] = []
    names: list[str] = []
    for o in objects:
        served = kserve.find(o, maps, finder) if isinstance(o, dict) else []
        found += [start._replace(name=_name(o), owner=_name(o)) for start in served]
        names += [_name(o) for _ in served]
    for container in containers:
        name = f"{container.owner}/{container.name}" if container.name in shared else container.name
        names.append(name)
        found += [start._replace(name=name, owner=container.owner) for start in _starts(container, maps, finder)]
    return found, names


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
    for number, item in enumerate(listed(node.get("containers"))):
        if isinstance(item, dict):
            name = item.get("name") if isinstance(item.get("name"), str) else f"container-{number}"
            yield Container(str(name), owner, item, node, str(at(top, "spec", "replicas") or ""), nodes)
    led = isinstance(node.get("leaderTemplate"), dict)
    size = node.get("size")
    if "workerTemplate" in node and isinstance(size, str) and PLAIN_COUNT.match(size):
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

"""What one container of a pod asks for: its variables and words as the kubelet reads them, its GPUs and their kind."""

from __future__ import annotations

import re
from typing import Any

from kvplan.sources.commands import raw
from kvplan.sources.commands.documents import at, listed, mapping, texts

_REFERENCE = re.compile(r"\$\$|\$\(([A-Za-z_][A-Za-z0-9_.\-]*)\)")
_LABELS = ("nvidia.com/gpu.product", "cloud.google.com/gke-accelerator", "amd.com/gpu.product-name")
"""Labels of nodes that name their accelerator."""
_GPU = re.compile(r"(?:^|[./])gpu(?:$|\.)")
PLAIN_COUNT = re.compile(r"[0-9]{1,5}\Z")


def accelerator(node: dict[str, Any]) -> str:
    """The accelerator that a pod asks its node for: by label, or by terms of affinity; empty where it does not say."""
    selector = mapping(node.get("nodeSelector"))
    found = next((selector[label] for label in _LABELS if isinstance(selector.get(label), str)), "")
    affinity = at(node, "affinity", "nodeAffinity", "requiredDuringSchedulingIgnoredDuringExecution")
    for term in (*listed(node.get("nodeSelectorTerms")), *listed(at(affinity, "nodeSelectorTerms"))):
        for wanted in listed(at(term, "matchExpressions")):
            values = texts(at(wanted, "values"))
            if at(wanted, "key") in _LABELS and at(wanted, "operator") == "In" and len(values) == 1:
                found = found or values[0]
    return found


def container_environment(spec: dict[str, Any], maps: dict[str, dict[str, str]]) -> dict[str, str]:
    """The variables of a container; those from elsewhere are not known."""
    found: dict[str, str] = {}
    for source in listed(spec.get("envFrom")):
        found |= maps.get(str(at(source, "configMapRef", "name")), {})
    for entry in listed(spec.get("env")):
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
            count = int(value) if isinstance(value, str) and PLAIN_COUNT.match(value) else 0
            if "/mig-" in key:
                warnings.append(f"{key}: a slice of a GPU; describe it with --gpu-memory")
            elif count and _GPU.search(key):
                return (count, f"{key}: {count}"), warnings
    return None, warnings

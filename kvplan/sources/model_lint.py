"""What there is to say about anything that describes a model: a spec, a configuration, a folder, a GGUF file."""

from __future__ import annotations

import os
import re

from kvplan.errors import KvplanError, printable
from kvplan.sources.yaml_file import Finding, lint_model_file

_TELLING = ("model_type", "architectures", "num_hidden_layers", "kvplan.model/1")
"""A JSON file with one of these describes a model, and is no tokenizer or index."""
_LATER_PART = re.compile(r"-(?!00001-)[0-9]{5}-of-[0-9]{5}\.gguf\Z", re.IGNORECASE)


def is_model(path: str) -> bool:
    """Whether a path below a folder is a model of its own, and no YAML file.

    A folder with a configuration, a configuration by another name, a GGUF file.
    """
    if os.path.isdir(path):
        return os.path.isfile(os.path.join(path, "config.json"))
    if path.lower().endswith(".json"):
        from kvplan.sources.paths import begins

        head = begins(path, 1 << 20)
        return any(f'"{key}"'.encode() in head for key in _TELLING) and b'"weight_map"' not in head
    return path.lower().endswith(".gguf") and not _LATER_PART.search(path)


def lint_model(path: str) -> list[Finding]:
    """Every problem of a spec; of what other programs write, why it cannot be read, or what a plan would say."""
    from kvplan.sources.paths import is_spec, read_path

    name = os.fspath(path)
    if name.lower().endswith((".yaml", ".yml")) or (name.lower().endswith(".json") and is_spec(name)):
        return lint_model_file(name)
    from kvplan.spec.stored import stored_warnings

    try:
        model = read_path(name).model
    except KvplanError as error:
        file, _, line = (error.where or "").rpartition(":")
        if not line.isdigit():
            file, line = error.where or "", "1"
        return [Finding("error", error.message, file or printable(name), int(line), error.hint)]
    found = [*model.file_warnings, *stored_warnings(model)]
    said = [Finding("warning", message, printable(name), 1) for message in found]
    if model.max_position_embeddings is None:
        hint = "without it every plan needs --max-model-len"
        said.append(Finding("warning", "does not say how long a context it takes", printable(name), 1, hint))
    return said

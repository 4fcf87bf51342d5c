"""A model from a path: which reader a file or a folder is for."""

from __future__ import annotations

import os

from kvplan.errors import SpecError, printable
from kvplan.sources.reading import Reading


def read_path(path: str, *, assume: str | None = None) -> Reading:
    """The model of a YAML spec, a configuration, a folder with one, or a GGUF file.

    Args:
        assume: ``llama-like`` reads a configuration of an unknown family as plain attention in every layer.

    Raises:
        SpecError: there is no such file, or it cannot be used.
    """
    from kvplan.sources.hf_files import read_config_file, read_folder

    path = os.path.expanduser(path)
    if _is_folder(path):
        return read_folder(path, assume=assume)
    name = path.lower()
    if name.endswith(".gguf"):
        from kvplan.sources.gguf.metadata import read_file

        return Reading(read_file(path), {})
    if name.endswith(".safetensors"):
        there = os.path.exists(path)
        raise SpecError(
            "holds tensors and no configuration" if there else "no such file", where=printable(path),
            hint="name its folder, where the config.json is" if there else "check the path",
        )  # fmt: skip
    if name.endswith(".safetensors.index.json"):
        raise SpecError("is the index of a checkpoint", where=printable(path), hint="name the folder that holds it")
    if name.endswith(".json") and not _is_spec(path):
        return read_config_file(path, assume=assume)
    if name.endswith((".yaml", ".yml", ".json")):
        from kvplan.sources.yaml_file import load_model_file

        return Reading(load_model_file(path), {})
    there = os.path.lexists(path)
    raise SpecError(
        "is no file that kvplan reads" if there else "no such file or folder", where=printable(path),
        hint="a folder with a config.json, a .json, a .gguf or a .yaml file" if there else "check the path",
    )  # fmt: skip


def _is_folder(path: str) -> bool:
    try:
        return os.path.isdir(path)
    except ValueError:  # a NUL in the name
        return False


def _is_spec(path: str) -> bool:
    """Whether a JSON file is one of kvplan's own specs: it says so at its beginning."""
    try:
        with open(path, "rb") as file:
            return b'"kvplan.model/' in file.read(400) if os.path.isfile(path) else False
    except (OSError, ValueError):
        return False

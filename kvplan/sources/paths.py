"""A model from a path: which reader a file or a folder is for."""

from __future__ import annotations

import os

from kvplan.errors import SpecError, printable
from kvplan.sources.reading import Reading


def read_path(path: str, *, assume: str | None = None, weights_told: bool = False) -> Reading:
    """The model of a YAML spec, a configuration, a folder with one, or a GGUF file.

    Args:
        assume: ``llama-like`` reads a configuration of an unknown family as plain attention in every layer.
        weights_told: as `kvplan.sources.read_model`.

    Raises:
        SpecError: there is no such file, or it cannot be used.
    """
    from kvplan.sources.hf_files import checked, read_config_file, read_folder

    path = os.path.expanduser(path)
    if _is_folder(path):
        return read_folder(path, assume=assume, weights_told=weights_told)
    name = path.lower()
    if name.endswith(".gguf"):
        from kvplan.sources.gguf.metadata import read_file

        return Reading(read_file(path, assume=checked(assume)), {})
    if name.endswith(".safetensors"):
        there = os.path.exists(path)
        raise SpecError(
            "holds tensors and no configuration" if there else "no such file", where=printable(path),
            hint="name its folder, where the config.json is" if there else "check the path",
        )  # fmt: skip
    if name.endswith(".safetensors.index.json"):
        raise SpecError("is the index of a checkpoint", where=printable(path), hint="name the folder that holds it")
    if name.endswith(".json") and not is_spec(path):
        return read_config_file(path, assume=assume, weights_told=weights_told)
    if name.endswith((".yaml", ".yml", ".json")):
        from kvplan.sources.yaml_file import load_model_file

        return Reading(load_model_file(path), {})
    if _is_gguf(path):  # a blob of Ollama's or of the hub's cache
        from kvplan.sources.gguf.metadata import read_file

        return Reading(read_file(path, assume=checked(assume)), {})
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


def _is_gguf(path: str) -> bool:
    """Whether a file without a telling name begins as GGUF does."""
    return begins(path, 4) == b"GGUF"


def is_spec(path: str) -> bool:
    """Whether a JSON file is one of kvplan's own specs: it says so at its beginning."""
    return b'"kvplan.model/' in begins(path, 400)


def begins(path: str, length: int) -> bytes:
    """The first bytes of a regular file; none of anything else (opening a pipe would wait for its writer)."""
    try:
        if not os.path.isfile(path):
            return b""
        with open(path, "rb") as file:
            return file.read(length)
    except (OSError, ValueError):
        return b""

"""Ways in: everything that turns a name, a file or a command line into specs."""

from __future__ import annotations

import os
import re
from dataclasses import replace
from typing import TYPE_CHECKING

from kvplan.errors import InputError, UnknownNameError

if TYPE_CHECKING:
    from kvplan.sources.commands import Command
    from kvplan.sources.reading import Reading
    from kvplan.spec.gpu import GpuSpec
    from kvplan.spec.model import ModelSpec

_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95}(@[\w./-]{1,100}?)?(:[\w./+-]{1,200})?\Z")


def find_model(
    text: str, *, assume: str | None = None, hub: bool = False, weights: str | None = None
) -> ModelSpec:  # fmt: skip
    """The model behind a name or a path: what `read_model` finds, without where its fields come from.

    Args:
        weights: the format that the caller counts the weights in; None or ``auto``: what the model says.
    """
    return read_model(text, assume=assume, hub=hub, weights_told=weights not in (None, "auto")).model


def read_model(text: str, *, assume: str | None = None, hub: bool = False, weights_told: bool = False) -> Reading:
    """The model behind a catalog id, a hub name, or the path of a file or folder that describes one.

    An id of the catalog comes first, then a folder with a ``config.json``, then the catalog's other names. The
    name of a quantised checkpoint gives the spec with that checkpoint's weight format.

    Args:
        assume: ``llama-like`` reads a configuration of an unknown family as plain attention in every layer.
        hub: read ``org/name`` (or a GGUF file in it, ``org/name:Q4_K_M``) from the Hugging Face hub; nothing else
            here reaches the network.
        weights_told: the caller knows how the weights are stored; a quantisation that a configuration names and that
            is not understood is a warning then.

    Raises:
        UnknownNameError: no such model; SpecError: a file that cannot be used; InputError: the hub cannot answer.
    """
    from kvplan.sources.reading import Reading

    if hub and text.lower().endswith(".gguf") and text[:1].isalnum() and "/" in text and not os.path.exists(text):
        from kvplan.sources.hub import read_hub  # a file of a repository, not of this machine

        return read_hub(text, assume=assume, weights_told=weights_told)
    if _is_path(text) or _has_config(text):
        from kvplan.sources.paths import read_path

        return read_path(text, assume=assume, weights_told=weights_told)
    if hub and "/" in text:
        from kvplan.sources.hub import read_hub

        return read_hub(text, assume=assume, weights_told=weights_told)
    from kvplan.catalog import load_model

    try:
        return Reading(load_model(text), {})
    except UnknownNameError as error:
        if os.path.isdir(text):
            from kvplan.sources.paths import read_path

            return read_path(text, assume=assume, weights_told=weights_told)  # says what the folder lacks
        if not hub and _HUB_NAME.match(text):
            error.hint = f"{error.hint or ''}; --hub reads it from the Hugging Face hub".removeprefix("; ")
        raise


def find_command(text: str) -> Command | None:
    """The engine command line that `text` is, or that the file it names holds (``FILE#NAME``); None for a model.

    Raises:
        InputError: no engine is started there, or several, or a value that nobody sets.
    """
    ends = (".sh", ".bash", ".zsh", ".service", ".container", ".envrc", ".yaml", ".yml")
    plain = not any(c.isspace() for c in text) and "#" not in text and "file" not in text.lower()
    if plain and not text.lower().endswith(ends) and not ("/" in text and os.path.isfile(text)):
        return None
    from kvplan.sources.commands import is_command, read_command

    return read_command(text) if is_command(text) else None


def find_gpu(text: str) -> GpuSpec:
    """The GPU behind a catalog id, an alias, a driver's name or the path of a YAML file; ``auto``: this machine's.

    Raises:
        UnknownNameError: no such GPU; SpecError: a file that cannot be used; InputError: this machine has none.
    """
    if text.lower() == "auto":
        from kvplan.probe.auto import this_gpu

        return this_gpu()
    if _is_path(text):
        from kvplan.sources.yaml_file import load_gpu_file

        return load_gpu_file(text)
    from kvplan.catalog import load_gpu

    return load_gpu(text)


def override_gpu(gpu: GpuSpec | None, memory_bytes: int | None, bandwidth: int | None) -> GpuSpec | None:
    """The GPU with ``--gpu-memory`` and ``--gpu-bandwidth`` in place of the catalog's figures.

    Raises:
        InputError: a bandwidth alone, and no GPU to take the other from; next to no memory.
    """
    if memory_bytes is None and bandwidth is None:
        return gpu
    from kvplan.spec.gpu import LEAST_BYTES, GpuSpec

    if memory_bytes is not None and memory_bytes < LEAST_BYTES:
        raise InputError(
            f"{memory_bytes:,} B is too little for an accelerator", where="--gpu-memory", hint="--gpu-memory 80GiB"
        )
    if gpu is None:
        if memory_bytes is None:
            raise InputError(
                "no GPU to give it to", where="--gpu-bandwidth", hint="add --gpu NAME or --gpu-memory SIZE"
            )
        return GpuSpec(
            id="custom", name="custom GPU", vendor="custom", architecture="unknown", datasheet_gb=memory_bytes / 10**9,
            bandwidth_bytes_per_second=bandwidth, torch_total_bytes=memory_bytes, torch_total_source="--gpu-memory",
            confidence="given",
        )  # fmt: skip
    if memory_bytes is not None:
        gpu = replace(gpu, torch_total_bytes=memory_bytes, torch_total_source="--gpu-memory")
    if bandwidth is not None:
        gpu = replace(gpu, bandwidth_bytes_per_second=bandwidth)
    return gpu


def _is_path(text: str) -> bool:
    """Whether a name is meant as a file: it ends like one, or starts like a path."""
    ends = (".yaml", ".yml", ".json", ".gguf", ".safetensors")
    return (
        text.lower().endswith(ends)
        or text.startswith(("/", "./", "../", "~", ".\\", "..\\"))
        or text in (".", "..")
        or text[1:3] in (":\\", ":/")
    )


def _has_config(text: str) -> bool:
    """Whether a name is a folder with a ``config.json``; never for an id of the catalog."""
    from kvplan.catalog._names import MODELS

    try:
        return text not in MODELS and os.path.isfile(os.path.join(text, "config.json"))
    except ValueError:  # a NUL in the name
        return False

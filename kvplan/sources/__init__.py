"""Ways in: everything that turns a name, a file or a command line into specs."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from kvplan.errors import InputError

if TYPE_CHECKING:
    from kvplan.spec.gpu import GpuSpec
    from kvplan.spec.model import ModelSpec


def find_model(text: str) -> ModelSpec:
    """The model behind a catalog id, a hub name or the path of a YAML or GGUF file.

    The name of a quantised checkpoint gives the spec with that checkpoint's weight format.

    Raises:
        UnknownNameError: no such model; SpecError: a file that cannot be used.
    """
    if text.lower().endswith(".gguf"):
        from kvplan.sources.gguf.metadata import read_file

        return read_file(text)
    if _is_path(text):
        from kvplan.sources.yaml_file import load_model_file

        return load_model_file(text)
    from kvplan.catalog import load_model

    return load_model(text)


def find_gpu(text: str) -> GpuSpec:
    """The GPU behind a catalog id, an alias, a driver's name or the path of a YAML file.

    Raises:
        UnknownNameError: no such GPU; SpecError: a file that cannot be used.
    """
    if _is_path(text):
        from kvplan.sources.yaml_file import load_gpu_file

        return load_gpu_file(text)
    from kvplan.catalog import load_gpu

    return load_gpu(text)


def override_gpu(gpu: GpuSpec | None, memory_bytes: int | None, bandwidth: int | None) -> GpuSpec | None:
    """The GPU with ``--gpu-memory`` and ``--gpu-bandwidth`` in place of the catalog's figures.

    Raises:
        InputError: a bandwidth alone, and no GPU to take the other from.
    """
    if memory_bytes is None and bandwidth is None:
        return gpu
    if gpu is None:
        from kvplan.spec.gpu import GpuSpec

        if memory_bytes is None:
            raise InputError("no GPU to give it to", where="--gpu-bandwidth", hint="add --gpu NAME or --gpu-memory SIZE")
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
    return text.lower().endswith((".yaml", ".yml", ".json", ".gguf")) or text.startswith(("/", "./", "../", "~"))

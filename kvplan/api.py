"""The library's front door: the functions that ``import kvplan`` offers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kvplan.engines import DEFAULT_ENGINE
from kvplan.errors import InputError
from kvplan.planning.planner import plan_deployment
from kvplan.sources import find_gpu, find_model

if TYPE_CHECKING:
    from kvplan.planning.plan import Plan
    from kvplan.spec.gpu import GpuSpec
    from kvplan.spec.model import ModelSpec


def load_model(name: str, *, assume: str | None = None, hub: bool = False) -> ModelSpec:
    """The model behind a catalog id, a hub name, or the path of a folder or file that describes one.

    Args:
        name: also a folder with a ``config.json``, a ``.json``, ``.gguf`` or ``.yaml`` file.
        assume: ``llama-like`` reads a configuration of an unknown family as plain attention in every layer.
        hub: read ``org/name`` from the Hugging Face hub (needs the extra ``hub``).

    Raises:
        UnknownNameError: no such model; SpecError: a file that cannot be used; InputError: the hub cannot answer.
    """
    return find_model(name, assume=assume, hub=hub)


def load_gpu(name: str) -> GpuSpec:
    """The GPU behind a catalog id, an alias, a driver's name or the path of a YAML file.

    Raises:
        UnknownNameError: no such GPU; SpecError: a file that cannot be used.
    """
    return find_gpu(name)


def plan(
    model: ModelSpec | str, *, gpu: GpuSpec | str | None = None, engine: str | None = None, **settings: Any
) -> Plan:
    """What a deployment holds, and whether it fits.

    Args:
        model: a `ModelSpec`, a catalog id, a hub name, the path of a model file or folder, or an engine's
            own command line (or a file that starts one), over which the other arguments go.
        gpu: a `GpuSpec`, a catalog id or alias, the path of a GPU file, or None for the cache's own
            figures alone.
        engine: a name of `kvplan.engines.ENGINES`, or ``name@version``; None: vllm, or the command line's.
        **settings: the flags of ``kvplan plan`` with underscores (``max_model_len=32768``,
            ``tensor_parallel_size=4``, ``kv_cache_dtype="fp8"``, ``concurrency=16``); what is left
            out takes the engine's default. Sizes are bytes, lengths are tokens.

    Raises:
        KvplanError: nothing could be answered; ``str(error)`` says why in one line, ``error.hint``
            what to change.
    """
    from kvplan.deployment import find_deployment

    if isinstance(gpu, str):
        gpu = find_gpu(gpu)
    if engine is not None and not isinstance(engine, str):
        raise InputError(f"{engine!r:.60} is not the name of an engine", hint="pass a name such as vllm")
    for value, classes in ((model, ("ModelSpec", "GgufModelSpec", "str")), (gpu, ("GpuSpec", "NoneType"))):
        if type(value).__name__ not in classes:
            raise InputError(f"{value!r:.60} is no {classes[0]}", hint=f"pass a name, a path or a {classes[0]}")
    if not isinstance(model, str):
        return plan_deployment(model, gpu, engine or DEFAULT_ENGINE, settings)
    given = {**settings, "engine": engine} if engine is not None else settings
    found = find_deployment(model, given)
    return (found._replace(gpu=gpu) if gpu is not None else found).plan()

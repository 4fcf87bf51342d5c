"""The library's front door: the functions that ``import kvplan`` offers."""

from __future__ import annotations

from os import PathLike
from typing import TYPE_CHECKING, Any

from kvplan.engines.options import READERS
from kvplan.errors import InputError
from kvplan.planning.settings import flag_name
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


AS_TEXT = {
    "gpu_memory": "size", "gpu_bandwidth": "rate", "request_rate": "per_second", "ttft": "seconds", "tpot": "seconds",
}  # fmt: skip
"""Settings with units, that a caller may write as on the command line -> their reader in `READERS`."""


def plan(
    model: ModelSpec | str | None = None,
    *,
    gpu: GpuSpec | str | None = None,
    engine: str | None = None,
    **settings: Any,
) -> Plan:
    """What a deployment holds, and whether it fits.

    Args:
        model: a `ModelSpec`, a catalog id, a hub name, the path of a model file or folder, or an engine's
            own command line (or a file that starts one), over which the other arguments go. None: the
            model that ``from_log`` names.
        gpu: a `GpuSpec`, a catalog id or alias, the path of a GPU file, or None for the cache's own
            figures alone.
        engine: a name of `kvplan.engines.ENGINES`, or ``name@version``; None: vllm, or the command line's.
        **settings: the flags of ``kvplan plan`` with underscores (``max_model_len=32768``,
            ``tensor_parallel_size=4``, ``kv_cache_dtype="fp8"``, ``gpu_memory=80 * 2**30``); what is left
            out takes the engine's default. Sizes are bytes, lengths tokens, times seconds; sizes of a
            GPU, rates and times also text as on the command line (``"80GiB"``, ``"40ms"``).

    Raises:
        KvplanError: nothing could be answered; ``str(error)`` says why in one line, ``error.hint``
            what to change.
    """
    from kvplan.deployment import find_deployment, of_log, of_model
    from kvplan.spec.gpu import GpuSpec
    from kvplan.spec.model import ModelSpec

    if engine is not None and not isinstance(engine, str):
        raise InputError(f"{engine!r:.60} is not the name of an engine", hint="pass a name such as vllm")
    logged = settings.get("from_log") is not None
    if not isinstance(model, str | ModelSpec) and not (model is None and logged):
        raise InputError(f"{model!r:.60} is no ModelSpec", hint="pass a name, a path or a ModelSpec")
    if not isinstance(gpu, str | GpuSpec | None):
        raise InputError(f"{gpu!r:.60} is no GpuSpec", hint="pass a name, a path or a GpuSpec")
    given = _read({**settings, "gpu": gpu, "engine": engine})
    if model is not None and not isinstance(model, str):
        if logged:
            raise InputError("goes with a model's name", where="from_log", hint="pass its name, or leave it out")
        return of_model(model, given).plan()
    return (of_log(model, given) if logged or model is None else find_deployment(model, given)).plan()


def _read(settings: dict[str, Any]) -> dict[str, Any]:
    """The settings that are given, with text read where a number has a unit.

    Raises:
        InputError: a text that cannot be read, a size that is no whole number, a path that is none.
    """
    given = {name: value for name, value in settings.items() if value is not None}
    for name, value in given.items():
        if name in AS_TEXT and isinstance(value, str):
            given[name] = READERS[AS_TEXT[name]](value, flag_name(name))
        elif name in ("gpu_memory", "gpu_bandwidth"):
            if isinstance(value, bool) or not isinstance(value, int | float) or value <= 0 or value % 1:
                hint = f'pass bytes, or text such as "{"80GiB" if name == "gpu_memory" else "3350GB/s"}"'
                raise InputError(f"{value!r:.40} is not a number of bytes", where=flag_name(name), hint=hint)
            given[name] = int(value)
        elif name in ("calibration", "from_log"):
            if not isinstance(value, str | PathLike):
                raise InputError(f"{value!r:.40} is not a path", where=flag_name(name), hint="pass the path of a file")
            given[name] = str(value)
    return given

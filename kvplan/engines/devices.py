"""Devices that an engine has no backend for: some it cannot start on, of others it is not known that it does."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvplan.errors import UnsupportedError

if TYPE_CHECKING:
    from kvplan.engines.base import Engine
    from kvplan.spec.gpu import GpuSpec


def no_backend(engine: Engine, gpu: GpuSpec) -> str:
    """The warning for a device that `Engine.takes` says no to.

    Raises:
        UnsupportedError: the engine does not start there.
    """
    if engine.capability_of(gpu) < engine.least_capability:
        raise UnsupportedError(
            f"{engine.name} {engine.version} does not run on {gpu.id}: it needs compute capability "
            f"{engine.least_capability:g}, and that has {gpu.compute_capability}",
            where="--gpu", hint=_others(gpu),
        )  # fmt: skip
    vendors = ", ".join(sorted(engine.runs_on or ()))
    if engine.only_on is not None and gpu.vendor not in engine.only_on:
        raise UnsupportedError(
            f"{engine.name} does not run on {gpu.id} ({gpu.vendor}): it is written for {vendors}",
            where="--engine", hint=_others(gpu),
        )  # fmt: skip
    return (
        f"{engine.name} lists no backend for {gpu.id} ({gpu.vendor}), but for {vendors}: whether it starts there, and "
        "what it then takes, is not known"
    )


def _others(gpu: GpuSpec) -> str:
    """What to type instead: the engines that have a backend for the device."""
    from kvplan.engines import distinct, get_engine

    able = [name for name in distinct() if (found := get_engine(name)).runs_on is not None and found.takes(gpu)]
    return f"type --engine {able[0]}" + (f" (or {', '.join(able[1:])})" if able[1:] else "") if able else (
        "type --engine generic, for arithmetic alone"
    )  # fmt: skip

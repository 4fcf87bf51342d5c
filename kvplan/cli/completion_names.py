"""The names that complete a parameter: models, GPUs, engines, formats.

A shell that completes calls ``kvplan`` again with ``_KVPLAN_COMPLETE`` set; Typer then finds the parameter under the
cursor and asks it for values, which `prepare` has given it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

SHELLS = ("bash", "zsh", "fish", "powershell")


def prepare(command: Any, path: str) -> None:
    """Give the parameters of a command, and of its own commands, the names that complete them.

    Args:
        path: the words that call it, as in ``models show``.
    """
    for name, inner in getattr(command, "commands", {}).items():
        prepare(inner, f"{path} {name}")
    for param in command.params:
        names = ARGUMENTS.get(path) if param.name == "name" else NAMES.get(param.name.removeprefix("flag_"))
        if param.name == "out_format":
            names = lambda: command.formats  # noqa: E731
        if names is not None:
            param._custom_shell_complete = _among(names)


def _among(names: Callable[[], Iterable[str]]) -> Callable[[Any, Any, str], list[str]]:
    def complete(_context: Any, _param: Any, incomplete: str) -> list[str]:
        """Names that begin so; of a list, those that may follow the last comma."""
        done, comma, last = incomplete.rpartition(",")
        return [done + comma + name for name in names() if name.startswith(last)]

    return complete


def _models() -> Iterable[str]:
    from kvplan.catalog import model_ids

    return model_ids()


def _gpus() -> Iterable[str]:
    from kvplan.catalog import gpu_ids

    return gpu_ids()


def _engines() -> Iterable[str]:
    from kvplan.engines import ENGINES

    return [*ENGINES, "all"]


def _formats(use: str) -> Callable[[], Iterable[str]]:
    def names() -> Iterable[str]:
        from kvplan.spec.formats import format_names

        return format_names(use)

    return names


NAMES: dict[str, Callable[[], Iterable[str]]] = {
    "model": _models,
    "models": _models,
    "gpu": _gpus,
    "engine": _engines,
    "kv_cache_dtype": _formats("cache"),
    "weights": _formats("weights"),
    "out_color": lambda: ("auto", "always", "never"),
    "shell": lambda: SHELLS,
}
"""Parameter -> the names that complete it."""

ARGUMENTS: dict[str, Callable[[], Iterable[str]]] = {
    "models show": _models,
    "gpus show": _gpus,
    "engines": _engines,
    "formats": lambda: dict.fromkeys((*_formats("cache")(), *_formats("weights")())),
}
"""Command -> the names that complete its argument called ``name``."""

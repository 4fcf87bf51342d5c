"""The engines kvplan knows, found by name; one module each, imported on use."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from kvplan.errors import InputError, UnknownNameError, printable

if TYPE_CHECKING:
    from kvplan.engines.base import Engine

ENGINES: dict[str, tuple[str, str]] = {
    "vllm": ("vllm.engine", "Vllm"),
    "generic": ("generic", "Generic"),
    "sglang": ("sglang.engine", "Sglang"),
    "tensorrt-llm": ("tensorrt_llm.engine", "TensorRtLlm"),
    "transformers": ("transformers.engine", "Transformers"),
    "mlx": ("mlx.engine", "Mlx"),
    "exllamav3": ("exllamav3.engine", "ExLlamaV3"),
    "llama.cpp": ("llama_cpp.engine", "LlamaCpp"),
    "llamacpp": ("llama_cpp.engine", "LlamaCpp"),
    "ollama": ("ollama", "Ollama"),
    "lmstudio": ("lmstudio", "LmStudio"),
}
"""name -> (module in this package, class)."""

DEFAULT_ENGINE = "vllm"


def distinct() -> list[str]:
    """The engines' own names, without aliases, in the order of the table."""
    seen: dict[tuple[str, str], str] = {}
    for name, where in ENGINES.items():
        seen.setdefault(where, name)
    return list(seen.values())


def get_engine(name: str = DEFAULT_ENGINE) -> Engine:
    """The engine called `name`, or ``name@version``.

    A version that an engine with several does not know gets the nearest one and a warning.

    Raises:
        UnknownNameError: no such engine.
        InputError: not a version, or one this engine's rules are not known for.
    """
    base, _, version = name.partition("@")
    if "," in name or base.strip().lower() == "all":
        first = name.partition(",")[0].strip()
        one = DEFAULT_ENGINE if first.partition("@")[0].lower() in ("", "all") else printable(first, 30)
        raise InputError(
            f"{printable(name, 60)!r} names several engines, where one is asked for", where="--engine",
            hint=f"name one at a time, {one} first",
        )  # fmt: skip
    try:
        module, attribute = ENGINES[base.lower()]
    except KeyError:
        start, equals, number = base.partition("=")
        if equals and start.strip().lower() in ENGINES:
            raise InputError(
                f"{printable(name, 60)!r} is no engine", where="--engine",
                hint=f"type {start.strip().lower()}@{printable(number.strip('= '), 30)}",
            ) from None  # fmt: skip
        raise UnknownNameError(
            "engine", base, list(ENGINES), where="--engine", more=f"known: {', '.join(ENGINES)}"
        ) from None
    engine: Engine = getattr(import_module(f"kvplan.engines.{module}"), attribute)(version or None)
    return engine

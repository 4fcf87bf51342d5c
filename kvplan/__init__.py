"""kvplan sizes the KV cache of LLM inference.

    from kvplan import load_gpu, load_model, plan

The names load on first use, so that importing the package costs next to nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kvplan._version import __version__

if TYPE_CHECKING:
    from kvplan.api import load_gpu as load_gpu
    from kvplan.api import load_model as load_model
    from kvplan.api import plan as plan

__all__ = ["__version__", "load_gpu", "load_model", "plan"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'kvplan' has no attribute {name!r}")
    from kvplan import api

    return getattr(api, name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

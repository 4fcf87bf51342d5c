"""What a spec amounts to, as a hash: equal wherever the figures that follow from it are."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import MISSING, Field, fields, is_dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kvplan.spec.gpu import GpuSpec
    from kvplan.spec.model import ModelSpec

_WORDS = frozenset(
    {
        "name", "family", "repo", "aliases", "released", "license", "source", "notes", "published_parameters",
        "published_active_parameters", "confidence", "file_warnings", "date",
    }
)  # fmt: skip
"""Fields that describe a spec and change no figure; so do those that end in ``_source`` or ``_note``."""


def spec_hash(spec: ModelSpec | GpuSpec) -> str:
    """SHA-256 of what decides a spec's figures, as 64 hexadecimal digits.

    Fields at their defaults are left out, so a new kind of field changes the hash only of those that use it.
    """
    import hashlib
    import json

    text = json.dumps(_plain(spec), sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def _plain(value: Any) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        return {"class": type(value).__name__, **{f.name: _plain(getattr(value, f.name)) for f in _said(value)}}
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value if isinstance(value, int | float | str | bool) or value is None else str(value)


def _said(value: Any) -> Iterator[Field[Any]]:
    """The fields that count and differ from their defaults."""
    for field in fields(value):
        default = field.default_factory() if field.default_factory is not MISSING else field.default
        words = field.name in _WORDS or field.name.endswith(("_source", "_note"))
        if not words and (default is MISSING or getattr(value, field.name) != default):
            yield field

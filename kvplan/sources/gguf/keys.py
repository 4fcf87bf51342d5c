"""Typed access to the key/values of a GGUF architecture, with llama.cpp's own fallbacks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NoReturn

from kvplan.errors import SpecError, printable

MAX_LAYERS = 512
"""``LLAMA_MAX_LAYERS``."""
MAX_VALUE = 1 << 31


class Keys:
    """The keys under one architecture's prefix; names are given without it."""

    def __init__(self, architecture: str, metadata: Mapping[str, Any], where: str) -> None:
        self.architecture, self.metadata, self.where = architecture, metadata, where

    def fail(self, message: str, hint: str = "") -> NoReturn:
        hint = hint or "is the file a text model that llama.cpp loads?"
        raise SpecError(printable(message, 400), where=self.where, hint=hint)

    def raw(self, name: str) -> Any:
        """The value of ``<architecture>.name``, or of ``name`` where the prefix is left out; None: absent."""
        found = self.metadata.get(f"{self.architecture}.{name}")
        return self.metadata.get(name) if found is None else found

    def __contains__(self, name: str) -> bool:
        return self.raw(name) is not None

    def _number(self, name: str, value: Any) -> int:
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if not isinstance(value, int) or not 0 <= value < MAX_VALUE:
            self.fail(f"{name} is {printable(str(value), 40)}, not a size")
        return int(value)

    def get(self, name: str, default: int) -> int:
        """A whole number; of an array the first entry."""
        value = self.raw(name)
        if value is None:
            return default
        if isinstance(value, list | tuple):
            if not value:
                self.fail(f"{name} is an empty list")
            value = value[0]
        return self._number(name, value)

    def must(self, name: str) -> int:
        """A whole number above zero that has to be there.

        Raises:
            SpecError: it is missing or zero.
        """
        if name not in self:
            self.fail(f"does not say its {self.architecture}.{name}")
        found = self.get(name, 0)
        if not found:
            self.fail(f"{name} is 0")
        return found

    def per_layer(self, name: str, layers: int, default: int) -> list[int]:
        """A number for each of `layers`, from one for all or from an array with an entry per layer of the file.

        Raises:
            SpecError: an array of another length.
        """
        value = self.raw(name)
        if value is None:
            return [default] * layers
        if not isinstance(value, list | tuple):
            return [self._number(name, value)] * layers
        if len(value) not in (layers, self.get("block_count", layers)):
            self.fail(f"{name} has {len(value)} entries for {layers} layers")
        return [self._number(name, v) for v in value[:layers]]

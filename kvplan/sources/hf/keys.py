"""Typed access to a configuration that remembers which keys were read.

What is left unread at the end is how the reader notices a field it does not understand.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from kvplan.engines.model_changes import NESTED
from kvplan.errors import SpecError, printable
from kvplan.spec.model import Block, ExtraTensor, Tower

_MAX_INT = 2**48


class Config:
    """One level of a configuration (the text part of a nested one).

    Args:
        data: the JSON object.
        where: file name for error messages.
    """

    def __init__(self, data: dict[str, Any], where: str = "config.json") -> None:
        self.data = data
        self.where = where
        self.used: set[str] = set()
        self.read: set[str] = set()
        """Those of `used` whose values were asked for; the others were passed over on purpose."""

    def __contains__(self, key: str) -> bool:
        return self.data.get(key) is not None

    def error(self, message: str, hint: str | None = None) -> SpecError:
        return SpecError(message, where=self.where, hint=hint)

    def get(self, *keys: str) -> Any:
        """The first of `keys` that is there and not null; all of them count as read."""
        self.used.update(keys)
        for key in keys:
            if self.data.get(key) is not None:
                self.read.add(key)
                return self.data[key]
        return None

    def maybe_int(self, *keys: str) -> int | None:
        """A whole number, or None where none of `keys` is set.

        Raises:
            SpecError: something else stands there (a string, a fraction, NaN, a huge number).
        """
        value = self.get(*keys)
        if value is None:
            return None
        return self.as_int(value, next(k for k in keys if self.data.get(k) is not None))

    def as_int(self, value: Any, key: str) -> int:
        """`value` as a whole number, or an error that names `key`."""
        if isinstance(value, bool) or not isinstance(value, int | float) or value % 1:  # inf % 1 and nan % 1 are nan
            raise self.error(f"{key} should be a whole number, not {printable(repr(value), 60)}")
        if abs(value) > _MAX_INT:
            raise self.error(f"{key} is absurdly large ({printable(repr(value), 60)})")
        return int(value)

    def need_int(self, *keys: str) -> int:
        """A whole number that must be there and above zero."""
        value = self.maybe_int(*keys)
        if value is None:
            raise self.error(f"no {' or '.join(keys)}", hint="the file is not a model configuration, or is cut short")
        if value <= 0:
            raise self.error(f"{keys[0]} must be above 0, not {value}")
        return value

    def flag(self, *keys: str, default: bool = False) -> bool:
        """A boolean; numbers and strings in its place are refused."""
        value = self.get(*keys)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self.error(f"{keys[0]} should be true or false, not {printable(repr(value), 60)}")
        return value

    def maybe_list(self, *keys: str, length: int | None = None) -> list[Any] | None:
        """A list, or None; with `length`, exactly that long."""
        value = self.get(*keys)
        if value is None:
            return None
        if not isinstance(value, list):
            raise self.error(f"{keys[0]} should be a list, not {printable(repr(value), 60)}")
        if length is not None and len(value) != length:
            raise self.error(f"{keys[0]} has {len(value)} entries for {length} layers")
        return value

    def maybe_dict(self, *keys: str) -> dict[str, Any] | None:
        value = self.get(*keys)
        if value is None:
            return None
        if not isinstance(value, dict):
            raise self.error(f"{keys[0]} should be an object, not {printable(repr(value), 60)}")
        return value

    def child(self, *keys: str) -> Config | None:
        """A nested object with its own bookkeeping."""
        value = self.maybe_dict(*keys)
        return None if value is None else Config(value, self.where)

    def ignore(self, keys: Iterable[str]) -> None:
        """Mark keys as understood and without effect on memory."""
        self.used.update(keys)

    def unread(self) -> list[str]:
        return sorted(k for k, v in self.data.items() if k not in self.used and v is not None)


def levels(outer: Config) -> tuple[Config, ...]:
    """From the whole file to the part that describes the language model: itself, or nested once or twice."""
    found = [outer]
    for _ in range(2):
        inner = next((found[-1].data[k] for k in NESTED if isinstance(found[-1].data.get(k), dict)), None)
        if inner is None:
            break
        found.append(Config(dict(inner), outer.where))
    return tuple(found)


@dataclass(kw_only=True)
class Layers:
    """What a family reader returns: the layers of the text model, and the tensors around them."""

    blocks: dict[str, Block]
    layers: tuple[str, ...]
    draft_layers: tuple[str, ...] = ()
    draft_tensors: tuple[ExtraTensor, ...] = ()
    tensors: tuple[ExtraTensor, ...] = ()
    towers: tuple[Tower, ...] = ()
    position_embeddings: int = 0
    embedding_size: int | None = None
    final_norms: int = 1
    notes: list[str] = field(default_factory=list)

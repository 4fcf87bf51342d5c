"""What reading a model gives: the spec, and what says so."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from kvplan.spec.model import ModelSpec


class Reading(NamedTuple):
    """A model, and what in its files says so."""

    model: ModelSpec
    fields: dict[str, Any]
    """Fields of a configuration that were used, with their values; empty for other sources."""

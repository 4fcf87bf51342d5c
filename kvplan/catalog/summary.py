"""What `kvplan models list` says of every model, kept in a generated table.

Reading 236 YAML files for one list would take seconds; ``scripts/make_summary.py`` writes the figures
down, and its ``--check`` notices when a spec or a formula has moved away from them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from kvplan.cache.bytes import KvFormats, bytes_per_token, fixed_bytes
from kvplan.spec.formats import get_format

if TYPE_CHECKING:
    from kvplan.spec.model import ModelSpec


class ModelSummary(NamedTuple):
    """One model in one line. Cache figures are for bf16, unsharded."""

    id: str
    family: str
    repo: str | None
    architecture: str
    parameters: int
    active_parameters: int
    num_layers: int
    kv_bytes_per_token: int
    """What one more token adds to a short sequence, below every window."""
    fixed_bytes_per_sequence: int
    """State that does not grow with the sequence."""
    max_position_embeddings: int | None
    confidence: str


def bf16_formats() -> KvFormats:
    """Everything in bf16, recurrent states too: the common measure of a list."""
    bf16 = get_format("bf16")
    return KvFormats(k=bf16, v=bf16, index_key=bf16, conv_bytes=2, recurrent_bytes=2)


def summarise(model: ModelSpec) -> ModelSummary:
    """The summary of one spec, computed from it."""
    formats = bf16_formats()
    return ModelSummary(
        model.id,
        model.family,
        model.repo,
        model.architecture,
        model.parameters,
        model.active_parameters,
        model.num_layers,
        bytes_per_token(model, formats),
        fixed_bytes(model, formats),
        model.max_position_embeddings,
        model.confidence,
    )


def summaries() -> list[ModelSummary]:
    """The summary of every model in the catalog, family by family."""
    from kvplan.catalog._summary import ROWS

    return [ModelSummary(*row) for row in ROWS]

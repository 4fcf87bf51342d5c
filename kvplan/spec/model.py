"""A model: a list of layers, each of which says what it caches."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

from kvplan.spec.kind import CacheKind, LayerPart, Tensor
from kvplan.spec.shown import Shown

SCHEMA = "kvplan.model/1"

Confidence = Literal["seen", "derived", "recalled"]
"""How a spec came about: from the model's own configuration, from tables confirmed by the published
parameter count, or from memory only (a plan that uses it says so)."""


@dataclass(frozen=True, kw_only=True, repr=False)
class ExtraTensor(Shown):
    """Weights that no part of a layer accounts for (per-layer embeddings, adapters, engram tables)."""

    name: str
    shape: tuple[int, ...]
    count: int = 1
    role: str = "attention"


@dataclass(frozen=True, kw_only=True, repr=False)
class Block(Shown):
    """One layer: its token mixers (usually one), its FFNs, and the small vectors beside them."""

    mixers: tuple[CacheKind, ...] = ()
    ffns: tuple[LayerPart, ...] = ()
    norms: int = 2
    """Vectors of `hidden_size` in the layer's norms (a LayerNorm with bias has two)."""
    tensors: tuple[ExtraTensor, ...] = ()
    shared_mixers: int = 0
    """So many of the last mixers have the same weights in every layer built from this block (each
    layer still has a cache of its own)."""
    shared_ffns: int = 0
    shared_norms: int = 0


def _part(parts: tuple[LayerPart, ...], shared: int, common: bool) -> tuple[LayerPart, ...]:
    """The last `shared` parts, or the others."""
    own = len(parts) - shared
    return parts[own:] if common else parts[:own]


def idle_tensors(part: LayerPart, hidden_size: int) -> tuple[Tensor, ...]:
    """The weights of a part that no decode step reads."""
    stepped = part.step_tensors(hidden_size)
    return tuple(t for t in part.tensors(hidden_size) if t not in stepped)


@dataclass(frozen=True, kw_only=True, repr=False)
class Tower(Shown):
    """An encoder beside the language model (vision, audio, the encoder of Whisper)."""

    name: str
    parameters: int

    def __post_init__(self) -> None:
        if self.parameters < 0:
            raise ValueError(f"parameters must not be negative, not {self.parameters}")


ENCODERS_APART = "encoders: "
"""How a warning begins which says that weights of encoders are estimated or not counted."""


@dataclass(frozen=True, kw_only=True, repr=False)
class Checkpoint(Shown):
    """How the published weights are stored."""

    format: str
    """A name from the format table, for the roles in `roles`."""
    roles: tuple[str, ...] = ("attention", "dense_ffn", "routed_experts", "shared_experts")
    """Which roles are stored in `format`; the rest keeps the model's dtype."""
    kv_cache_format: str | None = None
    """The KV format that the checkpoint itself declares (``kv_cache_scheme``)."""
    overrides: dict[str, str] = field(default_factory=dict)
    """Roles stored in another format: role -> format (experts in 4 bits beside an 8-bit rest)."""
    stored: dict[str, dict[str, int]] = field(default_factory=dict)
    """Bytes in the files by role and by their dtype, as the headers say; empty: computed from the formats.
    Besides roles: ``copies`` and ``buffers``, which nobody loads, and ``other``."""
    stored_parameters: dict[str, int] = field(default_factory=dict)
    """Parameters in the files by the same roles, packed ones counted one by one, scales not at all."""

    def __post_init__(self) -> None:
        sizes = (*self.stored_parameters.values(), *(size for by in self.stored.values() for size in by.values()))
        if any(size < 0 for size in sizes):
            raise ValueError("stored and stored_parameters must not be negative")


@dataclass(frozen=True, kw_only=True, repr=False)
class ModelSpec(Shown):
    """Everything kvplan knows about a model. Tuples and mappings are never changed after loading."""

    id: str
    name: str
    family: str
    architecture: str
    """The ``architectures`` entry of its configuration."""
    hidden_size: int
    vocab_size: int
    blocks: dict[str, Block]
    layers: tuple[str, ...]
    """Block names in order, one per layer (patterns in the YAML file are spelled out here)."""
    max_position_embeddings: int | None = None
    stated_positions: int | None = None
    """The longest context as the configuration itself has it (the least of its keys), where that is not
    `max_position_embeddings`, which counts YaRN's factor x original length; engines differ in which they take."""
    dtype: str = "bf16"
    tie_word_embeddings: bool = False
    rope: dict[str, Any] | None = None
    """``type`` and its numbers, as in the configuration; None: plain rotary or none. An
    ``original_max_position_embeddings`` that stands beside the rule and not in it is ``outer_original``."""
    checkpoint: Checkpoint | None = None
    position_embeddings: int = 0
    """Rows of a learned position table."""
    embedding_size: int | None = None
    """Width of the token embedding where it is not the hidden size."""
    recurrent_dtype: str | None = None
    """Storage of recurrent states that the configuration asks for (``mamba_ssm_dtype``); engines differ
    in whether they follow it."""
    final_norms: int = 1
    tensors: tuple[ExtraTensor, ...] = ()
    towers: tuple[Tower, ...] = ()
    draft_layers: tuple[str, ...] = ()
    """Blocks of the multi-token-prediction module, which run only for speculative decoding."""
    draft_tensors: tuple[ExtraTensor, ...] = ()
    repo: str | None = None
    """Hub name of the weights."""
    aliases: tuple[str, ...] = ()
    released: str | None = None
    license: str | None = None
    published_parameters: int | None = None
    """Unique parameters of the main model and its towers as published; drafts are not in it."""
    published_active_parameters: int | None = None
    parameters_note: str | None = None
    """Why the computed count is off by more than 1 %; required then."""
    source: str = ""
    confidence: Confidence = "derived"
    notes: tuple[str, ...] = field(default=())
    file_warnings: tuple[str, ...] = ()
    """What came up while its files were read; every plan repeats it."""

    def __post_init__(self) -> None:
        if self.hidden_size <= 0 or self.vocab_size <= 0:
            raise ValueError("hidden_size and vocab_size must be above 0")
        if not self.layers:
            raise ValueError("a model has at least one layer")
        for name in (*self.layers, *self.draft_layers):
            if name not in self.blocks:
                raise ValueError(f"layers name a block {name!r} that blocks does not define")

    @property
    def num_layers(self) -> int:
        return len(self.layers)

    @property
    def embedding_width(self) -> int:
        """Elements of a row of the token embedding."""
        return self.embedding_size or self.hidden_size

    @property
    def draft_model(self) -> ModelSpec | None:
        """The other checkpoint that drafts for this one (`kvplan.spec.drafted`); None: there is none."""
        return None

    @cached_property
    def layer_counts(self) -> dict[str, int]:
        """How many layers each block makes, in order of first appearance."""
        counts: dict[str, int] = {}
        for name in self.layers:
            counts[name] = counts.get(name, 0) + 1
        return counts

    def mixers(self, *, drafts: bool = False) -> Iterator[tuple[int, CacheKind]]:
        """(layers, mixer) of every distinct block; with `drafts`, the draft layers' besides."""
        counts = dict(self.layer_counts)
        for name in self.draft_layers if drafts else ():
            counts[name] = counts.get(name, 0) + 1
        for name, count in counts.items():
            for mixer in self.blocks[name].mixers:
                yield count, mixer

    def tensors_outside_layers(self) -> tuple[Tensor, ...]:
        """Embeddings, head, final norm and whatever else belongs to no layer."""
        width = self.embedding_width
        found = [Tensor("token_embd", "embedding", (self.vocab_size, width))]
        if self.position_embeddings:
            found.append(Tensor("position_embd", "embedding", (self.position_embeddings, self.hidden_size)))
        if self.final_norms:
            found.append(Tensor("output_norm", "norm", (self.final_norms, self.hidden_size)))
        if not self.tie_word_embeddings:
            found.append(Tensor("output", "head", (self.vocab_size, width)))
        found += [Tensor(t.name, t.role, t.shape, t.count) for t in self.tensors]
        found += [Tensor(t.name, "tower", (t.parameters,)) for t in self.towers]
        return tuple(found)

    def block_tensors(self, name: str, *, shared: bool | None = None) -> tuple[Tensor, ...]:
        """The weights of one layer built from block `name`, on the rank that this spec describes.

        Args:
            shared: only those that all layers of the block share (True), only the others (False), or both.
        """
        block = self.blocks[name]
        found: list[Tensor] = []
        for common in (False, True) if shared is None else (shared,):
            parts = (*_part(block.mixers, block.shared_mixers, common), *_part(block.ffns, block.shared_ffns, common))
            for part in parts:
                found += part.tensors(self.hidden_size)
            norms = block.shared_norms if common else block.norms - block.shared_norms
            if norms:
                found.append(Tensor("norms", "norm", (norms, self.hidden_size)))
            if not common:
                found += [Tensor(t.name, t.role, t.shape, t.count) for t in block.tensors]
        return tuple(found)

    def tensors_by_block(self) -> Iterator[tuple[int, Tensor]]:
        """(times counted, tensor) over all main layers; weights that layers share count once."""
        for name, count in self.layer_counts.items():
            for tensor in self.block_tensors(name, shared=False):
                yield count, tensor
            for tensor in self.block_tensors(name, shared=True):
                yield 1, tensor

    @cached_property
    def parameters(self) -> int:
        """Unique parameters of the main model and its towers, computed from the spec."""
        inside = sum(times * t.elements for times, t in self.tensors_by_block())
        return inside + sum(t.elements for t in self.tensors_outside_layers())

    @cached_property
    def active_parameters(self) -> int:
        """Parameters one token multiplies: all but routed experts it is not sent to, towers, and what is idle."""
        total = self.parameters - sum(t.parameters for t in self.towers) - self.idle_parameters
        for name, count in self.layer_counts.items():
            for ffn in self.blocks[name].ffns:
                experts = getattr(ffn, "experts", None)
                if experts:
                    routed = sum(t.elements for t in ffn.tensors(self.hidden_size) if t.role == "routed_experts")
                    idle = experts - getattr(ffn, "experts_per_token", experts)
                    total -= count * (routed // experts) * idle
        return total

    @property
    def idle_parameters(self) -> int:
        """Of mixers, what no token multiplies: projections of an encoder's rows, which a request does once."""
        total = 0
        for name, count in self.layer_counts.items():
            block = self.blocks[name]
            for common, times in ((False, count), (True, 1)):
                for mixer in _part(block.mixers, block.shared_mixers, common):
                    total += times * sum(t.elements for t in idle_tensors(mixer, self.hidden_size))
        return total

    @cached_property
    def draft_parameters(self) -> int:
        """Parameters of the draft layers, outside `parameters`."""
        inside = sum(t.elements for name in self.draft_layers for t in self.block_tensors(name))
        return inside + sum(Tensor(t.name, t.role, t.shape, t.count).elements for t in self.draft_tensors)

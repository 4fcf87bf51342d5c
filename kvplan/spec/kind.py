"""The language in which a layer says what it caches and what it weighs.

Every attention variant and every recurrent layer is described by three short lists, and the rest
of kvplan (byte counts, sharding, engine pages, weights) reads only these:

* `Stream`: vectors appended while tokens come in (K, V, a latent row, an indexer key);
* `State`: memory that one sequence holds whatever its length (a recurrent or convolution state);
* `Tensor`: the weights that the layer loads.

The kinds themselves live in `kvplan.cache`, one small class each.
"""

from __future__ import annotations

from typing import Any, ClassVar, NamedTuple, TypeVar

Tokens = TypeVar("Tokens", int, Any)
"""A token count: an int, or a NumPy integer array when a whole grid is computed at once."""


class Stream(NamedTuple):
    """One growing part of a layer's cache: `heads` vectors of `head_dim` elements per entry.

    Source: PagedAttention paper (arXiv 2309.06180), section 2; vLLM 0.33.0
    ``vllm/v1/kv_cache_interface.py`` keeps the same facts per layer.
    """

    name: str
    """What it is: ``k``, ``v``, ``latent``, ``index``, ``window``, ``compressed``."""
    heads: int
    """KV heads on the rank that this stream describes."""
    head_dim: int
    """Elements of one vector."""
    role: str
    """Which storage format applies: ``k``, ``v`` or ``index``."""
    window: int | None = None
    """At most this many entries are needed at any time; None: every entry is."""
    ratio: int = 1
    """Tokens per entry (compressed attention stores one entry for `ratio` tokens)."""
    fixed_entries: int | None = None
    """Entries held whatever the text length (cross attention over an encoder's output)."""
    chunked: bool = False
    """The window is a chunk that starts over, not one that slides."""

    def entries(self, tokens: Tokens) -> Tokens:
        """Entries held after `tokens` tokens of one sequence (int or integer array)."""
        if self.fixed_entries is not None:
            return self.fixed_entries if isinstance(tokens, int) else tokens * 0 + self.fixed_entries
        held = tokens if self.ratio == 1 else tokens // self.ratio
        if self.window is None:
            return held
        return min(held, self.window) if isinstance(held, int) else held.clip(max=self.window)

    def grows_at(self, tokens: int) -> bool:
        """Whether one more token can still add an entry once `tokens` are cached."""
        if self.fixed_entries is not None:
            return False
        return self.window is None or tokens // self.ratio < self.window


class State(NamedTuple):
    """Memory one sequence holds in one layer, whatever its length: `channels` x `columns` elements."""

    name: str
    """``conv``, ``recurrent`` or ``shift``."""
    channels: int
    columns: int
    """For a convolution: kernel - 1 columns (engines differ: some keep kernel, some add draft tokens)."""

    @property
    def elements(self) -> int:
        return self.channels * self.columns


class Tensor(NamedTuple):
    """Weights as one rank holds them: `copies` tensors of `shape` (out, in), as in torch ``Linear``."""

    name: str
    """A GGUF-style name (``attn_q``, ``ffn_down_exps``): the storage of some formats depends on it."""
    role: str
    """One of `ROLES`."""
    shape: tuple[int, ...]
    copies: int = 1

    @property
    def elements(self) -> int:
        total = self.copies
        for size in self.shape:
            total *= size
        return total


ROLES = (
    "embedding", "head", "attention", "dense_ffn", "routed_experts", "shared_experts", "router",
    "norm", "tower", "draft",
)  # fmt: skip
"""What a weight is for. Formats say which roles they quantise; engines say which they replicate."""


Part = TypeVar("Part", bound="LayerPart")


class LayerPart:
    """What mixers and FFNs have in common: they weigh something, and they split over ranks."""

    def tensors(self, hidden_size: int) -> tuple[Tensor, ...]:
        """Weights of this part on the rank it describes."""
        raise NotImplementedError

    def shard(self: Part, tp: int) -> Part:
        """The part as one of `tp` tensor-parallel ranks holds it.

        Raises:
            ValueError: `tp` does not divide what must be divided; the text says what.
        """
        raise NotImplementedError


class CacheKind(LayerPart):
    """A token mixer and what it caches. Subclasses are frozen dataclasses with a ``kind`` tag."""

    kind: str
    reference: ClassVar[str] = ""
    """Paper or file that says so, in one line."""

    def as_mha(self) -> CacheKind:
        """The same layer if it cached K and V of every query head; itself where that means nothing."""
        return self

    def as_mqa(self) -> CacheKind:
        """The same layer with one KV head; itself where that means nothing."""
        return self

    def streams(self) -> tuple[Stream, ...]:
        """The parts that grow with the sequence, on the rank that this object describes."""
        return ()

    def states(self) -> tuple[State, ...]:
        """The parts that do not."""
        return ()


def positive(**fields: int | None) -> None:
    """Refuse zero and negative sizes, naming the field.

    Raises:
        ValueError: the first field that is not above zero.
    """
    for name, value in fields.items():
        if value is not None and value <= 0:
            raise ValueError(f"{name} must be above 0, not {value}")


def divide(what: str, value: int, tp: int) -> int:
    """`value` / `tp`, exactly.

    Raises:
        ValueError: it leaves a remainder.
    """
    if value % tp:
        raise ValueError(f"{what} ({value}) cannot be divided by tensor parallel size {tp}")
    return value // tp

"""The language in which a layer says what it caches and what it weighs.

Every attention variant and every recurrent layer is described by three short lists, and the rest
of kvplan (byte counts, sharding, engine pages, weights) reads only these:

* `Stream`: vectors appended while tokens come in (K, V, a latent row, an indexer key);
* `State`: memory that one sequence holds whatever its length (a recurrent or convolution state);
* `Tensor`: the weights that the layer loads.

The kinds themselves live in `kvplan.cache`, one small class each.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar, NamedTuple, TypeVar, cast

from kvplan.spec.arrays import smaller
from kvplan.spec.shown import Shown

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
        return held if self.window is None else smaller(held, self.window)

    def grows_at(self, tokens: Any) -> Any:
        """Whether one more token can still add an entry once `tokens` are cached."""
        if self.fixed_entries is not None:
            return False
        return self.window is None or tokens // self.ratio < self.window


class Read(NamedTuple):
    """What one new token reads of a stream in a decode step, and the work that this takes.

    Source: FLOPs of attention, Megatron-LM paper (arXiv 2104.04473), appendix: 2 per multiply-add.
    """

    stream: Stream
    flops: int
    """FLOPs for each entry read in decode, over all query heads of the rank."""
    prefill_flops: int
    """The same in prefill, where latent attention rebuilds K and V."""
    limit: int | None = None
    """Entries read at most (sparse attention's top-k); None: all that are there."""
    beyond_flops: int | None = None
    """`prefill_flops` of tokens that read no more than `limit` of what is there; None: it is that."""

    def entries(self, tokens: Tokens) -> Tokens:
        """Entries read with `tokens` cached (int or integer array). A chunk starts over, so it is rarely full."""
        stream = self.stream
        if stream.chunked and stream.window is not None:
            return (tokens - 1) % stream.window + 1
        held = stream.entries(tokens)
        return held if self.limit is None else cast("Tokens", smaller(held, self.limit))

    def prefill(self, tokens: Tokens) -> Any:
        """FLOPs over a whole causal prefill of `tokens`."""
        found = self.total(tokens) * self.prefill_flops
        if self.beyond_flops is None or self.limit is None:
            return found
        beyond = tokens - smaller(tokens, self.limit * self.stream.ratio)
        return found + beyond * (self.limit * (self.beyond_flops - self.prefill_flops))

    def total(self, tokens: Tokens) -> Any:
        """Entries read over a whole causal prefill of `tokens`: the sum of `entries` at 1, 2, ..., `tokens`."""
        stream = self.stream
        if stream.fixed_entries is not None:
            return tokens * stream.fixed_entries
        if stream.chunked and stream.window is not None:
            whole, rest = tokens // stream.window, tokens % stream.window
            return whole * (stream.window * (stream.window + 1) // 2) + rest * (rest + 1) // 2
        most = min((n for n in (stream.window, self.limit) if n is not None), default=None)
        if most is None:
            return _staircase(tokens, stream.ratio)
        growing = most * stream.ratio
        short = smaller(tokens, growing)
        return _staircase(short, stream.ratio) + (tokens - short) * most


def _staircase(tokens: Any, ratio: int) -> Any:
    """The sum of ``i // ratio`` over i = 1 ... `tokens`."""
    steps = tokens // ratio
    return ratio * (steps * (steps - 1) // 2) + steps * (tokens - steps * ratio + 1)


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


class LayerPart(Shown, ABC):
    """What mixers and FFNs have in common: they weigh something, and they split over ranks."""

    may_be_zero: ClassVar[frozenset[str]] = frozenset()
    """Fields of whole numbers that may be 0; all others are sizes and counts of something that is there."""

    def __post_init__(self) -> None:
        """Refuse sizes that nothing has; a subclass with more to say calls this first.

        Raises:
            ValueError: the first field of whole numbers that is not above zero (or, in `may_be_zero`, is below it).
        """
        for name, value in vars(self).items():
            if type(value) is int and value <= 0:
                if name not in self.may_be_zero:
                    raise ValueError(f"{name} must be above 0, not {value}")
                if value:
                    raise ValueError(f"{name} must not be negative, not {value}")

    @abstractmethod
    def tensors(self, hidden_size: int) -> tuple[Tensor, ...]:
        """Weights of this part on the rank it describes."""

    def step_tensors(self, hidden_size: int) -> tuple[Tensor, ...]:
        """Those of `tensors` that a decode step reads: all, unless a kind says otherwise."""
        return self.tensors(hidden_size)

    @abstractmethod
    def shard(self: Part, tp: int) -> Part:
        """The part as one of `tp` tensor-parallel ranks holds it.

        Raises:
            ValueError: `tp` does not divide what must be divided; the text says what.
        """


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

    linear_kernels: ClassVar[int] = 2
    """Matrix kernels of the mixer in one step, with the usual fusions (one for q, k and v, one for the output)."""

    def reads(self) -> tuple[Read, ...]:
        """What a decode step reads of the growing parts.

        Unless a kind says otherwise: all that is held, in one product of each vector with every query head
        (``query_heads``; a kind without such has one for each head that it caches).
        """
        found = []
        for stream in self.streams():
            flops = 2 * getattr(self, "query_heads", stream.heads) * stream.head_dim
            found.append(Read(stream, flops, flops))
        return tuple(found)

    @property
    def state_products(self) -> int:
        """Multiply-adds of one token on each element of a recurrent state: decay, rank-one update and readout.

        Source: Mamba-2 paper (arXiv 2405.21060), section 6. The delta rule reads the state once more before it
        changes it.
        """
        return 3

    def state_flops(self) -> int:
        """FLOPs of one token on the states, 2 per multiply-add: `state_products` an element of a recurrent state,
        one an element (a tap) of a convolution."""
        each = {"recurrent": 2 * self.state_products}
        return sum(state.elements * each.get(state.name, 2) for state in self.states())

    def attention_flops(self, tokens: Tokens) -> Any:
        """FLOPs of one new token over the cache of `tokens`: scores, weighted sum, states."""
        total: Any = tokens * 0 + self.state_flops()
        for read in self.reads():
            total = total + read.entries(tokens) * read.flops
        return total

    def prefill_flops(self, tokens: Tokens) -> Any:
        """The same over a whole causal prefill of `tokens`: half of the square for full attention."""
        total: Any = tokens * self.state_flops()
        for read in self.reads():
            total = total + read.prefill(tokens)
        return total


def divide(what: str, value: int, tp: int) -> int:
    """`value` / `tp`, exactly.

    Raises:
        ValueError: it leaves a remainder.
    """
    if value % tp:
        raise ValueError(f"{what} ({value}) cannot be divided by tensor parallel size {tp}")
    return value // tp

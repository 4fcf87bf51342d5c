"""Where each byte per token comes from: the formula with a model's own numbers in it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from kvplan.cache.bytes import KvFormats, bytes_per_token, fixed_bytes, sequence_bytes, stream_rows
from kvplan.engines import get_engine
from kvplan.errors import InputError
from kvplan.planning.drafts import served_model
from kvplan.planning.kv import exceeds_at
from kvplan.planning.plan import to_plain
from kvplan.planning.settings import FIT, resolve
from kvplan.planning.weights import rank_weights, total_bytes, weight_format

if TYPE_CHECKING:
    from kvplan.engines.base import Settings
    from kvplan.planning.no_cache import NoCache
    from kvplan.planning.weights import RoleWeights
    from kvplan.spec.kind import CacheKind, Stream
    from kvplan.spec.model import ModelSpec

SCHEMA = "kvplan.explain/1"
FOUR_BITS = "nvfp4"
"""The 4-bit format that models are compared in: 4.5 bits an element with its scales."""


class Factor(NamedTuple):
    """One symbol of a product: what it is called, and its number in this model."""

    symbol: str
    value: int


class StreamTerm(NamedTuple):
    """One part of the cache of the layers of one kind."""

    kind: str
    stream: str
    factors: tuple[Factor, ...]
    """Their product, over `tokens_per_entry`, is the bytes per token."""
    tokens_per_entry: int
    window: int | None
    """Entries that a layer keeps at most; None: it keeps them all."""
    format: str
    bytes_per_token: int
    until_tokens: int | None
    """The length from which this term stops growing."""
    source: str


class StateTerm(NamedTuple):
    """Memory that one sequence holds whatever its length."""

    kind: str
    state: str
    factors: tuple[Factor, ...]
    bytes_per_sequence: int
    source: str


class Comparison(NamedTuple):
    """The same model with another cache."""

    name: str
    bytes_per_token: int
    bytes_per_sequence: int
    ratio: float
    """Of bytes per sequence, to the model as it is."""


class Explanation(NamedTuple):
    """The cache of a model, taken apart."""

    schema: str
    model: str
    formula: str
    """In symbols, for the layers of one kind."""
    worked: str
    """The same with this model's numbers, over all kinds."""
    streams: tuple[StreamTerm, ...]
    states: tuple[StateTerm, ...]
    bytes_per_token: int
    fixed_bytes_per_sequence: int
    max_model_len: int
    bytes_per_sequence: int
    weights_bytes: int
    exceeds_weights_at_tokens: int | None
    comparisons: tuple[Comparison, ...]
    source: str
    no_cache: NoCache | None = None
    """The work that the cache saves, where it was asked for."""

    def to_dict(self) -> dict[str, Any]:
        """Plain data, ready for ``json.dumps``."""
        plain: dict[str, Any] = to_plain(self)
        return plain


def explain(model: ModelSpec, given: dict[str, Any], *, saved: bool = False) -> Explanation:
    """The formula of a model's cache, symbol by symbol, and what it compares to.

    Args:
        given: ``kv_cache_dtype``, ``weights``, ``max_model_len`` where the user set them.
        saved: add the work that the cache saves over ``prompt_tokens`` and ``output_tokens``.

    Raises:
        KvplanError: an unknown format or a missing maximum length.
    """
    engine = get_engine("generic")
    if given.get("max_model_len") == FIT:
        raise InputError("-1 needs a memory to fit the length to", where="--max-model-len", hint="type a length")
    settings, _ = resolve(model, None, engine, given)
    model = served_model(model, engine, settings)
    formats, length = engine.kv_formats(model, settings), settings.max_model_len
    weights = weight_format(model, settings.weights)
    roles = rank_weights(model, model, weights, tp=1, vocab_rows=model.vocab_size)
    size = total_bytes(roles)
    streams = tuple(_streams(model, formats))
    per_token = bytes_per_token(model, formats)
    formula, worked = _formula(streams, per_token)
    return Explanation(
        schema=SCHEMA,
        model=model.id,
        formula=formula,
        worked=worked,
        streams=streams,
        states=tuple(_states(model, formats)),
        bytes_per_token=per_token,
        fixed_bytes_per_sequence=fixed_bytes(model, formats),
        max_model_len=length,
        bytes_per_sequence=sequence_bytes(model, length, formats),
        weights_bytes=size,
        exceeds_weights_at_tokens=exceeds_at(model, formats, size),
        comparisons=tuple(_comparisons(model, settings, formats)),
        source=model.source,
        no_cache=_no_cache(model, roles, formats, settings) if saved else None,
    )


def _no_cache(model: ModelSpec, roles: list[RoleWeights], formats: KvFormats, settings: Settings) -> NoCache:
    from kvplan.planning.no_cache import no_cache

    if settings.output_tokens == 0:
        raise InputError(
            "no token is generated: the prompt fills the context",
            where="--no-cache",
            hint="give --output-tokens, and a --max-model-len above the prompt",
        )
    return no_cache(model, roles, formats, settings, settings.prompt_tokens, settings.output_tokens)


def _formula(streams: tuple[StreamTerm, ...], per_token: int) -> tuple[str, str]:
    """The sum of products, in symbols and in numbers; K and V of one shape share a term."""
    growing = [s for s in streams if s.until_tokens != 0]
    if not growing:
        return "no part of the cache grows with the tokens", "0 B"
    symbols: dict[str, None] = {}
    numbers = []
    i = 0
    while i < len(growing):
        term, pair = growing[i], growing[i + 1] if i + 1 < len(growing) else None
        twice = pair is not None and (term.stream, pair.stream) == ("k", "v") and term.factors == pair.factors
        over = f" / {term.tokens_per_entry}" if term.tokens_per_entry > 1 else ""
        lead = "2 x " if twice else ""
        symbols[lead + " x ".join(f.symbol for f in term.factors) + (" / tokens per entry" if over else "")] = None
        numbers.append(lead + " x ".join(str(f.value) for f in term.factors) + over)
        i += 2 if twice else 1
    return " + ".join(symbols), f"{' + '.join(numbers)} = {per_token:,} B"


def _distinct(model: ModelSpec) -> list[tuple[CacheKind, int]]:
    """(mixer, layers), equal mixers of different blocks together."""
    found: dict[CacheKind, int] = {}
    for layers, mixer in model.mixers():
        found[mixer] = found.get(mixer, 0) + layers
    return list(found.items())


def _streams(model: ModelSpec, formats: KvFormats) -> list[StreamTerm]:
    merged: dict[StreamTerm, int] = {}
    for mixer, layers in _distinct(model):
        for stream, row_bytes, fmt in stream_rows(mixer, formats):
            term = _stream_term(mixer, stream, row_bytes, fmt.name)
            merged[term] = merged.get(term, 0) + layers
    return [_with_layers(term, layers) for term, layers in merged.items()]


def _stream_term(mixer: CacheKind, stream: Stream, row_bytes: int, format_name: str) -> StreamTerm:
    elements = stream.heads * stream.head_dim
    factors = [Factor("KV heads", stream.heads), Factor("head dim", stream.head_dim)]
    if row_bytes % elements == 0:
        factors.append(Factor("bytes per element", row_bytes // elements))
    else:
        factors = [Factor(f"bytes of {stream.heads} x {stream.head_dim} elements with their scales", row_bytes)]
    window = stream.fixed_entries or stream.window
    until = 0 if stream.fixed_entries else stream.window * stream.ratio if stream.window else None
    return StreamTerm(
        mixer.kind, stream.name, tuple(factors), stream.ratio, window, format_name, row_bytes, until, mixer.reference
    )


def _with_layers(term: StreamTerm, layers: int) -> StreamTerm:
    size = 0 if term.until_tokens == 0 else -(-layers * term.bytes_per_token // term.tokens_per_entry)
    return term._replace(factors=(Factor("layers", layers), *term.factors), bytes_per_token=size)


def _states(model: ModelSpec, formats: KvFormats) -> list[StateTerm]:
    found = []
    for mixer, layers in _distinct(model):
        for state in mixer.states():
            each = formats.recurrent_bytes if state.name == "recurrent" else formats.conv_bytes
            factors = (
                Factor("layers", layers), Factor("channels", state.channels), Factor("columns", state.columns),
                Factor("bytes per element", each),
            )  # fmt: skip
            found.append(StateTerm(mixer.kind, state.name, factors, layers * state.elements * each, mixer.reference))
    return found


def _comparisons(model: ModelSpec, settings: Settings, formats: KvFormats) -> list[Comparison]:
    engine = get_engine("generic")
    length = settings.max_model_len
    own = sequence_bytes(model, length, formats)

    def compare(name: str, other: ModelSpec, stored: KvFormats) -> Comparison:
        size = sequence_bytes(other, length, stored)
        return Comparison(name, bytes_per_token(other, stored), size, size / own if own else 1.0)

    found = [compare("as it is", model, formats)]
    for name, change in (("MHA: a KV head per query head", "as_mha"), ("MQA: one KV head", "as_mqa")):
        try:
            other = _with_mixers(model, change)
        except ValueError:  # a kind whose sizes go with its own number of heads alone
            continue
        if other.blocks != model.blocks:
            found.append(compare(name, other, formats))
    for name, dtype in (("16 bits", "bf16"), ("fp8", "fp8"), (f"4 bits ({FOUR_BITS})", FOUR_BITS)):
        stored = engine.kv_formats(model, replace(settings, kv_cache_dtype=dtype))
        if (stored.k, stored.v) != (formats.k, formats.v) and stored.k.block_bytes != formats.k.block_bytes:
            found.append(compare(name, model, stored))
    return found


def _with_mixers(model: ModelSpec, change: str) -> ModelSpec:
    """The model with every mixer turned into another by one of its own methods."""
    blocks = {
        name: replace(block, mixers=tuple(getattr(m, change)() for m in block.mixers))
        for name, block in model.blocks.items()
    }
    return replace(model, blocks=blocks)

"""The cache's own figures: bytes per token, per sequence, per group of layers."""

from __future__ import annotations

from math import lcm
from typing import TYPE_CHECKING

from kvplan.cache.bytes import (
    KvFormats,
    bytes_per_token,
    fixed_bytes,
    longest_sequence,
    prefix_bytes,
    sequence_bytes,
    state_bytes,
    stream_rows,
)
from kvplan.planning.plan import KvFigures, KvGroup, SharedPrefix
from kvplan.spec.arrays import is_array, largest, smaller

if TYPE_CHECKING:
    from kvplan.engines.base import Engine, Settings, Stage
    from kvplan.spec.kind import CacheKind
    from kvplan.spec.model import ModelSpec


def kv_groups(model: ModelSpec, formats: KvFormats) -> tuple[KvGroup, ...]:
    """Layers that cache the same, in order of first appearance; layers without a cache are left out."""
    found: dict[KvGroup, int] = {}
    for layers, mixer in model.mixers():
        group = _group(mixer, formats)
        if group is not None:
            found[group] = found.get(group, 0) + layers
    return tuple(group._replace(layers=layers) for group, layers in found.items())


def _group(mixer: CacheKind, formats: KvFormats) -> KvGroup | None:
    rows = stream_rows(mixer, formats)
    if not rows and not mixer.states():
        return None
    scale = lcm(*(s.ratio for s, _, _ in rows))
    growing = sum(size * (scale // s.ratio) for s, size, _ in rows if s.fixed_entries is None)
    fixed = state_bytes(mixer, formats) + sum(size * s.fixed_entries for s, size, _ in rows if s.fixed_entries)
    heads = dim_k = dim_v = window = ratio = None
    if rows:
        first = rows[0][0]
        heads, dim_k, dim_v = first.heads, first.head_dim, 0
        window = first.window or first.fixed_entries
        dim_v = next((s.head_dim for s, _, _ in rows if s.role == "v"), 0)
        ratio = next((s.ratio for s, _, _ in rows if s.ratio > 1), None)
    return KvGroup(mixer.kind, 0, heads, dim_k, dim_v, window, -(-growing // scale), fixed, ratio)


def kv_figures(
    model: ModelSpec, engine: Engine, settings: Settings, stages: tuple[Stage, ...], weights_bytes: int
) -> KvFigures:
    """Everything about the cache that needs no GPU; where settings are arrays, so are the figures that depend on them.

    Args:
        model: the model as it is served: its draft layers are those that run.
        weights_bytes: bytes of the whole model's weights, unsharded.
    """
    formats, length, dcp = (
        engine.kv_formats(model, settings),
        settings.max_model_len,
        settings.decode_context_parallel_size,
    )
    per_gpu = max(
        bytes_per_token(s.spec, engine.kv_formats(s.spec, settings), dcp=dcp, drafts=True, ends=(s.first, s.last))
        for s in stages
    )
    reserved = largest(engine.request_bytes(s, settings, length) for s in stages)
    shared = None
    if is_array(settings.shared_prefix_tokens) or settings.shared_prefix_tokens:
        tokens = engine.shared_prefix_tokens(model, settings)
        # every replica that runs a request stores the prefix once
        copies = settings.concurrency - smaller(settings.concurrency, settings.data_parallel_size)
        shared = SharedPrefix(tokens, copies * prefix_bytes(model, tokens, formats))
    return KvFigures(
        bytes_per_token=bytes_per_token(model, formats, drafts=True),
        bytes_per_token_per_gpu=per_gpu,
        marginal_bytes_per_token_at_max_len=bytes_per_token(model, formats, at=length, drafts=True),
        fixed_bytes_per_sequence=fixed_bytes(model, formats, drafts=True),
        bytes_per_sequence=sequence_bytes(model, length, formats, drafts=True),
        bytes_per_sequence_per_gpu=reserved,
        exceeds_weights_at_tokens=exceeds_at(model, formats, weights_bytes),
        shared_prefix=shared,
        groups=kv_groups(model, formats),
        format_k=formats.k.name,
        format_v=formats.v.name,
    )


def exceeds_at(model: ModelSpec, formats: KvFormats, weights_bytes: int) -> int | None:
    """The cached tokens of one sequence at which the cache weighs as much as the weights; None: never."""
    below = longest_sequence(model, weights_bytes - 1, formats)
    return None if below is None else below + 1

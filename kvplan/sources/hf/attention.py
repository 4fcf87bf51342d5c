"""Token mixers from a configuration: softmax attention and latent attention, one layer at a time."""

from __future__ import annotations

from typing import Any

from kvplan.cache.attention import Attention, FullAttention
from kvplan.errors import SpecError
from kvplan.sources.hf.keys import Config
from kvplan.spec.kind import CacheKind

_MLA_DECOYS = ("head_dim", "num_key_value_heads", "qk_head_dim", "mla_use_nope", "kv_channels")
"""Keys that a latent-attention file may carry without any effect on its cache."""


def hidden_size(cfg: Config) -> int:
    """Width of the residual stream."""
    return cfg.need_int("hidden_size", "n_embd", "d_model", "dim", "embedding_dim")


def query_heads(cfg: Config) -> int:
    return cfg.need_int("num_attention_heads", "n_head", "n_heads", "num_heads")


def kv_heads(cfg: Config) -> int:
    """KV heads; a file that does not say has as many as query heads (MHA)."""
    found = cfg.maybe_int("num_key_value_heads", "num_attention_groups", "multi_query_group_num")
    return query_heads(cfg) if found is None else found


def head_dim(cfg: Config, heads: int | None = None) -> int:
    """Elements of one head: said outright (and above zero), or hidden size / query heads.

    Raises:
        SpecError: it is not said and the heads do not divide the hidden size.
    """
    keys = ("head_dim", "attention_head_dim", "kv_channels", "hidden_size_per_head")
    cfg.ignore(keys)
    for key in keys:
        explicit = cfg.maybe_int(key)
        if explicit is not None and explicit > 0:
            return explicit
    heads = heads or query_heads(cfg)
    width = hidden_size(cfg)
    if width % heads:
        raise cfg.error(
            f"no head_dim, and {heads} attention heads do not divide hidden_size {width}",
            hint="add head_dim to the file",
        )
    return width // heads


def softmax_attention(
    cfg: Config,
    *,
    window: int | None = None,
    chunked: bool = False,
    encoder_tokens: int | None = None,
    source: str | None = None,
    **fields: Any,
) -> Attention:
    """An attention layer with K and V, from the usual keys.

    Args:
        window: tokens it looks back over; None: all of them.
        chunked: the window is a chunk that starts over (Llama 4).
        encoder_tokens: it is cross attention over that many encoder positions.
        source: it reads the cache of the last earlier layer built from this block.
        fields: fields of `kvplan.cache.attention.Attention` that win over the keys
            (``kv_heads``, ``head_dim``, ``qkv_bias``, ``qk_norm``, ...). Where neither ``qkv_bias``
            nor ``output_bias`` is given, ``attention_bias`` sets both.

    Raises:
        SpecError: a key has the wrong type, or the sizes contradict each other.
    """
    bias = cfg.flag("attention_bias", "attn_bias")
    values: dict[str, Any] = {"qkv_bias": bias, "output_bias": bias} | fields
    values.setdefault("query_heads", None)
    if values["query_heads"] is None:
        values["query_heads"] = query_heads(cfg)
    if values.get("kv_heads") is None:
        values["kv_heads"] = kv_heads(cfg)
    if values.get("head_dim") is None:
        values["head_dim"] = head_dim(cfg, values["query_heads"])
    limit = cfg.maybe_int("max_position_embeddings", "max_seq_len")
    if window is not None and limit is not None and window > limit and not chunked and source is None:
        values["nominal_window"], window = window, None
    mixer: Attention = checked(cfg, *_kind(window, chunked, encoder_tokens, source), values)
    return mixer


def _kind(
    window: int | None, chunked: bool, encoder_tokens: int | None, source: str | None
) -> tuple[type[Attention], dict[str, Any]]:
    """The class of the layer, and the fields that only it has."""
    if encoder_tokens is not None:
        from kvplan.cache.cross import CrossAttention

        return CrossAttention, {"encoder_tokens": encoder_tokens}
    if source is not None:
        from kvplan.cache.shared import SharedAttention

        return SharedAttention, {"source": source, "window": window}
    if window is None:
        return FullAttention, {}
    from kvplan.cache.sliding import ChunkedAttention, SlidingAttention

    return (ChunkedAttention if chunked else SlidingAttention), {"window": window}


def checked(cfg: Config, cls: type[Any], own: dict[str, Any], values: dict[str, Any]) -> Any:
    """Build `cls`, turning what it refuses into an error about the file."""
    try:
        return cls(**own, **values)
    except ValueError as exc:
        raise SpecError(str(exc), where=cfg.where, hint="the configuration contradicts itself") from None


def rotary_dim(cfg: Config) -> int:
    """The rotary part of a latent row; 0 where the file says so.

    Raises:
        SpecError: the file does not say; without it every figure of the cache would be a guess.
    """
    found = cfg.maybe_int("qk_rope_head_dim")
    if found is None:
        raise cfg.error("no qk_rope_head_dim beside kv_lora_rank", hint="add the key; 0 is no rotary part")
    return found


def latent_attention(cfg: Config, *, indexer: bool = True, **fields: Any) -> CacheKind:
    """A latent-attention (MLA) layer; the key-value head count of such files is a decoy.

    Args:
        indexer: whether this layer stores an index key of its own, if the file has an indexer
            (layers that reuse another's selection store none).
        fields: fields of `kvplan.cache.latent.LatentAttention` that win over the keys.
    """
    from kvplan.cache.latent import LatentAttention

    cfg.ignore(_MLA_DECOYS)
    index_dim = cfg.maybe_int("index_head_dim")
    index_heads, topk = cfg.maybe_int("index_n_heads"), cfg.maybe_int("index_topk")
    values: dict[str, Any] = {
        "query_heads": query_heads(cfg),
        "kv_lora_rank": cfg.need_int("kv_lora_rank"),
        "qk_rope_head_dim": rotary_dim(cfg),
        "qk_nope_head_dim": cfg.need_int("qk_nope_head_dim"),
        "v_head_dim": cfg.need_int("v_head_dim"),
        "q_lora_rank": cfg.maybe_int("q_lora_rank"),
        "index_topk": topk,
    }
    if indexer and index_dim is not None:
        values |= {"index_head_dim": index_dim, "index_heads": index_heads}
    mixer: CacheKind = checked(cfg, LatentAttention, {}, values | fields)
    return mixer

"""Gemma 3, 3n and 4: local and global layers, shared caches, and per-layer embeddings."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from kvplan.sources.hf.attention import hidden_size, kv_heads, softmax_attention
from kvplan.sources.hf.ffn import dense_ffn, expert_count, moe_ffn
from kvplan.sources.hf.keys import Config, Layers
from kvplan.sources.hf.layout import Layer, layer_count, layer_overrides, layer_windows, stack
from kvplan.sources.hf.plain import plain
from kvplan.spec.model import Block, ExtraTensor


def _five_to_one(i: int) -> bool:
    return (i + 1) % 6 != 0


def _four_to_one(i: int) -> bool:
    return (i + 1) % 5 != 0


def shared_tail(cfg: Config, count: int) -> int:
    """Index of the first layer that keeps no cache: the last ``num_kv_shared_layers`` read earlier ones."""
    shared = cfg.maybe_int("num_kv_shared_layers") or 0
    if not 0 <= shared < count:
        raise cfg.error(f"num_kv_shared_layers ({shared}) leaves no layer with a cache of its own")
    return count - shared


def gemma3n(cfg: Config) -> Layers:
    """Gemma 3n: the last layers read the cache of the last earlier layer of their own kind.

    Each layer mixes four copies of the stream (AltUp) and adds a low-rank branch (Laurel) and an
    embedding of its own. Source: transformers 5.24.0 ``models/gemma3n/modeling_gemma3n.py``.
    """
    cfg.ignore(("activation_sparsity_pattern", "altup_active_idx", "altup_coef_scale", "altup_correct_scale"))
    width, rank, narrow, copies = (
        hidden_size(cfg), cfg.need_int("laurel_rank"), cfg.need_int("hidden_size_per_layer_input"),
        cfg.need_int("altup_num_inputs"),
    )  # fmt: skip
    count = layer_count(cfg)
    extra = (
        ExtraTensor(name="laurel", shape=(rank, width), count=2),
        ExtraTensor(name="altup", shape=(copies, copies * (copies + 1) + width), role="norm"),
        ExtraTensor(name="per_layer_gate_projection", shape=(narrow, width), count=2),
    )
    around = (
        *_per_layer_embeddings(cfg, count),
        ExtraTensor(name="altup_projections", shape=(width, width), count=2 * (copies - 1)),
    )
    # four norms around the two halves; one each for Laurel, the layer's embedding and AltUp's router; AltUp's scale
    return stack(_sharing(cfg, extra, norms=8, ffn=lambda i, _: (dense_ffn(cfg, layer=i),)), tensors=around)


def _per_layer_embeddings(cfg: Config, count: int) -> tuple[ExtraTensor, ...]:
    """A second embedding table with a vector for every layer, and the projection into it."""
    narrow = cfg.maybe_int("hidden_size_per_layer_input") or 0
    if not narrow:
        cfg.ignore(("vocab_size_per_layer_input",))
        return ()
    rows = cfg.need_int("vocab_size_per_layer_input", "vocab_size")
    return (
        ExtraTensor(name="per_layer_token_embd", shape=(rows, count * narrow), role="embedding"),
        ExtraTensor(name="per_layer_model_projection", shape=(count * narrow, hidden_size(cfg))),
        ExtraTensor(name="per_layer_projection_norm", shape=(narrow,), role="norm"),
    )


def gemma4(cfg: Config) -> Layers:
    """Gemma 4: global layers have their own head size and KV heads; some sizes share caches or mix experts.

    Source: transformers 5.24.0 ``models/gemma4/modeling_gemma4.py``. Where K and V share a projection the
    cache still holds both (K is normed and rotated, V is not).
    """
    count = layer_count(cfg)
    width, narrow = hidden_size(cfg), cfg.maybe_int("hidden_size_per_layer_input") or 0
    mixture = cfg.flag("enable_moe_block")
    wide = 2 if cfg.flag("use_double_wide_mlp") else 1
    extra: tuple[ExtraTensor, ...] = ()
    if narrow:
        extra = (ExtraTensor(name="per_layer_gate_projection", shape=(narrow, width), count=2),)
    if mixture:
        experts = expert_count(cfg) or cfg.need_int("num_experts")
        extra += (ExtraTensor(name="router_scales", shape=(experts + width,), role="norm"),)

    def ffn(i: int, shared: bool) -> tuple[Any, ...]:
        dense = dense_ffn(cfg, layer=i)
        if shared and wide == 2:
            dense = replace(dense, intermediate_size=2 * dense.intermediate_size)
        return (dense, moe_ffn(cfg, i)) if mixture else (dense,)

    norms = 4 + (3 if mixture else 0) + (1 if narrow else 0)
    layers = _sharing(cfg, extra, norms=norms, ffn=ffn, global_fields=_global_fields(cfg), own_kv_weights=False)
    return stack(layers, tensors=_per_layer_embeddings(cfg, count))


def _global_fields(cfg: Config) -> dict[str, Any]:
    """What global layers of Gemma 4 have otherwise than local ones."""
    same = cfg.flag("attention_k_eq_v")
    heads = cfg.maybe_int("num_global_key_value_heads")
    return {
        "head_dim": cfg.maybe_int("global_head_dim") or (None if "per_layer_config" in cfg else 512),
        "kv_heads": heads if same and heads else kv_heads(cfg),
        "shared_kv_projection": same,
    }


def _sharing(
    cfg: Config,
    extra: tuple[ExtraTensor, ...],
    *,
    norms: int,
    ffn: Callable[[int, bool], tuple[Any, ...]],
    global_fields: dict[str, Any] | None = None,
    own_kv_weights: bool = True,
) -> list[Layer]:
    """Layers with caches, then those that read the cache of the last earlier layer of their kind."""
    windows = layer_windows(cfg, _four_to_one if global_fields is None else _five_to_one)
    overrides = layer_overrides(cfg, len(windows), {"head_dim": "head_dim", "num_key_value_heads": "kv_heads"})
    if global_fields is not None:
        windows[-1] = None  # Gemma 4 makes the last layer global whatever the file says
    first = shared_tail(cfg, len(windows))
    layers: list[Layer] = []
    for i, window in enumerate(windows):
        word = "global" if window is None else "local"
        fields: dict[str, Any] = {"qk_norm": "head"} | ((global_fields or {}) if window is None else {}) | overrides[i]
        if i < first:
            mixer = softmax_attention(cfg, window=window, **fields)
        else:
            fields["own_kv_weights"] = own_kv_weights
            mixer = softmax_attention(cfg, window=window, source=word, **fields)
            word = f"{word}_shared"
        layers.append(Layer(Block(mixers=(mixer,), ffns=ffn(i, i >= first), norms=norms, tensors=extra), word))
    return layers


GEMMA: dict[str, Callable[[Config], Layers]] = {
    **dict.fromkeys(("gemma3", "gemma3_text"), plain(norms=4, qk_norm="head", slides=_five_to_one)),
    **dict.fromkeys(("gemma3n", "gemma3n_text"), gemma3n),
    **dict.fromkeys(("gemma4", "gemma4_text", "gemma4_unified_text"), gemma4),
}

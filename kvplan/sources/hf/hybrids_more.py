"""Hybrids of 2025 and 2026: LFM 3, Lara Mini, and Ling and Ring with linear attention (Bailing).

Weights follow transformers 5.24.0, ``models/{lfm3,lara_mini,bailing_hybrid}``; those of the Bailing models that it
lacks, vLLM 0.33.0 ``model_executor/models/bailing_moe_linear.py`` and MLX-LM 0.32.2 ``models/bailing_moe_linear.py``.
"""

from __future__ import annotations

from kvplan.cache.delta import KimiDeltaAttention
from kvplan.cache.lightning import LightningAttention
from kvplan.cache.short_conv import ShortConv
from kvplan.sources.hf.attention import (
    checked,
    head_dim,
    hidden_size,
    latent_attention,
    query_heads,
    softmax_attention,
)
from kvplan.sources.hf.ffn import dense_ffn, ffn_for_layer
from kvplan.sources.hf.hybrids_common import (
    FULL,
    LINEAR,
    Stack,
    draft_count,
    layer_count,
    layer_kinds,
    mtp_tensors,
    need_kinds,
    optional,
    plain_block,
    suffix,
)
from kvplan.sources.hf.hybrids_delta import LINEAR_OR_FULL, delta_net
from kvplan.sources.hf.keys import Config, Layers
from kvplan.sources.hf.layout import window_size
from kvplan.spec.kind import CacheKind
from kvplan.spec.model import ExtraTensor

LOCAL, CONV = "local", "conv"
_LFM3_WORDS = {"conv": CONV, "full_attention": FULL, "sliding_attention": LOCAL}
_LARA_WORDS = LINEAR_OR_FULL | {"sliding_attention": LOCAL}


def _window(cfg: Config, kinds: list[str]) -> int | None:
    size = window_size(cfg)
    if size is None and LOCAL in kinds:
        raise cfg.error("layer_types has sliding layers and there is no sliding_window")
    return size


def lfm3(cfg: Config) -> Layers:
    """LFM 3: short convolutions among sliding and full attention, whose heads are gated."""
    count = layer_count(cfg)
    kinds = layer_kinds(cfg, count, _LFM3_WORDS, "layer_types")
    if kinds is None:
        kinds = [FULL if i % 4 == 2 else LOCAL if i % 4 == 0 and i > 0 else CONV for i in range(count)]
    window, gate = _window(cfg, kinds), cfg.flag("use_attention_gate", default=True)
    conv: CacheKind = checked(
        cfg,
        ShortConv,
        {},
        {
            "channels": hidden_size(cfg),
            "conv_kernel": cfg.need_int("conv_L_cache"),
            "bias": cfg.flag("conv_bias"),
        },
    )
    mixers: dict[str, CacheKind] = {CONV: conv, FULL: softmax_attention(cfg, qk_norm="head", gate_per_head=gate)}
    if LOCAL in kinds:
        mixers[LOCAL] = softmax_attention(cfg, window=window, qk_norm="head", gate_per_head=gate)
    ffn, norms = dense_ffn(cfg, bias=False), 4 if cfg.flag("use_sandwich_norm", default=True) else 2
    stack = Stack()
    for kind in kinds:
        block = plain_block(mixers[kind], (ffn,))
        more = ExtraTensor(name="post_norms", shape=(norms - 2, hidden_size(cfg)), role="norm")
        stack.add(kind, plain_block(mixers[kind], (ffn,), (more,)) if norms > 2 else block)
    return stack.layers()


def lara_mini(cfg: Config) -> Layers:
    """Lara Mini: gated delta nets, sliding and full attention, in a period of five; every FFN a mixture."""
    count = layer_count(cfg)
    kinds = layer_kinds(cfg, count, _LARA_WORDS, "layer_types")
    if kinds is None:
        kinds = [(LINEAR, LOCAL, LINEAR, FULL, LOCAL)[i % 5] for i in range(count)]
    window = _window(cfg, kinds)
    mixers: dict[str, CacheKind] = {LINEAR: delta_net(cfg), FULL: softmax_attention(cfg, qk_norm="head")}
    if LOCAL in kinds:
        mixers[LOCAL] = softmax_attention(cfg, window=window, qk_norm="head")
    stack = Stack()
    for layer, kind in enumerate(kinds):
        ffns = ffn_for_layer(cfg, layer, bias=False)
        stack.add(kind + suffix(ffns), plain_block(mixers[kind], ffns))
    return stack.layers()


def bailing_hybrid(cfg: Config) -> Layers:
    """Ling and Ring with linear attention beside latent attention: lightning in 2.5, Kimi delta attention in 3.

    Both call themselves ``bailing_hybrid``. Version 2.5 has the groups of the norm behind its lightning attention,
    version 3 the kernel of its short convolutions.
    """
    kda = "group_norm_size" not in cfg or "short_conv_kernel_size" in cfg or "linear_conv_kernel_dim" in cfg
    granularity = cfg.get("gated_attention_proj_granularity_type")
    if granularity not in (None, "head_wise", "element_wise"):
        raise cfg.error(f"gated_attention_proj_granularity_type {granularity!r} is not understood")
    latent = latent_attention(cfg, output_gate=granularity == "element_wise")
    by_head = ExtraTensor(name="attn_gate", shape=(query_heads(cfg), hidden_size(cfg)))
    gates = (by_head,) if granularity == "head_wise" or (kda and granularity is None) else ()
    return _bailing(cfg, latent, _bailing_delta(cfg) if kda else _bailing_lightning(cfg), gates)


def bailing_linear(cfg: Config) -> Layers:
    """Ring-linear 2: lightning attention beside grouped-query attention."""
    bias = cfg.flag("use_bias")
    full = softmax_attention(
        cfg,
        qkv_bias=bias or cfg.flag("use_qkv_bias"),
        output_bias=bias,
        qk_norm="head" if cfg.flag("use_qk_norm") else None,
    )
    return _bailing(cfg, full, _bailing_lightning(cfg), ())


def _bailing_lightning(cfg: Config) -> CacheKind:
    cfg.ignore(("group_norm_size", "linear_silu", "use_linear_silu", "linear_rope"))
    heads = query_heads(cfg)
    found: CacheKind = checked(cfg, LightningAttention, {}, {"heads": heads, "head_dim": head_dim(cfg, heads)})
    return found


def _bailing_delta(cfg: Config) -> CacheKind:
    cfg.ignore(("kda_safe_gate", "kda_lower_bound", "no_kda_lora", "group_norm_size"))
    heads = cfg.maybe_int("linear_num_heads") or query_heads(cfg)
    dim = cfg.maybe_int("linear_head_dim") or head_dim(cfg, heads)
    values = {
        "heads": heads,
        "head_dim": dim,
        "conv_kernel": optional(cfg, 4, "short_conv_kernel_size", "linear_conv_kernel_dim"),
        "full_rank_gate": True,
        "full_rank_decay": True,
    }
    cfg.ignore(("linear_conv_kernel_dim",))
    found: CacheKind = checked(cfg, KimiDeltaAttention, {}, values)
    return found


def _bailing(cfg: Config, full: CacheKind, linear: CacheKind, gates: tuple[ExtraTensor, ...]) -> Layers:
    """Every ``layer_group_size``-th layer attends, and so do the layers after the last whole group."""
    count = layer_count(cfg)
    kinds = layer_kinds(cfg, count, LINEAR_OR_FULL, "layer_types")
    every = cfg.maybe_int("layer_group_size")
    if kinds is None and every is not None and every > 0:
        whole = count // every * every
        kinds = [FULL if (i + 1) % every == 0 or i >= whole else LINEAR for i in range(count)]
    stack = Stack()
    for layer, kind in enumerate(need_kinds(cfg, kinds, "layer_types", "layer_group_size")):
        ffns = ffn_for_layer(cfg, layer, bias=False, router_bias=True)
        block = plain_block(full, ffns, gates) if kind == FULL else plain_block(linear, ffns)
        stack.add(("full" if kind == FULL else "linear") + suffix(ffns), block)
    drafts = draft_count(cfg)
    if not drafts:
        return stack.layers()
    ffns = stack.blocks[stack.order[-1]].ffns
    name = stack.name("full" + suffix(ffns), plain_block(full, ffns, gates))
    return stack.layers(draft_layers=(name,) * drafts, draft_tensors=mtp_tensors(hidden_size(cfg), 3, drafts))

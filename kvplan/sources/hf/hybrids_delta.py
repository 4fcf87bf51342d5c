"""Linear attention beside softmax attention: Qwen3-Next and 3.5, OLMo Hybrid, Kimi Linear, GLM-5 Next, MiniMax-01.

Weights follow transformers 5.24.0, ``models/{qwen3_next,qwen3_5,qwen3_5_moe,olmo_hybrid,kimi_linear,glm5_next,
minimax}``; what Kimi K3 adds (latent experts, gates, attention over earlier blocks) follows the tensor
names of its checkpoint. Multi-token-prediction modules are what the published checkpoints hold besides.
"""

from __future__ import annotations

from kvplan.cache.delta import GatedDeltaNet, KimiDeltaAttention
from kvplan.cache.lightning import LightningAttention
from kvplan.sources.hf.attention import (
    checked,
    head_dim,
    hidden_size,
    latent_attention,
    query_heads,
    rotary_dim,
    softmax_attention,
)
from kvplan.sources.hf.ffn import ffn_for_layer
from kvplan.sources.hf.hybrids_common import (
    FULL,
    LINEAR,
    Stack,
    agree,
    draft_count,
    layer_count,
    layer_kinds,
    mtp_tensors,
    need_kinds,
    optional,
    plain_block,
    refuse_unread,
    suffix,
    two_kinds,
)
from kvplan.sources.hf.keys import Config, Layers
from kvplan.sources.hf.layout import indexer_layers
from kvplan.spec.ffn import MoeFfn
from kvplan.spec.kind import CacheKind
from kvplan.spec.model import Block, ExtraTensor

LINEAR_OR_FULL = {"linear_attention": LINEAR, "full_attention": FULL}
SPARSE_NAMES = {"linear_attention": LINEAR} | dict.fromkeys(
    ("full_attention", "deepseek_sparse_attention", "indexed_attention"), FULL
)
MLP_CODES = {"dense": "dense", "sparse": "moe", "moe": "moe"}


def every_nth(count: int, interval: int) -> list[str]:
    """Full attention in every `interval`-th layer, the last of each group."""
    return [FULL if (i + 1) % interval == 0 else LINEAR for i in range(count)]


def qwen_hybrid(cfg: Config) -> Layers:
    """Gated delta nets with a gated full attention in every n-th layer (Qwen3-Next, Qwen3.5, 3.6, 3.8)."""
    cfg.ignore(("partial_rotary_factor", "mamba_ssm_dtype", "norm_topk_prob", "mtp_use_dedicated_embeddings"))
    cfg.ignore(("mlp_only_layers", "decoder_sparse_step"))  # a dense model carries them without effect
    count = layer_count(cfg)
    interval = cfg.maybe_int("full_attention_interval")
    kinds = layer_kinds(cfg, count, LINEAR_OR_FULL, "layer_types")
    if interval is not None and interval < 1:
        raise cfg.error(f"full_attention_interval must be above 0, not {interval}")
    if kinds is None:
        kinds = every_nth(count, need_interval(cfg, interval))
    delta = delta_net(cfg)
    bias = cfg.flag("attention_bias")
    gate = cfg.flag("attn_output_gate", default=True)
    full = softmax_attention(cfg, qk_norm="head", output_gate=gate, qkv_bias=bias, output_bias=bias)
    stack = Stack()
    for layer, kind in enumerate(kinds):
        ffns = ffn_for_layer(cfg, layer, bias=False, shared_gate=True)
        stack.add(kind + suffix(ffns), plain_block(full if kind == FULL else delta, ffns))
    drafts = draft_count(cfg)
    if not drafts:
        return stack.layers()
    ffns = stack.blocks[stack.order[-1]].ffns
    name = stack.name(FULL + suffix(ffns), plain_block(full, ffns))
    return stack.layers(draft_layers=(name,) * drafts, draft_tensors=mtp_tensors(hidden_size(cfg), 3))


def delta_net(cfg: Config) -> CacheKind:
    values = {
        "key_heads": cfg.need_int("linear_num_key_heads"),
        "value_heads": cfg.need_int("linear_num_value_heads"),
        "key_head_dim": cfg.need_int("linear_key_head_dim"),
        "value_head_dim": cfg.need_int("linear_value_head_dim"),
        "conv_kernel": cfg.need_int("linear_conv_kernel_dim"),
    }
    found: CacheKind = checked(cfg, GatedDeltaNet, {}, values)
    return found


def olmo_hybrid(cfg: Config) -> Layers:
    """OLMo Hybrid: gated delta nets with full attention in the layers that ``layer_types`` names."""
    cfg.ignore(("linear_a_log_min", "linear_a_log_max", "linear_dt_min", "linear_dt_max", "linear_dt_init_floor"))
    cfg.ignore(("linear_allow_neg_eigval",))
    count = layer_count(cfg)
    kinds = need_kinds(cfg, layer_kinds(cfg, count, LINEAR_OR_FULL, "layer_types"), "layer_types")
    delta, bias = delta_net(cfg), cfg.flag("attention_bias")
    full = softmax_attention(cfg, qk_norm="full", qkv_bias=bias, output_bias=bias)
    stack = Stack()
    for layer, kind in enumerate(kinds):
        ffns = ffn_for_layer(cfg, layer, bias=False)
        stack.add(kind + suffix(ffns), plain_block(full if kind == FULL else delta, ffns))
    return stack.layers()


def need_interval(cfg: Config, interval: int | None) -> int:
    if interval is None:
        raise cfg.error("neither layer_types nor full_attention_interval: which layers have attention is not said")
    return interval


def _kda(cfg: Config, attention: Config) -> CacheKind:
    """Kimi delta attention; its sizes stand in ``linear_attn_config`` or, newer, beside the others."""
    attention.ignore(("gate_lower_bound", "safe_gate"))
    values = {}
    for field, nested, flat in (
        ("heads", "num_heads", "linear_num_heads"),
        ("head_dim", "head_dim", "linear_head_dim"),
        ("conv_kernel", "short_conv_kernel_size", "linear_conv_kernel_dim"),
    ):
        values[field] = attention.need_int(nested) if nested in attention else cfg.need_int(flat)
        cfg.ignore((flat,))  # where both stand there, the nested one counts
    gate = attention.flag("use_full_rank_gate") or cfg.flag("use_full_rank_gate")
    mixer: CacheKind = checked(cfg, KimiDeltaAttention, {"full_rank_gate": gate}, values)
    return mixer


def _mixed_kinds(cfg: Config, attention: Config, count: int, first: int) -> list[str]:
    """Layer kinds of a Kimi-like file: numbered lists (from `first`), ``layer_types``, or both."""
    kinds = agree(
        cfg,
        ("layer_types", layer_kinds(cfg, count, SPARSE_NAMES, "layer_types")),
        ("linear_attn_config", two_kinds(attention, count, first, "full_attn_layers", "kda_layers")),
    )
    return need_kinds(cfg, kinds, "layer_types", "linear_attn_config.full_attn_layers")


def kimi_linear(cfg: Config) -> Layers:
    """Kimi delta attention with latent attention in every fourth layer; layer numbers start at 1."""
    cfg.ignore(("mla_use_nope", "moe_renormalize", "num_expert_group", "topk_group"))
    cfg.ignore(("activation_situ_beta", "activation_situ_linear_beta"))
    count = layer_count(cfg)
    attention = cfg.child("linear_attn_config") or Config({}, cfg.where)
    kinds = _mixed_kinds(cfg, attention, count, 1)
    kda = _kda(cfg, attention)
    refuse_unread(attention, "linear_attn_config")
    _check_mlp_kinds(cfg, count)
    latent = latent_attention(cfg, output_gate=cfg.flag("mla_use_output_gate"))
    expert_width = cfg.maybe_int("routed_expert_hidden_size")
    every, outside = _block_attention(cfg)
    stack = Stack()
    for layer, kind in enumerate(kinds):
        ffns = ffn_for_layer(cfg, layer, expert_hidden_size=expert_width)
        extra = every + (_latent_bias(cfg) if kind == FULL else ())
        if expert_width and isinstance(ffns[0], MoeFfn) and cfg.flag("latent_moe_use_norm"):
            extra += (ExtraTensor(name="ffn_latent_norm", shape=(expert_width,), role="norm"),)
        stack.add(
            ("mla" if kind == FULL else "kda") + suffix(ffns), plain_block(latent if kind == FULL else kda, ffns, extra)
        )
    return _with_drafts(cfg, stack, latent, _latent_bias(cfg), outside)


def _block_attention(cfg: Config) -> tuple[tuple[ExtraTensor, ...], tuple[ExtraTensor, ...]]:
    """Residuals that attend over earlier blocks of layers: a query and a norm before attention, before
    the FFN and before the head. What they attend over lives within one step; nothing is cached.
    """
    if cfg.get("attn_res_block_size") is None:
        return (), ()
    cfg.need_int("attn_res_block_size")
    width = hidden_size(cfg)
    return (
        (ExtraTensor(name="attn_res", shape=(4, width), role="norm"),),
        (ExtraTensor(name="output_attn_res", shape=(2, width), role="norm"),),
    )


def glm_next(cfg: Config) -> Layers:
    """Kimi delta attention with sparse latent attention, in four parallel residual streams.

    Layer numbers start at 0 here.
    """
    cfg.ignore(("index_topk_freq", "index_skip_topk_offset", "index_share_for_mtp_iteration", "index_kpool_compress"))
    cfg.ignore(("index_kpool_always_select_tail", "hc_eps", "hc_sinkhorn_iters", "swiglu_limit", "linear_lower_bound"))
    cfg.ignore(("indexer_rope_interleave", "index_topk_pattern"))
    count = layer_count(cfg)
    attention = cfg.child("linear_attn_config") or Config({}, cfg.where)
    kinds = _mixed_kinds(cfg, attention, count, 0)
    kda = _kda(cfg, attention)
    refuse_unread(attention, "linear_attn_config")
    _check_mlp_kinds(cfg, count)
    indexers = indexer_layers(cfg, count)
    streams = _hyper_connections(cfg)
    stack = Stack()
    for layer, kind in enumerate(kinds):
        ffns = ffn_for_layer(cfg, layer)
        if kind == LINEAR:
            stack.add("kda" + suffix(ffns), plain_block(kda, ffns, streams))
            continue
        own = indexers[layer]
        tensors = streams + _latent_bias(cfg) + (_index_pool(cfg) if own else ())
        base = "mla" if own else "mla_shared_index"
        mixer = latent_attention(cfg, indexer=own, index_pool=_pooled_keys(cfg) if own else None)
        stack.add(base + suffix(ffns), plain_block(mixer, ffns, tensors))
    draft = latent_attention(cfg, index_pool=_pooled_keys(cfg))
    return _with_drafts(cfg, stack, draft, _latent_bias(cfg) + _index_pool(cfg))


def _check_mlp_kinds(cfg: Config, count: int) -> None:
    """Refuse ``mlp_layer_types`` of another length, with unknown words, or against ``first_k_dense_replace``."""
    listed = layer_kinds(cfg, count, MLP_CODES, "mlp_layer_types")
    first = cfg.maybe_int("first_k_dense_replace")
    rule = None if first is None else ["dense" if i < first else "moe" for i in range(count)]
    if cfg.get("moe_layer_freq") in (None, 1):
        agree(cfg, ("mlp_layer_types", listed), ("first_k_dense_replace", rule))


def _hyper_connections(cfg: Config) -> tuple[ExtraTensor, ...]:
    """Weights that mix the parallel residual streams, before attention and before the FFN."""
    streams = optional(cfg, 4, "hc_mult")
    mixed = (2 + streams) * streams
    return (
        ExtraTensor(name="hc_fn", shape=(mixed, streams * hidden_size(cfg)), count=2),
        ExtraTensor(name="hc_base_scale", shape=(mixed + 3,), count=2, role="norm"),
    )


def _pooled_keys(cfg: Config) -> int:
    """Tokens whose index keys are pooled into one."""
    return optional(cfg, 16, "index_kpool")


def _index_pool(cfg: Config) -> tuple[ExtraTensor, ...]:
    """Weights that pool index keys: one gate per key element, one position vector per pooled token."""
    dim, pool = cfg.need_int("index_head_dim"), _pooled_keys(cfg)
    return (
        ExtraTensor(name="indexer_pool_gate", shape=(dim, hidden_size(cfg))),
        ExtraTensor(name="indexer_pool_ape", shape=(pool, dim), role="norm"),
    )


def _latent_bias(cfg: Config) -> tuple[ExtraTensor, ...]:
    """Biases of latent attention (down-projections and output), where the file asks for them."""
    if not cfg.flag("attention_bias"):
        return ()
    row = cfg.need_int("kv_lora_rank") + rotary_dim(cfg)
    size = row + (cfg.maybe_int("q_lora_rank") or 0) + hidden_size(cfg)
    return (ExtraTensor(name="attn_latent_bias", shape=(size,), role="norm"),)


def _with_drafts(
    cfg: Config,
    stack: Stack,
    mixer: CacheKind,
    tensors: tuple[ExtraTensor, ...],
    outside: tuple[ExtraTensor, ...] = (),
) -> Layers:
    """The stack, and the multi-token-prediction layers that the file counts: `mixer`, the last layer's FFN."""
    drafts = draft_count(cfg)
    if not drafts:
        return stack.layers(tensors=outside)
    ffns = stack.blocks[stack.order[-1]].ffns
    name = stack.name("mla_draft" + suffix(ffns), plain_block(mixer, ffns, tensors))
    return stack.layers(
        draft_layers=(name,) * drafts, draft_tensors=mtp_tensors(hidden_size(cfg), 3, drafts), tensors=outside
    )


def minimax(cfg: Config) -> Layers:
    """Lightning attention with softmax attention in every eighth layer; every FFN a mixture of experts."""
    cfg.ignore(("rotary_dim", "block_size", "postnorm", "shared_moe_mode"))
    cfg.ignore(f"layernorm_{a}_attention_{b}" for a in ("full", "linear") for b in ("alpha", "beta"))
    cfg.ignore(f"{a}_attn_{b}_factor" for a in ("full", "linear") for b in ("alpha", "beta"))
    cfg.ignore(("layernorm_mlp_alpha", "layernorm_mlp_beta", "mlp_alpha_factor", "mlp_beta_factor"))
    count = layer_count(cfg)
    kinds = agree(
        cfg,
        ("attn_type_list", layer_kinds(cfg, count, {0: LINEAR, 1: FULL}, "attn_type_list")),
        ("layer_types", layer_kinds(cfg, count, LINEAR_OR_FULL, "layer_types")),
    )
    heads = query_heads(cfg)
    lightning = checked(cfg, LightningAttention, {}, {"heads": heads, "head_dim": head_dim(cfg, heads)})
    full = softmax_attention(cfg)
    stack = Stack()
    for layer, kind in enumerate(need_kinds(cfg, kinds, "attn_type_list", "layer_types")):
        ffns = ffn_for_layer(cfg, layer)
        block: Block = plain_block(full if kind == FULL else lightning, ffns)
        stack.add(("full" if kind == FULL else "lightning") + suffix(ffns), block)
    return stack.layers()

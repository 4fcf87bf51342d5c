"""Mamba layers, alone or beside attention, and other state-space models.

Weights follow transformers 5.24.0, ``models/{mamba,mamba2,falcon_mamba,jamba,bamba,granitemoehybrid,
falcon_h1,nemotron_h,zamba,zamba2}``; PLaMo 2 is with the other families.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kvplan.cache.mamba import Mamba1, Mamba2
from kvplan.errors import printable
from kvplan.sources.hf.attention import checked, hidden_size, kv_heads, query_heads, softmax_attention
from kvplan.sources.hf.ffn import dense_ffn, expert_count, ffn_for_layer, moe_ffn
from kvplan.sources.hf.hybrids_common import (
    FULL,
    LINEAR,
    Stack,
    agree,
    draft_count,
    inner_size,
    layer_count,
    layer_kinds,
    mamba_heads,
    mtp_tensors,
    need_kinds,
    numbered,
    optional,
    plain_block,
    suffix,
)
from kvplan.sources.hf.keys import Config, Layers
from kvplan.spec.kind import CacheKind, LayerPart
from kvplan.spec.model import Block, ExtraTensor

MAMBA_OR_FULL = {"mamba": LINEAR, "linear_attention": LINEAR, "attention": FULL, "full_attention": FULL}
WITHOUT_EFFECT = (
    "chunk_size", "mamba_chunk_size", "residual_in_fp32", "rescale_prenorm_residual", "mixer_rms_eps",
    "layer_norm_epsilon", "rms_norm", "time_step_min", "time_step_max", "time_step_floor", "time_step_limit",
    "time_step_scale", "time_step_init_scheme", "use_mambapy", "use_falcon_mambapy", "use_associative_scan",
    "use_mamba_kernels", "use_mem_eff_path", "num_logits_to_keep", "mamba_hidden_act", "mamba_ssm_cache_dtype",
    "mamba_norm_before_gate",
)  # fmt: skip


def dt_rank(cfg: Config, *keys: str) -> int:
    """Rank of the time-step projection; ``auto`` (or nothing) is a sixteenth of the hidden size, rounded up."""
    if cfg.get(*keys) in (None, "auto"):
        return -(-hidden_size(cfg) // 16)
    return cfg.need_int(*keys)


def mamba1_model(cfg: Config) -> Layers:
    """Mamba 1 in every layer, no FFN (Mamba, Falcon-Mamba, whose inner norms carry no weights)."""
    cfg.ignore(WITHOUT_EFFECT)
    mixer = checked(
        cfg,
        Mamba1,
        {},
        {
            "inner_size": _stated_inner(cfg) or inner_size(cfg, "expand"),
            "state_size": cfg.need_int("state_size", "d_state"),
            "conv_kernel": cfg.need_int("conv_kernel", "d_conv"),
            "dt_rank": dt_rank(cfg, "time_step_rank"),
            "bias": cfg.flag("use_bias"),
            "conv_bias": cfg.flag("use_conv_bias", default=True),
        },
    )
    stack = Stack()
    for _ in range(layer_count(cfg)):
        stack.add("mamba", plain_block(mixer))
    return stack.layers()


def _stated_inner(cfg: Config) -> int | None:
    """``intermediate_size``, which is the width of a Mamba layer where a file has it, whatever ``expand`` says.

    Falcon-Mamba-7B has 16 x 4,096 beside 8,192. Source: vLLM 0.33.0 ``model_executor/models/mamba.py``.
    """
    cfg.ignore(("expand",))
    return None if cfg.get("intermediate_size") is None else cfg.need_int("intermediate_size")


def mamba2_model(cfg: Config) -> Layers:
    """Mamba 2 in every layer, no FFN.

    Source: vLLM 0.33.0 ``model_executor/models/mamba2.py``: ``intermediate_size`` sizes the weights and ``expand``
    the state, so that a file with both must agree.
    """
    cfg.ignore((*WITHOUT_EFFECT, "time_step_rank"))
    stated = _stated_inner(cfg)
    inner = stated if stated and "expand" not in cfg else inner_size(cfg, "expand")
    if stated not in (None, inner):
        raise cfg.error(f"intermediate_size {stated:,} is not expand times the hidden size, {inner:,}")
    sizes = mamba_heads(cfg, inner, "num_heads", "head_dim")
    mixer = _mamba2(cfg, "state_size", "n_groups", "conv_kernel", **sizes, **_nemotron_bias(cfg))
    stack = Stack()
    for _ in range(layer_count(cfg)):
        stack.add("mamba", plain_block(mixer))
    return stack.layers()


def _mamba2(cfg: Config, state: str, groups: str, kernel: str, **fields: Any) -> Mamba2:
    """A Mamba-2 mixer with its state size, group count and kernel read from these keys."""
    values = {
        "state_size": cfg.need_int(state),
        "groups": optional(cfg, 1, groups),
        "conv_kernel": cfg.need_int(kernel),
        "chunk_size": cfg.maybe_int("mamba_chunk_size", "chunk_size"),
    }
    mixer: Mamba2 = checked(cfg, Mamba2, {}, values | fields)
    return mixer


def _nemotron_bias(cfg: Config) -> dict[str, bool]:
    return {"bias": cfg.flag("use_bias"), "conv_bias": cfg.flag("use_conv_bias", default=True)}


GRANITE_MAMBA_KEYS = (
    "mamba_expand", "mamba_d_state", "mamba_n_groups", "mamba_d_conv", "mamba_n_heads", "mamba_d_head",
    "mamba_proj_bias", "mamba_conv_bias",
)  # fmt: skip


def _granite_mamba(cfg: Config, inner: int, **fields: Any) -> Mamba2:
    """Mamba 2 under the ``mamba_*`` keys that Bamba, Granite 4 and Falcon-H1 share."""
    return _mamba2(
        cfg,
        "mamba_d_state",
        "mamba_n_groups",
        "mamba_d_conv",
        **mamba_heads(cfg, inner, "mamba_n_heads", "mamba_d_head"),
        bias=cfg.flag("mamba_proj_bias"),
        conv_bias=cfg.flag("mamba_conv_bias", default=True),
        **fields,
    )


def _mixed(
    cfg: Config,
    kinds: list[str],
    mamba: CacheKind | None,
    ffns: Callable[[int], tuple[LayerPart, ...]],
) -> Layers:
    """One mixer a layer, Mamba or full attention, each with the FFN that `ffns(layer)` gives."""
    full = softmax_attention(cfg) if FULL in kinds else None
    stack = Stack()
    for layer, kind in enumerate(kinds):
        parts = ffns(layer)
        mixer = full if kind == FULL else mamba
        assert mixer is not None, "each kind that occurs has a mixer"
        stack.add(("full" if kind == FULL else "mamba") + suffix(parts), plain_block(mixer, parts))
    return stack.layers()


def jamba(cfg: Config) -> Layers:
    """Mamba 1 with attention in one layer of every period, experts in every second layer."""
    cfg.ignore(WITHOUT_EFFECT)
    count = layer_count(cfg)
    kinds = _periodic(cfg, count)
    mamba = _mamba1(cfg, norms=cfg.flag("mamba_inner_layernorms", default=True))
    return _mixed(cfg, kinds, mamba, lambda layer: ffn_for_layer(cfg, layer))


def _mamba1(cfg: Config, *, norms: bool = False) -> CacheKind:
    """Mamba 1 by the names that Jamba and Zamba give its sizes."""
    values = {
        "inner_size": inner_size(cfg, "mamba_expand"),
        "state_size": cfg.need_int("mamba_d_state"),
        "conv_kernel": cfg.need_int("mamba_d_conv"),
        "dt_rank": dt_rank(cfg, "mamba_dt_rank"),
        "bias": cfg.flag("mamba_proj_bias"),
        "conv_bias": cfg.flag("mamba_conv_bias", default=True),
    }
    found: CacheKind = checked(cfg, Mamba1, {"norms": norms}, values)
    return found


def _periodic(cfg: Config, count: int) -> list[str]:
    """Layer ``i`` has attention where ``i % attn_layer_period == attn_layer_offset``."""
    stated = layer_kinds(cfg, count, MAMBA_OR_FULL, "layers_block_type", "layer_types")
    if "attn_layer_period" not in cfg:
        return need_kinds(cfg, stated, "attn_layer_period", "layers_block_type")
    period, offset = cfg.need_int("attn_layer_period"), cfg.maybe_int("attn_layer_offset") or 0
    for name, place, step in (("attn", offset, period), ("expert", *_expert_period(cfg))):
        if not 0 <= place < step:
            raise cfg.error(f"{name}_layer_offset {place} is not below {name}_layer_period {step}")
    rule = [FULL if i % period == offset else LINEAR for i in range(count)]
    return agree(cfg, ("attn_layer_period", rule), ("layers_block_type", stated)) or rule


def _expert_period(cfg: Config) -> tuple[int, int]:
    return cfg.maybe_int("expert_layer_offset") or 0, cfg.maybe_int("expert_layer_period") or 1


def bamba(cfg: Config) -> Layers:
    """Mamba 2 with attention in the listed layers, a dense FFN in each."""
    cfg.ignore((*WITHOUT_EFFECT, "attn_rotary_emb", "partial_rotary_factor", "z_loss_coefficient"))
    count = layer_count(cfg)
    listed = numbered(cfg, "attn_layer_indices", count, 0)
    by_index = None if listed is None else [FULL if i in listed else LINEAR for i in range(count)]
    stated = layer_kinds(cfg, count, MAMBA_OR_FULL, "layers_block_type", "layer_types")
    kinds = agree(cfg, ("attn_layer_indices", by_index), ("layers_block_type", stated)) or [LINEAR] * count
    mamba = _granite_mamba(cfg, inner_size(cfg, "mamba_expand"))
    return _mixed(cfg, kinds, mamba, lambda layer: (dense_ffn(cfg, layer=layer),))


def granite_hybrid(cfg: Config) -> Layers:
    """Mamba 2 or attention by ``layer_types``; experts beside a dense part, or the dense part alone."""
    cfg.ignore(WITHOUT_EFFECT)
    cfg.ignore(("embedding_multiplier", "logits_scaling", "residual_multiplier", "attention_multiplier"))
    cfg.ignore(("position_embedding_type", "init_method", "normalization_function", "router_aux_loss_coef"))
    count = layer_count(cfg)
    kinds = layer_kinds(cfg, count, MAMBA_OR_FULL, "layer_types", "layers_block_type")
    kinds = need_kinds(cfg, kinds, "layer_types")
    cfg.ignore(GRANITE_MAMBA_KEYS)  # a model of attention alone carries them too
    mamba = _granite_mamba(cfg, inner_size(cfg, "mamba_expand")) if LINEAR in kinds else None

    def ffns(layer: int) -> tuple[LayerPart, ...]:
        if expert_count(cfg, layer):
            return (moe_ffn(cfg, layer),)
        cfg.ignore(("num_experts_per_tok", "intermediate_size"))
        return (dense_ffn(cfg, intermediate_size=cfg.need_int("shared_intermediate_size"), bias=False),)

    return _mixed(cfg, kinds, mamba, ffns)


def falcon_h1(cfg: Config) -> Layers:
    """Attention and Mamba 2 side by side in every layer."""
    cfg.ignore(WITHOUT_EFFECT)
    names = ("lm_head", "embedding", "key", "attention_out", "attention_in", "ssm_in", "ssm_out")
    cfg.ignore((*(f"{n}_multiplier" for n in names), "mlp_multipliers", "ssm_multipliers", "mamba_use_mlp"))
    inner = cfg.maybe_int("mamba_d_ssm") or inner_size(cfg, "mamba_expand")
    cfg.ignore(("mamba_expand",))
    mamba = _granite_mamba(cfg, inner, norm=cfg.flag("mamba_rms_norm"), output_bias=cfg.flag("projectors_bias"))
    block = Block(mixers=(softmax_attention(cfg), mamba), ffns=(dense_ffn(cfg),), norms=2)
    stack = Stack()
    for _ in range(layer_count(cfg)):
        stack.add("parallel_dense", block)
    return stack.layers()


NEMOTRON_LETTERS = {"M": "mamba", "*": "attention", "-": "mlp", "E": "moe"}
NEMOTRON_WORDS = {
    "mamba": "mamba", "linear_attention": "mamba", "attention": "attention", "full_attention": "attention",
    "mlp": "mlp", "moe": "moe",
}  # fmt: skip


def nemotron_h(cfg: Config) -> Layers:
    """One part a layer: Mamba 2, attention, a dense FFN or experts; none of the FFNs is gated."""
    cfg.ignore((*WITHOUT_EFFECT, "mamba_proj_bias", "expand", "partial_rotary_factor", "moe_shared_expert_overlap"))
    cfg.ignore(("mlp_hidden_act", "time_step_rank", "hybrid_attention_ratio", "hybrid_mlp_ratio"))
    kinds = _nemotron_kinds(cfg, _stated_count(cfg), "hybrid_override_pattern", "layers_block_type", "layer_types")
    if kinds is None:
        raise cfg.error("neither hybrid_override_pattern nor layers_block_type: the layers are not described")
    stack = Stack()
    for layer, kind in enumerate(kinds):
        stack.add(kind, _nemotron_block(cfg, layer, kind))
    rounds = draft_count(cfg)
    drafted = _nemotron_kinds(cfg, None, "mtp_hybrid_override_pattern", "mtp_layers_block_type")
    if not rounds:
        return stack.layers()
    draft = [stack.name(k, _nemotron_block(cfg, 0, k)) for k in drafted or ("attention", "moe")]
    tensors = mtp_tensors(hidden_size(cfg), 3, rounds)
    return stack.layers(draft_layers=tuple(draft) * rounds, draft_tensors=tensors)


def _stated_count(cfg: Config) -> int | None:
    """``num_hidden_layers``, which the newest files leave to their layer list."""
    return layer_count(cfg) if "num_hidden_layers" in cfg else None


def _nemotron_kinds(cfg: Config, count: int | None, pattern_key: str, *list_keys: str) -> list[str] | None:
    """Layer kinds from a string of letters or a list of words (both: they must agree)."""
    pattern = cfg.get(pattern_key)
    spelled = None
    if pattern is not None:
        if not isinstance(pattern, str):
            raise cfg.error(f"{pattern_key} should be a string, not {printable(repr(pattern), 60)}")
        letters = Config({pattern_key: list(pattern)}, cfg.where)
        spelled = layer_kinds(letters, count, NEMOTRON_LETTERS, pattern_key)
    listed = layer_kinds(cfg, count, NEMOTRON_WORDS, *list_keys)
    return agree(cfg, (pattern_key, spelled), (list_keys[0], listed))


def _nemotron_block(cfg: Config, layer: int, kind: str) -> Block:
    if kind == "mamba":
        sizes = {"heads": cfg.need_int("mamba_num_heads"), "head_dim": cfg.need_int("mamba_head_dim")}
        return plain_block(_mamba2(cfg, "ssm_state_size", "n_groups", "conv_kernel", **sizes, **_nemotron_bias(cfg)))
    if kind == "attention":
        cfg.ignore(("attention_bias",))
        return plain_block(softmax_attention(cfg, qkv_bias=False, output_bias=False))
    if kind == "mlp":
        return Block(ffns=(dense_ffn(cfg, gated=False, layer=layer),), norms=1)
    latent = cfg.maybe_int("moe_latent_size")
    return Block(ffns=(moe_ffn(cfg, layer, gated=False, expert_hidden_size=latent),), norms=1)


def zamba2(cfg: Config) -> Layers:
    """Mamba 2 in every layer; some of them first run one of a few shared attention blocks.

    Every use of a shared block has its own KV cache, a projection of its own and low-rank adapters,
    and the same weights otherwise.
    """
    cfg.ignore((*WITHOUT_EFFECT, "use_conv_bias", "use_mem_rope", "kv_channels"))
    cfg.ignore(("num_query_groups", "ffn_hidden_size", "attention_hidden_size", "lora_rank", "state_size"))
    count, width = layer_count(cfg), hidden_size(cfg)
    listed = numbered(cfg, "hybrid_layer_ids", count, 0)
    by_index = None if listed is None else [FULL if i in listed else LINEAR for i in range(count)]
    codes = {"mamba": LINEAR, "linear_attention": LINEAR, "hybrid": FULL}
    stated = layer_kinds(cfg, count, codes, "layers_block_type", "layer_types")
    kinds = need_kinds(
        cfg, agree(cfg, ("hybrid_layer_ids", by_index), ("layers_block_type", stated)), "hybrid_layer_ids"
    )
    sizes = mamba_heads(cfg, inner_size(cfg, "mamba_expand"), "n_mamba_heads", "mamba_headdim")
    bias = cfg.flag("add_bias_linear")
    mamba = _mamba2(cfg, "mamba_d_state", "mamba_ngroups", "mamba_d_conv", **sizes, bias=bias)
    attention, ffn = _zamba_shared(cfg, width, bias)
    own = _zamba_adapters(cfg, width, optional(cfg, 4 * width, "intermediate_size"))
    copies = optional(cfg, 1, "num_mem_blocks")
    both = Block(
        mixers=(mamba, attention), ffns=(ffn,), norms=4, tensors=own, shared_mixers=1, shared_ffns=1, shared_norms=3
    )
    stack = Stack()
    used = 0
    for kind in kinds:
        if kind == FULL:
            label = f"hybrid_{used % copies + 1}"
            stack.blocks[label] = both
            stack.order.append(label)
            used += 1
        else:
            stack.add("mamba", plain_block(mamba, (), ()))
    notes = [f"{used} uses of {min(copies, used)} attention blocks whose weights are shared"]
    if cfg.flag("use_long_context"):
        notes.append("use_long_context: the model runs to 16,384 tokens, whatever max_position_embeddings says")
    return stack.layers(notes=notes)


def zamba(cfg: Config) -> Layers:
    """Mamba 1 in every layer; some of them first run the one shared attention block, which caches at every use."""
    cfg.ignore((*WITHOUT_EFFECT, "attention_hidden_size", "attn_layer_period", "attn_layer_offset"))
    cfg.ignore(("n_mamba_heads", "hidden_mamba_act"))
    count, width = layer_count(cfg), hidden_size(cfg)
    codes = {"mamba": LINEAR, "linear_attention": LINEAR, "hybrid": FULL}
    kinds = need_kinds(cfg, layer_kinds(cfg, count, codes, "layers_block_type", "layer_types"), "layers_block_type")
    mamba = _mamba1(cfg)
    attention, ffn = _zamba_shared(cfg, width, bias=False)
    own = (ExtraTensor(name="shared_linear", shape=(width, width)),)
    both = Block(
        mixers=(mamba, attention), ffns=(ffn,), norms=4, tensors=own, shared_mixers=1, shared_ffns=1, shared_norms=3
    )
    stack = Stack()
    for kind in kinds:
        stack.add("hybrid" if kind == FULL else "mamba", both if kind == FULL else plain_block(mamba, (), ()))
    return stack.layers(notes=[f"{kinds.count(FULL)} uses of an attention block whose weights are shared"])


def _zamba_shared(cfg: Config, width: int, bias: bool) -> tuple[CacheKind, LayerPart]:
    """A shared block: it reads the hidden state and the embeddings side by side, twice the width."""
    heads = query_heads(cfg)
    if "attention_head_dim" not in cfg and 2 * width % heads:
        raise cfg.error(f"no attention_head_dim, and {heads} heads do not divide {2 * width}")
    dim = optional(cfg, 2 * width // heads, "attention_head_dim")
    attention = softmax_attention(
        cfg, head_dim=dim, kv_heads=kv_heads(cfg), input_size=2 * width,
        qkv_bias=False, output_bias=False,
    )  # fmt: skip
    ffn = dense_ffn(cfg, intermediate_size=optional(cfg, 4 * width, "intermediate_size"), bias=bias)
    return attention, ffn


def _zamba_adapters(cfg: Config, width: int, intermediate_size: int) -> tuple[ExtraTensor, ...]:
    """What each use of a shared block has for itself."""
    rank = optional(cfg, 128, "adapter_rank")
    found = [
        ExtraTensor(name="shared_linear", shape=(width, width)),
        ExtraTensor(name="ffn_adapter_a", shape=(rank, width), role="dense_ffn"),
        ExtraTensor(name="ffn_adapter_b", shape=(2 * intermediate_size, rank), role="dense_ffn"),
    ]
    if cfg.flag("use_shared_attention_adapter"):
        found.append(ExtraTensor(name="attn_adapter_a", shape=(rank, 2 * width), count=3))
        found.append(ExtraTensor(name="attn_adapter_b", shape=(2 * width, rank), count=3))
    return tuple(found)

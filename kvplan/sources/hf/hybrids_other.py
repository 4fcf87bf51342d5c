"""Other recurrent families: RWKV 5 to 7, RecurrentGemma, LFM2, PLaMo 2, xLSTM.

Sources: transformers 5.24.0 ``models/{recurrent_gemma,lfm2,lfm2_moe,xlstm}``; RWKV-LM (the training code of
RWKV 5, 6 and 7, from which the default low ranks come); for PLaMo 2 the ``modeling_plamo.py`` beside
its weights and vLLM's ``model_executor/models/plamo2.py``.
"""

from __future__ import annotations

import math

from kvplan.cache.mamba import Mamba1
from kvplan.cache.mlstm import Mlstm
from kvplan.cache.rg_lru import RgLru
from kvplan.cache.rwkv import Rwkv
from kvplan.cache.short_conv import ShortConv
from kvplan.sources.hf.attention import checked, hidden_size, query_heads, softmax_attention
from kvplan.sources.hf.ffn import dense_ffn, ffn_for_layer
from kvplan.sources.hf.hybrids_common import (
    FULL,
    LINEAR,
    Stack,
    agree,
    factor_of,
    layer_count,
    layer_kinds,
    need_kinds,
    numbered,
    optional,
    plain_block,
    suffix,
)
from kvplan.sources.hf.keys import Config, Layers
from kvplan.spec.kind import CacheKind
from kvplan.spec.model import Block, ExtraTensor


def rwkv5(cfg: Config) -> Layers:
    """RWKV 5 (Eagle)."""
    return _rwkv(cfg, 5)


def rwkv6(cfg: Config) -> Layers:
    """RWKV 6 (Finch)."""
    return _rwkv(cfg, 6)


def rwkv7(cfg: Config) -> Layers:
    """RWKV 7 (Goose)."""
    return _rwkv(cfg, 7)


def _rwkv(cfg: Config, version: int) -> Layers:
    """Time mixing and channel mixing in every layer; the first layer has a norm more."""
    cfg.ignore(("rescale_every", "norm_first", "norm_bias", "fuse_norm", "fuse_cross_entropy", "layer_norm_epsilon"))
    cfg.ignore(("head_size_divisor", "model_version", "attn_mode", "value_dim", "use_l2warp"))
    if cfg.get("attn") is not None:
        raise cfg.error("attn: RWKV with attention layers among its own is not understood", hint="write a model spec")
    width = hidden_size(cfg)
    mixing = optional(cfg, width, "attention_hidden_size", "dim_att")
    dim = cfg.need_int("head_dim", "head_size", "head_size_a")
    stated_heads = cfg.maybe_int("num_heads")
    if mixing % dim or (stated_heads is not None and stated_heads * dim != mixing):
        raise cfg.error(f"heads of {dim} do not make up the attention width {mixing}")
    low_rank, notes = _rwkv_ranks(cfg, width, version)
    values = {"heads": mixing // dim, "head_dim": dim, "hidden_size": width, "version": version, "low_rank": low_rank}
    mixer = checked(cfg, Rwkv, {}, values)
    ffn = dense_ffn(cfg, intermediate_size=_rwkv_ffn_size(cfg, width, version), gated=False, bias=False)
    block = Block(mixers=(mixer,), ffns=(ffn,), norms=4, tensors=_channel_mixing(width, version))
    stack = Stack()
    for _ in range(layer_count(cfg)):
        stack.add(f"rwkv{version}", block)
    first = ExtraTensor(name="token_embd_norm", shape=(2, width), role="norm")
    return stack.layers(tensors=(first,), final_norms=2, notes=notes)


def _channel_mixing(width: int, version: int) -> tuple[ExtraTensor, ...]:
    """Channel mixing beside its two FFN matrices: mixing vectors, and a receptance before version 7."""
    if version == 7:
        return (ExtraTensor(name="channel_mix_vectors", shape=(1, width), role="norm"),)
    return (
        ExtraTensor(name="channel_mix_vectors", shape=(2, width), role="norm"),
        ExtraTensor(name="channel_mix_receptance", shape=(width, width), role="dense_ffn"),
    )


def _rwkv_ffn_size(cfg: Config, width: int, version: int) -> int:
    """3.5 times the width (4 times in version 7), down to a multiple of 32, where the file is silent."""
    if cfg.get("hidden_ratio") not in (None, 4):
        return cfg.need_int("intermediate_size")
    usual = 4 * width if version == 7 else width * 7 // 2 // 32 * 32
    return optional(cfg, usual, "intermediate_size", "dim_ffn")


RWKV7_RANKS = {
    "decay_low_rank_dim": (1.8, 0.5),
    "a_low_rank_dim": (1.8, 0.5),
    "v_low_rank_dim": (1.3, 0.5),
    "gate_low_rank_dim": (0.6, 0.8),
}
"""Ranks that RWKV-LM trained version 7 with: ``factor x width ** power``, rounded to a multiple of 32."""


def _rwkv_ranks(cfg: Config, width: int, version: int) -> tuple[int, list[str]]:
    """Total rank of the small projections, and a note where it is RWKV-LM's rule and not the file's."""
    if version == 5:
        return 0, []
    if version == 6:
        large = width >= 4096
        mixing = optional(cfg, 64 if large else 32, "time_mix_extra_dim", "proj_low_rank_dim")
        decay = optional(cfg, 128 if large else 64, "time_decay_extra_dim", "gate_low_rank_dim")
        return 5 * mixing + decay, []
    total, assumed = 0, []
    for key, (factor, power) in RWKV7_RANKS.items():
        if key not in cfg:
            assumed.append(key)
        total += optional(cfg, max(32, math.floor(factor * width**power / 32 + 0.5) * 32), key)
    note = f"{', '.join(assumed)} not in the file: RWKV-LM's rule for this width"
    return total, [note] if assumed else []


def recurrent_gemma(cfg: Config) -> Layers:
    """Gated linear recurrences with local attention, in a cycle of block types."""
    cfg.ignore(("logits_soft_cap", "w_init_variance_scale", "final_w_init_variance_scale", "partial_rotary_factor"))
    cfg.ignore(("hidden_activation", "embeddings_scale_by_sqrt_dim"))
    count, width = layer_count(cfg), hidden_size(cfg)
    codes = {"recurrent": LINEAR, "linear_attention": LINEAR, "attention": FULL, "sliding_attention": FULL}
    stated = layer_kinds(cfg, count, codes, "layers_block_type", "layer_types")
    cycle = layer_kinds(cfg, None, codes, "block_types", "_block_types")
    by_cycle = None if cycle is None else [cycle[i % len(cycle)] for i in range(count)]
    kinds = agree(cfg, ("block_types", by_cycle), ("layers_block_type", stated))
    kinds = need_kinds(cfg, kinds, "block_types", "layers_block_type")
    values = {
        "width": optional(cfg, width, "lru_width"),
        "heads": query_heads(cfg),
        "conv_kernel": cfg.need_int("conv1d_width"),
    }
    recurrent = checked(cfg, RgLru, {}, values)
    window = cfg.need_int("attention_window_size", "sliding_window")
    local = softmax_attention(cfg, window=window, qkv_bias=cfg.flag("attention_bias"), output_bias=True)
    size = cfg.need_int("intermediate_size")
    if size % 2:
        raise cfg.error(f"intermediate_size ({size}) is the gate and up width together and should be even")
    ffns = (dense_ffn(cfg, intermediate_size=size // 2, bias=True),)
    stack = Stack()
    for kind in kinds:
        block = plain_block(local if kind == FULL else recurrent, ffns)
        stack.add(("sliding" if kind == FULL else "recurrent") + suffix(ffns), block)
    return stack.layers()


def lfm2(cfg: Config) -> Layers:
    """Gated short convolutions with full attention in some layers; dense, or experts after the first few."""
    cfg.ignore(("use_expert_bias", "norm_eps", "block_norm_eps", "block_use_swiglu", "block_use_xavier_init"))
    cfg.ignore(("block_dim", "block_mlp_init_scale", "block_out_init_scale", "conv_dim", "conv_dim_out"))
    cfg.ignore(("conv_use_xavier_init", "use_pos_enc", "num_heads", "theta"))
    count, width = layer_count(cfg), hidden_size(cfg)
    codes = {"conv": LINEAR, "short_conv": LINEAR, "full_attention": FULL}
    listed = numbered(cfg, "full_attn_idxs", count, 0)
    by_index = None if listed is None else [FULL if i in listed else LINEAR for i in range(count)]
    stated = layer_kinds(cfg, count, codes, "layer_types")
    kinds = agree(cfg, ("full_attn_idxs", by_index), ("layer_types", stated))
    kinds = need_kinds(cfg, kinds, "layer_types", "full_attn_idxs")
    values = {"channels": width, "conv_kernel": cfg.need_int("conv_L_cache"), "bias": cfg.flag("conv_bias")}
    conv: CacheKind = checked(cfg, ShortConv, {}, values)
    full = softmax_attention(cfg, qk_norm="head", qkv_bias=False, output_bias=False)
    experts = "num_experts" in cfg
    dense = None if experts else (dense_ffn(cfg, intermediate_size=_lfm2_ffn_size(cfg), bias=False),)
    stack = Stack()
    for layer, kind in enumerate(kinds):
        ffns = dense or ffn_for_layer(cfg, layer, bias=False)
        block = plain_block(full if kind == FULL else conv, ffns)
        stack.add(("full" if kind == FULL else "conv") + suffix(ffns), block)
    return stack.layers()


def _lfm2_ffn_size(cfg: Config) -> int:
    """The dense FFN's width: two thirds of the stated size, scaled and rounded up, unless told not to."""
    size = cfg.need_int("block_ff_dim", "intermediate_size")
    factor, multiple = factor_of(cfg, 1, "block_ffn_dim_multiplier"), optional(cfg, 256, "block_multiple_of")
    if not cfg.flag("block_auto_adjust_ff_dim", default=True):
        return size
    size = 2 * size // 3
    return -(-int(factor * size) // multiple) * multiple


def plamo2(cfg: Config) -> Layers:
    """Mamba with attention in every `mamba_step`-th layer, windowed but for the listed full layers.

    Its Mamba has the inner width and convolution of Mamba 1 and one decay a head, as Mamba 2.
    """
    cfg.ignore(("mamba_chunk_size", "eval_attention_n_bit", "eval_mlp_n_bit", "use_mamba_kernels"))
    count, width = layer_count(cfg), hidden_size(cfg)
    dim = cfg.need_int("hidden_size_per_head")
    step = optional(cfg, 2, "mamba_step")
    if step < 2:
        raise cfg.error(f"mamba_step must be at least 2, not {step}")
    place = count - 1 if count <= step // 2 else step // 2
    recurrent = cfg.flag("mamba_enabled", default=True)
    unwindowed = numbered(cfg, "full_attention_idx", count, 0) or set()
    mamba = None
    if recurrent:
        heads = cfg.need_int("mamba_num_heads")
        values = {
            "inner_size": heads * dim,
            "state_size": cfg.need_int("mamba_d_state"),
            "conv_kernel": cfg.need_int("mamba_d_conv"),
            "dt_rank": max(64, width // 16),
            "decay_heads": heads,
            "norms": True,
            "conv_bias": False,
        }
        mamba = checked(cfg, Mamba1, {}, values)
    window = cfg.need_int("attention_window_size")
    stack = Stack()
    for layer in range(count):
        ffns = (dense_ffn(cfg, layer=layer, bias=False),)
        if mamba is not None and layer % step != place:
            name, mixer = "mamba", mamba
        else:
            full = layer in unwindowed
            name = "full" if full else "sliding"
            mixer = softmax_attention(cfg, head_dim=dim, window=None if full else window, qk_norm="heads")
        stack.add(name + suffix(ffns), Block(mixers=(mixer,), ffns=ffns, norms=4))
    return stack.layers()


def xlstm(cfg: Config) -> Layers:
    """xLSTM: matrix memories alone, each before a gated FFN; sizes are shares of the width, rounded up.

    Files of the first release name width and layers `embedding_dim` and `num_blocks`.
    """
    cfg.ignore(("gate_soft_cap", "output_logit_soft_cap", "weight_mode", "mode", "chunk_size", "return_last_states"))
    cfg.ignore(("chunkwise_kernel", "sequence_kernel", "step_kernel", "autocast_kernel_dtype", "inference_state_dtype"))
    cfg.ignore(("norm_reduction_force_float32", "max_inference_chunksize", "eps", "cell_norm_eps", "head_dim"))
    if cfg.flag("use_bias"):
        raise cfg.error("use_bias: biases in every matrix of xLSTM are not understood", hint="write a model spec")
    width, heads, sizes = hidden_size(cfg), cfg.need_int("num_heads"), {}
    for part, share in (("qk", 0.5), ("v", 1.0)):
        size = _rounded(width * factor_of(cfg, share, f"{part}_dim_factor"), 64)
        if size % heads:
            raise cfg.error(f"num_heads ({heads}) do not divide the {part} width ({size})")
        sizes[f"{part}_head_dim"] = size // heads
    mixer = checked(cfg, Mlstm, {}, {"heads": heads, **sizes})
    multiple = optional(cfg, 64, "ffn_round_up_to_multiple_of")
    wide = _rounded(width * factor_of(cfg, 2.667, "ffn_proj_factor"), multiple)
    ffns = (dense_ffn(cfg, intermediate_size=wide, bias=False),)
    stack = Stack()
    for _ in range(layer_count(cfg)):
        stack.add("mlstm", plain_block(mixer, ffns))
    return stack.layers()


def _rounded(size: float, multiple: int) -> int:
    """Up to the next multiple, fractions as xLSTM's own code takes them: 64.5 stays 64."""
    return int((size + multiple - 1) // multiple) * multiple

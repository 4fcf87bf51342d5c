"""Families whose layers differ from one another in ways of their own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kvplan.cache.none import NoCache
from kvplan.sources.hf.attention import head_dim, hidden_size, kv_heads, query_heads, softmax_attention
from kvplan.sources.hf.ffn import dense_ffn, ffn_for_layer, is_moe_layer, moe_ffn
from kvplan.sources.hf.keys import Config, Layers
from kvplan.sources.hf.layout import Layer, layer_count, layer_windows, stack
from kvplan.sources.hf.plain import drafts
from kvplan.spec.kind import CacheKind, LayerPart
from kvplan.spec.model import Block


def nemotron_nas(cfg: Config) -> Layers:
    """Llama-Nemotron by architecture search: each layer has its own KV heads, FFN width, or nothing.

    ``ffn_mult`` is scaled by 2/3 of four times the hidden size and rounded up to 256. Source: vLLM 0.33.0
    ``vllm/model_executor/models/nemotron_nas.py``.
    """
    blocks = cfg.maybe_list("block_configs")
    if not blocks:
        raise cfg.error("no block_configs")
    layers = []
    for number, entry in enumerate(blocks):
        if not isinstance(entry, dict):
            raise cfg.error(f"block_configs[{number}] should be an object")
        part = Config(entry, cfg.where)
        attention, ffn = part.child("attention"), part.child("ffn")
        if attention is None or ffn is None:
            raise cfg.error(f"block_configs[{number}] has no attention or no ffn")
        mixers, ffns = _nas_mixers(cfg, attention), _nas_ffns(cfg, ffn)
        norms = len(mixers) + len(ffns)
        layers.append(Layer(Block(mixers=mixers, ffns=ffns, norms=norms), _nas_word(mixers), _nas_ffn_word(ffns)))
    cfg.ignore(("num_hidden_layers",))
    return stack(layers)


def _nas_mixers(cfg: Config, part: Config) -> tuple[CacheKind, ...]:
    if part.flag("no_op"):
        return ()
    if part.flag("replace_with_linear"):
        return (NoCache(linear=True),)
    group = part.need_int("n_heads_in_group")
    if query_heads(cfg) % group:
        raise cfg.error(f"n_heads_in_group ({group}) does not divide {query_heads(cfg)} heads")
    window = part.maybe_int("window_length")
    return (softmax_attention(cfg, window=window, kv_heads=query_heads(cfg) // group),)


def _nas_ffns(cfg: Config, part: Config) -> tuple[LayerPart, ...]:
    if part.flag("no_op"):
        return ()
    width = hidden_size(cfg)
    if part.flag("replace_with_linear"):
        return (dense_ffn(cfg, intermediate_size=width // 2, gated=False),)
    mult = part.get("ffn_mult")
    size = part.maybe_int("intermediate_size")
    if size is None:
        if isinstance(mult, bool) or not isinstance(mult, int | float):
            raise cfg.error("block_configs: an ffn without ffn_mult")
        size = -(-int(2 * mult * width / 3) // 256) * 256
    return (dense_ffn(cfg, intermediate_size=size),)


def _nas_word(mixers: tuple[CacheKind, ...]) -> str:
    if not mixers:
        return "none"
    return "linear" if isinstance(mixers[0], NoCache) else "attention"


def _nas_ffn_word(ffns: tuple[LayerPart, ...]) -> str:
    return f"ffn{getattr(ffns[0], 'intermediate_size', 0)}" if ffns else "bare"


def arctic(cfg: Config) -> Layers:
    """Arctic: a dense FFN of hidden width runs beside the experts in every mixture layer.

    Source: vLLM 0.33.0 ``vllm/model_executor/models/arctic.py``.
    """
    mixer = softmax_attention(cfg)
    beside = cfg.flag("parallel_attn_mlp_res")
    layers = []
    for i in range(layer_count(cfg)):
        if is_moe_layer(cfg, i):
            ffns: tuple[LayerPart, ...] = (moe_ffn(cfg, i),)
            if beside:
                ffns += (dense_ffn(cfg, intermediate_size=hidden_size(cfg)),)
            layers.append(Layer(Block(mixers=(mixer,), ffns=ffns, norms=3 if beside else 2), "", "moe"))
        else:
            layers.append(Layer(Block(mixers=(mixer,), ffns=(dense_ffn(cfg),)), "", "dense"))
    return stack(layers)


def grok(cfg: Config) -> Layers:
    """Grok: four norms a layer; the second adds a dense FFN beside the experts.

    Source: vLLM 0.33.0 ``vllm/model_executor/models/grok1.py``.
    """
    mix = moe_ffn(cfg)
    ffns: tuple[LayerPart, ...] = (mix, dense_ffn(cfg)) if cfg.flag("residual_moe") else (mix,)
    block = Block(mixers=(softmax_attention(cfg),), ffns=ffns, norms=4)
    return stack([Layer(block)] * layer_count(cfg))


def step3(cfg: Config) -> Layers:
    """Step-3: one KV head; queries go through a narrower, shared projection.

    Source: vLLM 0.33.0 ``vllm/model_executor/models/step3_text.py``.
    """
    mixer = softmax_attention(cfg, q_lora_rank=cfg.maybe_int("share_q_dim"))
    layers = []
    for i in range(layer_count(cfg)):
        block = Block(mixers=(mixer,), ffns=ffn_for_layer(cfg, i))
        layers.append(Layer(block, "", "moe" if is_moe_layer(cfg, i) else "dense"))
    return stack(layers)


def step3p5(cfg: Config) -> Layers:
    """Step-3.5 and 3.7: sliding layers have more query heads; a gate per head.

    Without ``layer_types`` no layer slides. Source: transformers 5.24.0 ``models/step3p7/modeling_step3p7.py`` and
    its configuration.
    """
    other = cfg.child("attention_other_setting")
    sliding_heads = other.maybe_int("num_attention_heads") if other is not None else None
    sliding_heads = (
        cfg.maybe_int("num_sliding_attention_heads") or sliding_heads or cfg.maybe_int("swa_num_attention_heads")
    )
    layers = []
    for i, window in enumerate(layer_windows(cfg, lambda i: False)):
        heads = None if window is None else sliding_heads
        mixer = softmax_attention(cfg, window=window, query_heads=heads, qk_norm="head", gate_per_head=True)
        block = Block(mixers=(mixer,), ffns=ffn_for_layer(cfg, i))
        layers.append(Layer(block, "global" if window is None else "local", "moe" if is_moe_layer(cfg, i) else "dense"))
    return stack(layers, **drafts(cfg, layers))


def mimo_v2(cfg: Config) -> Layers:
    """MiMo-V2: K and V of different head size; sliding layers have heads of their own, and sinks.

    Source: transformers 5.24.0 ``models/mimo_v2_flash/modeling_mimo_v2_flash.py``.
    """
    cfg.ignore(("attention_chunk_size", "add_full_attention_sink_bias", "add_swa_attention_sink_bias"))
    pattern = cfg.maybe_list("hybrid_layer_pattern")
    size, count = _mimo_window(cfg), layer_count(cfg)
    if all(key not in cfg for key in ("mlp_layer_types", "moe_layer_freq", "first_k_dense_replace")):
        cfg.data = {**cfg.data, "mlp_layer_types": ["dense"] + ["sparse"] * (count - 1)}
    windows: list[int | None]
    if pattern is not None:
        if len(pattern) < count:
            raise cfg.error(f"hybrid_layer_pattern has {len(pattern)} entries for {count} layers")
        windows = [size if entry else None for entry in pattern[:count]]
    else:
        windows = layer_windows(cfg, lambda i: i > 0 and (i + 1) % 6 != 0)
    layers = []
    for i, window in enumerate(windows):
        fields: dict[str, Any] = {"head_dim_v": cfg.maybe_int("v_head_dim"), "output_bias": False}
        if window is not None:
            fields = {
                "query_heads": cfg.maybe_int("swa_num_attention_heads"),
                "kv_heads": cfg.maybe_int("swa_num_key_value_heads") or 2 * kv_heads(cfg),
                "head_dim": cfg.maybe_int("swa_head_dim"), "head_dim_v": cfg.maybe_int("swa_v_head_dim", "v_head_dim"),
                "sinks": True, "output_bias": False,
            }  # fmt: skip
        block = Block(mixers=(softmax_attention(cfg, window=window, **fields),), ffns=ffn_for_layer(cfg, i))
        layers.append(Layer(block, "global" if window is None else "local", "moe" if is_moe_layer(cfg, i) else "dense"))
    return stack(layers, **drafts(cfg, layers))


def _mimo_window(cfg: Config) -> int:
    """The window, which published files give twice: transformers reads one key, vLLM the other."""
    size, again = cfg.need_int("sliding_window", "sliding_window_size"), cfg.maybe_int("sliding_window_size")
    if again not in (None, size):
        raise cfg.error(f"sliding_window is {size} and sliding_window_size {again}", hint="leave out the wrong one")
    return size


def minimax_m3(cfg: Config) -> Layers:
    """MiniMax-M3: grouped attention whose sparse layers also store one index key a token.

    Source: transformers 5.24.0 ``models/minimax_m3_vl/modeling_minimax_m3_vl.py``: one index key head,
    ``index_n_heads`` index queries (one per KV head).
    """
    nested = cfg.child("sparse_attention_config") or cfg
    cfg.ignore(("use_qk_norm", "qk_norm_type", "dense_intermediate_size", "rotary_dim"))
    cfg.ignore(("index_local_blocks", "index_head_dim", "index_n_heads"))  # the class's, where an object has its own
    count = layer_count(cfg)
    kinds = cfg.maybe_list("layer_types", length=count)
    listed = nested.maybe_list("sparse_attention_freq", length=count)
    sparse = [kind != "full_attention" for kind in kinds] if kinds else [bool(entry) for entry in listed or [0] * count]
    index: dict[str, Any] = {
        "index_head_dim": nested.maybe_int("sparse_index_dim", "index_head_dim") or head_dim(cfg),
        "index_heads": nested.maybe_int("sparse_num_index_heads", "index_n_heads") or 1,
    }
    blocks = nested.maybe_int("sparse_topk_blocks", "index_topk_blocks")
    size = nested.maybe_int("sparse_block_size", "index_block_size")
    if blocks and size:
        index["index_topk"] = blocks * size
    layers = []
    for i in range(count):
        mixer = softmax_attention(cfg, qk_norm="head", **(index if sparse[i] else {}))
        block = Block(mixers=(mixer,), ffns=ffn_for_layer(cfg, i))
        layers.append(Layer(block, "sparse" if sparse[i] else "full", "moe" if is_moe_layer(cfg, i) else "dense"))
    return stack(layers, **drafts(cfg, layers))


def muse(cfg: Config) -> Layers:
    """Muse Glimmer: sandwich norms and a full-width gate on the attention output.

    Source: transformers 5.24.0 ``models/muse_glimmer/modeling_muse_glimmer.py`` (q/k norms without weights).
    """
    last = layer_count(cfg) - 1  # every fourth layer, counted from there, is global
    layers = []
    for i, window in enumerate(layer_windows(cfg, lambda i: (last - i) % 4 != 0)):
        mixer = softmax_attention(cfg, window=window, output_gate=True)
        block = Block(mixers=(mixer,), ffns=ffn_for_layer(cfg, i), norms=4)
        layers.append(Layer(block, "global" if window is None else "local"))
    return stack(layers)


def llama4(cfg: Config) -> Layers:
    """Llama 4: layers with rotary positions look back within a chunk, every fourth sees everything.

    Source: transformers 5.24.0 ``models/llama4/configuration_llama4.py`` (``no_rope_layers``: 1 means rotary).
    """
    count = layer_count(cfg)
    chunk = cfg.maybe_int("attention_chunk_size")
    cfg.ignore(("use_qk_norm", "intermediate_size_mlp", "attn_scale", "floor_scale", "attn_temperature_tuning"))
    rotary = _rotary_layers(cfg, count)
    listed = cfg.maybe_list("moe_layers")
    layers = []
    for i in range(count):
        window = chunk if rotary[i] else None
        mixer = softmax_attention(cfg, window=window, chunked=window is not None)
        moe = i in listed if listed is not None else is_moe_layer(cfg, i)
        if moe:
            ffn: Any = moe_ffn(cfg, i, shared_intermediate_size=cfg.need_int("intermediate_size"))
        else:
            ffn = dense_ffn(cfg)
        layers.append(
            Layer(Block(mixers=(mixer,), ffns=(ffn,)), "chunked" if window else "global", "moe" if moe else "dense")
        )
    return stack(layers)


def _rotary_layers(cfg: Config, count: int) -> list[bool]:
    kinds = cfg.maybe_list("layer_types", length=count)
    if kinds is not None:
        return [k == "chunked_attention" for k in kinds]
    listed = cfg.maybe_list("no_rope_layers")
    every = cfg.maybe_int("no_rope_layer_interval") or 4
    if listed:
        return [bool(listed[i]) for i in range(count)] if len(listed) >= count else [True] * count
    return [(i + 1) % every != 0 for i in range(count)]


SPECIAL: dict[str, Callable[[Config], Layers]] = {
    **dict.fromkeys(("llama4", "llama4_text"), llama4),
    **dict.fromkeys(("nemotron-nas", "deci"), nemotron_nas),
    "arctic": arctic,
    **dict.fromkeys(("grok-1", "grok-2"), grok),
    **dict.fromkeys(("step3_text", "step3_vl"), step3),
    **dict.fromkeys(("step3p5", "step3p7"), step3p5),
    **dict.fromkeys(("mimo_v2_flash", "mimo_v2"), mimo_v2),
    **dict.fromkeys(("minimax_m3", "minimax_m3_vl_text", "minimax_m3_text"), minimax_m3),
    **dict.fromkeys(("muse_glimmer", "muse_glimmer_text"), muse),
}

ARCHITECTURES: dict[str, Callable[[Config], Layers]] = {
    "Grok1ForCausalLM": grok, "Grok1ModelForCausalLM": grok,
}  # fmt: skip
"""Architectures that decide alone, because their files name another family (or none) as ``model_type``."""

FAMILY_OF = {"DeepseekV4ForCausalLM": "deepseek_v4", "MiniMaxM3SparseForCausalLM": "minimax_m3_vl_text"}
"""Families by architecture, for files that name none as ``model_type``, or one that nobody knows."""

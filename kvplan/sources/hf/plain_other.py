"""Decoders of softmax attention whose layers need more than a row of traits, each outside the catalog.

transformers 5.24.0 ``models/<family>/modeling_<family>.py`` and ``configuration_<family>.py`` are the source
of every reader.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from kvplan.sources.hf.attention import head_dim, hidden_size, kv_heads, query_heads, softmax_attention
from kvplan.sources.hf.ffn import dense_ffn, expert_count, moe_ffn
from kvplan.sources.hf.keys import Config, Layers
from kvplan.sources.hf.layout import MAX_LAYERS, Layer, layer_count, layer_windows, stack
from kvplan.sources.hf.plain import PLAIN, Traits, plain, read_plain
from kvplan.spec.model import Block, ExtraTensor


def beam(cfg: Config) -> Layers:
    """Beam: four norms, a full-width gate with a bias per head; every sixth layer and the last are global.

    Without ``mlp_layer_types`` the first three layers are dense.
    """
    last = layer_count(cfg) - 1
    if cfg.get("mlp_layer_types", "first_k_dense_replace") is None:
        cfg.data = {**cfg.data, "first_k_dense_replace": 3}
    row = Traits(
        norms=4, qk_norm="head", attention={"output_gate": True}, scalars=query_heads(cfg),
        slides=lambda i: (i + 1) % 6 != 0 and i != last,
    )  # fmt: skip
    return read_plain(cfg, row)


def modernbert_decoder(cfg: Config) -> Layers:
    """ModernBERT as a decoder: windows of half of ``local_attention``, no norm before the first attention."""
    every, bias = cfg.maybe_int("global_attn_every_n_layers") or 3, cfg.flag("norm_bias")
    if every < 1:
        raise cfg.error(f"global_attn_every_n_layers must be above 0, not {every}")
    local, each = cfg.maybe_int("local_attention"), 1 + bias
    cfg.data = {**cfg.data, "sliding_window": (local or 0) // 2 or None}
    row = Traits(norms=2 * each, final_norms=3 * each, head_bias="decoder_bias=true", slides=lambda i: i % every != 0)
    found = read_plain(cfg, row)
    start = found.blocks[found.layers[0]]
    found.blocks = {**found.blocks, "first": replace(start, norms=each)}
    found.layers = ("first", *found.layers[1:])
    found.blocks = {name: block for name, block in found.blocks.items() if name in found.layers}
    width = hidden_size(cfg)
    found.tensors += (ExtraTensor(name="head_dense", shape=(width, width), role="head"),)
    return found


def cpmant(cfg: Config) -> Layers:
    """CPM-Ant: a position bias per head, tables of segments and prompts; as long as its positions reach.

    The head is a matrix of its own, whatever the file says of ties: the embedding has rows for prompts too. Source:
    transformers 5.24.0 ``models/cpmant/modeling_cpmant.py``, ``CpmAntForCausalLM``.
    """
    width, heads = hidden_size(cfg), query_heads(cfg)
    mixer = softmax_attention(cfg, head_dim=cfg.need_int("dim_head"), kv_heads=heads, qkv_bias=False, output_bias=False)
    block = Block(mixers=(mixer,), ffns=(dense_ffn(cfg, intermediate_size=cfg.need_int("dim_ff"), bias=False),))
    segments = cfg.need_int("segment_types")
    rows = segments + cfg.need_int("prompt_types") * cfg.need_int("prompt_length")
    buckets = segments * segments + cfg.need_int("position_bias_num_buckets")
    longest = cfg.need_int("position_bias_max_distance")
    cfg.data = {"max_position_embeddings": longest, **cfg.data, "tie_word_embeddings": False}
    tensors = (
        ExtraTensor(name="segment_and_prompt_embd", shape=(rows, width), role="embedding"),
        ExtraTensor(name="position_bias", shape=(buckets, heads), role="attention"),
    )
    return stack([Layer(block)] * layer_count(cfg), tensors=tensors)


def doge(cfg: Config) -> Layers:
    """Doge: a mask computed from V hides entries and drops none; experts of one vector each, where they are on."""
    width, heads, size = hidden_size(cfg), kv_heads(cfg), head_dim(cfg)
    cfg.ignore(("keep_window_size",))
    mixture, experts = cfg.flag("is_moe"), expert_count(cfg)
    cfg.ignore(("num_experts_per_tok",))
    if mixture and experts < 1:
        raise cfg.error(f"num_experts must be above 0, not {experts}")
    mask = [ExtraTensor(name="dynamic_mask", shape=(heads, heads * size + 1), role="attention")]
    if mixture:
        keys = int(experts**0.5)
        mask += [
            ExtraTensor(name="expert_vectors", shape=(2 * experts, width), role="routed_experts"),
            ExtraTensor(name="expert_keys", shape=(2 * keys, width), role="router"),
        ]
    layers = []
    for window in layer_windows(cfg):
        mixer = softmax_attention(cfg, window=window, qk_norm="head")
        block = Block(mixers=(mixer,), ffns=(dense_ffn(cfg),), norms=4, tensors=tuple(mask))
        layers.append(Layer(block, "global" if window is None else "local"))
    return stack(layers)


def jetmoe(cfg: Config) -> Layers:
    """JetMoE: experts for the queries and the output, of which each token has some; one K and V for all of them.

    arXiv 2404.07413, section 2.2.
    """
    width, heads, size = hidden_size(cfg), cfg.need_int("num_key_value_heads"), cfg.need_int("kv_channels", "head_dim")
    chosen, experts = cfg.need_int("num_experts_per_tok"), expert_count(cfg) or cfg.need_int("num_local_experts")
    cfg.ignore(("num_attention_heads",))
    if chosen > experts:
        raise cfg.error(f"num_experts_per_tok ({chosen}) is above num_local_experts ({experts})")
    mixer = softmax_attention(
        cfg, query_heads=chosen * heads, kv_heads=heads, head_dim=size, qkv_bias=False, output_bias=False
    )
    tensors = [ExtraTensor(name="attn_router", shape=(experts, width), role="router")]
    if experts > chosen:  # the others than those that one token meets
        shape = (2 * heads * size, width)
        tensors.append(ExtraTensor(name="attn_experts", shape=shape, count=experts - chosen, role="attention"))
    block = Block(mixers=(mixer,), ffns=(moe_ffn(cfg),), norms=4, tensors=tuple(tensors))
    return stack([Layer(block)] * layer_count(cfg))


def hrm_text(cfg: Config) -> Layers:
    """HRM-Text: two stacks that run again and again; each run of a layer caches for itself, its weights are one.

    ``num_hidden_layers`` counts runs where ``num_layers_per_stack`` is there, layers of a stack where it is not.
    arXiv 2506.21734, section 2.
    """
    count, high, low = layer_count(cfg), cfg.need_int("H_cycles"), cfg.need_int("L_cycles")
    own = cfg.maybe_int("num_layers_per_stack")
    stated, depth = (None, count) if own is None else (count, own)
    runs = high * (low + 1) * depth
    if depth < 1 or runs > MAX_LAYERS or stated not in (None, runs):
        raise cfg.error(f"num_hidden_layers {count} does not fit {high} x ({low} + 1) runs of {depth} layers")
    mixer = softmax_attention(cfg, kv_heads=query_heads(cfg), output_gate=True)
    block = Block(mixers=(mixer,), ffns=(dense_ffn(cfg),), norms=0, shared_mixers=1, shared_ffns=1)
    names = [[f"{word}_{i}" for i in range(depth)] for word in ("low", "high")]
    order = tuple(name for _ in range(high) for part in (*[names[0]] * low, names[1]) for name in part)
    tensors = (ExtraTensor(name="z_L_init", shape=(hidden_size(cfg),), role="norm"),)
    return Layers(blocks=dict.fromkeys((*names[0], *names[1]), block), layers=order, final_norms=0, tensors=tensors)


def molmo2(cfg: Config) -> Layers:
    """Molmo 2: some rows of the embedding stand in a table of their own."""
    found = read_plain(
        cfg, Traits(qk_norm="head", qk_norm_if="use_qk_norm=true", qkv_bias="qkv_bias", output_bias=False)
    )
    rows = cfg.maybe_int("additional_vocab_size")
    more = ExtraTensor(name="more_embd", shape=(128 if rows is None else rows, hidden_size(cfg)), role="embedding")
    found.tensors += (more,)
    return found


PLAIN_OTHER: dict[str, Callable[[Config], Layers]] = {
    "beam": beam,
    "chameleon": plain(qk_norm="heads", qkv_bias="attention_bias", output_bias="attention_bias"),
    "cosmos3_edge_text": plain(gated=False),
    "cpmant": cpmant,
    **dict.fromkeys(("deepseek_ocr2_text", "granite_docling_text", "unlimited_ocr_text"), PLAIN["llama"]),
    "doge": doge,
    "glm4v_moe_text": plain(qkv_bias="attention_bias=true", output_bias=False),
    "glm4v_text": plain(norms=4, qkv_bias=True, output_bias=False),
    "glm_ocr_text": plain(norms=4, qkv_bias=False, output_bias=False),
    "granite4_vision_text": PLAIN["granite"],
    "hrm_text": hrm_text,
    "hunyuan_vl_text": PLAIN["hunyuan_v1_dense"],
    "jetmoe": jetmoe,
    "modernbert-decoder": modernbert_decoder,
    "molmo2_text": molmo2,
    "paddleocr_vl_text": plain(qkv_bias="use_bias", output_bias="use_bias", ffn_bias="use_bias"),
}  # fmt: skip

"""Families with chunked or cross attention: Llama 4, Llama 3.2 Vision and Whisper."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kvplan.sources.hf.attention import hidden_size, softmax_attention
from kvplan.sources.hf.ffn import dense_ffn, is_moe_layer, moe_ffn
from kvplan.sources.hf.keys import Config, Layers
from kvplan.sources.hf.layout import Layer, layer_count, stack
from kvplan.spec.model import Block, ExtraTensor

IMAGE_TOKENS = "image_tokens"
"""Not a key of any file: the reader sets it to the image positions that the vision part hands on."""


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


def mllama(cfg: Config) -> Layers:
    """Llama 3.2 Vision: some layers attend to the image instead of the text, and cache only that.

    Source: transformers 5.24.0 ``models/mllama/modeling_mllama.py``. The token embedding has 8 rows more than
    the vocabulary, which the head has not.
    """
    crossing = {cfg.as_int(i, "cross_attention_layers") for i in cfg.maybe_list("cross_attention_layers") or []}
    image = cfg.maybe_int(IMAGE_TOKENS)
    if crossing and not image:
        raise cfg.error("cross_attention_layers without a vision_config that says how many image positions there are")
    ffn = dense_ffn(cfg)
    text = Block(mixers=(softmax_attention(cfg),), ffns=(ffn,))
    layers = []
    for i in range(layer_count(cfg)):
        if i in crossing:
            mixer = softmax_attention(cfg, encoder_tokens=image, qk_norm="head", gated=True)
            layers.append(Layer(Block(mixers=(mixer,), ffns=(ffn,)), "cross"))
        else:
            layers.append(Layer(text, "text"))
    extra = ExtraTensor(name="image_token_embd", shape=(8, hidden_size(cfg)), role="embedding")
    return stack(layers, tensors=(extra,))


def whisper(cfg: Config) -> Layers:
    """Whisper: each decoder layer keeps its own text and the encoder's output.

    Source: transformers 5.24.0 ``models/whisper/modeling_whisper.py`` (no bias on the key projections).
    """
    count = layer_count(cfg, ("decoder_layers", "num_hidden_layers"))
    heads, width = cfg.need_int("decoder_attention_heads"), cfg.need_int("d_model")
    frames = cfg.maybe_int("max_source_positions") or 1500
    cfg.ignore(("num_hidden_layers", "encoder_attention_heads", "max_target_positions"))
    sizes: dict[str, Any] = {
        "query_heads": heads, "kv_heads": heads, "head_dim": width // heads, "qkv_bias": False, "output_bias": True,
    }  # fmt: skip
    own = softmax_attention(cfg, **sizes)
    other = softmax_attention(cfg, encoder_tokens=frames, **sizes)
    ffn = dense_ffn(cfg, intermediate_size=cfg.need_int("decoder_ffn_dim"), gated=False, bias=True)
    bias = ExtraTensor(name="attn_qv_bias", shape=(2, width), count=2, role="norm")
    block = Block(mixers=(own, other), ffns=(ffn,), norms=6, tensors=(bias,))
    rows = cfg.maybe_int("max_target_positions") or 448
    return stack([Layer(block, "decoder")] * count, position_embeddings=rows, final_norms=2)


CROSS: dict[str, Callable[[Config], Layers]] = {
    **dict.fromkeys(("llama4", "llama4_text"), llama4),
    **dict.fromkeys(("mllama", "mllama_text_model"), mllama),
    "whisper": whisper,
}

"""Families with cross attention: Llama 3.2 Vision and Whisper."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kvplan.sources.hf.attention import hidden_size, softmax_attention
from kvplan.sources.hf.ffn import dense_ffn
from kvplan.sources.hf.keys import Config, Layers
from kvplan.sources.hf.layout import Layer, layer_count, stack
from kvplan.spec.model import Block, ExtraTensor

IMAGE_TOKENS = "image_tokens"
"""Not a key of any file: the reader sets it to the image positions that the vision part hands on."""


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
    **dict.fromkeys(("mllama", "mllama_text_model"), mllama),
    "whisper": whisper,
}

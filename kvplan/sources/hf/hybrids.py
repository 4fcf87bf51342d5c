"""Which reader understands which hybrid or recurrent family, by ``model_type``."""

from __future__ import annotations

from collections.abc import Callable

from kvplan.sources.hf.hybrids_delta import glm_next, kimi_linear, minimax, olmo_hybrid, qwen_hybrid
from kvplan.sources.hf.hybrids_mamba import (
    bamba,
    falcon_h1,
    granite_hybrid,
    jamba,
    mamba1_model,
    mamba2_model,
    nemotron_h,
    zamba,
    zamba2,
)
from kvplan.sources.hf.hybrids_more import bailing_hybrid, bailing_linear, lara_mini, lfm3
from kvplan.sources.hf.hybrids_other import lfm2, plamo2, recurrent_gemma, rwkv5, rwkv6, rwkv7, xlstm
from kvplan.sources.hf.keys import Config, Layers

HYBRIDS: dict[str, Callable[[Config], Layers]] = {
    "qwen3_next": qwen_hybrid,
    "qwen3_5": qwen_hybrid,
    "qwen3_5_text": qwen_hybrid,
    "qwen3_5_moe": qwen_hybrid,
    "qwen3_5_moe_text": qwen_hybrid,
    "kimi_linear": kimi_linear,
    "kimi_k3": kimi_linear,
    "glm5_next": glm_next,
    "glm5_next_text": glm_next,
    "minimax": minimax,
    "minimax_text_01": minimax,
    "minimax_m1": minimax,
    "mamba": mamba1_model,
    "falcon_mamba": mamba1_model,
    "mamba2": mamba2_model,
    "jamba": jamba,
    "bamba": bamba,
    "granitemoehybrid": granite_hybrid,
    "falcon_h1": falcon_h1,
    "nemotron_h": nemotron_h,
    "olmo_hybrid": olmo_hybrid,
    "zamba": zamba,
    "zamba2": zamba2,
    "plamo2": plamo2,
    "recurrent_gemma": recurrent_gemma,
    "lfm2": lfm2,
    "lfm2_moe": lfm2,
    "lfm3": lfm3,
    "lara_mini": lara_mini,
    **dict.fromkeys(("bailing_hybrid", "bailing_moe_v2_5", "bailing_moe_v3"), bailing_hybrid),
    **dict.fromkeys(("bailing_moe_linear", "bailing_moe_linear_v2"), bailing_linear),
    "rwkv5": rwkv5,
    "rwkv6": rwkv6,
    "rwkv7": rwkv7,
    "xlstm": xlstm,
}
"""Readers of the text model; each gets the level of the file that holds its layers."""

"""Flags of llama.cpp, Ollama and LM Studio that change what the caches get.

Names and meaning: libllama 0.5.0 ``common/arg.cpp``; Ollama's are parameters of a Modelfile and environment variables,
LM Studio's are load settings.
"""

from __future__ import annotations

from kvplan.engines.options import Option

_PANEL, _OLLAMA, _LMSTUDIO = "llama.cpp", "Ollama", "LM Studio"

OPTIONS = (
    Option(
        "ctx_size", ("--ctx-size", "-c"), "tokens_or_zero", "TOKENS",
        "cells of all slots together (a total, not per request); 0: what the model was trained with", _PANEL,
    ),
    Option(
        "cache_type_k", ("--cache-type-k", "-ctk"), "text", "TYPE",
        "storage of K: f16 (default), bf16, f32, q8_0, q5_1, q5_0, q4_1, q4_0, iq4_nl", _PANEL,
    ),
    Option(
        "cache_type_v", ("--cache-type-v", "-ctv"), "text", "TYPE",
        "storage of V; a quantised one needs flash attention", _PANEL,
    ),
    Option(
        "parallel", ("--parallel", "-np"), "text", "N", "slots; -1 or left out: 4 that share one pool", _PANEL,
    ),
    Option("batch_size", ("--batch-size", "-b"), "count", "TOKENS", "logical batch (default 2,048)", _PANEL),
    Option(
        "ubatch_size", ("--ubatch-size", "-ub"), "count", "TOKENS",
        "physical batch (default 512); enlarges the cache of windowed layers", _PANEL,
    ),
    Option(
        "n_gpu_layers", ("--n-gpu-layers", "--gpu-layers", "-ngl"), "text", "N",
        "layers on the GPU, the output head counted as one; all by default", _PANEL,
    ),
    Option("swa_full", ("--swa-full",), "true", "", "cache every token in windowed layers too", _PANEL),
    Option("kv_unified", ("--kv-unified", "-kvu"), "true", "", "one pool for all slots", _PANEL),
    Option("flash_attn", ("--flash-attn", "-fa"), "text", "on|off|auto", "flash attention (auto counts as on)", _PANEL),
    Option(
        "tensor_split", ("--tensor-split", "-ts"), "text", "SHARES", "shares of the GPUs, e.g. 3,1: whole layers each",
        _PANEL,
    ),
    Option("kv_offload", ("--no-kv-offload", "-nkvo"), "false", "", "caches in host memory", _PANEL),
)  # fmt: skip

OLLAMA = (
    Option("num_ctx", ("--num-ctx",), "tokens", "TOKENS", "context of one slot (OLLAMA_CONTEXT_LENGTH)", _OLLAMA),
    Option(
        "num_parallel", ("--num-parallel",), "count", "N",
        "slots, each with its own context (OLLAMA_NUM_PARALLEL, default 1)", _OLLAMA,
    ),
    Option(
        "num_batch", ("--num-batch",), "count", "TOKENS", "batch and micro-batch; by context length where left out",
        _OLLAMA,
    ),
)  # fmt: skip
"""What Ollama has besides, by the names of its Modelfile."""

LMSTUDIO = (
    Option(
        "gpu_offload", ("--gpu-offload",), "text", "SHARE",
        "share of the layers on the GPU: max (default), off, or 0 to 1 (lms load --gpu)", _LMSTUDIO,
    ),
    Option(
        "separate_caches", ("--separate-caches",), "true", "",
        "a cache of the whole context for each prediction (useUnifiedKvCache off)", _LMSTUDIO,
    ),
)  # fmt: skip
"""What LM Studio has besides."""

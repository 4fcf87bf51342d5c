"""The flags of every engine but vLLM and llama.cpp, in one module since each plan reads them all.

Names are the engines' own where they have a command line, and their Python parameters' where not. A flag that
several engines share stands once, in `SHARED`.
"""

from __future__ import annotations

from kvplan.engines.options import Option

_SERVERS, _LOCAL = "SGLang, TensorRT-LLM", "transformers, MLX-LM, ExLlamaV3"
"""Headings of the help."""

SHARED = (
    Option(
        "max_total_tokens", ("--max-total-tokens",), "tokens", "TOKENS",
        "tokens of the pool at most (SGLang; TensorRT-LLM max_tokens)",
        _SERVERS,
    ),
    Option(
        "attn_dp_size", ("--attn-dp-size",), "count", "N",
        "groups of the tensor-parallel ranks that attend to requests of their own (DP attention)", _SERVERS,
    ),
)  # fmt: skip

SGLANG = (
    Option(
        "mem_fraction_static", ("--mem-fraction-static",), "share", "SHARE",
        "share of the device for weights and cache (SGLang; default: by the memory of the GPU)",
        _SERVERS,
    ),
    Option("page_size", ("--page-size",), "tokens", "TOKENS", "tokens per page (SGLang; default 1)", _SERVERS),
    Option(
        "chunked_prefill_size", ("--chunked-prefill-size",), "tokens", "TOKENS",
        "tokens of a prefill step (SGLang; default: by the memory of the GPU)", _SERVERS,
    ),
    Option(
        "max_running_requests", ("--max-running-requests",), "count", "N",
        "running requests at most (SGLang)", _SERVERS,
    ),
    Option(
        "swa_full_tokens_ratio", ("--swa-full-tokens-ratio",), "share", "RATIO",
        "tokens of the windowed pool over those at full length (default 0.8)", _SERVERS,
    ),
    Option(
        "mamba_full_memory_ratio", ("--mamba-full-memory-ratio",), "text", "RATIO",
        "bytes of recurrent states over those of tokens (default 0.9)", _SERVERS,
    ),
    Option("max_mamba_cache_size", ("--max-mamba-cache-size",), "count", "N", "recurrent state slots", _SERVERS),
    Option(
        "mamba_radix_cache_strategy", ("--mamba-radix-cache-strategy",), "text", "NAME",
        "how the radix tree keeps states: auto (default), no_buffer, extra_buffer, extra_buffer_lazy (SGLang)",
        _SERVERS,
    ),
    Option(
        "disable_radix_cache", ("--disable-radix-cache",), "true", "",
        "keep no prefixes: --max-running-requests sets windowed pools and state slots (SGLang)", _SERVERS,
    ),
    Option(
        "disable_overlap_schedule", ("--disable-overlap-schedule",), "true", "",
        "one batch in flight (SGLang)", _SERVERS,
    ),
)  # fmt: skip

TENSORRT_LLM = (
    Option(
        "free_gpu_memory_fraction", ("--free-gpu-memory-fraction",), "share", "SHARE",
        "share of what weights and activations leave (TensorRT-LLM; default 0.9)", _SERVERS,
    ),
    Option(
        "tokens_per_block", ("--tokens-per-block",), "tokens", "TOKENS",
        "tokens per block (TensorRT-LLM; default 32)", _SERVERS,
    ),
)  # fmt: skip

TRANSFORMERS = (
    Option(
        "cache_implementation", ("--cache-implementation",), "text", "NAME",
        "dynamic (transformers; default), static, quantized; dynamic_noconfig: a DynamicCache() without windows",
        _LOCAL,
    ),
    Option(
        "max_cache_len", ("--max-cache-len",), "tokens", "TOKENS",
        "cells of a static cache (default max_model_len)", _LOCAL,
    ),
    Option(
        "cache_backend", ("--cache-backend",), "text", "NAME",
        "library of a quantised cache: quanto (default), hqq or fp8", _LOCAL,
    ),
    Option(
        "cache_nbits", ("--cache-nbits",), "count", "BITS",
        "bits of a quantised cache (transformers; default 4)", _LOCAL,
    ),
    Option(
        "cache_group_size", ("--cache-group-size",), "count", "N",
        "elements that share a scale (default 64)", _LOCAL,
    ),
    Option(
        "cache_residual_length", ("--cache-residual-length",), "tokens_or_zero", "TOKENS",
        "newest tokens in full precision (default 128)", _LOCAL,
    ),
)  # fmt: skip

MLX = (
    Option("kv_bits", ("--kv-bits",), "count", "BITS", "bits of a quantised cache (MLX-LM; default: none)", _LOCAL),
    Option("kv_group_size", ("--kv-group-size",), "count", "N", "elements that share a scale (default 64)", _LOCAL),
    Option(
        "quantized_kv_start", ("--quantized-kv-start",), "tokens_or_zero", "TOKENS",
        "quantise from so many tokens on (default 5,000)", _LOCAL,
    ),
    Option(
        "max_kv_size", ("--max-kv-size",), "tokens", "TOKENS",
        "rotate the cache at so many tokens (MLX-LM)", _LOCAL,
    ),
    Option(
        "prefill_step_size", ("--prefill-step-size",), "tokens", "TOKENS",
        "tokens of a chunk of the prompt (MLX-LM; default 2,048)", _LOCAL,
    ),
    Option(
        "iogpu_wired_limit_mb", ("--iogpu-wired-limit-mb",), "count", "MIB",
        "MiB that macOS lets the GPU hold", _LOCAL,
    ),
)  # fmt: skip

EXLLAMAV3 = (
    Option(
        "cache_bits", ("--cache-bits",), "text", "K[,V]",
        "bits of K and V, 2 to 8 (ExLlamaV3; default fp16)", _LOCAL,
    ),
    Option(
        "cache_tokens", ("--cache-tokens",), "tokens", "TOKENS",
        "tokens of the whole pool (ExLlamaV3; default max_model_len)", _LOCAL,
    ),
)  # fmt: skip

OPTIONS = (*SHARED, *SGLANG, *TENSORRT_LLM, *TRANSFORMERS, *MLX, *EXLLAMAV3)

"""vLLM's flags that change what the cache gets. Names and meaning: vLLM 0.33.0 ``vllm/engine/arg_utils.py``."""

from __future__ import annotations

from typing import Any

from kvplan.engines.options import Option
from kvplan.errors import InputError

OPTIONS = (
    Option(
        "max_model_len", ("--max-model-len",), "max_model_len", "TOKENS",
        "longest request: 32768, 32K (32,768), 32k (32,000); -1 fits it to the memory; default: the model's maximum",
    ),
    Option(
        "max_num_seqs", ("--max-num-seqs",), "count", "N",
        "running sequences of one replica at most (default: the engine's for this GPU; see Assumed)",
    ),
    Option(
        "max_num_batched_tokens", ("--max-num-batched-tokens",), "tokens", "TOKENS",
        "tokens of one step at most (default: the engine's for this GPU)",
    ),
    Option(
        "gpu_memory_utilization", ("--gpu-memory-utilization",), "share", "SHARE",
        "share of the device that the engine may use (default: its version's, 0.9 or 0.92)",
    ),
    Option(
        "block_size", ("--block-size",), "tokens", "TOKENS",
        "tokens per cache block (default: the backend's, mostly 16)",
    ),
    Option(
        "kv_cache_dtype", ("--kv-cache-dtype",), "text", "FORMAT",
        "storage of the cache; K,V for two (`kvplan formats` lists them); default: the model's",
    ),
    Option(
        "kv_cache_memory_bytes", ("--kv-cache-memory-bytes",), "engine_bytes", "BYTES",
        "cache per GPU: bytes, 40GiB, 25G as vLLM reads it; replaces the modelled budget",
    ),
    Option(
        "num_gpu_blocks_override", ("--num-gpu-blocks-override",), "count", "N",
        "blocks of the pool, whatever the memory",
    ),
    Option("enforce_eager", ("--enforce-eager",), "true", "", "no CUDA graphs"),
    Option("enable_prefix_caching", ("--no-enable-prefix-caching",), "false", "", "no sharing of common prefixes"),
    Option(
        "force_prefix_caching", ("--enable-prefix-caching",), "true", "",
        "share common prefixes where the engine does not by default (hybrids before vLLM 0.28)",
    ),
    Option(
        "disable_hybrid_kv_cache_manager", ("--disable-hybrid-kv-cache-manager",), "true", "",
        "hold every token in windowed layers too",
    ),
    Option(
        "speculative_config", ("--speculative-config",), "text", "JSON",
        'draft layers: \'{"method": "mtp", "num_speculative_tokens": 1}\'; "model" may be a path',
    ),
    Option("mamba_ssm_cache_dtype", ("--mamba-ssm-cache-dtype",), "text", "FORMAT", "storage of recurrent states"),
    Option("mamba_cache_dtype", ("--mamba-cache-dtype",), "text", "FORMAT", "storage of convolution states"),
    Option(
        "mamba_cache_mode", ("--mamba-cache-mode",), "text", "MODE",
        "states kept for prefix caching: align, or all (vLLM 0.15 to 0.31)",
    ),
    Option(
        "mamba_block_size", ("--mamba-block-size",), "tokens", "TOKENS", "chunk of states under mamba cache mode all"
    ),
    Option(
        "attention_backend", ("--attention-backend",), "text", "NAME",
        "FLASH_ATTN, FLASHMLA, ...; default: the first in vLLM's order that fits",
    ),
    Option(
        "gdn_prefill_backend", ("--gdn-prefill-backend",), "text", "NAME", "flashinfer or triton, for gated delta nets"
    ),
    Option(
        "max_cudagraph_capture_size", ("--max-cudagraph-capture-size",), "count", "N",
        "largest batch that is captured (default: the engine's)",
    ),
    Option("language_model_only", ("--language-model-only",), "true", "", "leave the encoders out"),
    Option("skip_mm_profiling", ("--skip-mm-profiling",), "true", "", "do not profile the encoders"),
    Option("enable_lora", ("--enable-lora",), "true", "", "buffers for LoRA adapters"),
    Option("max_loras", ("--max-loras",), "count", "N", "LoRA adapters held at once (default 1)"),
    Option("max_lora_rank", ("--max-lora-rank",), "count", "N", "their largest rank (default 16)"),
)  # fmt: skip
"""Flags of ``vllm serve`` that change what the cache gets or holds."""

LAYOUT = (
    Option(
        "tensor_parallel_size", ("--tensor-parallel-size", "-tp"), "count", "N",
        "ranks that share every layer (default 1)", "Layout",
    ),
    Option(
        "pipeline_parallel_size", ("--pipeline-parallel-size", "-pp"), "count", "N",
        "stages of consecutive layers (default 1)", "Layout",
    ),
    Option(
        "data_parallel_size", ("--data-parallel-size", "-dp"), "count", "N",
        "replicas, each with its own cache (default 1)", "Layout",
    ),
    Option(
        "decode_context_parallel_size", ("--decode-context-parallel-size", "-dcp"), "count", "N",
        "ranks of a tensor parallel group that share the tokens (default 1)", "Layout",
    ),
    Option(
        "enable_expert_parallel", ("--enable-expert-parallel",), "true", "", "deal whole experts over the ranks",
        "Layout",
    ),
)  # fmt: skip
"""The layout flags, which kvplan itself takes under the same names for every engine."""

SERVED = (
    Option(
        "async_scheduling", ("--no-async-scheduling",), "false", "", "settle each step before the next is scheduled"
    ),
    Option("enable_chunked_prefill", ("--no-enable-chunked-prefill",), "false", "", "a prompt is one step"),
    Option("performance_mode", ("--performance-mode",), "text", "MODE", "throughput doubles the default batch limits"),
    Option("kv_transfer_config", ("--kv-transfer-config",), "text", "JSON", "the KV connector"),
    Option("kv_events_config", ("--kv-events-config",), "text", "JSON", "events of the cache"),
    Option("kv_offloading_size", ("--kv-offloading-size",), "number", "GIB", "memory of the host for a KV connector"),
    Option("kv_offloading_backend", ("--kv-offloading-backend",), "text", "NAME", "native or lmcache"),
    Option("enable_elastic_ep", ("--enable-elastic-ep",), "true", "", "expert ranks that come and go"),
    Option("enable_prompt_embeds", ("--enable-prompt-embeds",), "true", "", "prompts as embeddings"),
    Option("enable_return_routed_experts", ("--enable-return-routed-experts",), "true", "", "say which experts ran"),
    Option("kv_sharing_fast_prefill", ("--kv-sharing-fast-prefill",), "true", "", "skip layers that share a cache"),
    Option("enable_dbo", ("--enable-dbo",), "true", "", "two batches at once, one computing while the other is sent"),
    Option("logits_processors", ("--logits-processors",), "text", "NAME", "classes that change the logits"),
    Option("ec_transfer_config", ("--ec-transfer-config",), "text", "JSON", "where encoder outputs are sent"),
    Option("logprobs_mode", ("--logprobs-mode",), "text", "MODE", "what is returned of the logits"),
)
"""Flags that change the batches in flight, the runner or the hybrid manager: read off vLLM's own command line alone."""
MOST_GRAPHED = 1 << 16
"""Sequences in a batch that is captured, at most: beyond all that a device runs, and a list of sizes is made of it."""
PERFORMANCE_MODES = ("balanced", "interactivity", "throughput")


def check_served(extra: dict[str, Any]) -> None:
    """Refuse values of `SERVED` that vLLM does not take, and batches to capture beyond reason.

    Raises:
        InputError: such a value; names the flag.
    """
    for option in SERVED:
        value = extra.get(option.setting)
        if value is not None and option.is_switch and not isinstance(value, bool):
            raise InputError(
                f"{value!r:.40} is neither True nor False", where=option.flags[0], hint="type True or False"
            )
    mode = extra.get("performance_mode")
    if mode not in (None, *PERFORMANCE_MODES):
        raise InputError(
            f"{mode!r:.40} is no such mode", where="--performance-mode", hint=f"type {', '.join(PERFORMANCE_MODES)}"
        )
    largest = extra.get("max_cudagraph_capture_size")
    if isinstance(largest, int) and largest > MOST_GRAPHED:
        where = "--max-cudagraph-capture-size"
        raise InputError(f"{largest:,} is absurdly large", where=where, hint="check the digits")

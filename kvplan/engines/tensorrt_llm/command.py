"""The command line of TensorRT-LLM: ``trtllm-serve MODEL``, and the YAML file of further options beside it.

Source: TensorRT-LLM 1.3 ``tensorrt_llm/commands/serve.py`` and ``llmapi/llm_args.py``.
"""

from __future__ import annotations

from kvplan.engines.command_line import Grammar, Reading, pick, words
from kvplan.engines.flags import SHARED, TENSORRT_LLM
from kvplan.engines.vllm.flags import LAYOUT
from kvplan.engines.vllm.flags import OPTIONS as COMMON
from kvplan.errors import printable

SWITCHES = words("""
    disable-overlap-scheduler enable-chunked-prefill fail-fast-on-attention-window-too-large print-iter-log
    trust-remote-code enable-attention-dp enable-iter-perf-stats enable-lm-head-tp-in-adp
    kv-cache-config.enable-block-reuse kv-cache-config.enable-partial-reuse cuda-graph-config.enable-padding
    return-perf-metrics
""")
"""Switches without a bearing on the cache; those without a command-line form stand in the YAML file."""

VALUES = words("""
    backend chat-template cluster-size context-parallel-size cp-size custom-module-dirs custom-tokenizer
    disagg-cluster-uri dtype ep-size gpus-per-node host kv-cache-config.host-cache-size log-level max-beam-width
    max-input-len media-io-kwargs metadata-server-config-file moe-cluster-parallel-size moe-config.backend
    moe-expert-parallel-size num-postprocess-workers otlp-traces-endpoint port reasoning-parser revision server-role
    stream-interval tokenizer tool-parser cuda-graph-config.max-batch-size cuda-graph-config.batch-sizes attn-backend
    kv-cache-config.event-buffer-max-size batching-wait-iters moe-tensor-parallel-size served-model-name
""")
"""Flags with a value, without a bearing on the cache."""

UNMODELLED = words("""
    context-parallel-size cp-size kv-cache-config.max-attention-window lora-config max-beam-width
    speculative-config.decoding-type kv-cache-config.mamba-ssm-cache-dtype
""")
"""Flags that change what the memory holds."""


MODELLED_BACKEND = "pytorch"
"""The default of ``--backend``; ``tensorrt`` and ``_autodeploy`` lay out memory otherwise."""


def settle(reading: Reading) -> None:
    """Attention DP is over all tensor-parallel ranks; experts."""
    backend = reading.other.get("--backend", MODELLED_BACKEND)
    if backend == MODELLED_BACKEND:
        reading.use("--backend")
    else:
        shown = printable(backend, 40)
        reading.warnings.append(f"--backend {shown}: planned by the rules of the {MODELLED_BACKEND} backend")
    if reading.other.get("--max-beam-width") == "1":
        reading.warnings = [text for text in reading.warnings if "max_beam_width" not in text.replace("-", "_")]
    attention = reading.use("--enable-attention-dp")
    if attention is not None and attention.lower() != "false":
        reading.set("attn_dp_size", reading.settings.get("tensor_parallel_size", 1), "enable_attention_dp")
    experts = reading.use("--ep-size", "--moe-expert-parallel-size")
    if experts and experts.isdecimal() and int(experts[:6]) > 1:
        reading.set("enable_expert_parallel", True, f"--ep_size {experts[:6]}")


GRAMMAR = Grammar(
    engine="tensorrt-llm",
    programs={"trtllm-serve": ("serve", "grpc", "")},
    modules=("tensorrt_llm.commands.serve",),
    version_images=("nvidia/tensorrt-llm/release",),
    options=(
        *TENSORRT_LLM, *SHARED, *LAYOUT,
        *pick(COMMON, "max_model_len", "kv_cache_dtype", "max_num_seqs", "max_num_batched_tokens"),
        *pick(COMMON, "kv_cache_memory_bytes"),
    ),
    aliases={
        "--tp-size": "tensor_parallel_size", "--pp-size": "pipeline_parallel_size", "--max-seq-len": "max_model_len",
        "--max-batch-size": "max_num_seqs", "--max-num-tokens": "max_num_batched_tokens",
        "--kv-cache-free-gpu-memory-fraction": "free_gpu_memory_fraction",
        "--kv-cache-config.free-gpu-memory-fraction": "free_gpu_memory_fraction",
        "--kv-cache-config.tokens-per-block": "tokens_per_block", "--kv-cache-config.max-tokens": "max_total_tokens",
        "--kv-cache-config.dtype": "kv_cache_dtype",
        "--kv-cache-config.max-gpu-total-bytes": "kv_cache_memory_bytes",
    },
    positional=True,
    switches=SWITCHES,
    values=VALUES,
    unmodelled=UNMODELLED,
    variables=("TRTLLM_", "TLLM_"),
    config=("--config", "--extra-llm-api-options"),
    config_wins=True,
    settle=settle,
)  # fmt: skip
"""How TensorRT-LLM is started."""

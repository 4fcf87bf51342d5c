"""The command line of vLLM: ``vllm serve``, and the module that came before it.

Source: vLLM 0.11.0 to 0.33.0, ``vllm/engine/arg_utils.py`` and ``vllm/entrypoints/``, and flags of earlier releases.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from kvplan.engines.command_line import Grammar, Reading, Word, words
from kvplan.engines.model_changes import (
    ModelChanges,
    Quantization,
    from_config,
    json_flag,
    read_dtype,
    replaced_keys,
    unmodelled,
)
from kvplan.engines.options import Option
from kvplan.engines.versions import at_least
from kvplan.engines.vllm.flags import LAYOUT, OPTIONS, SERVED
from kvplan.engines.vllm.lengths import YARN, counts_factor, derived
from kvplan.errors import InputError, UnsupportedError, nearest, printable

if TYPE_CHECKING:
    from kvplan.spec.model import ModelSpec

SWITCHES = words("""
    -dpe -dph -dpm aggregate-engine-logging allow-credentials allow-deprecated-quantization async-scheduling
    calculate-kv-scales cohere-is-reasoning-model cudagraph-metrics data-parallel-external-lb
    data-parallel-hybrid-lb data-parallel-multi-port-external-lb dcp-q-replicate disable-async-output-proc
    disable-cascade-attn disable-chunked-mm-input disable-custom-all-reduce disable-fastapi-docs
    disable-frontend-multiprocessing disable-log-requests disable-log-stats disable-mm-preprocessor-cache
    disable-nccl-for-dp-synchronization disable-sliding-window disable-uvicorn-access-log enable-auto-tool-choice
    enable-batch-sharded-sampling enable-bf16x3-router-gemm enable-cumem-allocator enable-dbo enable-elastic-ep
    enable-ep-weight-filter enable-eplb enable-fault-tolerance enable-flash-late-interaction
    enable-flashinfer-autotune enable-force-include-usage enable-hc-sp enable-layerwise-nvtx-tracing
    enable-log-deltas enable-log-outputs enable-log-requests enable-logging-iteration-details enable-lora
    enable-lora-bias enable-mamba-cache-stochastic-rounding enable-mamba-fine-grained-prefix-cache
    enable-mamba-shared-prefix-checkpoint enable-mfu-metrics enable-mixed-moe-lora-format enable-mm-embeds
    enable-moe-shared-loras enable-multimodal-encoder-data-parallel enable-nccl-comm-suspend enable-offline-docs
    enable-per-request-metrics enable-prompt-adapter enable-prompt-embeds enable-prompt-tokens-details
    enable-reasoning enable-request-id-headers enable-return-routed-experts enable-scale-out
    enable-server-load-tracking enable-shm-tensor-arena enable-sleep-mode enable-ssl-refresh
    enable-tokenizer-info-endpoint enable-tower-connector-lora enable-trace-replay eplb-log-balancedness
    exclude-tools-when-tool-choice-none fail-on-environ-validation fully-sharded-loras grpc headless
    interleave-mm-strings jit-monitor-verbose kv-cache-metrics kv-sharing-fast-prefill language-model-only
    log-error-stack long-prefill-token-threshold-adaptive mm-encoder-only monokernel multi-step-stream-outputs
    numa-bind ray-workers-use-nsight return-sampling-mask return-tokens-as-token-ids scheduler-reserve-full-isl
    skip-mm-profiling skip-tokenizer-init sleep-mode-offload-cudagraph specialize-active-lora swa-bounded-replay
    tokens-only trust-remote-code trust-request-chat-template trust-request-mm-kwargs use-fp64-gumbel
    use-gpu-for-pooling-score use-replayssm use-tqdm-on-load use-v2-block-manager
""")
"""Switches without a bearing on the cache; each may have ``no-`` in front."""

VALUES = words("""
    -O -ac -asc -cc -dc -dpa -dpb -dpl -dpn -dpp -dpr -n -pcp -q -r additional-config all2all-backend
    allowed-local-media-path anthropic-disabled-thinking-effort api-server-count attention-config aux-output-config
    chat-template chat-template-content-format code-revision cohere-format compilation-config config-format convert
    cp-kv-cache-interleave-size cpu-distributed-timeout-seconds cpu-offload-gb data-parallel-address
    data-parallel-backend data-parallel-rank data-parallel-rpc-port data-parallel-size-local
    data-parallel-start-rank data-parallel-supervisor-port dbo-decode-token-threshold dbo-prefill-token-threshold
    dcp-comm-backend dcp-kv-cache-interleave-size default-chat-template-kwargs default-mm-loras device device-ids
    device-memory-utilization diffusion-config disable-access-log-for-endpoints distributed-executor-backend
    distributed-timeout-seconds download-dir dp-supervisor-probe-failure-threshold dp-supervisor-probe-interval-s
    dp-supervisor-probe-timeout-s dp-sync-interval dtype ec-manager-config ec-transfer-config elastic-ep-max-dp-size
    engram-config eplb-config eplb-step-interval eplb-window-size expert-placement-strategy fault-tolerance-config
    fingerprint-mode fingerprint-value generation-config grpc-port guided-decoding-backend h11-max-header-count
    h11-max-incomplete-event-size hf-config-path hf-overrides hf-token host io-processor-plugin ir-op-priority
    jit-monitor-mode kda-decode-backend kda-prefill-backend kernel-config kv-cache-metrics-sample kv-events-config
    kv-offloading-backend kv-offloading-size kv-transfer-config kv-transfer-parallel-size limit-mm-per-prompt
    linear-backend load-format log-config-file log-level logging-config logits-processor-pattern logprobs-mode
    long-prefill-token-threshold lora-dtype lora-extra-vocab-size mamba-backend mamba-cache-philox-rounds
    mamba-ssu-algorithm master-addr master-port max-cpu-loras max-cudagraph-capture-size max-log-len max-logprobs
    max-long-partial-prefills max-lora-cls-labels max-lora-rank max-loras max-num-active-seqs
    max-num-partial-prefills max-num-queued-reqs max-num-queued-tokens max-num-scheduled-tokens
    max-parallel-loading-workers max-prompt-adapters max-seq-len-to-capture media-io-kwargs mm-device-do-normalize
    mm-encoder-attn-backend mm-encoder-attn-dtype mm-encoder-fp8-scale-path mm-encoder-fp8-scale-save-margin
    mm-encoder-fp8-scale-save-path mm-encoder-tp-mode mm-hasher-algorithm mm-ipc-gpu-memory-gb mm-processor-cache-gb
    mm-processor-cache-type mm-processor-device mm-processor-kwargs mm-shm-cache-max-object-size-mb mm-tensor-ipc
    model-class-overrides model-impl model-loader-extra-config moe-backend ngram-prompt-lookup-max
    ngram-prompt-lookup-min nnodes node-rank num-lookahead-slots num-redundant-experts num-scheduler-steps
    num-speculative-tokens offload-backend offload-group-size offload-num-in-group offload-prefetch-step
    optimization-level otlp-traces-endpoint override-attention-dtype override-generation-config
    override-neuron-config override-pooler-config per-request-spec-decode-metrics performance-mode pooler-config
    port preemption-mode prefill-context-parallel-size prefill-schedule-interval prefix-cache-retention-interval
    prefix-caching-hash-algo prefix-match-unit profiler-config pt-load-map-location qlora-adapter-name-or-path
    quantization quantization-config reasoning-config reasoning-effort-map reasoning-parser reasoning-parser-plugin
    renderer-num-workers replayssm-buffer-len response-role revision root-path rope-scaling rope-theta runner
    safetensors-load-strategy safetensors-prefetch-block-size safetensors-prefetch-num-threads scheduler-cls
    scheduler-delay-factor scheduling-policy seed show-hidden-metrics-for-version shutdown-timeout
    sleep-mode-backend sparse-indexer-topk-backend spec-method spec-model spec-tokens
    speculative-draft-tensor-parallel-size speculative-model sse-keep-alive-interval ssl-ca-certs ssl-cert-reqs
    ssl-certfile ssl-ciphers ssl-keyfile stream-interval structured-outputs-config swap-space task tokenizer
    tokenizer-mode tokenizer-pool-size tokenizer-revision tool-call-parser tool-parser-plugin tool-server
    tool-strict-level ubatch-size uds uvicorn-log-level video-pruning-method video-pruning-rate watchdog-config
    watermark watermark-config weight-transfer-config worker-cls worker-extension-cls
""")
"""The same for flags with a value."""

SEVERAL = words("""
    allowed-headers allowed-media-domains allowed-methods allowed-origins api-key collect-detailed-traces
    cpu-offload-params cuda-graph-sizes cudagraph-capture-sizes custom-histogram-buckets ignore-patterns
    kv-cache-dtype-skip-layers logits-processors lora-modules lora-target-modules middleware numa-bind-cpus
    numa-bind-nodes offload-params served-model-name sleep-preserve-parameter-names
""")
"""And for those that take a list of words."""

UNMODELLED = words("""
    cpu-offload-gb cpu-offload-params disable-sliding-window enable-dbo enable-lora enable-prompt-adapter
    kv-cache-dtype-skip-layers language-model-only mm-encoder-only model-class-overrides num-redundant-experts
    offload-backend offload-group-size override-attention-dtype prefill-context-parallel-size quantization-config
    replayssm-buffer-len use-replayssm -pcp
""")
"""Of these, the ones that change what the memory holds."""

UNMODELLED_VARIABLES = frozenset(
    {"VLLM_ALLOW_CHUNKED_LOCAL_ATTN_WITH_HYBRID_KV_CACHE", "VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS"}
)
"""The same among the variables (``vllm/envs.py``)."""

QUANTIZATION = {
    "fp8": "fp8", "awq": "awq", "awq_marlin": "awq", "gptq": "gptq", "gptq_marlin": "gptq", "bitsandbytes": "bnb",
    "modelopt_fp4": "nvfp4", "mxfp4": "mxfp4",
}  # fmt: skip
"""``--quantization`` -> the weight format it makes or expects."""
METHODS = frozenset(
    {
        "auto-round", "auto_awq", "auto_gptq", "awq", "awq_marlin", "bitblas", "bitsandbytes", "compressed-tensors",
        "cpu_awq", "deepseek_v4_fp8", "deepspeedfp", "experts_int8", "fbgemm_fp8", "fp8", "fp8_per_block",
        "fp8_per_channel", "fp8_per_tensor", "fp_quant", "gguf", "gpt_oss_mxfp4", "gptq", "gptq_bitblas",
        "gptq_marlin", "gptq_marlin_24", "hqq", "humming", "inc", "int8_per_channel_weight_only", "ipex", "modelopt",
        "modelopt_fp4", "modelopt_mixed", "modelopt_mxfp8", "moe_wna16", "mxfp4", "mxfp8", "nvfp4_per_token",
        "online", "petit_nvfp4", "ptpc_fp8", "quark", "rtn", "torchao", "tpu_int8",
    }
)  # fmt: skip
"""Every method of 0.11 to 0.33 (``vllm/model_executor/layers/quantization/__init__.py``)."""

_DRAFT = {"--spec-method": "method", "--spec-model": "model", "--spec-tokens": "num_speculative_tokens"}
_DOTTED = "--speculative-config."


def settle(reading: Reading) -> None:
    """Drafts out of several flags, quantisation, machines, and what is changed of the model itself."""
    _drafts(reading)
    _prompts(reading)
    _runner(reading)
    connector = reading.use("--kv-transfer-config.kv_connector", "--kv-transfer-config.kv-connector")
    if connector:
        reading.set("kv_transfer_config", json.dumps({"kv_connector": connector}), f"--kv-transfer-config {connector}")
    for read in (_graphs, _redundant):
        try:
            read(reading)
        except InputError as odd:
            reading.warnings.append(f"{odd.where}: {odd.message}")
    method = reading.use("--quantization", "-q")
    if method and method != "None":
        reading.quantization = Quantization(f"--quantization {method}", QUANTIZATION.get(method, ""))
        if method not in METHODS and not method.missing:
            near = nearest(method, sorted(METHODS))
            named = f"did you mean {', '.join(near)}? " if near else ""
            hint = f"{named}For a method of a plug-in give kvplan --weights FORMAT"
            unknown = InputError("vLLM has no such method of quantization", where=reading.quantization.words, hint=hint)
            reading.fail("weights", unknown)
    if read_dtype(reading) == "fp32" and reading.settings.get("kv_cache_dtype", "auto") == "auto":
        hint = "add --kv-cache-dtype bf16 for half of it, or --engine generic --kv-cache-dtype fp32"
        error = UnsupportedError("a cache in float32 is not modelled for vLLM", where="--dtype float32", hint=hint)
        reading.fail("kv_cache_dtype", error)
    try:
        _changes(reading)
    except InputError as error:
        reading.fail("max_model_len", error)
    nodes = reading.use("--nnodes", "-n")
    if nodes and nodes.isdecimal():
        reading.nodes = min(max(1, int(nodes[:6])), 1 << 16)
    replicas = reading.settings.get("data_parallel_size", 1)
    local = reading.use("--data-parallel-size-local", "-dpl")
    if local is None and reading.use("--data-parallel-rank", "-dpn") is not None:
        local = Word("1")  # one replica a command, behind a balancer of one's own
    if local and local.isdecimal() and 0 < int(local[:6]) < replicas:
        reading.nodes = max(reading.nodes, -(-replicas // int(local[:6])))


_CHUNKED = "--enable-chunked-prefill"
_V2 = "VLLM_USE_V2_MODEL_RUNNER"


def _prompts(reading: Reading) -> None:
    """Prompts in one step: ``--no-enable-chunked-prefill``, or the flag with a value (up to vLLM 0.10)."""
    off = [f for f in (f"--no-{_CHUNKED[2:]}", "--disable-chunked-prefill") if f in reading.ignored]
    if reading.other.get(_CHUNKED, "").lower() in ("0", "false", "off", "no"):
        off.append(f"{_CHUNKED} {reading.other[_CHUNKED]}")
    if off:
        reading.ignored = [flag for flag in reading.ignored if flag not in (*off, _CHUNKED)]
        reading.set("enable_chunked_prefill", False, off[0])


def _runner(reading: Reading) -> None:
    """``VLLM_USE_V2_MODEL_RUNNER``, and variables that change the budget."""
    value = str(reading.settings.get("model_runner", "")).lower()
    if value in ("0", "false", "1", "true"):
        reading.settings["model_runner"] = 1 if value in ("0", "false") else 2
    elif value:
        reading.unset("model_runner")
        reading.warnings.append(f"{_V2} is 0 or 1, not {printable(value, 40)!r}")
    for name in sorted(UNMODELLED_VARIABLES.intersection(reading.ignored)):
        reading.warnings.append(f"{name} changes what the memory holds, and is not modelled")


def _changes(reading: Reading) -> None:
    """``--hf-overrides`` and its predecessors ``--rope-scaling`` and ``--rope-theta`` (up to vLLM 0.11)."""
    scaling = replaced_keys(reading, "--rope-scaling")
    keys = replaced_keys(reading, "--hf-overrides") | ({"rope_scaling": scaling} if scaling else {})
    if not keys:
        return
    flag = "--rope-scaling" if scaling else "--hf-overrides"
    changes, others = from_config(keys, flag)
    if changes and scaling:
        own = {key: value for key, value in keys.items() if key != "rope_scaling"}
        parts = [json_flag(flag, scaling), *([json_flag("--hf-overrides", own)] if own else [])]
        changes = changes._replace(legacy=True, given=" ".join(parts))
    reading.changes = changes
    if others:
        reading.warnings.append(unmodelled("--hf-overrides", others))


_COMPILATION = ("--compilation-config", "-cc", "-O")
_SIZES = "cudagraph_capture_sizes"


def _graphs(reading: Reading) -> None:
    """No CUDA graphs at ``-O0`` or mode NONE; sizes to capture.

    Source: vLLM 0.11.0 ``vllm/config/__init__.py`` and ``vllm/utils/__init__.py`` (``-O0`` is level 0), 0.12.0 to
    0.33.0 ``vllm/config/vllm.py``.
    """
    level, keys = reading.other.get("--optimization-level"), _compilation(reading)
    level = next((v for f in _COMPILATION if (v := reading.other.get(f)) is not None and v.isdecimal()), level)
    mode = str(keys.get("cudagraph_mode", "")).rpartition(".")[2].upper()
    flags = [f for f in reading.other if f.partition(".")[0] in (*_COMPILATION, "--optimization-level")]
    asked = keys.get(_SIZES)
    flag = next((f for f in ("--cudagraph-capture-sizes", "--cuda-graph-sizes") if f in reading.lists), "")
    if flag:
        asked, flags = list(reading.lists[flag]), [*flags, flag]
    elif isinstance(asked, str):
        asked = asked.strip("[]").split(",")
    most = keys.get("max_cudagraph_capture_size")
    sizes = _whole(asked) if isinstance(asked, list) else _whole([most])
    if level == "0" or mode == "NONE" or keys.get("level") in (0, "0") or sizes == [0] or asked == []:
        reading.set("enforce_eager", True, _typed(reading, flags))
    elif sizes:
        reading.set("max_cudagraph_capture_size", max(sizes), _typed(reading, flags))
        if len(sizes) > 1 or (isinstance(asked, list) and flag != "--cuda-graph-sizes"):
            reading.warnings.append(f"{flag or _SIZES}: graphs are counted for all usual sizes up to {max(sizes):,}")
    elif not (isinstance(asked, list) or most is not None):
        return
    else:
        reading.warnings.append(f"{flag or _SIZES}: the sizes to capture cannot be read")
        return
    for name in flags:
        reading.use(name)
    reading.ignored = [name for name in reading.ignored if not name.startswith("-O")]


def _typed(reading: Reading, flags: list[str]) -> str:
    """Flags with their values, as somebody would type them."""
    values = {f: " ".join(reading.lists.get(f) or (reading.other.get(f, ""),)) for f in flags}
    return printable(" ".join(f"{f}{v}" if f == "-O" and v.isdecimal() else f"{f} {v}" for f, v in values.items()), 60)


def _compilation(reading: Reading) -> dict[str, Any]:
    """The keys of the compilation settings, from JSON and from dotted flags."""
    looked = Reading()
    looked.other = {f: v for f, v in reading.other.items() if not (f in _COMPILATION and v.isdecimal())}
    return replaced_keys(looked, *_COMPILATION)


def _whole(values: list[Any]) -> list[int]:
    """The whole numbers of a list; none where something else stands in it."""
    found = [str(value).strip() for value in values]
    return [int(text) for text in found] if all(t.isdecimal() and len(t) < 7 for t in found) else []


def _redundant(reading: Reading) -> None:
    """Copies of busy experts that every rank holds besides its own."""
    found = replaced_keys(reading, "--eplb-config")
    count = found.get("num_redundant_experts")
    if count not in (None, 0, "0"):
        shown = printable(str(count), 20)
        reading.warnings.append(f"num_redundant_experts {shown} changes what the memory holds, and is not modelled")


def longest(changes: ModelChanges, model: ModelSpec, version: str, asked: int) -> tuple[int, str]:
    """The longest context that vLLM derives from a changed configuration.

    Up to 0.29 YaRN's factor multiplies the length before stretching; from 0.30 on ``max_position_embeddings`` counts
    as it is. Source: vLLM 0.11.0 to 0.33.0 ``vllm/config/model.py``, ``_get_and_verify_max_len``.

    Args:
        asked: tokens of the longest request, or 0.

    Raises:
        UnsupportedError: vLLM would not start with so many.
    """
    length, rope = changes.length or model.stated_positions or model.max_position_embeddings or 0, changes.rope
    said = ""
    if changes.legacy and at_least(version, "0.12.0"):
        said = f"--rope-scaling is not in vLLM {version}, only up to 0.11, whose rule is used; now it is --hf-overrides"
        version = "0.11.0"
    if rope is None:
        return length, said
    if rope.kind in YARN and not counts_factor(rope.kind, model.family, version):
        if asked > length:
            original = rope.original or length
            need, wider = int(original * rope.factor), -(-asked // original)
            enough = f'"max_position_embeddings": {need}'
            if need < asked:
                enough = f'"factor": {wider} and "max_position_embeddings": {original * wider}'
            raise UnsupportedError(
                f"vLLM {version} does not multiply max_position_embeddings {length:,} by YaRN's factor: it refuses "
                f"{asked:,} tokens",
                where="--hf-overrides", hint=f"put {enough} into its JSON",
            )  # fmt: skip
        return length, said
    return derived(length, rope.kind, rope.factor, rope.original, model.family, version), said


def _drafts(reading: Reading) -> None:
    """``--speculative-config.key VALUE`` and ``--spec-*``, which stand for one JSON object."""
    found: dict[str, object] = {}
    for flag, value in list(reading.other.items()):
        key = _DRAFT.get(flag) or (flag.removeprefix(_DOTTED).replace("-", "_") if flag.startswith(_DOTTED) else "")
        if key and key != "config":
            reading.use(flag)
            found[key] = int(value) if value.isdecimal() and len(value) < 10 else value
    if found and "speculative_config" not in reading.settings:
        reading.set("speculative_config", json.dumps(found), "--speculative-config")


GRAMMAR = Grammar(
    engine="vllm",
    programs={"vllm": ("serve",)},
    modules=("vllm.entrypoints.openai.api_server", "vllm.entrypoints.api_server", "vllm.entrypoints.cli.main"),
    images=("vllm/vllm-openai", "vllm/vllm-openai-rocm", "lmcache/vllm-openai"),
    version_images=("vllm/vllm-openai", "vllm/vllm-openai-rocm"),
    options=(
        *OPTIONS, *LAYOUT, *(option for option in SERVED if option.setting != "enable_chunked_prefill"),
        Option("model_runner", (_V2,), "text", "", ""),
        Option("allow_long_max_model_len", ("VLLM_ALLOW_LONG_MAX_MODEL_LEN",), "true", "", ""),
    ),
    aliases={"-ep": "enable_expert_parallel", "-sc": "speculative_config"},
    model=("--model",),
    positional=True,
    switches=SWITCHES,
    values=VALUES,
    several=SEVERAL,
    maybe=words("enable-chunked-prefill"),
    unmodelled=UNMODELLED,
    environment={
        "VLLM_ALLOW_LONG_MAX_MODEL_LEN": "VLLM_ALLOW_LONG_MAX_MODEL_LEN",
        "VLLM_ATTENTION_BACKEND": "--attention-backend",
        _V2: _V2,
    },
    variables=("VLLM_",),
    config=("--config",),
    abbreviates=True,
    inverts=True,
    complete="0.11.0",
    settle=settle,
    longest=longest,
)  # fmt: skip
"""How vLLM is started."""

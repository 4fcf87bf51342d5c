"""The command line of SGLang: ``python -m sglang.launch_server`` and ``sglang serve``.

Source: SGLang 0.4.9 to 0.5.23, ``srt/server_args.py`` and ``srt/arg_groups/fields/``.
"""

from __future__ import annotations

from kvplan.engines.command_line import Grammar, Reading, pick, words
from kvplan.engines.flags import SGLANG, SHARED
from kvplan.engines.model_changes import Quantization, from_config, read_dtype, replaced_keys, unmodelled
from kvplan.engines.options import Option
from kvplan.engines.sglang.flags_by_version import ALLOW_LONG
from kvplan.engines.vllm.flags import LAYOUT
from kvplan.engines.vllm.flags import OPTIONS as COMMON
from kvplan.errors import InputError

SWITCHES = words("""
    abort-on-priority-when-disabled allow-auto-truncate checkpoint-engine-wait-weights-before-ready
    collect-tokens-histogram constrained-json-disable-any-whitespace dcp-replicate-q-proj debug-cuda-graph
    debug-tensor-dump-prefill-only delete-ckpt-after-loading disable-aiter-allreduce-fusion-in-decode
    disable-aiter-allreduce-fusion-in-prefill disable-attn-tp-gather disable-chunked-prefix-cache disable-cuda-graph
    disable-cuda-graph-padding disable-custom-all-reduce disable-decode-cuda-graph disable-fast-image-processor
    disable-flashinfer-autotune disable-flashinfer-cutlass-moe-fp4-allgather disable-hybrid-swa-memory
    disable-outlines-disk-cache disable-overlap-cg-plan disable-piecewise-cuda-graph
    disable-prefill-cuda-graph disable-priority-preemption disable-shared-experts-fusion
    disable-tokenizer-batch-decode disaggregation-decode-enable-offload-kvcache
    disaggregation-decode-enable-radix-cache disaggregation-enable-kv-checksum dllm-fdfo dsa-prefill-cp-mode
    elastic-ep-rejoin enable-adaptive-dispatch-to-encoder enable-aiter-allreduce-fusion enable-amd-monokernel
    enable-attn-tp-input-scattered enable-breakable-cuda-graph enable-broadcast-mm-inputs-process
    enable-cache-report enable-cp-decode-attn-tp enable-cudagraph-gc enable-custom-logit-processor
    enable-decoder-swa-bounded-replay enable-deepep-moe enable-deepep-waterfill enable-deepseek-v4-fp4-indexer
    enable-dense-mlp-attn-tp enable-deterministic-inference enable-double-sparsity
    enable-dp-attention-local-control-broadcast enable-dp-lm-head enable-draft-weights-cpu-backup
    enable-dsa-cache-layer-split enable-dsa-fused-indexer enable-dsa-prefill-context-parallel
    enable-dynamic-batch-tokenizer enable-dynamic-chunking enable-elastic-expert-backup
    enable-encoder-swa-bounded-replay enable-ep-moe enable-eplb enable-expert-distribution-metrics
    enable-flashinfer-allreduce-fusion enable-flashinfer-autotune enable-flashinfer-cutlass-moe
    enable-flashinfer-moe enable-flashinfer-mxfp4-moe enable-flashinfer-trtllm-moe enable-flexkv
    enable-forward-pass-metrics enable-fp32-lm-head enable-fused-moe-sum-all-reduce enable-fused-qk-norm-rope
    enable-gdn-replayssm-spec enable-hicache enable-hierarchical-cache enable-hisparse enable-http-worker-reuseport
    enable-http2 enable-int8-mamba-checkpoint enable-kv-cache-sharding enable-layernorm-sp
    enable-layerwise-nvtx-marker enable-lean-attention enable-linear-replayssm enable-linear-replayssm-spec
    enable-linker-mla-dedup enable-lmcache enable-lora enable-lora-overlap-loading
    enable-mamba-cache-stochastic-rounding enable-megamoe-for-layernorm-sp enable-memory-saver enable-metrics
    enable-metrics-for-all-schedulers enable-mfu-metrics enable-mis enable-mixed-chunk enable-mm-global-cache
    enable-mscclpp enable-multi-layer-eagle enable-multimodal enable-nan-detection enable-nccl-nvls
    enable-nsa-prefill-context-parallel enable-nvidia-megakernel enable-p2p-check enable-page-major-kv-layout
    enable-paged-experts enable-pd-role-switch enable-pdmux enable-piecewise-cuda-graph
    enable-precise-embedding-interpolation enable-prefill-context-parallel enable-prefill-cp enable-prefill-delayer
    enable-prefix-mm-cache enable-priority-scheduling enable-profile-cuda-graph enable-quant-communications
    enable-request-time-stats-logging enable-response-store enable-return-aux-hidden-states
    enable-return-hidden-states enable-return-indexer-topk enable-return-routed-experts enable-scattered-sconv
    enable-session-radix-cache enable-shared-experts-attn-tp enable-single-batch-overlap enable-ssl-refresh
    enable-streaming-session enable-strict-thinking enable-symm-mem enable-tf32-matmul enable-tokenizer-batch-encode
    enable-torch-compile enable-torch-compile-debug-mode enable-torch-symm-mem enable-tp-lm-head-all-to-all
    enable-trace enable-triton-kernel-moe enable-two-batch-overlap enable-unified-cache-external-linker
    enable-unified-memory enable-w4a4-mxfp4-megamoe enable-waterfill enable-watermark enable-weights-cpu-backup
    encoder-only enforce-disable-flashinfer-allreduce-fusion enforce-piecewise-cuda-graph
    enforce-shared-experts-fusion experts-shared-outer-loras export-metrics-to-file flashinfer-mla-disable-ragged
    grpc-mode incremental-streaming-output is-embedding keep-mm-feature-on-device language-model-only language-only
    log-requests lora-strict-loading lora-use-virtual-experts mlx-enable-sampling mm-enable-dp-encoder
    ple-offload-embedding pre-warm-nccl prefill-only-disable-kv-cache prefill-round-robin-balance quantize-and-serve
    record-nolora-graph remote-instance-weight-loader-start-seed-via-transfer-engine return-input-ids
    return-output-ids schedule-low-priority-values-first show-time-cost skip-server-warmup skip-tokenizer-init
    sleep-on-idle smg-grpc-mode speculative-adaptive speculative-dspark-align-verify-tokens-to-graph-tier
    speculative-enable-w4a4-mxfp4-megamoe speculative-skip-dp-mlp-sync speculative-use-block-verification
    speculative-use-rejection-sampling stream-output stream-response-default-include-usage strip-thinking-cache
    triton-attention-reduce-in-fp32 trust-mm-content-hashes trust-remote-code trust-request-chat-template use-ray
    weight-loader-disable-mmap weight-loader-drop-cache-after-load weight-loader-prefetch-checkpoints
""")
"""Switches without a bearing on the cache."""

VALUES = words("""
    admin-api-key api-key asr-max-buffer-seconds asr-max-concurrent-sessions attention-backend
    attention-context-parallel-size attn-cp-size base-gpu-id batch-notify-size bf16-gemm-backend boundary-reduction
    c128-page-size chat-template completion-template constrained-json-max-whitespace-cnt
    constrained-json-whitespace-pattern context-bucket cp-strategy cpu-offload-gb crash-dump-folder
    cuda-graph-backend-decode cuda-graph-backend-prefill cuda-graph-config cuda-graph-max-bs
    cuda-graph-max-bs-decode cuda-graph-max-bs-prefill cuda-graph-max-seq-len-prefill cuda-graph-prefill-max-context
    cuda-graph-tc-compiler custom-sigquit-handler dcp-comm-backend debug-tensor-dump-inject
    debug-tensor-dump-input-file debug-tensor-dump-output-folder decode-attention-backend decode-log-interval
    decoupled-spec-bind-endpoint decoupled-spec-rank decoupled-spec-role decrypted-config-file
    decrypted-draft-config-file deepep-config deepep-dispatcher-output-dtype deepep-mode deepep-v2-mode
    default-chat-template-kwargs default-priority-value detokenizer-worker-num device disaggregation-bootstrap-port
    disaggregation-decode-allocation-policy disaggregation-decode-dp disaggregation-decode-extra-slots
    disaggregation-decode-host-receive-threshold disaggregation-decode-polling-interval
    disaggregation-decode-retraction-backup disaggregation-decode-tp disaggregation-ib-device disaggregation-mode
    disaggregation-prefill-pp disaggregation-transfer-backend dist-init-addr dist-timeout dllm-algorithm
    dllm-algorithm-config dllm-block-size download-dir ds-channel-config-path ds-heavy-channel-num
    ds-heavy-channel-type ds-heavy-token-num ds-sparse-decode-threshold dsa-decode-backend
    dsa-paged-mqa-logits-backend dsa-prefill-backend dsa-topk-backend dsa-triton-union dsv4-attn-backend
    dsv4-prefill-backend dtype dwdp-size dynamic-batch-tokenizer-batch-size dynamic-batch-tokenizer-batch-timeout
    elastic-ep-backend elastic-ep-initial-size elastic-ep-join-mode elastic-ep-join-rank-offset
    elastic-ep-scale-timeout encoder-bootstrap-port encoder-transfer-backend engine-info-bootstrap-port
    ep-dispatch-algorithm ep-num-redundant-experts eplb-algorithm eplb-min-rebalancing-utilization-threshold
    eplb-rebalance-layers-per-chunk eplb-rebalance-num-iterations expert-balancedness-report-mode
    expert-distribution-recorder-buffer-size expert-distribution-recorder-mode export-metrics-to-file-dir
    extra-metric-labels fastapi-root-path file-storage-path flashinfer-a2a-dispatch-type
    flashinfer-allreduce-fusion-backend flashinfer-mxfp4-moe-precision flexkv-config-file
    forward-pass-metrics-ipc-name forward-pass-metrics-worker-id fp4-gemm-backend fp8-gemm-backend fuseep-mode
    gated-launch-port gc-warning-threshold-secs gpu-id-step grammar-backend grpc-http-sidecar-port grpc-port
    grpc-response-timeout-secs hf-chat-template-name hicache-host-memory-fraction hicache-host-memory-mode
    hicache-io-backend hicache-mem-layout hicache-ratio hicache-size hicache-storage-backend
    hicache-storage-backend-extra-config hicache-storage-prefetch-policy hicache-storage-prefetch-retry-max-attempts
    hicache-storage-prefetch-retry-poll-interval hicache-write-policy hierarchical-sparse-attention-extra-config
    hisparse-config host http2-initial-connection-window-size http2-max-concurrent-streams hybrid-kvcache-ratio
    image-processor-backend impl init-expert-location int8-mamba-ckpt-size json-model-override-args kt-cpuinfer
    kt-max-deferred-experts-per-token kt-method kt-num-gpu-experts kt-threadpool-count kt-weight-path kv-canary
    kv-canary-real-data kv-canary-sweep-interval kv-events-config limit-mm-data-per-request linear-attn-backend
    linear-attn-decode-backend linear-attn-prefill-backend linear-attn-verify-backend linear-replayssm-cache-len
    lmcache-config-file load-balance-method load-format load-publish-endpoint load-snapshot-publish-interval
    load-watch-interval log-level log-level-http log-requests-format log-requests-level lora-backend
    lora-drain-wait-threshold lora-eviction-policy mamba-backend mamba-cache-philox-rounds mamba-max-states-per-path
    mamba-track-interval max-ep-size max-loaded-loras
    max-lora-chunk-size max-lora-rank max-loras-per-batch max-micro-batch-size max-prefill-tokens
    max-queued-requests media-url-max-file-size-mb min-free-slots-delay mm-attention-backend mm-feature-transport
    mm-global-cache-backend mm-io-worker-num mm-max-concurrent-calls mm-per-request-timeout
    mm-preprocess-cache-size-mb mm-process-config mm-processor-worker-num model-checksum model-config-parser
    model-impl model-loader-extra-config modelexpress-config modelopt-checkpoint-restore-path
    modelopt-checkpoint-save-path modelopt-export-path modelopt-quant moe-a2a-backend moe-data-parallel-size
    moe-dense-tp-size moe-dp-size moe-runner-backend mooncake-ib-device msprobe-dump-config
    multi-item-scoring-delimiter nccl-init-addr nccl-port nnodes node-rank nsa-decode-backend nsa-prefill-backend
    nsa-prefill-cp-mode num-continuous-decode-steps num-reserved-decode-tokens offload-group-size offload-mode
    offload-num-in-group offload-prefetch-step optimistic-prefill-attempts optimistic-prefill-retries
    otlp-service-name otlp-traces-endpoint paged-experts-num-resident pdlb-url pdmux-config-path
    piecewise-cuda-graph-compiler piecewise-cuda-graph-max-tokens ple-offload-backend ple-offload-dir port
    pp-async-batch-depth pp-max-micro-batch-size preferred-sampling-params prefill-attention-backend prefill-cp-mode
    prefill-decode-interval prefill-decode-interval-min-bs prefill-delayer-max-delay-ms
    prefill-delayer-max-delay-passes prefill-delayer-queue-min-ratio prefill-delayer-token-usage-low-watermark
    prefill-kv-cache-dequant-dtype prefill-max-requests priority-scheduling-preemption-threshold qsa-indexer-dtype
    quantization quantization-param-path radix-cache-backend radix-eviction-policy radix-eviction-policy-config
    random-seed reasoning-parser remote-instance-weight-loader-backend
    remote-instance-weight-loader-seed-instance-ip remote-instance-weight-loader-seed-instance-service-port
    retraction-policy return-hidden-states-mode revision rl-on-policy-target rl-quant-profile sampling-backend
    sampling-defaults sampling-mask-max-tokens schedule-conservativeness schedule-policy scheduler-recv-interval
    served-model-name shared-experts-tp-size sidecar sm-group-num smg-http-sidecar-port soft-watchdog-timeout
    spec-trace-dir speculative-accept-threshold-acc speculative-accept-threshold-single speculative-adaptive-config
    speculative-algorithm speculative-attention-mode speculative-dflash-block-size
    speculative-dflash-draft-window-size speculative-domino-candidate-pool-size speculative-draft-attention-backend
    speculative-draft-kv-cache-dtype speculative-draft-load-format speculative-draft-model
    speculative-draft-model-path speculative-draft-model-quantization speculative-draft-model-revision
    speculative-draft-sink-size speculative-draft-window-size speculative-dsa-topk-backend
    speculative-dspark-block-size speculative-dspark-confidence-sts-path speculative-dspark-sps-table-path
    speculative-eagle-topk speculative-moe-a2a-backend speculative-moe-runner-backend
    speculative-ngram-branch-length speculative-ngram-capacity speculative-ngram-external-corpus-max-tokens
    speculative-ngram-external-corpus-path speculative-ngram-external-sam-budget speculative-ngram-match-type
    speculative-ngram-max-bfs-breadth speculative-ngram-max-match-window-size speculative-ngram-max-trie-depth
    speculative-ngram-min-bfs-breadth speculative-ngram-min-match-window-size speculative-num-draft-tokens
    speculative-num-steps speculative-token-map ssl-ca-certs ssl-certfile ssl-keyfile ssl-keyfile-password
    startup-weight-load-mode stat-loggers stream-interval swa-prefix-tails tbo-token-distribution-threshold
    tokenizer-backend tokenizer-metrics-custom-labels-header tokenizer-mode tokenizer-path tokenizer-worker-num
    tool-call-parser tool-server torch-compile-max-bs torchao-config trace-modules triton-attention-num-kv-splits
    triton-attention-split-tile-size unified-cache-external-linker-backend unified-cache-external-linker-config
    uno-lora-path warmups watchdog-timeout watermark-config weight-cache-mode weight-cache-socket
    weight-cache-timeout weight-loader-prefetch-num-threads weight-version
""")
"""The same for flags with a value."""

SEVERAL = words("""
    allowed-media-domains bucket-e2e-request-latency bucket-inter-token-latency bucket-time-to-first-token
    cuda-graph-bs cuda-graph-bs-decode cuda-graph-bs-prefill custom-weight-loader debug-tensor-dump-layers
    decoupled-spec-connect-endpoints encoder-register-urls encoder-urls flashinfer-autotune-skip-ops forward-hooks
    gc-threshold generation-tokens-buckets log-requests-target lora-paths lora-target-modules monokernel-backend
    numa-node piecewise-cuda-graph-tokens prefill-delayer-forward-passes-buckets
    prefill-delayer-wait-seconds-buckets prompt-tokens-buckets
    remote-instance-weight-loader-send-weights-group-ports return-aux-hidden-state-layer-ids sidecar-args
    tokenizer-metrics-allowed-custom-labels uvicorn-access-log-exclude-prefixes
""")
"""And for those that take a list of words."""

UNMODELLED = words("""
    attn-cp-size attention-context-parallel-size cpu-offload-gb cuda-graph-max-bs disable-hybrid-swa-memory
    disaggregation-mode enable-lora enable-unified-memory ep-num-redundant-experts hybrid-kvcache-ratio lora-paths
    moe-dense-tp-size prefill-only-disable-kv-cache speculative-algorithm torchao-config
""")
"""Of these, the ones that change what the memory holds."""

QUANTIZATION = {
    "fp8": "fp8", "awq": "awq", "awq_marlin": "awq", "gptq": "gptq", "gptq_marlin": "gptq", "bitsandbytes": "bnb",
    "modelopt_fp4": "nvfp4", "mxfp4": "mxfp4", "w8a8_int8": "w8a8_int8", "w8a8_fp8": "w8a8_fp8",
}  # fmt: skip
"""``--quantization`` -> the weight format it makes or expects."""


_OVERRIDES = "--json-model-override-args"


def settle(reading: Reading) -> None:
    """DP attention, experts, quantisation, machines, and what is changed of the model itself."""
    if reading.use("--enable-dp-attention") is not None:
        reading.move("data_parallel_size", "attn_dp_size")
    experts = reading.use("--ep-size", "--expert-parallel-size", "--ep")
    if experts and experts.isdecimal() and int(experts[:6]) > 1:
        reading.set("enable_expert_parallel", True, f"--ep-size {experts[:6]}")
    method = reading.use("--quantization")
    if method:
        reading.quantization = Quantization(f"--quantization {method}", QUANTIZATION.get(method, ""))
    if read_dtype(reading) == "fp32" and reading.settings.get("kv_cache_dtype", "auto") == "auto":
        reading.set("kv_cache_dtype", "fp32", "--dtype float32")
    try:
        keys = replaced_keys(reading, _OVERRIDES)
        reading.changes, others = from_config(keys, _OVERRIDES)
        reading.warnings += [unmodelled(_OVERRIDES, others)] if others else []
    except InputError as error:
        reading.fail("max_model_len", error)
    nodes = reading.use("--nnodes")
    if nodes and nodes.isdecimal():
        reading.nodes = min(max(1, int(nodes[:6])), 1 << 16)


GRAMMAR = Grammar(
    engine="sglang",
    programs={"sglang": ("serve",)},
    modules=("sglang.launch_server", "sglang.srt.entrypoints.http_server"),
    version_images=("lmsysorg/sglang",),
    options=(
        *SGLANG, *SHARED, *LAYOUT, *pick(COMMON, "max_model_len", "kv_cache_dtype", "mamba_ssm_cache_dtype"),
        Option("allow_long_max_model_len", (ALLOW_LONG,), "true", "", ""),
    ),
    aliases={
        "--tp-size": "tensor_parallel_size", "--tp": "tensor_parallel_size", "--pp-size": "pipeline_parallel_size",
        "--pp": "pipeline_parallel_size", "--dp-size": "data_parallel_size", "--dp": "data_parallel_size",
        "--dcp-size": "decode_context_parallel_size", "--context-length": "max_model_len",
        "--attention-data-parallel-size": "attn_dp_size", "--mamba-ssm-dtype": "mamba_ssm_cache_dtype",
        "--mamba-scheduler-strategy": "mamba_radix_cache_strategy",
    },
    model=("--model-path", "--model"),
    positional=True,
    switches=SWITCHES | words("enable-dp-attention"),
    values=VALUES | words("ep-size expert-parallel-size ep"),
    several=SEVERAL,
    unmodelled=UNMODELLED,
    not_values={("chunked_prefill_size", "-1"): "prefill in one piece, which is not modelled"},
    environment={ALLOW_LONG: ALLOW_LONG},
    variables=("SGLANG_",),
    config=("--config",),
    abbreviates=True,
    settle=settle,
)  # fmt: skip
"""How SGLang is started."""

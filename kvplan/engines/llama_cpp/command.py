"""The command line of llama.cpp: ``llama-server`` (and ``llama-cli``), whose flags all have an environment variable.

Source: llama.cpp ``common/arg.cpp`` as of libllama 0.5.0, and flags of earlier builds.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from kvplan.engines.command_line import Grammar, Reading, words
from kvplan.engines.llama_cpp.flags import OPTIONS
from kvplan.engines.model_changes import ModelChanges, Rope, unmodelled
from kvplan.engines.options import parse_count
from kvplan.errors import InputError, printable

if TYPE_CHECKING:
    from kvplan.spec.model import ModelSpec

SWITCHES = words("""
    -ag -bs -cb -cl -cmoe -cmoed -cnv -dio -e -mli -ndio -no-ag -no-cnv -nocb -nr -sp -st -v agent backend-sampling
    cache-idle-slots cache-list cache-prompt check-tensors completion-bash cont-batching context-shift conversation
    cors-credentials cpu-moe cpu-moe-draft direct-io display-prompt embedding embeddings escape ignore-eos jinja
    list-devices log-append log-disable log-enable log-jsonl log-prefix log-timestamps log-verbose
    lora-init-without-apply metrics mlock mmap mmproj-auto mmproj-offload models-autoload multiline-input no-agent
    no-cache-idle-slots no-cache-prompt no-cont-batching no-context-shift no-conversation no-cors-credentials
    no-direct-io no-display-prompt no-escape no-host no-jinja no-log-jsonl no-log-prefix no-log-timestamps no-mmap
    no-mmproj no-mmproj-auto no-mmproj-offload no-models-autoload no-op-offload no-perf no-prefill-assistant
    no-reasoning-preserve no-repack no-show-timings no-skip-chat-parsing no-slots no-spec-draft-backend-sampling
    no-ui no-ui-mcp-proxy no-warmup no-webui no-webui-mcp-proxy offline op-offload perf prefill-assistant props
    reasoning-preserve repack rerank reranking reuse-port show-timings simple-io single-turn skip-chat-parsing slots
    spec-default spec-draft-backend-sampling spec-draft-cpu-moe special spm-infill ui ui-mcp-proxy verbose
    verbose-prompt version warmup webui webui-mcp-proxy
""")
"""Switches without a bearing on the cache."""

VALUES = words("""
    -C -Cb -Cbd -Cd -Cr -Crb -Crd -a -bf -cms -co -cram -ctkd -ctvd -ctxcp -dev -devd -dr -dt -f -fit -fitc -fitt
    -gan -gaw -hfd -hff -hfrd -hft -j -jf -l -lcd -lcs -lm -lv -md -mg -mm -mmdev -mmu -n -ncffn -ncmoe -ncmoed
    -ngld -o -ot -otd -p -r -rea -s -sm -sps -sys -sysf -t -tb -tbd -td -to adaptive-decay adaptive-target alias
    api-key api-key-file api-prefix audio binary-file cache-ram cache-reuse cache-type-k-draft cache-type-v-draft
    chat-template chat-template-file chat-template-kwargs checkpoint-min-step color control-vector
    control-vector-scaled cors-headers cors-methods cors-origins cpu-mask cpu-mask-batch cpu-mask-batch-draft
    cpu-mask-draft cpu-range cpu-range-batch cpu-range-draft cpu-strict cpu-strict-batch cpu-strict-batch-draft
    cpu-strict-draft ctx-checkpoints defrag-thold device device-draft docker-repo draft draft-max draft-min draft-n
    draft-n-min draft-p-min draft-p-split dry-allowed-length dry-base dry-multiplier dry-penalty-last-n
    dry-sequence-breaker dynatemp-exp dynatemp-range embd-normalize file fit fit-ctx fit-target frequency-penalty
    gpu-layers-draft grammar grammar-file grp-attn-n grp-attn-w hf-file hf-repo-draft hf-token host image
    image-max-tokens image-min-tokens json-schema json-schema-file keep kv-unified-per-slot lazy-mode load-mode
    log-colors log-file log-prompts-dir log-verbosity logit-bias lookup-cache-dynamic lookup-cache-static lora
    lora-scaled main-gpu mcp-servers-config mcp-servers-json media-path min-p mirostat mirostat-ent mirostat-lr
    mmproj mmproj-device mmproj-url model-draft models-dir models-max models-preset moe-cache-mib
    mtmd-batch-max-tokens n-cpu-ffn n-cpu-moe n-cpu-moe-draft n-gpu-layers-draft n-predict n-probs numa output
    output-file override-kv override-tensor override-tensor-draft path poll poll-batch poll-batch-draft poll-draft
    pooling port predict presence-penalty prio prio-batch prio-batch-draft prio-draft prompt reasoning
    reasoning-budget reasoning-budget-message reasoning-effort reasoning-format repeat-last-n repeat-penalty
    reverse-prompt rope-freq-base rope-freq-scale rope-scale rope-scaling rpc sampler-seq samplers sampling-seq seed
    server-base sleep-idle-seconds slot-prompt-similarity slot-save-path spec-draft-cpu-mask
    spec-draft-cpu-mask-batch spec-draft-cpu-range spec-draft-cpu-strict spec-draft-cpu-strict-batch
    spec-draft-device spec-draft-hf spec-draft-model spec-draft-n-cpu-moe spec-draft-n-max spec-draft-n-min
    spec-draft-ncmoe spec-draft-ngl spec-draft-override-tensor spec-draft-p-min spec-draft-p-split spec-draft-poll
    spec-draft-poll-batch spec-draft-prio spec-draft-prio-batch spec-draft-threads spec-draft-threads-batch
    spec-draft-type-k spec-draft-type-v spec-ngram-map-k-min-hits spec-ngram-map-k-size-m spec-ngram-map-k-size-n
    spec-ngram-map-k4v-min-hits spec-ngram-map-k4v-size-m spec-ngram-map-k4v-size-n spec-ngram-min-hits
    spec-ngram-mod-n-match spec-ngram-mod-n-max spec-ngram-mod-n-min spec-ngram-simple-min-hits
    spec-ngram-simple-size-m spec-ngram-simple-size-n spec-ngram-size-m spec-ngram-size-n spec-synth-len
    spec-synth-rates spec-type split-mode sse-ping-interval ssl-cert-file ssl-key-file swa-checkpoints system-prompt
    system-prompt-file tags temp temperature threads threads-batch threads-batch-draft threads-draft threads-http
    timeout tools tools-runtime top-k top-n-sigma top-nsigma top-p typical typical-p ui-config ui-config-file
    verbosity video video-ffmpeg-dir video-fps video-timestamp-interval webui-config webui-config-file
    xtc-probability xtc-threshold yarn-attn-factor yarn-beta-fast yarn-beta-slow yarn-ext-factor yarn-orig-ctx
""")
"""The same for flags with a value."""

UNMODELLED = words("""
    -cmoe -devd -md -ncffn -ncmoe -ot -sm control-vector cpu-moe grp-attn-n grp-attn-w kv-unified-per-slot lora
    lora-scaled mmproj model-draft moe-cache-mib n-cpu-ffn n-cpu-moe override-tensor rpc spec-draft-model split-mode
""")
"""Of these, the ones that change what the memory holds."""

ENVIRONMENT = {
    "LLAMA_ARG_CTX_SIZE": "--ctx-size", "LLAMA_ARG_N_PARALLEL": "--parallel", "LLAMA_ARG_BATCH": "--batch-size",
    "LLAMA_ARG_UBATCH": "--ubatch-size", "LLAMA_ARG_N_GPU_LAYERS": "--n-gpu-layers", "LLAMA_ARG_SWA_FULL": "--swa-full",
    "LLAMA_ARG_KV_UNIFIED": "--kv-unified", "LLAMA_ARG_FLASH_ATTN": "--flash-attn",
    "LLAMA_ARG_CACHE_TYPE_K": "--cache-type-k", "LLAMA_ARG_CACHE_TYPE_V": "--cache-type-v",
    "LLAMA_ARG_TENSOR_SPLIT": "--tensor-split", "LLAMA_ARG_KV_OFFLOAD": "--kv-offload",
    "LLAMA_ARG_NO_KV_OFFLOAD": "--no-kv-offload", "LLAMA_ARG_MODEL": "--model", "LLAMA_ARG_MODEL_URL": "--model-url",
    "LLAMA_ARG_HF_REPO": "--hf-repo", "LLAMA_ARG_HF_FILE": "--hf-file",
    "LLAMA_ARG_ROPE_SCALING_TYPE": "--rope-scaling", "LLAMA_ARG_ROPE_SCALE": "--rope-scale",
    "LLAMA_ARG_ROPE_FREQ_SCALE": "--rope-freq-scale", "LLAMA_ARG_YARN_ORIG_CTX": "--yarn-orig-ctx",
}  # fmt: skip
"""Variable -> its flag."""

FIRST_CHOICE = "Q4_K_M"
"""What llama.cpp fetches from a repository whose quantisation nobody named."""


_HARMLESS = re.compile(r"(?:general|tokenizer)\.|.*\.rope\.|.*\.attention\.layer_norm_")
"""Keys of the metadata that change neither the cache nor the weights."""


def settle(reading: Reading) -> None:
    """Which file of a repository is meant, and what is changed of the model itself."""
    try:
        _changes(reading)
    except InputError as error:
        reading.fail("ctx_size", error)
    repository = next((reading.other[f] for f in ("-hf", "-hfr", "--hf-repo") if f in reading.other), "")
    if not repository:
        return
    file = reading.use("-hff", "--hf-file")
    if file:
        reading.model = file
        return
    reading.model = repository
    if ":" not in repository:
        reading.model = f"{repository}:{FIRST_CHOICE}"
        shown = printable(repository, 60)
        reading.warnings.append(f"{shown} does not say which file; {FIRST_CHOICE} is what llama.cpp looks for first")


def _changes(reading: Reading) -> None:
    """``--override-kv``, and YaRN by hand. No scaling changes what is laid out: -c says it, or the trained context."""
    length, others = 0, []
    for text in reading.repeated.get("--override-kv", []):
        reading.use("--override-kv")
        if text.missing:
            raise InputError(text.missing, where="--override-kv", hint="write the value there")
        for entry in text.split(","):
            key, equals, value = entry.partition("=")
            kind, _, number = value.partition(":")
            if not equals or kind not in ("int", "float", "bool", "str"):
                what = f"{printable(entry, 40)!r} is no override"
                raise InputError(
                    what, where="--override-kv", hint="KEY=int:VALUE, as in llama.context_length=int:65536"
                )
            if key.endswith(".context_length"):
                length = parse_count(number, "--override-kv")
            elif not _HARMLESS.match(key):
                others.append(key)
    if others:
        reading.warnings.append(unmodelled("--override-kv", others))
    rope = _yarn(reading)
    if rope or length:
        reading.changes = ModelChanges("--rope-scaling yarn" if rope else "--override-kv", rope, length)


def _yarn(reading: Reading) -> Rope | None:
    """YaRN with a scale of its own, which raises the trained context that a longer -c is held against."""
    scale, share = reading.other.get("--rope-scale"), reading.other.get("--rope-freq-scale")
    original = reading.other.get("--yarn-orig-ctx")
    if reading.other.get("--rope-scaling") != "yarn" or not (scale or share):
        return None
    try:
        factor = float(scale) if scale else 1 / float(share or 0)
    except (ValueError, ZeroDivisionError):
        factor = 0.0
    if not 1 <= factor <= 1 << 20:
        shown = printable(scale or share or "", 40)
        raise InputError(f"{shown!r} is no scale of a context", where="--rope-scale", hint="--rope-scale 4")
    reading.use("--rope-scaling"), reading.use("--rope-scale"), reading.use("--yarn-orig-ctx")
    return Rope("yarn", factor, parse_count(original, "--yarn-orig-ctx") if original and original != "0" else 0)


def longest(changes: ModelChanges, model: ModelSpec, version: str, asked: int) -> tuple[int, str]:
    """The trained context: overridden, or what YaRN makes of it once -c says a context.

    Source: llama.cpp as of libllama 0.5.0 ``src/llama-context.cpp``: the default context is taken before
    ``llama_init_from_model`` re-adjusts ``n_ctx_train``.
    """
    length, rope = changes.length or model.max_position_embeddings or 0, changes.rope
    return (int((rope.original or length) * rope.factor) if rope and asked else length), ""


GRAMMAR = Grammar(
    engine="llama.cpp",
    programs={"llama-server": (), "llama-cli": (), "llama-server-cuda": (), "llama-server.exe": ()},
    images=("ggml-org/llama.cpp", "ggerganov/llama.cpp"),
    options=OPTIONS,
    aliases={"--gpu-layers": "n_gpu_layers"},
    model=("--model", "-m", "--hf-repo", "-hf", "-hfr", "--model-url", "-mu"),
    switches=SWITCHES | words("-kvo -no-kvu"),
    values=VALUES,
    bare={"flash_attn": "on"},
    unmodelled=UNMODELLED,
    environment=ENVIRONMENT,
    variables=("LLAMA_ARG_",),
    settle=settle,
    longest=longest,
)
"""How llama.cpp is started."""

"""The command that starts a deployment as it was planned, for engines that have one.

What the user typed is repeated; settings whose defaults differ between releases and devices are spelled out, so that
the line means the same on another machine.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from kvplan.engines.options import quoted

if TYPE_CHECKING:
    from kvplan.engines.base import Settings
    from kvplan.spec.model import ModelSpec

PROGRAMS = {
    "vllm": "vllm serve", "sglang": "python -m sglang.launch_server --model-path", "tensorrt-llm": "trtllm-serve",
    "llama.cpp": "llama-server -m", "mlx": "mlx_lm.generate --model",
}  # fmt: skip
SPELLED_OUT = {
    "vllm": ("max_model_len", "gpu_memory_utilization", "max_num_seqs", "max_num_batched_tokens"),
    "sglang": ("max_model_len", "mem_fraction_static", "chunked_prefill_size"),
    "tensorrt-llm": ("max_model_len", "free_gpu_memory_fraction", "max_num_seqs", "max_num_batched_tokens"),
}
"""Settings that stand in the line although nobody typed them."""
_SGLANG = {
    "tensor_parallel_size": "--tp-size", "pipeline_parallel_size": "--pp-size", "data_parallel_size": "--dp-size",
    "max_model_len": "--context-length", "mamba_ssm_cache_dtype": "--mamba-ssm-dtype",
    "attn_dp_size": "--attn-dp-size", "enable_expert_parallel": "--ep-size", "kv_cache_dtype": "--kv-cache-dtype",
}  # fmt: skip
"""SGLang 0.5.23 ``srt/arg_groups/fields/``, where a flag is not the setting's own name."""
_TENSORRT_LLM = {
    "tensor_parallel_size": "--tp_size", "pipeline_parallel_size": "--pp_size", "max_model_len": "--max_seq_len",
    "max_num_seqs": "--max_batch_size", "max_num_batched_tokens": "--max_num_tokens",
    "free_gpu_memory_fraction": "--kv_cache_free_gpu_memory_fraction", "kv_cache_dtype": "--kv_cache_dtype",
    "enable_expert_parallel": "--ep_size",
}  # fmt: skip
"""TensorRT-LLM 1.3 ``tensorrt_llm/commands/serve.py``: all that its command line takes."""
_TENSORRT_LLM_FILE = {
    "tokens_per_block": "kv_cache_config.tokens_per_block", "max_total_tokens": "kv_cache_config.max_tokens",
    "kv_cache_memory_bytes": "kv_cache_config.max_gpu_total_bytes", "attn_dp_size": "enable_attention_dp",
}  # fmt: skip
"""What it takes in a file alone (``tensorrt_llm/llmapi/llm_args.py``)."""
OPTIONS_FILE = "options.yaml"
_OLLAMA = {
    "num_ctx": "OLLAMA_CONTEXT_LENGTH", "num_parallel": "OLLAMA_NUM_PARALLEL", "kv_cache_dtype": "OLLAMA_KV_CACHE_TYPE",
    "flash_attn": "OLLAMA_FLASH_ATTENTION",
}  # fmt: skip
_MODELFILE = {"num_batch": "num_batch", "n_gpu_layers": "num_gpu"}
"""Parameters of a Modelfile (Ollama ``api/types.go``, ``Runner``) for what no variable says."""
_LAYOUT = (
    "tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size", "decode_context_parallel_size",
    "enable_expert_parallel",
)  # fmt: skip
_WORKLOAD = frozenset(
    {
        "engine", "engine_version", "gpus", "concurrency", "prompt_tokens", "output_tokens", "shared_prefix_tokens",
        "weights", "extra", "defaults", "allow_long_max_model_len",
    }
)  # fmt: skip
"""Fields of `Settings` that are no flag of an engine."""


class Pasted(NamedTuple):
    """What starts a deployment."""

    line: str
    beside: str = ""
    """What has to be there besides the line: a file that it names, a second command."""


def command(model: ModelSpec, settings: Settings) -> Pasted | None:
    """The line to paste; None: the engine has no words for some of the settings.

    Args:
        settings: in the engine's own terms (`kvplan.engines.base.Engine.typed`).
    """
    name = model.repo or model.id
    if settings.engine == "sglang":
        return _sglang(model, settings, name)
    if settings.engine == "tensorrt-llm":
        return _tensorrt_llm(settings, name)
    if settings.engine == "ollama":
        return _ollama(model, settings)
    if settings.engine == "lmstudio":
        from kvplan.engines.lmstudio_command import load

        made = load(settings, quoted(name))
        return Pasted(*made) if made is not None else None
    if settings.engine in ("transformers", "exllamav3"):
        from kvplan.engines.paste_calls import call

        return Pasted(call(settings, name))
    if settings.engine not in PROGRAMS:
        return None
    if settings.engine == "llama.cpp":
        if "gguf" in name.partition("/")[2].lower() and not name.lower().endswith(".gguf"):
            return _line(name, settings, _llama_cpp(settings), program="llama-server -hf")
        file = name.rpartition("/")[2].replace(":", "-") if model.checkpoint is not None else model.id
        return _line(f"{model.id if file.lower() == model.id else file}.gguf", settings, _llama_cpp(settings))
    if settings.engine == "mlx":
        found = {k: v for k, v in settings.extra.items() if k not in settings.defaults and v is not None}
        limit = found.pop("iogpu_wired_limit_mb", None)
        wired = f"after sudo sysctl iogpu.wired_limit_mb={limit}" if limit else ""
        return _line(name, settings, found)._replace(beside=wired)
    return _line(name, settings, _given(settings), stored=model.checkpoint is not None)


def asked(model: ModelSpec, settings: Settings) -> str:
    """vLLM's line with what was asked for alone: no default is spelled out."""
    given = {name: value for name, value in _given(settings).items() if name not in settings.defaults}
    return _line(model.repo or model.id, settings, given, stored=model.checkpoint is not None).line


def _line(name: str, settings: Settings, given: dict[str, Any], *, program: str = "", stored: bool = False) -> Pasted:
    """One command.

    Args:
        stored: the checkpoint is quantised, so that the engine cannot quantise it at start.
    """
    words = [program or PROGRAMS[settings.engine], quoted(name)]
    for setting in sorted(given, key=lambda name: (name not in _LAYOUT, name)):
        words += _flag(settings, setting, given[setting])
    if settings.weights == "fp8" and settings.engine in ("vllm", "sglang") and not stored:
        words.append("--quantization fp8")
    if settings.weights == "fp32" and settings.engine in ("vllm", "sglang"):
        words.append("--dtype float32")
    return Pasted(" ".join((*_variables(settings), *words)))


def _variables(settings: Settings) -> list[str]:
    """Variables that stand before the command."""
    if settings.engine == "sglang" and settings.allow_long_max_model_len:
        return ["SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN=1"]
    if settings.engine != "vllm":
        return []
    found = ["VLLM_ALLOW_LONG_MAX_MODEL_LEN=1"] if settings.allow_long_max_model_len else []
    which = settings.extra.get("model_runner")
    return [*found, f"VLLM_USE_V2_MODEL_RUNNER={which - 1}"] if which in (1, 2) else found


def _given(settings: Settings) -> dict[str, Any]:
    """setting -> value of everything that stands in the line, layout first."""
    spelled = SPELLED_OUT[settings.engine]
    fields = {name: getattr(settings, name) for name in type(settings).__dataclass_fields__ if name not in _WORKLOAD}
    found = {name: fields.pop(name) for name in _LAYOUT if fields[name] is True or fields[name] > 1}
    fields = {name: value for name, value in fields.items() if name not in _LAYOUT}
    if settings.kv_cache_memory_bytes is not None:
        fields.pop("gpu_memory_utilization", None)
    for name, value in {**fields, **settings.extra}.items():
        if value is not None and (name in spelled or name not in settings.defaults):
            found[name] = value
    return found


def _sglang(model: ModelSpec, settings: Settings, name: str) -> Pasted | None:
    """DP attention has a flag of its own since 0.5.23; cache types are spelled as that release spells them."""
    from kvplan.engines.sglang.flags_by_version import ATTENTION_DP_SINCE, SINCE, cache_type
    from kvplan.engines.versions import at_least

    given, version, extra = _given(settings), settings.engine_version, []
    groups = given.pop("attn_dp_size", 1)
    if groups > 1 and at_least(version, ATTENTION_DP_SINCE):
        given["attn_dp_size"] = groups
    elif groups > 1:
        if "data_parallel_size" in given:
            return None  # one flag for both
        given["data_parallel_size"], extra = groups, ["--enable-dp-attention"]
    if given.pop("enable_expert_parallel", False) and settings.tensor_parallel_size > 1:
        given["enable_expert_parallel"] = settings.tensor_parallel_size
    if "kv_cache_dtype" in given:
        given["kv_cache_dtype"] = cache_type(given["kv_cache_dtype"], model, settings.weights, version)
        if given["kv_cache_dtype"] is None:
            del given["kv_cache_dtype"]
    if any(not at_least(version, SINCE.get(setting, "0")) for setting in given):
        return None
    line = _line(name, settings, given, stored=model.checkpoint is not None).line
    return Pasted(" ".join([line, *extra]))


def _tensorrt_llm(settings: Settings, name: str) -> Pasted:
    """Flags, and beside them the keys of the file for what the command line does not take."""
    given = _given(settings)
    if settings.kv_cache_memory_bytes is not None and "free_gpu_memory_fraction" in settings.defaults:
        given.pop("free_gpu_memory_fraction", None)
    each = given.pop("data_parallel_size", 1)
    if given.pop("enable_expert_parallel", False) and settings.tensor_parallel_size > 1:
        given["enable_expert_parallel"] = settings.tensor_parallel_size
    if given.get("attn_dp_size", 1) == 1:
        given.pop("attn_dp_size", None)
    if given.get("kv_cache_dtype", "auto") != "auto":
        from kvplan.spec.formats import get_format

        stored = get_format(given["kv_cache_dtype"], use="cache").name
        given["kv_cache_dtype"] = {"fp8_e4m3": "fp8", "nvfp4": "nvfp4"}.get(stored, "auto")
    keys: dict[str, Any] = {}
    for setting in [n for n in given if n in _TENSORRT_LLM_FILE]:
        group, _, key = _TENSORRT_LLM_FILE[setting].rpartition(".")
        value = "true" if setting == "attn_dp_size" else given[setting]
        keys.setdefault(group, {})[key] = value
        del given[setting]
    parts = [f"{k}: {v}" for k, v in keys.pop("", {}).items()]
    parts += [f"{g}: {{{', '.join(f'{k}: {v}' for k, v in pairs.items())}}}" for g, pairs in keys.items()]
    line = _line(name, settings, given).line
    beside = f"once for each of {each} replicas" if each > 1 else ""
    if not parts:
        return Pasted(line, beside)
    file = f"{OPTIONS_FILE} holds {{{', '.join(parts)}}}"
    return Pasted(f"{line} --extra_llm_api_options {OPTIONS_FILE}", "; ".join(filter(None, (file, beside))))


def _llama_cpp(settings: Settings) -> dict[str, Any]:
    """GPUs are no flag there, -c is the total over slots that do not share one pool, K and V have a type each."""
    extra = settings.extra
    slots = 1 if extra["unified"] else extra["slots"]
    found = {"ctx_size": extra.get("ctx_size") or settings.max_model_len * slots}
    if "kv_cache_dtype" not in settings.defaults:
        k, _, v = settings.kv_cache_dtype.partition(",")
        found |= {"cache_type_k": k, "cache_type_v": v or k}
    return found | {name: value for name, value in extra.items() if value is not None and name not in settings.defaults}


def _ollama(model: ModelSpec, settings: Settings) -> Pasted | None:
    """Variables of the server and what is run on it; parameters of a Modelfile for what they do not say."""
    extra, words, parameters = settings.extra, [], []
    given = {k: v for k, v in extra.items() if k not in settings.defaults and v is not None}
    given |= {"num_ctx": settings.max_model_len, "num_parallel": extra["parallel"]}
    for k in ("ctx_size", "parallel"):
        given.pop(k, None)
    if "kv_cache_dtype" not in settings.defaults:
        given["kv_cache_dtype"] = settings.kv_cache_dtype
    for setting in sorted(given):
        value = given[setting]
        if setting in _MODELFILE:
            parameters.append(f"PARAMETER {_MODELFILE[setting]} {value}")
        elif setting == "flash_attn":
            if value != "auto":
                words.append(f"{_OLLAMA[setting]}={int(str(value) in ('on', '1', 'true'))}")
        elif setting in _OLLAMA:
            words.append(f"{_OLLAMA[setting]}={quoted(str(value))}")
        else:
            return None
    return Pasted(" ".join([*sorted(words), "ollama serve"]), _ollama_run(model, settings, parameters))


def _ollama_run(model: ModelSpec, settings: Settings, parameters: list[str]) -> str:
    """The second command: a tag of the library where one is this model as it is planned, else a Modelfile of one's own.

    Source: Ollama ``docs/modelfile.mdx`` (``FROM``, ``PARAMETER``), ``cmd/interactive.go`` (``/set parameter``).
    """
    from kvplan.engines.ollama_library import tag_of

    own = model.checkpoint.format if model.checkpoint else model.dtype
    tag = tag_of(model.id, own if settings.weights == "auto" else settings.weights)
    base = tag or f"./{model.id}.gguf"
    if tag and not parameters:
        running = f"where a server runs already, /set parameter num_ctx {settings.max_model_len} at its prompt"
        return f"then ollama run {tag} ({running})"
    lines = ", ".join([f"FROM {base}", *parameters])
    return f"then ollama create my-{model.id} -f Modelfile ({lines}) and ollama run my-{model.id}"


def _flag(settings: Settings, setting: str, value: Any) -> list[str]:
    from kvplan.engines.vllm.flags import LAYOUT, OPTIONS, SERVED

    names = {"sglang": _SGLANG, "tensorrt-llm": _TENSORRT_LLM}.get(settings.engine, {})
    options = {option.setting: option for option in _options(settings.engine)}
    known = options.get(setting) or next((o for o in (*OPTIONS, *LAYOUT, *SERVED) if o.setting == setting), None)
    flag = names.get(setting) or (known.flags[0] if known else None)
    switch = known is not None and known.is_switch and setting not in names
    if flag is None or (switch and known is not None and value is not (known.kind == "true")):
        return []
    if switch:
        return [flag]
    text = f"{value:g}" if isinstance(value, float) else str(value)
    return [flag, quoted(text)]


def _options(engine: str) -> tuple[Any, ...]:
    if engine == "llama.cpp":
        from kvplan.engines.llama_cpp.flags import OPTIONS

        return OPTIONS
    from kvplan.engines import flags

    own = {"sglang": flags.SGLANG, "tensorrt-llm": flags.TENSORRT_LLM, "mlx": flags.MLX}
    return (*own.get(engine, ()), *flags.SHARED) if engine in own else ()

"""The command that starts a deployment as it was planned, for engines that have one.

What the user typed is repeated; settings whose defaults differ between releases and devices are spelled out, so that
the line means the same on another machine.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kvplan.engines.base import Settings
    from kvplan.spec.model import ModelSpec

PROGRAMS = {
    "vllm": "vllm serve", "sglang": "python -m sglang.launch_server --model-path", "tensorrt-llm": "trtllm-serve",
    "llama.cpp": "llama-server -m",
}  # fmt: skip
SPELLED_OUT = {
    "vllm": ("max_model_len", "gpu_memory_utilization", "max_num_seqs", "max_num_batched_tokens"),
    "sglang": ("max_model_len", "mem_fraction_static", "chunked_prefill_size"),
    "tensorrt-llm": ("max_model_len", "free_gpu_memory_fraction", "max_num_seqs", "max_num_batched_tokens"),
    "llama.cpp": (),
}
"""Settings that stand in the line although nobody typed them."""
_NAMES: dict[str, dict[str, str]] = {
    "sglang": {
        "tensor_parallel_size": "--tp-size", "pipeline_parallel_size": "--pp-size", "data_parallel_size": "--dp-size",
        "decode_context_parallel_size": "--dcp-size", "max_model_len": "--context-length",
        "mamba_ssm_cache_dtype": "--mamba-ssm-dtype",
    },
    "tensorrt-llm": {
        "tensor_parallel_size": "--tp_size", "pipeline_parallel_size": "--pp_size", "max_model_len": "--max_seq_len",
        "max_num_seqs": "--max_batch_size", "max_num_batched_tokens": "--max_num_tokens",
        "free_gpu_memory_fraction": "--kv_cache_free_gpu_memory_fraction", "kv_cache_dtype": "--kv_cache_dtype",
    },
}  # fmt: skip
"""Where an engine's flag is not the setting's own name."""
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


def command(model: ModelSpec, settings: Settings) -> str | None:
    """The line to paste; None: the engine is no server, or the deployment needs more than flags."""
    program = PROGRAMS.get(settings.engine)
    if program is None:
        return None
    name = f"{model.id}.gguf" if settings.engine == "llama.cpp" else model.repo or model.id
    words = [program, quoted(name)]
    given = _given(settings)
    for setting in sorted(given, key=lambda name: (name not in _LAYOUT, name)):
        words += _flag(settings, setting, given[setting])
    if settings.weights == "fp8" and settings.engine in ("vllm", "sglang"):
        words.append("--quantization fp8")
    return " ".join(words)


def _given(settings: Settings) -> dict[str, Any]:
    """setting -> value of everything that stands in the line, layout first."""
    spelled = SPELLED_OUT[settings.engine]
    fields = {name: getattr(settings, name) for name in type(settings).__dataclass_fields__ if name not in _WORKLOAD}
    found = {name: fields.pop(name) for name in _LAYOUT if fields[name] is True or fields[name] > 1}
    fields = {name: value for name, value in fields.items() if name not in _LAYOUT}
    if settings.engine == "llama.cpp":
        return _llama_cpp(settings)
    if settings.kv_cache_memory_bytes is not None:
        fields.pop("gpu_memory_utilization", None)
    for name, value in {**fields, **settings.extra}.items():
        if value is not None and (name in spelled or name not in settings.defaults):
            found[name] = value
    return found


def _llama_cpp(settings: Settings) -> dict[str, Any]:
    """GPUs are no flag there, -c is the total over slots that do not share one pool, K and V have a type each."""
    extra = settings.extra
    slots = 1 if extra["unified"] else extra["slots"]
    found = {"ctx_size": extra.get("ctx_size") or settings.max_model_len * slots}
    if "kv_cache_dtype" not in settings.defaults:
        k, _, v = settings.kv_cache_dtype.partition(",")
        found |= {"cache_type_k": k, "cache_type_v": v or k}
    return found | {name: value for name, value in extra.items() if value is not None and name not in settings.defaults}


def _flag(settings: Settings, setting: str, value: Any) -> list[str]:
    from kvplan.engines.vllm.flags import LAYOUT, OPTIONS

    names = _NAMES.get(settings.engine, {})
    options = {option.setting: option for option in _options(settings.engine)}
    known = options.get(setting) or next((o for o in (*OPTIONS, *LAYOUT) if o.setting == setting), None)
    flag = names.get(setting) or (known.flags[0] if known else None)
    if flag is None or (known is not None and known.is_switch and value is not (known.kind == "true")):
        return []
    if known is not None and known.is_switch:
        return [flag]
    text = f"{value:g}" if isinstance(value, float) else str(value)
    return [flag, quoted(text)]


def quoted(text: str) -> str:
    """`text` as one word of a shell; without ``shlex``, whose import every plan would pay for."""
    if text and all(c.isascii() and (c.isalnum() or c in "@%+=:,./_-") for c in text):
        return text
    return "'" + text.replace("'", "'\"'\"'") + "'"


def _options(engine: str) -> tuple[Any, ...]:
    if engine == "llama.cpp":
        from kvplan.engines.llama_cpp.flags import OPTIONS

        return OPTIONS
    from kvplan.engines import flags

    return {"sglang": (*flags.SGLANG, *flags.SHARED), "tensorrt-llm": (*flags.TENSORRT_LLM, *flags.SHARED)}.get(
        engine, ()
    )

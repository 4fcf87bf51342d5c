"""From what the user gave to every setting the plan uses, each with the source of its value."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from kvplan.engines.base import Engine, Settings
from kvplan.errors import InputError, UnknownNameError, UnsupportedError, nearest
from kvplan.spec.arrays import choose, is_array, larger

if TYPE_CHECKING:
    from kvplan.spec.gpu import GpuSpec
    from kvplan.spec.model import ModelSpec

SERVICE = frozenset({"request_rate", "ttft", "tpot", "prompt_cv", "output_cv", "acceptance_rate", "price"})
"""Traffic, its targets and what a GPU costs: with them a plan says what it serves (`kvplan.planning.workload`)."""

COMMON = SERVICE | frozenset(
    {
        "tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size", "decode_context_parallel_size",
        "enable_expert_parallel", "gpus", "max_model_len", "kv_cache_dtype", "weights", "kv_cache_memory_bytes",
        "concurrency", "prompt_tokens", "output_tokens", "shared_prefix_tokens",
    }
)  # fmt: skip
"""Settings that every engine understands."""

BESIDE = frozenset({"calibration", "price"})
"""What is given with the settings and is none."""

_COUNTS = {
    "tensor_parallel_size": 1 << 16, "pipeline_parallel_size": 1 << 16, "data_parallel_size": 1 << 16,
    "decode_context_parallel_size": 1 << 16, "gpus": 1 << 20, "max_num_seqs": 1 << 24,
    "max_num_batched_tokens": 1 << 32,
    "block_size": 1 << 20, "kv_cache_memory_bytes": 1 << 60, "num_gpu_blocks_override": 1 << 50, "concurrency": 1 << 40,
    "prompt_tokens": 1 << 40, "output_tokens": 1 << 40,
}  # fmt: skip
"""Whole-number settings above zero, and the largest value that is not a slip of the hand."""

_TEXTS = ("kv_cache_dtype", "weights", "mamba_ssm_cache_dtype")
_SWITCHES = ("enable_expert_parallel", "enforce_eager", "enable_prefix_caching", "allow_long_max_model_len")
_SHARES = ("gpu_memory_utilization",)
_MAY_BE_ZERO = ("shared_prefix_tokens", "output_tokens")
_AMOUNTS = {"request_rate": 1e9, "ttft": 1e6, "tpot": 1e6, "prompt_cv": 100.0, "output_cv": 100.0,
            "acceptance_rate": 0.999}  # fmt: skip
"""Amounts above zero (spreads may be 0), and the largest that is not a slip of the hand."""

_LENGTHS = ("prompt_tokens", "output_tokens")
_OWN = "kvplan's default"
_CUT = f"{_OWN}, cut to max_model_len"

MAX_WORLD_SIZE = 4096
"""GPUs of the largest deployment that is worked out rank by rank."""

FIT = -1
"""``max_model_len`` of -1: as long as the memory allows."""
FITTED = "fitted to the memory"
"""Where such a length comes from."""


def flag_name(setting: str) -> str:
    """``max_model_len`` -> ``--max-model-len``."""
    return "--" + setting.replace("_", "-")


def resolve(model: ModelSpec, gpu: GpuSpec | None, engine: Engine, given: dict[str, Any]) -> tuple[Settings, list[str]]:
    """Every setting of a deployment, and the warnings that came up.

    Args:
        given: what the user set; None counts as not given.

    Raises:
        InputError: a value out of range, a setting this engine does not have, a missing maximum length.
        UnsupportedError: settings that no memory makes legal.
    """
    given = {name: value for name, value in given.items() if value is not None}
    _check_names(engine, given)
    for name, value in given.items():
        _check_range(name, value)
    values: dict[str, Any] = {"engine": engine.name, "engine_version": engine.version, **given}
    sources: dict[str, str] = {}
    world = 1
    for name in ("tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size"):
        world *= given.get(name, 1)
    if "gpus" not in given:
        values["gpus"], sources["gpus"] = world, "tp x pp x dp"
    for name, (value, source) in engine.defaults(model, gpu, given).items():
        if name not in given:
            values[name], sources[name] = value, source
    if "max_model_len" not in values:
        longest = engine.default_context(model)
        if longest is None:
            raise InputError(
                f"{model.id} does not say how long a context it takes",
                where="--max-model-len",
                hint="add --max-model-len TOKENS",
            )
        values["max_model_len"], sources["max_model_len"] = longest, f"maximum of {model.id}"
    known = Settings.__dataclass_fields__
    extra = {name: values.pop(name) for name in list(values) if name not in known}
    for name in known:
        if name not in values and name not in ("defaults", "extra"):
            sources[name] = _OWN
    settings = cut(Settings(**values, extra=extra, defaults=sources))
    return settings, _check_layout(model, settings, engine.splits_tensors) + _check_workload(settings, gpu is None)


_COUNTERPARTS = {
    "max_model_len": ("ctx_size", "num_ctx", "max_kv_size", "max_cache_len"),
    "max_num_seqs": ("parallel", "num_parallel", "max_running_requests"),
    "kv_cache_dtype": ("cache_type_k", "cache_type_v", "kv_bits"),
    "gpu_memory_utilization": ("mem_fraction_static", "free_gpu_memory_fraction"),
    "block_size": ("page_size", "tokens_per_block"),
    "max_num_batched_tokens": ("chunked_prefill_size", "batch_size", "num_batch"),
}
"""Setting -> what comes nearest to it in other engines; an error message reads this, nothing else."""


def _check_names(engine: Engine, given: dict[str, Any]) -> None:
    known = COMMON | engine.settings
    for name in given:
        if name not in known:
            raise _unknown(engine, name, known)


def _unknown(engine: Engine, name: str, known: frozenset[str]) -> InputError | UnknownNameError:
    """The error for a setting that an engine does not have: which engines do, and what this one calls it."""
    from kvplan.engines import ENGINES, get_engine
    from kvplan.engines.vllm.flags import LAYOUT

    having = list(dict.fromkeys(e.name for e in map(get_engine, ENGINES) if name in e.settings))
    short = [option.setting for option in LAYOUT if f"-{name}" in option.flags]
    if short:
        return InputError(f"unknown setting {name!r}", where=f"--engine {engine.name}", hint=f"it is {short[0]} here")
    if not having and name not in Settings.__dataclass_fields__ and nearest(name, sorted(known)):
        return UnknownNameError("setting", name, sorted(known), where=f"--engine {engine.name}")
    own = [setting for setting, others in _COUNTERPARTS.items() if name in others and setting in known]
    back = [other for other in _COUNTERPARTS.get(name, ()) if other in known]
    hints = [f"type {flag_name(found)} instead" for found in (own + back)[:1]]
    hints.append(f"add --engine {having[0]}" if having else "leave it out")
    owners = f" ({', '.join(having)} ha{'s' if len(having) == 1 else 've'})" if having else ""
    return InputError(f"{engine.name} has no such setting{owners}", where=flag_name(name), hint=", or ".join(hints))


def _check_range(name: str, value: Any) -> None:
    if name in _COUNTS or name in ("max_model_len", *_MAY_BE_ZERO):
        if isinstance(value, bool) or not isinstance(value, int):
            raise InputError(f"{value!r} is not a whole number", where=flag_name(name), hint="type a whole number")
        least = 0 if name in _MAY_BE_ZERO else 1
        if value < least and not (name == "max_model_len" and value == FIT):
            raise InputError(f"{value} is too small", where=flag_name(name), hint=f"at least {least}")
        if value > _COUNTS.get(name, 1 << 40):
            raise InputError(f"{value:,} is absurdly large", where=flag_name(name), hint="check the digits")
    if name in _TEXTS and not isinstance(value, str):
        raise InputError(f"{value!r} is not a name", where=flag_name(name), hint="type a name, such as bf16")
    if name in _SWITCHES and not isinstance(value, bool):
        raise InputError(f"{value!r} is neither True nor False", where=flag_name(name), hint="type True or False")
    if name in _SHARES and (isinstance(value, bool) or not isinstance(value, int | float)):
        raise InputError(f"{value!r} is not a number", where=flag_name(name), hint="type a number such as 0.92")
    if name in _AMOUNTS:
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if not number or not (value > 0 or (value == 0 and name.endswith("_cv"))) or value > _AMOUNTS[name]:
            raise InputError(
                f"{value!r:.40} is out of range", where=flag_name(name), hint=f"above 0, up to {_AMOUNTS[name]:g}"
            )
    if name == "gpu_memory_utilization" and not 0 < value <= 1:
        raise InputError(
            f"{value} is not a share of the memory",
            where=flag_name(name),
            hint="type a number above 0 and up to 1, such as 0.92",
        )


def _check_layout(model: ModelSpec, settings: Settings, splits: bool) -> list[str]:
    tp, dcp, world = settings.tensor_parallel_size, settings.decode_context_parallel_size, settings.world_size
    if tp % dcp:
        raise UnsupportedError(
            f"decode context parallel size {dcp} does not divide tensor parallel size {tp}",
            where="--decode-context-parallel-size",
            hint=f"type one of {', '.join(str(d) for d in range(1, tp + 1) if tp % d == 0)}",
        )  # fmt: skip
    if settings.pipeline_parallel_size > model.num_layers:
        raise UnsupportedError(
            f"{settings.pipeline_parallel_size} pipeline stages for {model.num_layers} layers",
            where="--pipeline-parallel-size",
            hint=f"at most {model.num_layers}",
        )  # fmt: skip
    if world > MAX_WORLD_SIZE:
        raise InputError(
            f"tp x pp x dp makes {world:,} GPUs", where="--data-parallel-size", hint=f"at most {MAX_WORLD_SIZE:,}"
        )
    if settings.gpus < world:
        raise InputError(
            f"tp x pp x dp needs {world} GPUs, not {settings.gpus}",
            where="--gpus",
            hint=f"type --gpus {world}, or a smaller layout",
        )
    if settings.gpus > world:
        from kvplan.cache.sharding import legal_sizes

        wide, rest = divmod(settings.gpus, world // tp)
        legal = splits and not rest and wide in legal_sizes(model)
        more = f"; type -tp {wide} to split every layer over all" if legal else ""
        return [f"{settings.gpus - world} of {settings.gpus} GPUs idle: tp x pp x dp uses {world}{more}"]
    return []


def _check_workload(settings: Settings, no_verdict: bool) -> list[str]:
    if settings.shared_prefix_tokens > settings.prompt_tokens:
        raise InputError(
            f"a shared prefix of {settings.shared_prefix_tokens:,} tokens is longer than the prompt "
            f"of {settings.prompt_tokens:,}",
            where="--shared-prefix-tokens", hint="raise --prompt-tokens, which includes the prefix",
        )  # fmt: skip
    warnings = []
    if no_verdict and 0 < settings.max_model_len < settings.request_tokens:
        warnings.append(
            f"a request of {settings.request_tokens:,} tokens (prompt + output) is longer than "
            f"max_model_len {settings.max_model_len:,}"
        )
    if settings.max_num_seqs and settings.concurrency_per_replica > settings.max_num_seqs:
        warnings.append(
            f"{settings.concurrency_per_replica:,} requests a replica, of which max_num_seqs "
            f"{settings.max_num_seqs:,} run at once; the rest wait"
        )
    return warnings


def with_length(settings: Settings, max_model_len: int) -> Settings:
    """The same settings at another maximum length."""
    return cut(replace(settings, max_model_len=max_model_len))


def cut(settings: Settings) -> Settings:
    """The same settings with a workload that nobody gave cut to `max_model_len`; what was given stays.

    Prompt and output keep their proportion where both are defaults; else the default one gets what is left, if
    anything is. Takes arrays too.
    """
    length, shared, defaults = settings.max_model_len, settings.shared_prefix_tokens, settings.defaults
    free = [name for name in _LENGTHS if name in defaults]
    if not free or (not is_array(length) and length == FIT):
        return settings
    usual: dict[str, Any] = {name: Settings.__dataclass_fields__[name].default for name in free}
    prompt, output = (usual.get(name, getattr(settings, name)) for name in _LENGTHS)
    over: Any = prompt + output > length
    if not (over.any() if is_array(over) else over):
        if all(getattr(settings, name) is value for name, value in usual.items()):
            return settings
        return replace(settings, **usual, defaults={**defaults, **dict.fromkeys(free, _OWN)})
    if len(free) > 1:
        output = choose(over, length * output // (prompt + output), output)
    elif "output_tokens" in free:
        output = choose(over & (length > prompt), length - prompt, output)
    if "prompt_tokens" in free:
        prompt = choose(over & (length - output >= larger(shared, 1)), length - output, prompt)
    if prompt is settings.prompt_tokens and output is settings.output_tokens:
        return settings
    sources = {**defaults, **dict.fromkeys(free, _CUT)}
    return replace(settings, prompt_tokens=prompt, output_tokens=output, defaults=sources)

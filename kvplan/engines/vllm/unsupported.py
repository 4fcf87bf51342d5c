"""What vLLM does not start with, looked up only where a deployment comes near it: tiles of fp8, older devices."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from kvplan.cache.sharding import legal_sizes
from kvplan.engines.model_changes import json_flag
from kvplan.engines.vllm.layers import attention_family, has_states, mamba_mode, mixers_of
from kvplan.engines.vllm.versions import LATEST
from kvplan.errors import UnsupportedError
from kvplan.spec.formats import get_format

if TYPE_CHECKING:
    from kvplan.engines.base import Settings
    from kvplan.engines.vllm.versions import Rules
    from kvplan.spec.gpu import GpuSpec
    from kvplan.spec.model import ModelSpec

_LEAST: tuple[tuple[str, float, float], ...] = (
    ("fp8", 8.0, 7.5), ("nvfp4", 8.0, 7.5), ("mxfp4", 8.0, 8.0), ("awq", 7.5, 7.5),
)  # fmt: skip
"""Start of a weight format's name; the least compute capability to 0.13, and since 0.14. Source: vLLM 0.11.0 to 0.33.0
``vllm/model_executor/layers/quantization/``: ``get_min_capability`` of ``fp8.py``, ``modelopt.py``, ``mxfp4.py``,
``awq.py`` (since 0.24 ``auto_awq.py``)."""

_NO_STAGES = (
    "Gemma3nForCausalLM", "Gemma3nForConditionalGeneration", "Mamba2ForCausalLM", "MiniMaxM1ForCausalLM",
    "MiniMaxText01ForCausalLM", "WhisperForConditionalGeneration", "Zamba2ForCausalLM",
)  # fmt: skip
"""Architectures that do not run in pipeline stages, in no release from 0.17.0 to 0.33.0: their classes in
``vllm/model_executor/models/`` lack ``SupportsPP`` (``vllm/config/model.py``, ``verify_with_parallel_config``)."""


class Stretch(NamedTuple):
    """How a model's documentation stretches it."""

    stated: int
    """The maximum that its configuration states."""
    original: int
    """Tokens before stretching."""
    most: int
    """The largest factor."""


YARN = {"Qwen3ForCausalLM": Stretch(40_960, 32_768, 4), "Qwen3MoeForCausalLM": Stretch(40_960, 32_768, 4)}
"""Architecture -> the YaRN of its model cards: the section on long texts of Qwen/Qwen3-32B and Qwen/Qwen3-235B-A22B."""
_THETA = 1_000_000
"""``rope_theta`` of those models, which a replaced ``rope_parameters`` has to repeat."""


def stretching(model: ModelSpec, settings: Settings, gpu: GpuSpec | None, limit: int, rules: Rules) -> str:
    """What to type for a length above the model's maximum: the command where the model's documentation says how.

    Up to vLLM 0.11 the rule is called ``rope_scaling``. ``max_position_embeddings`` is there because 0.30 and above do
    not multiply it (`kvplan.engines.vllm.command.longest`).
    """
    from kvplan.engines.paste import asked

    known = YARN.get(model.architecture or "")
    factor = -(-settings.max_model_len // known.original) if known else 0
    more = ""
    if gpu is not None:
        more = f" --gpu-memory {gpu.device_bytes}B" if gpu.vendor == "custom" else f" --gpu {gpu.id}"
    more += f" --engine vllm@{rules.name}" if rules.name != LATEST else ""
    if known is None or model.rope is not None or known.stated != limit or factor > known.most:
        return (
            f"with the rope rule of the model's documentation as JSON, kvplan plan \"{asked(model, settings)} "
            f"--hf-overrides 'JSON'\"{more}"
        )
    rule = {"rope_type": "yarn", "factor": float(factor), "original_max_position_embeddings": known.original}
    length = known.original * factor
    if rules.version >= (0, 12, 0):
        keys = {"rope_parameters": {"rope_theta": _THETA, **rule}, "max_position_embeddings": length}
    else:
        keys = {"rope_scaling": rule, "max_position_embeddings": length}
    given = f"{asked(model, settings)} {json_flag('--hf-overrides', keys)}"
    quoted = given.replace('"', '\\"')
    return f'with YaRN as its documentation has it, kvplan plan "{quoted}"{more}'


def check_stages(model: ModelSpec, rules: Rules) -> None:
    """Refuse pipeline stages of a model whose class cannot be cut into them.

    Raises:
        UnsupportedError: it cannot.
    """
    if model.architecture in _NO_STAGES:
        raise UnsupportedError(
            f"vLLM {rules.name} does not run {model.architecture} in pipeline stages (it lacks SupportsPP)",
            where="--pipeline-parallel-size", hint="type --tensor-parallel-size instead",
        )  # fmt: skip


def check_weights(model: ModelSpec, settings: Settings, capability: float, rules: Rules) -> None:
    """Refuse weights whose kernels begin at a newer device.

    Args:
        capability: compute capability of an NVIDIA device, as a number.

    Raises:
        UnsupportedError: such weights.
    """
    stored = model.checkpoint
    named = [settings.weights]
    if settings.weights == "auto":
        named = [stored.format, *stored.overrides.values()] if stored else []
    for name in (get_format(n, use="weights").name for n in named):
        for start, before, since in _LEAST:
            least = since if rules.has("quantized_from_sm75") else before
            if name.startswith(start) and capability < least:
                raise UnsupportedError(
                    f"vLLM {rules.name} runs weights in {name} on compute capability {least:g} and above, "
                    f"not {capability:g}",
                    where="--weights" if settings.weights != "auto" else "--gpu",
                    hint="name a newer GPU, or weights in another format, such as --weights gptq",
                )  # fmt: skip


def check_asked(model: ModelSpec, settings: Settings, capability: float, rules: Rules) -> None:
    """Refuse prompts in one piece beside states that are kept at the ends of blocks, scheduling ahead over stages,
    TurboQuant beside states, 16 bits by name where no backend lists them or of another dtype than the model's.

    Source: vLLM 0.15.0 to 0.33.0 ``vllm/model_executor/models/config.py``, ``MambaModelConfig``; 0.11.0
    ``vllm/engine/arg_utils.py`` and 0.12.0 to 0.14.0 ``vllm/config/vllm.py`` (``async_scheduling``); 0.12.0 to 0.14.0
    ``supported_kv_cache_dtypes`` in ``vllm/v1/attention/backends/``; 0.33.0 ``vllm/config/vllm.py``,
    ``_reject_mismatched_float_kv_cache``; 0.20.1 ``vllm/engine/arg_utils.py`` for TurboQuant.

    Raises:
        UnsupportedError: such settings.
    """
    if settings.extra.get("enable_chunked_prefill") is False and mamba_mode(model, settings, rules) == "align":
        raise UnsupportedError(
            f"vLLM {rules.name} shares prefixes of a model with states only where prompts are cut",
            where="--no-enable-chunked-prefill", hint="leave it out, or type --no-enable-prefix-caching",
        )  # fmt: skip
    if (
        settings.extra.get("async_scheduling")
        and settings.pipeline_parallel_size > 1
        and not rules.has("ahead_over_stages")
    ):
        raise UnsupportedError(
            f"vLLM {rules.name} does not schedule ahead over pipeline stages", where="--async-scheduling",
            hint="leave it out",
        )  # fmt: skip
    packed = settings.kv_cache_dtype.startswith("turboquant")
    if packed and has_states(model) and not rules.has("turboquant_beside_states"):
        raise UnsupportedError(
            f"vLLM {rules.name} does not keep {settings.kv_cache_dtype} beside states", where="--kv-cache-dtype",
            hint="type --kv-cache-dtype fp8",
        )  # fmt: skip
    if settings.kv_cache_dtype not in ("bfloat16", "float16"):
        return
    sparse = attention_family(mixers_of(model)) == "sparse"  # which take it for auto
    if rules.has("backends_list_formats") and not rules.has("bf16_by_name") and not sparse:
        raise UnsupportedError(
            f"no attention backend of vLLM {rules.name} lists {settings.kv_cache_dtype}", where="--kv-cache-dtype",
            hint="type --kv-cache-dtype auto",
        )  # fmt: skip
    if not rules.has("plain_format_is_the_models"):
        return
    own = get_format(model.dtype).name
    if own == "bf16" and 0 < capability < 8:
        own = "fp16"  # what such devices run it in
    if get_format(settings.kv_cache_dtype, use="cache").name != own:
        raise UnsupportedError(
            f"vLLM {rules.name} refuses a cache in {settings.kv_cache_dtype} for a model in {own}",
            where="--kv-cache-dtype", hint="type --kv-cache-dtype auto",
        )  # fmt: skip


def check_fp8_tiles(model: ModelSpec, settings: Settings) -> None:
    """FFN widths that ranks cut must stay whole tiles where weights come in tiles with a scale each.

    Source: vLLM 0.33.0 ``vllm/model_executor/layers/quantization/fp8.py`` (``create_weights`` of experts and
    ``validate_fp8_block_shape``).

    Raises:
        UnsupportedError: ranks that cut tiles.
    """
    stored = model.checkpoint
    tp, dp = settings.tensor_parallel_size, settings.data_parallel_size
    if stored is None or settings.weights != "auto" or not (tile := get_format(stored.format).tile):
        return
    for name in model.layer_counts:
        for ffn in model.blocks[name].ffns:
            routed = hasattr(ffn, "experts")
            role = "routed_experts" if routed else "dense_ffn"
            ranks = (1 if settings.enable_expert_parallel else tp * dp) if routed else tp
            width: int = getattr(ffn, "intermediate_size")  # noqa: B009 - both kinds of FFN have it
            if ranks == 1 or role not in stored.roles or role in stored.overrides or width % ranks:
                continue
            if width // ranks % tile[0]:
                whole = [n for n in legal_sizes(model, ranks) if width % n == 0 and width // n % tile[0] == 0]
                other = "type --enable-expert-parallel, or " if routed else "type "
                raise UnsupportedError(
                    f"vLLM cuts {'experts' if routed else 'FFNs'} of {width} into {ranks} parts of {width // ranks}, "
                    f"no multiple of the {tile[0]} of an fp8 tile",
                    where="--tensor-parallel-size",
                    hint=f"{other}--tensor-parallel-size {max(whole, default=1)}",
                )

"""What vLLM decides by itself: defaults by version, device and model, cache formats, and what it refuses."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kvplan.cache.bytes import KvFormats
from kvplan.engines.base import Settings
from kvplan.engines.vllm import backends, layout, speculation
from kvplan.engines.vllm.flags import check_served
from kvplan.engines.vllm.layers import attention_family, has_states, mixers_of, rope_free, v4_format
from kvplan.engines.vllm.runner import OTHER_DEVICE
from kvplan.engines.vllm.states import gdn_prefill_backend, recurrent_bytes, state_dtypes
from kvplan.engines.vllm.versions import Rules, Version
from kvplan.errors import InputError, UnsupportedError, nearest
from kvplan.spec.formats import Format, get_format
from kvplan.units import GIB

if TYPE_CHECKING:
    from kvplan.spec.gpu import GpuSpec
    from kvplan.spec.model import ModelSpec

FORMATS: dict[str, Version] = {
    "bf16": (0, 11, 0), "fp16": (0, 18, 0), "fp8_e4m3": (0, 11, 0), "fp8_e5m2": (0, 11, 0), "fp8_ds_mla": (0, 12, 0),
    "nvfp4_ds_mla": (0, 30, 0), "nvfp4": (0, 20, 0), "turboquant_k8v4": (0, 20, 0), "turboquant_4bit_nc": (0, 20, 0),
    "turboquant_k3v4_nc": (0, 20, 0), "turboquant_3bit_nc": (0, 20, 0), "int8_per_token_head": (0, 20, 0),
    "fp8_per_token_head": (0, 20, 0), "int4_per_token_head": (0, 25, 0),
}  # fmt: skip
"""Cache formats that vLLM takes (kvplan's names) and the first release read that does
(``vllm/config/cache.py``, ``CacheDType``); the model's own dtype always works."""
FP8_ON_SM10 = ("GlmMoeDsaForCausalLM", "Glm5NextForCausalLM", "Glm5NextForConditionalGeneration")
"""Architectures whose cache is fp8 on compute capability 10 unless a format is given
(``vllm/model_executor/models/config.py``, ``GlmMoeDsaForCausalLM``, ``Glm5NextModelConfig``)."""
NO_FLOAT16 = ("Gemma2ForCausalLM", "Gemma3ForCausalLM", "Gemma3ForConditionalGeneration", "Glm4ForCausalLM")
"""Architectures that vLLM does not run in float16 (``vllm/config/model.py``, ``_FLOAT16_NOT_SUPPORTED_MODELS``)."""
LENGTH_UNSAID = 2048
"""Tokens of a context whose length no key states (0.11.0 to 0.33.0 ``vllm/config/model.py``)."""
INDEX_FORMAT = "fp8_per_token_head"
"""Index keys of sparse latent attention: 128 values in fp8 and one fp32 scale, whatever the cache's format
(``vllm/model_executor/models/deepseek_v2.py``, ``DeepseekV32IndexerCache``). Beside K and V they keep the
model's dtype (``vllm/models/minimax_m3/common/indexer.py``)."""
_HOPPER = "9.0"


def capability_of(gpu: GpuSpec | None) -> str:
    """Compute capability; Hopper's where no device, or only its memory, is given; 0.0 for other vendors."""
    if gpu is None or (gpu.compute_capability is None and gpu.vendor == "custom"):
        return _HOPPER
    text = gpu.compute_capability or ""
    return text if text[:1].isdigit() else OTHER_DEVICE


def defaults(
    model: ModelSpec, gpu: GpuSpec | None, given: dict[str, Any], rules: Rules, length: int | None
) -> dict[str, tuple[Any, str]]:
    """Values of settings that the user left open: name -> (value, where it comes from).

    Args:
        length: ``max_model_len`` where nobody gives one; None: the model states none.
    """
    version, capability = f"vLLM {rules.name}", capability_of(gpu)
    found: dict[str, tuple[Any, str]] = {
        "gpu_memory_utilization": (0.92 if rules.has("utilization_0_92") else 0.9, f"{version} vllm/config/cache.py"),
        "compute_capability": (capability, gpu.id if gpu else "no device given: Hopper's"),
        "enable_prefix_caching": _prefix_caching(model, given, rules),
    }
    if length is None:
        found["max_model_len"] = (LENGTH_UNSAID, f"{version} vllm/config/model.py: {model.id} states none")
    dtype = given.get("kv_cache_dtype", "auto")
    if model.architecture in FP8_ON_SM10 and capability.startswith("10.") and rules.has("dsa_fp8_on_sm10"):
        found["kv_cache_dtype"] = ("fp8", f"{version} vllm/model_executor/models/config.py: on compute capability 10")
        dtype = given.get("kv_cache_dtype", "fp8")
    extra = {"compute_capability": capability}
    family = attention_family(mixers_of(model))
    if family not in (None, "compressed"):
        assert family is not None
        if given.get("attention_backend") and (gpu is None or gpu.vendor in ("nvidia", "custom")):
            stored = _plain_format(model, str(dtype), rules)
            _check_format(model, stored, str(dtype), rules)
            backends.check_choice(str(given["attention_backend"]), family, capability, stored.name, rules)
        name = given.get("attention_backend") or _backend(model, family, capability, str(dtype), given, rules)
        extra["attention_backend"] = str(name).upper()
        found["attention_backend"] = (extra["attention_backend"], f"{version} vllm/platforms/cuda.py: first that fits")
    gdn = {m.key_head_dim for m in mixers_of(model) if m.kind == "gated_delta_net"}  # type: ignore[attr-defined]
    if gdn:
        found["gdn_prefill_backend"] = (gdn_prefill_backend(capability, gdn), f"{version} qwen_gdn_linear_attn.py")
    trial = Settings(engine="vllm", engine_version=rules.name, kv_cache_dtype=str(dtype), extra=extra)
    if "block_size" not in given:
        size = layout.default_block(model, trial, rules, kv_formats(model, trial, rules))
        why = f"{version} {extra.get('attention_backend', 'vllm/config/cache.py')}: 16, or the smallest that it takes"
        found["block_size"] = (size, why)
    if length is not None and length != model.max_position_embeddings:
        found["max_model_len"] = (length, f"{version} vllm/config/model.py: from the configuration's rope rule")
    if gpu is not None:
        found |= _batch(gpu, given, rules, length or 0)
    return found


def _prefix_caching(model: ModelSpec, given: dict[str, Any], rules: Rules) -> tuple[bool, str]:
    source = f"vLLM {rules.name} vllm/engine/arg_utils.py"
    if given.get("force_prefix_caching"):
        return True, "--enable-prefix-caching"
    mixers = mixers_of(model)
    if any(s.fixed_entries is not None for m in mixers for s in m.streams()):
        return False, f"{source}: off with an encoder"
    if has_states(model):
        if not any(m.streams() for m in mixers):
            return False, f"{source}: off without attention"
        on = rules.has("hybrid_prefix_caching")
        return on, f"{source}: {'on' if on else 'off'} for hybrids"
    return True, source


def _batch(gpu: GpuSpec, given: dict[str, Any], rules: Rules, longest: int) -> dict[str, tuple[Any, str]]:
    """Batch limits of the API server by device memory.

    Source: vLLM 0.33.0 ``vllm/engine/arg_utils.py``, ``get_batch_defaults``.
    """
    source = f"vLLM {rules.name} vllm/engine/arg_utils.py, API server on this size of device"
    total = gpu.device_bytes
    batched, seqs = 2048, 256
    if total >= 160 * GIB and rules.has("largest_batch_tier"):
        batched, seqs = 16384, 1024
    elif total >= 70 * GIB and "A100" not in gpu.name.upper() and gpu.compute_capability != "12.1":
        batched, seqs = 8192, 1024
    if given.get("performance_mode") == "throughput" and rules.has("performance_modes"):
        batched, seqs = 2 * batched, 2 * seqs
    running = given.get("max_num_seqs") or seqs
    length = given.get("max_model_len") or 0
    if length <= 0:
        length = longest
    if _whole_prompts(given, rules):
        batched = max(batched, length)
    if length > 0:
        batched = min(batched, running * length)
    batched = given.get("max_num_batched_tokens") or batched
    return {"max_num_batched_tokens": (batched, source), "max_num_seqs": (min(running, batched), source)}


def _backend(model: ModelSpec, family: str, device: str, dtype: str, given: dict[str, Any], rules: Rules) -> str:
    fmt, block = _plain_format(model, dtype, rules), given.get("block_size")
    quantized, name = fmt.name not in backends.PLAIN_FORMATS, fmt.name
    packed_rows = quantized or (dtype == "auto" and not rules.has("v32_auto_is_bf16"))
    if family == "sparse" and packed_rows and not rules.has("v32_fp8_by_backend") and device[:2] in ("9.", "10"):
        return "FLASHMLA_SPARSE"
    if not rules.has("backend_chooses_block"):
        block = None  # the platform forces the block, not the backend
        read = backends.reads("CUTLASS_MLA", device, name, rules) or not rules.has("backends_list_formats")
        if family == "mla" and device.startswith("10.") and read and not rules.has("mamba_cache_modes"):
            return "CUTLASS_MLA"
    free = family == "sparse" and rope_free(mixers_of(model))
    heads = max(getattr(m, "query_heads", 0) for m in mixers_of(model)) // given.get("tensor_parallel_size", 1)
    return backends.choose(
        family, device, rules, quantized=quantized, cache_format=name, block_size=block, rope_free=free,
        few_heads=heads <= 16, spelled_out=dtype == "fp8_e4m3",
    )  # fmt: skip


def _plain_format(model: ModelSpec, dtype: str, rules: Rules) -> Format:
    """The format that a flag's text, or the checkpoint, names."""
    name = dtype
    if rules.format_unread(model.architecture):
        name = model.dtype
    elif name == "auto":
        taken = model.checkpoint is not None and rules.has("checkpoint_names_format")
        name = (model.checkpoint.kv_cache_format if model.checkpoint and taken else None) or model.dtype
    key, _, value = name.partition(",")
    found = get_format(key, use="cache", where="--kv-cache-dtype")
    if value and get_format(value, use="cache", where="--kv-cache-dtype").name != found.name:
        raise UnsupportedError(
            "vLLM stores K and V in one format", where="--kv-cache-dtype", hint="name one, such as fp8"
        )
    return found


def kv_formats(model: ModelSpec, settings: Settings, rules: Rules) -> KvFormats:
    """How each part of the cache is stored.

    Raises:
        UnsupportedError: a format that this version does not take.
    """
    dtype = settings.kv_cache_dtype
    key = _plain_format(model, dtype, rules)
    _check_format(model, key, dtype, rules)
    family = attention_family(mixers_of(model))
    _check_rows(key, family)
    if family == "compressed":
        own = v4_format(model, str(settings.extra.get("compute_capability", _HOPPER)))
        if own is not None and (dtype == "auto" or key.name in ("fp8_e4m3", "fp8_ds_mla")):
            key = own
        elif own is not None:
            raise UnsupportedError(
                f"the pages of {model.architecture} in {key.name} are not modelled", where="--kv-cache-dtype",
                hint="leave the flag out: vLLM stores them in fp8",
            )  # fmt: skip
    elif family == "sparse":
        key = _sparse_format(key, dtype, settings, rules)
    states = state_dtypes(
        model,
        rules,
        conv=str(settings.extra.get("mamba_cache_dtype", "auto")),
        recurrent=settings.mamba_ssm_cache_dtype,
    )
    kinds = [m.kind for m in mixers_of(model) if any(s.name == "recurrent" for s in m.states())]
    recurrent = recurrent_bytes(kinds[0], states, rules) if kinds else states.conv
    index = get_format(INDEX_FORMAT if family in ("sparse", "compressed") else model.dtype)
    return KvFormats(key, key, index, states.conv, recurrent)


def _sparse_format(key: Format, dtype: str, settings: Settings, rules: Rules) -> Format:
    """Latent rows of sparse attention: some backends have a row layout of their own for 8 bits."""
    name = layout.backend_name("sparse", settings, key.name)
    row = backends.get_backend(name).row
    always = name == "FLASHINFER_MLA_SPARSE_SM120" or (dtype == "auto" and not rules.has("v32_auto_is_bf16"))
    if row and (always or key.name in ("fp8_e4m3", "fp8_e5m2")):
        return get_format(row)
    return key


def _check_rows(fmt: Format, family: str | None) -> None:
    """Layouts of a whole latent row are for sparse latent attention alone (DeepSeek-V3.2 and V4).

    Source: vLLM 0.33.0 ``vllm/v1/attention/backends/mla/``: only the sparse backends list them.
    """
    if fmt.name.endswith("_ds_mla") and family not in ("sparse", "compressed"):
        what = "latent attention without an index" if family == "mla" else "attention over K and V"
        raise UnsupportedError(
            f"no attention backend of vLLM keeps {fmt.name} rows for {what}", where="--kv-cache-dtype",
            hint="type --kv-cache-dtype fp8",
        )  # fmt: skip


def _check_batch(settings: Settings, rules: Rules) -> None:
    """A step must have room for a token of every running sequence, in every release read, and for a whole prompt where
    prompts are not cut.

    Source: vLLM 0.33.0 ``vllm/config/scheduler.py``, ``verify_max_model_len`` (0.11.0: ``_verify_args``).
    """
    batched, seqs = settings.max_num_batched_tokens, settings.max_num_seqs
    if batched is not None and seqs is not None and batched < seqs:
        given = "max_num_batched_tokens" not in settings.defaults
        raise UnsupportedError(
            f"vLLM refuses max_num_batched_tokens {batched:,} below max_num_seqs {seqs:,}",
            where="--max-num-batched-tokens" if given else "--max-num-seqs",
            hint=f"type --max-num-batched-tokens {seqs}, or --max-num-seqs {batched}",
        )
    length = settings.max_model_len
    if batched is not None and batched < length and _whole_prompts(settings.extra, rules):
        raise UnsupportedError(
            f"vLLM refuses max_num_batched_tokens {batched:,} below max_model_len {length:,} where prompts are not cut",
            where="--no-enable-chunked-prefill",
            hint=f"leave it out, or type --max-num-batched-tokens {length}, or --max-model-len {batched}",
        )


def _whole_prompts(given: dict[str, Any], rules: Rules) -> bool:
    """Whether a prompt is one step, however long (0.11 cuts them all the same)."""
    return given.get("enable_chunked_prefill") is False and rules.has("chunking_may_be_off")


def _check_format(model: ModelSpec, fmt: Format, dtype: str, rules: Rules) -> None:
    since = FORMATS.get(fmt.name)
    if fmt.name == get_format(model.dtype).name or (since is not None and rules.version >= since):
        return
    known = [name for name, first in FORMATS.items() if rules.version >= first]
    near = nearest(fmt.name, known) or ["fp8_e4m3"]
    why = f"since {'.'.join(map(str, since))}" if since else f"takes {', '.join(known)}"
    raise UnsupportedError(
        f"vLLM {rules.name} has no cache in {fmt.name} ({why})", where="--kv-cache-dtype",
        hint=f"type --kv-cache-dtype {near[0]}",
    )  # fmt: skip


def check(model: ModelSpec, settings: Settings, gpu: GpuSpec | None, rules: Rules, longest: int | None) -> list[str]:
    """Refuse what no memory makes legal; returns warnings."""
    warnings = _check_length(model, settings, gpu, longest, rules) + _dtype_warnings(model, gpu)
    check_served(settings.extra)
    _check_batch(settings, rules)
    _check_block(model, settings, rules)
    if settings.decode_context_parallel_size > 1:
        from kvplan.engines.vllm.context_ranks import check_context_ranks

        check_context_ranks(model, settings, rules, kv_formats(model, settings, rules).k.name)
    if settings.pipeline_parallel_size > 1:
        from kvplan.engines.vllm.unsupported import check_stages

        check_stages(model, rules)
    speculation.check_method(settings, rules)
    if model.checkpoint is not None and settings.weights == "auto" and get_format(model.checkpoint.format).tile:
        from kvplan.engines.vllm.unsupported import check_fp8_tiles

        check_fp8_tiles(model, settings)
    if gpu is not None and gpu.vendor == "nvidia":
        _check_nvfp4(model, settings, capability_of(gpu), rules)
        if 0 < float(capability_of(gpu)) < 8:
            from kvplan.engines.vllm.unsupported import check_weights

            check_weights(model, settings, float(capability_of(gpu)), rules)
    unusual = settings.extra.get("async_scheduling") or settings.extra.get("enable_chunked_prefill") is False
    if unusual or settings.kv_cache_dtype.startswith(("bfloat16", "float16", "turboquant")):
        from kvplan.engines.vllm.unsupported import check_asked

        check_asked(model, settings, float(capability_of(gpu)), rules)
    mode = settings.extra.get("mamba_cache_mode")
    if mode not in (None, "auto", "align", "all", "none"):
        raise InputError(f"{mode!r} is no such mode", where="--mamba-cache-mode", hint="align or all")
    if mode == "all" and rules.has("no_mode_all"):
        raise UnsupportedError(
            "vLLM removed this mode in 0.32.0", where="--mamba-cache-mode", hint="type --mamba-cache-mode align"
        )
    streams = [s for m in mixers_of(model) for s in m.streams()]
    off = layout.connector_without_windows(settings, rules)
    if off and any(s.window for s in streams):
        warnings.append(f"{off} turns the hybrid cache manager off: windowed layers hold every token")
    fmt = kv_formats(model, settings, rules).k
    ends = {*model.layers[: fmt.edge_layers], *model.layers[-fmt.edge_layers :]} if fmt.edge_layers else ()
    outermost = [s for name in ends for m in model.blocks[name].mixers for s in m.streams()]
    warnings += backends.check_packed_windows(model.id, streams, outermost, fmt, rules)
    family = attention_family(mixers_of(model))
    if family == "compressed" and settings.kv_cache_dtype == "auto" and not rules.has("v4_auto_is_fp8"):
        warnings.append(f"vLLM {rules.name} starts {model.id} only with --kv-cache-dtype fp8: these are its figures")
    if settings.kv_cache_dtype != "auto" and rules.format_unread(model.architecture):
        _check_format(model, get_format(settings.kv_cache_dtype, use="cache"), "", rules)
        warnings.append(
            f"vLLM {rules.name} keeps the rows of {model.id} in {model.dtype}, whatever --kv-cache-dtype says"
        )
    if gpu and capability_of(gpu) == OTHER_DEVICE:
        warnings.append(f"vLLM's block sizes on {gpu.vendor} are not modelled; those of a plain backend are used")
    return warnings


def runs_in_float32(model: ModelSpec, settings: Settings) -> bool:
    """Whether weights that are not quantised, and the cache, are held in 32 bits: no bfloat16 and no float16 either.

    Source: vLLM 0.11.0 to 0.33.0 ``vllm/config/model.py``, ``_resolve_auto_dtype``.
    """
    if model.architecture not in NO_FLOAT16 or model.dtype not in ("bf16", "fp32"):
        return False
    return 0 < float(settings.extra.get("compute_capability", _HOPPER)) < 8


def _dtype_warnings(model: ModelSpec, gpu: GpuSpec | None) -> list[str]:
    """What runs instead of bfloat16 where a device has none.

    Source: vLLM 0.33.0 ``vllm/platforms/cuda.py`` (``supported_dtypes``), ``vllm/config/model.py``.
    """
    if gpu is None or gpu.vendor != "nvidia" or model.dtype not in ("bf16", "fp32"):
        return []
    capability = float(capability_of(gpu))
    if not 0 < capability < 8:
        return []
    wide = "float32, twice as many bytes: float16 is refused for this model"
    held = wide if model.architecture in NO_FLOAT16 else "float16, as many bytes"
    return [f"{gpu.id} has no bfloat16 (compute capability {capability:g}): vLLM runs {model.id} in {held}"]


def _check_length(
    model: ModelSpec, settings: Settings, gpu: GpuSpec | None, limit: int | None, rules: Rules
) -> list[str]:  # fmt: skip
    if not limit or settings.max_model_len <= limit:
        return []
    if not settings.allow_long_max_model_len:
        from kvplan.engines.vllm.unsupported import stretching

        raise UnsupportedError(
            f"vLLM {rules.name} refuses {settings.max_model_len:,} tokens: the model's maximum is {limit:,}",
            where="--max-model-len",
            hint=f"type --max-model-len {limit}; or lift the limit: VLLM_ALLOW_LONG_MAX_MODEL_LEN=1 before the "
            "command, allow-long-max-model-len: true in a rule file, allow_long_max_model_len=True in Python; or "
            f"stretch it: {stretching(model, settings, gpu, limit, rules)}",
        )
    return [
        f"max_model_len {settings.max_model_len:,} is above the model's {limit:,} (VLLM_ALLOW_LONG_MAX_MODEL_LEN=1)"
    ]


def _check_block(model: ModelSpec, settings: Settings, rules: Rules) -> None:
    """Blocks must be multiples of what every backend takes."""
    size = layout.given_block(model, settings, rules)
    for backend in layout.backends_of(model, settings, kv_formats(model, settings, rules)):
        if not backend.takes(size):
            step = min(backend.sizes)
            near = max(step, size // step * step)
            raise UnsupportedError(
                f"vLLM takes blocks of a multiple of {step} tokens here, not {size}", where="--block-size",
                hint=f"type --block-size {near}",
            )  # fmt: skip


def _check_nvfp4(model: ModelSpec, settings: Settings, capability: str, rules: Rules) -> None:
    """4-bit floats in the cache are FlashInfer's, on Blackwell.

    Source: vLLM 0.33.0 ``vllm/v1/attention/backends/flashinfer.py``.
    """
    name = kv_formats(model, settings, rules).k.name
    if name.startswith("nvfp4") and int(capability.partition(".")[0] or 0) < 10:
        raise UnsupportedError(
            f"vLLM keeps a cache in {name} on compute capability 10 and above, not {capability}",
            where="--kv-cache-dtype", hint="type --kv-cache-dtype fp8",
        )  # fmt: skip

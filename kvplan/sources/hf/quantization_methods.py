"""The dialects of ``quantization_config``: one reader per method, each from its keys to a storage format.

Source, unless said otherwise: the fields that vLLM 0.33.0 ``vllm/model_executor/layers/quantization/*.py`` reads.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from kvplan.errors import SpecError, printable
from kvplan.sources.hf.keys import Config
from kvplan.spec.format_table import FORMATS, MATRICES

WAY_OUT = "say how the weights are stored: --weights FORMAT (`kvplan formats` lists them)"
MARLIN_24 = "marlin-24"
Exceptions = list[tuple[str | None, list[str]]]
"""Formats (None: left as they were) and the modules stored in them, the last word last."""


class UnreadError(SpecError):
    """A method, a width or a group that no rule here knows; the bytes of tensors, or the user, may tell."""


class Found(NamedTuple):
    """What a method says of the whole model."""

    format: str | None
    """None: nothing but what modules are named with."""
    roles: tuple[str, ...] = MATRICES
    kv_cache_format: str | None = None
    overrides: dict[str, str] | None = None
    """Roles with a format of their own, come what may."""
    note: str = ""


def refused(part: Config, what: str) -> UnreadError:
    """The error about something in a ``quantization_config`` that is not understood."""
    return UnreadError(f"quantization_config: {what} is not understood", where=part.where, hint=WAY_OUT)


def strings(value: object) -> list[str]:
    """The texts of a list; none of anything else."""
    return [entry for entry in value if isinstance(entry, str)] if isinstance(value, list) else []


def said(part: Config, default: int, *keys: str) -> int:
    """A whole number where the file has one, 0 too."""
    found = part.maybe_int(*keys)
    return default if found is None else found


def fp8(part: Config) -> Found:
    """``fp8``: one scale per tensor, or per tile of ``weight_block_size``; ``moe_quant_algo`` decides the experts.

    Source of the last: vLLM 0.33.0 ``vllm/models/deepseek_v4/quant_config.py``.
    """
    part.ignore(("activation_scheme", "fmt", "scale_fmt"))
    algo = part.get("moe_quant_algo")
    experts = {"routed_experts": modelopt_format(part, str(algo))} if algo is not None else None
    return Found(_tiled(part), overrides=experts)


def _tiled(part: Config) -> str:
    tile = part.maybe_list("weight_block_size")
    if tile is None:
        return "fp8_e4m3"
    names = {(128, 128): "fp8_block", (32, 32): "fp8_block32", (1, 32): "mxfp8"}
    size = tuple(part.as_int(t, "weight_block_size") for t in tile)
    if size not in names:
        raise refused(part, f"weight_block_size {list(size)}")
    return names[size]


def _mxfp4(part: Config) -> Found:
    return Found("mxfp4", ("routed_experts",))


def _mxfp8(part: Config) -> Found:
    part.ignore(("weight_block_size", "activation_scheme"))
    return Found("mxfp8")


def _compressed_tensors(part: Config) -> Found:
    """The group of all linear layers; groups that name modules come after it, as `groups`."""
    kv = _scheme(part.child("kv_cache_scheme"))
    for fmt, targets in _config_groups(part):
        if not targets or any(target.endswith("Linear") for target in targets):
            listed = part.get("ignore")
            head = isinstance(listed, list) and not any("lm_head" in str(entry) for entry in listed)
            return Found(fmt, (*MATRICES, "head") if head and targets else MATRICES, kv)
    return Found(None, (), kv)


def groups(part: Config) -> Exceptions:
    """The groups of compressed-tensors that name modules."""
    return [(fmt, names) for fmt, targets in _config_groups(part)
            if (names := [t for t in targets if not t.endswith("Linear")])]  # fmt: skip


def _config_groups(part: Config) -> list[tuple[str, list[str]]]:
    """(format, targets) of each group whose weights are quantised."""
    found = []
    for group in (part.maybe_dict("config_groups") or {}).values():
        weights = group.get("weights") if isinstance(group, dict) else None
        if isinstance(weights, dict):
            fmt = group.get("format") or part.get("format")
            found.append((_scheme_format(Config(weights, part.where), str(fmt or "")), strings(group.get("targets"))))
    return found


def _scheme_format(weights: Config, packing: str) -> str:
    bits, kind = weights.need_int("num_bits"), str(weights.get("type") or "int")
    if packing.replace("_", "-") == MARLIN_24:
        return _marlin_24(weights, bits, weights.maybe_int("group_size") or 0)
    group, strategy = weights.maybe_int("group_size"), str(weights.get("strategy") or "")
    if kind == "float":
        if bits == 8:
            if strategy == "block":
                return "fp8_block"
            return "fp8_channel" if strategy == "channel" else "fp8_e4m3"
        if bits == 4:
            return "mxfp4" if group == 32 or "mxfp4" in packing else "nvfp4"
    elif bits == 8:
        return f"int8_g{group}" if group in (32, 64, 128) else "int8_channel"
    elif bits == 4:
        symmetric = weights.get("symmetric") in (None, True)
        if group in (32, 64, 128):
            return f"int4_g{group}{'' if symmetric else '_zp'}"
        if group in (None, -1, 0) and strategy in ("channel", ""):
            return "int4_channel" if symmetric else "gptq4_channel"
    raise refused(weights, f"{bits}-bit {printable(kind, 20)} weights in groups of {group}")


def _marlin_24(part: Config, bits: int, group: int) -> str:
    """Half of the values, and two bits on each that say where it stood.

    Source: vLLM 0.11.0 ``vllm/model_executor/layers/quantization/gptq_marlin_24.py``.
    """
    if bits != 4 or group not in (-1, 0, 128):
        raise refused(part, f"{MARLIN_24} with {bits} bits and groups of {group}")
    return "marlin24_g128" if group == 128 else "marlin24_channel"


def _scheme(part: Config | None) -> str | None:
    """A ``kv_cache_scheme``: fp8 is the only one that checkpoints carry."""
    if part is None or part.maybe_int("num_bits") is None:
        return None
    if part.maybe_int("num_bits") == 8:
        return "fp8_e4m3" if part.get("type") in (None, "float") else "int8"
    raise refused(part, "kv_cache_scheme")


_ALGORITHMS = {
    "FP8": "fp8_e4m3", "FP8_PER_CHANNEL_PER_TOKEN": "fp8_channel", "FP8_PB_WO": "fp8_block",
    "FP8_BLOCK_SCALES": "fp8_block", "NVFP4": "nvfp4", "NVFP4_AWQ": "nvfp4", "W4A16_NVFP4": "nvfp4",
    "W4A8_NVFP4_FP8": "nvfp4", "MXFP8": "mxfp8", "MXFP4": "mxfp4", "W4A8_MXFP4_FP8": "mxfp4",
    "W4A8_MXFP4_MXFP8": "mxfp4", "W4A16_MXFP4": "mxfp4", "W8A16": "int8_channel", "W4A16": "int4_channel",
    "INT8_SQ_PER_CHANNEL": "int8_channel", "W8A8_SQ_PER_CHANNEL": "int8_channel",
}  # fmt: skip
"""``quant_algo`` -> format. The integer ones are TensorRT-LLM's: 1.3 ``tensorrt_llm/quantization/mode.py``."""
_KV_ALGORITHMS = {
    "FP8": "fp8_e4m3", "FP8_AFFINE": "fp8_e4m3", "NVFP4": "nvfp4", "NVFP4_AFFINE": "nvfp4", "NVFP4_ROTATE": "nvfp4",
    "INT8": "int8", "NONE": None, "AUTO": None, "": None,
}  # fmt: skip


def _modelopt(part: Config) -> Found:
    nested = part.child("quantization") or part
    algo = str(nested.get("quant_algo") or part.get("quant_algo") or "")
    cache = str(nested.get("kv_cache_quant_algo") or "")
    if cache.upper() not in _KV_ALGORITHMS:
        raise refused(part, f"kv_cache_quant_algo {printable(repr(cache), 40)}")
    kv = _KV_ALGORITHMS[cache.upper()] or _scheme(part.child("kv_cache_scheme"))
    if algo.upper() == "MIXED_PRECISION":
        if not nested.maybe_dict("quantized_layers"):
            raise refused(part, "MIXED_PRECISION without quantized_layers")
        return Found(None, (), kv)
    if not algo and kv:  # the cache alone is quantised
        return Found(None, (), kv)
    return Found(modelopt_format(part, algo), MATRICES, kv)


def modelopt_format(part: Config, algo: str, module: str = "") -> str:
    """The format of a ``quant_algo``, of the whole model or of one module."""
    if algo.upper() in ("W4A16_AWQ", "W4A8_AWQ"):
        nested = part.child("quantization") or part
        group = said(nested, 128, "group_size")
        name = f"int4_g{group}{'_zp' if nested.get('has_zero_point') is True else ''}"
        if name not in FORMATS:
            raise refused(part, f"quant_algo {algo.upper()} in groups of {group}")
        return name
    if (found := _ALGORITHMS.get(algo.upper())) is None:
        of = f" of {printable(module, 80)}" if module else ""
        raise refused(part, f"quant_algo {printable(repr(algo), 40)}{of}")
    return found


def layer_by_layer(part: Config) -> Exceptions:
    """Modules with an algorithm of their own (``MIXED_PRECISION``); the others are left as they were.

    Source: vLLM 0.33.0 ``vllm/model_executor/layers/quantization/modelopt.py``, ``ModelOptMixedPrecisionConfig``.
    """
    nested = part.child("quantization") or part
    by_format: dict[str | None, list[str]] = {}
    for module, own in (nested.maybe_dict("quantized_layers") or {}).items():
        algo = own.get("quant_algo") if isinstance(own, dict) else own
        if algo is not None:
            by_format.setdefault(modelopt_format(part, str(algo), module), []).append(module)
    return list(by_format.items())


def _awq(part: Config) -> Found:
    bits, group = said(part, 4, "bits", "w_bit"), said(part, 128, "group_size", "q_group_size")
    names = {128: "awq", 64: "awq_g64", 32: "awq_g32", -1: "awq_channel"}
    if bits != 4 or group not in names:
        raise refused(part, f"AWQ with {bits} bits and groups of {group}")
    return Found(names[group])


def gptq(part: Config) -> Found:
    """``gptq``: a scale and a zero point per group, or (-1) per output row."""
    bits, group = said(part, 4, "bits"), said(part, 128, "group_size")
    if str(part.get("checkpoint_format") or "").replace("_", "-") == MARLIN_24:
        return Found(_marlin_24(part, bits, group))
    usual = {(4, 128): "gptq", (4, 64): "gptq_g64", (4, 32): "gptq_g32", (8, 128): "gptq_int8"}
    name = usual.get((bits, group), f"gptq{bits}_channel" if group == -1 else f"gptq{bits}_g{group}")
    if name not in FORMATS:
        raise refused(part, f"GPTQ with {bits} bits and groups of {group}")
    return Found(name)


def dynamic(part: Config) -> Exceptions:
    """GPTQModel's rules: ``-:`` and an expression leaves modules as they were, ``+:`` (or nothing) changes them.

    Source: vLLM 0.33.0 ``vllm/model_executor/layers/quantization/utils/gptq_utils.py``.
    """
    found: Exceptions = [(gptq(part).format, ["lm_head"])] if part.get("lm_head") is True else []
    for rule, own in (part.maybe_dict("dynamic") or {}).items():
        name = f"re:{rule.removeprefix('-:').removeprefix('+:')}"
        if rule.startswith("-:"):
            found.append((None, [name]))
        elif isinstance(own, dict):
            bits: dict[str, Any] = {key: part.data[key] for key in ("bits", "group_size") if key in part.data}
            found.append((gptq(Config({**bits, **own}, part.where)).format, [name]))
    return found


_COMMON = ("bits", "group_size", "mode", "data_type", "packing_format")


def by_name(part: Config, modules: dict[str, Any], reader: Callable[[Config], Found]) -> Exceptions:
    """Modules with bits and a group of their own (``false``, or 16 bits: none)."""
    by_format: dict[str | None, list[str]] = {}
    common = {key: part.data[key] for key in _COMMON if key in part.data}
    for module, own in modules.items():
        if own is False:
            by_format.setdefault(None, []).append(module)
        elif isinstance(own, dict):
            merged = Config({**common, **own}, part.where)
            plain = (merged.maybe_int("bits") or 4) >= 16
            by_format.setdefault(None if plain else reader(merged).format, []).append(module)
    return list(by_format.items())


def _bitsandbytes(part: Config) -> Found:
    if part.flag("load_in_8bit", "_load_in_8bit"):
        return Found("bnb_int8")
    if not part.flag("load_in_4bit", "_load_in_4bit", default=True):
        return Found(None, ())
    return Found("nf4_dq" if part.flag("bnb_4bit_use_double_quant") else "nf4")


def mlx(part: Config) -> Found:
    """MLX writes bits and a group and names no method; single modules may differ, which the files' bytes tell."""
    mode = str(part.get("mode") or "affine")
    bits, group = part.need_int("bits"), part.need_int("group_size")
    name = f"mlx{bits}_g{group}" if mode == "affine" else mode
    if name not in FORMATS or (mode != "affine" and not name.startswith(("mxfp", "nvfp"))):
        raise refused(part, f"{printable(mode, 20)} with {bits} bits and groups of {group}")
    return Found(name, (*MATRICES, "embedding", "head"))


def _fbgemm(part: Config) -> Found:
    return Found("fp8_channel")


METHODS: dict[str, Callable[[Config], Found]] = {
    "fp8": fp8, "mxfp4": _mxfp4, "gpt-oss-mxfp4": _mxfp4, "mxfp8": _mxfp8, "compressed-tensors": _compressed_tensors,
    "modelopt": _modelopt, "modelopt-fp4": _modelopt, "modelopt-mixed": _modelopt, "modelopt-mxfp8": _modelopt,
    "nvfp4": _modelopt, "awq": _awq, "awq-marlin": _awq, "gptq": gptq, "gptq-marlin": gptq, "marlin": gptq,
    "bitsandbytes": _bitsandbytes, "fbgemm-fp8": _fbgemm,
}  # fmt: skip
"""``quant_method``, in small letters with dashes -> its reader; more in `kvplan.sources.hf.quantization_more`."""

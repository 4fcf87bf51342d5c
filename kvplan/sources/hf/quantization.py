"""How a checkpoint stores its weights: the dialects of ``quantization_config``.

Source: the fields that vLLM 0.33.0 ``vllm/model_executor/layers/quantization/*.py`` reads of each.
"""

from __future__ import annotations

import re
from typing import Any

from kvplan.errors import printable
from kvplan.sources.hf.keys import Config
from kvplan.spec.format_table import FORMATS
from kvplan.spec.model import Checkpoint

_MATRICES = ("attention", "dense_ffn", "routed_experts", "shared_experts")
_EXCLUSIONS = (
    "modules_to_not_convert",
    "ignore",
    "ignored_layers",
    "exclude_modules",
    "llm_int8_skip_modules",
    "exclude",
)
_WORDS = (
    ("shared_expert", "shared_experts"), ("shared_mlp", "shared_experts"), ("experts", "routed_experts"),
    ("attn", "attention"), ("attention", "attention"), ("mlp.(gate|up", "dense_ffn"), ("mlp", "dense_ffn"),
)  # fmt: skip
"""A word in an exclusion -> the role that it leaves as it was; the first that fits counts."""


def read_checkpoint(cfg: Config, outer: Config) -> Checkpoint | None:
    """The storage of the weights; None: the model's own dtype throughout.

    Both levels of a nested file are asked. Experts stored apart (``expert_dtype``) are an override.

    Raises:
        SpecError: a method or a width that the format table does not know.
    """
    found = cfg.child("quantization_config", "compression_config", "quantization")
    outer_found = outer.child("quantization_config", "compression_config", "quantization")
    part = found or outer_found
    experts = cfg.get("expert_dtype") or (part.get("expert_dtype") if part else None)
    if part is None or not part.data:
        return None
    method = str(part.get("quant_method") or part.get("quant_algo") or "").lower()
    reader = _METHODS.get(method.replace("_", "-"))
    if not method and part.get("bits") and part.get("group_size"):
        reader = _mlx
    if reader is None:
        raise cfg.error(
            f"quantization_config: method {printable(repr(method), 40)} is not understood",
            hint="take quantization_config out of the file and say how the weights are stored with --weights FORMAT",
        )
    name, roles, kv = reader(part)
    if name is None:
        return Checkpoint(format=cfg_dtype(cfg, outer), roles=(), kv_cache_format=kv) if kv else None
    kept = _excluded_roles(part)
    overrides = {"routed_experts": "mxfp4"} if str(experts).lower() in ("fp4", "mxfp4") else {}
    roles = tuple(r for r in roles if r not in kept)
    return Checkpoint(format=name, roles=roles, kv_cache_format=kv, overrides=overrides)


def cfg_dtype(cfg: Config, outer: Config) -> str:
    """The dtype of unquantised weights: ``bf16``, ``fp16`` or ``fp32``; bf16 where no level says.

    Raises:
        SpecError: another dtype.
    """
    said = [
        _dtype_name(cfg, level.get(key)) for level in (cfg, outer) for key in ("dtype", "torch_dtype") if key in level
    ]
    return said[0] if said else "bf16"


def recurrent_dtype(cfg: Config) -> str | None:
    """The dtype that the file asks for in recurrent states; None where it leaves that to the engine."""
    value = cfg.get("mamba_ssm_dtype", "mamba_ssm_cache_dtype")
    return None if value in (None, "auto") else _dtype_name(cfg, value)


def _dtype_name(cfg: Config, value: object) -> str:
    names = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32", "half": "fp16", "float": "fp32", "auto": "bf16"}
    text = str(value).removeprefix("torch.")
    if text not in names:
        raise cfg.error(f"dtype {printable(repr(value), 40)} is not understood", hint="bfloat16, float16 or float32")
    return names[text]


def _excluded_roles(part: Config) -> set[str]:
    """Roles that the file leaves unquantised in every layer (exceptions for single layers are not roles)."""
    kept: set[str] = set()
    for key in _EXCLUSIONS:
        value = part.get(key)
        for entry in value if isinstance(value, list) else ():
            text = str(entry)
            if re.search(r"layers?\.\d+|blocks?\.\d+", text):
                continue
            role = next((role for word, role in _WORDS if word in text and "vision" not in text), None)
            if role:
                kept.add(role)
    return kept


_Found = tuple[str | None, tuple[str, ...], str | None]


def _fp8(part: Config) -> _Found:
    part.ignore(("activation_scheme", "fmt", "scale_fmt"))
    tile = part.maybe_list("weight_block_size")
    if tile is None:
        return "fp8_e4m3", _MATRICES, None
    names = {(128, 128): "fp8_block", (32, 32): "fp8_block32", (1, 32): "mxfp8"}
    size = tuple(part.as_int(t, "weight_block_size") for t in tile)
    if size not in names:
        raise part.error(f"quantization_config: weight_block_size {list(size)} is not understood")
    return names[size], _MATRICES, None


def _mxfp4(part: Config) -> _Found:
    return "mxfp4", ("routed_experts",), None


def _compressed_tensors(part: Config) -> _Found:
    """Groups of layers, each with bits, type and grouping; the widest group of matrices counts."""
    kv = _scheme(part.child("kv_cache_scheme"))
    groups = part.maybe_dict("config_groups") or {}
    for group in groups.values():
        weights = group.get("weights") if isinstance(group, dict) else None
        if isinstance(weights, dict):
            fmt = (group.get("format") if isinstance(group, dict) else None) or part.get("format")
            return _scheme_format(Config(weights, part.where), str(fmt or "")), _MATRICES, kv
    return None, (), kv


def _scheme_format(weights: Config, packing: str) -> str:
    bits, kind = weights.need_int("num_bits"), str(weights.get("type") or "int")
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
    elif bits == 4 and group in (32, 64, 128):
        zero = "" if weights.get("symmetric") in (None, True) else "_zp"
        return f"int4_g{group}{zero}"
    raise weights.error(f"quantization_config: {bits}-bit {kind} weights in groups of {group} are not understood")


def _scheme(part: Config | None) -> str | None:
    """A ``kv_cache_scheme``: fp8 is the only one that checkpoints carry."""
    if part is None or part.maybe_int("num_bits") is None:
        return None
    if part.maybe_int("num_bits") == 8:
        return "fp8_e4m3" if part.get("type") in (None, "float") else "int8"
    raise part.error("quantization_config: kv_cache_scheme is not understood")


def _modelopt(part: Config) -> _Found:
    nested = part.child("quantization") or part
    algo = str(nested.get("quant_algo") or part.get("quant_algo") or "").upper()
    names = {
        "FP8": "fp8_e4m3", "FP8_PER_CHANNEL_PER_TOKEN": "fp8_channel", "FP8_PB_WO": "fp8_block", "NVFP4": "nvfp4",
        "NVFP4_AWQ": "nvfp4", "W4A16_AWQ": "awq", "MXFP8": "mxfp8", "MIXED_PRECISION": "",
    }  # fmt: skip
    if not names.get(algo):
        raise part.error(
            f"quantization_config: quant_algo {printable(repr(algo), 40)} is not understood",
            hint="take quantization_config out of the file and say how the weights are stored with --weights FORMAT",
        )
    kv = {"FP8": "fp8_e4m3", "NVFP4": "nvfp4"}.get(str(nested.get("kv_cache_quant_algo") or "").upper())
    return names[algo], _MATRICES, kv or _scheme(part.child("kv_cache_scheme"))


def _said(part: Config, default: int, *keys: str) -> int:
    """A whole number where the file has one, 0 too."""
    found = part.maybe_int(*keys)
    return default if found is None else found


def _awq(part: Config) -> _Found:
    bits, group = _said(part, 4, "bits", "w_bit"), _said(part, 128, "group_size", "q_group_size")
    if bits != 4 or group not in (64, 128):
        raise part.error(f"quantization_config: AWQ with {bits} bits and groups of {group} is not understood")
    return ("awq" if group == 128 else "awq_g64"), _MATRICES, None


def _gptq(part: Config) -> _Found:
    bits, group = _said(part, 4, "bits"), _said(part, 128, "group_size")
    names = {(4, 128): "gptq", (4, 64): "gptq_g64", (4, 32): "gptq_g32", (8, 128): "gptq_int8"}
    if (bits, group) not in names:
        raise part.error(f"quantization_config: GPTQ with {bits} bits and groups of {group} is not understood")
    return names[bits, group], _MATRICES, None


def _bitsandbytes(part: Config) -> _Found:
    if part.flag("load_in_8bit", "_load_in_8bit"):
        return "bnb_int8", _MATRICES, None
    return ("nf4_dq" if part.flag("bnb_4bit_use_double_quant") else "nf4"), _MATRICES, None


def _mlx(part: Config) -> _Found:
    """MLX writes bits and a group and names no method; single modules may differ, which the files' bytes tell."""
    mode = str(part.get("mode") or "affine")
    bits, group = part.need_int("bits"), part.need_int("group_size")
    name = f"mlx{bits}_g{group}" if mode == "affine" else mode
    if name not in FORMATS or (mode != "affine" and not name.startswith(("mxfp", "nvfp"))):
        raise part.error(
            f"quantization_config: {printable(mode, 20)} with {bits} bits and groups of {group} is not understood"
        )
    return name, (*_MATRICES, "embedding", "head"), None


def _fbgemm(part: Config) -> _Found:
    return "fp8_channel", _MATRICES, None


_METHODS: dict[str, Any] = {
    "fp8": _fp8, "mxfp4": _mxfp4, "gpt-oss-mxfp4": _mxfp4, "compressed-tensors": _compressed_tensors,
    "modelopt": _modelopt, "modelopt-fp4": _modelopt, "nvfp4": _modelopt, "awq": _awq, "gptq": _gptq,
    "auto-round": _gptq, "bitsandbytes": _bitsandbytes, "fbgemm-fp8": _fbgemm,
}  # fmt: skip

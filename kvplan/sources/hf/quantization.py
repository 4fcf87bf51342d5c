"""How a checkpoint stores its weights: the dialects of ``quantization_config``.

Source: the fields that vLLM 0.33.0 ``vllm/model_executor/layers/quantization/*.py`` reads of each.
"""

from __future__ import annotations

from typing import Any

from kvplan.errors import printable
from kvplan.sources.hf.keys import Config, Layers
from kvplan.sources.hf.module_names import Shape, coverage, shape
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
_MARLIN_24 = "marlin-24"
PART_APART = "quantization_config: "
"""How a warning begins about weights that the file's formats do not tell apart; the bytes of its tensors do."""
_TAKE_OUT = "take quantization_config out of the file and say how the weights are stored with --weights FORMAT"
_MODELOPT = {
    "FP8": "fp8_e4m3", "FP8_PER_CHANNEL_PER_TOKEN": "fp8_channel", "FP8_PB_WO": "fp8_block",
    "FP8_BLOCK_SCALES": "fp8_block", "NVFP4": "nvfp4",
    "NVFP4_AWQ": "nvfp4", "W4A16_NVFP4": "nvfp4", "W4A16_AWQ": "awq", "MXFP8": "mxfp8",
}  # fmt: skip
"""``quant_algo`` -> format."""
_BY_WEIGHT = ("routed_experts", "dense_ffn", "attention", "shared_experts", "head", "embedding")
"""Roles, those with the most weights first."""


def read_checkpoint(cfg: Config, outer: Config, layers: Layers) -> tuple[Checkpoint | None, tuple[str, ...]]:
    """(the storage of the weights, what it does not tell apart); None: the model's own dtype throughout.

    Both levels of a nested file are asked. Experts stored apart (``expert_dtype``) are an override, and so are
    roles that a group, or a list of modules, puts into another format in every layer.

    Raises:
        SpecError: a method or a width that the format table does not know.
    """
    found = cfg.child("quantization_config", "compression_config", "quantization")
    outer_found = outer.child("quantization_config", "compression_config", "quantization")
    part = found or outer_found
    experts = cfg.get("expert_dtype") or (part.get("expert_dtype") if part else None)
    if part is None or not part.data:
        return None, ()
    method = str(part.get("quant_method") or part.get("quant_algo") or "").lower()
    reader = _METHODS.get(method.replace("_", "-"))
    if not method and part.get("bits") and part.get("group_size"):
        reader = _mlx
    if not method and part.get("load_in_4bit", "load_in_8bit"):  # before files named their method
        reader = _bitsandbytes
    if reader is None:
        raise cfg.error(
            f"quantization_config: method {printable(repr(method), 40)} is not understood",
            hint=_TAKE_OUT,
        )
    name, roles, kv = reader(part)
    given = _given(part, method)
    if name is None and not any(fmt for fmt, _ in given):
        return (Checkpoint(format=cfg_dtype(cfg, outer), roles=(), kv_cache_format=kv) if kv else None), ()
    stored, warnings = _settled(name, roles, given, shape(layers))
    if not stored:
        return (Checkpoint(format=cfg_dtype(cfg, outer), roles=(), kv_cache_format=kv) if kv else None), warnings
    main = name if name in stored.values() else next(stored[role] for role in _BY_WEIGHT if role in stored)
    overrides = {role: fmt for role, fmt in stored.items() if fmt != main}
    if str(experts).lower() in ("fp4", "mxfp4"):
        overrides["routed_experts"] = "mxfp4"
    warnings += tuple(filter(None, (_sparse(part),)))
    return Checkpoint(format=main, roles=tuple(stored), kv_cache_format=kv, overrides=overrides), warnings


def _settled(
    name: str | None, roles: tuple[str, ...], given: list[_Exception], model: Shape
) -> tuple[dict[str, str], tuple[str, ...]]:
    """(role -> its format, in the order of `roles`; what is not told apart)."""
    stored: dict[str, str | None] = {}
    stored |= dict.fromkeys(roles, name) if name else {}
    warnings: list[str] = []
    for fmt, names in given:
        found = coverage(names, model)
        for role in found.whole:
            stored[role] = fmt
        most = {role: n for role, n in found.partly.items() if fmt and role not in stored}
        stored |= dict.fromkeys(most, fmt)  # no other format counts for them
        for role, (some, of) in found.partly.items():
            word, kept = role.replace("_", " "), stored.get(role) or "the model's dtype"
            if kept != fmt:
                warnings.append(f"{PART_APART}part of the {word} in {some} of {of} layers is stored otherwise "
                                f"({printable(found.example, 60)}); counted as {kept}")  # fmt: skip
            elif most:
                warnings.append(f"{PART_APART}{fmt} is said of part of the {word} in {some} of {of} layers; "
                                f"counted for all")  # fmt: skip
        if found.unread:
            warnings.append(f"{PART_APART}{found.unread} patterns of module names are not judged "
                            f"({printable(found.example, 60)})")  # fmt: skip
    for role in _MATRICES:  # a model without such layers loses nothing by them
        if name and role not in stored and role in roles:
            stored[role] = name
    order = {role: i for i, role in enumerate((*_MATRICES, "embedding", "head"))}
    return {r: f for r, f in sorted(stored.items(), key=lambda pair: order[pair[0]]) if f}, tuple(warnings)


def _given(part: Config, method: str) -> list[_Exception]:
    """Names of modules and the format they are stored in (None: left as they were), the last word last."""
    found: list[_Exception] = []
    if method == "compressed-tensors":
        found += _groups(part)
    if method == "gptq":
        found += _dynamic(part)
    if method.startswith("modelopt"):
        found += _layer_by_layer(part)
    if method == "auto-round":
        found += _by_name(part, part.maybe_dict("extra_config") or {})
    if not method:
        found += _by_name(part, {k: v for k, v in part.data.items() if isinstance(v, dict) or v is False})
    left = [str(entry) for key in _EXCLUSIONS for entry in _strings(part.get(key))]
    nested = part.child("quantization")
    left += [str(entry) for key in _EXCLUSIONS for entry in _strings(nested.get(key))] if nested else []
    return [*found, (None, [name for name in left if "vision" not in name])] if left else found


def _strings(value: object) -> list[str]:
    return [entry for entry in value if isinstance(entry, str)] if isinstance(value, list) else []


def _by_name(part: Config, modules: dict[str, Any]) -> list[_Exception]:
    """Modules with bits and a group of their own (``false``, or 16 bits: none)."""
    by_format: dict[str | None, list[str]] = {}
    for module, said in modules.items():
        if said is False:
            by_format.setdefault(None, []).append(module)
        elif isinstance(said, dict):
            own = Config({**{k: part.data[k] for k in ("bits", "group_size", "mode") if k in part.data}, **said})
            own.where = part.where
            plain = (own.maybe_int("bits") or 4) >= 16
            reader = _gptq if part.get("quant_method") else _mlx
            by_format.setdefault(None if plain else reader(own)[0], []).append(module)
    return list(by_format.items())


def _dynamic(part: Config) -> list[_Exception]:
    """GPTQModel's rules: ``-:`` and an expression leaves modules as they were, ``+:`` (or nothing) changes them.

    Source: vLLM 0.33.0 ``vllm/model_executor/layers/quantization/utils/gptq_utils.py``.
    """
    found: list[_Exception] = [(_gptq(part)[0], ["lm_head"])] if part.get("lm_head") is True else []
    for rule, said in (part.maybe_dict("dynamic") or {}).items():
        name = f"re:{rule.removeprefix('-:').removeprefix('+:')}"
        if rule.startswith("-:"):
            found.append((None, [name]))
        elif isinstance(said, dict):
            bits: dict[str, Any] = {key: part.data[key] for key in ("bits", "group_size") if key in part.data}
            found.append((_gptq(Config({**bits, **said}, part.where))[0], [name]))
    return found


def _layer_by_layer(part: Config) -> list[_Exception]:
    """Modules with an algorithm of their own (``MIXED_PRECISION``); the others are left as they were.

    Source: vLLM 0.33.0 ``vllm/model_executor/layers/quantization/modelopt.py``, ``ModelOptMixedPrecisionConfig``.
    """
    nested = part.child("quantization") or part
    by_format: dict[str | None, list[str]] = {}
    for module, said in (nested.maybe_dict("quantized_layers") or {}).items():
        algo = said.get("quant_algo") if isinstance(said, dict) else said
        if algo is not None:
            by_format.setdefault(_modelopt_format(part, str(algo), module), []).append(module)
    return list(by_format.items())


def _sparse(part: Config) -> str:
    """The warning about 2:4 sparsity."""
    sparse = part.maybe_dict("sparsity_config") or {}
    said = (part.get("format"), sparse.get("format"), part.get("checkpoint_format"))
    word = next((w for w in said if "24" in str(w) and str(w).replace("_", "-") != _MARLIN_24), None)
    return f"{PART_APART}{printable(str(word), 30)}: 2:4 sparsity is counted as if it were dense" if word else ""


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


_Exception = tuple[str | None, list[str]]
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
    """The group of all linear layers; groups that name modules come after it, as `_groups`."""
    kv = _scheme(part.child("kv_cache_scheme"))
    for fmt, targets in _config_groups(part):
        if not targets or any(target.endswith("Linear") for target in targets):
            listed = part.get("ignore")
            head = isinstance(listed, list) and not any("lm_head" in str(entry) for entry in listed)
            return fmt, (*_MATRICES, "head") if head and targets else _MATRICES, kv
    return None, (), kv


def _groups(part: Config) -> list[_Exception]:
    return [(fmt, names) for fmt, targets in _config_groups(part)
            if (names := [t for t in targets if not t.endswith("Linear")])]  # fmt: skip


def _config_groups(part: Config) -> list[tuple[str, list[str]]]:
    """(format, targets) of each group whose weights are quantised."""
    found = []
    for group in (part.maybe_dict("config_groups") or {}).values():
        weights = group.get("weights") if isinstance(group, dict) else None
        if isinstance(weights, dict):
            fmt = group.get("format") or part.get("format")
            found.append((_scheme_format(Config(weights, part.where), str(fmt or "")), _strings(group.get("targets"))))
    return found


def _scheme_format(weights: Config, packing: str) -> str:
    bits, kind = weights.need_int("num_bits"), str(weights.get("type") or "int")
    if packing.replace("_", "-") == _MARLIN_24:
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
    elif bits == 4 and group in (32, 64, 128):
        zero = "" if weights.get("symmetric") in (None, True) else "_zp"
        return f"int4_g{group}{zero}"
    raise weights.error(f"quantization_config: {bits}-bit {kind} weights in groups of {group} are not understood")


def _marlin_24(part: Config, bits: int, group: int) -> str:
    """Half of the values, and two bits on each that say where it stood.

    Source: vLLM 0.11.0 ``vllm/model_executor/layers/quantization/gptq_marlin_24.py``.
    """
    if bits != 4 or group not in (-1, 0, 128):
        raise part.error(f"quantization_config: {_MARLIN_24} with {bits} bits and groups of {group} is not understood")
    return "marlin24_g128" if group == 128 else "marlin24_channel"


def _scheme(part: Config | None) -> str | None:
    """A ``kv_cache_scheme``: fp8 is the only one that checkpoints carry."""
    if part is None or part.maybe_int("num_bits") is None:
        return None
    if part.maybe_int("num_bits") == 8:
        return "fp8_e4m3" if part.get("type") in (None, "float") else "int8"
    raise part.error("quantization_config: kv_cache_scheme is not understood")


def _modelopt(part: Config) -> _Found:
    nested = part.child("quantization") or part
    algo = str(nested.get("quant_algo") or part.get("quant_algo") or "")
    kv = {"FP8": "fp8_e4m3", "NVFP4": "nvfp4"}.get(str(nested.get("kv_cache_quant_algo") or "").upper())
    kv = kv or _scheme(part.child("kv_cache_scheme"))
    if algo.upper() == "MIXED_PRECISION":
        if not nested.maybe_dict("quantized_layers"):
            raise part.error("quantization_config: MIXED_PRECISION without quantized_layers", hint=_TAKE_OUT)
        return None, (), kv
    return _modelopt_format(part, algo), _MATRICES, kv


def _modelopt_format(part: Config, algo: str, module: str = "") -> str:
    if (found := _MODELOPT.get(algo.upper())) is None:
        of = f" of {printable(module, 80)}" if module else ""
        raise part.error(
            f"quantization_config: quant_algo {printable(repr(algo), 40)}{of} is not understood", hint=_TAKE_OUT
        )
    return found


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
    if str(part.get("checkpoint_format") or "").replace("_", "-") == _MARLIN_24:
        return _marlin_24(part, bits, group), _MATRICES, None
    names = {(4, 128): "gptq", (4, 64): "gptq_g64", (4, 32): "gptq_g32", (8, 128): "gptq_int8"}
    if (bits, group) not in names:
        raise part.error(f"quantization_config: GPTQ with {bits} bits and groups of {group} is not understood")
    return names[bits, group], _MATRICES, None


def _bitsandbytes(part: Config) -> _Found:
    if part.flag("load_in_8bit", "_load_in_8bit"):
        return "bnb_int8", _MATRICES, None
    if not part.flag("load_in_4bit", "_load_in_4bit", default=True):
        return None, (), None
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
    "modelopt": _modelopt, "modelopt-fp4": _modelopt, "modelopt-mixed": _modelopt, "modelopt-mxfp8": _modelopt,
    "nvfp4": _modelopt, "awq": _awq, "gptq": _gptq,
    "auto-round": _gptq, "bitsandbytes": _bitsandbytes, "fbgemm-fp8": _fbgemm,
}  # fmt: skip

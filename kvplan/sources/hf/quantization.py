"""How a checkpoint stores its weights: what ``quantization_config`` says of the whole and of single modules."""

from __future__ import annotations

from collections.abc import Callable

from kvplan.errors import printable
from kvplan.sources.hf.keys import Config, Layers
from kvplan.sources.hf.module_names import Shape, coverage, shape
from kvplan.sources.hf.quantization_methods import (
    MARLIN_24,
    METHODS,
    Exceptions,
    Found,
    UnreadError,
    by_name,
    dynamic,
    groups,
    layer_by_layer,
    mlx,
    refused,
    strings,
)
from kvplan.sources.hf.quantization_more import MORE_METHODS, auto_round, quark_layers
from kvplan.spec.format_table import MATRICES
from kvplan.spec.model import Checkpoint

_EXCLUSIONS = (
    "modules_to_not_convert",
    "ignore",
    "ignored_layers",
    "exclude_modules",
    "llm_int8_skip_modules",
    "exclude",
)
PART_APART = "quantization_config: "
"""How a warning begins about weights that the file's formats do not tell apart; the bytes of its tensors do."""
UNREAD = "how the weights are stored is not understood"
"""How a warning begins that stands in place of an error, where something else tells the bytes."""
_BY_WEIGHT = ("routed_experts", "dense_ffn", "attention", "shared_experts", "head", "embedding")
"""Roles, those with the most weights first."""


def read_checkpoint(
    cfg: Config, outer: Config, layers: Layers, *, otherwise_told: bool = False
) -> tuple[Checkpoint | None, tuple[str, ...]]:
    """(the storage of the weights, what it does not tell apart); None: the model's own dtype throughout.

    Both levels of a nested file are asked. Experts stored apart (``expert_dtype``) are an override, and so are
    roles that a group, or a list of modules, puts into another format in every layer.

    Args:
        otherwise_told: the bytes come from elsewhere; what is not understood is a warning.

    Raises:
        UnreadError: a method or a width that the format table does not know.
        SpecError: something that no such file may say.
    """
    part = cfg.child("quantization_config", "compression_config", "quantization")
    part = part or outer.child("quantization_config", "compression_config", "quantization")
    if part is None or not part.data:
        return None, ()
    try:
        return _read(cfg, outer, layers, part)
    except UnreadError as error:
        if not otherwise_told:
            raise
        told = "counted as the files' headers or --weights say"
        return None, (f"{UNREAD}, {told} ({error.message})",)


def _read(cfg: Config, outer: Config, layers: Layers, part: Config) -> tuple[Checkpoint | None, tuple[str, ...]]:
    method = str(part.get("quant_method") or part.get("quant_algo") or "").lower().replace("_", "-").rpartition("/")[2]
    found = _reader(part, method)(part)
    name, roles, kv = found.format, found.roles, found.kv_cache_format
    given = _given(part, method)
    plain = Checkpoint(format=cfg_dtype(cfg, outer), roles=(), kv_cache_format=kv) if kv else None
    if name is None and not any(fmt for fmt, _ in given):
        return plain, ()
    stored, warnings = _settled(name, roles, given, shape(layers))
    if not stored:
        return plain, warnings
    apart = {role: fmt for role, fmt in (found.overrides or {}).items() if role in stored}
    main = (
        name
        if name is not None and name in stored.values()
        else next(stored[role] for role in _BY_WEIGHT if role in stored)
    )
    overrides: dict[str, str] = {role: fmt for role, fmt in {**stored, **apart}.items() if fmt != main}
    if "routed_experts" not in apart and _four_bit_experts(cfg, part, method):
        overrides["routed_experts"] = "mxfp4"
    warnings += tuple(filter(None, (_sparse(part), f"{PART_APART}{found.note}" if found.note else "")))
    return Checkpoint(format=main, roles=tuple(stored), kv_cache_format=kv, overrides=overrides), warnings


def _four_bit_experts(cfg: Config, part: Config, method: str) -> bool:
    """Whether the experts are mxfp4 beside an 8-bit rest; DeepSeek-V4's are unless the file says otherwise.

    Source: vLLM 0.33.0 ``vllm/models/deepseek_v4/quant_config.py``.
    """
    said = cfg.get("expert_dtype") or part.get("expert_dtype")
    if said is None and method == "fp8":
        return str(cfg.get("model_type")) == "deepseek_v4"
    return str(said).lower() in ("fp4", "mxfp4")


def _reader(part: Config, method: str) -> Callable[[Config], Found]:
    if not method and part.get("bits") and part.get("group_size"):
        return mlx
    if not method and part.get("load_in_4bit", "load_in_8bit"):  # before files named their method
        return METHODS["bitsandbytes"]
    reader = METHODS.get(method) or MORE_METHODS.get(method)
    if reader is None:
        raise refused(part, f"method {printable(repr(str(part.get('quant_method') or method)), 40)}")
    return reader


def _settled(
    name: str | None, roles: tuple[str, ...], given: Exceptions, model: Shape
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
    for role in MATRICES:  # a model without such layers loses nothing by them
        if name and role not in stored and role in roles:
            stored[role] = name
    order = {role: i for i, role in enumerate((*MATRICES, "embedding", "head"))}
    return {r: f for r, f in sorted(stored.items(), key=lambda pair: order[pair[0]]) if f}, tuple(warnings)


def _given(part: Config, method: str) -> Exceptions:
    """Names of modules and the format they are stored in (None: left as they were), the last word last."""
    found: Exceptions = []
    if method == "compressed-tensors":
        found += groups(part)
    if method.startswith("gptq"):
        found += dynamic(part)
    if method.startswith("modelopt"):
        found += layer_by_layer(part)
    if method in ("auto-round", "inc"):
        found += by_name(part, part.maybe_dict("extra_config") or {}, auto_round)
    if method == "quark":
        found += quark_layers(part)
    if not method:
        found += by_name(part, {k: v for k, v in part.data.items() if isinstance(v, dict) or v is False}, mlx)
    # beside ``moe_quant_algo``, ``ignore`` is what that algorithm leaves to the method that the file names
    keys = [key for key in _EXCLUSIONS if key != "ignore" or not part.get("moe_quant_algo")]
    left = [entry for key in keys for entry in strings(part.get(key))]
    nested = part.child("quantization")
    left += [entry for key in keys for entry in strings(nested.get(key))] if nested else []
    return [*found, (None, [name for name in left if "vision" not in name])] if left else found


def _sparse(part: Config) -> str:
    """The warning about 2:4 sparsity."""
    sparse = part.maybe_dict("sparsity_config") or {}
    said = (part.get("format"), sparse.get("format"), part.get("checkpoint_format"))
    word = next((w for w in said if "24" in str(w) and str(w).replace("_", "-") != MARLIN_24), None)
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

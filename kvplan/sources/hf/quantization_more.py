"""Further dialects of ``quantization_config``: AutoRound, Quark, TorchAO, HQQ, EXL3, BitNet, FP-Quant."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kvplan.errors import printable
from kvplan.sources.hf.keys import Config
from kvplan.sources.hf.quantization_methods import METHODS, Exceptions, Found, gptq, refused, said
from kvplan.spec.format_table import FORMATS, MATRICES

_NO_GROUP = (None, -1, 0)


def auto_round(part: Config) -> Found:
    """AutoRound (``inc``): integers packed as GPTQ or AWQ do, micro-scaled floats, or fp8.

    Source: vLLM 0.33.0 ``vllm/model_executor/layers/quantization/inc/inc.py``.
    """
    kind, bits = str(part.get("data_type") or "int"), said(part, 4, "bits")
    size = part.get("group_size")
    if kind.startswith("mx_fp") and bits in (4, 8):
        return Found(f"mxfp{bits}")
    if kind.startswith("nv_fp") and bits == 4:
        return Found("nvfp4")
    if kind.startswith("fp") and bits == 8:
        if size in ([128, 128], 128) or part.get("weight_block_size") == [128, 128]:
            return Found("fp8_block")
        if size in _NO_GROUP:
            return Found("fp8_e4m3" if size == 0 else "fp8_channel")
    if kind in ("int", "uint", "int_sym", "int_asym"):
        reader = METHODS["awq"] if "awq" in str(part.get("packing_format")) else gptq
        return reader(part)
    raise refused(part, f"AutoRound with {bits} bits of {printable(kind, 20)} in groups of {printable(repr(size), 20)}")


def _quark(part: Config) -> Found:
    """AMD Quark: ``global_quant_config`` for every linear layer; `quark_layers` may change some.

    Source: vLLM 0.33.0 ``vllm/model_executor/layers/quantization/quark/quark.py``.
    """
    common = part.child("global_quant_config")
    weight = common.get("weight") if common is not None else None
    return Found(_quark_format(part, weight) if weight else None, MATRICES if weight else ())


def quark_layers(part: Config) -> Exceptions:
    """Modules that ``layer_quant_config`` stores in another format than the others."""
    found: Exceptions = []
    for module, own in (part.maybe_dict("layer_quant_config") or {}).items():
        if isinstance(own, dict) and "weight" in own:
            found.append((_quark_format(part, own["weight"]) if own["weight"] else None, [module]))
    return found


def _quark_format(part: Config, weight: object) -> str:
    first = weight[0] if isinstance(weight, list) and weight else weight  # two levels of scales: the finer one's
    if not isinstance(first, dict):
        raise refused(part, f"weight {printable(repr(first), 40)}")
    one = Config(first, part.where)
    kind, scheme, group = str(one.get("dtype")), str(one.get("qscheme")), one.maybe_int("group_size")
    fixed = {
        ("fp8_e4m3", "per_tensor"): "fp8_e4m3", ("fp8_e4m3", "per_channel"): "fp8_channel",
        ("int8", "per_tensor"): "int8_channel", ("int8", "per_channel"): "int8_channel",
    }  # fmt: skip
    grouped = {
        ("fp4", 32): "mxfp4", ("fp4", 16): "nvfp4", ("fp6_e2m3", 32): "mxfp6", ("fp6_e3m2", 32): "mxfp6",
        ("fp8_e4m3", 32): "mxfp8", **{("int4", g): f"int4_g{g}" for g in (32, 64, 128)},
        **{("uint4", g): f"int4_g{g}_zp" for g in (32, 64, 128)},
    }  # fmt: skip
    name = fixed.get((kind, scheme)) or (grouped.get((kind, group or 0)) if scheme == "per_group" else None)
    if name is None and (kind, scheme) == ("fp8_e4m3", "per_block") and one.get("block_size") == [128, 128]:
        name = "fp8_block"
    if name is None:
        raise refused(part, f"{printable(kind, 20)} {printable(scheme, 20)} in groups of {group}")
    return name


def _torchao(part: Config) -> Found:
    """TorchAO: a class of its own per scheme, or (before 0.16) its name in small letters.

    Source: transformers 5.24.0 ``utils/quantization_config.py``, ``TorchAoConfig``.
    """
    kind: Any = part.get("quant_type")
    kind = kind.get("default") if isinstance(kind, dict) and "default" in kind else kind
    fields: Any = part.get("quant_type_kwargs")
    if isinstance(kind, dict):
        kind, fields = kind.get("_type"), kind.get("_data")
    fields = Config(fields if isinstance(fields, dict) else {}, part.where)
    name = str(kind).replace("_", "").lower().removesuffix("config")
    if name == "int4weightonly":
        stored = f"int4_g{said(fields, 128, 'group_size')}_zp"
        if stored in FORMATS:
            return Found(stored)
    if name in ("int8weightonly", "int8dynamicactivationint8weight"):
        return Found("int8_channel")
    if name == "float8weightonly":
        return Found("fp8_channel")
    if name == "float8dynamicactivationfloat8weight":
        return Found("fp8_channel" if "PerRow" in str(fields.get("granularity")) else "fp8_e4m3")
    raise refused(part, f"TorchAO's {printable(repr(kind), 60)}")


def _hqq(part: Config) -> Found:
    """HQQ: bits and a group, in an object that some versions nest.

    Source: transformers 5.24.0 ``utils/quantization_config.py``, ``HqqConfig``.
    """
    nested = part.child("quant_config") or part
    one = nested.child("weight_quant_params") or nested
    bits, group = said(one, 4, "nbits", "bits"), said(one, 64, "group_size")
    name = f"int{bits}_g{group}_zp"
    if name not in FORMATS:
        raise refused(part, f"HQQ with {bits} bits and groups of {group}")
    return Found(name)


def _exl3(part: Config) -> Found:
    """EXL3: bits per weight on average, those of the head apart; the embedding keeps 16.

    Source: exllamav3 1.6.5 ``exllamav3/modules/quant/exl3.py``.
    """
    bits, note = _bits_per_weight(part, part.get("bits"), "bits")
    head, _ = _bits_per_weight(part, part.get("head_bits") or 6, "head_bits")
    return Found(bits, (*MATRICES, "head"), overrides={"head": head}, note=note)


def _bits_per_weight(part: Config, value: object, key: str) -> tuple[str, str]:
    """(format, what is said of a mean that is no multiple of a quarter)."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 1 <= value <= 8:
        raise refused(part, f"{key} {printable(repr(value), 40)}")
    quarters = -(-4 * value // 1)
    name = f"exl3_{quarters / 4:.2f}bpw"
    return name, "" if quarters == 4 * value else f"{value:g} bits a weight are counted as {quarters / 4:g}"


def _bitnet(part: Config) -> Found:
    """BitNet: four ternary weights in a byte, one scale per matrix; ``online`` ones are stored as they were.

    Source: transformers 5.24.0 ``integrations/bitnet.py``.
    """
    return Found(None, ()) if part.get("quantization_mode") == "online" else Found("bitnet")


def _int8_rows(part: Config) -> Found:
    """SGLang's ``w8a8_int8``: one scale per output row. Source: ``srt/layers/quantization/w8a8_int8.py``."""
    return Found("int8_channel")


def _fp8_rows(part: Config) -> Found:
    """SGLang's ``w8a8_fp8``: the same in fp8 (``w8a8_fp8.py`` beside it)."""
    return Found("fp8_channel")


def _fp_quant(part: Config) -> Found:
    """FP-Quant: micro-scaled floats. Source: transformers 5.24.0 ``utils/quantization_config.py``."""
    name = str(part.get("forward_dtype") or "nvfp4")
    if name not in ("mxfp4", "nvfp4"):
        raise refused(part, f"forward_dtype {printable(repr(name), 40)}")
    return Found(name)


MORE_METHODS: dict[str, Callable[[Config], Found]] = {
    "auto-round": auto_round, "inc": auto_round, "quark": _quark, "torchao": _torchao, "hqq": _hqq, "exl3": _exl3,
    "bitnet": _bitnet, "fp-quant": _fp_quant, "w8a8-int8": _int8_rows, "w8a8-fp8": _fp8_rows,
}  # fmt: skip
"""``quant_method``, in small letters with dashes and without the maker's name -> its reader."""

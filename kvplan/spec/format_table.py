"""The rows of the format table: plain dictionaries, turned into `Format` objects when asked for.

Each row gives elements per block, bytes per block, where scales live, and who says so. Families
that differ only in a number (bits, group) are written as one loop.
"""

from __future__ import annotations

from typing import Any

MATRICES = ("attention", "dense_ffn", "routed_experts", "shared_experts")
"""The roles that weight quantisation usually covers: embeddings, head, router and norms stay as they are."""
_WITH_TABLES = (*MATRICES, "embedding", "head")
_ALL = (*MATRICES, "embedding", "head", "router", "norm", "tower", "draft")

_VLLM = "vLLM 0.33.0 vllm/v1/kv_cache_interface.py"
_GGML = "ggml 0.25.3 ggml/src/ggml-common.h"
_CT = "compressed-tensors (vLLM 0.33.0 vllm/model_executor/layers/quantization/compressed_tensors)"
_PLAIN = "plain arithmetic: one scale per group"
_ALL_ROWS = 1 << 40
"""Rows of a tile that has whatever many rows the matrix has: a scale per column."""


def _row(**fields: Any) -> dict[str, Any]:
    """The fields of a `Format`, as they will be passed to it."""
    return fields


FORMATS: dict[str, dict[str, Any]] = {
    "fp32": _row(
        block_elements=1, block_bytes=4, aliases=("float32", "f32", "float"), weight_roles=_ALL, source="IEEE 754",
    ),
    "bf16": _row(
        block_elements=1, block_bytes=2, aliases=("bfloat16",), weight_roles=_ALL,
        source="upper half of IEEE 754 binary32",
    ),
    "fp16": _row(
        block_elements=1, block_bytes=2, aliases=("float16", "f16", "half"), weight_roles=_ALL,
        source="IEEE 754 binary16",
    ),
    # ---- 8 bits, scales outside the data ----
    "fp8_e4m3": _row(
        units="fp8", block_elements=1, block_bytes=1, scale="tensor",
        aliases=("fp8", "float8_e4m3fn", "fp8_e4m3fn", "fp8_inc", "fp8_per_tensor", "float8", "f8_e4m3"),
        source=f"arXiv 2209.05433; {_VLLM}: one scale per tensor, outside the pages",
    ),
    "fp8_e5m2": _row(
        units="fp8", block_elements=1, block_bytes=1, scale="tensor", aliases=("float8_e5m2", "f8_e5m2"),
        source=f"arXiv 2209.05433; {_VLLM}: no scale",
    ),
    "fp8_per_head": _row(
        units="fp8", block_elements=1, block_bytes=1, scale="tensor", use="cache", aliases=("fp8_e4m3_per_head",),
        source="static scales, one per head and layer: outside the pages",
    ),
    "fp8_per_token_head": _row(
        units="fp8", block_elements=1, block_bytes=1, scale="token_head", scale_bytes=4, use="cache",
        source=f"{_VLLM}: one fp32 scale in line for each token and head",
    ),
    "int8": _row(
        block_elements=1, block_bytes=1, scale="tensor", use="cache", aliases=("int8_per_tensor",),
        source="TensorRT-LLM 1.3 KV cache type INT8: one scale per layer",
    ),
    "int8_per_token": _row(
        block_elements=1, block_bytes=1, scale="token", scale_bytes=2, use="cache",
        source="one fp16 scale per token over all heads",
    ),
    "int8_per_token_fp32": _row(
        block_elements=1, block_bytes=1, scale="token", scale_bytes=4, use="cache",
        source="one fp32 scale per token over all heads",
    ),
    "int8_per_token_head": _row(
        block_elements=1, block_bytes=1, scale="token_head", scale_bytes=4, use="cache",
        source=f"{_VLLM}: one fp32 scale in line for each token and head",
    ),
    "int4_per_token": _row(
        block_elements=2, block_bytes=1, scale="token", scale_bytes=2, use="cache",
        source="one fp16 scale per token over all heads",
    ),
    "int4_per_token_head": _row(
        block_elements=2, block_bytes=1, scale="token_head", scale_bytes=4, use="cache",
        source=f"{_VLLM}: half a byte an element and four bytes for each token and head",
    ),
    # ---- micro-scaled floats ----
    "nvfp4": _row(
        units="fp4", block_elements=16, block_bytes=9, scale="tensor", aliases=("fp4", "fp4_e2m1", "modelopt_fp4"),
        source=f"{_VLLM}: 16 values of 4 bits and an e4m3 scale; one fp32 scale per tensor",
    ),
    "mxfp4": _row(
        block_elements=32, block_bytes=17, aliases=("mxfp4_e2m1",), source="OCP Microscaling Formats 1.0: e8m0 scale",
    ),
    "mxfp6": _row(
        block_elements=32, block_bytes=25, aliases=("mxfp6_e3m2", "mxfp6_e2m3"),
        source="OCP Microscaling Formats 1.0: e8m0 scale",
    ),
    "mxfp8": _row(
        units="fp8", block_elements=32, block_bytes=33, aliases=("mxfp8_e4m3", "mxfp8_e5m2"),
        source="OCP Microscaling Formats 1.0: e8m0 scale",
    ),
    # ---- rows of latent attention with a layout of their own ----
    "fp8_ds_mla": _row(
        units="fp8", block_elements=576, block_bytes=656, use="cache",
        source=f"{_VLLM}: 512 fp8 values, four fp32 scales, 64 rotary values in bf16",
    ),
    "nvfp4_ds_mla": _row(block_elements=576, block_bytes=352, use="cache", source=f"{_VLLM}: latent row in nvfp4"),
    # ---- TurboQuant: a norm beside K, a scale and a zero point beside V ----
    "turboquant_k8v4": _row(
        block_elements=1, block_bytes=1, v_block=(2, 1), scale="token_head", v_scale_bytes=4, align_bytes=2,
        edge_layers=2, use="cache", aliases=("k8v4",), source=f"{_VLLM}: fp8 keys, values of 4 bits",
    ),
    "turboquant_4bit_nc": _row(
        block_elements=2, block_bytes=1, scale="token_head", scale_bytes=2, v_scale_bytes=4, align_bytes=2,
        edge_layers=2, use="cache", aliases=("4bit_nc", "turboquant"), source=f"{_VLLM}: keys and values of 4 bits",
    ),
    "turboquant_k3v4_nc": _row(
        block_elements=8, block_bytes=3, v_block=(2, 1), scale="token_head", scale_bytes=2, v_scale_bytes=4,
        align_bytes=2, edge_layers=2, use="cache", aliases=("k3v4_nc",),
        source=f"{_VLLM}: keys of 3 bits, values of 4",
    ),
    "turboquant_3bit_nc": _row(
        block_elements=8, block_bytes=3, scale="token_head", scale_bytes=2, v_scale_bytes=4, align_bytes=2,
        edge_layers=2, use="cache", aliases=("3bit_nc",), source=f"{_VLLM}: keys and values of 3 bits",
    ),
    # ---- weights of GPU engines ----
    "fp8_channel": _row(
        units="fp8", block_elements=1, block_bytes=1, row_scale_bytes=4, use="weights",
        aliases=("fp8_per_channel", "fp8_dynamic", "w8a8_fp8", "ptpc_fp8"),
        source=f"{_CT}: one fp32 scale per output row once loaded",
    ),
    "fp8_block": _row(
        units="fp8", block_elements=1, block_bytes=1, tile=(128, 128), tile_bytes=4, use="weights",
        aliases=("fp8_block128", "fp8_128x128", "fp8_block_128", "deepseek_fp8"),
        source="transformers 5.24.0 integrations/finegrained_fp8.py: one fp32 scale per tile of 128 x 128",
    ),
    "fp8_block32": _row(
        units="fp8", block_elements=1, block_bytes=1, tile=(32, 32), tile_bytes=1, use="weights",
        aliases=("fp8_32x32", "fp8_block_32"), source="weight_block_size [32, 32] with e8m0 scales",
    ),
    "int8_channel": _row(
        units="int8", block_elements=1, block_bytes=1, row_scale_bytes=4, use="weights",
        aliases=("w8a16", "w8a8", "w8a8_int8", "int8_per_channel", "smoothquant", "int8_weights"),
        source=f"{_CT}: one fp32 scale per output row once loaded",
    ),
    "awq": _row(
        block_elements=256, block_bytes=133, group_elements=128, use="weights",
        aliases=("awq_int4", "awq_marlin", "awq_g128", "w4a16_asym"),
        source="AWQ (arXiv 2306.00978): int4, per group of 128 an fp16 scale and a zero point of 4 bits",
    ),
    "awq_g64": _row(
        block_elements=128, block_bytes=69, group_elements=64, use="weights", source="AWQ with groups of 64",
    ),
    "awq_g32": _row(
        block_elements=64, block_bytes=37, group_elements=32, use="weights", source="AWQ with groups of 32",
    ),
    "awq_channel": _row(
        block_elements=2, block_bytes=1, row_scale_bytes=3, use="weights",
        source="AWQ with one group per output row: an fp16 scale and a zero point of 4 bits, rounded up to 3 bytes",
    ),
    "int4_channel": _row(
        block_elements=2, block_bytes=1, row_scale_bytes=2, use="weights", aliases=("w4a16_channel", "w4a8_channel"),
        source=f"{_CT}: pack-quantized, one 16-bit scale per output row",
    ),
    "bitnet": _row(
        block_elements=4, block_bytes=1, scale="tensor", use="weights", aliases=("bitnet_b1.58", "ternary"),
        source="transformers 5.24.0 integrations/bitnet.py: four ternary weights in a byte, one scale per matrix",
    ),
    "gptq": _row(
        block_elements=256, block_bytes=133, group_elements=128, use="weights",
        aliases=("gptq_int4", "gptq_marlin", "gptq_g128", "gptq_4bit"),
        source="GPTQ (arXiv 2210.17323): int4, per group of 128 an fp16 scale and a zero point of 4 bits",
    ),
    "gptq_g64": _row(
        block_elements=128, block_bytes=69, group_elements=64, use="weights", source="GPTQ with groups of 64",
    ),
    "gptq_g32": _row(
        block_elements=64, block_bytes=37, group_elements=32, use="weights", source="GPTQ with groups of 32",
    ),
    "gptq_int8": _row(
        block_elements=128, block_bytes=131, use="weights", aliases=("gptq_8bit",),
        source="GPTQ, int8: per group of 128 an fp16 scale and a zero point of 8 bits",
    ),
    "marlin24_g128": _row(
        block_elements=128, block_bytes=50, use="weights", aliases=("marlin_24", "gptq_marlin_24"),
        source="vLLM 0.11.0 quantization/gptq_marlin_24.py: of each four values two in int4 and two bits each on their "
        "places; an fp16 scale per 128",
    ),
    "marlin24_channel": _row(
        block_elements=8, block_bytes=3, row_scale_bytes=2, use="weights",
        source="the same with one fp16 scale per output row",
    ),
    "nf4": _row(
        block_elements=64, block_bytes=36, use="weights",
        aliases=("bnb", "bitsandbytes", "bnb_4bit", "bnb_nf4", "bnb_fp4"),
        source="bitsandbytes (arXiv 2305.14314): an fp32 maximum per 64 values",
    ),
    "nf4_dq": _row(
        block_elements=16384, block_bytes=8452, group_elements=64, use="weights",
        aliases=("bnb_nf4_dq", "nf4_double_quant", "qlora"),
        source="bitsandbytes with double quantisation: a maximum of 8 bits per 64 values, an fp32 one per 256 of them",
    ),
    "bnb_int8": _row(
        units="int8", block_elements=1, block_bytes=1, row_scale_bytes=4, use="weights",
        aliases=("bnb_8bit", "llm_int8"),
        source="bitsandbytes (arXiv 2208.07339): one fp32 maximum per output row",
    ),
}  # fmt: skip


def _add_integer_families() -> None:
    """int b-bit groups of g with and without zero point, KIVI, and ExLlamaV3."""
    for bits in (4, 8):
        for group in (32, 64, 128):
            names = [f"int{bits}_group{group}"]
            if bits == 4:
                names += [f"w4a16_g{group}", *(("w4a16", "int4") if group == 128 else ())]
            FORMATS[f"int{bits}_g{group}"] = _row(
                block_elements=group, block_bytes=group * bits // 8 + 2,
                aliases=tuple(names),
                source=f"{_PLAIN}, 16 bits; as weights: {_CT}, pack-quantized, symmetric",
            )  # fmt: skip
    for bits in (1, 2, 3, 4, 5, 6, 8):
        for group in (32, 64, 128):
            pair = _row(block_elements=group, block_bytes=group * bits // 8 + 4)
            short = [f"quanto{bits}", f"hqq{bits}", f"int{bits}_zp"] if group == 64 else []
            FORMATS[f"int{bits}_g{group}_zp"] = _row(
                **pair, aliases=(f"int{bits}_g{group}_asym", f"quanto{bits}_g{group}", f"hqq{bits}_g{group}", *short),
                source="scale and zero point of 16 bits per group: transformers 5.24.0 cache_utils.py (quanto, hqq)",
            )  # fmt: skip
            FORMATS[f"int{bits}_g{group}_zp_fp32"] = _row(
                block_elements=group, block_bytes=group * bits // 8 + 8, use="cache",
                source="the same under a float32 model, whose scales and zero points take 32 bits",
            )  # fmt: skip
            if bits > 1:
                short = [f"mlx{bits}", f"mlx_{bits}bit"] if group == 64 else []
                FORMATS[f"mlx{bits}_g{group}"] = _row(
                    **pair, aliases=(f"mlx_{bits}bit_g{group}", *short), weight_roles=_WITH_TABLES,
                    source="mlx 0.32.4 mx.quantize, mlx-lm 0.32.2 models/cache.py: scale and bias of 16 bits a group",
                )  # fmt: skip
    for bits in (2, 4):
        for group in (32, 64):
            FORMATS[f"kivi{bits}_g{group}"] = _row(
                block_elements=group, block_bytes=group * bits // 8 + 4, residual_tokens=128, use="cache",
                aliases=(f"kivi_{bits}bit_g{group}", *((f"kivi{bits}", f"kivi_{bits}bit") if group == 32 else ())),
                source="KIVI (arXiv 2402.02750): keys by channel, values by token, scale and zero point of 16 bits, "
                "the newest 128 tokens at most in 16 bits",
            )  # fmt: skip
    for bits in (2, 3, 4, 8):
        for group in (32, 64, 128):
            if (bits, group) not in ((4, 32), (4, 64), (4, 128), (8, 128)):  # named above
                FORMATS[f"gptq{bits}_g{group}"] = _row(
                    block_elements=8 * group, block_bytes=bits * group + 16 + bits, group_elements=group, use="weights",
                    source=f"GPTQ: int{bits}, per group of {group} an fp16 scale and a zero point of {bits} bits",
                )  # fmt: skip
        FORMATS[f"gptq{bits}_channel"] = _row(
            block_elements=8,
            block_bytes=bits,
            row_scale_bytes=3,
            use="weights",
            source=f"GPTQ: int{bits}, per output row an fp16 scale and a zero point, rounded up to 3 bytes",
        )
    for quarters in range(4, 33):
        mean = f"{quarters / 4:.2f}"
        spellings = {
            f"exl3_{mean.removesuffix('0')}",
            *(f"exl3_{m}bpw" for m in (f"{quarters / 4:g}", mean[:-1], mean)),
        }
        FORMATS[f"exl3_{mean}bpw"] = _row(
            block_elements=32, block_bytes=quarters, tile=(_ALL_ROWS, 1), tile_bytes=2, row_scale_bytes=2,
            use="weights",
            aliases=tuple(sorted(n for n in spellings if n != f"exl3_{mean}bpw" and (mean.endswith("0") or mean in n))),
            source="exllamav3 1.6.5 modules/quant/exl3.py: a trellis, and an fp16 sign per input and output",
        )  # fmt: skip
    for bits in range(2, 9):
        FORMATS[f"exl3_{bits}"] = _row(
            block_elements=32, block_bytes=4 * bits + 2, use="cache", aliases=(f"exl3_{bits}bit", f"exllamav3_{bits}"),
            source="exllamav3 1.6.5 cache/quant.py: one fp16 scale per 32 values",
        )  # fmt: skip


# Tensor types of GGUF: (elements, bytes of a block).
_GGUF_TYPES: dict[str, tuple[int, int]] = {
    "q8_0": (32, 34), "q5_1": (32, 24), "q5_0": (32, 22), "q4_1": (32, 20), "q4_0": (32, 18), "iq4_nl": (32, 18),
    "q6_k": (256, 210), "q5_k": (256, 176), "q4_k": (256, 144), "q3_k": (256, 110), "q2_k": (256, 84),
    "iq4_xs": (256, 136), "iq3_s": (256, 110), "iq3_xxs": (256, 98), "iq2_s": (256, 82), "iq2_xs": (256, 74),
    "iq2_xxs": (256, 66), "iq1_m": (256, 56), "iq1_s": (256, 50), "tq2_0": (256, 66), "tq1_0": (256, 54),
    "q1_0": (128, 18),
}  # fmt: skip
_CACHE_TYPES = ("q8_0", "q5_1", "q5_0", "q4_1", "q4_0", "iq4_nl")
"""The quantised types that llama.cpp's --cache-type-k takes (f32, f16 and bf16 are above)."""

# File types that store several tensor types: name -> the type of most of their matrices.
GGUF_FILES: dict[str, str] = {
    "q2_k_s": "q2_k", "q3_k_s": "q3_k", "q3_k_m": "q3_k", "q3_k_l": "q3_k", "q4_k_s": "q4_k", "q4_k_m": "q4_k",
    "q5_k_s": "q5_k", "q5_k_m": "q5_k", "iq2_m": "iq2_s", "iq3_xs": "iq3_s", "iq3_m": "iq3_s", "mxfp4_moe": "mxfp4",
    "ud_iq1_s": "iq1_s", "ud_iq1_m": "iq1_m", "ud_iq2_xxs": "iq2_xxs", "ud_iq2_m": "iq2_s", "ud_iq3_xxs": "iq3_xxs",
    "ud_q2_k_xl": "q2_k", "ud_q3_k_xl": "q3_k", "ud_q4_k_xl": "q4_k", "ud_q5_k_xl": "q5_k", "ud_q6_k_xl": "q6_k",
    "ud_q8_k_xl": "q8_0",
}  # fmt: skip
# What llama-quantize understands by the bare name of a K type.
_BARE = {"q3_k": "q3_k_m", "q4_k": "q4_k_m", "q5_k": "q5_k_m"}


def _pair(name: str) -> tuple[int, int]:
    """(elements, bytes of a block) of a row of the table."""
    return FORMATS[name]["block_elements"], FORMATS[name]["block_bytes"]


def _add_gguf() -> None:
    """GGUF tensor types (a block pair each) and file types (a rule over tensor types)."""
    for name, (elements, size) in _GGUF_TYPES.items():
        FORMATS[name] = _row(
            block_elements=elements, block_bytes=size, use="both" if name in _CACHE_TYPES else "weights",
            weight_roles=_WITH_TABLES, rest_format="fp32", mix=_BARE.get(name, name), source=_GGML,
        )  # fmt: skip
    for name, base in GGUF_FILES.items():
        elements, size = _GGUF_TYPES[base] if base in _GGUF_TYPES else _pair(base)
        FORMATS[name] = _row(
            block_elements=elements, block_bytes=size, use="weights", weight_roles=_WITH_TABLES, rest_format="fp32",
            mix=name, source="llama.cpp src/llama-quant.cpp; see kvplan.spec.gguf_mix",
        )  # fmt: skip


def _index() -> dict[str, str]:
    """alias -> canonical name."""
    names: dict[str, str] = {}
    for name, row in FORMATS.items():
        for alias in row.get("aliases", ()):
            names[alias] = name
    return names


_add_integer_families()
_add_gguf()
FORMAT_ALIASES = _index()

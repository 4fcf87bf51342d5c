"""Tensor types of GGUF by number: name, elements and bytes of a block.

Source: ggml 0.25.3 ``ggml/include/ggml.h`` (``enum ggml_type``) and ``ggml/src/ggml-common.h``; types
that later versions removed keep their numbers and sizes.
"""

from __future__ import annotations

from typing import NamedTuple


class TensorType(NamedTuple):
    """How one tensor's elements are stored."""

    name: str
    block_elements: int
    block_bytes: int


TENSOR_TYPES = {
    0: TensorType("F32", 1, 4), 1: TensorType("F16", 1, 2), 2: TensorType("Q4_0", 32, 18),
    3: TensorType("Q4_1", 32, 20), 6: TensorType("Q5_0", 32, 22), 7: TensorType("Q5_1", 32, 24),
    8: TensorType("Q8_0", 32, 34), 9: TensorType("Q8_1", 32, 40), 10: TensorType("Q2_K", 256, 84),
    11: TensorType("Q3_K", 256, 110), 12: TensorType("Q4_K", 256, 144), 13: TensorType("Q5_K", 256, 176),
    14: TensorType("Q6_K", 256, 210), 15: TensorType("Q8_K", 256, 292), 16: TensorType("IQ2_XXS", 256, 66),
    17: TensorType("IQ2_XS", 256, 74), 18: TensorType("IQ3_XXS", 256, 98), 19: TensorType("IQ1_S", 256, 50),
    20: TensorType("IQ4_NL", 32, 18), 21: TensorType("IQ3_S", 256, 110), 22: TensorType("IQ2_S", 256, 82),
    23: TensorType("IQ4_XS", 256, 136), 24: TensorType("I8", 1, 1), 25: TensorType("I16", 1, 2),
    26: TensorType("I32", 1, 4), 27: TensorType("I64", 1, 8), 28: TensorType("F64", 1, 8),
    29: TensorType("IQ1_M", 256, 56), 30: TensorType("BF16", 1, 2), 31: TensorType("Q4_0_4_4", 32, 18),
    32: TensorType("Q4_0_4_8", 32, 18), 33: TensorType("Q4_0_8_8", 32, 18), 34: TensorType("TQ1_0", 256, 54),
    35: TensorType("TQ2_0", 256, 66), 36: TensorType("IQ4_NL_4_4", 32, 18), 37: TensorType("IQ4_NL_4_8", 32, 18),
    38: TensorType("IQ4_NL_8_8", 32, 18), 39: TensorType("MXFP4", 32, 17), 40: TensorType("NVFP4", 64, 36),
    41: TensorType("Q1_0", 128, 18), 42: TensorType("Q2_0", 64, 18),
}  # fmt: skip

FILE_TYPES = {
    0: "fp32", 1: "fp16", 2: "q4_0", 3: "q4_1", 7: "q8_0", 8: "q5_0", 9: "q5_1", 10: "q2_k", 11: "q3_k_s", 12: "q3_k_m",
    13: "q3_k_l", 14: "q4_k_s", 15: "q4_k_m", 16: "q5_k_s", 17: "q5_k_m", 18: "q6_k", 19: "iq2_xxs", 20: "iq2_xs",
    21: "q2_k_s", 22: "iq3_xs", 23: "iq3_xxs", 24: "iq1_s", 25: "iq4_nl", 26: "iq3_s", 27: "iq3_m", 28: "iq2_s",
    29: "iq2_m", 30: "iq4_xs", 31: "iq1_m", 32: "bf16", 36: "tq1_0", 37: "tq2_0", 38: "mxfp4_moe", 39: "nvfp4",
    40: "q1_0",
}  # fmt: skip
"""``general.file_type`` -> the format of that name (``enum llama_ftype``)."""

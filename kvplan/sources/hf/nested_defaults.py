"""Sizes that the text part of a nested configuration leaves to its class, whatever the family.

A file written by transformers drops any key of a nested part that equals its class's default, the width and the depth
of the model among them. Source: transformers 5.24.0 ``models/<family>/configuration_<family>.py``.
"""

from __future__ import annotations

KEYS = (
    "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "vocab_size",
    "max_position_embeddings", "num_key_value_heads", "head_dim",
)  # fmt: skip

_ROWS: dict[str, tuple[int | None, ...]] = {
    "apertus1p5_text": (4096, 14336, 32, 32, 266752, 65536, None, None),
    "aria_text": (4096, 4096, 32, 32, 32000, 2048, None, None),
    "cohere2": (8192, 22528, 40, 64, 256000, 8192, None, None),
    "cohere_compass_text": (8192, 22528, 40, 64, 256000, 8192, None, None),
    "cosmos3_edge_text": (2048, 9216, 28, 16, 131072, 131072, 8, None),
    "deepseek_ocr2_text": (4096, 11008, 32, 32, 102400, 2048, None, None),
    "deepseek_v3": (7168, 18432, 61, 128, 129280, 4096, None, 64),
    "emu3_text_model": (4096, 14336, 32, 32, 184622, 9216, 8, None),
    "ernie4_5_vl_moe_text": (2560, 12288, 28, 20, 103424, 131072, 4, None),
    "exaone4": (4096, 16384, 32, 32, 102400, 2048, None, None),
    "gemma": (3072, 24576, 28, 16, 256000, 8192, None, 256),
    "gemma3_text": (2304, 9216, 26, 8, 262208, 131072, 4, 256),
    "gemma3n_text": (2048, None, 35, 8, 262400, 32768, 2, None),
    "gemma4_text": (2304, 9216, 30, 8, 262144, 131072, 4, 256),
    "gemma4_unified_text": (2304, 9216, 30, 8, 262144, 262144, 4, 256),
    "glm4v_moe_text": (4096, 10944, 46, 96, 151424, 65536, 8, None),
    "glm4v_text": (4096, 13696, 40, 32, 151552, 32768, 2, None),
    "glm5_next_text": (4096, 12288, 45, 64, 154880, 1048576, None, 0),
    "glm_ocr_text": (1024, 4096, 16, 16, 59392, 131072, 8, None),
    "granite": (4096, 11008, 32, 32, 32000, 2048, None, None),
    "granite4_vision_text": (4096, 11008, 32, 32, 32000, 2048, None, None),
    "granite_docling_text": (1024, 2048, 28, 16, 133800, 32768, 4, None),
    "hunyuan_vl_text": (4096, 11008, 32, 32, 290943, 2048, None, None),
    "hy_v4_vl_text": (6144, 18432, 78, 64, 120832, 262144, None, 64),
    "hyperclovax": (4096, 11008, 32, 32, 32000, 2048, None, None),
    "lfm2": (2560, 12288, 32, 32, 65536, 128000, 8, None),
    "lfm3": (2048, 7680, 24, 16, 128000, 128000, 4, None),
    "llama": (4096, 11008, 32, 32, 32000, 2048, None, None),
    "llama4_text": (5120, 8192, 48, 40, 202048, 131072, 8, None),
    "minimax_m3_vl_text": (6144, 3072, 60, 64, 200064, 524288, 4, 128),
    "mistral": (4096, 14336, 32, 32, 32000, 131072, 8, None),
    "mistral_large4_text": (6144, 24576, 72, 64, 204800, 1048576, None, 64),
    "mllama_text_model": (4096, 14336, 40, 32, 128256, 131072, 8, None),
    "molmo2_text": (4096, 12288, 36, 32, 151936, 36864, 8, None),
    "muse_glimmer_text": (6656, 19968, 52, 32, 202048, 131072, 2, 128),
    "muse_spark_text": (8192, 16384, 62, 128, 202048, 1048576, 16, None),
    "nemotron_h": (4096, 21504, None, 32, 131072, 4096, 8, None),
    "opt": (768, None, 12, 12, 50272, 2048, None, None),
    "paddleocr_vl_text": (1024, 3072, 18, 16, 103424, 131072, 2, 128),
    "persimmon": (4096, 16384, 36, 64, 262144, 16384, None, None),
    "qwen2": (4096, 22016, 32, 32, 151936, 32768, None, None),
    "qwen2_5_omni_text": (3584, 18944, 28, 28, 152064, 32768, 4, None),
    "qwen2_5_vl_text": (8192, 29568, 80, 64, 152064, 32768, 8, None),
    "qwen2_vl_text": (8192, 29568, 80, 64, 152064, 32768, 8, None),
    "qwen3": (4096, 22016, 32, 32, 151936, 32768, None, None),
    "qwen3_5_moe_text": (2048, None, 40, 16, 248320, 32768, 2, 256),
    "qwen3_5_text": (4096, 12288, 32, 16, 248320, 32768, 4, None),
    "qwen3_omni_moe_text": (2048, 18944, 28, 28, 3584, 32768, 4, None),
    "qwen3_vl_moe_text": (2048, 5632, 24, 16, 151936, 128000, None, None),
    "qwen3_vl_text": (4096, 22016, 32, 32, 151936, 128000, None, None),
    "step3p5": (4096, 11264, 45, 64, 128815, 128000, 8, 128),
    "unlimited_ocr_text": (1280, 6848, 12, 10, 129280, 32768, None, None),
    "voxtral_realtime_text": (4096, 14336, 32, 32, 32000, 131072, 8, None),
}
"""``model_type`` of a text part -> what its class has for each of `KEYS`; None: the file or its reader must say."""

NESTED_SIZES: dict[str, dict[str, int]] = {
    kind: {key: value for key, value in zip(KEYS, row, strict=True) if value is not None} for kind, row in _ROWS.items()
}
"""The same by key."""

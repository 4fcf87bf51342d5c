"""How a typed name becomes a key of the name index. The index is written with the same functions."""

from __future__ import annotations

VARIANT_WORDS = frozenset(
    ("instruct", "chat", "it", "base", "hf", "pt", "thinking", "think", "reasoning", "inst", "qat")
)  # fmt: skip
"""Words that tell checkpoints of one architecture apart; a name means the same model without them."""

_GGUF = (
    "q8_0", "q6_k", "q5_k_m", "q5_k_s", "q5_1", "q5_0", "q4_k_m", "q4_k_s", "q4_1", "q4_0", "q3_k_l", "q3_k_m",
    "q3_k_s", "q2_k_s", "q2_k", "iq4_nl", "iq4_xs", "iq3_m", "iq3_s", "iq3_xs", "iq3_xxs", "iq2_m", "iq2_s",
    "iq2_xs", "iq2_xxs",
    "iq1_m", "iq1_s", "ud_q8_k_xl", "ud_q6_k_xl", "ud_q5_k_xl", "ud_q4_k_xl", "ud_q3_k_xl", "ud_q2_k_xl", "ud_iq3_xxs",
    "ud_iq2_m", "ud_iq2_xxs", "ud_iq1_m", "ud_iq1_s",
)  # fmt: skip
QUANTISED: dict[str, str] = {
    "fp8": "fp8_e4m3", "fp8-static": "fp8_e4m3", "fp8-dynamic": "fp8_channel", "fp8-block": "fp8_block",
    "awq": "awq", "awq-int4": "awq", "awq-4bit": "awq", "int4-awq": "awq",
    "gptq-int4": "gptq", "gptq-4bit": "gptq", "int4-gptq": "gptq",
    "gptq-int8": "gptq_int8", "gptq-8bit": "gptq_int8",
    "w4a16": "int4_g128", "quantized.w4a16": "int4_g128", "int4": "int4_g128",
    "autoround-int4": "int4_g128", "int4-autoround": "int4_g128",
    "w8a8": "int8_channel", "quantized.w8a8": "int8_channel", "w8a16": "int8_channel",
    "quantized.w8a16": "int8_channel", "int8": "int8_channel",
    "nvfp4": "nvfp4", "mxfp4": "mxfp4", "mxfp8": "mxfp8",
    "bnb-4bit": "nf4_dq", "bnb-nf4": "nf4", "bnb-8bit": "bnb_int8",
    "mlx-4bit": "mlx4_g64", "mlx-6bit": "mlx6_g64", "mlx-8bit": "mlx8_g64",
    "bf16": "bf16", "fp16": "fp16", "f16": "fp16",
    **{name.replace("_", "-"): name for name in _GGUF},
}  # fmt: skip
"""How names of quantised checkpoints end -> the weight format that says so."""

OWN_FP8 = {"qwen": "fp8_block", "deepseek-ai": "fp8_block", "meta-llama": "fp8_channel"}
"""What -FP8 means in the name of a publisher's own checkpoint (``quantization_config`` there)."""

REPUBLISHERS = frozenset(
    (
        "redhatai", "neuralmagic", "nm-testing", "nvidia", "amd", "unsloth", "hugging-quants", "casperhansen",
        "thebloke", "cyankiwi", "inferact", "salyut1", "lmstudio-community", "bartowski", "ggml-org", "modelscope",
        "intel", "gaunernst", "cpatonn", "quanttrio", "mradermacher", "mlx-community",
    )
)  # fmt: skip
"""Organisations that publish copies and quantised checkpoints of others' models under the same name."""

RENAMED = {
    "thudm": "zai-org", "cohereforai": "coherelabs", "01ai": "01-ai", "minimax": "minimaxai",
}  # fmt: skip
"""Earlier names of organisations -> the one in the catalog."""

_GPU_NOISE = frozenset(
    ("nvidia", "amd", "intel", "apple", "google", "aws", "huawei", "geforce", "tesla", "instinct", "radeon", "graphics",
     "corporation", "generation", "edition")
)  # fmt: skip
"""Words of driver and shop names that tell no two accelerators apart."""


def model_key(text: str) -> tuple[str, str]:
    """(organisation, key) of a model name: lower case, ``-`` for ``:``, ``_`` and blanks.

    The dash before a leading version number goes: ``llama-3.1-8b`` and ``llama3.1:8b`` are one key.
    """
    organisation, _, name = text.strip().lower().rpartition("/")
    for mark in (":", "_", " "):
        name = name.replace(mark, "-")
    family, dash, rest = name.partition("-")
    return organisation, family + rest if family.isalpha() and rest[:1].isdigit() else family + dash + rest


def without_variant(key: str) -> str:
    """`key` without the words that name a checkpoint rather than an architecture."""
    return "-".join(word for word in key.split("-") if word not in VARIANT_WORDS)


def split_quantised(key: str) -> tuple[str, str | None]:
    """(`key` without its quantisation suffix, weight format); the format is None where it has none."""
    words = key.split("-")
    for length in range(min(4, len(words) - 1), 0, -1):
        found = QUANTISED.get("-".join(words[-length:]))
        if found:
            return "-".join(words[:-length]), found
    return key, None


def gpu_words(text: str) -> list[str]:
    """The words of a GPU name that tell it apart: no vendor, no brand, lower case."""
    lower = text.lower().replace("(r)", " ").replace("(tm)", " ")
    words = "".join(c if c.isalnum() else " " for c in lower).split()
    return [word for word in words if word not in _GPU_NOISE] or words


def split_memory(words: list[str]) -> tuple[list[str], int | None]:
    """(the words without a memory size such as ``80gb``, that size in GB or None)."""
    for word in words:
        if word.endswith("gb") and word[:-2].isdigit():
            return [w for w in words if w != word], int(word[:-2])
    return words, None

"""What llama.cpp makes of each architecture's metadata: windows, recurrent layers, indexers, sharing.

Source: libllama 0.5.0 ``src/llama-arch.cpp`` (names), ``src/models/*.cpp`` (``load_arch_hparams``) and
``src/llama-model.cpp`` (``create_memory``: which layers an attention or recurrent cache covers).
"""

from __future__ import annotations

from typing import NamedTuple


class Window(NamedTuple):
    """How an architecture finds its windowed layers."""

    period: int | None
    """One layer in so many sees everything; None: the file must say which."""
    dense_first: bool = False
    """That layer is the first of its group, not the last."""
    default: int | None = None
    """The window where the file names none; None: then there is no window."""
    fixed: int | None = None
    """The window whatever the file says."""
    at_layers: int | None = None
    """Only with this many layers."""


WINDOWS = {
    "afmoe": Window(4), "cohere2": Window(4), "cohere2moe": Window(4, dense_first=True), "dots3note": Window(None),
    "exaone-moe": Window(4, default=128), "exaone4": Window(4, default=4096, at_layers=64),
    "gemma2": Window(2, default=4096), "gemma3": Window(6), "gemma3n": Window(5), "gemma4": Window(None),
    "gpt-oss": Window(2), "granite_swa": Window(None), "laguna": Window(4, dense_first=True), "lfm2": Window(0),
    "llama4": Window(4, default=8192, fixed=8192), "maple": Window(None), "mellum": Window(4), "mimo2": Window(None),
    "muse-glimmer": Window(4), "olmo2": Window(4), "plamo3": Window(8),
    "smallthinker": Window(4, dense_first=True, fixed=4096), "spark2_5": Window(None), "step35": Window(None),
}  # fmt: skip
"""The architectures with a cache for windowed layers; a period of 0 windows every attention layer. Every
other one caches every token (``llama``, ``qwen2``, ``phi3``, ``starcoder2``, ...)."""

SSM = frozenset({"mamba", "mamba2", "jamba", "plamo2", "falcon-h1", "granitehybrid", "nemotron_h", "nemotron_h_moe"})
DELTA = frozenset({"qwen3next", "qwen35", "qwen35moe", "qwen4exp"})
"""Gated delta net; which layers by ``attention.recurrent_layers`` or ``full_attention_interval``."""
KDA = frozenset({"kimi-linear", "kimi-k3", "bailingmoe3", "glm5-next"})
CONV = frozenset({"lfm2", "lfm2moe"})
RWKV = frozenset({"rwkv6", "rwkv6qwen2", "rwkv7", "arwkv7"})
LIGHTNING = "minimax-01"
PURE = frozenset({"mamba", "mamba2"}) | RWKV
"""Recurrent in every layer, no attention."""
BOTH = "falcon-h1"
"""Attention and recurrent state in every layer."""
INTERVAL = {**dict.fromkeys(DELTA, 4), LIGHTNING: 8}
"""Architectures that put attention into every so-manyth layer -> the default."""

INDEXED = frozenset({"deepseek32", "glm-dsa", "hy_v4", "dots3note", "glm5-next"})
"""Latent attention with an indexer; on the layers that ``attention.indexer.types`` marks, or on all."""
INDEXED_GQA = frozenset({"minimax-m3", "qwen4exp"})
COMPRESSED = "deepseek4"
COMPRESS_RATIOS = (4, 128)
OWNERS = {"gemma3n": 20}
"""Layers that own a cache where it is hard-wired; later ones read an earlier layer's."""

NEXTN_CACHED = frozenset(
    {"bailingmoe3", "granitehybrid", "hy_v4", "jamba", "kimi-k3", "kimi-linear", "lfm2", "lfm2moe", "plamo2"}
)
"""Architectures whose attention cache also covers the prediction layers at the end of the file."""

ENCODERS_APART = frozenset(
    {
        "cogvlm", "deepseek2-ocr", "gemma3", "gemma3n", "gemma4", "glm5-next", "hunyuan_vl", "kimi-k3", "llama4",
        "mistral3", "muse-glimmer", "paddleocr", "qwen2vl", "qwen3vl", "qwen3vlmoe", "qwen35", "qwen35moe", "step35",
    }
)  # fmt: skip
"""Architectures of whose models some see or hear, by an encoder that llama.cpp keeps in a file of its own."""

NO_CACHE = frozenset(
    {
        "bert", "clip", "dream", "eurobert", "gemma-embedding", "jina-bert-v2", "jina-bert-v3", "llada", "llada-moe",
        "modern-bert", "neo-bert", "nomic-bert", "nomic-bert-moe", "rnd1", "t5encoder", "wavtokenizer-dec",
    }
)  # fmt: skip
"""Encoders, diffusion models and projectors: llama.cpp gives them no KV cache."""
NOT_MODELLED = {
    "dflash": "a draft model, which lives in its target's context",
    "eagle3": "a draft model, which lives in its target's context",
    "gemma4-assistant": "a draft model, which shares its target's cache",
    "pockettts": "a speech model",
    "qwen3tts": "a speech model",
    "t5": "an encoder-decoder",
}

_PLAIN = """
    llama deci falcon grok gpt2 gptj gptneox mpt baichuan starcoder refact bloom stablelm qwen qwen2 qwen2moe qwen2vl
    qwen3 qwen3moe qwen3vl qwen3vlmoe phi2 phi3 phimoe plamo codeshell orion internlm2 minicpm minicpm3 gemma starcoder2
    xverse command-r dbrx olmo olmoe openelm arctic deepseek deepseek2 deepseek2-ocr chatglm glm4 glm4moe bitnet jais
    jais2 nemotron exaone granite granitemoe graniteswitch chameleon plm bailingmoe bailingmoe2 dots1 arcee ernie4_5
    ernie4_5-moe hunyuan-moe hunyuan-dense hunyuan_vl hy_v3 smollm3 seed_oss grovemoe apertus hrm_text minimax-m2 cogvlm
    pangu-embedded mistral3 mistral4 paddleocr llama-embed maincoder talkie nanbeige
"""
PLAIN = frozenset(_PLAIN.split())
"""Full attention in every layer (latent where the file has the keys of it)."""

_UNGATED = """
    apertus arcee bloom codeshell falcon gpt2 gptj gptneox jais2 mpt nemotron nemotron_h nemotron_h_moe phi2 plm
    starcoder starcoder2
"""
UNGATED = frozenset(_UNGATED.split())
"""Architectures whose FFNs are two matrices, up and down."""

KNOWN = (
    PLAIN | SSM | DELTA | KDA | CONV | RWKV | INDEXED | INDEXED_GQA | {LIGHTNING, COMPRESSED} | set(WINDOWS)
)  # fmt: skip
"""Every architecture that is read."""

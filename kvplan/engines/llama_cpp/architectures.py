"""Where llama.cpp keys on an architecture: the one table of it, and what follows for the cache.

Source: libllama 0.5.0 (ggml 0.25.3), ``conversion/*.py`` (which configuration becomes which GGUF
architecture), ``src/models/*.cpp`` (``load_arch_hparams``: windows, recurrent layers, indexers) and
``src/llama-model.cpp`` (``create_memory``: which cache an architecture gets).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from kvplan.spec.model import ModelSpec

CONVERTED = {
    "afmoe": "AfmoeForCausalLM",
    "apertus": "ApertusForCausalLM",
    "arcee": "ArceeForCausalLM",
    "arctic": "ArcticForCausalLM",
    "arwkv7": "RwkvHybridForCausalLM",
    "baichuan": "BaiChuanForCausalLM BaichuanForCausalLM",
    "bailingmoe": "BailingMoeForCausalLM",
    "bailingmoe2": "BailingMoeV2ForCausalLM SarvamMoEForCausalLM",
    "bailingmoe3": "BailingMoeV3ForCausalLM BailingMoeV3VLForConditionalGeneration",
    "bitnet": "BitNetForCausalLM BitnetForCausalLM",
    "bloom": "BloomForCausalLM BloomModel",
    "chameleon": "ChameleonForCausalLM ChameleonForConditionalGeneration",
    "chatglm": "ChatGLMForConditionalGeneration ChatGLMModel GlmForCausalLM",
    "codeshell": "CodeShellForCausalLM",
    "cogvlm": "CogVLMForCausalLM",
    "cohere2": "Cohere2ForCausalLM",
    "cohere2moe": "Cohere2MoeForCausalLM",
    "command-r": "CohereForCausalLM",
    "dbrx": "DbrxForCausalLM",
    "deci": "DeciLMForCausalLM",
    "deepseek": "DeepseekForCausalLM",
    "deepseek2": "DeepseekOCRForCausalLM DeepseekV2ForCausalLM DeepseekV3ForCausalLM Glm4MoeLiteForCausalLM"
    " KimiK25ForConditionalGeneration KimiVLForConditionalGeneration UnlimitedOCRForCausalLM YoutuForCausalLM"
    " YoutuVLForConditionalGeneration",
    "deepseek32": "DeepseekV32ForCausalLM",
    "deepseek4": "DeepseekV4ForCausalLM",
    "dots1": "Dots1ForCausalLM",
    "dots3note": "Dots3NoteForCausalLM Dots3NoteForConditionalGeneration Dots3NoteTextForCausalLM",
    "ernie4_5": "Ernie4_5ForCausalLM Ernie4_5_ForCausalLM",
    "ernie4_5-moe": "Ernie4_5_MoeForCausalLM",
    "exaone": "ExaoneForCausalLM",
    "exaone-moe": "ExaoneMoEForCausalLM ExaoneMoeForCausalLM",
    "exaone4": "Exaone4ForCausalLM Exaone4_5_ForConditionalGeneration",
    "falcon": "FalconForCausalLM RWForCausalLM",
    "falcon-h1": "FalconH1ForCausalLM",
    "gemma": "GemmaForCausalLM",
    "gemma2": "Gemma2ForCausalLM",
    "gemma3": "Gemma3ForCausalLM Gemma3ForConditionalGeneration",
    "gemma3n": "Gemma3nForCausalLM Gemma3nForConditionalGeneration",
    "gemma4": "Gemma4ForCausalLM Gemma4ForConditionalGeneration Gemma4UnifiedForConditionalGeneration",
    "glm-dsa": "GlmMoeDsaForCausalLM",
    "glm4": "Glm4ForCausalLM Glm4vForConditionalGeneration GlmOcrForConditionalGeneration",
    "glm4moe": "Glm4MoeForCausalLM Glm4vMoeForConditionalGeneration SolarOpenForCausalLM",
    "glm5-next": "Glm5NextForConditionalGeneration",
    "gpt-oss": "GptOssForCausalLM",
    "gpt2": "GPT2LMHeadModel RuGPT3XLForCausalLM",
    "gptneox": "GPTNeoXForCausalLM",
    "granite": "GraniteForCausalLM",
    "granite_swa": "GraniteMoeSWAForCausalLM GraniteSWAForCausalLM",
    "granitehybrid": "BambaForCausalLM GraniteMoeHybridForCausalLM",
    "granitemoe": "GraniteMoeForCausalLM GraniteMoeSharedForCausalLM",
    "graniteswitch": "GraniteSwitchForCausalLM",
    "grok": "Grok1ForCausalLM GrokForCausalLM",
    "grovemoe": "GroveMoeForCausalLM",
    "hrm_text": "HrmTextForCausalLM",
    "hunyuan-dense": "HunYuanDenseV1ForCausalLM",
    "hunyuan-moe": "HunYuanMoEV1ForCausalLM",
    "hunyuan_vl": "HunYuanVLForConditionalGeneration",
    "hy_v3": "HYV3ForCausalLM",
    "hy_v4": "HYV4ForCausalLM",
    "internlm2": "InternLM2ForCausalLM",
    "jais": "JAISLMHeadModel",
    "jais2": "Jais2ForCausalLM",
    "jamba": "JambaForCausalLM",
    "kimi-k3": "KimiK3ForConditionalGeneration",
    "kimi-linear": "KimiLinearForCausalLM KimiLinearModel",
    "laguna": "LagunaForCausalLM",
    "lfm2": "LFM2ForCausalLM Lfm2BidirectionalModel Lfm2ForCausalLM Lfm2Model",
    "lfm2moe": "Lfm2MoeForCausalLM",
    "llama": "IQuestCoderForCausalLM InternLM3ForCausalLM JanusForConditionalGeneration LLaMAForCausalLM"
    " LlamaForCausalLM LlamaModel LlavaForConditionalGeneration MistralForCausalLM MixtralForCausalLM"
    " Sarashina2VisionForCausalLM UltravoxModel VLlama3ForCausalLM VoxtralForConditionalGeneration",
    "llama4": "Llama4ForCausalLM Llama4ForConditionalGeneration",
    "maincoder": "MaincoderForCausalLM",
    "mamba": "FalconMambaForCausalLM MambaForCausalLM MambaLMHeadModel",
    "mamba2": "Mamba2ForCausalLM",
    "maple": "MapleForCausalLM",
    "mellum": "MellumForCausalLM",
    "mimo2": "MiMoV2FlashForCausalLM MiMoV2ForCausalLM",
    "minicpm": "MiniCPMForCausalLM",
    "minicpm3": "MiniCPM3ForCausalLM",
    "minimax-01": "MiniMaxM1ForCausalLM MiniMaxText01ForCausalLM",
    "minimax-m2": "MiniMaxM2ForCausalLM",
    "minimax-m3": "MiniMaxM3SparseForCausalLM MiniMaxM3SparseForConditionalGeneration",
    "mistral3": "Ministral3ForCausalLM Mistral3ForConditionalGeneration",
    "mpt": "MPTForCausalLM",
    "muse-glimmer": "MuseGlimmerForConditionalGeneration",
    "nanbeige": "NanbeigeForCausalLM",
    "nemotron": "NemotronForCausalLM",
    "nemotron_h": "NemotronHForCausalLM",
    "nemotron_h_moe": "NemotronHPuzzleForCausalLM",
    "olmo": "OLMoForCausalLM OlmoForCausalLM",
    "olmo2": "Olmo2ForCausalLM Olmo3ForCausalLM",
    "olmoe": "OlmoeForCausalLM",
    "openelm": "OpenELMForCausalLM",
    "orion": "OrionForCausalLM",
    "paddleocr": "PaddleOCRVLForConditionalGeneration",
    "pangu-embedded": "PanguEmbeddedForCausalLM",
    "phi2": "PhiForCausalLM",
    "phi3": "Phi3ForCausalLM Phi4ForCausalLMV",
    "phimoe": "PhiMoEForCausalLM",
    "plamo": "PlamoForCausalLM",
    "plamo2": "PLaMo2ForCausalLM Plamo2ForCausalLM",
    "plamo3": "PLaMo3ForCausalLM Plamo3ForCausalLM",
    "plm": "PLMForCausalLM",
    "qwen": "QWenLMHeadModel",
    "qwen2": "AudioFlamingo3ForConditionalGeneration DotsOCRForCausalLM KORMoForCausalLM"
    " Qwen2AudioForConditionalGeneration Qwen2ForCausalLM Qwen2Model",
    "qwen2moe": "Qwen2MoeForCausalLM",
    "qwen2vl": "Qwen2VLForConditionalGeneration Qwen2VLModel Qwen2_5OmniModel Qwen2_5_VLForConditionalGeneration",
    "qwen3": "Qwen3ForCausalLM Qwen3Model StepVLForConditionalGeneration",
    "qwen35": "MiniCPMV4_6ForConditionalGeneration Qwen3_5ForCausalLM Qwen3_5ForConditionalGeneration",
    "qwen35moe": "Qwen3_5MoeForCausalLM Qwen3_5MoeForConditionalGeneration",
    "qwen3moe": "Qwen3MoeForCausalLM",
    "qwen3next": "Qwen3NextForCausalLM",
    "qwen3vl": "Qwen3ASRForConditionalGeneration Qwen3VLForConditionalGeneration",
    "qwen3vlmoe": "Qwen3OmniMoeForConditionalGeneration Qwen3VLMoeForConditionalGeneration",
    "qwen4exp": "Qwen4ExpForCausalLM Qwen4ExpForConditionalGeneration",
    "refact": "GPTRefactForCausalLM",
    "rwkv6": "Rwkv6ForCausalLM",
    "rwkv6qwen2": "RWKV6Qwen2ForCausalLM",
    "rwkv7": "RWKV7ForCausalLM Rwkv7ForCausalLM",
    "seed_oss": "SeedOssForCausalLM",
    "smallthinker": "SmallThinkerForCausalLM",
    "smollm3": "SmolLM3ForCausalLM",
    "spark2_5": "Spark2_5ForCausalLM",
    "stablelm": "LlavaStableLMEpochForCausalLM StableLMEpochForCausalLM StableLmForCausalLM",
    "starcoder": "GPTBigCodeForCausalLM",
    "starcoder2": "Starcoder2ForCausalLM",
    "step35": "Step3p5ForCausalLM Step3p7ForConditionalGeneration",
    "talkie": "TalkieForCausalLM",
    "xverse": "XverseForCausalLM",
}
"""GGUF architecture -> the ``architectures`` entries that the converter turns into it."""

_WINDOWED = frozenset(
    {
        "afmoe", "cohere2", "cohere2moe", "deepseek4", "dots3note", "exaone-moe", "exaone4", "gemma2", "gemma3",
        "gemma3n", "gemma4", "gpt-oss", "granite_swa", "laguna", "lfm2", "llama4", "maple", "mellum", "mimo2",
        "muse-glimmer", "olmo2", "plamo3", "smallthinker", "spark2_5", "step35",
    }
)  # fmt: skip
"""The architectures that get a second, shorter cache for layers with a window. Every other known one
caches every token in every layer, whatever its configuration says: ``llama`` and ``starcoder2`` have no
window in the file, ``qwen2`` and ``plamo2`` do not read it, ``phi3`` reads it and switches it off."""

_WINDOW_AT_LAYERS = {"exaone4": 64}
"""Architectures whose window applies at one number of layers only."""

_UNCOMPRESSED_LATENT = frozenset({"minicpm3", "plm"})
"""Latent attention whose graph caches K and V of every head."""

_SHARED_STREAMS = frozenset({"dots3note"})
"""K-only window rows in an ordinary cache; DeepSeek-V4's are one stream per sequence even with -kvu."""

_INDEX_WITHOUT_V = frozenset({"qwen4exp"})
"""Grouped-query models whose indexer cache has no V half (MiniMax-M3's has one, and does not use it)."""

_INDEX_ROWS = {"glm5-next": 3}
"""Rows of index_head_dim that the indexer stores per token: key, gate and pooled value."""

_ROLLBACK = frozenset(
    {
        "bailingmoe3", "deepseek4", "glm5-next", "kimi-k3", "lfm2", "lfm2moe", "nemotron_h", "nemotron_h_moe", "qwen35",
        "qwen35moe", "qwen4exp",
    }
)  # fmt: skip
"""Architectures that keep rollback snapshots of their state for speculative decoding; others clamp them to 0."""

_NO_FLASH = frozenset({"grok"})
"""Architectures for which flash attention is forced off."""

CHUNK = 8192
"""Cells of a chunk of Llama 4: hard-wired, whatever ``attention_chunk_size`` says."""


class Facts(NamedTuple):
    """What llama.cpp makes of an architecture."""

    name: str | None
    """GGUF name; None: the converter of this version does not know it."""
    windowed: bool
    uncompressed_latent: bool = False
    shared_streams: bool = False
    index_v: bool = True
    index_rows: int = 1
    rollback: bool = False
    flash: bool = True


def gguf_name(architecture: str) -> str | None:
    """The GGUF architecture of a configuration's, or of itself; None: not known."""
    if architecture in CONVERTED or architecture in _WITHOUT_CONFIG:
        return architecture
    return next((name for name, known in CONVERTED.items() if architecture in known.split()), None)


_WITHOUT_CONFIG = frozenset({"deepseek2-ocr", "gptj", "mistral4"})
"""GGUF architectures without an entry of their own in `CONVERTED`."""


def facts(model: ModelSpec) -> Facts:
    """The facts of a model's architecture; one that is not known is taken at its configuration's word."""
    name = gguf_name(model.architecture)
    if name is None:
        return Facts(None, windowed=True)
    return Facts(
        name,
        windowed=name in _WINDOWED and _WINDOW_AT_LAYERS.get(name, model.num_layers) == model.num_layers,
        uncompressed_latent=name in _UNCOMPRESSED_LATENT,
        shared_streams=name in _SHARED_STREAMS,
        index_v=name not in _INDEX_WITHOUT_V,
        index_rows=_INDEX_ROWS.get(name, 1),
        rollback=name in _ROLLBACK,
        flash=name not in _NO_FLASH,
    )

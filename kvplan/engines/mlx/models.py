"""What MLX-LM's own model classes decide about caches, by architecture.

Source: mlx-lm 0.32.2 ``mlx_lm/models/*.py`` (``make_cache``) and ``mlx_lm/models/cache.py``
(``make_prompt_cache``). Keys are those of `kvplan.engines.rows.architecture_key`.
"""

from __future__ import annotations

WINDOWED = frozenset(
    {
        "afmoe", "cohere2", "exaone4", "exaonemoe", "gemma3", "gemma3n", "gemma4", "gemma4unified", "gptoss", "laguna",
        "mellum", "mimov2flash", "museglimmer", "olmo3", "plamo3", "recurrentgemma", "step3p5", "ministral3",
        "iquestloopcoder", "baichuanm1",
    }
)  # fmt: skip
"""Architectures whose windowed layers get a ``RotatingKVCache``; elsewhere they keep every token."""

MIXED_WINDOWS = frozenset({"llama", "mistral", "iquestcoder", "xverse"})
"""Read by the Llama class, which slides only where ``layer_types`` says so: never where all layers slide."""

MAKE_CACHE = WINDOWED | MIXED_WINDOWS | frozenset(
    {
        "afm7", "bailinghybrid", "bailingmoelinear", "bailingmoev3", "deepseekv32", "falconh1", "falconmamba", "gear",
        "glmmoedsa", "granitemoehybrid", "jamba", "kimilinear", "kimik3", "lfm2", "lfm2moe", "lfm2vl", "llama4",
        "longcatflash", "mamba", "mamba2", "minimaxm3sparse", "minimaxm3vl", "nanbeige", "nemotronnas", "decilm",
        "nemotronh", "olmohybrid", "plamo2", "qwen35", "qwen35moe", "qwen3next", "rwkv7",
    }
)  # fmt: skip
"""Architectures that make their own caches, so that ``--max-kv-size`` is ignored."""

LISTED = frozenset(
    {
        "falconh1", "baichuanm1", "deepseekv32", "glmmoedsa", "longcatflash", "longcatflashngram", "minimaxm3sparse",
        "minimaxm3vl",
    }
)  # fmt: skip
"""Architectures whose layers hold their caches in a ``CacheList``, which ``--kv-bits`` leaves as they are."""

OWN_SCORES = frozenset({"gemma2", "phi"})
"""Architectures that multiply queries and keys themselves and fail on the tuples of a quantised cache."""

REBUILT = frozenset({"deepseekv2", "minicpm3", "youtu", "youtullm"})
"""Latent attention whose K and V are rebuilt for every head before they are cached."""

FLOAT32_STATES = frozenset({"mamba2", "gated_delta_net", "kda", "rwkv"})
"""Recurrent kinds that keep their state in float32; the others in the model's dtype."""

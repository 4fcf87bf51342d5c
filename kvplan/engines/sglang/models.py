"""Architectures to which SGLang gives a pool of their own for windowed layers, and whose states it tracks, by version.

Source: ``is_hybrid_swa_model`` in ``python/sglang/srt/configs/model_config.py`` (``is_hybrid_model`` in 0.4.9 to 0.5.6,
which nothing enters by default). Keys are those of `kvplan.engines.rows.architecture_key`. Gemma 2 and 3, Mistral
and others are in none of the lists: their windowed layers are held at full length.
"""

from __future__ import annotations

from kvplan.engines.versions import at_least

_SINCE: dict[str, tuple[str, ...]] = {
    "0.5.12": ("llama4", "gptoss", "mimov2flash", "mimov2", "step3p5", "gemma4", "laguna"),
    "0.5.14": ("step3p7", "gemma4unified"),
    "0.5.17": ("mellum",),
    "0.5.20": ("museglimmer", "graniteswa", "granitemoeswa", "iquestq1"),
    "0.5.23": ("beam", "diffusiongemma", "diffusiongemmaforblockdiffusion"),
}


def has_window_pool(architecture: str, version: str) -> bool:
    """Whether this version keeps the architecture's windowed layers in a pool of their own."""
    return any(architecture in names and at_least(version, since) for since, names in _SINCE.items())


_LESS_ONE = frozenset(
    {
        "gptoss", "gemma4", "gemma4unified", "mellum", "museglimmer", "beam", "diffusiongemma",
        "diffusiongemmaforblockdiffusion",
    }
)  # fmt: skip
"""Of these the window without the token itself; the others give the window of the configuration.

Source: ``get_attention_sliding_window_size`` in ``python/sglang/srt/models/*.py`` of 0.5.23.
"""


def held_window(architecture: str, window: int) -> int:
    """``sliding_window_size``: tokens behind the newest that a windowed layer keeps."""
    return window - 1 if architecture in _LESS_ONE else window


_TRACKED_SINCE: dict[str, tuple[str, ...]] = {
    "0.5.12": ("qwen3next", "qwen35", "qwen35moe", "interns2preview", "minicpmv46"),
    "0.5.14": ("falconh1", "granitemoehybrid", "bailingmoev25", "nemotronh", "nemotronhpuzzle"),
    "0.5.17": ("kimilinear", "kimik3"),
    "0.5.20": ("bailingmoev3", "glm5next", "nemotronhomnireasoningv3", "qwen4exp"),
    "0.5.23": ("bailingmoev3vl", "inkling", "inklingforconditionalgenerationmtp", "minicpmv47"),
}  # fmt: skip


def tracks_states(architecture: str, version: str) -> bool:
    """Whether this version can snapshot the architecture's states while it decodes (``extra_buffer``).

    Source: ``_MAMBA_EXTRA_BUFFER_ARCHS`` in ``python/sglang/srt/arg_groups/overrides.py`` (0.5.17 to 0.5.23),
    ``_support_mamba_cache_extra_buffer`` in ``python/sglang/srt/server_args.py`` (0.5.14), and there
    ``_handle_mamba_radix_cache`` (0.5.12).
    """
    return any(architecture in names and at_least(version, since) for since, names in _TRACKED_SINCE.items())


_PREFIXES_SINCE = {"kimilinear": "0.5.14", "bailingmoev25": "0.5.14"}


def has_radix_tree(architecture: str, version: str) -> bool:
    """Whether this version can keep prefixes of the architecture; before, it turns the radix tree off by itself.

    Source: ``support_mamba_cache`` in ``python/sglang/srt/server_args.py`` of 0.5.12, and 0.5.6 there.
    """
    return at_least(version, _PREFIXES_SINCE.get(architecture, "0"))

"""Architectures to which SGLang gives a pool of their own for windowed layers, by version.

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

"""Encoders beside the language model: exact counts of Gemma 4's, and sizes that files write twice."""

from __future__ import annotations

from typing import Any

import pytest

from kvplan.errors import SpecError
from kvplan.sources.hf.read import read_config

TEXT = {
    "model_type": "gemma4_text", "num_hidden_layers": 6, "num_attention_heads": 8, "num_key_value_heads": 2,
    "head_dim": 256, "intermediate_size": 2048, "vocab_size": 1000, "max_position_embeddings": 8192,
    "hidden_size_per_layer_input": 0,
}  # fmt: skip
SMALL = {"model_type": "gemma4_vision", "hidden_size": 768, "num_hidden_layers": 16, "num_attention_heads": 12,
         "intermediate_size": 3072, "patch_size": 16, "head_dim": 64}  # fmt: skip
LARGE = {"model_type": "gemma4_vision", "hidden_size": 1152, "num_hidden_layers": 27, "num_attention_heads": 16,
         "intermediate_size": 4304, "patch_size": 16, "head_dim": 72}  # fmt: skip


def towers(width: int, **parts: Any) -> dict[str, int]:
    model = read_config({"model_type": "gemma4", "text_config": TEXT | {"hidden_size": width}, **parts})
    return {tower.name: tower.parameters for tower in model.towers}


@pytest.mark.parametrize(
    ("width", "parts", "total"),
    [
        (1536, {"vision_config": SMALL, "audio_config": {"model_type": "gemma4_audio"}}, 475_728_160),
        (2560, {"vision_config": SMALL, "audio_config": {"model_type": "gemma4_audio"}}, 478_087_456),
        (2816, {"vision_config": LARGE}, 572_792_112),
        (5376, {"vision_config": LARGE}, 575_741_232),
    ],
)
def test_gemma4(width: int, parts: dict[str, Any], total: int) -> None:
    """The published sizes of E2B, E4B, 26B-A4B and 31B, of which the small ones also hear."""
    found = towers(width, **parts)
    assert sum(found.values()) == total
    assert ("audio" in found) is ("audio_config" in parts)


def test_sizes_of_the_audio_part() -> None:
    part = {"model_type": "gemma4_audio", "hidden_size": 64, "num_hidden_layers": 1, "num_attention_heads": 4,
            "conv_kernel_size": 3, "output_proj_dims": 96, "subsampling_conv_channels": [8, 4]}  # fmt: skip
    layer = 24 * 64 * 64 + 64 * 3 + 9 * 64 + 16
    start = 8 * 9 + 8 + 4 * 8 * 9 + 4 + 32 * 4 * 64
    assert towers(128, audio_config=part) == {"audio": layer + start + 96 * 64 + 96 + 96 * 128}
    with pytest.raises(SpecError, match="has 3 entries, not 2"):
        towers(128, audio_config=part | {"subsampling_conv_channels": [8, 4, 2]})


def test_height_and_width_that_are_written_out() -> None:
    once = {"model_type": "siglip_vision_model", "hidden_size": 64, "num_hidden_layers": 2, "intermediate_size": 128,
            "num_attention_heads": 4, "image_size": 448, "patch_size": 14}  # fmt: skip
    twice = once | {"image_size": [448, 448], "patch_size": [14, 14]}
    assert towers(128, vision_config=once) == towers(128, vision_config=twice)
    with pytest.raises(SpecError, match="image_size should be a whole number"):
        towers(128, vision_config=once | {"image_size": [448, 224]})

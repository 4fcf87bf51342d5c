"""Encoders beside the language model: counts of published models and of modules, and what is not counted."""

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


WHISPER = {"d_model": 1280, "encoder_attention_heads": 20, "encoder_ffn_dim": 5120, "encoder_layers": 32,
           "num_mel_bins": 128, "max_source_positions": 1500, "num_hidden_layers": 32}  # fmt: skip
QWEN2_5_EYE = {"depth": 32, "hidden_size": 1280, "intermediate_size": 3420, "num_heads": 16, "patch_size": 14}
QWEN3_EYE = {"depth": 27, "hidden_size": 1152, "intermediate_size": 4304, "num_heads": 16, "patch_size": 16}
GLM_EYE = {"depth": 24, "hidden_size": 1536, "intermediate_size": 13696, "image_size": 336, "patch_size": 14,
           "out_hidden_size": 4096, "attention_bias": False}  # fmt: skip
OCR_EYE = {"depth": 24, "hidden_size": 1024, "intermediate_size": 4096, "num_heads": 16, "patch_size": 14,
           "out_hidden_size": 1536, "attention_bias": True}  # fmt: skip
MUSE_EYE = {"hidden_size": 1536, "intermediate_size": 8960, "num_hidden_layers": 50, "patch_size": 14,
            "merge_size": 2, "pos_emb_height": 32, "pos_emb_width": 32, "patch_temporal": 2}  # fmt: skip
KIMI_EYE = {"hidden_size": 1152, "intermediate_size": 4304, "num_hidden_layers": 27, "patch_size": 14}
INTERN_EYE = {"hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 24, "patch_size": [14, 14],
              "image_size": [448, 448], "attention_bias": False}  # fmt: skip
SIGLIP = {"hidden_size": 1152, "intermediate_size": 4304, "num_hidden_layers": 26, "patch_size": 14, "image_size": 384}
IDEFICS = {"hidden_size": 1152, "intermediate_size": 3072, "num_hidden_layers": 12, "patch_size": 32, "image_size": 224}
CLIP = {"model_type": "clip_vision_model", "hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 24,
        "patch_size": 14, "image_size": 336}  # fmt: skip
BLIP = {"hidden_size": 1408, "intermediate_size": 6144, "num_hidden_layers": 39, "patch_size": 14, "image_size": 224}


def text(width: int) -> dict[str, Any]:
    return {"model_type": "llama", "hidden_size": width, "intermediate_size": 14336, "num_hidden_layers": 2,
            "num_attention_heads": 8, "vocab_size": 1000, "max_position_embeddings": 8192}  # fmt: skip


MODULES: list[tuple[str, int, dict[str, Any], int]] = [
    ("qwen2_vl", 8192, {"vision_config": {"depth": 32, "embed_dim": 1280, "hidden_size": 3584, "mlp_ratio": 4,
                                          "patch_size": 14}}, 675_759_104),
    ("qwen2_5_omni_thinker", 3584, {"vision_config": QWEN2_5_EYE, "audio_config": WHISPER}, 676_550_144 + 639_647_232),
    ("exaone4_5", 4096, {"vision_config": QWEN2_5_EYE | {"hidden_size": 3584, "out_hidden_size": 3584,
                                                         "num_key_value_heads": 8}}, 2_671_868_672),
    ("qwen3_omni_moe_thinker", 3584, {"vision_config": QWEN3_EYE | {"out_hidden_size": 3584,
        "num_position_embeddings": 2304}, "audio_config": WHISPER}, 566_949_104 + 649_894_784),
    ("glm4v", 4096, {"vision_config": GLM_EYE}, 892_498_432),
    ("glm46v", 4096, {"vision_config": GLM_EYE | {"model_type": "glm4v_vision"}}, 892_498_432),
    ("glm_ocr", 1536, {"vision_config": OCR_EYE}, 434_120_192),
    ("glm5_next", 4096, {"vision_config": OCR_EYE | {"model_type": "glm5_next_vision"}}, 460_072_448),
    ("muse_glimmer", 6656, {"vision_config": MUSE_EYE}, 1_921_845_760),
    ("kimi_k25", 7168, {"vision_config": KIMI_EYE}, 471_143_920),
    ("kimi_k25", 7168, {"vision_config": {"patch_size": 14, **{f"vt_{k}": n for k, n in KIMI_EYE.items()}}},
     471_143_920),
    ("internvl", 4096, {"vision_config": INTERN_EYE}, 337_509_376),
    ("minimax_m3_vl", 6144, {"projector_hidden_size": 6144, "vision_config": BLIP | {"model_type": "clip_vision_model",
        "hidden_size": 1280, "intermediate_size": 5120, "num_hidden_layers": 32}}, 865_567_232),
    ("llava", 4096, {"vision_config": CLIP}, 324_487_168),
    ("llava_next", 4096, {"vision_config": CLIP}, 324_491_264),
    ("llava_onevision", 4096, {"vision_config": SIGLIP | {"model_type": "siglip_vision_model"}}, 419_255_840),
    ("idefics3", 4096, {"scale_factor": 2, "vision_config": IDEFICS | {"model_type": "idefics3_vision"}}, 171_270_144),
    ("idefics2", 4096, {"vision_config": IDEFICS | {"model_type": "idefics2_vision", "hidden_size": 768},
                        "perceiver_config": {"hidden_size": 4096, "resampler_depth": 3}}, 87_453_696 + 732_209_152),
    ("blip-2", 768, {"num_query_tokens": 32, "vision_config": BLIP | {"model_type": "blip_2_vision_model"},
                     "qformer_config": {"hidden_size": 768, "encoder_hidden_size": 1408}}, 1_091_705_088),
    ("qwen2_audio", 4096, {"audio_config": WHISPER}, 642_215_936),
    ("voxtral", 3072, {"audio_config": {"model_type": "voxtral_encoder", "hidden_size": 1280, "num_hidden_layers": 32,
                                        "intermediate_size": 5120, "num_mel_bins": 128}}, 662_134_784),
    ("glmasr", 2048, {"audio_config": {"model_type": "glmasr_encoder", "hidden_size": 1280, "num_hidden_layers": 32,
                                       "intermediate_size": 5120, "num_mel_bins": 128}}, 664_415_232),
    ("qwen3_asr", 3584, {"audio_config": WHISPER | {"d_model": 1024, "encoder_layers": 24, "encoder_ffn_dim": 4096,
                                                    "downsample_hidden_size": 480}}, 319_051_904),
    ("granite_speech", 4096, {"encoder_config": {"hidden_dim": 1024, "num_layers": 10, "num_heads": 8,
        "input_dim": 160}, "projector_config": {"hidden_size": 768, "num_hidden_layers": 12}}, 383_097_898),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "width", "parts", "total"), MODULES, ids=[f"{row[0]}-{row[1]}" for row in MODULES])
def test_counts_of_the_modules(kind: str, width: int, parts: dict[str, Any], total: int) -> None:
    """Elements of the modules that transformers 5.24.0 builds from these sizes, on the meta device."""
    model = read_config({"model_type": kind, "text_config": text(width), **parts})
    assert sum(tower.parameters for tower in model.towers) == total
    assert not model.file_warnings


OMNI = {
    "model_type": "qwen2_5_omni", "talker_config": {"hidden_size": 896}, "token2wav_config": {},
    "thinker_config": {
        "model_type": "qwen2_5_omni_thinker", "audio_config": WHISPER, "vision_config": QWEN2_5_EYE,
        "text_config": {
            "model_type": "qwen2_5_omni_text", "hidden_size": 3584, "intermediate_size": 18944, "vocab_size": 152064,
            "num_attention_heads": 28, "num_hidden_layers": 28, "num_key_value_heads": 4, "head_dim": 128,
            "use_sliding_window": False, "tie_word_embeddings": False,
        },
    },
}  # fmt: skip
QWEN2_VL = {
    "model_type": "qwen2_vl", "hidden_size": 3584, "intermediate_size": 18944, "num_attention_heads": 28,
    "num_hidden_layers": 28, "num_key_value_heads": 4, "vocab_size": 152064, "tie_word_embeddings": False,
    "vision_config": {"depth": 32, "embed_dim": 1280, "mlp_ratio": 4, "hidden_size": 3584, "patch_size": 14},
}  # fmt: skip


@pytest.mark.parametrize(("data", "total"), [(OMNI, 8_931_813_888), (QWEN2_VL, 8_291_375_616)])
def test_whole_models(data: dict[str, Any], total: int) -> None:
    """Qwen2.5-Omni-7B's thinker, whose encoders are one level down, and Qwen2-VL-7B, whose file is flat."""
    model = read_config(data)
    assert model.parameters == total
    assert any("talker_config, token2wav_config" in note for note in model.notes) is (data is OMNI)


PHI4 = {
    "model_type": "phi4mm", "hidden_size": 3072, "intermediate_size": 8192, "num_attention_heads": 24,
    "num_hidden_layers": 32, "num_key_value_heads": 8, "vocab_size": 200064, "tie_word_embeddings": True,
    "img_processor": None,
}  # fmt: skip


def test_encoders_of_one_size_where_the_file_speaks_of_them() -> None:
    """Phi-4-multimodal: 907,982,272 parameters beside a text part of 3,836,021,760; its adapters are not in them."""
    text_alone = read_config(PHI4)
    assert (text_alone.parameters, text_alone.towers) == (3_836_021_760, ())
    loras = {"vision_lora": {"r": 256}, "speech_lora": {"r": 320}}
    whole = read_config(PHI4 | {"embd_layer": {"embedding_cls": "image_audio"}, "audio_processor": {"a": 1}} | loras)
    assert whole.parameters == 3_836_021_760 + 907_982_272
    assert len(whole.file_warnings) == 1
    assert whole.file_warnings[0].startswith("vision_lora, speech_lora: adapters beside the weights")


@pytest.mark.parametrize(
    ("parts", "named"),
    [
        ({"sound_encoder": {"hidden_size": 1024}}, "of sound_encoder are not counted"),
        ({"vq_config": {"channels": 4}}, "of vq_config are not counted"),
        ({"odd_config": {"depth": 2}, "projector": {"depth": 2}}, "of odd_config, projector are not counted"),
        ({"audio_config": {"channels": 8}}, "of audio_config are not counted"),
        ({"vision_config": {"model_args": {"depth": 2}}}, "of vision_config are not counted"),
        ({"vision_config": CLIP}, "of the vision part are an estimate"),
        ({"model_type": "internvl_chat", "vision_config": CLIP}, "of the vision part are an estimate"),
        ({"audio_config": WHISPER, "vision_config": CLIP}, "of the vision and audio part are an estimate"),
        ({"vision_config": QWEN2_5_EYE | {"model_type": "qwen2_5_vl"}}, "of the vision part are an estimate"),
    ],
)
def test_what_no_rule_counts_is_said(parts: dict[str, Any], named: str) -> None:
    """An invented family: whatever looks like an encoder is named, on the level of the text part and around it."""
    (warning,) = read_config({"model_type": "foo_vl", "text_config": text(64), **parts}).file_warnings
    assert warning.startswith("encoders: ")
    assert named in warning
    inside = {"model_type": "foo", "thinker_config": {"text_config": text(64), **parts}}
    assert read_config(inside).file_warnings == (warning,)


def test_what_is_no_encoder_is_not_named() -> None:
    harmless = {"generation_config": {"a": 1}, "processor_config": {"a": 1}, "image_processor_config": {"a": 1},
                "sound_encoder": {}, "video_config": None, "task_specific_params": {"a": 1}}  # fmt: skip
    assert not read_config({"model_type": "foo_vl", "text_config": text(64), **harmless}).file_warnings
    assert not read_config(text(64) | {"auto_map": {"a": "b"}, "odd_config": {"a": 1}}).file_warnings
    flat = read_config(text(64) | {"audio_processor": {"a": 1}})
    assert "audio_processor" in flat.file_warnings[0]


def test_chunks_without_end() -> None:
    part = WHISPER | {"chunk_size": -1}
    assert read_config({"model_type": "qwen2_audio", "text_config": text(64), "audio_config": part}).towers
    with pytest.raises(SpecError, match="encoder_layers must not be negative"):
        read_config(
            {"model_type": "qwen2_audio", "text_config": text(64), "audio_config": part | {"encoder_layers": -1}}
        )

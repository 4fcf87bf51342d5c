"""Parameters of audio encoders and of what joins them to a language model.

Source of each rule: transformers 5.24.0 ``models/<family>/modeling_<family>.py``.
"""

from __future__ import annotations

from collections.abc import Callable

from kvplan.sources.hf.encoder_parts import hidden, layer, linear, q_former
from kvplan.sources.hf.keys import Config

Rule = Callable[[Config, Config, int], int]
"""(the encoder's part, the level that holds it, width of the language model) -> parameters."""


def whisper_encoder(part: Config, *, positions: bool = True) -> int:
    """Whisper's encoder: two convolutions, layers without a bias on the keys, and a table of positions."""
    d, depth, wide = _whisper_sizes(part)
    mel, frames = part.maybe_int("num_mel_bins") or 80, part.maybe_int("max_source_positions") or 1500
    start = linear(3 * mel, d) + linear(3 * d, d)
    return depth * (layer(d, wide) - d) + start + frames * d * positions + 2 * d


def _whisper_sizes(part: Config) -> tuple[int, int, int]:
    """(width, layers, FFN width): Whisper's own names first, as some files repeat the layers under the common one."""
    return (
        hidden(part),
        part.need_int("encoder_layers", "num_hidden_layers"),
        part.need_int("encoder_ffn_dim", "intermediate_size"),
    )


def _qwen2_audio(part: Config, _: Config, width: int) -> int:
    return whisper_encoder(part) + linear(hidden(part), width)


def _voxtral(part: Config, _: Config, width: int) -> int:
    """Four frames side by side, then two projections without biases."""
    wide = part.need_int("intermediate_size", "encoder_ffn_dim")
    return whisper_encoder(part) + wide * width + width * width


def _glmasr(part: Config, _: Config, width: int) -> int:
    """Rotary positions; two projections, of which the first is twice as wide as the language model."""
    wide = part.need_int("intermediate_size")
    return whisper_encoder(part, positions=False) + linear(wide, 2 * width) + linear(2 * width, width)


def _qwen2_5_omni(part: Config, _: Config, width: int) -> int:
    """Positions that are computed, vectors for the begin and the end of a sound, and one projection."""
    out = part.maybe_int("output_dim") or width
    return whisper_encoder(part, positions=False) + 2 * out + linear(hidden(part), out)


def _qwen3(part: Config, _: Config, width: int) -> int:
    """Qwen3-Omni and Qwen3-ASR: three convolutions over time and pitch, each of which halves both."""
    d, depth, wide = _whisper_sizes(part)
    out, c = part.maybe_int("output_dim") or width, part.maybe_int("downsample_hidden_size") or 480
    pitch = part.maybe_int("num_mel_bins") or 128
    for _step in range(3):
        pitch = (pitch + 1) // 2
    start = linear(9, c) + 2 * linear(9 * c, c) + c * pitch * d
    return depth * layer(d, wide) + start + 2 * d + linear(d, d) + linear(d, out)


def _gemma4(audio: Config, _: Config, width: int) -> int:
    """The Conformer of the small Gemma 4: two FFNs, attention with relative positions and a convolution a layer.

    Source: transformers 5.24.0 ``models/gemma4/modeling_gemma4.py`` and its configuration's defaults.
    """
    h, depth = audio.maybe_int("hidden_size") or 1024, audio.maybe_int("num_hidden_layers") or 12
    heads, kernel = audio.maybe_int("num_attention_heads") or 8, audio.maybe_int("conv_kernel_size") or 5
    out = audio.maybe_int("output_proj_dims") or 1536
    listed = audio.maybe_list("subsampling_conv_channels") or [128, 32]
    if len(listed) != 2:
        raise audio.error(f"audio_config.subsampling_conv_channels has {len(listed)} entries, not 2")
    first, second = (audio.as_int(n, "subsampling_conv_channels") for n in listed)
    own = 24 * h * h + (kernel + 9) * h + h // max(heads, 1)
    mel = 128 // 4  # bins of the spectrogram after two halvings
    start = 10 * first + 9 * first * second + second + mel * second * h
    return depth * own + start + out * h + out + out * width


def granite_speech(part: Config, outer: Config, width: int) -> int:
    """Granite's Conformer, and the Q-Former that hands a few vectors of each window to the language model."""
    h, heads = part.maybe_int("hidden_dim") or 1024, part.maybe_int("num_heads") or 8
    inner = heads * (size := part.maybe_int("dim_head") or 128)
    wide = (part.maybe_int("feedforward_mult") or 4) * h
    conv = (part.maybe_int("conv_expansion_factor") or 2) * h
    kernel, reach = part.maybe_int("conv_kernel_size") or 15, part.maybe_int("max_pos_emb") or 512
    ffn = 2 * h + linear(h, wide) + linear(wide, h)
    attention = 2 * h + 3 * h * inner + linear(inner, h) + (2 * reach + 1) * size
    convolution = 2 * h + linear(h, 2 * conv) + kernel * conv + 2 * conv + linear(conv, h)
    own = 2 * ffn + attention + convolution + 2 * h
    letters = part.maybe_int("output_dim") or 42
    ends = linear(part.maybe_int("input_dim") or 160, h) + linear(h, letters) + linear(letters, h)
    queries = (outer.maybe_int("window_size") or 15) // max(outer.maybe_int("downsample_rate") or 5, 1)
    former = outer.child("projector_config")
    joined = q_former(former, width, queries) if former is not None else 0
    return (part.maybe_int("num_layers") or 10) * own + ends + joined


AUDIO: tuple[tuple[str, Rule], ...] = (
    ("gemma4", _gemma4), ("qwen2_audio", _qwen2_audio), ("voxtral_encoder", _voxtral), ("glmasr", _glmasr),
    ("qwen2_5_omni", _qwen2_5_omni), ("qwen3_omni", _qwen3), ("qwen3_asr", _qwen3),
)  # fmt: skip
"""How the part's ``model_type`` begins, or else that of the level around it -> its rule."""

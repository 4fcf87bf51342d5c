"""What files leave unsaid, and what they say without effect on memory."""

from __future__ import annotations

from typing import Any

TIED = frozenset(
    (
        "gemma", "gemma2", "gemma3", "gemma3_text", "gemma3n", "gemma3n_text", "gemma4", "gemma4_text", "cohere",
        "cohere2", "falcon", "RefinedWeb", "RefinedWebModel", "gpt2", "gpt_bigcode", "gpt_neo", "opt", "bloom", "mpt",
        "starcoder2", "whisper", "recurrent_gemma", "lfm2", "lfm2_moe", "mamba", "zamba2", "plamo2", "rwkv",
        "biogpt", "cohere2_moe", "cohere_compass_text", "ctrl", "gemma4_unified_text", "gpt_neox_japanese",
        "granite_swa", "openai-gpt", "vaultgemma", "xglm", "jetmoe", "lfm3", "minicpm3", "modernbert-decoder",
        "youtu", "lara_mini",
    )
)  # fmt: skip
"""Families whose head is the embedding unless the file says otherwise (their classes' default)."""

_GEMMA3 = {
    "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256, "vocab_size": 262208, "sliding_window": 4096,
    "max_position_embeddings": 131072,
}  # fmt: skip
_GEMMA3N = {
    "num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 256, "hidden_size": 2048, "vocab_size": 262400,
    "vocab_size_per_layer_input": 262144, "hidden_size_per_layer_input": 256, "num_kv_shared_layers": 15,
    "laurel_rank": 64, "altup_num_inputs": 4, "sliding_window": 512, "max_position_embeddings": 32768,
}  # fmt: skip
_DELTA_HYBRID = {
    "full_attention_interval": 4, "linear_conv_kernel_dim": 4, "linear_key_head_dim": 128, "linear_value_head_dim": 128,
    "linear_num_key_heads": 16, "linear_num_value_heads": 32, "head_dim": 256,
}  # fmt: skip

_QWEN = {"use_sliding_window": False, "max_window_layers": 28, "sliding_window": 4096}

CLASS_DEFAULTS: dict[str, dict[str, Any]] = {
    "falcon": {"max_position_embeddings": 2048}, "RefinedWeb": {"max_position_embeddings": 2048},
    "RefinedWebModel": {"max_position_embeddings": 2048},
    "bloom": {"seq_length": 2048},  # no key of the class: what it was trained on (arXiv 2211.05100)
    "qwen2_5_omni_text": _QWEN | {"sliding_window": 32768},
    "gemma4_unified_text": {"num_key_value_heads": 4, "head_dim": 256, "sliding_window": 1024},
    "afmoe": {"head_dim": 128, "sliding_window": 1024},
    "cohere2": {"sliding_window": 4096}, "cohere_compass_text": {"sliding_window": 4096},
    "cohere2_moe": {"head_dim": 128, "sliding_window": 4096},
    "beam": {"head_dim": 128, "sliding_window": 512}, "hrm_text": {"head_dim": 128, "H_cycles": 2, "L_cycles": 3},
    "modernbert-decoder": {"local_attention": 128}, "lfm3": {"head_dim": 128, "sliding_window": 256, "conv_L_cache": 7},
    "cpmant": {"position_bias_max_distance": 2048, "position_bias_num_buckets": 512, "segment_types": 32,
               "prompt_types": 32, "prompt_length": 32, "dim_head": 128, "dim_ff": 10240},
    "jetmoe": {"kv_channels": 128, "num_key_value_heads": 16, "num_local_experts": 8, "num_experts_per_tok": 2},
    "cwm": {"head_dim": 128, "num_key_value_heads": 8, "sliding_window": 8192},
    "exaone4": {"sliding_window": 4096}, "exaone_moe": {"sliding_window": 4096},
    "flint": {"head_dim": 128, "sliding_window": 513, "mlp_only_layers": [0, 1]},
    "gemma": {"head_dim": 256},
    "granite_swa": {"sliding_window": 128}, "granitemoe_swa": {"sliding_window": 128},
    "iquestcoder": {"head_dim": 128}, "solar_open": {"head_dim": 128}, "sarvam_moe": {"head_dim": 64},
    "kolibri1": {"head_dim": 128, "sliding_window": 513},
    "laguna": {"head_dim": 128, "sliding_window": 512}, "mellum": {"head_dim": 128, "sliding_window": 1024},
    "vaultgemma": {"head_dim": 256, "num_key_value_heads": 4, "sliding_window": 4096},
    "gemma2": {"head_dim": 256, "num_key_value_heads": 4, "sliding_window": 4096},
    "gemma3": _GEMMA3, "gemma3_text": _GEMMA3, "gemma3n": _GEMMA3N, "gemma3n_text": _GEMMA3N,
    **dict.fromkeys(
        ("qwen3_next", "qwen3_5", "qwen3_5_text", "qwen3_5_moe", "qwen3_5_moe_text"), _DELTA_HYBRID
    ),
    **dict.fromkeys(("qwen2", "qwen2_moe", "qwen3"), _QWEN), "qwen3_moe": _QWEN | {"max_window_layers": 0},
    **dict.fromkeys(("qwen2_vl", "qwen2_vl_text", "qwen2_5_vl", "qwen2_5_vl_text"), _QWEN | {"max_window_layers": 80}),
    "dots1": {"use_sliding_window": True, "max_window_layers": 62}, "smollm3": {"use_sliding_window": False},
    "deepseek_v32": {"index_head_dim": 128, "index_n_heads": 64, "index_topk": 2048},
    "glm_moe_dsa": {"index_head_dim": 128, "index_n_heads": 32, "index_topk": 2048},
    "gemma4": {"sliding_window": 512}, "gemma4_text": {"sliding_window": 512},
    "gpt_neo": {"attention_types": [[["global", "local"], 12]], "window_size": 256},
    "gpt_oss": {"sliding_window": 128}, "mimo_v2_flash": {"sliding_window": 129}, "olmo3": {"sliding_window": 4096},
    "llama4": {"attention_chunk_size": 8192}, "llama4_text": {"attention_chunk_size": 8192},
    "mistral": {"num_key_value_heads": 8, "sliding_window": 4096}, "ministral": {"sliding_window": 4096},
    "mixtral": {"num_key_value_heads": 8, "num_local_experts": 8, "num_experts_per_tok": 2},
    "lara_mini": {"head_dim": 128, "sliding_window": 512, "linear_conv_kernel_dim": 4},
    "dory": {"head_dim": 256, "sliding_window": 1024, "n_input_layers": 8, "n_output_layers": 8},
    "moshi": {"sliding_window": 3000}, "muse_spark_text": {"head_dim": 64, "sliding_window": 2048},
    "voxtral_realtime_text": {"sliding_window": 4096},
    **{key: {"mamba_chunk_size": 256} for key in ("bamba", "falcon_h1", "granitemoehybrid")},
    **{key: {"chunk_size": 256} for key in ("mamba2", "zamba2")},
    **{key: {"cross_attention_layers": [3, 8, 13, 18, 23, 28, 33, 38]} for key in ("mllama", "mllama_text_model")},
}  # fmt: skip
"""Keys that released files leave to the class: transformers 5.24.0 ``models/<family>/configuration_<family>.py``."""

TEXT_PART = {
    **dict.fromkeys(("aya_vision", "cohere2_vision"), "cohere2"), "kimi_k25": "deepseek_v3", "emu3": "emu3_text_model",
    "exaone4_5": "exaone4", "paligemma": "gemma", "shieldgemma2": "gemma3_text", "hyperclovax_vision_v2": "hyperclovax",
    **dict.fromkeys(("glm46v", "glmga"), "glm4v_text"), "lfm2_vl": "lfm2", "lfm3_vl": "lfm3",
    **dict.fromkeys(("granite_speech", "granite_speech_plus"), "granite"),
    **dict.fromkeys(
        ("deepseek_vl", "deepseek_vl_hybrid", "glmasr", "idefics3", "janus", "llava", "llava_next",
         "llava_next_video", "omniasr", "perception_lm", "smolvlm", "video_llava", "vipllava", "voxtral"), "llama",
    ),
    **dict.fromkeys(("idefics2", "mistral3"), "mistral"),
    **dict.fromkeys(("nemo_speechlm", "nemotron_h_omni"), "nemotron_h"),
    **dict.fromkeys(("blip-2", "instructblip", "instructblipvideo"), "opt"),
    **dict.fromkeys(
        ("audioflamingo3", "fast_vlm", "got_ocr2", "internvl", "llava_onevision", "musicflamingo", "ovis2",
         "pp_chart2table", "qwen2_audio", "vibevoice", "vibevoice_asr", "video_llama_3"), "qwen2",
    ),
    "qwen2_5_omni_thinker": "qwen2_5_omni_text", "qwen3_omni_moe_thinker": "qwen3_omni_moe_text",
    **dict.fromkeys(("fun_asr_nano", "lighton_ocr", "moss_transcribe_diarize", "qianfan_ocr", "qwen3_asr"), "qwen3"),
    **dict.fromkeys(("minicpm_ocr", "minicpmv4_6", "minicpmv4_7"), "qwen3_5_text"), "cosmos3_omni": "qwen3_vl_text",
}  # fmt: skip
"""What the language model is in a file whose text part does not say: the default of the whole's class, where that is
not the whole's name with ``_text`` behind it. transformers 5.24.0 ``models/<family>/configuration_<family>.py``."""

WITHOUT_EFFECT = (
    "attn_implementation", "_attn_implementation", "use_cache", "cache_implementation", "attention_dropout",
    "attn_logit_softcapping", "final_logit_softcapping", "query_pre_attn_scalar", "hidden_act", "pretraining_tp",
    "initializer_range", "rope_theta", "rope_local_base_freq", "partial_rotary_factor", "swa_rope_theta",
    "image_token_index", "boi_token_index", "eoi_token_index", "video_token_index", "audio_token_index",
    "vision_feature_layer", "mm_tokens_per_image", "multi_query_group_num", "kv_channels", "num_hash_layers",
    "pad_token_index", "max_window_layers", "image_token_id", "num_attention_heads", "num_key_value_heads",
    "sliding_window", "use_sliding_window", "head_dim", "qk_head_dim", "num_key_value_groups", "index_topk",
    "sliding_window_pattern", "_sliding_window_pattern", "kv_cache_dtype", "layer_types", "num_kv_heads",
    "n_head", "n_heads", "layer_norm_epsilon", "n_head_kv", "index_share_for_mtp_iteration", "mtp_layers_block_type",
    "mtp_hybrid_override_pattern", "mtp_layer_types", "mtp_mlp_layer_types", "mamba_ssm_dtype", "mamba_ssm_cache_dtype",
    "chunk_size", "mamba_chunk_size", "chunk_size_feed_forward", "use_mamba_kernels", "expert_layer_offset",
)  # fmt: skip
"""Fields whose names look like caches and that change none, or whose effect the family's reader has covered."""

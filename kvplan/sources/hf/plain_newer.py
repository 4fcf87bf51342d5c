"""Decoders with one kind of attention, of 2025 and 2026: Ling (Bailing), Dory, Moshi, PLaMo 3 and others.

transformers 5.24.0 ``models/<family>/modeling_<family>.py`` is the source of every family that does not name another.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace

from kvplan.errors import printable
from kvplan.sources.hf.attention import hidden_size, softmax_attention
from kvplan.sources.hf.ffn import dense_ffn, per_layer_int, shared_size
from kvplan.sources.hf.keys import Config, Layers
from kvplan.sources.hf.layout import MAX_LAYERS, Layer, layer_count, layer_windows, stack
from kvplan.sources.hf.plain import NONE, PLAIN, Traits, plain, read_plain
from kvplan.spec.ffn import MoeFfn
from kvplan.spec.model import Block, ExtraTensor


def bailing_moe(cfg: Config) -> Layers:
    """Ling 1 and 2: grouped-query attention, experts after the first layers.

    Source: vLLM 0.33.0 ``vllm/model_executor/models/bailing_moe.py``.
    """
    bias = cfg.flag("use_bias")
    each = cfg.maybe_int("moe_shared_expert_intermediate_size")
    size = per_layer_int(cfg, 0, "moe_intermediate_size") or 0
    count = cfg.maybe_int("num_shared_experts") or 0
    shared = shared_size(cfg, 0, size) if each is None else count * each
    cfg.ignore(("rotary_dim", "norm_head", "norm_softmax"))
    row = Traits(
        qkv_bias=bias or cfg.flag("use_qkv_bias"), output_bias=bias, ffn_bias=bias, qk_norm="head",
        qk_norm_if="use_qk_norm",
        moe={"shared_intermediate_size": shared, "router_bias": cfg.flag("moe_router_enable_expert_bias")},
    )  # fmt: skip
    return read_plain(cfg, row)


def dory(cfg: Config) -> Layers:
    """Dory: the middle layers run several times over; each run caches for itself, unless only the last one does.

    Released files list attention and FFN as layers of their own, each pair of which is one.
    """
    kinds = cfg.maybe_list("layer_types")
    step = 2 if kinds is not None and "mlp" in kinds else 1
    if step == 2 and kinds is not None:
        count = cfg.need_int("num_hidden_layers")
        if kinds[1::2] != ["mlp"] * (len(kinds) // 2) or len(kinds) != count:
            raise cfg.error("layer_types should alternate attention and mlp, one entry a layer")
        cfg.data = {**cfg.data, "layer_types": kinds[::2], "num_hidden_layers": count // 2}
    windows = layer_windows(cfg, lambda i: (i + 1) % 4 != 0)
    first, last = ((cfg.maybe_int(key) or 0) // step for key in ("n_input_layers", "n_output_layers"))
    stated = cfg.maybe_int("n_recurrent_layers")
    middle = len(windows) - first - last if stated is None else stated // step
    loops = cfg.maybe_int("n_recurrent_loops")
    loops = 2 if loops is None else loops
    if min(first, last, middle) < 0 or first + middle + last > len(windows) or not 0 < loops <= MAX_LAYERS:
        raise cfg.error(f"{first} + {middle} + {last} layers and {loops} loops do not make up {len(windows)} layers")
    mode = cfg.get("recurrent_kv_cache_mode")
    if mode not in (None, "per_loop", "last_loop"):
        raise cfg.error(f"recurrent_kv_cache_mode {mode!r} is not understood", hint="per_loop or last_loop")
    return _looped(cfg, windows, range(first, first + middle), 1 if mode == "last_loop" else loops)


def _looped(cfg: Config, windows: list[int | None], middle: range, runs: int) -> Layers:
    """Every layer once, and those of `middle` `runs` times with the weights of one."""
    ffn = dense_ffn(cfg)
    blocks: dict[str, Block] = {}
    order: list[str] = []
    scales = 0
    for i, window in enumerate(windows):
        mixer = softmax_attention(cfg, window=window, output_gate=True)
        scales = mixer.query_heads * mixer.head_dim
        block = Block(mixers=(mixer,), ffns=(ffn,), norms=2)
        name = "global" if window is None else "local"
        if i in middle and runs > 1:
            name = f"{name}_looped_{i}"
            block = replace(block, shared_mixers=1, shared_ffns=1, shared_norms=2)
        blocks[name] = block
        order.append(name)
    again = [order[i] for i in middle] * (runs - 1)
    order = order[: middle.stop] + again + order[middle.stop :]
    tensors = (
        ExtraTensor(name="logit_scale", shape=(cfg.need_int("vocab_size"),), role="norm"),
        ExtraTensor(name="attn_scales", shape=(2, scales), count=len(windows), role="norm"),
        ExtraTensor(name="ffn_scales", shape=(2, ffn.intermediate_size), count=len(windows), role="norm"),
    )
    return Layers(blocks=blocks, layers=tuple(order), final_norms=0, tensors=tensors)


def moshi(cfg: Config) -> Layers:
    """Moshi's language model: every layer slides; one row more in the embedding than in the head."""
    row = Traits(ffn_size=lambda c: c.need_int("ffn_dim") // 2, **NONE)
    found = read_plain(cfg, row)
    found.tensors += (ExtraTensor(name="more_embd", shape=(1, hidden_size(cfg)), role="embedding"),)
    return found


def muse_spark(cfg: Config) -> Layers:
    """Muse Spark: a full-width gate on the attention output, experts that work at a width of their own."""
    last = layer_count(cfg) - 1  # every fourth layer, counted from there, is global
    cfg.ignore(("layer_rope_theta", "qk_scale_factor", "output_multiplier", "post_norm_eps"))
    narrow = cfg.need_int("moe_hidden_size")
    row = Traits(
        norms=5, attention={"output_gate": True}, moe={"expert_hidden_size": narrow},
        slides=lambda i: (last - i) % 4 != 0,
    )  # fmt: skip
    found = read_plain(cfg, row)
    inner = ExtraTensor(name="ffn_latent_norms", shape=(2, narrow), role="norm")
    for name, block in found.blocks.items():
        if any(isinstance(ffn, MoeFfn) for ffn in block.ffns):
            found.blocks[name] = replace(block, tensors=(*block.tensors, inner))
    return found


def ernie_vl(cfg: Config) -> Layers:
    """ERNIE 4.5 VL: experts of text and of images beside each other, with one attention and shared experts of the
    text's size.
    """
    sizes, counts = cfg.get("moe_intermediate_size"), cfg.get("moe_num_experts")
    sizes, counts = (v if isinstance(v, list) and len(v) == 2 else [v, v] for v in (sizes, counts))
    one = {"moe_intermediate_size": sizes[0], "moe_num_experts": counts[0]}
    for key in ("moe_layer_start_index", "moe_layer_end_index"):
        stated = cfg.get(key)
        one |= {key: stated[0]} if isinstance(stated, list) and stated else {}
    cfg.data = {**cfg.data, **one}
    bias = cfg.flag("use_bias")
    found = read_plain(cfg, Traits(qkv_bias=bias, output_bias=bias, ffn_bias=bias, moe={"router_bias": True}))
    size, count = (cfg.as_int(v, "moe_intermediate_size or moe_num_experts") for v in (sizes[1], counts[1]))
    width = hidden_size(cfg)
    more = (
        ExtraTensor(name="vision_experts", shape=(3 * size, width), count=count, role="routed_experts"),
        ExtraTensor(name="vision_router", shape=(count, width), role="router"),
        ExtraTensor(name="vision_router_bias", shape=(count,), role="norm"),
    )
    for name, block in found.blocks.items():
        if any(isinstance(ffn, MoeFfn) for ffn in block.ffns):
            found.blocks[name] = replace(block, tensors=(*block.tensors, *more))
    return found


def voxtral_realtime(cfg: Config) -> Layers:
    """Voxtral Realtime's text model: Mistral with a norm that the delay conditions."""
    found = read_plain(cfg, Traits(**NONE))
    width = hidden_size(cfg)
    delay = ExtraTensor(name="delay_norm", shape=(2 * 32, width), role="attention")
    found.blocks = {name: replace(block, tensors=(*block.tensors, delay)) for name, block in found.blocks.items()}
    return found


def plamo3(cfg: Config) -> Layers:
    """PLaMo 3: four norms, every eighth layer global. Source: MLX-LM 0.32.2 ``models/plamo3.py``."""
    cfg.ignore(("interleaved_sliding_window", "full_attention_idx"))
    row = Traits(norms=4, qk_norm="head", slides=lambda i: (i + 1) % 8 != 0, **NONE)
    return read_plain(cfg, row)


def nanbeige(cfg: Config) -> Layers:
    """Nanbeige: a Llama whose layers may run several times over, each run with a cache of its own.

    Source: MLX-LM 0.32.2 ``models/nanbeige.py``.
    """
    for key in ("enable_double_loop_split", "loop_share_kv", "enable_depth_attention"):
        if cfg.flag(key):
            raise cfg.error(f"{key} is not understood")
    cfg.ignore(("loop_loss_weights", "skip_loop_final_norm"))
    loops = cfg.maybe_int("num_loops")
    loops = 1 if loops is None else loops
    found = read_plain(cfg, Traits())
    if loops == 1:
        return found
    if not 0 < loops * len(found.layers) <= MAX_LAYERS:
        raise cfg.error(f"num_loops {loops} of {len(found.layers)} layers")
    once = [found.blocks[name] for name in found.layers]
    found.blocks = {
        f"looped_{i}": replace(block, shared_mixers=1, shared_ffns=1, shared_norms=block.norms)
        for i, block in enumerate(once)
    }
    found.layers = tuple(found.blocks) * loops
    return found


def openelm(cfg: Config) -> Layers:
    """OpenELM: heads and FFN widths that grow from layer to layer. Source: MLX-LM 0.32.2 ``models/openelm.py``."""
    width, count = cfg.need_int("model_dim"), cfg.need_int("num_transformer_layers")
    limit = cfg.maybe_int("max_context_length")
    cfg.data = {**cfg.data, "hidden_size": width, "max_position_embeddings": limit, "num_hidden_layers": count}
    if cfg.get("share_input_output_layers") is not None and "tie_word_embeddings" not in cfg:
        cfg.data["tie_word_embeddings"] = cfg.flag("share_input_output_layers")
    cfg.ignore(("num_gqa_groups", "qkv_multipliers", "ffn_dim_divisor"))
    heads, kv = (cfg.maybe_list(k, length=count) or [] for k in ("num_query_heads", "num_kv_heads"))
    multipliers = cfg.maybe_list("ffn_multipliers", length=count) or []
    if not (heads and kv and multipliers):
        raise cfg.error("no num_query_heads, num_kv_heads or ffn_multipliers")
    step = cfg.maybe_int("ffn_dim_divisor") or 256
    qk_norm = "head" if cfg.flag("normalize_qk_projections") else None
    gated = cfg.flag("ffn_with_glu", default=True)
    layers = []
    for queries, keys, multiplier in zip(heads, kv, multipliers, strict=True):
        if isinstance(multiplier, bool) or not isinstance(multiplier, int | float) or not 0 < multiplier < 1024:
            raise cfg.error(f"ffn_multipliers has {printable(repr(multiplier), 40)}")
        wanted = multiplier * width
        size = max(step, int(wanted + step / 2) // step * step)
        size += step if size < 0.9 * wanted else 0
        mixer = softmax_attention(
            cfg, query_heads=cfg.as_int(queries, "num_query_heads"), kv_heads=cfg.as_int(keys, "num_kv_heads"),
            qk_norm=qk_norm,
        )  # fmt: skip
        ffn = dense_ffn(cfg, intermediate_size=size, gated=gated, bias=False)
        layers.append(Layer(Block(mixers=(mixer,), ffns=(ffn,)), f"heads{queries}", f"ffn{size}"))
    return stack(layers)


def minicpm_v(cfg: Config) -> Layers:
    """MiniCPM-V and -o in flat files: the language model by version (2.5 is Llama 3, 2.6 Qwen2, 4.5 Qwen3)."""
    version = cfg.get("version")
    number = float(version) if isinstance(version, int | float | str) and _NUMBER.fullmatch(str(version)) else 2.6
    kind = "qwen3" if number >= 4.5 else "llama" if number >= 4 or number <= 2.5 else "qwen2"
    cfg.ignore(("query_num", "slice_mode", "use_image_id", "batch_vision_input"))
    return PLAIN[kind](cfg)


_NUMBER = re.compile(r"[0-9]{1,2}(\.[0-9]{1,2})?")

PLAIN_NEWER: dict[str, Callable[[Config], Layers]] = {
    **dict.fromkeys(("bailing_moe", "bailing_moe_v2"), bailing_moe),
    "dory": dory,
    **dict.fromkeys(("ernie4_5_vl_moe_text", "ernie4_5_moe_vl"), ernie_vl),
    "hunyuan": PLAIN["hunyuan_v1_moe"],
    "Klear": plain(qk_norm="head", moe={"router_bias": True}),
    **dict.fromkeys(("minicpmv", "minicpmo"), minicpm_v),
    "moshi": moshi,
    "muse_spark_text": muse_spark,
    "nanbeige": nanbeige,
    "openelm": openelm,
    "phi3_v": PLAIN["phi3"],
    "plamo3": plamo3,
    **dict.fromkeys(("dots_ocr", "kimi_audio"), PLAIN["qwen2"]),
    **dict.fromkeys(("solar", "step1", "telechat3"), PLAIN["llama"]),
    "voxtral_realtime_text": voxtral_realtime,
}
"""``model_type`` -> reader."""

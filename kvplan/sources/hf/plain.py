"""Decoders of one kind of layer: softmax attention, then an FFN. A family is a row of traits.

What differs between them are biases, norms, gates and which layers slide; transformers 5.24.0
``models/<family>/modeling_<family>.py`` is the source of every row that does not name another.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from kvplan.sources.hf.attention import hidden_size, query_heads, softmax_attention
from kvplan.sources.hf.ffn import dense_ffn, is_moe_layer, moe_ffn
from kvplan.sources.hf.keys import Config, Layers
from kvplan.sources.hf.layout import Layer, layer_count, layer_windows, stack, window_size
from kvplan.spec.model import Block, ExtraTensor

Flag = bool | str
"""A fact, or the key of the file that says it (``!key`` for its opposite, ``key=true`` for a default)."""


def is_set(cfg: Config, flag: Flag | None) -> bool:
    """What a `Flag` comes to for this file."""
    if flag is None or isinstance(flag, bool):
        return bool(flag)
    name, _, given = flag.lstrip("!").partition("=")
    value = cfg.flag(name, default=given == "true")
    return not value if flag.startswith("!") else value


@dataclass(frozen=True, kw_only=True)
class Traits:
    """How a family's layers are built, as far as weights and caches go."""

    norms: int = 2
    """Vectors of hidden size in a layer's norms (with biases, each norm has two)."""
    final_norms: int = 1
    gated: bool = True
    qkv_bias: Flag = "attention_bias"
    output_bias: Flag = "attention_bias"
    ffn_bias: Flag = "mlp_bias"
    qk_norm: str | None = None
    qk_norm_if: Flag = True
    attention: dict[str, Any] = field(default_factory=dict)
    """Further fields of `kvplan.cache.attention.Attention`, the same for every layer."""
    moe: dict[str, Any] = field(default_factory=dict)
    """Further fields of `kvplan.spec.ffn.MoeFfn`."""
    slides: Callable[[int], bool] | None = None
    """Which layers slide where the file does not say."""
    kv_heads: Callable[[Config], int | None] | None = None
    positions: tuple[str, int] | None = None
    """Key of the learned position table's length, and rows besides."""
    ffn_size: Callable[[Config], int | None] | None = None
    head_bias: Flag = False
    scalars: int = 0
    """Single learned numbers in a layer that nothing else accounts for."""


def plain(**traits: Any) -> Callable[[Config], Layers]:
    """A reader for a family with these traits."""
    row = Traits(**traits)
    return lambda cfg: read_plain(cfg, row)


def read_plain(cfg: Config, traits: Traits) -> Layers:
    """Every layer of the family, and the tensors around them."""
    windows = layer_windows(cfg, traits.slides)
    mixers = {window: _attention(cfg, traits, window) for window in dict.fromkeys(windows)}
    layers = [_layer(cfg, traits, i, mixers[window], window) for i, window in enumerate(windows)]
    extra = []
    if is_set(cfg, traits.head_bias):
        extra.append(ExtraTensor(name="output_bias", shape=(cfg.need_int("vocab_size"),), role="norm"))
    rows = 0
    if traits.positions:
        key, more = traits.positions
        rows = cfg.need_int(key, "max_position_embeddings", "n_positions") + more
    return stack(
        layers, position_embeddings=rows, final_norms=traits.final_norms, tensors=tuple(extra), **drafts(cfg, layers)
    )


def _attention(cfg: Config, traits: Traits, window: int | None) -> Any:
    fields: dict[str, Any] = {
        "qkv_bias": is_set(cfg, traits.qkv_bias),
        "output_bias": is_set(cfg, traits.output_bias),
        "qk_norm": traits.qk_norm if is_set(cfg, traits.qk_norm_if) else None,
        "kv_heads": traits.kv_heads(cfg) if traits.kv_heads else None,
    }
    return softmax_attention(cfg, window=window, **fields | traits.attention)


def _layer(cfg: Config, traits: Traits, i: int, mixer: Any, window: int | None) -> Layer:
    moe = is_moe_layer(cfg, i)
    if moe:
        ffn: Any = moe_ffn(cfg, i, gated=traits.gated, **traits.moe)
    else:
        size = traits.ffn_size(cfg) if traits.ffn_size else None
        bias = is_set(cfg, traits.ffn_bias)
        ffn = dense_ffn(cfg, intermediate_size=size, gated=traits.gated, bias=bias, layer=i)
    extra = (ExtraTensor(name="scalars", shape=(traits.scalars,), role="norm"),) if traits.scalars else ()
    block = Block(mixers=(mixer,), ffns=(ffn,), norms=traits.norms, tensors=extra)
    return Layer(block, "global" if window is None else "local", "moe" if moe else "dense")


def drafts(cfg: Config, layers: list[Layer]) -> dict[str, Any]:
    """The multi-token-prediction layers a file announces: built like the last layer, with a projection.

    Source: DeepSeek-V3 report (arXiv 2412.19437), section 2.2: each joins the hidden state and the
    next token's embedding (``2 x hidden -> hidden``) and shares embedding and head with the model.
    """
    count = cfg.maybe_int("num_nextn_predict_layers", "mtp_num_hidden_layers", "num_mtp_modules") or 0
    cfg.ignore(("num_mtp_modules", "mtp_num_hidden_layers"))
    if not 0 < count <= len(layers):
        return {}
    name = stack(layers).layers[-1]
    width = hidden_size(cfg)
    return {
        "draft_layers": (name,) * count,
        "draft_tensors": (
            ExtraTensor(name="draft_projection", shape=(width, 2 * width), count=count, role="draft"),
            ExtraTensor(name="draft_norms", shape=(3, width), count=count, role="norm"),
        ),
    }


def _newer_falcon(cfg: Config) -> bool:
    """Whether the layers are Falcon-40B's. The first files (``RefinedWeb``) tell by KV heads of their own.

    Source: vLLM 0.33.0 ``vllm/transformers_utils/configs/falcon.py``, which goes by the width of that one model.
    """
    return cfg.flag("new_decoder_architecture", default=(cfg.maybe_int("n_head_kv") or 1) > 1)


def _falcon_kv(cfg: Config) -> int | None:
    """KV heads of Falcon: named in the newer layers, else one (multi-query) or all."""
    newer, multi = _newer_falcon(cfg), cfg.flag("multi_query", default=True)
    named = cfg.maybe_int("num_kv_heads", "n_head_kv", "num_key_value_heads")
    if newer:
        return named or query_heads(cfg)
    return 1 if multi else query_heads(cfg)


def _multi_query(cfg: Config) -> int | None:
    return 1 if cfg.flag("multi_query", default=True) else query_heads(cfg)


def falcon(cfg: Config) -> Layers:
    """Falcon: one LayerNorm where attention and FFN run side by side, two in the newer layers."""
    newer, parallel = _newer_falcon(cfg), cfg.flag("parallel_attn", default=True)
    single = cfg.maybe_int("num_ln_in_parallel_attn") == 1
    norms = 2 if (parallel and not newer) or (newer and single) else 4
    cfg.ignore(("alibi",))
    row = Traits(
        norms=norms, final_norms=2, gated=False, qkv_bias="bias", output_bias="bias", ffn_bias="bias",
        kv_heads=_falcon_kv, ffn_size=_four_times,
    )  # fmt: skip
    return read_plain(cfg, row)


def _four_times(cfg: Config) -> int | None:
    return cfg.maybe_int("ffn_hidden_size", "intermediate_size", "n_inner") or 4 * hidden_size(cfg)


def mpt(cfg: Config) -> Layers:
    """MPT: sizes as multiples, attention settings in a nested object, ALiBi or learned positions."""
    nested = cfg.child("attn_config")
    alibi = nested is not None and nested.flag("alibi")
    kv = nested.maybe_int("kv_n_heads") if nested is not None else None
    if nested is not None and nested.get("attn_type") == "multiquery_attention":
        kv = 1
    ratio = cfg.maybe_int("expansion_ratio") or 4
    row = Traits(
        gated=False, qkv_bias="!no_bias=true", output_bias="!no_bias=true", ffn_bias="!no_bias=true",
        norms=2 if cfg.flag("no_bias", default=True) else 4, final_norms=1 if cfg.flag("no_bias", default=True) else 2,
        kv_heads=lambda _: kv, ffn_size=lambda c: ratio * hidden_size(c),
        positions=None if alibi else ("max_seq_len", 0),
    )  # fmt: skip
    return read_plain(cfg, row)


def dbrx(cfg: Config) -> Layers:
    """DBRX: heads in ``attn_config``, experts in ``ffn_config``, norms without biases."""
    attention, ffn = cfg.child("attn_config"), cfg.child("ffn_config")
    if attention is None or ffn is None:
        raise cfg.error("no attn_config or no ffn_config")
    mixer = softmax_attention(cfg, kv_heads=attention.maybe_int("kv_n_heads") or 1)
    mix = moe_ffn(ffn, intermediate_size=ffn.need_int("ffn_hidden_size"))
    cfg.ignore(("clip_qkv",))
    block = Block(mixers=(mixer,), ffns=(mix,))
    return stack([Layer(block)] * layer_count(cfg))


def bloom(cfg: Config) -> Layers:
    """BLOOM: ALiBi, biases everywhere, and a norm over the embeddings."""
    row = Traits(
        norms=4, final_norms=4, gated=False, qkv_bias=True, output_bias=True, ffn_bias=True, ffn_size=_four_times
    )
    return read_plain(cfg, row)


def opt(cfg: Config) -> Layers:
    """OPT: learned positions with two rows to spare; the smallest size projects its embeddings."""
    bias, affine = cfg.flag("enable_bias", default=True), cfg.flag("layer_norm_elementwise_affine", default=True)
    before = cfg.flag("do_layer_norm_before", default=True) and not cfg.flag("_remove_final_layer_norm")
    row = Traits(
        norms=4 if affine else 0, final_norms=2 if before and affine else 0, gated=False,
        qkv_bias=bias, output_bias=bias, ffn_bias=bias, positions=("max_position_embeddings", 2),
    )  # fmt: skip
    found = read_plain(cfg, row)
    narrow, width = cfg.maybe_int("word_embed_proj_dim"), hidden_size(cfg)
    if narrow and narrow != width:
        found.embedding_size = narrow
        found.tensors += (ExtraTensor(name="project_in_out", shape=(width, narrow), count=2),)
    return found


def gpt_neo(cfg: Config) -> Layers:
    """GPT-Neo: local and global layers alternate as ``attention_types`` spells out."""
    kinds: list[str] = []
    for entry in cfg.maybe_list("attention_types") or []:
        if not (isinstance(entry, list) and len(entry) == 2 and isinstance(entry[0], list)):
            raise cfg.error("attention_types should hold pairs of a list and a count")
        kinds += [str(k) for k in entry[0]] * min(cfg.as_int(entry[1], "attention_types"), 4096)
    kinds = kinds or [str(k) for k in cfg.maybe_list("attention_layers") or []]
    cfg.ignore(("attention_layers",))
    if len(kinds) != layer_count(cfg):
        raise cfg.error(f"attention_types gives {len(kinds)} layers, not {layer_count(cfg)}")
    row = Traits(
        norms=4, final_norms=2, gated=False, qkv_bias=False, output_bias=True, ffn_bias=True, ffn_size=_four_times,
        positions=("max_position_embeddings", 0), slides=lambda i: i < len(kinds) and kinds[i] == "local",
    )  # fmt: skip
    return read_plain(cfg, row)


def hunyuan(cfg: Config) -> Layers:
    """Hunyuan; where ``use_cla`` is set, each run of ``cla_share_factor`` layers has one K and V, of its first.

    Source: vLLM 0.11.0 ``vllm/model_executor/models/hunyuan_v1.py`` (`_get_cla_factor`).
    """
    found = read_plain(cfg, Traits(qk_norm="head", qk_norm_if="use_qk_norm=true"))
    shared, every = cfg.flag("use_cla"), cfg.maybe_int("cla_share_factor")
    every = 1 if every is None else every
    if every < 1:
        raise cfg.error(f"cla_share_factor must be above 0, not {every}")
    if not shared or every == 1:
        return found
    if len(found.blocks) > 1:
        raise cfg.error("use_cla among layers that differ is not understood")
    block = found.blocks[found.layers[0]]
    sizes: dict[str, Any] = {"qk_norm": "head"} if cfg.flag("use_qk_norm", default=True) else {}
    reader = replace(block, mixers=(softmax_attention(cfg, source="own", own_kv_weights=False, **sizes),))
    found.layers = tuple("own" if i % every == 0 else "shared" for i in range(len(found.layers)))
    found.blocks = {"own": block} | ({"shared": reader} if "shared" in found.layers else {})
    return found


def stablelm(cfg: Config) -> Layers:
    """StableLM 2: LayerNorm with bias, one of them where attention and FFN run side by side."""
    row = Traits(
        norms=2 if cfg.flag("use_parallel_residual") else 4, final_norms=2, qkv_bias="use_qkv_bias", output_bias=False,
        qk_norm="heads", qk_norm_if="qk_layernorm",
    )  # fmt: skip
    return read_plain(cfg, row)


def phimoe(cfg: Config) -> Layers:
    """Phi-3.5-MoE: every layer slides, unless the window is the context, as in the checkpoint.

    Source: transformers 5.24.0 ``models/phimoe/modeling_phimoe.py`` (``PhimoeModel.forward``).
    """
    size, limit = window_size(cfg), cfg.maybe_int("max_position_embeddings")
    shorter = size is not None and (limit is None or size < limit)
    return read_plain(cfg, Traits(norms=4, final_norms=2, head_bias="lm_head_bias", slides=lambda i: shorter))


def qwen2_moe(cfg: Config) -> Layers:
    """Qwen2-MoE: where windows are on, every other of the first ``max_window_layers`` layers slides."""
    first = cfg.maybe_int("max_window_layers") or 0
    row = Traits(
        qkv_bias="qkv_bias=true", output_bias=False, moe={"shared_gate": True},
        slides=lambda i: (i + 1) % 2 != 0 and i < first,
    )  # fmt: skip
    return read_plain(cfg, row)


def qwen1(cfg: Config) -> Layers:
    """The first Qwen (its own code): ``intermediate_size`` counts gate and up together."""
    row = Traits(qkv_bias=True, output_bias=False, ffn_size=lambda c: c.need_int("intermediate_size") // 2)
    cfg.ignore(("no_bias", "kv_channels"))
    return read_plain(cfg, row)


def chatglm(cfg: Config) -> Layers:
    """ChatGLM 2/3 and the first GLM-4 (their own code): KV groups behind a switch."""
    groups = cfg.maybe_int("multi_query_group_num") if cfg.flag("multi_query_attention") else None
    cfg.ignore(("multi_query_group_num",))
    row = Traits(
        qkv_bias="add_qkv_bias", output_bias="add_bias_linear", ffn_bias="add_bias_linear",
        kv_heads=lambda c: groups or query_heads(c),
    )  # fmt: skip
    return read_plain(cfg, row)


def phi(cfg: Config) -> Layers:
    """Phi 1 to 2: one LayerNorm, biases everywhere, the head's included."""
    row = Traits(
        norms=2, final_norms=2, gated=False, qkv_bias=True, output_bias=True, ffn_bias=True, head_bias=True,
        qk_norm="head", qk_norm_if="qk_layernorm",
    )  # fmt: skip
    return read_plain(cfg, row)


ALL: dict[str, Any] = {"qkv_bias": True, "output_bias": True, "ffn_bias": True}
NONE: dict[str, Any] = {"qkv_bias": False, "output_bias": False, "ffn_bias": False}
_QKV = {"qkv_bias": True, "output_bias": False}
_GPT_J = plain(norms=2, final_norms=2, gated=False, qkv_bias=False, output_bias=False, ffn_bias=True,
               head_bias=True, ffn_size=_four_times)  # fmt: skip
_COHERE: dict[str, Any] = {"norms": 1, "qk_norm": "heads", "qk_norm_if": "use_qk_norm"}
EVEN = lambda i: i % 2 == 0  # noqa: E731
_FOURTH_IS_FULL = lambda i: (i + 1) % 4 != 0  # noqa: E731

PLAIN: dict[str, Callable[[Config], Layers]] = {
    **dict.fromkeys(
        ("llama", "mistral", "ministral", "ministral3", "mixtral", "granite", "granitemoe", "granitemoeshared",
         "smollm3", "helium", "Yi", "aquila", "xverse", "minicpm", "deepseek", "internlm", "exaone", "ernie4_5"),
        plain(),
    ),
    "internlm2": plain(qkv_bias="bias", output_bias="bias"),
    "internlm3": plain(qkv_bias="qkv_bias", output_bias="bias", ffn_bias="bias"),
    "baichuan": plain(**NONE),
    "orion": plain(norms=4, final_norms=2, **NONE),
    "gemma": plain(),
    "gemma2": plain(norms=4, slides=EVEN),
    "qwen": qwen1,
    "chatglm": chatglm,
    **dict.fromkeys(
        ("qwen2", "qwen2_vl", "qwen2_vl_text", "qwen2_5_vl", "qwen2_5_vl_text", "qwen2_5_omni_text", "mimo"),
        plain(**_QKV),
    ),
    "qwen2_moe": qwen2_moe,
    **dict.fromkeys(
        ("qwen3", "qwen3_moe", "qwen3_vl_text", "qwen3_vl_moe_text", "qwen3_omni_moe_text"), plain(qk_norm="head")
    ),
    "glm": plain(output_bias=False),
    "glm4": plain(norms=4, output_bias=False),
    "glm4_moe": plain(output_bias=False, qk_norm="head", qk_norm_if="use_qk_norm"),
    **dict.fromkeys(("phi", "phi-msft"), phi),
    "phi3": plain(**NONE),
    "phimoe": phimoe,
    "falcon": falcon,
    **dict.fromkeys(("RefinedWeb", "RefinedWebModel"), falcon),
    "mpt": mpt,
    "dbrx": dbrx,
    "gpt2": plain(norms=4, final_norms=2, gated=False, **ALL, ffn_size=_four_times, positions=("n_positions", 0)),
    "gpt_bigcode": plain(norms=4, final_norms=2, gated=False, **ALL, ffn_size=_four_times,
                         positions=("n_positions", 0), kv_heads=_multi_query),
    "starcoder2": plain(norms=4, final_norms=2, gated=False, qkv_bias="use_bias=true", output_bias="use_bias=true",
                        ffn_bias="use_bias=true"),
    "opt": opt,
    "bloom": bloom,
    "gptj": _GPT_J,
    "codegen": _GPT_J,
    "gpt_neo": gpt_neo,
    "gpt_neox": plain(norms=4, final_norms=2, gated=False, qkv_bias="attention_bias=true",
                      output_bias="attention_bias=true", ffn_bias=True),
    "stablelm": stablelm,
    "stablelm_epoch": stablelm,
    "persimmon": plain(norms=4, final_norms=2, gated=False, **ALL, qk_norm="head", qk_norm_if="qk_layernorm=true"),
    "nemotron": plain(norms=4, final_norms=2, gated=False),
    "cohere": plain(**_COHERE),
    "cohere_compass_text": plain(norms=1, slides=lambda i: False),
    "cohere2": plain(**_COHERE, slides=_FOURTH_IS_FULL),
    "olmo": plain(norms=0, final_norms=0),
    "olmo2": plain(qk_norm="full"),
    "olmo3": plain(qk_norm="full", slides=_FOURTH_IS_FULL),
    "olmoe": plain(qk_norm="full"),
    "flex_olmo": plain(qk_norm="full"),
    "exaone4": plain(qk_norm="head", slides=_FOURTH_IS_FULL),
    "seed_oss": plain(output_bias="attention_out_bias"),
    "apertus": plain(gated=False, qk_norm="head", scalars=2),
    "arcee": plain(gated=False),
    "gpt_oss": plain(attention={"sinks": True}, moe={"bias": True, "router_bias": True}, slides=EVEN,
                     qkv_bias="attention_bias=true", output_bias="attention_bias=true"),
    "hunyuan_v1_moe": hunyuan,
    "hunyuan_v1_dense": hunyuan,
    "hy_v3": plain(qk_norm="head"),
    "ernie4_5_moe": plain(qkv_bias="use_bias", output_bias="use_bias", ffn_bias="use_bias"),
    "minimax_m2": plain(qk_norm="full", qk_norm_if="use_qk_norm=true"),
    "dots1": plain(qk_norm="head"),
}  # fmt: skip

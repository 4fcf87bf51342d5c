"""Further decoders with one kind of attention: families outside the catalog, most of them a row of traits.

transformers 5.24.0 ``models/<family>/modeling_<family>.py`` and ``configuration_<family>.py`` are the source
of every row.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from kvplan.errors import printable
from kvplan.sources.hf.attention import hidden_size, query_heads, softmax_attention
from kvplan.sources.hf.ffn import ffn_for_layer, is_moe_layer
from kvplan.sources.hf.keys import Config, Layers
from kvplan.sources.hf.layout import Layer, layer_count, layer_windows, stack
from kvplan.sources.hf.plain import ALL, EVEN, NONE, PLAIN, Traits, drafts, plain, read_plain
from kvplan.spec.model import Block, ExtraTensor

_NEVER = lambda i: False  # noqa: E731
_FIRST_OF_FOUR_IS_FULL = lambda i: i % 4 != 0  # noqa: E731


def afmoe(cfg: Config) -> Layers:
    """AFMoE: four norms, a full-width gate on the attention output; every fourth layer is global."""
    every = cfg.maybe_int("global_attn_every_n_layers") or 4
    row = Traits(
        norms=4, qk_norm="head", attention={"output_gate": True}, moe={"router_bias": True},
        slides=lambda i: (i + 1) % every != 0,
    )  # fmt: skip
    return read_plain(cfg, row)


def bitnet(cfg: Config) -> Layers:
    """BitNet: a norm before each output projection, one of them as wide as the FFN."""
    return read_plain(cfg, Traits(norms=3, scalars=cfg.need_int("intermediate_size")))


def cohere2_moe(cfg: Config) -> Layers:
    """Cohere's mixture: experts of ``intermediate_size``, dense layers of their own width first."""
    first, count = cfg.maybe_int("first_k_dense_replace") or 0, layer_count(cfg)
    cfg.ignore(("prefix_dense_sliding_window_pattern",))  # where layer_types spells out what it comes to
    if cfg.get("layer_types") is None:
        before = cfg.maybe_int("prefix_dense_sliding_window_pattern") or 1
        after = cfg.maybe_int("sliding_window_pattern") or 4
        if before < 1 or after < 1:
            raise cfg.error("sliding_window_pattern must be above 0")
        steps = [(i + 1) % before if i < first else (i - first + 1) % after for i in range(count)]
        kinds = ["sliding_attention" if step else "full_attention" for step in steps]
        cfg.data = {**cfg.data, "layer_types": kinds}
    wide = cfg.maybe_int("prefix_dense_intermediate_size")
    return read_plain(cfg, Traits(norms=1, ffn_size=lambda _: wide))


def flint(cfg: Config) -> Layers:
    """Flint: sinks, and every fourth layer global, besides the first two and the last."""
    last = layer_count(cfg) - 1
    row = Traits(
        qk_norm="head", attention={"sinks": True}, slides=lambda i: not (i < 2 or i % 4 == 1 or i == last)
    )  # fmt: skip
    return read_plain(cfg, row)


def hyperclovax(cfg: Config) -> Layers:
    """HyperCLOVA X: Granite with a norm after each half as well."""
    return read_plain(cfg, Traits(norms=4 if cfg.flag("use_post_norm", default=True) else 2))


def laguna(cfg: Config) -> Layers:
    """Laguna: query heads may differ by layer, and each head (or all of them) is gated."""
    gating = cfg.get("gating")
    if gating not in (None, True, False, "per-head", "per-element"):
        raise cfg.error(f"gating {printable(repr(gating), 40)} is not understood")
    per_head = gating in (None, True, "per-head")
    count = layer_count(cfg)
    listed = cfg.maybe_list("num_attention_heads_per_layer", length=count)
    heads = [cfg.as_int(h, "num_attention_heads_per_layer") for h in listed or [query_heads(cfg)] * count]
    layers = []
    for i, window in enumerate(layer_windows(cfg, _NEVER)):
        mixer = softmax_attention(
            cfg, window=window, query_heads=heads[i], qk_norm="head", gate_per_head=per_head, output_gate=not per_head
        )
        block = Block(mixers=(mixer,), ffns=ffn_for_layer(cfg, i, router_bias=True))
        layers.append(Layer(block, "global" if window is None else "local", "moe" if is_moe_layer(cfg, i) else "dense"))
    return stack(layers, **drafts(cfg, layers))


def gpt_neox_japanese(cfg: Config) -> Layers:
    """GPT-NeoX Japanese: a bias only on the output projection of the last layer."""
    ratio = cfg.maybe_int("intermediate_multiple_size") or 4
    row = Traits(norms=4, final_norms=2, gated=False, **NONE, ffn_size=lambda c: ratio * hidden_size(c))
    found = read_plain(cfg, row)
    last = found.blocks[found.layers[-1]]
    mixers = tuple(replace(mixer, output_bias=True) for mixer in last.mixers)  # type: ignore[type-var]
    blocks = {**found.blocks, "last": replace(last, mixers=mixers)}
    found.blocks, found.layers = blocks, (*found.layers[:-1], "last")
    if len(found.layers) == 1:
        found.blocks = {"last": blocks["last"]}
    return found


def xglm(cfg: Config) -> Layers:
    """XGLM: biases everywhere, positions that are computed."""
    cfg.data = {**cfg.data, "num_attention_heads": cfg.need_int("attention_heads", "num_attention_heads")}
    return read_plain(cfg, Traits(norms=4, final_norms=2, gated=False, **ALL))


def ctrl(cfg: Config) -> Layers:
    """CTRL: biases everywhere, positions that are computed, a bias on the head."""
    row = Traits(
        norms=4, final_norms=2, gated=False, **ALL, head_bias=True, ffn_size=lambda c: c.need_int("dff")
    )  # fmt: skip
    return read_plain(cfg, row)


def openai_gpt(cfg: Config) -> Layers:
    """The first GPT: norms after each half and none at the end."""
    row = Traits(
        norms=4, final_norms=0, gated=False, **ALL, positions=("n_positions", 0),
        ffn_size=lambda c: 4 * hidden_size(c),
    )  # fmt: skip
    return read_plain(cfg, row)


def apertus_with_vision(cfg: Config) -> Layers:
    """Apertus 1.5: the text part of a model whose head may have other rows than its embedding.

    Source: transformers 5.24.0 ``models/apertus1p5/modeling_apertus1p5.py``.
    """
    rows = cfg.maybe_int("output_vocab_size")
    if rows is not None and rows != cfg.maybe_int("vocab_size"):
        raise cfg.error(f"output_vocab_size {rows:,} beside another vocab_size is not understood")
    return PLAIN["apertus"](cfg)


def diffllama(cfg: Config) -> Layers:
    """DiffLlama: the difference of two softmaxes over one cache, weighed by four vectors of a head.

    Source: transformers 5.24.0 ``models/diffllama/modeling_diffllama.py``.
    """
    found = PLAIN["llama"](cfg)
    for name, block in found.blocks.items():
        mixer: Any = block.mixers[0]
        lambdas = ExtraTensor(name="lambdas", shape=(4, mixer.head_dim), role="attention")
        found.blocks[name] = replace(block, tensors=(*block.tensors, lambdas))
    return found


PLAIN_MORE: dict[str, Callable[[Config], Layers]] = {
    "afmoe": afmoe,
    "apertus1p5_text": apertus_with_vision,
    "aria_text": PLAIN["llama"],
    "biogpt": plain(norms=4, final_norms=2, gated=False, **ALL, positions=("max_position_embeddings", 2)),
    "bitnet": bitnet,
    "cohere2_moe": cohere2_moe,
    "ctrl": ctrl,
    "diffllama": diffllama,
    "cwm": plain(**NONE, slides=_FIRST_OF_FOUR_IS_FULL),
    "emu3_text_model": PLAIN["llama"],
    "exaone_moe": plain(qk_norm="head", slides=lambda i: (i + 1) % 4 != 0),
    "flint": flint,
    "fuyu": PLAIN["persimmon"],
    "gpt_neox_japanese": gpt_neox_japanese,
    "granite_swa": plain(attention={"sinks": True}, slides=_FIRST_OF_FOUR_IS_FULL),
    "granitemoe_swa": plain(attention={"sinks": True}, slides=_FIRST_OF_FOUR_IS_FULL),
    "hyperclovax": hyperclovax,
    "iquestcoder": PLAIN["llama"],
    "jais2": plain(norms=4, final_norms=2, gated=False, qkv_bias="attention_bias=true",
                   output_bias="attention_bias=true", ffn_bias="mlp_bias=true"),
    "kolibri1": plain(norms=4, qk_norm="head", slides=lambda i: (i + 1) % 5 != 0),
    "laguna": laguna,
    "mellum": plain(qk_norm="head", slides=_NEVER),
    "nanochat": plain(norms=0, final_norms=0, gated=False, qkv_bias="attention_bias", output_bias="attention_bias",
                      ffn_bias=False),
    "openai-gpt": openai_gpt,
    **dict.fromkeys(("phi4_multimodal", "phi4mm"), PLAIN["phi3"]),
    "sarvam_moe": plain(qkv_bias="use_qkv_bias", output_bias=False, qk_norm="head", qk_norm_if="use_qk_norm=true"),
    "solar_open": plain(**NONE),
    "vaultgemma": plain(slides=EVEN),
    "xglm": xglm,
}  # fmt: skip

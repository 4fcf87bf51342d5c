"""Families with latent attention: DeepSeek V2 to V4.1 and those built on them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from kvplan.errors import printable
from kvplan.sources.hf.attention import checked, hidden_size, latent_attention, query_heads
from kvplan.sources.hf.ffn import dense_ffn, ffn_for_layer, is_moe_layer, moe_ffn
from kvplan.sources.hf.keys import Config, Layers
from kvplan.sources.hf.layout import Layer, indexer_layers, layer_count, main_part, stack
from kvplan.sources.hf.plain import drafts
from kvplan.spec.model import Block, ExtraTensor

_INDEX_KEYS = (
    "index_topk_freq", "index_skip_topk_offset", "index_topk_pattern", "index_share_for_mtp_iteration",
    "index_kpool", "index_kpool_compress", "indexer_rope_interleave",
)  # fmt: skip


def latent(cfg: Config, **fields: Any) -> Layers:
    """MLA in every layer, dense FFNs first and experts after.

    Sources: transformers 5.24.0 ``models/deepseek_v3``, ``deepseek_v32``, ``glm_moe_dsa``, ``mistral4``,
    ``mistral_large4`` and ``youtu`` (each ``modeling_*.py``).
    """
    count = layer_count(cfg)
    _refuse_shared_latents(cfg, count)
    cfg.ignore(("no_rope_layers",))
    cfg.ignore(_INDEX_KEYS)
    own = indexer_layers(cfg, count)
    mixers = {has: latent_attention(cfg, indexer=has, **fields) for has in set(own)}
    layers = []
    for i in range(count):
        block = Block(mixers=(mixers[own[i]],), ffns=ffn_for_layer(cfg, i))
        layers.append(Layer(block, "indexed" if own[i] else "reuse", "moe" if is_moe_layer(cfg, i) else "dense"))
    return stack(layers, **drafts(cfg, layers))


def minicpm3(cfg: Config) -> Layers:
    """MiniCPM3: MLA whose values are as wide as a head of the hidden size, where the file does not say."""
    width, heads = hidden_size(cfg), query_heads(cfg)
    if cfg.get("v_head_dim") is None:
        cfg.data = {**cfg.data, "v_head_dim": width // heads}
    return latent(cfg)


def axk1(cfg: Config) -> Layers:
    """A.X-K1: DeepSeek-V3 with one more norm behind each mixture.

    Source: transformers 5.24.0 ``models/axk1/modeling_axk1.py``.
    """
    found = latent(cfg)
    for name, block in found.blocks.items():
        if any(getattr(ffn, "experts", 0) for ffn in block.ffns):
            found.blocks[name] = replace(block, norms=block.norms + 1)
    return found


def axk2(cfg: Config) -> Layers:
    """A.X-K2: MLA with an indexer, a gate on its output beside the queries, and norms with narrow gates.

    Source: transformers 5.24.0 ``models/axk2/modeling_axk2.py``.
    """
    kinds = set(map(str, cfg.maybe_list("layer_types") or ()))
    if kinds - {"indexed_attention"}:
        raise cfg.error(
            f"layer_types has {printable(repr(min(kinds - {'indexed_attention'})), 40)}, which is not understood"
        )
    width, heads, rank = hidden_size(cfg), query_heads(cfg), cfg.need_int("q_lora_rank")
    head = cfg.need_int("qk_nope_head_dim") + cfg.need_int("qk_rope_head_dim") + 2 * cfg.need_int("v_head_dim")
    gate = ExtraTensor(name="attn_gate", shape=(heads * head, rank))
    narrow = cfg.need_int("gated_norm_rank")
    found = latent(cfg)
    for name, block in found.blocks.items():
        gated = 2 if any(getattr(ffn, "experts", 0) for ffn in block.ffns) else 1
        norms = ExtraTensor(name="norm_gates", shape=(2 * narrow, width), count=gated, role="norm")
        found.blocks[name] = replace(block, tensors=(*block.tensors, gate, norms))
    return found


def hy_v4(cfg: Config) -> Layers:
    """Hy 4: MLA with an indexer in one layer of four, a gate on its output, sinks, and parallel residual streams.

    Source: transformers 5.24.0 ``models/hy_v4/modeling_hy_v4.py`` and its configuration.
    """
    count, streams = layer_count(cfg), cfg.maybe_int("hc_mult") or 4
    cfg.ignore(("hc_mult", "hc_magnitude", "hc_eps", "learnable_sink_init", "swiglu_limit", "layer_types"))
    cfg.ignore(("hc_sinkhorn_iters", "gate_projection_type", "num_key_value_heads"))
    spoken = ("indexer_types", "index_topk_pattern", "index_topk_freq")
    if all(cfg.get(key) is None for key in spoken):
        kinds = ["full" if i == 0 or (i - 1) % 4 == 0 else "shared" for i in range(count)]
        cfg.data = {**cfg.data, "indexer_types": kinds}
    if all(cfg.get(key) is None for key in ("mlp_layer_types", "first_k_dense_replace")):
        cfg.data = {**cfg.data, "first_k_dense_replace": 1}
    found = latent(cfg, output_gate=True)
    width, rows = streams * hidden_size(cfg), 2 * streams
    more = (
        ExtraTensor(name="hyper_connection", shape=(rows, width + 1), count=2, role="norm"),
        ExtraTensor(name="hyper_scales", shape=(2,), count=2, role="norm"),
        ExtraTensor(name="attn_sinks", shape=(query_heads(cfg),), role="norm"),
    )
    for name, block in found.blocks.items():
        found.blocks[name] = replace(block, tensors=(*block.tensors, *more))
    found.tensors += (ExtraTensor(name="hyper_head", shape=(streams, width + 1), role="norm"),)
    return found


def sarvam_mla(cfg: Config) -> Layers:
    """Sarvam's MLA: DeepSeek-V3 under other names.

    Source: transformers 5.24.0 ``models/sarvam_mla/configuration_sarvam_mla.py``.
    """
    drafts_of = cfg.maybe_int("num_nextn_predict_layers", "num_mtp_layers") or 0
    cfg.data = {**cfg.data, "num_nextn_predict_layers": drafts_of}
    return latent(cfg)


def _refuse_shared_latents(cfg: Config, count: int) -> None:
    """Layers that read another's latent cache are not described yet: say so."""
    sources = cfg.maybe_list("kv_source_layers")
    if sources is not None and sources[:count] != list(range(count)):
        raise cfg.error("kv_source_layers: layers that share a latent cache are not understood")


def longcat(cfg: Config) -> Layers:
    """LongCat-Flash: a layer is two MLA blocks, two dense FFNs and one mixture beside them.

    Some experts are the identity and weigh nothing, but the router scores them too. Source:
    transformers 5.24.0 ``models/longcat_flash/modeling_longcat_flash.py``.
    """
    mixer = latent_attention(cfg)
    dense = dense_ffn(cfg, intermediate_size=cfg.need_int("ffn_hidden_size"))
    cfg.ignore(("zero_expert_type", "mla_scale_q_lora", "mla_scale_kv_lora"))
    zeros = cfg.maybe_int("zero_expert_num") or 0
    extra = (ExtraTensor(name="zero_expert_router", shape=(zeros, hidden_size(cfg)), role="router"),) if zeros else ()
    block = Block(mixers=(mixer, mixer), ffns=(dense, dense, moe_ffn(cfg)), norms=4, tensors=extra)
    layers = [Layer(block)] * layer_count(cfg)
    return stack(layers, **drafts(cfg, layers))


def hyper_connections(cfg: Config, sites: int) -> tuple[ExtraTensor, ...]:
    """Weights that mix the residual streams at `sites` places of a layer; none without ``hc_mult``.

    Source: transformers 5.24.0 ``models/deepseek_v4/modeling_deepseek_v4.py``, ``DeepseekV4HyperConnection``.
    """
    streams = cfg.maybe_int("hc_mult") or 0
    cfg.ignore(("hc_eps", "hc_sinkhorn_iters"))
    if streams < 2:
        return ()
    rows = streams * (streams + 2)
    return (
        ExtraTensor(name="hyper_connection", shape=(rows, streams * hidden_size(cfg) + 1), count=sites, role="norm"),
    )


def compressed(cfg: Config) -> Layers:
    """DeepSeek-V4: a short window everywhere, compressed entries where ``compress_ratios`` is not 0.

    Sources: transformers 5.24.0 ``models/deepseek_v4/modeling_deepseek_v4.py``; V4.1, where only the layers in
    ``kv_source_layer_ids`` store entries and the others read theirs: its configuration.
    """
    count = layer_count(cfg)
    ratios = _ratios(cfg, count)
    sources = cfg.maybe_list("kv_source_layer_ids")
    cfg.ignore(("qk_rope_head_dim", "num_key_value_heads", "num_hash_layers", "compress_rope_theta", "v_head_dim"))
    cfg.ignore(("index_head_dim", "index_n_heads", "index_topk"))  # no layer may have an index
    if any(kind not in ("moe", "hash_moe") for kind in cfg.maybe_list("mlp_layer_types") or []):
        raise cfg.error("mlp_layer_types has a kind of layer that is not understood")
    index_sources = cfg.maybe_list("index_source_layer_ids")
    number = cfg.maybe_int("num_nextn_predict_layers") or 0
    layers = []
    for i in range(min(len(ratios), count + number)):
        stores = ratios[i] > 0 and (sources is None or i in sources)
        mixer = _compressed_mixer(
            cfg, ratios[i] if stores else None, stores and _has_index(ratios[i], i, index_sources)
        )
        block = Block(mixers=(mixer,), ffns=(moe_ffn(cfg, i),), tensors=hyper_connections(cfg, 2))
        word = f"ratio{ratios[i]}" if stores else "reads" if ratios[i] else "window"
        layers.append(Layer(block, word, "moe"))
    found = stack(layers, tensors=_engram(cfg) + _hyper_head(cfg), **drafts(cfg, layers))
    found.draft_layers, found.layers = found.layers[count:], found.layers[:count]
    return found


def _ratios(cfg: Config, count: int) -> list[int]:
    """Tokens per compressed entry of every layer, 0 for none: a list, or words in ``layer_types``."""
    listed, kinds = cfg.maybe_list("compress_ratios"), cfg.maybe_list("layer_types")
    rates = {"compressed_sparse_attention": 4, "heavily_compressed_attention": 128} | (
        cfg.maybe_dict("compress_rates") or {}
    )
    if listed is None and kinds is not None:
        rates["sliding_attention"] = 0
        if any(not isinstance(kind, str) or kind not in rates for kind in kinds):
            raise cfg.error("layer_types has a kind of layer that is not understood")
        listed = [rates[kind] for kind in kinds]
    main_part(cfg, listed or [], count, "compress_ratios")
    ratios = [cfg.as_int(r, "compress_ratios") for r in listed or []]
    if any(r < 0 for r in ratios):
        raise cfg.error(f"compress_ratios has {min(ratios)}, which is below 0")
    return ratios


def _has_index(ratio: int, layer: int, sources: list[Any] | None) -> bool:
    """Short ratios are searched through an index; long ones are read whole."""
    if sources is not None:
        return layer in sources
    return 0 < ratio <= 16


def _compressed_mixer(cfg: Config, ratio: int | None, indexed: bool) -> Any:
    from kvplan.cache.compressed import CompressedAttention

    values = {
        "query_heads": query_heads(cfg),
        "head_dim": cfg.need_int("head_dim"),
        "window": cfg.need_int("sliding_window"),
        "ratio": ratio,
        "index_head_dim": cfg.maybe_int("index_head_dim") if indexed else None,
        "index_heads": cfg.maybe_int("index_n_heads") if indexed else None,
        "index_topk": cfg.maybe_int("index_topk") if indexed else None,
        "q_lora_rank": cfg.maybe_int("q_lora_rank"),
        "o_lora_rank": cfg.maybe_int("o_lora_rank"),
        "o_groups": cfg.maybe_int("o_groups"),
        "compressor": ratio is not None,
    }
    return checked(cfg, CompressedAttention, {}, values)


def _engram(cfg: Config) -> tuple[ExtraTensor, ...]:
    """Tables looked up by n-grams of tokens (DeepSeek-V4.1): rows x ``engram_head_dim``."""
    rows, width = cfg.maybe_list("engram_num_embeddings"), cfg.maybe_int("engram_head_dim")
    cfg.ignore(("engram_layer_ids",))
    if not rows or not width:
        return ()
    total = sum(cfg.as_int(r, "engram_num_embeddings") for r in rows)
    return (ExtraTensor(name="engram", shape=(total, width), role="embedding"),)


def _hyper_head(cfg: Config) -> tuple[ExtraTensor, ...]:
    streams = cfg.maybe_int("hc_mult") or 0
    if streams < 2:
        return ()
    return (ExtraTensor(name="hyper_head", shape=(streams, streams * hidden_size(cfg) + 1), role="norm"),)


LATENT: dict[str, Callable[[Config], Layers]] = {
    **dict.fromkeys(
        ("deepseek_v2", "deepseek_v3", "deepseek_v32", "kimi_k2", "glm4_moe_lite", "glm_moe_dsa", "mistral4",
         "mistral_large4", "mistral_large4_text", "youtu", "youtu_llm"),
        latent,
    ),
    "axk1": axk1,
    "axk2": axk2,
    **dict.fromkeys(("hy_v4", "hy_v4_vl_text"), hy_v4),
    "minicpm3": minicpm3,
    "sarvam_mla": sarvam_mla,
    "longcat_flash": longcat,
    **dict.fromkeys(("deepseek_v4", "deepseek_v41", "deepseek_v41_text"), compressed),
}  # fmt: skip

"""Feed-forward parts from a configuration: which layers are dense, which are mixtures, and how wide."""

from __future__ import annotations

from typing import Any

from kvplan.sources.hf.attention import checked
from kvplan.sources.hf.keys import Config
from kvplan.sources.hf.layout import layer_count, main_part
from kvplan.spec.ffn import DenseFfn, MoeFfn
from kvplan.spec.kind import LayerPart

EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
TOP_K = (
    "num_experts_per_tok", "num_experts_per_token", "moe_topk", "moe_k", "moe_top_k", "top_k_experts",
)  # fmt: skip
EXPERT_SIZE = ("moe_intermediate_size", "expert_ffn_hidden_size", "intermediate_size")
DENSE_SIZE = (
    "dense_intermediate_size", "intermediate_size_mlp", "intermediate_size", "ffn_hidden_size", "ffn_dim",
    "n_inner", "ffn_intermediate_size",
)  # fmt: skip
SHARED_COUNT = ("n_shared_experts", "num_shared_experts", "num_shared_expert", "moe_num_shared_experts")
SHARED_SIZE = (
    "shared_expert_intermediate_size", "moe_shared_expert_intermediate_size", "shared_intermediate_size",
    "share_expert_dim",
)  # fmt: skip
WITHOUT_EFFECT = (
    "n_group", "topk_group", "norm_topk_prob", "routed_scaling_factor", "scoring_func", "topk_method",
    "aux_loss_alpha", "seq_aux", "router_aux_loss_coef", "output_router_logits", "router_jitter_noise",
    "ep_size", "use_grouped_topk", "num_expert_group", "num_expert_groups", "moe_router_activation_func",
)  # fmt: skip


def per_layer_int(cfg: Config, layer: int, *keys: str) -> int | None:
    """A size or count, or entry `layer` of a list of them (some files spell a size out per layer).

    Raises:
        SpecError: it is below 0, or no whole number.
    """
    value = cfg.get(*keys)
    name = next((k for k in keys if cfg.data.get(k) is not None), "")
    if isinstance(value, list):
        if layer >= len(value):
            raise cfg.error(f"{name} has {len(value)} entries, too few for layer {layer}")
        value = value[layer]
    found = None if value is None else cfg.as_int(value, name)
    if found is not None and found < 0:
        raise cfg.error(f"{name} must not be below 0, not {found}")
    return found


MAX_EXPERTS = 2**20


def expert_count(cfg: Config, layer: int = 0) -> int:
    """Routed experts of a layer; 0: the model has none.

    Raises:
        SpecError: more than any model has.
    """
    count = per_layer_int(cfg, layer, *EXPERTS) or 0
    if count > MAX_EXPERTS:
        raise cfg.error(f"{count:,} experts", hint=f"a layer has at most {MAX_EXPERTS:,}")
    return count


def is_moe_layer(cfg: Config, layer: int) -> bool:
    """Whether layer `layer` (from 0) routes to experts; every rule that the file states must agree."""
    if expert_count(cfg, layer) <= 1:
        return False
    kinds = cfg.maybe_list("mlp_layer_types")
    if kinds is not None:
        main_part(cfg, kinds, layer_count(cfg), "mlp_layer_types")
        return bool(layer < len(kinds) and kinds[layer] in ("sparse", "moe"))
    listed = cfg.get("moe_layers_enum")
    if listed is not None:
        return layer in {int(p) for p in str(listed).split(",") if p.strip().isdigit()}
    rules = [layer not in [cfg.as_int(n, "mlp_only_layers") for n in cfg.maybe_list("mlp_only_layers") or []]]
    rules.append(layer >= (per_layer_int(cfg, layer, "first_k_dense_replace", "num_dense_layers") or 0))
    frequency = cfg.get("moe_layer_freq")
    if isinstance(frequency, list):
        main_part(cfg, frequency, layer_count(cfg), "moe_layer_freq")
        rules.append(layer < len(frequency) and bool(frequency[layer]))
    elif frequency:
        rules.append(layer % (cfg.maybe_int("moe_layer_freq") or 1) == 0)
    steps = ("decoder_sparse_step", "interleave_moe_layer_step", "moe_layer_frequency", "moe_layer_interval")
    step = per_layer_int(cfg, layer, *steps)
    if step == 0 and "decoder_sparse_step" in cfg:  # its class divides by it
        raise cfg.error("decoder_sparse_step must be above 0, not 0")
    if step is not None:
        rules.append(step > 0 and (layer + 1) % step == 0)
    period, offset = cfg.maybe_int("expert_layer_period"), cfg.maybe_int("expert_layer_offset") or 0
    if period:
        rules.append(layer % period == offset)
    rules.append(layer >= (cfg.maybe_int("moe_layer_start_index") or 0))
    last = cfg.maybe_int("moe_layer_end_index")
    if last is not None and last >= 0:
        rules.append(layer <= last)
    return all(rules)


def dense_ffn(
    cfg: Config,
    *,
    intermediate_size: int | None = None,
    gated: bool = True,
    bias: bool | None = None,
    layer: int = 0,
) -> DenseFfn:
    """A dense FFN; `bias` None: as ``mlp_bias`` says.

    Raises:
        SpecError: no size is given and none of the usual keys has one.
    """
    size = intermediate_size or per_layer_int(cfg, layer, *DENSE_SIZE)
    if size is None:
        raise cfg.error("no intermediate_size", hint="the file is not a model configuration, or is cut short")
    has_bias = cfg.flag("mlp_bias") if bias is None else bias
    ffn: DenseFfn = checked(cfg, DenseFfn, {}, {"intermediate_size": size, "gated": gated, "bias": has_bias})
    return ffn


def moe_ffn(cfg: Config, layer: int = 0, *, gated: bool = True, **fields: Any) -> MoeFfn:
    """A mixture of experts; `fields` of `MoeFfn` win over the keys.

    The shared experts' width is given outright, or as a count of experts of the routed size.
    """
    cfg.ignore(WITHOUT_EFFECT)
    size = fields.get("intermediate_size") or per_layer_int(cfg, layer, *EXPERT_SIZE)
    top_k = per_layer_int(cfg, layer, *TOP_K)
    if size is None or top_k is None:
        raise cfg.error(f"experts without {'a size' if size is None else 'a number per token'}")
    values: dict[str, Any] = {
        "experts": expert_count(cfg, layer),
        "experts_per_token": top_k,
        "intermediate_size": size,
        "shared_intermediate_size": shared_size(cfg, layer, size),
        "gated": gated,
    }
    ffn: MoeFfn = checked(cfg, MoeFfn, {}, values | fields)
    return ffn


def shared_size(cfg: Config, layer: int, expert_size: int) -> int:
    """Width of all shared experts of a layer together; 0: none."""
    count = per_layer_int(cfg, layer, *SHARED_COUNT)
    for key in SHARED_SIZE:
        explicit = cfg.maybe_int(key)
        if explicit is not None:
            return explicit
    return (count or 0) * expert_size


def ffn_for_layer(cfg: Config, layer: int, *, bias: bool | None = None, **moe: Any) -> tuple[LayerPart, ...]:
    """The FFN of layer `layer`: dense or a mixture, as the file's rules say."""
    if is_moe_layer(cfg, layer):
        return (moe_ffn(cfg, layer, **moe),)
    return (dense_ffn(cfg, bias=bias, layer=layer),)

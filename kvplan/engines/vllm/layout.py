"""The cache of a deployment as vLLM lays it out: block size, groups, and what a request is bounded by."""

from __future__ import annotations

from math import lcm
from typing import TYPE_CHECKING, Any, NamedTuple

from kvplan.engines.common import balanced_split
from kvplan.engines.vllm import speculation
from kvplan.engines.vllm.backends import (
    BLOCK_SPARSE,
    DEFAULT_BLOCK,
    INDEXER,
    PLAIN_FORMATS,
    Backend,
    choose,
    forced_block,
    get_backend,
    preferred_block,
)
from kvplan.engines.vllm.groups import block_bytes, make_groups
from kvplan.engines.vllm.layers import (
    V4_BLOCK,
    V41_ARCHITECTURES,
    Inputs,
    attention_family,
    has_states,
    mamba_mode,
    mixers_of,
    model_caches,
    pooled_keys,
)
from kvplan.engines.vllm.requests import Limits, alike, longest_request, request_blocks
from kvplan.engines.vllm.runner import batches_in_flight
from kvplan.engines.vllm.specs import WHOLE, CacheLayer, Group
from kvplan.engines.vllm.states import checkpoint_grid, state_dtypes
from kvplan.engines.vllm.versions import CHANGES, Rules
from kvplan.errors import InputError, UnsupportedError, printable

if TYPE_CHECKING:
    from kvplan.cache.bytes import KvFormats
    from kvplan.engines.base import Settings, Stage
    from kvplan.spec.kind import CacheKind
    from kvplan.spec.model import ModelSpec


class Layout(NamedTuple):
    """Everything that turns bytes into blocks and tokens into blocks."""

    block_size: int
    """Tokens of the primary attention block."""
    caches: list[tuple[int, CacheLayer]]
    """(layer, cache), in model order, draft layers last."""
    groups: list[Group]
    limits: Limits
    has_states: bool
    alike: list[tuple[Group, int]]
    """The groups, those counted together of which a request takes equally many blocks."""
    found: dict[tuple[Any, ...], Any]
    """What was worked out of a rank's share: searches ask for the same again and again."""
    rules: Rules

    def blocks(self, tokens: Any) -> Any:
        """Blocks that a request of `tokens` (int or array) reserves."""
        return request_blocks(self.alike, tokens, self.limits)

    def printed_blocks(self, tokens: Any, stage: Stage) -> Any:
        """Blocks of a request as the concurrency line of 0.26 and before reckons them on a rank of `stage`."""
        if len(self.groups) < 2 or not any(group.mixed for group in self.groups):
            return self.blocks(tokens)
        from kvplan.engines.vllm.tuples import printed_request_blocks

        return printed_request_blocks(self.groups, tokens, self.limits, self._held(stage))

    def checked_bytes(self, stage: Stage) -> int:
        """Bytes of a block in the check at start of 0.28 and before; of the layers of all stages in 0.14 to 0.16."""
        if self.rules.has("check_by_first_group") and not self.rules.has("stage_by_itself"):
            return block_bytes(self.groups)
        if len(self.groups) < 2 or not all(group.mixed for group in self.groups):
            return self.block_bytes(stage)
        key = ("checked", *_share(stage))
        if key not in self.found:
            from kvplan.engines.vllm.tuples import checked_bytes

            self.found[key] = checked_bytes(self.groups, self._held(stage))
        return int(self.found[key])

    def longest(self, blocks: Any) -> Any:
        """The most tokens of one request in so many blocks; None: any number."""
        return longest_request(self.alike, blocks, self.limits)

    def prefix_span(self) -> int:
        """Tokens of which cached prefixes are multiples; 0: prefixes are not shared.

        The least common multiple of the groups' blocks (vLLM 0.33.0 ``kv_cache_coordinator.py``). States
        are kept at block ends in align mode; cross attention shares nothing.
        """
        if not self.groups or any(g.first.family == "cross" for g in self.groups):
            return 0
        if self.has_states and self.limits.mamba_mode == "none":
            return 0
        spans = (g.first.block_size * (self.limits.dcp if g.first.family in WHOLE else 1) for g in self.groups)
        return lcm(*spans)

    def block_bytes(self, stage: Stage) -> int:
        """Bytes of one block on a rank of `stage`, as vLLM counts it: 0.12 to 0.16 add pages that differ up for all."""
        if self.groups[:1] and self.groups[0].mixed and len(self.groups) == 1 and not self.rules.has("stage_by_itself"):
            return block_bytes(self.groups) if self.rules.has("group_of_the_larger") else self.own_bytes(stage)
        return self.own_bytes(stage)

    def own_bytes(self, stage: Stage) -> int:
        """Bytes of one block of the layers that a rank of `stage` has."""
        key = _share(stage)
        if key not in self.found:
            self.found[key] = block_bytes(self.groups, self._held(stage))
        return int(self.found[key])

    def _held(self, stage: Stage) -> set[int] | None:
        """Indices of the caches on a rank of `stage`; None: all."""
        if stage.whole is None:
            return None
        first, count = stage.first_layer, stage.spec.num_layers
        total = stage.whole.num_layers
        return {
            i for i, (layer, _) in enumerate(self.caches)
            if first <= layer < first + count or (stage.last and layer >= total)
        }  # fmt: skip


def _check_pools(model: ModelSpec, settings: Settings, rules: Rules, pools: int, *, states_beside: str | None) -> None:
    """Refuse pools of which it is not known how vLLM lays them out.

    Args:
        pools: as many as the caches make.
        states_beside: the family of attention that has recurrent states beside it; empty or None: there are none.

    Raises:
        UnsupportedError: they are such.
    """
    if states_beside == "sparse" and pools == 1:
        raise UnsupportedError(
            f"the caches of {model.architecture}, states beside sparse attention, are not modelled under vLLM",
            where="--engine vllm",
            hint="type --engine generic",
        )
    spread = max(settings.pipeline_parallel_size, settings.decode_context_parallel_size)
    if pools > 1 and spread > 1 and not rules.has("row_strides"):
        since = ".".join(map(str, CHANGES["row_strides"].since))
        raise UnsupportedError(
            f"{model.architecture} over pipeline stages or context ranks is not modelled under vLLM {rules.name}",
            where="--engine vllm", hint=f"type --engine vllm@{since}, or leave the ranks out",
        )  # fmt: skip


def build(model: ModelSpec, settings: Settings, rules: Rules, formats: KvFormats) -> Layout:
    """Lay out the caches of a model.

    Args:
        model: the whole model as one rank holds it; its draft layers are those that run.

    Raises:
        UnsupportedError: what no memory makes legal.
    """
    spoken = speculation.of(settings)
    drafts = len(model.draft_layers)
    ahead = speculation.tokens_ahead(spoken, drafts)
    mode = mamba_mode(model, settings, rules)
    backends = backends_of(model, settings, formats)
    mixers = mixers_of(model)
    gdn = str(settings.extra.get("gdn_prefill_backend", "triton"))
    grids = [checkpoint_grid(m, model.architecture, gdn, rules) for m in mixers if m.states()]
    exports = bool(grids) and None not in grids
    dtypes = state_dtypes(
        model,
        rules,
        conv=str(settings.extra.get("mamba_cache_dtype", "auto")),
        recurrent=settings.mamba_ssm_cache_dtype,
    )
    block = given_block(model, settings, rules)
    if "block_size" in settings.defaults:
        block = default_block(model, settings, rules, formats)
    own = backends[0] if backends else Backend((DEFAULT_BLOCK,))
    state_block = settings.extra.get("mamba_block_size") or block  # attention beside it decides instead
    if not isinstance(state_block, int) or state_block < 1:
        raise InputError(f"{printable(repr(state_block), 40)} is no count of tokens", where="--mamba-block-size")
    inputs = Inputs(formats, dtypes, rules, own, block, state_block, 0, ahead, gdn, exports)
    pools = pooled_keys(mixers)
    _check_pools(model, settings, rules, pools, states_beside=attention_family(mixers) if grids else "")
    if pools > 1 and backends and rules.has("row_strides"):
        inputs = inputs._replace(row_stride=backends[-1].row_stride)
    elif backends and _rows_apart(attention_family(mixers), settings, formats, rules):
        inputs = inputs._replace(row_stride=1)
    if any(m.kind == "compressed" for m in mixers):
        inputs = inputs._replace(block_size=_compressed_block(model, settings), capability=_capability(settings))
    elif grids and backends:
        grid = lcm(*(g for g in grids if g)) if exports and mode == "align" else 1
        from kvplan.engines.vllm.alignment import hybrid_block

        inputs = hybrid_block(model, mixers, settings, inputs, backends, mode, grid)
    stages: list[int] = []
    if formats.k.edge_layers and not grids and rules.has("mixed_formats_align"):
        from kvplan.engines.vllm.alignment import mixed_blocks

        stages = mixed_blocks(model, mixers, settings, inputs)
        inputs = inputs._replace(block_size=stages[0])
    if mode == "none":
        inputs = inputs._replace(state_block=max(1, settings.max_model_len))
    caches = model_caches(model, inputs)
    if len(set(stages)) > 1:
        caches = _by_stage(model, inputs, stages)
    hybrid = _hybrid_manager(model, settings, rules)
    packed = pools > 1 or any(m.kind == "compressed" for m in mixers)
    groups = make_groups([c for _, c in caches], rules, hybrid=hybrid, packed=packed)
    limits = Limits(
        in_flight_tokens=in_flight_tokens(model, settings, rules),
        encoder_tokens=_encoder_tokens(mixers, settings),
        dcp=settings.decode_context_parallel_size,
        mamba_mode=mode,
        retained_tokens=speculation.retained_tokens(spoken, drafts) if rules.has("window_keeps_drafts") else 0,
        draft_states=rules.has("mode_all_keeps_drafts" if mode == "all" else "mamba_cache_modes"),
    )
    return Layout(inputs.block_size, caches, groups, limits, bool(grids), alike(groups), {}, rules)


def _by_stage(model: ModelSpec, inputs: Inputs, stages: list[int]) -> list[tuple[int, CacheLayer]]:
    """The caches where the ranks of each pipeline stage have blocks of their own size."""
    found: list[tuple[int, CacheLayer]] = []
    first = 0
    for count, block in zip(balanced_split(model.num_layers, len(stages)), stages, strict=True):
        end = first + count if first + count < model.num_layers else model.num_layers + len(model.draft_layers)
        made = model_caches(model, inputs._replace(block_size=block))
        found += [(layer, cache) for layer, cache in made if first <= layer < end]
        first += count
    return found


def _share(stage: Stage) -> tuple[Any, ...]:
    """What tells the shares of two stages apart."""
    return (None,) if stage.whole is None else (stage.first_layer, stage.spec.num_layers, stage.last)


def inputs_of(settings: Settings) -> tuple[Any, ...]:
    """The settings that a layout depends on: layouts of equal ones are equal."""
    return (
        settings.block_size, settings.kv_cache_dtype, settings.max_model_len, settings.max_num_batched_tokens,
        settings.pipeline_parallel_size, settings.decode_context_parallel_size, settings.enable_prefix_caching,
        settings.mamba_ssm_cache_dtype, settings.extra,
    )  # fmt: skip


def backends_of(model: ModelSpec, settings: Settings, formats: KvFormats) -> list[Backend]:
    """The attention backends of a deployment, in layer order; states have none here."""
    family = attention_family(mixers_of(model))
    if family is None or family == "compressed":
        return []
    own = get_backend(backend_name(family, settings, formats.k.name))
    if _takes_64(model, settings, formats):
        own = own._replace(sizes=(64,), multiple=False)
    if family == "sparse":
        pools, major = pooled_keys(mixers_of(model)), _capability(settings)[:2]
        if pools == 1:
            return [INDEXER, own]
        pages = (64,) if major == "12" else (32, 64)
        return [INDEXER._replace(sizes=tuple(pools * page for page in pages)), own]
    if any(s.role == "index" for m in mixers_of(model) for s in m.streams()):
        return [own, BLOCK_SPARSE]
    if formats.k.edge_layers and not has_states(model):
        return [get_backend("FLASH_ATTN"), own]
    return [own]


def backend_name(family: str, settings: Settings, cache_format: str) -> str:
    """The backend that was chosen, unless a changed format (a what-if) calls for another."""
    name = str(settings.extra.get("attention_backend", "FLASH_ATTN"))
    quantized = cache_format not in PLAIN_FORMATS
    if not quantized or get_backend(name).quantized or "attention_backend" not in settings.defaults:
        return name
    capability = _capability(settings)
    rules = Rules(settings.engine_version)
    return choose(family, capability, rules, quantized=True, cache_format=cache_format)


def _takes_64(model: ModelSpec, settings: Settings, formats: KvFormats) -> bool:
    """FlashAttention 4 on compute capability 9.0 reads fp8 heads of 512 in pages of 64.

    Source: vLLM 0.33.0 ``flash_attn.py``, ``_get_sm90_fa4_fp8_kv_block_size``.
    """
    if settings.extra.get("attention_backend") != "FLASH_ATTN" or formats.k.name != "fp8_e4m3":
        return False
    heads = [s.head_dim for m in mixers_of(model) for s in m.streams() if s.role == "k"]
    if max(heads, default=0) != 512 or settings.extra.get("compute_capability") != "9.0":
        return False
    return Rules(settings.engine_version).has("fa4_page_64")


def _rows_apart(family: str | None, settings: Settings, formats: KvFormats, rules: Rules) -> bool:
    """Whether blocks of sparse latent rows are whole rows apart, in the one release that asks every model for it.

    Source: vLLM 0.31.0 ``mla_attention.py``, ``_uses_flat_kv_cache`` and what follows it.
    """
    if family != "sparse" or not rules.has("row_stride_of_one") or rules.has("row_strides"):
        return False
    name = backend_name(family, settings, formats.k.name)
    packed = formats.k.name.endswith("_ds_mla")
    flat = name == "FLASHINFER_MLA_SPARSE" or (name == "FLASHMLA_SPARSE" and not packed)
    return flat or (packed and name == "FLASHMLA_SPARSE" and _capability(settings).startswith("10."))


def given_block(model: ModelSpec, settings: Settings, rules: Rules) -> int:
    """The block size that the user gave, or what becomes of it before 0.18 where no backend was asked for."""
    family = attention_family(mixers_of(model))
    if family not in ("mla", "sparse") or "attention_backend" not in settings.defaults:
        return settings.block_size
    return forced_block(family, _capability(settings), rules, settings.block_size) or settings.block_size


def default_block(model: ModelSpec, settings: Settings, rules: Rules, formats: KvFormats) -> int:
    """The block size where the user gave none."""
    family = attention_family(mixers_of(model))
    if family is None:
        return DEFAULT_BLOCK
    if family == "compressed":
        return _compressed_block(model, settings, own=True)
    forced = forced_block(family, _capability(settings), rules)
    return forced or preferred_block(backends_of(model, settings, formats))


def _compressed_block(model: ModelSpec, settings: Settings, *, own: bool = False) -> int:
    """Tokens of a block of compressed entries.

    Args:
        own: the engine's own choice, whatever the settings say.
    """
    if model.architecture not in V41_ARCHITECTURES:
        asked = 0 if own or "block_size" in settings.defaults else settings.block_size or 0
        if asked % V4_BLOCK:
            raise UnsupportedError(
                f"vLLM takes blocks of a multiple of {V4_BLOCK} tokens here, not {asked}", where="--block-size",
                hint=f"type --block-size {max(V4_BLOCK, asked // V4_BLOCK * V4_BLOCK)}",
            )  # fmt: skip
        return asked or V4_BLOCK
    from kvplan.engines.vllm import v41

    return v41.block_size(_capability(settings)) if own else v41.given_block(settings, _capability(settings))


def _capability(settings: Settings) -> str:
    return str(settings.extra.get("compute_capability", "9.0"))


def _hybrid_manager(model: ModelSpec, settings: Settings, rules: Rules) -> bool:
    """Whether windows are freed: the hybrid manager is on."""
    if settings.extra.get("disable_hybrid_kv_cache_manager") or connector_without_windows(settings, rules):
        return False
    chunked = any(s.chunked for m in mixers_of(model) for s in m.streams())
    if not chunked:
        return True
    return rules.has("chunked_in_hybrid_manager") and not speculation.reads_ahead(speculation.of(settings))


def connector_without_windows(settings: Settings, rules: Rules) -> str:
    """What turns the hybrid manager off besides its own flag; empty: nothing."""
    extra = settings.extra
    if not any(name.startswith("kv_") for name in extra):
        return ""
    from kvplan.engines.vllm.connectors import turned_off_by

    return turned_off_by(settings, rules)


def _encoder_tokens(mixers: list[CacheKind], settings: Settings) -> int:
    """Encoder tokens that cross attention reserves: the encoder budget, or one input where no budget is known."""
    longest = max((s.fixed_entries or 0 for m in mixers for s in m.streams()), default=0)
    return (settings.max_num_batched_tokens or longest) if longest else 0


def in_flight_tokens(model: ModelSpec, settings: Settings, rules: Rules) -> int:
    """Tokens scheduled and not yet settled, which a window must keep besides itself.

    Source: vLLM 0.33.0 ``vllm/config/vllm.py``, ``max_in_flight_tokens``.
    """
    batched = settings.max_num_batched_tokens or 0
    if not rules.has("in_flight_batches"):
        return batched
    return batches_in_flight(model, settings, rules.version) * batched

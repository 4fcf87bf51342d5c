"""The cache of a deployment as vLLM lays it out: block size, groups, and what a request is bounded by."""

from __future__ import annotations

from math import lcm
from typing import TYPE_CHECKING, Any, NamedTuple

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
from kvplan.engines.vllm.groups import Group, block_bytes, make_groups
from kvplan.engines.vllm.layers import V4_BLOCK, Inputs, has_states, model_caches
from kvplan.engines.vllm.requests import Limits, longest_request, request_blocks
from kvplan.engines.vllm.specs import WHOLE, CacheLayer, up
from kvplan.engines.vllm.states import checkpoint_grid, state_bytes, state_dtypes
from kvplan.engines.vllm.versions import Rules
from kvplan.errors import UnsupportedError

if TYPE_CHECKING:
    from kvplan.cache.bytes import KvFormats
    from kvplan.engines.base import Settings, Stage
    from kvplan.spec.kind import CacheKind
    from kvplan.spec.model import ModelSpec

V2_ARCHITECTURES = frozenset(
    {
        "DeepseekV2ForCausalLM", "GraniteMoeForCausalLM", "InklingForCausalLM", "InklingForConditionalGeneration",
        "LongcatFlashNgramForCausalLM", "Qwen2MoeForCausalLM",
    }
)  # fmt: skip
"""Mixtures of experts that ran under the V2 model runner in 0.26 to 0.28 (dense models did, hybrids did not).
Source: vLLM 0.26.0 ``vllm/config/vllm.py``, ``DEFAULT_V2_MODEL_RUNNER_ARCHITECTURES``."""


class Layout(NamedTuple):
    """Everything that turns bytes into blocks and tokens into blocks."""

    block_size: int
    """Tokens of the primary attention block."""
    caches: list[tuple[int, CacheLayer]]
    """(layer, cache), in model order, draft layers last."""
    groups: list[Group]
    limits: Limits
    has_states: bool

    def blocks(self, tokens: Any) -> Any:
        """Blocks that a request of `tokens` (int or array) reserves."""
        return request_blocks(self.groups, tokens, self.limits)

    def printed_blocks(self, tokens: Any) -> Any:
        """Blocks of a request as the concurrency line of 0.26 and before reckons them."""
        if len(self.groups) < 2 or not any(group.mixed for group in self.groups):
            return self.blocks(tokens)
        from kvplan.engines.vllm.tuples import printed_request_blocks

        return printed_request_blocks(self.groups, tokens, self.limits)

    def longest(self, blocks: Any) -> Any:
        """The most tokens of one request in so many blocks; None: any number."""
        return longest_request(self.groups, blocks, self.limits)

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
        """Bytes of one block on a rank of `stage`."""
        if stage.whole is None:
            return block_bytes(self.groups)
        first, count = stage.first_layer, stage.spec.num_layers
        total = stage.whole.num_layers
        held = {
            i for i, (layer, _) in enumerate(self.caches)
            if first <= layer < first + count or (stage.last and layer >= total)
        }  # fmt: skip
        return block_bytes(self.groups, held)


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
    block = settings.block_size
    if "block_size" in settings.defaults:
        block = default_block(model, settings, rules, formats)
    inputs = Inputs(
        formats,
        dtypes,
        rules,
        backends[0] if backends else Backend((DEFAULT_BLOCK,)),
        block,
        block,
        0,
        ahead,
        gdn,
        exports,
    )
    if grids and attention_family(mixers) == "sparse":
        raise UnsupportedError(
            f"the caches of {model.architecture}, states beside sparse attention, are not modelled under vLLM",
            where="--engine vllm",
            hint="type --engine generic",
        )
    if any(m.kind == "compressed" for m in mixers):
        inputs = inputs._replace(block_size=V4_BLOCK)
    elif grids and backends:
        grid = lcm(*(g for g in grids if g)) if exports and mode == "align" else 1
        inputs = _hybrid(model, mixers, settings, inputs, backends, mode, grid)
    elif formats.k.edge_layers and rules.has("mixed_formats_align"):
        inputs = inputs._replace(block_size=_mixed_block(mixers, inputs))
    if mode == "none":
        inputs = inputs._replace(state_block=max(1, settings.max_model_len))
    caches = model_caches(model, inputs)
    hybrid = _hybrid_manager(model, settings, rules)
    packed = any(m.kind == "compressed" for m in mixers)
    groups = make_groups([c for _, c in caches], rules, hybrid=hybrid, packed=packed)
    limits = Limits(
        in_flight_tokens=in_flight_tokens(model, settings, rules),
        encoder_tokens=_encoder_tokens(mixers, settings),
        dcp=settings.decode_context_parallel_size,
        mamba_mode=mode,
        retained_tokens=speculation.retained_tokens(spoken, drafts) if rules.has("window_keeps_drafts") else 0,
        draft_states=rules.has("mamba_cache_modes"),
    )
    return Layout(inputs.block_size, caches, groups, limits, bool(grids))


def inputs_of(settings: Settings) -> tuple[Any, ...]:
    """The settings that a layout depends on: layouts of equal ones are equal."""
    return (
        settings.block_size, settings.kv_cache_dtype, settings.max_model_len, settings.max_num_batched_tokens,
        settings.pipeline_parallel_size, settings.decode_context_parallel_size, settings.enable_prefix_caching,
        settings.mamba_ssm_cache_dtype, settings.extra,
    )  # fmt: skip


def mixers_of(model: ModelSpec) -> list[CacheKind]:
    """The distinct mixers of a model and of the draft layers that run, in layer order."""
    names = dict.fromkeys((*model.layers, *model.draft_layers))
    return [m for name in names for m in model.blocks[name].mixers]


def attention_family(mixers: list[CacheKind]) -> str | None:
    """``dense``, ``mla``, ``sparse``, ``compressed``; None: no attention that caches."""
    found = None
    for mixer in mixers:
        if mixer.kind == "compressed":
            return "compressed"
        streams = mixer.streams()
        if streams and streams[0].name == "latent":
            if any(s.role == "index" for s in streams):
                return "sparse"
            found = "mla"
        elif streams and found is None:
            found = "dense"
    return found


def backends_of(model: ModelSpec, settings: Settings, formats: KvFormats) -> list[Backend]:
    """The attention backends of a deployment, in layer order; states have none here."""
    family = attention_family(mixers_of(model))
    if family is None or family == "compressed":
        return []
    own = get_backend(backend_name(family, settings, formats.k.name))
    if _takes_64(model, settings, formats):
        own = own._replace(sizes=(64,), multiple=False)
    if family == "sparse":
        return [INDEXER, own]
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
    capability = str(settings.extra.get("compute_capability", "9.0"))
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


def default_block(model: ModelSpec, settings: Settings, rules: Rules, formats: KvFormats) -> int:
    """The block size where the user gave none."""
    family = attention_family(mixers_of(model))
    if family is None:
        return DEFAULT_BLOCK
    if family == "compressed":
        return V4_BLOCK
    forced = forced_block(family, str(settings.extra.get("compute_capability", "9.0")), rules)
    return forced or preferred_block(backends_of(model, settings, formats))


def mamba_mode(model: ModelSpec, settings: Settings, rules: Rules) -> str:
    """``none``, ``align`` or ``all``: how states are kept for prefix caching.

    Source: vLLM 0.17.0, 0.26.0, 0.28.0 and 0.33.0 ``vllm/model_executor/models/config.py``, ``MambaModelConfig``.
    """
    kinds = {m.kind for m in mixers_of(model) if m.states()}
    if not kinds or not settings.enable_prefix_caching or not rules.has("mamba_cache_modes"):
        return "none"
    asked = str(settings.extra.get("mamba_cache_mode", "auto"))
    every = kinds <= {"mamba1", "mamba2"}  # the models that could keep a state per block
    if rules.has("no_mode_all") or asked == "align":
        return "align"
    if asked == "all" or (not rules.has("align_is_default") and "speculative_config" not in settings.extra):
        return "all" if every else "align"
    return "align"


def _hybrid(
    model: ModelSpec,
    mixers: list[CacheKind],
    settings: Settings,
    inputs: Inputs,
    backends: list[Backend],
    mode: str,
    grid: int,
) -> Inputs:
    """Grow the attention block until its page covers a state, and pad states to that page.

    Source: vLLM 0.33.0 ``vllm/platforms/interface.py``, ``_align_hybrid_block_size``; before 0.18
    ``HybridAttentionMambaModelConfig``.
    """
    rules = inputs.rules
    state = max(state_bytes(m, inputs.dtypes, rules, inputs.draft_tokens) for m in mixers if m.states())
    per_token = _token_bytes(model, inputs)
    if not state or not per_token:
        return inputs
    latent = attention_family(mixers) != "dense"
    align = max(min(backends[0].sizes), inputs.block_size)
    if not rules.has("backend_chooses_block"):
        align = _old_alignment(latent, mixers, settings, rules)
    elif latent and rules.has("hybrid_mla_128"):
        align = max(align, 128)
    align = lcm(align, grid)
    block = align * up(state, align * per_token)
    if mode == "all":
        chunk = settings.extra.get("mamba_block_size")
        if not chunk:
            raise UnsupportedError(
                "mamba cache mode all needs the kernel's chunk size, which the model's description does not hold",
                where="--mamba-block-size",
                hint="add --mamba-block-size with the configuration's chunk size, or type --mamba-cache-mode align",
            )
        chunk = lcm(int(chunk), align)
        block = chunk * up(up(state, per_token), chunk)
    if rules.has("every_backend_aligns"):
        step = lcm(*(min(b.sizes) for b in backends))
        block = step * up(block, step)
    block = max(block, inputs.block_size) if rules.has("backend_chooses_block") else block
    return inputs._replace(block_size=block, state_block=block, state_padding=block * per_token)


def _old_alignment(latent: bool, mixers: list[CacheKind], settings: Settings, rules: Rules) -> int:
    """Multiples of which hybrid blocks were before the backend chose.

    Source: vLLM 0.11.0 and 0.14.0 ``vllm/model_executor/models/config.py``.
    """
    major = str(settings.extra.get("compute_capability", "9.0")).partition(".")[0]
    if not rules.has("group_of_the_larger"):
        return 16
    if latent:
        return 128 if settings.extra.get("attention_backend") == "CUTLASS_MLA" else 64
    wide = any(s.head_dim == 256 for m in mixers for s in m.streams())
    return 32 if major == "10" and wide and rules.has("chunked_in_hybrid_manager") else 16


def _token_bytes(model: ModelSpec, inputs: Inputs) -> int:
    """Bytes of one token in one attention layer: the first one's."""
    for _, cache in model_caches(model, inputs):
        if cache.family in ("full", "mla", "sliding", "chunked") and cache.shape[:1] != ("index",):
            return cache.row_bytes
    return 0


def _mixed_block(mixers: list[CacheKind], inputs: Inputs) -> int:
    """The block whose page, unpacked at one byte an element, covers a kernel block of the plain layers.

    Source: vLLM 0.33.0 ``vllm/platforms/interface.py``, ``_align_heterogeneous_kv_block_size``; the size
    is reckoned with the first layer's backend, which does not pack.
    """
    step = max(DEFAULT_BLOCK, inputs.block_size)
    for mixer in mixers:
        streams = [s for s in mixer.streams() if s.role in ("k", "v")]
        if streams:
            elements = sum(s.heads * s.head_dim for s in streams)
            need = inputs.dtypes.conv * elements * DEFAULT_BLOCK
            return step * up(need, step * elements)
    return step


def _hybrid_manager(model: ModelSpec, settings: Settings, rules: Rules) -> bool:
    """Whether windows are freed: the hybrid manager is on."""
    if settings.extra.get("disable_hybrid_kv_cache_manager"):
        return False
    chunked = any(s.chunked for m in mixers_of(model) for s in m.streams())
    if not chunked:
        return True
    return rules.has("chunked_in_hybrid_manager") and not speculation.reads_ahead(speculation.of(settings))


def _encoder_tokens(mixers: list[CacheKind], settings: Settings) -> int:
    """Encoder tokens that cross attention reserves: the encoder budget, or one input where no budget is known."""
    longest = max((s.fixed_entries or 0 for m in mixers for s in m.streams()), default=0)
    return (settings.max_num_batched_tokens or longest) if longest else 0


def in_flight_tokens(model: ModelSpec, settings: Settings, rules: Rules) -> int:
    """Tokens scheduled and not yet settled, which a window must keep besides itself.

    Source: vLLM 0.33.0 ``vllm/config/vllm.py``, ``max_concurrent_batches`` and ``max_in_flight_tokens``.
    """
    batched = settings.max_num_batched_tokens or 0
    if not rules.has("in_flight_batches"):
        return batched
    stages = settings.pipeline_parallel_size
    if _v2_runner(model, settings, rules):
        return (stages + 1) * batched
    spoken = speculation.of(settings)
    waits = spoken is not None and spoken.method in ("ngram", "suffix", "custom_class", "medusa", "mlp_speculator")
    return (2 if stages == 1 and not waits else stages) * batched


def _v2_runner(model: ModelSpec, settings: Settings, rules: Rules) -> bool:
    """Whether the V2 model runner serves this deployment by default."""
    spoken = speculation.of(settings)
    if spoken is not None:
        if spoken.method in ("suffix", "custom_class") or (spoken.method == "ngram" and not rules.has("ngram_in_v2")):
            return False
        if spoken.method == "eagle3" and settings.pipeline_parallel_size > 1 and not rules.has("eagle3_pp_in_v2"):
            return False
    if rules.has("v2_runner_everywhere") or model.architecture in V2_ARCHITECTURES:
        return True
    experts = any(getattr(f, "experts", None) for n in model.layer_counts for f in model.blocks[n].ffns)
    return not experts and not has_states(model)

"""From a model's layers to the caches that vLLM's manager sees.

Sources: vLLM 0.33.0 ``get_kv_cache_spec`` of ``vllm/model_executor/layers/attention/attention.py``,
``mla_attention.py``, ``vllm/model_executor/layers/mamba/abstract.py``, ``vllm/models/deepseek_v4/``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from kvplan.cache.bytes import KvFormats, stream_rows
from kvplan.engines.vllm.backends import Backend, window_block
from kvplan.engines.vllm.specs import CacheLayer, up
from kvplan.engines.vllm.states import StateDtypes, checkpoint_grid, state_bytes
from kvplan.engines.vllm.versions import CHANGES, Rules
from kvplan.errors import UnsupportedError
from kvplan.spec.formats import Format, get_format

if TYPE_CHECKING:
    from kvplan.engines.base import Settings
    from kvplan.spec.kind import CacheKind, Stream
    from kvplan.spec.model import ModelSpec

V4_ARCHITECTURES = ("DeepseekV4ForCausalLM", "DeepseekV4ForConditionalGeneration")
"""Architectures whose compressed caches are laid out as below (``vllm/models/deepseek_v4/``)."""
V41_ARCHITECTURES = ("DeepseekV41ForCausalLM",)
"""Architectures of `kvplan.engines.vllm.v41`."""
V4_BLOCK, V4_WINDOW_BLOCK = 256, 64
"""Tokens of a block of compressed entries, and of the window's own cache."""
_V4_ALIGN = 576
"""Pages of the packed fp8 layout are multiples of so many bytes."""
V4_ROPE = 64
"""Rotary elements of an entry, kept in bf16."""


class Inputs(NamedTuple):
    """What the caches of a model depend on besides the model."""

    formats: KvFormats
    dtypes: StateDtypes
    rules: Rules
    backend: Backend
    block_size: int
    """Tokens of the primary attention block."""
    state_block: int
    """Tokens that a state block stands for."""
    state_padding: int
    """Bytes that state pages are padded to; 0: none."""
    draft_tokens: int
    gdn_backend: str
    checkpoints: bool
    """Whether every recurrent layer can export a checkpoint from inside a prefill."""
    capability: str = "9.0"
    row_stride: int = 0
    """Rows of which blocks are multiples, where pages lie side by side; 0: of none."""


def has_states(model: ModelSpec) -> bool:
    """Whether any layer keeps a fixed state."""
    return any(m.states() for name in model.layer_counts for m in model.blocks[name].mixers)


def mixers_of(model: ModelSpec) -> list[CacheKind]:
    """The distinct mixers of a model and of the draft layers that run, in layer order."""
    names = dict.fromkeys((*model.layers, *model.draft_layers))
    return [as_paged(m) for name in names for m in model.blocks[name].mixers]


def as_paged(mixer: CacheKind, common: int | None = None) -> CacheKind:
    """The layer as vLLM builds it: a sliding one where the file names a window, though no context is as long.

    Args:
        common: the window of a layer over K and V that has none of its own.
    """
    window = getattr(mixer, "nominal_window", None)
    if window is None and common and mixer.kind == "full":
        window = common
    if window is None:
        return mixer
    from dataclasses import fields

    from kvplan.cache.attention import Attention
    from kvplan.cache.sliding import SlidingAttention

    return SlidingAttention(**{f.name: getattr(mixer, f.name) for f in fields(Attention) if f.init}, window=window)


def _common_window(model: ModelSpec) -> int | None:
    """The window of a model whose layers all have the same one: layers of a draft model without one take it over.

    Source: vLLM 0.11.0 to 0.33.0 ``vllm/engine/arg_utils.py`` (``sliding_window`` of the cache's configuration) and
    ``Attention`` (0.33.0 ``vllm/model_executor/layers/attention/attention.py``).
    """
    mixers = [as_paged(m) for name in model.layer_counts for m in model.blocks[name].mixers]
    windows = {None if s.chunked else s.window for m in mixers for s in m.streams()}
    return windows.pop() if len(windows) == 1 and not any(m.states() for m in mixers) else None


def pooled_keys(mixers: list[CacheKind]) -> int:
    """Tokens whose index keys are pooled into one; 1: every token's own is kept."""
    return max((s.ratio for m in mixers if m.kind == "mla" for s in m.streams() if s.role == "index"), default=1)


def rope_free(mixers: list[CacheKind]) -> bool:
    """Whether latent rows have no rotary part, which some kernels cannot read."""
    return any(m.kind == "mla" and m.qk_rope_head_dim == 0 for m in mixers)  # type: ignore[attr-defined]


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


def mamba_mode(model: ModelSpec, settings: Settings, rules: Rules) -> str:
    """``none``, ``align`` or ``all``: how states are kept for prefix caching.

    Source: vLLM 0.11.0 to 0.33.0 ``vllm/model_executor/models/config.py``, ``MambaModelConfig``, all read.
    """
    kinds = {m.kind for m in mixers_of(model) if m.states()}
    if not kinds or not settings.enable_prefix_caching:
        return "none"
    every = kinds <= {"mamba1", "mamba2"}  # the models that could keep a state per block
    if not rules.has("mamba_cache_modes"):  # others share nothing, whatever is asked for
        return "all" if every and rules.has("states_of_prefixes") else "none"
    asked = str(settings.extra.get("mamba_cache_mode", "auto"))
    if rules.has("no_mode_all") or asked == "align":
        return "align"
    drafts_align = rules.has("mode_all_drafts_align") and not rules.has("mode_all_keeps_drafts")
    aligned = rules.has("align_is_default") or (drafts_align and "speculative_config" in settings.extra)
    return "all" if every and (asked == "all" or not aligned) else "align"


def model_caches(model: ModelSpec, inputs: Inputs) -> list[tuple[int, CacheLayer]]:
    """(layer, cache) for everything that a model caches; draft layers follow the model's own.

    Raises:
        UnsupportedError: a cache that vLLM, or this description of it, does not know.
    """
    found: list[tuple[int, CacheLayer]] = []
    edge = inputs.formats.k.edge_layers if not has_states(model) else 0
    plain = _plain(model, inputs) if edge else inputs
    made: dict[tuple[str, bool], list[CacheLayer]] = {}
    count = model.num_layers
    edge = min(edge, count // 2)
    common = _common_window(model) if model.draft_layers else None
    for index, name in enumerate((*model.layers, *model.draft_layers)):
        outer = bool(edge) and (index < edge or count - edge <= index < count)
        if (name, outer) not in made:
            chosen = plain if outer else inputs
            paged = [as_paged(m, common if index >= count else None) for m in model.blocks[name].mixers]
            made[name, outer] = [c for m in paged for c in mixer_caches(model, m, chosen)]
        found += [(index, cache) for cache in made[name, outer]]
    return found


def _plain(model: ModelSpec, inputs: Inputs) -> Inputs:
    """The same with the model's own dtype, as the outermost layers keep it under TurboQuant."""
    own = get_format(model.dtype)
    return inputs._replace(formats=inputs.formats._replace(k=own, v=own))


def mixer_caches(model: ModelSpec, mixer: CacheKind, inputs: Inputs) -> list[CacheLayer]:
    """The caches of one mixer, in the order in which vLLM registers them."""
    if mixer.kind == "compressed":
        return _compressed(model, mixer, inputs)
    if mixer.states():
        return [_state(model, mixer, inputs)]
    rows = stream_rows(mixer, inputs.formats)
    if not rows:
        return []
    found = [_index(s, size, inputs.block_size) for s, size, _ in rows if s.role == "index"]
    pooled = [s for s, _, _ in rows if s.role == "index" and s.ratio > 1]
    if pooled and not inputs.rules.has("glm5_next"):
        raise _not_yet(model, inputs.rules)
    found += [_tail(s, inputs.draft_tokens, inputs.rules) for s in pooled]
    main = [(s, size, fmt) for s, size, fmt in rows if s.role != "index"]
    if len(main) == 2 and inputs.rules.pads_values(model.architecture):
        main[1] = (main[1][0], main[0][1], main[1][2])
    found.append(_attention(main, inputs))
    return found


def _index(stream: Stream, row: int, block_size: int) -> CacheLayer:
    return CacheLayer("mla", block_size, row, ratio=stream.ratio, shape=("index", stream.head_dim))


def _tail(stream: Stream, drafts: int, rules: Rules) -> CacheLayer:
    """Keys and gates, in 16 bits, of the pool that is being filled: a ring of whole pools, one block a request.

    Source: vLLM 0.33.0 ``vllm/models/glm5next/common/attention.py``, ``Glm5NextTailCache``.
    """
    pools = 1 << (up(stream.ratio + drafts, stream.ratio) - 1).bit_length() if rules.has("tail_keeps_drafts") else 1
    return CacheLayer("ring", stream.ratio * pools, 2 * 2 * stream.head_dim, shape=("tail", stream.head_dim))


def _not_yet(model: ModelSpec, rules: Rules) -> UnsupportedError:
    since = ".".join(map(str, CHANGES["glm5_next"].since))
    return UnsupportedError(
        f"vLLM {rules.name} does not have {model.architecture}", where="--engine vllm",
        hint=f"type --engine vllm@{since} or later",
    )  # fmt: skip


def _attention(rows: list[tuple[Stream, int, Format]], inputs: Inputs) -> CacheLayer:
    first = rows[0][0]
    size = sum(row for _, row, _ in rows)
    shape = (first.heads, *(s.head_dim for s, _, _ in rows), rows[0][2].name)
    if first.name == "latent":
        if rows[0][2].scale == "token_head":
            size += first.heads * rows[0][2].scale_bytes  # latent rows carry two scales
        family = "mla" if first.window is None else "sliding_mla"
        stride = inputs.row_stride * size
        return CacheLayer(family, inputs.block_size, size, window=first.window, shape=shape, stride=max(1, stride))
    if first.fixed_entries is not None:
        return CacheLayer("cross", inputs.block_size, size, shape=shape)
    if first.window is None:
        return CacheLayer("full", inputs.block_size, size, shape=shape)
    if first.chunked:
        return CacheLayer("chunked", inputs.block_size, size, window=first.window, shape=shape)
    if rows[0][2].edge_layers:  # 0.20 to 0.25 keep windowed rows of TurboQuant unpacked, a byte an element
        size, shape = sum(s.heads * s.head_dim for s, _, _ in rows), (*shape[:-1], "uint8")
    if rows[0][2].name == "int4_per_token_head" and not inputs.rules.has("windows_pack_int4"):
        plain = get_format("int8_per_token_head")
        size = sum(plain.pair_bytes(first.heads, first.head_dim, rows[-1][0].head_dim))
    own = inputs.rules.has("window_own_block") and shape[-1] != "uint8"  # these take the block that covers a plain page
    block = window_block(inputs.backend, inputs.block_size, inputs.rules) if own else inputs.block_size
    return CacheLayer("sliding", block, size, window=first.window, shape=shape)


def _state(model: ModelSpec, mixer: CacheKind, inputs: Inputs) -> CacheLayer:
    grid = checkpoint_grid(mixer, model.architecture, inputs.gdn_backend, inputs.rules)
    exports = grid is not None and (inputs.checkpoints or mixer.kind != "gated_delta_net")
    data = state_bytes(mixer, inputs.dtypes, inputs.rules, inputs.draft_tokens)
    padded = inputs.state_padding if inputs.state_padding > data else 0
    shape = tuple((s.name, s.channels, s.columns) for s in mixer.states())
    return CacheLayer(
        "mamba", inputs.state_block, state_bytes=data, padded_bytes=padded, shape=shape,
        draft_blocks=inputs.draft_tokens, checkpoint_blocks=int(exports),
    )  # fmt: skip


def _compressed(model: ModelSpec, mixer: CacheKind, inputs: Inputs) -> list[CacheLayer]:
    """DeepSeek-V4: a window, compressed entries, and the fp32 states of the compressors.

    Sources: vLLM 0.33.0 ``vllm/models/deepseek_v4/attention.py`` and ``compressor.py``,
    ``vllm/v1/attention/backends/mla/sparse_swa.py``.
    """
    if model.architecture in V41_ARCHITECTURES:
        from kvplan.engines.vllm import v41

        if not inputs.rules.has("glm5_next"):
            raise _not_yet(model, inputs.rules)
        return v41.caches(mixer, inputs)
    if model.architecture not in V4_ARCHITECTURES:
        raise UnsupportedError(
            f"the compressed caches of {model.architecture} are not modelled under vLLM",
            where="--engine vllm",
            hint="type --engine generic for the bytes that the model needs",
        )
    if not inputs.rules.has("v4_caches"):
        since = CHANGES["v4_caches"].since
        raise UnsupportedError(
            f"vLLM {inputs.rules.name} does not have {model.architecture}",
            where="--engine vllm",
            hint=f"type --engine vllm@{'.'.join(map(str, since))} or later",
        )
    rows = {s.name: (s, size) for s, size, _ in stream_rows(mixer, inputs.formats)}
    window, row = rows["window"]
    found = [
        CacheLayer("sliding_mla", V4_WINDOW_BLOCK, row, window=window.window, shape=("window",), alignment=_V4_ALIGN)
    ]
    if "compressed" not in rows:
        return found
    entry, entry_row = rows["compressed"]
    ratio = entry.ratio
    if "index" in rows:
        key, key_row = rows["index"]
        found.append(CacheLayer("mla", inputs.block_size, key_row, ratio=ratio, shape=("index",), alignment=_V4_ALIGN))
        found.append(_compressor(key.head_dim, ratio))
    found.append(
        CacheLayer("mla", inputs.block_size, entry_row, ratio=ratio, shape=("compressed",), alignment=_V4_ALIGN)
    )
    found.append(_compressor(entry.head_dim, ratio))
    return found


def _compressor(head_dim: int, ratio: int) -> CacheLayer:
    """The running state of a compressor: an entry and its gate in fp32 per token, doubled where windows overlap."""
    overlap = 2 if ratio == 4 else 1
    block = 4 if ratio == 4 else 8
    row = 4 * 2 * overlap * head_dim
    return CacheLayer(
        "sliding_mla", block, row, window=overlap * ratio, shape=("compressor", head_dim), alignment=_V4_ALIGN
    )


def v4_format(model: ModelSpec, capability: str) -> Format | None:
    """Storage of one entry of DeepSeek-V4: fp8, the rotary part in bf16, 8 bytes of scales; None: not such a model.

    V4.1 packs its windows closer on compute capability 10 (`kvplan.engines.vllm.v41`).
    """
    for name in model.layer_counts:
        for mixer in model.blocks[name].mixers:
            if mixer.kind == "compressed":
                dim = mixer.streams()[0].head_dim
                size = (dim - V4_ROPE) + 2 * V4_ROPE + 8
                if model.architecture in V41_ARCHITECTURES:
                    from kvplan.engines.vllm import v41

                    size = v41.row_bytes(capability)
                return Format(
                    name="fp8_ds_mla", block_elements=dim, block_bytes=size, use="cache",
                    source="vLLM 0.33.0 vllm/models/deepseek_v4/attention.py",
                )  # fmt: skip
    return None
